"""Replay tuning runs and forecasts on recorded spaces: one at a time, or many over several processes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..core.budget import Budget
from ..core.config import Config
from ..core.context import ForecastContext
from ..core.decision import Decision
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Recording, reference_us
from ..core.outcome import Measurement, Outcome
from ..errors import NoWorkingConfigError
from ..measure.replay import Replay
from ..processes.side_by_side import side_by_side
from ..protocols import Policy, Surrogate
from ..tuning.failures import recordings_unreported
from ..tuning.loop import tune
from ..tuning.policies import Exhaustive, First, StoredOnly, make_policy
from . import traces
from .recorded_space import RecordedSpace, read_space
from .scores import against_median, score_forecasts, score_trust

POLICIES: Mapping[str, Callable[[Budget, int], Policy]] = {
    "selective": lambda budget, seed: make_policy(budget, seed=seed),
    "exhaustive": lambda *_: Exhaustive(),
    "stored": lambda *_: StoredOnly(),
    "first": lambda *_: First(),
}
"""Name to policy, made from the budget and the number of a run; `selective` is what live runs have."""

SCORES = ("accuracy", "off_by_one", "half_brier", "brier_skill", "crps7", "nll", "ece")
TOPS = ("top_1_percent", "top_10_percent", "top_50_percent")
TRUST_SCORES = ("aurc", "coverage_50", "coverage_90", "rank_correlation", "regret_10", "regret_30")

Row = dict[str, object]


# One run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """What one replayed tuning run decided and spent.

    `slowdown` is the time of the decided config over the best in the recording; infinite where that config fails, or where
    there is no decision because no config could be run.
    """

    decision: Decision | None
    slowdown: float
    measured: int
    compiled: int
    spent_s: float


def replay(
    space: RecordedSpace,
    *,
    surrogate: Surrogate,
    policy: Policy,
    budget: str,
    history: Sequence[Recording] = (),
    workers: int = 1,
) -> ReplayedRun:
    """Tune a recorded space as if its hardware were present, charging what the recording cost.

    Args:
        budget: as typed in FORECAST_AUTOTUNE_BUDGET.
        history: recordings that the store is to hold beforehand.
        workers: how many configs compile side by side, and beside timing.
    """
    device = Replay(space.recording, workers=workers)
    spent = Budget(budget, clock=device.clock)
    decision: Decision | None = None
    with contextlib.suppress(NoWorkingConfigError), recordings_unreported():
        resolution = tune(
            space.job,
            compiler=device,
            surrogate=surrogate,
            policy=policy,
            measurer=device,
            store=HistoryStore(recordings=history),
            budget=spent,
        )
        decision = resolution.decision
    outcome = space.recording.outcomes.get(decision.config) if decision else None
    return ReplayedRun(
        decision=decision,
        slowdown=outcome.median_us / space.best_us if isinstance(outcome, Measurement) else math.inf,
        measured=spent.tried,
        compiled=decision.compiled if decision else spent.tried,
        spent_s=spent.spent_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedForecasts:
    """Forecasts of all configs of a space, beside what was measured.

    `speedups` are log2 speed-ups over the default, minus infinity for a failure; `reference` is that of the median config,
    which the bins relate to. `known` are the outcomes that the surrogate was given.
    """

    forecasts: Sequence[Forecast | Abstention]
    speedups: Sequence[float]
    reference: float
    known: Mapping[Config, Outcome]


def forecast_space(
    space: RecordedSpace, *, surrogate: Surrogate, known: int = 0, draw: int = 0, history: Sequence[Recording] = ()
) -> ReplayedForecasts:
    """Forecast all configs of a recorded space from some of its outcomes.

    Args:
        known: how many outcomes the surrogate is given: the default's, and others drawn at random.
        draw: number of the sample, as of `RecordedSpace.sample`.
        history: recordings that the surrogate is given beside them.
    """
    outcomes = space.sample(known, draw)
    session = surrogate.start(ForecastContext(job=space.job, recordings=history))
    forecasts = session.predict(outcomes, {})
    default_us = reference_us(outcomes, space.space.default)
    speedups, reference = against_median(forecasts, space.log2_us.tolist(), default_us=default_us)
    return ReplayedForecasts(forecasts=forecasts, speedups=speedups, reference=reference, known=outcomes)


@dataclass(frozen=True)
class HistoryStore:
    """A store that holds recordings of other workloads, and remembers nothing."""

    recordings: Sequence[Recording] = field(default=())

    def decision(self, _job: Job) -> Decision | None:
        """None: nothing is decided beforehand."""
        return None

    def decision_for_any_constexprs(self, _job: Job) -> Decision | None:
        """None, as `decision`."""
        return None

    def outcomes(self, _job: Job) -> Mapping[Config, Outcome]:
        """Nothing: the run starts without outcomes of its own space."""
        return {}

    def related_recordings(self, _job: Job) -> Sequence[Recording]:
        """The recordings it was made with."""
        return self.recordings

    def record_outcome(self, *_: object) -> None:
        """Forget an outcome."""

    def record_decision(self, *_: object) -> None:
        """Forget a decision."""

    def note_pending(self, *_: object) -> None:
        """Forget a pending key."""

    def shared_decision(self, _job: Job) -> Decision | None:
        """None: a replay has no other ranks."""
        return None

    def publish_decision(self, _job: Job, decision: Decision) -> Decision:
        """The run's own decision."""
        return decision

    def single_flight(self, _job: Job) -> contextlib.AbstractContextManager[bool]:
        """Always granted: no other process tunes this space."""
        return contextlib.nullcontext(True)


