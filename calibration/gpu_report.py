"""Triton's own tuner beside ours on the GPU that is present: `python -m calibration.gpu_report`.

For each kernel: the first call of `triton.autotune`, which compiles and times every config, and of ours at each budget. Each
has a process of its own with empty caches and an empty store. How good the config is that each chose is then seen in one
further process, which times every config of the space in turns with one timer, caches cold: ratios are to the best of
those. The seconds are from the first call to its return, with the GPU done and the process's CUDA context there before.

Exit codes: 0 reported (what time did not allow is said), 1 a part failed, 2 no GPU or bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from kernel_suite import Case, TritonKernel, triton_kernels
from triton import knobs

from forecast_autotune.core.decision import Decision

from .side_by_side import cold_times_us, device, has_device, number, rehearsing, surroundings, table

KERNELS = ("matmul", "softmax", "layer_norm", "attention")
BUDGETS = ("4", "8", "16")
LIMIT_S = 300.0  # beside some two minutes of tests and the report on the in-place kernel, eight minutes in all


# One part, in a process of its own ----------------------------------------------------------------------------------


def tune(kernel: TritonKernel, case: Case, count: int | None, budget: str | None) -> dict[str, Any]:
    """Call a tuner for the first time, Triton's own where there is no budget; what that took and chose."""
    configs = kernel.configs()[:count]
    if budget is None:
        tuner = triton.autotune(configs, key=list(kernel.key), restore_value=list(kernel.restore_value))(
            kernel.function
        )
    else:
        tuner = kernel.tuned(configs=configs, budget=budget)
    call = kernel.make_call(case, 0, device())
    synchronize()
    with compiles_counted() as compiled:
        began = time.perf_counter()
        call.launch(tuner)
        synchronize()
        first_call_s = time.perf_counter() - began
    told = {"first_call_s": first_call_s, "chosen": next(i for i, c in enumerate(configs) if c is tuner.best_config)}
    if budget is None:
        return {**told, "compiled": len(compiled), "timed": len(tuner.configs_timings)}
    if not tuner.decisions:
        raise SystemExit(f"{kernel.name} was not tuned: nothing was decided")
    decision: Decision = next(iter(tuner.decisions.values()))
    return {**told, "compiled": decision.compiled, "timed": decision.measured, "reason": decision.reason}


def time_all(kernel: TritonKernel, case: Case, count: int | None) -> dict[str, Any]:
    """The median time of every config, None for one that does not run."""
    call = kernel.make_call(case, 0, device())
    launches = [partial(call.launch, kernel.function, **c.all_kwargs()) for c in kernel.configs()[:count]]
    return {"times_us": [None if s is None else statistics.median(s) for s in cold_times_us(launches)]}


def synchronize() -> None:
    if device() == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def compiles_counted() -> Iterator[list[str]]:
    """The kernels compiled in this process within; what Triton's cache answers is not among them."""
    before, compiled = knobs.compilation.listener, []

    def listener(**told: Any) -> None:
        if not told.get("cache_hit"):
            compiled.append(told["src"].name)
        if before is not None:
            before(**told)

    knobs.compilation.listener = listener
    try:
        yield compiled
    finally:
        knobs.compilation.listener = before


