"""Triton's own tuner beside ours on the GPU that is present: `python -m calibration gpu-report`.

Kernels are called by position, as people call them. The first seed gives ours the configs as they are listed, each other one
in another order, so that the default, which is the first, is any of them. Stock tunes each key once, from an empty cache: it
compiles and times every config, and by those times every choice is judged. Ours tunes each key with an empty store at each
budget. The first seed compiles from nothing too, and its seconds are reported; later seeds find what stock has compiled and
show choices alone. Of both tuners, a kernel's second size finds what its first compiled.

`--kernels small` stands for the suite's small kernels. The shipped model was fitted on recordings of the suite's kernels:
`--models FOLDER` forecasts each kernel with FOLDER/KERNEL.json, a model that has not seen it (`fit --left-out FOLDER`
writes them).

`--recorded` needs no GPU: it plays the demo's matrix product, 434 configs, at the times recorded for each on an H200.

Exit codes: 0 reported (what time did not allow is said), 1 a tuning failed, 2 no GPU or bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
import triton
from kernel_suite import Case, Kernel, TritonKernel, matmul, small_kernels, triton_kernels

from forecast_autotune.cli.output import table_text
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import TuningWarning
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.frontends.triton.simulated_driver import rehearsal

from ..command import number, verb_parser
from .side_by_side import (
    device,
    has_device,
    own_environment,
    own_store,
    rehearsing,
    surroundings,
)

SMALL = "small"
KERNELS = ("matmul", "softmax", "layer_norm", "attention", "swiglu")
BUDGETS = ("0", "4", "8", "16")
SEEDS = 5
SIZES = 2  # of each kernel
LIMIT_S = 400.0
# Of the limit: a key that stock has not tuned by then is left out, so that ours has time for the others
STOCK_SHARE = 0.65


AnyKernel = TypeVar("AnyKernel", TritonKernel, Kernel)


@dataclass(frozen=True, kw_only=True)
class Key(Generic[AnyKernel]):
    """A kernel at one size, and how long each of its configs takes."""

    kernel: AnyKernel
    case: Case
    times_us: Sequence[float | None]  # in the order of the kernel's space; None where a config does not run
    stock_s: float | None = None  # stock's first call

    @property
    def name(self) -> str:
        return f"{self.kernel.name} {self.case.name}"

    @property
    def best_us(self) -> float:
        return min(us for us in self.times_us if us is not None)

    def of_best(self, i: int) -> float | None:
        """How many times the best config's time the config at a place of the space takes; None if it does not run."""
        us = self.times_us[i]
        return None if us is None else us / self.best_us


@dataclass(kw_only=True)
class Clock:
    """The seconds there are, and notes of what they did not suffice for."""

    limit_s: float
    began: float = field(default_factory=time.perf_counter)
    notes: list[str] = field(default_factory=list)

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        print(f"  [{self.spent_s:4.0f} s] {text}", file=sys.stderr, flush=True)


# One tuning ---------------------------------------------------------------------------------------------------------


def tune_stock(kernel: TritonKernel, case: Case) -> Key[TritonKernel]:
    """Call Triton's own tuner for the first time: what that took, and what its clock says of every config."""
    configs = kernel.configs()
    tuner = triton.autotune(configs, key=list(kernel.key), restore_value=list(kernel.restore_value))(kernel.function)
    stock_s = first_call_s(kernel, case, tuner)
    medians_ms = [tuner.configs_timings[config][0] for config in configs]
    times_us = [ms * 1e3 if math.isfinite(ms) else None for ms in medians_ms]
    return Key(kernel=kernel, case=case, times_us=times_us, stock_s=stock_s)


def tune_ours(key: Key[TritonKernel], seed: int, budget: str, models: Path | None = None) -> dict[str, Any]:
    """Call ours for the first time, the configs as listed or in the order of a seed: what that took and chose."""
    listing = range(len(key.times_us))
    order = random.Random(seed).sample(listing, len(listing)) if seed else list(listing)
    listed = key.kernel.configs()
    configs = [listed[i] for i in order]
    tuner = key.kernel.tuned(configs=configs, budget=budget)
    with from_nothing(models, key.kernel) as warned:
        seconds = first_call_s(key.kernel, key.case, tuner)
    decision = decision_of(tuner, warned)
    chosen = next(i for i, config in zip(order, configs, strict=True) if config is tuner.best_config)
    return {
        "kernel": key.kernel.name,
        "case": key.case.name,
        "seed": seed,
        "budget": budget,
        "chosen": dict(key.kernel.space[chosen].knobs),
        "of_best": key.of_best(chosen),
        "default_of_best": key.of_best(order[0]),
        "first_call_s": seconds,
        "compiled": decision.compiled,
        "measured": decision.tried,
        "failed": decision.failed,
        "basis": decision.basis,
        "reason": decision.reason,
    }


