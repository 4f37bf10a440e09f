"""Pools of programs: `python -m calibration record-pool [KERNEL …] [--programs N] [--minutes M]`.

Rewrites make so many programs of each kernel, one to four steps from its own source, under configs of its space. They are
built, checked at the sizes and timed as a search does it, in its box, and one that comes out as the machine code of another
does not count. On a GPU six Triton kernels of the suite, without one its C++ kernels; its CUDA kernels by name.

A pool becomes a trace for each size, `<kernel>.<size>.<hardware>.jsonl.gz`, in which steps stand as knobs, as a search's
forecasts read them; and `<kernel>.<hardware>.programs.jsonl.gz`, a line with config, steps and changed lines for each
program, the first with the kernel's own source. What was measured is kept at once: a recording that was stopped goes on from
there.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.candidate import SEED, Candidate, TriedCandidate
from forecast_autotune.program_search.descriptions import CandidateDescriber, Described, describer_of
from forecast_autotune.program_search.examiner import Examiner, Result
from forecast_autotune.program_search.forecasts import configs_of, knobs_of
from forecast_autotune.program_search.proposers.rewriting import draw_rewrite, rewrites_of
from forecast_autotune.program_search.rules import broken_rule
from forecast_autotune.program_search.run import toolchain_of
from forecast_autotune.program_search.runners import Loadable, preparer
from forecast_autotune.program_search.task import SearchTask
from forecast_autotune.store.encoding import to_text
from forecast_autotune.store.textfile import write_lines

from ..command import positive
from ..paths import POOLS
from ..search_tasks import SIZES, search_tasks

DRAW_SEED = 11
DEPTH = 4  # steps from the kernel's own source at most
DEFAULTS = 0.5  # share of programs under their variant's default config
WRITE_EVERY_S = 30.0  # so that a recording that is killed leaves traces too
TRIES = 10  # programs drawn for each that is wanted, after which there are no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How a kernel's pool stands: programs that ran, each another machine code; those that failed; and alike ones."""

    kernel: str
    ran: int
    failed: int
    twins: int
    traces: tuple[str, ...]


def programs(task: SearchTask, seed: int = DRAW_SEED) -> Iterator[Candidate]:
    """Programs some steps from a task's own source, in a seeded order, without an end; some come twice."""
    draw = random.Random(f"{seed} {task.name}")
    while True:
        variant = draw.choice(list(task.spaces))
        space = task.spaces[variant]
        config = space.default if draw.random() < DEFAULTS else draw.choice(space)
        one = Candidate(
            source=task.text_of(variant),
            language=task.language,
            variant=variant,
            config=config,
            proposer="pool",
            parents=(task.seed.digest,),
            by_rules=True,
        )
        for _ in range(draw.randint(1, DEPTH)):
            if steps := rewrites_of(task.language)(one.source, task.entries.get(variant, "")):
                label, source = draw_rewrite(steps, draw)
                one = replace(one, source=source, steps=(*one.steps, label))
        if one.source != task.text_of(variant):
            yield one


def record(task: SearchTask, wanted: int, until: float, work: Path, to: Path) -> Pool:
    """Measure a task's pool until so many programs ran, or until a moment of `time.time()`, and write its traces.

    Args:
        work: folder of what is kept meanwhile, and of builds.
        to: folder of the traces.
    Raises:
        InvalidInputError: the task's own source does not build, or is wrong.
        NoBoxError: this system has no box for candidates.
        StoreError: what was measured cannot be kept.
    """
    folder = work / task.digest
    folder.mkdir(parents=True, exist_ok=True)
    recorder = _Recorder(task, folder, work)
    written = time.time()
    batches = recorder.batches(TRIES * wanted)
    batch = next(batches, None)
    with ThreadPoolExecutor(1) as ahead:  # to draw a program takes 0.2 s
        while batch and recorder.ran < wanted and time.time() < until:
            coming = ahead.submit(next, batches, None)
            recorder.measure(batch, wanted, until, coming)
            print(f"{task.name}: {recorder.ran} of {wanted}", file=sys.stderr)
            if time.time() >= written + WRITE_EVERY_S:
                recorder.write(to)
                written = time.time()
            batch = coming.result()
    paths = recorder.write(to)
    return Pool(
        kernel=task.name,
        ran=recorder.ran,
        failed=sum(isinstance(tried.outcome, Failure) for tried in recorder.archive),
        twins=recorder.twins,
        traces=tuple(str(path) for path in paths),
    )


