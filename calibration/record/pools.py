"""Pools of programs: `python -m calibration record-pool [KERNEL …] [--programs N] [--minutes M]`.

Rewrites make so many programs of each kernel, one to four steps from its own source, under configs of its space. They are
built, examined and timed as a search does it, in its box, and one that comes out as the machine code of another does not
count. On a GPU six Triton kernels of the suite, without one its C++ kernels.

A pool becomes a trace for each size, `<kernel>.<size>.<hardware>.jsonl.gz`, in which steps stand as knobs, as a search's
forecasts read them; and `<kernel>.<hardware>.programs.jsonl.gz`, a line with config, steps and source for each program. What
was measured is kept at once: a recording that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_suite import Kernel, SuiteKernel, kernels, suite_kernels

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.candidate import Candidate, Tried
from forecast_autotune.program_search.exam import Examiner
from forecast_autotune.program_search.forecasts import configs_of
from forecast_autotune.program_search.proposers.rewriting import rewrites_of
from forecast_autotune.program_search.rules import refused
from forecast_autotune.program_search.run import toolchain_of
from forecast_autotune.program_search.runners import preparer
from forecast_autotune.program_search.task import SearchTask, task_of
from forecast_autotune.store.encoding import to_text
from forecast_autotune.store.textfile import write_lines

from ..command import positive
from ..paths import POOLS

SIX = ("softmax", "layer_norm", "cross_entropy", "swiglu", "matmul", "attention")
SEED = 11
DEPTH = 4  # steps from the kernel's own source at most
DEFAULTS = 0.5  # share of programs under their variant's default config
TRIES = 10  # programs drawn for each that is wanted, after which there are no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How a kernel's pool stands: programs that ran, each another machine code; those that failed; and alike ones."""

    kernel: str
    ran: int
    failed: int
    twins: int
    traces: tuple[str, ...]


def programs(task: SearchTask, seed: int = SEED) -> Iterator[Candidate]:
    """Programs some steps from a task's own source, in a seeded order, without an end; some come twice."""
    draw = random.Random(f"{seed} {task.name}")
    while True:
        variant = draw.choice(list(task.spaces))
        space = task.spaces[variant]
        config = space.default if draw.random() < DEFAULTS else draw.choice(space)
        one = Candidate(
            source=task.source,
            language=task.language,
            variant=variant,
            config=config,
            proposer="pool",
            parents=(task.seed.digest,),
        )
        for _ in range(draw.randint(1, DEPTH)):
            by_kind: dict[str, list[tuple[str, str]]] = {}
            for step in rewrites_of(task.language)(one.source, task.entries.get(variant, "")):
                by_kind.setdefault(step[0].partition("@")[0], []).append(step)
            if by_kind:
                label, source = draw.choice(by_kind[draw.choice(sorted(by_kind))])
                one = replace(one, source=source, steps=(*one.steps, label))
        if one.source != task.source:
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
    hardware = detect_hardware(task.device)
    toolchain = toolchain_of(task)
    folder = work / task.digest
    folder.mkdir(parents=True, exist_ok=True)
    archive = Archive(work, task, hardware, toolchain)
    prepare, examiner = preparer(task, folder, work), Examiner(task, hardware, folder)
    made = prepare.prepare(task.seed)
    result = None if isinstance(made, Failure) else examiner.examine(made, is_seed=True)
    if isinstance(made, Failure) or result is None or isinstance(result.outcome, Failure):
        why = made.message if isinstance(made, Failure) else result.outcome if result else ""
        raise InvalidInputError(f"{task.name}'s own source fails, so no pool can be made of it: {why}")
    if task.seed not in archive:
        archive.add(
            Tried(
                candidate=task.seed,
                outcome=result.outcome,
                forecast=None,
                chosen="seed",
                times_us=result.times_us,
                code=made.code or result.code,
            )
        )
    codes = {tried.code for tried in archive if tried.code}
    twins = 0
    for drawn, one in enumerate(programs(task)):
        if _ran(archive) >= wanted or time.time() >= until or drawn >= TRIES * wanted:
            break
        if one in archive or refused(one, task):
            continue
        made = prepare.prepare(one)
        if isinstance(made, Failure):
            archive.add(Tried(candidate=one, outcome=made, forecast=None, chosen="pool"))
            continue
        if made.code and made.code in codes:
            twins += 1
            continue
        result = examiner.examine(made)
        code = made.code or result.code
        if code and code in codes:
            twins += 1
            continue
        codes.add(code)
        archive.add(
            Tried(
                candidate=one,
                outcome=result.outcome,
                forecast=None,
                chosen="pool",
                times_us=result.times_us,
                code=code,
            )
        )
        print(f"{task.name}: {_ran(archive)} of {wanted}: {one.steps[-1]}", file=sys.stderr)
    tried = list(archive)
    paths = write_pool(task, tried, hardware, toolchain, to)
    return Pool(
        kernel=task.name,
        ran=_ran(archive),
        failed=sum(isinstance(t.outcome, Failure) for t in tried),
        twins=twins,
        traces=tuple(str(path) for path in paths),
    )