@contextlib.contextmanager
def from_nothing(models: Path | None, kernel: TritonKernel | Kernel) -> Iterator[list[warnings.WarningMessage]]:
    """A first call within finds an empty store, and the kernel's own model; what it warns of is kept."""
    with own_store(), forecasting_with(models, kernel), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", TuningWarning)
        yield warned


def decision_of(tuned: Any, warned: Sequence[warnings.WarningMessage]) -> Decision:
    """The one decision of what was tuned.

    Raises:
        RuntimeError: nothing was decided; it says what was warned of.
    """
    if not tuned.decisions:
        raise RuntimeError("; ".join(str(w.message) for w in warned) or "nothing was decided")
    (decision,) = tuned.decisions.values()
    return cast("Decision", decision)


@contextlib.contextmanager
def forecasting_with(models: Path | None, kernel: TritonKernel | Kernel) -> Iterator[None]:
    """Forecasts within are those of the kernel's own model, where a folder of models is given."""
    if models is not None:
        os.environ["FORECAST_AUTOTUNE_MODEL"] = str(models / f"{kernel.name}.json")
    try:
        yield
    finally:
        os.environ.pop("FORECAST_AUTOTUNE_MODEL", None)


def first_call_s(kernel: TritonKernel, case: Case, tuner: Any) -> float:
    """Seconds of a tuner's first call, by position, until the GPU is done."""
    call = kernel.make_call(case, 0, device())
    synchronize()
    began = time.perf_counter()
    call.launch(tuner)
    synchronize()
    return time.perf_counter() - began


def synchronize() -> None:
    if device() == "cuda":
        torch.cuda.synchronize()


def forget_compiled(kernel: TritonKernel) -> None:
    """Have a kernel compiled anew: what Triton holds of it in memory and in its cache's folder is dropped.

    The folder itself stays, for workers that compile have been told of it.
    """
    kernel.function.device_caches.clear()
    for each in Path(os.environ["TRITON_CACHE_DIR"]).glob("*"):
        shutil.rmtree(each, ignore_errors=True)


# All of it ----------------------------------------------------------------------------------------------------------


def stock_keys(
    kernels: Sequence[TritonKernel], cases: Callable[[TritonKernel], Sequence[Case]], clock: Clock
) -> Iterator[Key[TritonKernel]]:
    """Each kernel at each size as stock's tuner sees it, until its share of the time is up."""
    for kernel in kernels:
        kernel.function.device_caches.clear()
        for case in cases(kernel):
            if clock.spent_s > STOCK_SHARE * clock.limit_s:
                clock.note(f"time is short: {kernel.name} {case.name} was left out")
                continue
            key = tune_stock(kernel, case)
            clock.say(f"stock: {key.name}, {len(key.times_us)} configs, first call {key.stock_s:.1f} s")
            yield key