class _Recorder:
    """One pool in the making."""

    def __init__(self, task: SearchTask, folder: Path, work: Path) -> None:
        self.task = task
        self.hardware, self.toolchain = detect_hardware(task.device), toolchain_of(task)
        self.archive = Archive(work, task, self.hardware, self.toolchain)
        self.prepare, self.examiner = preparer(task, folder, work), Examiner(task, self.hardware, folder)
        self.describer = describer_of(task, self.hardware, folder)
        self.twins = 0  # programs that came out as another's machine code
        made = self.prepare.prepare(task.seed)
        result = None if isinstance(made, Failure) else self.examiner.examine(made, is_seed=True)
        if isinstance(made, Failure) or result is None or isinstance(result.outcome, Failure):
            why = made.message if isinstance(made, Failure) else result.outcome if result else ""
            raise InvalidInputError(f"{task.name}'s own source fails, so no pool can be made of it: {why}")
        if task.seed not in self.archive:
            self._keep(task.seed, SEED, result, made.code or result.code)
        self.codes = {tried.code for tried in self.archive if tried.code}
        self.alike = {self._read(tried.candidate) for tried in self.archive}

    @property
    def ran(self) -> int:
        """Programs that ran, the kernel's own aside."""
        return sum(tried.time_us is not None for tried in self.archive) - 1

    def batches(self, most: int) -> Iterator[list[Candidate]]:
        """New programs, so many at a time as are checked side by side."""
        batch: dict[str, Candidate] = {}
        for one in islice(programs(self.task), most):
            if self._read(one) not in self.alike and not broken_rule(one, self.task):
                self.alike.add(self._read(one))
                batch[one.digest] = one
            if len(batch) == self.examiner.beside:
                yield list(batch.values())
                batch.clear()
        yield list(batch.values())

    def _read(self, one: Candidate) -> str:
        """What a trace tells programs apart by: those that took the same steps in another order read alike."""
        return to_text(dict(sorted(knobs_of(one, self.task).items())))

    def measure(self, batch: Sequence[Candidate], wanted: int, until: float, beside: Future[Any]) -> None:
        """Build and check programs side by side, then time those whose machine code is new, one after the other.

        Args:
            beside: what goes on meanwhile, and is waited for before anything is timed.
        """
        with ThreadPoolExecutor(self.examiner.beside) as pool:
            made = list(pool.map(self.prepare.prepare, batch))
        ready: list[tuple[Candidate, Loadable]] = []
        for one, loadable in zip(batch, made, strict=True):
            if isinstance(loadable, Failure):
                self.archive.add(TriedCandidate(candidate=one, outcome=loadable, forecast=None, chosen="pool"))
            elif not self._is_twin(loadable.code):
                ready.append((one, loadable))
        with self.examiner.checked([loadable for _, loadable in ready], everywhere=False) as checks:
            wait([beside])
            with self.examiner.alone():
                for (one, loadable), checked in zip(ready, checks, strict=True):
                    if self.ran >= wanted or time.time() >= until:
                        return
                    code = loadable.code or checked.code
                    if loadable.code or not self._is_twin(code):
                        self._keep(one, "pool", self.examiner.time(loadable, checked), code)

    def _is_twin(self, code: str) -> bool:
        if not code or code not in self.codes:
            self.codes.add(code)
            return False
        self.twins += 1
        return True

    def _keep(self, one: Candidate, chosen: str, result: Result, code: str) -> None:
        self.archive.add(
            TriedCandidate(
                candidate=one,
                outcome=result.outcome,
                forecast=None,
                chosen=chosen,
                times_us=result.times_us,
                code=code,
            )
        )

    def write(self, to: Path) -> list[Path]:
        """Write what there is so far."""
        return write_pool(self.task, list(self.archive), self.hardware, self.toolchain, to, self.describer)


