"""What happened to a config: evidence from the compiler, a measurement, or a failure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ..errors import InvalidInputError
from .config_errors import is_refusal

Stage = Literal["compile", "resources", "load", "launch", "check", "timeout"]
STAGES: tuple[str, ...] = get_args(Stage)
"""Where a config can fail. `resources`: it asks for more than the device has, as the compiler's report or a launch says."""

MAX_DRIFT = 100.0

SWITCH_MARGIN = 0.02  # the gain below which leaving what runs is not worth it (Triton's own choice, triton#9153)
TIE_MARGIN = 0.005  # two medians closer than this are a tie however small their spread

_REFUSED_BY = ("static assertion failed", "too much shared", "too many resources requested")
"""In the words of C++ compilers, ptxas and CUDA's launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the compiler says of a config without running it; None where it does not say."""

    compile_s: float
    registers: int | None = None  # per thread
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    code_bytes: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of one config, in microseconds, one sample per timed repeat, and what getting them cost, in seconds.

    The device's clock (MHz) and temperature (degrees Celsius) while it was timed, where somebody told them. `disturbance`
    is the share by which the median may be too long where a neighbour kept the device busy whenever this was timed.

    Raises:
        InvalidInputError: no samples, or one that is not a positive finite number.
    """

    samples_us: tuple[float, ...]
    compile_s: float = 0.0
    run_s: float = 0.0
    clock_mhz: float | None = None
    temperature_c: float | None = None
    disturbance: float = 0.0
    median_us: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.samples_us or not all(0 < s < math.inf for s in self.samples_us):
            raise InvalidInputError(f"samples {self.samples_us!r}: times are positive finite microseconds")
        object.__setattr__(self, "median_us", statistics.median(self.samples_us))

    @property
    def relative_error(self) -> float:
        """Standard error of the median as a share of it, from the spread of the samples; at least the disturbance.

        1.48 x the median absolute deviation estimates the standard deviation, 1.25 / sqrt(n) of that the median's error.
        """
        n = len(self.samples_us)
        if n == 1:
            # One sample says nothing of its spread; it is most often a benchmark's median already.
            return max(0.01, self.disturbance)
        return max(1.2533 * self._deviation_us / self.median_us / math.sqrt(n), self.disturbance)

    @property
    def relative_spread(self) -> float | None:
        """Standard deviation of the samples as a share of their median; None for one sample, which tells nothing of it."""
        return self._deviation_us / self.median_us if len(self.samples_us) > 1 else None

    @property
    def _deviation_us(self) -> float:
        return 1.4826 * statistics.median(abs(s - self.median_us) for s in self.samples_us)

    @property
    def cost_s(self) -> float:
        """Seconds that compiling and timing took together."""
        return self.compile_s + self.run_s

    def scaled(self, factor: float) -> Measurement:
        """The same on a scale of so many times its own, as where the device's clock was another.

        No device is so many times slower from one day to the next: beyond `MAX_DRIFT` a record is wrong and is left.
        """
        if not 1 / MAX_DRIFT <= factor <= MAX_DRIFT:
            return self
        return replace(self, samples_us=tuple(sample * factor for sample in self.samples_us))

    def with_more(self, again: Measurement) -> Measurement:
        """This measurement with another one's samples and running cost added; it was compiled once.

        Of one that was disturbed and one that was not, the samples of the latter are kept alone.
        """
        both = [self, again]
        kept = [m for m in both if not m.disturbance] or both
        return Measurement(
            samples_us=tuple(sample for m in kept for sample in m.samples_us),
            compile_s=self.compile_s,
            run_s=self.run_s + again.run_s,
            clock_mhz=again.clock_mhz or self.clock_mhz,
            temperature_c=again.temperature_c or self.temperature_c,
            disturbance=max(m.disturbance for m in kept),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A config that cannot be used here: at which stage it failed, what was said, and the seconds it cost.

    `crashed` means that running it can take the process down or never end, so it must not be tried in the caller's.
    `transient` means that the cause may lie elsewhere (no memory, no process, a full disk, the call itself): the config is
    tried once more by a later run before the failure is held against it.
    """

    stage: Stage
    message: str
    cost_s: float = 0.0
    crashed: bool = False
    transient: bool = False

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InvalidInputError(f"stage {self.stage!r}: accepted are {', '.join(STAGES)}")

    @property
    def refused(self) -> bool:
        """Whether the config is only too large for the device, or rules itself out, as many of a wide space do."""
        # By an error of ours, a variant says that it is not made for such arguments.
        says_so = is_refusal(self.message) or self.message.startswith("InvalidInputError:")
        return self.stage == "resources" or says_so or any(words in self.message for words in _REFUSED_BY)

    @property
    def follows(self) -> str:
        """What follows from it, in words."""
        if self.transient:
            return "the cause may lie elsewhere, so the next run that tunes the key tries it again"
        if self.crashed:
            return "it is not tried again, and never run in the caller's process"
        return "it is not tried again"


Outcome = Measurement | Failure
