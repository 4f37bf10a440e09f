"""Replays: tuning runs and forecasts against recorded spaces, over several processes."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from ..core.budget import Budget
from ..core.config import Config
from ..core.decision import Decision
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Question, Recording, reference_us
from ..core.outcome import Measurement, Outcome
from ..errors import NoWorkingConfigError
from ..features.hardware_sheets import same_product
from ..frontends.engine import make_surrogate
from ..measure.replay import Replay
from ..processes.side_by_side import side_by_side
from ..protocols import Policy
from ..settings import Answer
from ..tuning.loop import failures_untold, tune
from ..tuning.policies import Exhaustive, First, Selective, StoredOnly
from .scores import against_median, score_forecasts, score_trust
from .trace import read_trace
from .trace_t4 import UNKNOWN

QUIET_S = 2.0  # no progress is shown for less

POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "selective": Selective,
    "exhaustive": lambda _: Exhaustive(),
    "stored": lambda _: StoredOnly(),
    "first": lambda _: First(),
}

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    """One run at a budget as typed, or one scoring of forecasts that know so many outcomes."""

    trace: int
    what: str | int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is replayed: traces, the history of each, and the parts of the tuner that are tried."""

    traces: tuple[Path, ...]
    histories: tuple[tuple[Path, ...], ...]
    policy: str
    surrogate: str
    answer: Answer = field(default_factory=Answer)

    def do(self, task: Task) -> Row:
        recording, job = _read(self.traces[task.trace])
        recordings = [_read(path)[0] for path in self.histories[task.trace]]
        named: Row = {"trace": self.traces[task.trace].name}
        if isinstance(task.what, int):
            return named | self.score(job, recording, recordings, task.what, task.seed)
        named |= {
            "kernel": recording.workload.program.name,
            "hardware": recording.hardware.name,
            "history": [path.name for path in self.histories[task.trace]],
            "budget": task.what,
            "seed": task.seed,
        }
        return named | self.tune(job, recording, recordings, task.what, task.seed)

    def tune(self, job: Job, recording: Recording, recordings: Sequence[Recording], budget: str, seed: int) -> Row:
        """One tuning run, and how far its decision is from the recording's best; no slowdown if that one does not run."""
        replay = Replay(recording)
        spent = Budget(budget, clock=replay.clock)
        decision: Decision | None = None
        with contextlib.suppress(NoWorkingConfigError), failures_untold():
            resolution = tune(
                job,
                compiler=replay,
                surrogate=make_surrogate(self.surrogate, answer=self.answer),
                policy=POLICIES[self.policy](seed),
                measurer=replay,
                store=Given(recordings=recordings),
                budget=spent,
            )
            decision = resolution.decision
        chosen = recording.outcomes.get(decision.config) if decision else None
        best_us = min(o.median_us for o in recording.outcomes.values() if isinstance(o, Measurement))
        slowdown = chosen.median_us / best_us if isinstance(chosen, Measurement) else None
        return {
            "slowdown": slowdown,
            "regret": None if slowdown is None else slowdown - 1.0,
            "measured": spent.tried,
            "compiled": decision.compiled if decision else spent.tried,
            "spent_s": spent.spent_s,
        }

    def score(self, job: Job, recording: Recording, recordings: Sequence[Recording], known: int, draw: int) -> Row:
        """Scores of the forecasts of all configs, the median config being the reference.

        Of the outcomes known, the default's is one, for forecasts relate to it; the others are drawn at random.
        """
        others = random.Random(f"{draw} {known}").sample(job.space[1:], min(max(0, known - 1), len(job.space) - 1))
        outcomes = {c: recording.outcomes[c] for c in [job.space.default, *others][:known]}
        forecasts: Sequence[Forecast | Abstention] = make_surrogate(self.surrogate, answer=self.answer).forecast(
            Question(job=job, configs=job.space, outcomes=outcomes, recordings=recordings)
        )
        recorded = [recording.outcomes[c] for c in job.space]
        log2_us = [math.log2(o.median_us) if isinstance(o, Measurement) else math.inf for o in recorded]
        known_us = reference_us(outcomes, job.space.default)
        speedups, reference = against_median(forecasts, log2_us, default_us=known_us)
        scores = score_forecasts(forecasts, speedups, reference=reference)
        trust = score_trust(forecasts, speedups, reference=reference)
        return {
            "target_measured": known,
            "accuracy": scores.accuracy,
            "off_by_one": scores.off_by_one,
            "half_brier": scores.half_brier,
            "brier_skill": scores.brier_skill,
            "crps7": scores.crps7,
            "nll": scores.nll,
            "ece": scores.ece,
            "error_by_fifth": list(scores.error_by_fifth),
            "top_1_percent": scores.top_1_percent,
            "top_10_percent": scores.top_10_percent,
            "top_50_percent": scores.top_50_percent,
            "aurc": trust.aurc,
            "coverage_50": trust.coverage_50,
            "coverage_90": trust.coverage_90,
            "rank_correlation": trust.rank_correlation,
            "regret_10": trust.regret_10,
            "regret_30": trust.regret_30,
        }


