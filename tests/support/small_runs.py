"""Whole tuning runs on small recordings, with a store in memory and a surrogate that says what it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recorded import job_of, measurement, recording

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision, Resolution
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Job, Progress, Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import Policy, Surrogate
from forecast_autotune.surrogates.base import StatelessSurrogate
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive


@dataclass
class Memory:
    """A store in a few dicts that notes in which order it was given what."""

    known: dict[Config, Outcome] = field(default_factory=dict)
    decided: Decision | None = None
    recordings: Sequence[Recording] = ()
    alone: bool = True
    recorded: list[tuple[Config, Outcome, Forecast | Abstention | None]] = field(default_factory=list)
    held: Decision | None = None  # by all ranks
    held_later: Decision | None = None  # once this one has waited
    given: list[Decision] = field(default_factory=list)  # to the other ranks
    pending: list[str] = field(default_factory=list)  # why it is

    def decision(self, job: Job) -> Decision | None:
        return self.decided

    def decision_for_any_constexprs(self, job: Job) -> Decision | None:
        return self.decided

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        return self.known

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        return self.recordings

    def record_outcome(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        self.recorded.append((config, outcome, forecast))

    def record_decision(self, job: Job, decision: Decision) -> None:
        self.decided = decision

    def note_pending(self, job: Job, why: str) -> None:
        self.pending.append(why)

    def shared_decision(self, job: Job) -> Decision | None:
        return self.held

    def publish_decision(self, job: Job, decision: Decision) -> Decision:
        self.given.append(decision)
        return self.held or decision

    def single_flight(self, job: Job) -> contextlib.AbstractContextManager[bool]:
        if self.held_later is not None:
            self.held = self.held_later
        return contextlib.nullcontext(self.alone)


class Fixed(StatelessSurrogate):
    """Forecasts what it is given."""

    name = "fixed"

    def __init__(self, forecasts: Mapping[Config, Forecast] | None = None) -> None:
        self.forecasts = forecasts or {}

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        return [self.forecasts.get(c, Abstention("fixed", "not said")) for c in context.job.space]


FAILED = Failure(stage="launch", message="too many resources requested", cost_s=0.1)


class Noisy(Replay):
    """Answers with so many samples, a spread around the recorded time, and notes what it was asked."""

    repeatable = True

    def __init__(self, of: Recording, spread: float) -> None:
        super().__init__(of)
        self.spread = spread
        self.asked: list[tuple[Config, float]] = []

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        self.asked.append((config, limits.early_stop_us))
        outcome = super().measure(config)
        assert isinstance(outcome, Measurement)
        shares = (1 - self.spread, 1.0, 1 + self.spread)
        return Measurement(samples_us=tuple(outcome.median_us * share for share in shares))


def recorded_as(times_us: Sequence[float | Outcome]) -> Recording:
    """A recording of configs i=0, 1, … with these times."""
    outcomes = {Config({"i": i}): measurement(t) if isinstance(t, (int, float)) else t for i, t in enumerate(times_us)}
    return replace(recording(), default=Config({"i": 0}), outcomes=outcomes)


def decide(of: Recording, budget: str | int = "all", **more: Any) -> Decision:
    """What is run now, whether it holds or not."""
    return resolve(of, budget, **more).decision


def resolve(
    of: Recording,
    budget: str | int = "all",
    *,
    policy: Policy | None = None,
    surrogate: Surrogate | None = None,
    store: Memory | None = None,
    listener: list[Progress] | None = None,
    previous_decision: Decision | None = None,
) -> Resolution:
    replay = Replay(of)
    return tune(
        job_of(of),
        compiler=replay,
        surrogate=surrogate or Fixed(),
        policy=policy or Exhaustive(),
        measurer=replay,
        store=store if store is not None else Memory(),
        budget=Budget(budget, clock=replay.clock),
        listener=None if listener is None else listener.append,
        previous_decision=previous_decision,
    )


def tuned_by(
    of: Recording, measurer: Noisy, surrogate: Surrogate | None = None, store: Memory | None = None
) -> Decision:
    return tune(
        job_of(of),
        compiler=measurer,
        surrogate=surrogate or Fixed(),
        policy=Exhaustive(),
        measurer=measurer,
        store=store or Memory(),
        budget=Budget("all", clock=measurer.clock),
    ).decision