def write_pool(
    task: SearchTask,
    tried: Sequence[TriedCandidate],
    hardware: Hardware,
    toolchain: Toolchain,
    to: Path,
    describer: CandidateDescriber | None = None,
) -> list[Path]:
    """Write a pool's traces and its programs; the first of what was tried is the task's own source.

    Programs are described as a search describes them. Of those whose steps and knobs read alike, as where the same steps
    were taken in another order, the first stays.
    """
    configs = configs_of([t.candidate for t in tried], task)
    first: dict[Config, TriedCandidate] = {}
    for config, one in zip(configs, tried, strict=True):
        first.setdefault(config, one)
    told: dict[Config, Described] = {}
    if describer is not None:
        told = dict(zip(first, describer.describe([one.candidate for one in first.values()]), strict=True))
    to.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w-]+", "_", hardware.name)
    paths = []
    for size, sizes in task.sizes.items():
        program = Program(name=task.name, language=task.language, source=task.source)
        key = {"case": size, **{n: value for n, value in sizes.items() if isinstance(value, (int, str))}}
        outcomes = {
            config: Measurement(samples_us=(one.times_us[size],)) if size in one.times_us else one.outcome
            for config, one in first.items()
            if size in one.times_us or isinstance(one.outcome, Failure)
        }
        recording = Recording(
            workload=Workload(program=program, key=key),
            hardware=hardware,
            toolchain=toolchain,
            default=configs[0],
            outcomes=outcomes,
            static_features={config: each for config in outcomes if (each := told.get(config, {}).get(size))},
        )
        paths.append(to / f"{task.name}.{size}.{name}.jsonl.gz")
        write_trace(recording, paths[-1], recorded={"by": "record-pool", "seed": DRAW_SEED, "depth": DEPTH})
    paths.append(to / f"{task.name}.{name}.programs.jsonl.gz")
    lines: list[dict[str, object]] = [
        {
            "config": dict(config.knobs),
            "steps": list(one.candidate.steps),
            "changes": changes(task.source, one.candidate.source),
        }
        for config, one in first.items()
    ]
    lines[0]["source"] = task.source
    write_lines(paths[-1], [to_text(line) for line in lines])
    return paths


def changes(source: str, changed: str) -> list[tuple[int, int, list[str]]]:
    """What makes one text another: lines from the first number to before the second give way to others, the last first."""
    old, new = source.splitlines(keepends=True), changed.splitlines(keepends=True)
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(i, j, new[k:m]) for what, i, j, k, m in reversed(steps) if what != "equal"]


def changed(source: str, steps: Sequence[tuple[int, int, list[str]]]) -> str:
    """The text that `changes` told of."""
    lines = source.splitlines(keepends=True)
    for first, last, new in steps:
        lines[first:last] = new
    return "".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Record pools, and print how each stands; 1 where one fails or has fewer programs than were asked for."""
    parser = argparse.ArgumentParser(prog="python -m calibration record-pool", description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"default: {', '.join(SIZES)} on a GPU, else C++")
    parser.add_argument("--programs", type=positive, default=200, metavar="N", help="of each kernel; default 200")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="stop after so many")
    parser.add_argument("--to", type=Path, default=POOLS, help="folder of the traces")
    parser.add_argument("--work", type=Path, default=Path("build/pools"), help="folder of what is not finished")
    parser.add_argument("--json", action="store_true", help="one JSON value")
    given = parser.parse_args(words)
    until = time.time() + 60 * given.minutes
    pools = []
    try:
        tasks = search_tasks(given.kernels)
    except InvalidInputError as err:
        print(f"record-pool: {err}", file=sys.stderr)
        return 2
    for i, task in enumerate(tasks):
        share = time.time() + (until - time.time()) / (len(tasks) - i)  # what one leaves is the others'
        try:
            pools.append(record(task, given.programs, share, given.work.resolve(), given.to))
        except Exception as err:  # whatever it is, the other kernels go on
            print(f"record-pool: {task.name} is left out: {type(err).__name__}: {err}", file=sys.stderr)
    columns = ("kernel", "ran", "failed", "twins", "traces")
    rows = [{name: getattr(pool, name) for name in columns} for pool in pools]
    if given.json:
        print_json(rows)
    else:
        cells = [[p.kernel, str(p.ran), str(p.failed), str(p.twins), str(len(p.traces))] for p in pools]
        print_table(columns, cells, right=columns[1:])
    return int(len(pools) < len(tasks) or any(pool.ran < given.programs for pool in pools))