@dataclass(frozen=True)
class Given:
    """A store that holds recordings from elsewhere, and remembers nothing."""

    recordings: Sequence[Recording] = field(default=())

    def decision(self, _job: Job) -> Decision | None:
        return None

    def outcomes(self, _job: Job) -> Mapping[Config, Outcome]:
        return {}

    def related_recordings(self, _job: Job) -> Sequence[Recording]:
        return self.recordings

    def record(self, *_: object) -> None:
        pass

    def decide(self, *_: object) -> None:
        pass

    def note_pending(self, *_: object) -> None:
        pass

    def shared_decision(self, _job: Job) -> Decision | None:
        return None

    def publish_decision(self, _job: Job, decision: Decision) -> Decision:
        return decision

    def single_flight(self, _job: Job) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


@lru_cache(maxsize=64)
def _read(path: Path) -> tuple[Recording, Job]:
    recording = read_trace(path)
    # Traces stay for good: looking through them at each full collection made building forecasts 1.5 times
    # slower (eight traces held).
    gc.freeze()
    return recording, Replay(recording).job


def histories(traces: Sequence[Path], history: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """The history of each trace: recordings of the same kernel, without the trace itself, a copy of it or a rerun."""
    for trace in traces:
        mine = _read(trace)[0]
        kept = []
        for path in dict.fromkeys(history):
            theirs = _read(path)[0]
            if theirs.workload.program.name != mine.workload.program.name:
                continue
            if path.resolve() == trace.resolve() or _same_run(mine, theirs):
                why = "it is the run under test"
            elif _same_task(mine, theirs):
                why = "it may be the same workload on the same hardware"
            else:
                kept.append(path)
                continue
            print(f"{path.name} is left out of the history of {trace.name}: {why}", file=sys.stderr)
        yield tuple(kept)


def _same_run(a: Recording, b: Recording) -> bool:
    """Whether one holds the other's times, under whatever name, key and hardware: nearly all they share are equal.

    Up to a millionth, for units were changed in between. Where a clock ticks coarsely some times of two runs agree by
    chance; not nine of ten, sample by sample.
    """
    shared = [
        (mine.samples_us, theirs.samples_us)
        for config, mine in a.outcomes.items()
        if isinstance(mine, Measurement) and isinstance(theirs := b.outcomes.get(config), Measurement)
    ]
    equal = sum(
        len(mine) == len(theirs) and all(math.isclose(m, t, rel_tol=1e-6) for m, t in zip(mine, theirs, strict=True))
        for mine, theirs in shared
    )
    return equal > 0.9 * len(shared)


def _same_task(a: Recording, b: Recording) -> bool:
    """Whether both may have been recorded for one workload on one product; what a file does not tell may be equal."""
    named = [r.hardware.name for r in (a, b)]
    if UNKNOWN not in named and a.hardware.digest != b.hardware.digest and not same_product(*named):
        return False
    (form, mine), (other_form, theirs) = _told(a), _told(b)
    return form != other_form or mine is None or mine == theirs or theirs is None


def _told(recording: Recording) -> tuple[str, str | None]:
    """In which form a recording tells its workload, and which one; None where that form or this file does not.

    A T4 file tells none, only by its name what its author called it; Kernel Tuner none that depends on the config.
    """
    form = recording.toolchain.versions.get("recorded", "").partition(" ")[0]
    size = recording.workload.key.get("problem_size")
    untold = form == "T4" or (form == "Kernel" and not isinstance(size, (int, list)))
    return form, None if untold else recording.workload.digest


# Many at once -----------------------------------------------------------------------------------------------------------

_worker: list[ReplayPlan] = []  # what this worker process replays


def _begin(plan: ReplayPlan) -> None:
    # One thread each: workers are as many as there are cores.
    logging.getLogger("forecast_autotune.store").setLevel(logging.ERROR)  # the parent has read each file, and warned
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    _worker[:] = [plan]


def _do(task: Task) -> Row:
    return _worker[0].do(task)


def work(plan: ReplayPlan, tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Row]]:
    """Each task with its row, as they finish."""
    if jobs == 1 or len(tasks) == 1:
        yield from ((task, plan.do(task)) for task in tasks)
        return
    yield from side_by_side(_do, tasks, jobs, partial(_begin, plan))


def show_progress(rows: Iterator[tuple[Task, Row]], total: int) -> Iterator[tuple[Task, Row]]:
    """The rows; a bar on a terminal's stderr from the second second on."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bar = None
        for count, row in enumerate(rows, start=1):
            if bar is None and time.monotonic() - began > QUIET_S:
                bar = stack.enter_context(Progress(console=Console(stderr=True)))
                bar.add_task("replaying", total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=count)
            yield row