# The parts together -------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Parts:
    """Runs parts one after the other until time is up, and notes those that did not come to an end."""

    limit_s: float
    shared: Sequence[str] = ()  # further words of every command
    began: float = field(default_factory=time.perf_counter)
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.perf_counter() - self.began)

    def run(self, what: str, words: Sequence[str], caches: Path) -> dict[str, Any] | None:
        """What a part says, or None; a part that time cuts off is killed with the processes it started."""
        if self.left_s <= 0:
            self._note(f"time is up ({self.limit_s:.0f} s): {what} was not begun")
            return None
        caches.mkdir(parents=True, exist_ok=True)
        answer, log = caches / "answer.json", caches / "log"
        answer.unlink(missing_ok=True)
        command = [sys.executable, "-m", "calibration.gpu_report", *words, *self.shared, "--answer", str(answer)]
        with log.open("w") as output:
            part = subprocess.Popen(
                command, env=own_environment(caches), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                part.wait(timeout=self.left_s)
            except subprocess.TimeoutExpired:
                self._note(f"time is up ({self.limit_s:.0f} s): {what} was cut off")
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(part.pid, signal.SIGKILL)
                part.wait()
        if part.returncode or not answer.exists():
            self.failed = True
            last = " | ".join(log.read_text().strip().splitlines()[-3:])
            self._note(f"{what} failed with exit code {part.returncode}: {last}")
            return None
        told: dict[str, Any] = json.loads(answer.read_text())
        seconds = f", first call {told['first_call_s']:.1f} s" if "first_call_s" in told else ""
        print(f"  [{time.perf_counter() - self.began:4.0f} s] {what}{seconds}", file=sys.stderr, flush=True)
        return told

    def _note(self, text: str) -> None:
        self.notes.append(text)
        print(f"  {text}", file=sys.stderr, flush=True)


def own_environment(caches: Path) -> dict[str, str]:
    """The environment without settings of ours, and with caches of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORECAST_AUTOTUNE_")}
    caches_of_its_own = {"TRITON_CACHE_DIR": f"{caches}/triton", "FORECAST_AUTOTUNE_DIR": f"{caches}/store"}
    return {"TRITON_DEFAULT_FP_FUSION": "1", **kept, **caches_of_its_own}  # 3.9 warns until somebody says which


def compare(
    kernel: TritonKernel, case: Case, budgets: Sequence[str], count: int | None, parts: Parts
) -> dict[str, Any]:
    """Every contender at one size, and then the times of every config: compiled already, in stock's cache."""
    title, words = f"{kernel.name} {case.name}", ("--kernels", kernel.name, "--case", case.name)
    with tempfile.TemporaryDirectory(prefix="gpu_report_", ignore_cleanup_errors=True) as folder:
        caches = Path(folder)
        told = {"stock": parts.run(f"{title}: stock", (*words, "--part", "stock"), caches / "stock")}
        for budget in budgets:
            part = (*words, "--part", "ours", "--budgets", budget)
            told[budget] = parts.run(f"{title}: ours, budget {budget}", part, caches / f"budget_{budget}")
        timed = parts.run(f"{title}: every config in turns", (*words, "--part", "times"), caches / "stock")
    return summary(kernel, case, told, timed["times_us"] if timed else None, count)


def summary(
    kernel: TritonKernel,
    case: Case,
    told: dict[str, dict[str, Any] | None],
    times_us: Sequence[float | None] | None,
    count: int | None = None,
) -> dict[str, Any]:
    """One kernel at one size as the report's JSON has it; what is not known is None."""
    configs = kernel.space[:count]
    known = {i: us for i, us in enumerate(times_us or ()) if us is not None}
    best = min(known, key=known.__getitem__) if known else None

    def judged(name: str, budget: str | None, part: dict[str, Any] | None) -> dict[str, Any]:
        told = part or {}
        us = known.get(told.get("chosen", -1))
        return {
            "tuner": name,
            "budget": budget,
            **{fact: told.get(fact) for fact in ("first_call_s", "compiled", "timed", "reason")},
            "chosen": dict(configs[told["chosen"]].knobs) if "chosen" in told else None,
            "kernel_us": us,
            "ratio_to_best": None if us is None or best is None else us / known[best],
        }

    return {
        "kernel": kernel.name,
        "case": case.name,
        "sizes": dict(case.sizes),
        "configs": len(configs),
        "best": None if best is None else {"config": dict(configs[best].knobs), "kernel_us": known[best]},
        "times_us": None if times_us is None else list(times_us),
        "tuners": [
            judged("stock", None, told.get("stock")),
            *(judged("ours", budget, part) for budget, part in told.items() if budget != "stock"),
            judged("first config", None, {"chosen": 0}),
        ],
    }


HEAD = ("kernel", "size", "tuner", "first call s", "compiled", "timed", "kernel us", "of best")


def lines(found: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The report's table, a line for each tuner; the kernel and its size stand in the first of them."""
    for one in found:
        size = " ".join(f"{name}={value}" for name, value in one["sizes"].items())
        for i, tuner in enumerate(one["tuners"]):
            yield (
                one["kernel"] if i == 0 else "",
                f"{size}, {one['configs']} configs" if i == 0 else "",
                tuner["tuner"] if tuner["budget"] is None else f"{tuner['tuner']}, budget {tuner['budget']}",
                number(tuner["first_call_s"]),
                number(tuner["compiled"], 0),
                number(tuner["timed"], 0),
                number(tuner["kernel_us"]),
                number(tuner["ratio_to_best"], 2),
            )


def report(given: argparse.Namespace, chosen: Sequence[TritonKernel]) -> int:
    """Compare the kernels one after the other, print the table, write the JSON."""
    shared = [
        *(["--configs", str(given.configs)] if given.configs else []),
        *(["--rehearse"] if given.rehearse else []),
    ]
    parts = Parts(limit_s=given.limit_s, shared=shared)
    about = surroundings()
    told = f"GPU: {about['gpu']}; torch {about['torch']}, Triton {about['triton']}, {about['cores']} cores, {about['date']}"
    print(told, flush=True)
    cases = [(k, case) for k in chosen for case in (k.corners[-1:] if given.rehearse else k.cases[: given.sizes])]
    found = [compare(kernel, case, given.budgets, given.configs, parts) for kernel, case in cases]
    spent_s = time.perf_counter() - parts.began
    print(table(HEAD, lines(found)))
    print(f"{spent_s:.0f} s in all; 'of best' is the time over that of the best config of the space, timed in turns")
    for note in parts.notes:
        print(f"missing: {note}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(
            json.dumps({**about, "spent_s": spent_s, "missing": parts.notes, "kernels": found}, indent=1)
        )
    return 1 if parts.failed else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {k.name: k for k in triton_kernels()}
    parser.add_argument(
        "--kernels", nargs="+", default=KERNELS, choices=list(known), metavar="NAME", help=f"of {', '.join(known)}"
    )
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, metavar="B", help="ours; as FORECAST_AUTOTUNE_BUDGET")
    parser.add_argument("--sizes", type=int, default=1, metavar="N", help="how many of each kernel's sizes (1)")
    parser.add_argument("--configs", type=int, metavar="N", help="the first N of each space alone")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds to spend ({LIMIT_S:.0f})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument(
        "--rehearse", action="store_true", help="no GPU, small sizes, made-up times: tests the report itself"
    )
    parser.add_argument("--part", choices=["stock", "ours", "times"], help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    chosen = [known[name] for name in given.kernels]
    with rehearsing(chosen) if given.rehearse else contextlib.nullcontext():
        if not has_device():
            print("no GPU is to be had: torch sees no CUDA device here, so there is nothing to report", file=sys.stderr)
            return 2
        if given.part is None:
            return report(given, chosen)
        kernel = chosen[0]
        case = next(c for c in (*kernel.cases, *kernel.corners) if c.name == given.case)
        if given.part == "times":
            answer = time_all(kernel, case, given.configs)
        else:
            answer = tune(kernel, case, given.configs, None if given.part == "stock" else given.budgets[0])
        given.answer.write_text(json.dumps(answer))
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
