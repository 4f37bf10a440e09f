"""Searches with forecasts and without, on the GPU that is present: what each finds for as many measurements.

Each task is searched from the same seeds with forecasts of 16x and by drawing at random, with the same proposers and as many
measurements. The kernel is left out of the model that forecasts. A program is measured once: a search that comes to what
another has measured takes its time from there, and counts it as its own. Then the fastest of each are timed in turns beside
all that a person wrote, at the sizes searched and at those held out.

A line for each search, and for each program of the finals, is written as it is done: what was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table, say
from forecast_autotune.core.config import Config
from forecast_autotune.core.digest import digest
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import require_box
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.budget import SearchBudget
from forecast_autotune.program_search.candidate import HAND_WRITTEN, SEED, Candidate, TriedCandidate, incumbent
from forecast_autotune.program_search.descriptions import describer_of
from forecast_autotune.program_search.examiner import Examiner, Result, is_fastest, mean_us
from forecast_autotune.program_search.finals import in_turns
from forecast_autotune.program_search.forecasts import CandidateForecaster
from forecast_autotune.program_search.loop import SearchLoop
from forecast_autotune.program_search.proposers.mix import Mix
from forecast_autotune.program_search.proposers.rewriting import Anywhere, Crossover, Knobs, Rewrites
from forecast_autotune.program_search.run import toolchain_of
from forecast_autotune.program_search.runners import Loadable, preparer
from forecast_autotune.program_search.task import SearchTask
from forecast_autotune.store.encoding import decode_outcome, encode_outcome

from ..command import positive
from ..search_tasks import SIZES, search_tasks
from .benchmark import surrogate_without
from .search_replay import MARKS, RESAMPLED

ARMS = ("forecasts", "random")
FINALISTS = 4  # of a task's searches, in the finals
FINALS_S = 45.0  # kept for the finals of each task, where time is limited


class Remembered:
    """An examiner of one task that tries each program once, whichever search comes to it, in whichever process.

    Args:
        examiner: who tries.
        kept: file of what programs came to, a line each.
    """

    def __init__(self, examiner: Examiner, kept: Path) -> None:
        self._examiner, self._kept = examiner, kept
        self._results = {str(row["program"]): _result_of(row) for row in read(kept)}
        self.examined = 0

    def examine(self, seed: Loadable, *, is_seed: bool) -> Result:
        """See `Examiner.examine`. Each process's examiner needs what the seed shows."""
        name = _name(seed)
        if name in self._results and self.examined:
            return self._results[name]
        new = self._examiner.examine(seed, is_seed=is_seed)
        if name not in self._results:
            self._keep(name, new)
        else:
            self.examined += 1
            if isinstance(new.outcome, Failure):
                return new  # a seed that shows nothing now: nothing can be held against it
        return self._results[name]

    def examine_all(
        self, candidates: Sequence[Loadable], *, best_us: Mapping[str, float] | None = None
    ) -> list[Result]:
        """See `Examiner.examine_all`."""
        of = {_name(one): one for one in candidates}
        self._try([one for name, one in of.items() if name not in self._results], best_us)
        found = [self._results[name].times_us for name in of if self._results[name].everywhere]
        best_us = min([best_us or {}, *found], key=mean_us)
        # Of what another search has tried, it may have had a faster one, so that this was not checked everywhere.
        could_win = [
            name for name in of if not (r := self._results[name]).everywhere and is_fastest(r.times_us, best_us)
        ]
        self._try([of[name] for name in could_win], best_us)
        return [self._results[name] for name in map(_name, candidates)]

    def _try(self, candidates: Sequence[Loadable], best_us: Mapping[str, float] | None) -> None:
        if candidates:
            results = self._examiner.examine_all(candidates, best_us=best_us)
            for one, result in zip(candidates, results, strict=True):
                self._keep(_name(one), result)

    def _keep(self, name: str, result: Result) -> None:
        self.examined += 1
        self._results[name] = result
        _add(self._kept, {"program": name, **_row_of(result)})


def _name(made: Loadable) -> str:
    """The digest of the candidate, which its folder has for a name."""
    path: str = made.message["path"] if "path" in made.message else made.message["extension"]["path"]
    return Path(path).parent.name


