"""What happened to a config: evidence from the compiler, a measurement, or a failure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InvalidInputError

STAGES = ("compile", "resources", "load", "launch", "check", "timeout")
"""Where a config can fail. `resources`: the compiler's report alone shows that the device cannot run it."""


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

    The device's clock (MHz) and temperature (degrees Celsius) while it was timed, where somebody told them.

    Raises:
        InvalidInputError: no samples, or one that is not a positive finite number.
    """

    samples_us: tuple[float, ...]
    compile_s: float = 0.0
    run_s: float = 0.0
    clock_mhz: float | None = None
    temperature_c: float | None = None
    median_us: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.samples_us or not all(0 < s < math.inf for s in self.samples_us):
            raise InvalidInputError(f"samples {self.samples_us!r}: times are positive finite microseconds")
        object.__setattr__(self, "median_us", statistics.median(self.samples_us))

    @property
    def relative_error(self) -> float:
        """Standard error of the median as a share of it, from the spread of the samples around it.

        1.48 x the median absolute deviation estimates the standard deviation, 1.25 / sqrt(n) of that the median's error.
        """
        n = len(self.samples_us)
        if n == 1:
            return 0.01  # one sample says nothing of its spread; it is most often a benchmark's median already
        deviation = statistics.median(abs(s - self.median_us) for s in self.samples_us)
        return 1.4826 * 1.2533 * deviation / self.median_us / math.sqrt(n)

    @property
    def cost_s(self) -> float:
        return self.compile_s + self.run_s

    def with_more(self, again: Measurement) -> Measurement:
        """This measurement with another one's samples and running cost added; it was compiled once."""
        return Measurement(
            samples_us=self.samples_us + again.samples_us,
            compile_s=self.compile_s,
            run_s=self.run_s + again.run_s,
            clock_mhz=again.clock_mhz or self.clock_mhz,
            temperature_c=again.temperature_c or self.temperature_c,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A config that cannot be used here: at which stage it failed, what was said, and the seconds it cost.

    `crashed` means that running it can take the process down or never end, so it must not be tried in the caller's.
    `transient` means that the cause may lie elsewhere (no memory, no process, a full disk, the call itself): the config is
    tried once more by a later run before the failure is held against it.
    """

    stage: str
    message: str
    cost_s: float = 0.0
    crashed: bool = False
    transient: bool = False

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InvalidInputError(f"stage {self.stage!r}: accepted are {', '.join(STAGES)}")

    @property
    def follows(self) -> str:
        """What follows from it, in words."""
        if self.transient:
            return "the cause may lie elsewhere, so a later run tries it again"
        if self.crashed:
            return "it is not tried again, and never run in the caller's process"
        return "it is not tried again"


Outcome = Measurement | Failure
