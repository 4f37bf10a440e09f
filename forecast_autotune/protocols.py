"""The seams. Protocols act on the nouns of `core`; nothing behind one of them knows what stands behind another."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from .core.config import Config
from .core.context import ForecastContext
from .core.decision import Decision
from .core.forecast import Abstention, Forecast
from .core.job import Compile, Job, Measure, Progress, Recording, Stop, View
from .core.outcome import Evidence, Failure, Outcome
from .core.timing_limits import IN_FULL, TimingLimits


def without_limit(_waited_s: float) -> float:
    """For ever, in seconds: what is returned by who waits until all is done."""
    return math.inf


class Compiler(Protocol):
    """Builds configs so that a measurer can run them."""

    @property
    def workers(self) -> int:
        """How many configs it builds side by side."""

    @property
    def overlaps_timing(self) -> bool:
        """Whether it may build while a config is timed: not where both need the same cores."""

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """Build each config, yielding each as it is done, in any order.

        The next of `configs` is taken whenever fewer are under way than may be, those that are built and not yielded yet
        included: whoever chooses them may choose late. Never raises for a config that does not build: that is a `Failure`.
        Closing the iterator abandons the rest: what is under way is ended, with all its processes.

        Args:
            workers: how many may be under way; as many as it builds side by side if not given.
            on_wait: called in this thread, with no lock held, as often as nothing is done. It may use the wait, as to
                time what is built. It takes the seconds for which all that is under way has been built, 0 while some of
                it waits for a worker or a core, and returns for how many to wait before the next call. At 0 the iterator
                ends, and what is under way is abandoned.
        Raises:
            NoWorkingConfigError: no config can build, whatever its knobs.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is built while this is held, what has begun included."""


class SurrogateSession(Protocol):
    """Forecasts for one job, in one thread. It keeps what it has computed for the job; derive it from `BaseSession`."""

    @property
    def loo_log_density(self) -> float | None:
        """How well the outcomes of the last `predict` were forecast, each from all the others.

        The sum of their log densities, nats per octave of speed-up. A blend weighs its members by it. None: it is not known.
        """

    def predict(
        self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]
    ) -> Sequence[Forecast | Abstention]:
        """One answer for each config of the job's space, in its order; abstains where it knows nothing.

        Args:
            outcomes: what was measured for this job by now; the caller goes on filling it.
            evidence: what the compiler said of the configs compiled by now.
        """


class Surrogate(Protocol):
    """Forecasts configs without running them; derive it from `surrogates.base.BaseSurrogate`, which fills in defaults.

    One object may serve several jobs at once, in several threads: what belongs to a job stands in its session.
    """

    @property
    def name(self) -> str:
        """What forecasts are kept under, and `FORECAST_AUTOTUNE_SURROGATE` calls it."""

    @property
    def recalibrate(self) -> bool:
        """Whether its sigmas may be corrected by what the store knows of its earlier forecasts."""

    @property
    def asks_model(self) -> bool:
        """Whether it asks a language model, so that a forecast may take seconds."""

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Names of the kernels whose measurements it was fitted on beforehand."""

    @property
    def model_version(self) -> str:
        """The version of the fitted model that it forecasts by; empty where it has none."""

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that forecasts for the context's job."""


class Policy(Protocol):
    """Chooses what to compile and to measure next."""

    def step(self, view: View) -> Compile | Measure | Stop:
        """The next step. The loop puts the default first and ends the run when the budget is gone."""


class Measurer(Protocol):
    """Times compiled configs on the hardware."""

    repeatable: bool
    """Whether measuring a config again tells anything new (a recording's does not)."""

    @property
    def explored_s(self) -> float:
        """What candidates cost real calls; 0 where none is made."""

    @property
    def saved_s(self) -> float:
        """What real calls took less than under the default meanwhile."""

    def prepare(self) -> None:
        """Do what needs no compiled config, while the first are being compiled. Never raises: `measure` would."""

    def skip_default(self) -> None:
        """The default is known to take its process down: it is not to be run, not even to compare others with."""

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        """Time one compiled config, no further than is of use.

        Never raises for a config that misbehaves: that is a `Failure`.
        """


class Store(Protocol):
    """Remembers outcomes, forecasts and decisions. Never raises once it is open: a store that breaks warns once."""

    def decision(self, job: Job) -> Decision | None:
        """The newest decision for this key, hardware, toolchain and space."""

    def decision_for_any_constexprs(self, job: Job) -> Decision | None:
        """The newest decision as `decision` gives it, but for a key that may hold other constexprs.

        That of such a key is carried over: `Decision.carried_over`. None for a key without constexprs.
        """

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """The newest outcome of each config of this job, whatever space it was tried in."""

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """Recordings of the same program at other keys, on other hardware, under other toolchains, in older source.

        Of many, those that `features.likeness` ranks first will do: forecasts read no others.
        """

    def record_outcome(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        """Keep an outcome and the forecast that preceded it, at once; a later one of the same run replaces it."""

    def record_decision(self, job: Job, decision: Decision) -> None:
        """Keep a decision; it supersedes the earlier one."""

    def note_pending(self, job: Job, why: str) -> None:
        """Note that this job was met where measuring was not allowed; a decision that was measured strikes it out."""

    def shared_decision(self, job: Job) -> Decision | None:
        """The decision that all ranks of this job use, whatever its basis; None before a rank has published one.

        Asked before every config that is tried, so it is quick.
        """

    def publish_decision(self, job: Job, decision: Decision) -> Decision:
        """Publish a decision to the other ranks; returns the one that all ranks use, the first published."""

    def single_flight(self, job: Job) -> AbstractContextManager[bool]:
        """Hold this job against every other process; False, at once, where another one holds it: that one tunes."""


class WorkSharing(Protocol):
    """One job's tuning shared among processes on several devices of equal hardware: one leads, the others help."""

    processes: int
    """How many there probably are, so that none takes more than its part."""

    def lead(self, run: str, most: float, first: Config | None) -> AbstractContextManager[None]:
        """Let others help a run while this is held, until `most` configs are claimed; `first` is claimed at once."""

    def wanted(self) -> bool:
        """Whether a run is led that has room for one more config, and this process may claim it."""

    def claim(self, config: Config) -> bool:
        """Claim a config for oneself; False where another has it, it was tried, or there is room for no more."""

    def tried(self, config: Config) -> None:
        """Note that a claimed config was tried."""

    def release(self, config: Config) -> None:
        """Free a claimed config for others, and leave them the rest: from then on, this process is asked for no more."""

    def claimed_by_others(self) -> frozenset[Config]:
        """Configs that other processes have claimed and not tried yet."""

    def device(self) -> AbstractContextManager[bool]:
        """Hold the device against every process that shares work; False, at once, where another one times on it."""


Listener = Callable[[Progress], None]
"""Told how far a tuning run has come."""
