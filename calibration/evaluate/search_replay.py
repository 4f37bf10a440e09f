"""A search's choices on recorded spaces: what filters by forecasts find for as many measurements, beside simple rivals.

A space stands for the pool of programs that a proposer would come to; its configs are its candidates. Evolution proposes
children of the fastest so far, each a change of one or two knobs to another config of the pool, and four are measured at a
time. The filter says which four of the proposed; `search` chooses from what earlier rounds proposed too. `pool-ranking`
proposes all that are left, and `ranked-once` takes them in the order of the forecasts before anything was measured. Kernels
are left out of the fitted model.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from forecast_autotune.cli.output import print_json, print_table, say
from forecast_autotune.core.cached_property import cached_property
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.evaluation.recorded_space import RecordedSpace, read_space
from forecast_autotune.evaluation.replay_runner import use_one_thread
from forecast_autotune.processes.side_by_side import side_by_side
from forecast_autotune.protocols import Surrogate, SurrogateSession

from ..command import positive
from ..fit.forest import package_of
from ..paths import POOLS, TRACES
from .benchmark import surrogate_without

ROUND = 4  # measured between two forecasts
FAR = 0.3  # share of children that differ from their parent in two knobs
RESAMPLED = 1000  # of the kernels, for intervals
MARKS = (8, 16, 32, 64)  # measurements at which the best so far is told

ARMS = (
    *("evolution", "random-filter", "ours-2x", "ours-4x", "ours-8x", "ours-16x", "search"),
    *("pool-ranking", "ranked-once", "random-sampling", "oracle"),
)
BASELINE = "evolution"
RIVALS = (BASELINE, "random-sampling")  # what others are told against


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReplay:
    """One search by one arm on one space: `best_us` by measurements, and how many builds that took, failures included."""

    trace: str
    kernel: str
    arm: str
    seed: int
    slowdown: dict[int, float]
    builds: dict[int, int]


def work(trace: Path, seeds: int, most: int, arms: Sequence[str]) -> list[SearchReplay]:
    """All searches on one space. Runs in a process of its own."""
    use_one_thread()
    space = read_space(trace)
    session = session_without(package_of(trace) or space.kernel, space)
    return [search(space, session, arm, seed, most) for seed in range(seeds) for arm in arms]


def session_without(left_out: str, space: RecordedSpace) -> SurrogateSession:
    """What forecasts a space, without its kernel. All its searches share it: what it says of the space takes 1 s."""
    return _surrogate(left_out).start(ForecastContext(job=space.job))


def search(space: RecordedSpace, session: SurrogateSession, arm: str, seed: int, most: int) -> SearchReplay:
    """One search: the default first, then four at a time until so many are measured."""
    draw = random.Random(f"{space.name} {seed}")  # arms draw alike, as far as they go together
    searching = _Searching(space, session)
    searching.measure(space.space.default)
    times, choose = _ARMS[arm]
    while searching.measured < most and len(searching.outcomes) < len(space.space):
        proposed = searching.children(draw, round(times * ROUND)) if times else searching.untried()
        chosen = choose(searching, proposed, draw)[: min(ROUND, most - searching.measured)]
        if not chosen:
            break
        for config in chosen:
            searching.measure(config)
    marks = [mark for mark in MARKS if mark <= most]
    return SearchReplay(
        trace=space.name,
        kernel=space.kernel,
        arm=arm,
        seed=seed,
        slowdown={mark: searching.best_by(mark) / space.best_us for mark in marks},
        builds={mark: searching.builds_by(mark) for mark in marks},
    )


class _Searching:
    """Where one search stands."""

    def __init__(self, space: RecordedSpace, session: SurrogateSession) -> None:
        self.space = space
        self._session = session
        self.outcomes: dict[Config, Outcome] = {}
        self._best: list[float] = []  # after each measurement
        self._builds: list[int] = []
        self._close: dict[tuple[Config, int], set[Config]] = {}
        self.waiting: list[Config] = []  # what was proposed and not tried, where an arm comes back to that

    @property
    def measured(self) -> int:
        return len(self._best)

    def measure(self, config: Config) -> None:
        """Look an outcome up. What does not build is a build, and no measurement."""
        outcome = self.outcomes[config] = self.space.recording.outcomes[config]
        if isinstance(outcome, Failure) and outcome.stage in ("compile", "resources"):
            return
        before = self._best[-1] if self._best else math.inf
        self._best.append(min(before, outcome.median_us if isinstance(outcome, Measurement) else math.inf))
        self._builds.append(len(self.outcomes))

    def best_by(self, count: int) -> float:
        return self._best[min(count, self.measured) - 1] if self._best else math.inf

    def builds_by(self, count: int) -> int:
        return self._builds[min(count, self.measured) - 1] if self._builds else 0

    def untried(self) -> list[Config]:
        return [c for c in self.space.space if c not in self.outcomes]

    def children(self, draw: random.Random, n: int) -> list[Config]:
        """New configs that differ from a parent in one knob or two; from anywhere where there are none."""
        ran = sorted(
            ((o.median_us, c.text, c) for c, o in self.outcomes.items() if isinstance(o, Measurement)),
        )
        parents = [c for _, _, c in ran] or [self.space.space.default]
        untried, found = self.untried(), dict[Config, None]()
        for _ in range(20 * n):
            if len(found) >= min(n, len(untried)):
                break
            parent = next((p for p in parents if draw.random() < 0.5), parents[0])
            apart = 2 if draw.random() < FAR else 1
            close = self._within(apart, parent)
            near = [c for c in untried if c not in found and c in close]
            found[draw.choice(near or [c for c in untried if c not in found])] = None
        return list(found)

    def _within(self, apart: int, parent: Config) -> set[Config]:
        """The configs that differ from a parent in so many of its knobs at most."""
        if (parent, apart) not in self._close:
            close = {c for c in self.space.space if _apart(c, parent) <= apart}
            self._close[parent, apart] = close
        return self._close[parent, apart]

    def forecasts(self, configs: Sequence[Config]) -> list[float]:
        """Expected gain of each over the fastest so far, by the surrogate without this kernel."""
        answers = self._session.predict(self.outcomes, {})
        default = self.outcomes.get(self.space.space.default)
        seed = default.median_us if isinstance(default, Measurement) else None
        over = math.log2(seed / self._best[-1]) if seed and self._best and self._best[-1] < math.inf else 0.0
        index = self.space.space.index
        told = [answers[index(c)] for c in configs]
        return [a.expected_gain(over) if isinstance(a, Forecast) else -1.0 for a in told]

    @cached_property
    def ranks(self) -> dict[Config, int]:
        """The place of each config in a ranking by what is forecast before anything is measured."""
        answers = self._session.predict({}, {})
        gains = [a.expected_gain(0.0) if isinstance(a, Forecast) else -1.0 for a in answers]
        places = sorted(range(len(gains)), key=lambda place: -gains[place])
        return {self.space.space[place]: rank for rank, place in enumerate(places)}


@lru_cache(maxsize=4)
def _surrogate(left_out: str) -> Surrogate:
    return surrogate_without(left_out)


def _apart(one: Config, other: Config) -> int:
    return sum(one.knobs.get(k) != v for k, v in other.knobs.items())


Choice = Callable[[_Searching, Sequence[Config], random.Random], Sequence[Config]]


def _first(_: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:  # noqa: ARG001
    return proposed


def _drawn(_: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:
    return draw.sample(list(proposed), len(proposed))


def _ours(searching: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:
    """Three by promise, and one of the others at random, as a search chooses."""
    gains = dict(zip(proposed, searching.forecasts(proposed), strict=True))
    ranked = sorted(proposed, key=lambda c: -gains[c])
    best, rest = ranked[: ROUND - 1], ranked[ROUND - 1 :]
    return [*best, *([draw.choice(rest)] if rest else [])]


def _as_a_search(searching: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:
    """Three by promise of all that was proposed so far, and one of the new ones at random."""
    pool = list(dict.fromkeys([*proposed, *(c for c in searching.waiting if c not in searching.outcomes)]))
    gains = dict(zip(pool, searching.forecasts(pool), strict=True))
    ranked = sorted(pool, key=lambda c: -gains[c])
    best, searching.waiting = ranked[: ROUND - 1], ranked[ROUND - 1 :]
    rest = [c for c in proposed if c not in best]
    return [*best, *([draw.choice(rest)] if rest else searching.waiting[:1])]


def _ranked(searching: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:  # noqa: ARG001
    gains = dict(zip(proposed, searching.forecasts(proposed), strict=True))
    return sorted(proposed, key=lambda c: -gains[c])


def _ranked_once(searching: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:  # noqa: ARG001
    return sorted(proposed, key=searching.ranks.__getitem__)


def _oracle(searching: _Searching, proposed: Sequence[Config], draw: random.Random) -> Sequence[Config]:  # noqa: ARG001
    times = dict(zip(searching.space.space, searching.space.times_us, strict=True))
    return sorted(proposed, key=lambda c: times[c])


_ARMS: dict[str, tuple[float, Choice]] = {
    "evolution": (1, _first),
    "random-filter": (4, _drawn),
    "ours-2x": (2, _ours),
    "ours-4x": (4, _ours),
    "ours-8x": (8, _ours),
    "ours-16x": (16, _ours),
    "search": (16, _as_a_search),
    "pool-ranking": (0, _ranked),
    "ranked-once": (0, _ranked_once),
    "random-sampling": (0, _drawn),
    "oracle": (4, _oracle),
}
"""Each arm: how many are proposed for each measured, 0 for the whole pool; and which of them are tried."""


# Scores ---------------------------------------------------------------------------------------------------------------


def summary(runs: Sequence[SearchReplay], seed: int = 0, over: str = BASELINE) -> list[dict[str, object]]:
    """By arm and measurements: the best found over another arm's, a geometric mean over kernels, with a 95 % interval.

    The same space and seed are compared, then medians over seeds, then means over a kernel's spaces, then over kernels;
    intervals are of kernels drawn again.
    """
    by: dict[tuple[str, str, int], dict[str, SearchReplay]] = {}
    for run in runs:
        by.setdefault((run.kernel, run.trace, run.seed), {})[run.arm] = run
    draw, rows = random.Random(seed), []
    arms = list(dict.fromkeys(run.arm for run in runs))
    for mark in sorted({mark for run in runs for mark in run.slowdown}):
        for arm in arms:
            ratios: dict[str, dict[str, list[float]]] = {}
            for (kernel, trace, _), of in by.items():
                if arm in of and over in of:
                    ratio = math.log(of[arm].slowdown[mark] / of[over].slowdown[mark])
                    ratios.setdefault(kernel, {}).setdefault(trace, []).append(ratio)
            kernels = [statistics.mean(statistics.mean(r) for r in traces.values()) for traces in ratios.values()]
            again = sorted(statistics.mean(draw.choices(kernels, k=len(kernels))) for _ in range(RESAMPLED))
            slowdowns = [run.slowdown[mark] for run in runs if run.arm == arm]
            rows.append({
                "measured": mark,
                "arm": arm,
                "over_" + over.replace("-", "_"): math.exp(statistics.mean(kernels)),
                "low": math.exp(again[int(0.025 * RESAMPLED)]),
                "high": math.exp(again[int(0.975 * RESAMPLED)]),
                "slowdown": math.exp(statistics.mean(map(math.log, slowdowns))),
                "builds": statistics.mean(run.builds[mark] for run in runs if run.arm == arm),
            })  # fmt: skip
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Replay searches on recorded spaces, and print what each arm found."""
    parser = argparse.ArgumentParser(prog="python -m calibration search-replay", description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, help="recorded spaces (default: the suite's Triton spaces)")
    parser.add_argument(
        "--pools", type=Path, nargs="?", const=POOLS, metavar="FOLDER", help="pools of programs, of record-pool"
    )
    parser.add_argument("--seeds", type=positive, default=20, metavar="N")
    parser.add_argument("--measurements", type=positive, default=64, metavar="N", help="of each search")
    parser.add_argument(
        "--arms", default=",".join(ARMS), metavar="A[,A]", help=f"some of {', '.join(ARMS)}; evolution among them"
    )
    parser.add_argument("--jobs", type=positive, default=1, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON value")
    given = parser.parse_args(words)
    arms = [arm for arm in given.arms.split(",") if arm]
    if unknown := [arm for arm in arms if arm not in ARMS]:
        say(f"no arm {unknown[0]!r}: there are {', '.join(ARMS)}")
        return 2
    if BASELINE not in arms or given.measurements < MARKS[0]:
        say(f"what is found is told against {BASELINE}, at {MARKS[0]} measurements at least: name it among the arms")
        return 2
    traces = given.traces or sorted(
        (path for path in given.pools.glob("*.jsonl.gz") if ".programs." not in path.name)
        if given.pools
        else (path for path in TRACES.glob("*.NVIDIA_H200.jsonl.gz") if not path.name.startswith("cuda_"))
    )
    if not traces:
        say(
            f"{given.pools or TRACES} holds no recorded space: python -m calibration record-pool records pools, on a GPU"
        )
        return 2
    do = partial(work, seeds=given.seeds, most=given.measurements, arms=arms)
    runs: list[SearchReplay] = []
    for trace, done in side_by_side(do, traces, given.jobs):
        runs += done
        print(f"{len(runs)} searches done, those on {trace.name} the last", file=sys.stderr)
    summaries = {over: summary(runs, over=over) for over in RIVALS if over in arms}
    if given.json:
        told = {f"over_{over.replace('-', '_')}": rows for over, rows in summaries.items()}
        print_json({"seeds": given.seeds, "spaces": len(traces), **told})
        return 0
    for over, rows in summaries.items():
        columns = ("measured", "arm", f"over_{over.replace('-', '_')}", "low", "high", "slowdown", "builds")
        cells = [[f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
        print_table(columns, cells, right=columns[2:])
    return 0
