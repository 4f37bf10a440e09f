"""The seams. Five protocols act on the nouns of `core`; nothing behind one of them knows what stands behind another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from .core.config import Config
from .core.decision import Decision
from .core.forecast import Abstention, Forecast
from .core.job import Compile, Job, Measure, Progress, Question, Recording, Stop, View
from .core.outcome import Evidence, Failure, Outcome


class Compiler(Protocol):
    """Builds configs so that a measurer can run them."""

    @property
    def workers(self) -> int:
        """How many configs it builds side by side."""

    @property
    def beside_timing(self) -> bool:
        """Whether it may build while a config is timed: not where both need the same cores."""

    def compile(self, configs: Sequence[Config]) -> Iterator[tuple[Config, Evidence | Failure]]:
        """Build each config, yielding each as it is done, in any order.

        Never raises for a config that does not build: that is a `Failure`. Closing the iterator abandons the rest.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is built while this is held, what has begun included."""


class Surrogate(Protocol):
    """Forecasts configs without running them."""

    name: str

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        """One answer for each of the question's configs, in their order; abstains where it knows nothing."""


class Policy(Protocol):
    """Chooses what to compile and to measure next."""

    def step(self, view: View) -> Compile | Measure | Stop:
        """The next step. The loop puts the default first and ends the run when the budget is gone."""


class Measurer(Protocol):
    """Times compiled configs on the hardware."""

    repeatable: bool
    """Whether measuring a config again tells anything new (a recording's does not)."""

    def measure(self, config: Config) -> Outcome:
        """Time one compiled config. Never raises for a config that misbehaves: that is a `Failure`."""


class Store(Protocol):
    """Remembers outcomes, forecasts and decisions. Never raises once it is open: a store that breaks warns once."""

    def decision(self, job: Job) -> Decision | None:
        """The newest decision for this key, hardware, toolchain and space."""

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """The newest outcome of each config of this job, whatever space it was tried in."""

    def recollect(self, job: Job) -> Sequence[Recording]:
        """The same program elsewhere: other keys, hardware, toolchains, older source. Not this job itself."""

    def record(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        """Keep an outcome and the forecast that preceded it, at once; a later one of the same run replaces it."""

    def decide(self, job: Job, decision: Decision) -> None:
        """Keep a decision; it supersedes the earlier one."""

    def note_pending(self, job: Job, why: str) -> None:
        """Note that this job was met where measuring was not allowed; a decision that was measured strikes it out."""

    def single_flight(self, job: Job) -> AbstractContextManager[bool]:
        """Hold this job against every other process; False after waiting too long: then go on without it."""


Listener = Callable[[Progress], None]
"""Told how far a tuning run has come."""