# Many runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """One run at a budget as typed, or one scoring of forecasts that know so many outcomes."""

    trace: int
    what: str | int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is replayed: traces, the history of each, and the parts of the tuner under test.

    Args:
        policy: a name of `POLICIES`.
        surrogate: makes the surrogate of one run; it is pickled when several processes work on the plan.
        workers: how many configs compile side by side in the runs.
    """

    traces: tuple[Path, ...]
    histories: tuple[tuple[Path, ...], ...]
    policy: str
    surrogate: Callable[[], Surrogate]
    workers: int = 1

    def do(self, task: Task) -> Row:
        """Carry out one task; the row names its trace and holds the figures of the run or of the scoring."""
        path, past = self.traces[task.trace], self.histories[task.trace]
        space, history = read_space(path), [read_space(p).recording for p in past]
        named: Row = {"trace": path.name}
        if isinstance(task.what, int):
            return named | self._score(space, history, task.what, task.seed)
        return named | {
            "kernel": space.recording.workload.program.name,
            "hardware": space.hardware,
            "history": [p.name for p in past],
            "budget": task.what,
            "seed": task.seed,
            **self._tune(space, history, task.what, task.seed),
        }

    def _tune(self, space: RecordedSpace, history: Sequence[Recording], budget: str, seed: int) -> Row:
        """One tuning run; no slowdown where the decided config does not run."""
        run = replay(
            space,
            surrogate=self.surrogate(),
            policy=POLICIES[self.policy](Budget(budget), seed),
            budget=budget,
            history=history,
            workers=self.workers,
        )
        slowdown = run.slowdown if math.isfinite(run.slowdown) else None
        return {
            "slowdown": slowdown,
            "regret": None if slowdown is None else slowdown - 1.0,
            "measured": run.measured,
            "compiled": run.compiled,
            "spent_s": run.spent_s,
        }

    def _score(self, space: RecordedSpace, history: Sequence[Recording], known: int, draw: int) -> Row:
        """Scores of the forecasts of all configs, the median config being the reference."""
        result = forecast_space(space, surrogate=self.surrogate(), known=known, draw=draw, history=history)
        scores = score_forecasts(result.forecasts, result.speedups, reference=result.reference)
        trust = score_trust(result.forecasts, result.speedups, reference=result.reference)
        return {
            "target_measured": known,
            **{name: getattr(scores, name) for name in SCORES},
            "error_by_fifth": list(scores.error_by_fifth),
            **{name: getattr(scores, name) for name in TOPS},
            **{name: getattr(trust, name) for name in TRUST_SCORES},
        }


def work(plan: ReplayPlan, tasks: Sequence[Task], jobs: int | None) -> Iterator[tuple[Task, Row]]:
    """Each task with its row, as they finish.

    Any number of processes gives the same rows: the libraries of each use one thread, for sums over several are rounded
    otherwise.

    Args:
        jobs: how many processes; None for this one, with its threads, as for a model that each process would load.
    Raises:
        WorkerError: processes died twice in a row.
    """
    if jobs is None:
        yield from ((task, plan.do(task)) for task in tasks)
        return
    yield from side_by_side(_do, tasks, jobs, partial(_begin, plan))


def use_one_thread() -> None:
    """Make numerical libraries that this process loads later use one thread: for workers, as many as there are cores."""
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


_worker: list[ReplayPlan] = []  # what this worker process replays


def _begin(plan: ReplayPlan) -> None:
    logging.getLogger(traces.__name__).setLevel(logging.ERROR)  # the parent has read each file, and warned
    use_one_thread()
    _worker[:] = [plan]


def _do(task: Task) -> Row:
    return _worker[0].do(task)