def tune_all(
    keys: Sequence[Key[TritonKernel]],
    seeds: Sequence[int],
    budgets: Sequence[str],
    clock: Clock,
    folder: Path,
    models: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Ours at every key and budget, one seed after the other, until time is up; a tuning that fails is noted."""
    kernels = list({key.kernel.name: key.kernel for key in keys}.values())
    for seed in seeds:
        cold = seed == seeds[0]
        with own_environment(folder / ("cold" if cold else "stock")):
            for kernel in kernels:
                done = []
                for budget in budgets:
                    if cold:
                        forget_compiled(kernel)
                    for key in (key for key in keys if key.kernel is kernel):
                        if clock.spent_s > clock.limit_s:
                            clock.note(
                                f"time is up ({clock.limit_s:.0f} s): seed {seed} ends before {key.name}, budget {budget}"
                            )
                            return
                        try:
                            run = {**tune_ours(key, seed, budget, models), "cold": cold, "stock_s": key.stock_s}
                        except Exception as err:
                            clock.note(f"failed: {key.name}, seed {seed}, budget {budget}: {type(err).__name__}: {err}")
                            continue
                        done.append(run)
                        yield run
                shown = " ".join(f"{run['budget']}:{number(run['of_best'], 2)}" for run in done)
                clock.say(f"ours: seed {seed}, {kernel.name}, budget:times the best {shown}")


def summary(runs: Sequence[dict[str, Any]], keys: Sequence[Key[AnyKernel]]) -> list[dict[str, Any]]:
    """For each kernel and budget, over seeds and sizes: how far choices and defaults are from the best, and what it took."""
    rows = []
    for kernel, budget in dict.fromkeys((run["kernel"], run["budget"]) for run in runs):
        mine = [run for run in runs if (run["kernel"], run["budget"]) == (kernel, budget)]
        cold = [run for run in mine if run["cold"]]
        stock_s = [key.stock_s for key in keys if key.kernel.name == kernel and key.stock_s is not None]
        rows.append(
            {
                "kernel": kernel,
                "configs": next(len(key.times_us) for key in keys if key.kernel.name == kernel),
                "budget": budget,
                "tunings": len(mine),
                "of_best": spread([run["of_best"] for run in mine]),
                "default_of_best": spread([run["default_of_best"] for run in mine]),
                "measured": statistics.mean(run["measured"] for run in mine),
                "failed": sum(run["failed"] for run in mine),
                "unusable": sum(run["of_best"] is None for run in mine),
                "seconds": sum(run["first_call_s"] for run in cold) if cold else None,
                "stock_seconds": sum(stock_s) if stock_s else None,
            }
        )
    return rows


def overall(runs: Sequence[dict[str, Any]], keys: Sequence[Key[AnyKernel]]) -> list[dict[str, Any]]:
    """For each budget, over all kernels' sizes and seeds: choices over the best, and over the default of their list."""
    rows = []
    for budget in dict.fromkeys(run["budget"] for run in runs):
        mine = [run for run in runs if run["budget"] == budget]
        cold = [run for run in mine if run["cold"]]
        rows.append(
            {
                "budget": budget,
                "tunings": len(mine),
                "of_best": spread([run["of_best"] for run in mine]),
                "default_of_best": spread([run["default_of_best"] for run in mine]),
                "of_default": spread(
                    [
                        run["of_best"] / run["default_of_best"]
                        for run in mine
                        if run["of_best"] is not None and run["default_of_best"] is not None
                    ]
                ),
                "seconds": sum(run["first_call_s"] for run in cold) if cold else None,
                "stock_seconds": sum(key.stock_s for key in keys if key.stock_s is not None) or None,
            }
        )
    return rows


def seconds_to_near_best(runs: Sequence[dict[str, Any]]) -> dict[str, float | int] | None:
    """What a first call took at the smallest budget whose choice is within 2 % of the best, beside stock's first call.

    Medians over the keys of the cold seed that got there at some budget, and how many did not.
    """
    cold: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if run["cold"] and run["stock_s"] is not None:
            cold.setdefault((run["kernel"], run["case"]), []).append(run)
    first = [
        next((run for run in tried if run["of_best"] is not None and run["of_best"] <= NEAR), None)
        for tried in cold.values()
    ]
    there = [run for run in first if run is not None]
    if not there:
        return None
    return {
        "keys": len(there),
        "never": len(first) - len(there),
        "seconds": statistics.median(run["first_call_s"] for run in there),
        "stock_seconds": statistics.median(run["stock_s"] for run in there),
        "times_quicker": statistics.geometric_mean(run["stock_s"] / run["first_call_s"] for run in there),
    }


def spread(ratios: Sequence[float | None]) -> dict[str, float] | None:
    """Geometric mean, median and worst of those that are known."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    return {"geomean": statistics.geometric_mean(known), "median": statistics.median(known), "worst": max(known)}


NEAR = 1.02  # times the best
HEAD = (
    "kernel", "configs", "budget", "of best: geomean", "median", "worst", "default's geomean", "worst", "measured", "failed",
    "seconds", "stock's",
)  # fmt: skip


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The report's table, a line for each budget; the kernel stands in the first of them."""
    before = None
    for row in rows:
        of, default = row["of_best"] or {}, row["default_of_best"] or {}
        yield (
            row["kernel"] if row["kernel"] != before else "",
            str(row["configs"]) if row["kernel"] != before else "",
            row["budget"],
            *(number(of.get(which), 3) for which in ("geomean", "median", "worst")),
            *(number(default.get(which), 2) for which in ("geomean", "worst")),
            number(row["measured"]),
            str(row["failed"]),
            number(row["seconds"]),
            number(row["stock_seconds"]),
        )
        before = row["kernel"]


OVERALL = (
    "all kernels: budget", "tunings", "of best: geomean", "median", "worst", "default's geomean", "of default: geomean",
    "worst", "seconds", "stock's",
)  # fmt: skip


def overall_lines(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table over all kernels, a line for each budget."""
    for row in rows:
        of, default, gained = (row[name] or {} for name in ("of_best", "default_of_best", "of_default"))
        yield (
            row["budget"],
            str(row["tunings"]),
            *(number(of.get(which), 3) for which in ("geomean", "median", "worst")),
            number(default.get("geomean"), 3),
            *(number(gained.get(which), 3) for which in ("geomean", "worst")),
            number(row["seconds"]),
            number(row["stock_seconds"]),
        )


def report(
    about: dict[str, Any], keys: Sequence[Key[TritonKernel]], given: argparse.Namespace, clock: Clock, folder: Path
) -> int:
    """Tune every key with ours, print the table, write the JSON."""
    runs = list(tune_all(keys, range(given.seeds), given.budgets, clock, folder, given.models))
    rows, everything = summary(runs, keys), overall(runs, keys)
    print(table_text(HEAD, list(lines(rows))))
    print(table_text(OVERALL, list(overall_lines(everything))))
    near = seconds_to_near_best(runs)
    if near:
        print(
            f"within {NEAR - 1:.0%} of the best: first calls of {near['seconds']:.1f} s in the median at the smallest "
            f"budget that got there, stock's of {near['stock_seconds']:.1f} s, {near['times_quicker']:.1f} times as long; "
            f"{near['keys']} keys, {near['never']} at no budget"
        )
    print(
        f"{clock.spent_s:.0f} s in all; {given.seeds} seeds. 'of best' is the chosen config's time over the best one's, by "
        "stock's clock; the default is the first of the list, which each seed but the first shuffles; failed: configs that "
        "did not run, over all tunings; seconds: first calls of all sizes with nothing compiled"
    )
    for note in clock.notes:
        print(f"missing: {note}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        described = [
            {
                "kernel": key.kernel.name,
                "case": key.case.name,
                "sizes": dict(key.case.sizes),
                "stock_s": key.stock_s,
                "configs": [dict(config.knobs) for config in key.kernel.space],
                "times_us": list(key.times_us),
            }
            for key in keys
        ]
        results = {
            "spent_s": clock.spent_s,
            "missing": clock.notes,
            "summary": rows,
            "overall": everything,
            "near": near,
        }
        results |= {"keys": described, "runs": runs}
        given.json.write_text(json.dumps({**about, **results}, indent=1))
    unusable = sum(row["unusable"] for row in rows)
    if unusable:
        print(f"{unusable} choices do not run by stock's account")
    return 1 if unusable or any(note.startswith("failed") for note in clock.notes) else 0


def recorded_key() -> Key[TritonKernel]:
    """The demo's matrix product, every config with its recorded time."""
    recording = read_trace(matmul.RECORDING)
    space = Space(matmul.space(), roles=matmul.KERNEL.space.roles)
    outcomes = (recording.outcomes.get(config) for config in space)
    times_us = [outcome.median_us if isinstance(outcome, Measurement) else None for outcome in outcomes]
    return Key(kernel=replace(matmul.KERNEL, space=space), case=matmul.KERNEL.cases[0], times_us=times_us)


def main(words: Sequence[str] | None = None) -> int:
    """Tune with both, print the table, and write the JSON that is asked for."""
    small = {k.name: k for k in small_kernels()}
    known = {k.name: k for k in triton_kernels()} | small
    given = _parser([*known, SMALL]).parse_args(words)
    names = [name for asked in given.kernels for name in (small if asked == SMALL else [asked])]
    chosen = [known[name] for name in names]
    kernels = [replace(k, space=Space(k.space[: given.configs], roles=k.space.roles)) for k in chosen]
    clock = Clock(limit_s=given.limit_s)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu_report_", ignore_cleanup_errors=True))
        )
        if given.recorded:
            stack.enter_context(rehearsal("H200", {"matmul": read_trace(matmul.RECORDING)}))
        elif given.rehearse:
            stack.enter_context(rehearsing(kernels))
        if not has_device():
            print("no GPU is to be had: torch sees no CUDA device here, so there is nothing to report", file=sys.stderr)
            return 2
        about = surroundings()
        if given.recorded:
            about["gpu"] = "none: a rehearsal at times recorded on an H200"
        versions = f"torch {about['torch']}, Triton {about['triton']}, {about['cores']} cores, {about['date']}"
        print(f"GPU: {about['gpu']}; {versions}", flush=True)
        if given.recorded:
            keys = [recorded_key()]
        else:
            with own_environment(folder / "stock"):
                keys = list(
                    stock_keys(kernels, lambda k: k.corners[-1:] if given.rehearse else k.cases[: given.sizes], clock)
                )
        return report(about, keys, given, clock, folder)


def _parser(known: Collection[str]) -> argparse.ArgumentParser:
    parser = verb_parser("gpu-report", __doc__)
    parser.add_argument(
        "--kernels", nargs="+", default=KERNELS, choices=list(known), metavar="NAME", help=f"of {', '.join(known)}"
    )
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, metavar="B", help="ours; as FORECAST_AUTOTUNE_BUDGET")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"orders of the configs ({SEEDS})")
    parser.add_argument(
        "--sizes", type=int, default=SIZES, metavar="N", help=f"how many of each kernel's sizes ({SIZES})"
    )
    parser.add_argument("--configs", type=int, metavar="N", help="the first N of each space alone")
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="a model for each kernel, that has not seen it: FOLDER/KERNEL.json",
    )
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds to spend ({LIMIT_S:.0f})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument(
        "--recorded", action="store_true", help="no GPU: the demo's matrix product at the times recorded on an H200"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="no GPU, small sizes, made-up times: tests the report itself"
    )
    return parser
