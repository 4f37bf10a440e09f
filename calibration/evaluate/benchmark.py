"""Methods side by side on recorded spaces: many searches over many processes, each result kept as soon as it is there."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np

import forecast_autotune
from forecast_autotune.core.budget import Budget
from forecast_autotune.core.digest import digest
from forecast_autotune.core.job import Compile, Measure, Recording, Stop, View, log2_speedups
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.history import history_of
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.evaluation.replay_runner import replay, use_one_thread
from forecast_autotune.features.forecast_columns import columns_of, expected_gain
from forecast_autotune.processes.side_by_side import side_by_side
from forecast_autotune.protocols import Policy, Surrogate
from forecast_autotune.surrogates.by_name import make_surrogate
from forecast_autotune.tuning.policies import Selective

from ..fit.forest import package_of, prior_without
from .searches import METHODS
from .trials import Case, Trial

OURS, UNSTOPPED = "ours", "ours-unstopped"
REPORT_EVERY_S = 10.0
SHARES = (0.01, 0.1, 0.5)  # of a ranking: the best config within each is scored
RANDOM_RANKINGS = 101  # whose median stands for a ranking that knows nothing

Row = dict[str, object]


def surrogate_without(left_out: str, model: int = 0) -> Surrogate:
    """What setting `auto` stands for, with nothing in it that was fitted beforehand on this kernel, or on this package.

    Args:
        left_out: the kernel or the package.
        model: number of the model's draw.
    """
    return make_surrogate("auto", model=prior_without(left_out, model))


# What is searched -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trace under test, and the traces that are its history; `setting` says in a word which those are."""

    trace: Path
    setting: str
    history: tuple[Path, ...] = ()

    @property
    def named(self) -> Row:
        """What each row about it begins with."""
        space = read_space(self.trace)
        return {
            "setting": self.setting,
            "trace": self.trace.name,
            "kernel": space.kernel,
            "hardware": space.hardware,
            "history": len(self.history),
        }


@lru_cache(maxsize=16)
def case(entry: Entry, model: int = 0) -> Case:
    space = read_space(entry.trace)
    return Case(
        name=space.name,
        recording=space.recording,
        recordings=tuple(read_space(path).recording for path in entry.history),
        surrogate=partial(surrogate_without, package_of(entry.trace) or space.kernel, model),
    )


def distinct(traces: Iterable[Path]) -> list[Path]:
    """Each trace once.

    Raises:
        InvalidInputError: two have the same name, by which rows tell them apart.
    """
    names: dict[str, Path] = {}
    for path in traces:
        first = names.setdefault(path.name, path)
        if first.resolve() != path.resolve():
            raise InvalidInputError(f"{first} and {path} have the same name: name one of them, or rename it")
    return list(names.values())


Alike = Callable[[Recording, Recording], bool]


def others(trace: Path, among: Iterable[Path], which: Alike = lambda _mine, _theirs: True) -> tuple[Path, ...]:
    """Traces of the same kernel that may be its history as `replay` understands it: not the same run, nor a repeat of it."""
    kept = history_of(trace, list(among)).kept
    return tuple(path for path in kept if which(read_space(trace).recording, read_space(path).recording))


def limit_of(budget: str, size: int) -> int:
    """How many configs a budget allows in a space of this size.

    Raises:
        InvalidInputError: it is neither a count nor a share.
    """
    read = Budget(budget)
    read.start(size)
    if read.limit is None or read.limits.seconds is not None or read.limits.total_seconds is not None:
        raise InvalidInputError(f"budget {budget!r}: give a count (10) or a share of the space (1%)")
    return min(read.limit, size)


# What is done -----------------------------------------------------------------------------------------------------------


