"""What one tuning run is about, and what was learned elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .config import Config
from .digest import digest
from .forecast import Abstention, Forecast
from .hardware import Hardware, Toolchain
from .outcome import Evidence, Measurement, Outcome
from .space import Space
from .workload import Work, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One decision to make: a workload, on this hardware, with this toolchain, among these configs.

    `static_features` holds, for each config in the order of the space, what is known of it without compiling: see
    `launch_features.launch_features` for the names. Empty where nothing is.
    """

    workload: Workload
    space: Space
    hardware: Hardware
    toolchain: Toolchain
    work: Work | None = None
    static_features: Sequence[Mapping[str, float]] = ()

    @property
    def digest(self) -> str:
        """By what a store and `forecast-autotune show` find its decision."""
        return digest(self.workload.digest, self.hardware.digest, self.toolchain.digest, self.space.digest)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is known of one workload on one hardware under one toolchain: outcomes, and the default they relate to.

    `static_features` holds what was known of configs without compiling, as `Job.static_features` does; of those missing,
    nothing was.
    """

    workload: Workload
    hardware: Hardware
    toolchain: Toolchain
    default: Config
    outcomes: Mapping[Config, Outcome] = field(repr=False)
    static_features: Mapping[Config, Mapping[str, float]] = field(default_factory=dict, repr=False)

    def log2_speedups(self) -> dict[Config, float]:
        """Log2 speed-up of each measured config against the default; empty if nothing ran."""
        return log2_speedups(self.outcomes, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a policy may look at in one step.

    `forecasts` stand in the order of the space; `initial_forecasts` are those made before this run measured.
    `evidence` holds the configs that are compiled. `under_way` are those that are being tried now, here or by another
    process, in the order in which they were begun: no policy asks for them again. `workers` more can be compiled at once.
    """

    space: Space
    forecasts: Sequence[Forecast | Abstention]
    outcomes: Mapping[Config, Outcome]
    evidence: Mapping[Config, Evidence]
    configs_left: float
    seconds_left: float
    workers: int = 1
    initial_forecasts: Sequence[Forecast | Abstention] = ()
    under_way: Sequence[Config] = ()


@dataclass(frozen=True, slots=True)
class Compile:
    """A policy's answer: compile these configs next."""

    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """A policy's answer: measure these configs next."""

    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A policy's answer: enough, and why. With `config`, that one is the decision; without, the evidence decides."""

    reason: str
    config: Config | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a tuning run has come; sent before each step, and when it has decided.

    While `timing`, a config is timed until the next one is sent: what runs beside it on the same cores shows in its time.
    """

    job: Job
    doing: str
    forecast: int
    compiled: int
    tried: int
    limit: float
    spent_s: float
    best: Config | None
    best_speedup: float | None
    seconds_left: float = math.inf
    timing: bool = False


def reference_us(outcomes: Mapping[Config, Outcome], default: Config) -> float | None:
    """Time that speed-ups relate to: the default's; where it failed or is unknown, the median of those that ran."""
    outcome = outcomes.get(default)
    if isinstance(outcome, Measurement):
        return outcome.median_us
    times = sorted(o.median_us for o in outcomes.values() if isinstance(o, Measurement))
    return times[len(times) // 2] if times else None


def log2_speedups(outcomes: Mapping[Config, Outcome], default: Config) -> dict[Config, float]:
    """Log2 of reference time / time for each config that ran; see `reference_us`."""
    reference = reference_us(outcomes, default)
    if reference is None:
        return {}
    return {c: math.log2(reference / o.median_us) for c, o in outcomes.items() if isinstance(o, Measurement)}
