"""The suite's CUDA kernels through `load_inline` on the GPU that is present: `python -m calibration cuda-report`.

Each kernel is called as people call it, at several sizes and budgets, with an empty store each time; what one call has
built later ones find, so the seconds of first calls are not compared. Then what was chosen at each budget and the default
are timed in turns, on cold caches, and told over the fastest of them: there is no time to build every config.

The shipped model was fitted on recordings of these kernels: `--models FOLDER` forecasts each with FOLDER/KERNEL.json, a
model that has not seen it (`fit --left-out FOLDER` writes them).

Exit codes: 0 reported (what time did not allow is said), 1 a tuning failed, 2 no GPU or bad input.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernel_suite import Case, Kernel, cuda_kernels

from forecast_autotune.cli.output import table_text
from forecast_autotune.core.config import Config

from ..command import verb_parser
from .gpu_report import HEAD, OVERALL, Clock, Key, decision_of, from_nothing, lines, overall, overall_lines, summary
from .side_by_side import cold_times_us, own_environment, surroundings

BUDGETS = ("0", "4", "8", "16", "48")
SIZES = 1  # of each kernel
LIMIT_S = 600.0


def tune(kernel: Kernel, case: Case, budget: str, builds: Path, models: Path | None) -> dict[str, Any]:
    """A first call with an empty store: what it took and chose.

    Raises:
        RuntimeError: nothing was decided, or the output is wrong.
    """
    tuned: Any = kernel.tuned(budget=budget, build_directory=str(builds))
    args = kernel.make_inputs(case, 0, "cuda")
    torch.cuda.synchronize()
    with from_nothing(models, kernel) as warned:
        began = time.perf_counter()
        tuned(*args)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    decision = decision_of(tuned, warned)
    if not torch.allclose(args[-1], kernel.reference(*args), rtol=kernel.rtol, atol=kernel.atol):
        raise RuntimeError("its output is wrong")
    return {
        "kernel": kernel.name,
        "case": case.name,
        "budget": budget,
        "chosen": decision.config,
        "first_call_s": seconds,
        "compiled": decision.compiled,
        "measured": decision.tried,
        "failed": decision.failed,
        "basis": decision.basis,
        "reason": decision.reason,
    }


def times_us(kernel: Kernel, case: Case, configs: Sequence[Config], builds: Path) -> list[float | None]:
    """The median time of each config in turns, on cold caches; None where one does not run."""
    tuned: Any = kernel.tuned(build_directory=str(builds))
    args = kernel.make_inputs(case, 0, "cuda")
    calls = [partial(tuned.tuned.launcher(config, "cuda:0").call, *args) for config in configs]
    return [None if samples is None else statistics.median(samples) for samples in cold_times_us(calls)]


def key_of(
    kernel: Kernel, case: Case, budgets: Sequence[str], clock: Clock, builds: Path, models: Path | None
) -> tuple[Key[Kernel], list[dict[str, Any]]] | None:
    """A kernel at a size: its runs, and the times they are told by; None where nothing was tuned."""
    runs = []
    for budget in budgets:
        if clock.spent_s > clock.limit_s:
            clock.note(f"time is up ({clock.limit_s:.0f} s): {kernel.name} {case.name}, budget {budget}")
            break
        try:
            run = tune(kernel, case, budget, builds, models)
        except Exception as err:
            clock.note(f"failed: {kernel.name} {case.name}, budget {budget}: {type(err).__name__}: {err}")
            continue
        chosen = run["chosen"].text
        clock.say(f"{kernel.name} {case.name}, budget {budget}: {run['first_call_s']:.1f} s, {chosen}")
        runs.append(run)
    if not runs:
        return None
    timed = list(dict.fromkeys([kernel.space.default, *(run["chosen"] for run in runs)]))
    of = dict(zip(timed, times_us(kernel, case, timed, builds), strict=True))
    key = Key(kernel=kernel, case=case, times_us=[of.get(config) for config in kernel.space])
    place = kernel.space.index
    return key, [
        {
            **run,
            "chosen": dict(run["chosen"].knobs),
            "of_best": key.of_best(place(run["chosen"])),
            "default_of_best": key.of_best(0),
            "cold": False,
        }
        for run in runs
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Tune at each budget, time what was chosen; print the tables, and write the JSON that is asked for."""
    known = {kernel.name: kernel for kernel in cuda_kernels()}
    parser = verb_parser("cuda-report", __doc__)
    parser.add_argument("--kernels", nargs="+", default=list(known), choices=list(known), metavar="NAME")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, metavar="B", help="as FORECAST_AUTOTUNE_BUDGET")
    parser.add_argument("--sizes", type=int, default=SIZES, metavar="N", help=f"of each kernel ({SIZES})")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="a model for each kernel: FOLDER/KERNEL.json")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds to spend ({LIMIT_S:.0f})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    given = parser.parse_args(words)
    if not torch.cuda.is_available():
        print("no GPU is to be had: torch sees no CUDA device here, so there is nothing to report", file=sys.stderr)
        return 2
    about, clock = surroundings(), Clock(limit_s=given.limit_s)
    print(f"GPU: {about['gpu']}; torch {about['torch']}, {about['cores']} cores, {about['date']}", flush=True)
    keys: list[Key[Kernel]] = []
    runs: list[dict[str, Any]] = []
    called = [(known[name], case) for name in given.kernels for case in known[name].cases[: given.sizes]]
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="cuda_report_", ignore_cleanup_errors=True)
        builds = Path(stack.enter_context(folder))
        stack.enter_context(own_environment(builds / "triton"))
        for kernel, case in called:
            told = key_of(kernel, case, given.budgets, clock, builds / kernel.name, given.models)
            if told is not None:
                keys.append(told[0])
                runs += told[1]
    rows, everything = summary(runs, keys), overall(runs, keys)
    print(table_text(HEAD, list(lines(rows))))
    print(table_text(OVERALL, list(overall_lines(everything))))
    print(
        f"{clock.spent_s:.0f} s in all. 'of best' is the chosen config's time over the fastest of those that were chosen at "
        "any budget and the default, the first of the list"
    )
    for note in clock.notes:
        print(f"missing: {note}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "spent_s": clock.spent_s,
            "missing": clock.notes,
            "summary": rows,
            "overall": everything,
            "runs": runs,
        }
        given.json.write_text(json.dumps({**about, **results}, indent=1))
    return int(any(note.startswith("failed") for note in clock.notes))