def _ran(archive: Archive) -> int:
    """Programs that ran, the kernel's own aside."""
    return sum(tried.time_us is not None for tried in archive) - 1


def write_pool(
    task: SearchTask, tried: Sequence[Tried], hardware: Hardware, toolchain: Toolchain, to: Path
) -> list[Path]:
    """Write a pool's traces and its programs; the first of what was tried is the task's own source.

    Of programs whose steps and knobs read alike, as where the same steps were taken in another order, the first stays.
    """
    configs = configs_of([t.candidate for t in tried], task)
    first: dict[Config, Tried] = {}
    for config, one in zip(configs, tried, strict=True):
        first.setdefault(config, one)
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
        )
        paths.append(to / f"{task.name}.{size}.{name}.jsonl.gz")
        write_trace(recording, paths[-1], recorded={"by": "record-pool", "seed": SEED, "depth": DEPTH})
    paths.append(to / f"{task.name}.{name}.programs.jsonl.gz")
    lines = [
        {"config": dict(config.knobs), "steps": list(one.candidate.steps), "source": one.candidate.source}
        for config, one in first.items()
    ]
    write_lines(paths[-1], [to_text(line) for line in lines])
    return paths


def tasks(names: Sequence[str]) -> list[SearchTask]:
    """The tasks of these kernels of the suite; without names, those that this machine can run.

    Raises:
        InvalidInputError: there is no such kernel.
    """
    import torch

    listed: list[Kernel | SuiteKernel] = [*kernels(), *suite_kernels()]
    known = {kernel.name: kernel for kernel in listed}
    usual = SIX if torch.cuda.is_available() else [kernel.name for kernel in kernels()]
    if unknown := [name for name in names if name not in known]:
        raise InvalidInputError(f"the suite has no kernel {unknown[0]!r} to rewrite: it has {', '.join(known)}")
    return [task_of(known[name]) for name in names or usual]


def main(words: Sequence[str] | None = None) -> int:
    """Record pools, and print how each stands; 1 where one has fewer programs than were asked for."""
    parser = argparse.ArgumentParser(prog="python -m calibration record-pool", description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"default: {', '.join(SIX)} on a GPU, else C++")
    parser.add_argument("--programs", type=positive, default=200, metavar="N", help="of each kernel; default 200")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="stop after so many")
    parser.add_argument("--to", type=Path, default=POOLS, help="folder of the traces")
    parser.add_argument("--work", type=Path, default=Path("build/pools"), help="folder of what is not finished")
    parser.add_argument("--json", action="store_true", help="one JSON value")
    given = parser.parse_args(words)
    until = time.time() + 60 * given.minutes
    try:
        pools = [record(task, given.programs, until, given.work.resolve(), given.to) for task in tasks(given.kernels)]
    except AutotuneError as err:
        print(f"record-pool: {err}", file=sys.stderr)
        return 2
    columns = ("kernel", "ran", "failed", "twins", "traces")
    rows = [{name: getattr(pool, name) for name in columns} for pool in pools]
    if given.json:
        print_json(rows)
    else:
        cells = [[p.kernel, str(p.ran), str(p.failed), str(p.twins), str(len(p.traces))] for p in pools]
        print_table(columns, cells, right=columns[1:])
    return int(any(pool.ran < given.programs for pool in pools))