class Task(Protocol):
    """Something to do in a process of its own, known by its fields."""

    @property
    def entry(self) -> Entry: ...

    @property
    def own(self) -> bool:
        """Whether what comes of it depends on our surrogates and policies."""

    def do(self) -> list[Row]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search by one method, looked at at some budgets; a row for each.

    Of several models, each drawn anew, seeds take turns.
    """

    entry: Entry
    method: str
    seed: int
    budgets: tuple[str, ...]
    models: int = 1

    @property
    def own(self) -> bool:
        return self.method in (OURS, UNSTOPPED) or METHODS[self.method].forecasts

    def do(self) -> list[Row]:
        recorded = case(self.entry, self.seed % self.models)
        limits = {budget: limit_of(budget, len(recorded.space)) for budget in self.budgets}
        named = {**self.entry.named, "method": self.method, "seed": self.seed}
        if self.method in (OURS, UNSTOPPED):
            return [
                {**named, "budget": b, "limit": n, **tuned(recorded, b, self.seed, self.method)}
                for b, n in limits.items()
            ]
        method = METHODS[self.method]
        rows: list[Row] = []
        if method.history and not len(recorded.history.log2):
            why = "nothing of the space was recorded elsewhere"
            return [{**named, "budget": b, "limit": n, "why": why} for b, n in limits.items()]
        within = {b: n for b, n in limits.items() if method.most is None or n <= method.most}
        trial = Trial(recorded, max(within.values(), default=0), self.seed)
        method.search(trial)
        for b, n in limits.items():
            if b in within:
                measured = min(n, len(trial.tried))
                rows.append({**named, "budget": b, "limit": n, **result(recorded, trial.slowdown(n), measured)})
                if trial.broke:
                    rows[-1]["broke"] = trial.broke
            else:
                rows.append({**named, "budget": b, "limit": n, "why": f"it is not asked for more than {method.most}"})
        return rows


def result(recorded: Case, slowdown: float, measured: int) -> Row:
    default = recorded.default_slowdown
    return {
        "slowdown": slowdown,
        "over_default": slowdown / default if math.isfinite(default) else None,
        "measured": measured,
    }


def tuned(recorded: Case, budget: str, seed: int, method: str) -> Row:
    """The real tuning run, on the recording."""
    policy: Policy = Selective(seed)
    run = replay(
        recorded,
        surrogate=recorded.surrogate(),
        policy=policy if method == OURS else Unstopped(policy),
        budget=budget,
        history=recorded.recordings,
    )
    slowdown = run.slowdown
    if run.decision and not Budget(budget).measures and math.isinf(slowdown):
        slowdown = recorded.default_slowdown  # a launch of an unmeasured choice that is refused falls back to it
    basis = run.decision.basis if run.decision else "nothing runs"
    return {**result(recorded, slowdown, run.measured), "basis": basis}


class Unstopped:
    """A policy that may not stop: where it would, the configs of the greatest expected gain are next."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def step(self, view: View) -> Compile | Measure | Stop:
        step = self.policy.step(view)
        left = [i for i, c in enumerate(view.space) if c not in view.outcomes and c not in view.evidence]
        if not isinstance(step, Stop) or not left or view.configs_left <= 0:
            return step
        best = max(log2_speedups(view.outcomes, view.space.default).values(), default=0.0)
        gains = np.nan_to_num(expected_gain(columns_of(view.forecasts), best))
        count = int(min(view.configs_left, max(1, len(view.outcomes) // 20)))
        return Compile(tuple(view.space[i] for i in sorted(left, key=lambda i: -gains[i])[:count]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How good the best of the first hundredth, tenth and half of each ranking made before measuring is."""

    entry: Entry

    @property
    def own(self) -> bool:
        return True

    def do(self) -> list[Row]:
        recorded = case(self.entry)
        trial = Trial(recorded, 0, 0)
        every = np.arange(len(recorded.space))
        orders = {"forecast": [trial.best_first(every, trial.forecast({}))]}
        if len(recorded.history.log2):
            orders["look-up"] = [trial.best_first(every, -recorded.history.mean())]
        orders["random"] = [trial.best_first(every, np.zeros(every.size)) for _ in range(RANDOM_RANKINGS)]
        rows: list[Row] = []
        for ranking, several in orders.items():
            tops = {f"top_{s:.0%}": float(np.median([top(recorded, order, s) for order in several])) for s in SHARES}
            rows.append({**self.entry.named, "ranking": ranking, **tops})
        return rows


def top(recorded: Case, order: Sequence[int], share: float) -> float:
    """Slowdown of the best within the first share of an order, at least one config."""
    return min(recorded.slowdown(i) for i in order[: max(1, math.ceil(share * len(order)))])


# Many at once -----------------------------------------------------------------------------------------------------------


class ResultCache:
    """Results in a file of JSON lines, found again by a later run of the same task with the same code on the same trace.

    What our surrogates and policies have no part in counts as the same when only they have changed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, list[Row]] = {}
        self.torn = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            self.torn = not text.endswith("\n") and text != ""
            for line in text.splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of a run that was killed
                    value = json.loads(line)
                    self.rows[value["key"]] = value["rows"]

    def key(self, task: Task) -> str:
        fields = json.dumps(asdict(task), default=str, sort_keys=True)  # type: ignore[call-overload]  # each is one
        sizes = [path.stat().st_size for path in (task.entry.trace, *task.entry.history)]
        return digest(type(task).__name__, fields, str(sizes), code(own=task.own))

    def add(self, task: Task, rows: list[Row]) -> None:
        if self.path is not None and not any("failed" in row for row in rows):
            with self.path.open("a", encoding="utf-8") as file:
                line = json.dumps({"key": self.key(task), "rows": rows})
                file.write(("\n" if self.torn else "") + line + "\n")
                self.torn = False


@lru_cache(maxsize=2)
def code(*, own: bool) -> str:
    """The source that results come from."""
    package = Path(forecast_autotune.__file__).parent
    searching, fitting = Path(__file__).parent, Path(__file__).parents[1] / "fit"
    files = [searching / name for name in ("trials.py", "searches.py", "kernel_tuner_strategies.py")]
    files.append(package / "evaluation" / "recorded_space.py")
    if own:
        files += [
            *sorted(package.rglob("*.py")),
            searching / "benchmark.py",
            searching / "honesty.py",
            fitting / "forest.py",
        ]
    return digest(*(path.read_text() for path in files))


def attempt(task: Task) -> list[Row]:
    """What comes of a task; one that fails says why, and the others go on."""
    try:
        return task.do()
    except Exception as err:
        named = {"method": task.method, "seed": task.seed} if isinstance(task, Search) else {}
        return [{**task.entry.named, **named, "why": repr(err), "failed": True}]


def work(tasks: Sequence[Task], jobs: int, kept: ResultCache) -> Iterator[tuple[Task, list[Row]]]:
    """Each task with its rows: first those that are kept, then the others as they finish."""
    left = []
    for task in tasks:
        rows = kept.rows.get(kept.key(task)) if kept.rows else None
        if rows is None:
            left.append(task)
        else:
            yield task, rows
    beside = jobs > 1 and len(left) > 1
    for task, rows in side_by_side(attempt, left, jobs, use_one_thread) if beside else _alone(left):
        kept.add(task, rows)
        yield task, rows


def _alone(tasks: Iterable[Task]) -> Iterator[tuple[Task, list[Row]]]:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield from ((task, attempt(task)) for task in tasks)


def with_progress(
    done: Iterator[tuple[Task, list[Row]]], total: int, *, name: str, every_s: float = REPORT_EVERY_S
) -> Iterator[tuple[Task, list[Row]]]:
    """The same, with a line on stderr every ten seconds that begins with the command's name."""
    began = printed = time.monotonic()
    for count, each in enumerate(done, start=1):
        now = time.monotonic()
        if now - printed >= every_s:
            printed = now
            left_min = (now - began) / count * (total - count) / 60
            print(f"{name}: {count} of {total}, some {left_min:.0f} min left", file=sys.stderr, flush=True)
        yield each


def collect(tasks: Sequence[Task], jobs: int, kept: ResultCache, *, name: str, partly: str) -> tuple[list[Row], bool]:
    """Do tasks in so many processes, until Ctrl-C: rows in the order of the tasks, and whether all are done.

    `name` begins each line on stderr; `partly` says there what becomes of the rows after Ctrl-C.
    """
    rows_of: dict[int, list[Row]] = {}
    place = {task: i for i, task in enumerate(tasks)}
    finished = True
    try:
        for task, rows in with_progress(work(tasks, jobs, kept), len(tasks), name=name):
            rows_of[place[task]] = rows
    except KeyboardInterrupt:
        finished = False
        print(f"{name}: interrupted with {len(rows_of)} of {len(tasks)} done{partly}", file=sys.stderr)
    return [row for i in sorted(rows_of) for row in rows_of[i]], finished