def _row_of(result: Result) -> dict[str, Any]:
    return {**asdict(result), "outcome": encode_outcome(result.outcome)}


def _result_of(row: Mapping[str, Any]) -> Result:
    outcome = decode_outcome(row["outcome"])
    return Result(outcome=outcome, times_us=row["times_us"], code=row["code"], everywhere=row["everywhere"])


def _add(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a") as file:  # what was killed as it wrote left no end of its line
        file.write("\n" + json.dumps(row, default=str) + "\n")


@dataclass(kw_only=True)
class LiveTask:
    """A task on this machine, with what its searches share."""

    task: SearchTask
    folder: Path
    # By search, its fastest, and that one's time
    best: dict[str, tuple[float, Candidate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        on_gpu = self.task.device != "cpu"
        require_box(may_start=self.task.language != "triton" or on_gpu, gpu=on_gpu)
        self.hardware, self.toolchain = detect_hardware(self.task.device), toolchain_of(self.task)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.preparer = preparer(self.task, self.folder, self.folder)
        self.examiner = Examiner(self.task, self.hardware, self.folder)
        of = digest(self.task.digest, self.hardware.digest, self.toolchain.digest)
        self.remembered = Remembered(self.examiner, self.folder / f"programs-{of}.jsonl")
        surrogate = surrogate_without(self.task.name)
        describer = describer_of(self.task, self.hardware, self.folder)
        self.forecaster = CandidateForecaster(self.task, self.hardware, self.toolchain, surrogate, describer)

    def search(self, arm: str, seed: int, measurements: int, until: float) -> dict[str, Any]:
        """One search by one arm, until a moment of `time.time()`; what is told of it."""
        began, all_ = time.perf_counter(), self.remembered
        examined = all_.examined
        minutes = math.inf if until == math.inf else max(0.01, (until - time.time()) / 60)
        budget = SearchBudget(measurements=measurements, minutes=minutes)
        with tempfile.TemporaryDirectory(dir=self.folder) as kept:
            loop = SearchLoop(
                task=self.task,
                archive=Archive(Path(kept), self.task, self.hardware, self.toolchain),
                budget=budget,
                proposer=Mix([Rewrites(), Knobs(), Anywhere(), Crossover()]),
                forecaster=self.forecaster if arm == "forecasts" else None,
                examiner=self.remembered,  # type: ignore[arg-type]
                preparer=self.preparer,
                seed=seed,
            )
            stopped = loop.run()
            tried = list(loop.archive)
        best = incumbent(tried) or tried[0]  # the seed ran
        row: dict[str, Any] = {
            "what": "search", "task": self.task.name, "arm": arm, "seed": seed, "hardware": self.hardware.name,
            "best_us": best_by_measurement(tried), "built": budget.built, "failed": budget.failed, "stopped": stopped,
            "cut": time.time() >= until,
            "seconds": round(time.perf_counter() - began, 2), "examined": all_.examined - examined,
            "best": {"variant": best.candidate.variant, "config": dict(best.candidate.config.knobs),
                     "steps": list(best.candidate.steps), "times_us": dict(best.times_us), "source": best.candidate.source},
            "failures": [o.message.splitlines()[0][:200] for t in tried if isinstance(o := t.outcome, Failure)],
        }  # fmt: skip
        self.learn(row)
        return row

    def learn(self, row: Mapping[str, Any]) -> None:
        """Take the fastest of a search of this process, or an earlier one, to the finals."""
        best = row["best"]
        candidate = replace(
            self.task.seed, source=best["source"], variant=best["variant"], config=Config(best["config"]),
            steps=tuple(best["steps"]), proposer="search",
        )  # fmt: skip
        self.best[f"{row['arm']} {row['seed']}"] = row["best_us"][-1], candidate

    def finals(self) -> Iterator[dict[str, Any]]:
        """The fastest of the searches, and all that a person wrote, timed in turns; a line for each program."""
        own = {one.digest: one for _, one in sorted(self.best.values(), key=lambda found: found[0])}
        entrants = [self.task.seed, *(c for c in own.values() if c.digest != self.task.seed.digest)][: 1 + FINALISTS]
        entrants += [c for c in self.task.hand_written if c.digest not in own]
        sizes, began = {**self.task.sizes, **self.task.held_out}, time.time()
        self.examiner.end_waiting_workers()
        for final in in_turns(self.task, entrants, sizes, self.examiner, self.preparer):
            one = final.candidate
            by_hand = one.proposer in (SEED, HAND_WRITTEN)
            yield {
                "what": "final", "task": self.task.name, "hardware": self.hardware.name, "by_hand": by_hand,
                "of": [name for name, (_, best) in self.best.items() if best.digest == one.digest],
                "variant": one.variant, "config": dict(one.config.knobs), "steps": list(one.steps),
                "times_us": dict(final.times_us), "relative_error": final.relative_error, "failure": final.failure,
                "held_out": list(self.task.held_out), "began": began,
            }  # fmt: skip


def best_by_measurement(tried: Sequence[TriedCandidate]) -> list[float]:
    """The fastest so far after each measurement; what did not build is none."""
    best, found = math.inf, []
    for one in tried:
        if isinstance(one.outcome, Failure) and one.outcome.stage == "compile":
            continue
        best = min(best, one.time_us or math.inf)
        found.append(best)
    return found


def run(tasks: Sequence[SearchTask], seeds: int, measurements: int, until: float, work: Path, to: Path) -> None:
    """Search until all is done or a moment of `time.time()`, and add a line to a file for each thing that was found out.

    Seeds come one after the other, so that all tasks have as many searches where time runs out.
    """
    ended = [row for row in read(to) if row["what"] == "search" and not row["cut"]]
    done = {(row["task"], row["arm"], row["seed"]) for row in ended}
    live: dict[str, LiveTask] = {}
    out: set[str] = set()

    def of(task: SearchTask) -> LiveTask:
        if task.name not in live:
            live[task.name] = LiveTask(task=task, folder=work / task.name)
            for row in ended:
                if row["task"] == task.name:
                    live[task.name].learn(row)
        return live[task.name]

    def failed(task: SearchTask, err: Exception) -> None:
        out.add(task.name)
        say(f"{task.name} is left out: {err}")
        _add(to, {"what": "left out", "task": task.name, "reason": f"{type(err).__name__}: {err}"[:1000]})

    searched_until = until - FINALS_S * len(tasks)
    for seed in range(seeds):
        for task in tasks:
            for arm in ARMS:
                if task.name in out or (task.name, arm, seed) in done or time.time() >= searched_until:
                    continue
                try:
                    row = of(task).search(arm, seed, measurements, searched_until)
                except Exception as err:  # whatever it is, the other tasks go on
                    failed(task, err)
                    continue
                _add(to, row)
                say(
                    f"{task.name}, {arm}, seed {seed}: {row['best_us'][0]:.4g} us to {row['best_us'][-1]:.4g} us in "
                    f"{len(row['best_us'])} measurements; {row['examined']} were new, {row['seconds']:.1f} s"
                )
    for name, one in live.items():
        if name in out or not one.best or time.time() >= until:
            continue
        try:
            for row in one.finals():
                _add(to, row)
        except Exception as err:
            failed(one.task, err)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


# Scores ---------------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By task and measurements: what was found with forecasts over what was found without, from the same seeds.

    Geometric means over seeds that both arms came so far with. The row "all" is the mean over tasks, with a 95 % interval
    of tasks drawn again.
    """
    pairs: dict[str, dict[int, dict[str, Mapping[str, Any]]]] = {}
    for row in rows:
        if row["what"] == "search":
            pairs.setdefault(row["task"], {}).setdefault(row["seed"], {})[row["arm"]] = row
    draw, told = random.Random(0), []
    for mark in MARKS:
        means: dict[str, dict[str, float]] = {}
        for task, seeds in pairs.items():
            both = [
                p for p in seeds.values() if len(p) == len(ARMS) and all(len(r["best_us"]) >= mark for r in p.values())
            ]
            if not both:
                continue
            ours, random_ = ([p[arm]["best_us"] for p in both] for arm in ARMS)
            logs = [math.log(a[mark - 1] / b[mark - 1]) for a, b in zip(ours, random_, strict=True)]
            of_seed = [math.log(a[mark - 1] / a[0]) for a in ours]
            means[task] = {"over_random": statistics.mean(logs), "over_seed": statistics.mean(of_seed)}
            told.append({
                "task": task, "measured": mark, "seeds": len(both), "over_random": math.exp(means[task]["over_random"]),
                "low": None, "high": None, "over_seed": math.exp(means[task]["over_seed"]),
                "built": statistics.mean(p["forecasts"]["built"] for p in both),
                "built_random": statistics.mean(p["random"]["built"] for p in both),
            })  # fmt: skip
        if len(means) > 1:
            logs = [mean["over_random"] for mean in means.values()]
            again = sorted(statistics.mean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLED))
            told.append({
                "task": "all", "measured": mark, "seeds": len(means), "over_random": math.exp(statistics.mean(logs)),
                "low": math.exp(again[int(0.025 * RESAMPLED)]), "high": math.exp(again[int(0.975 * RESAMPLED)]),
                "over_seed": math.exp(statistics.mean(mean["over_seed"] for mean in means.values())),
                "built": None, "built_random": None,
            })  # fmt: skip
    return told


def by_hand(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By task: the time of the fastest that was found over that of the fastest that a person wrote, in the finals."""
    told = []
    finals = [row for row in rows if row["what"] == "final" and not row["failure"]]
    for task in dict.fromkeys(row["task"] for row in finals):
        of = [row for row in finals if row["task"] == task]
        of = [row for row in of if row["began"] == of[-1]["began"]]
        found = [row for row in of if not row["by_hand"]]
        hand = [row for row in of if row["by_hand"]]
        if not found or not hand:
            continue
        line: dict[str, Any] = {"task": task, "found": len(found), "by_hand": len(hand)}
        held_out = set(of[0]["held_out"])
        for name, sizes in (("searched", of[0]["times_us"].keys() - held_out), ("held_out", held_out)):
            best = [min(_mean(row, sizes) for row in group) for group in (found, hand)]
            line[f"over_best_by_hand_{name}"] = best[0] / best[1] if sizes else None
        told.append(line)
    return told


def _mean(row: Mapping[str, Any], sizes: Any) -> float:
    return statistics.geometric_mean([row["times_us"][size] for size in sizes]) if sizes else math.inf


def main(words: Sequence[str] | None = None) -> int:
    """Search, and print what each arm found; 1 where a task was left out."""
    parser = argparse.ArgumentParser(prog="python -m calibration search-live", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=[], metavar="T", help=f"default on a GPU: {' '.join(SIZES)}")
    parser.add_argument("--seeds", type=positive, default=5, metavar="N")
    parser.add_argument("--measurements", type=positive, default=32, metavar="N", help="of each search")
    parser.add_argument("--limit-s", type=float, default=math.inf, metavar="S", help="stop after so many seconds")
    parser.add_argument("--to", type=Path, default=Path("build/search-live.jsonl"), help="file of what was found")
    parser.add_argument("--also", type=Path, nargs="*", default=[], metavar="FILE", help="tell of these files too")
    parser.add_argument("--work", type=Path, default=Path("build/search-live"), help="folder of programs and builds")
    parser.add_argument("--report", action="store_true", help="search nothing: tell of what the files hold")
    parser.add_argument("--json", action="store_true", help="one JSON value")
    given = parser.parse_args(words)
    until = time.time() + given.limit_s
    given.to.parent.mkdir(parents=True, exist_ok=True)
    if not given.report:
        try:
            tasks = search_tasks(given.tasks)
        except InvalidInputError as err:
            say(str(err))
            return 2
        run(tasks, given.seeds, given.measurements, until, given.work.resolve(), given.to)
    files = [read(path) for path in (given.to, *given.also)]
    rows = [row for file in files for row in file]
    last = [row for file in files for row in {row["task"]: row for row in file}.values()]
    left_out = [row for row in last if row["what"] == "left out"]  # and did not go on since
    searches, finals = summary(rows), by_hand(rows)
    if given.json:
        print_json({"searches": searches, "finals": finals, "left_out": left_out})
    else:
        for told in filter(None, (searches, finals)):
            columns = list(told[0])
            print_table(columns, [[_cell(row[c]) for c in columns] for row in told], right=columns[1:])
        for row in left_out:
            say(f"{row['task']} was left out: {row['reason']}")
    return int(bool(left_out))


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
