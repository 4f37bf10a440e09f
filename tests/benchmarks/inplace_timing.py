"""What timing says of a kernel that works in place, beside the truth: `python tests/benchmarks/inplace_timing.py`.

The kernel updates a tensor of 1 MB, so that each timed launch needs it put back. For every config: what `triton.autotune`
takes it to last (its benchmark, with the copying before and after within), what ours does (budget `all`), and what the
GPU's own clock says of the kernel alone (CUPTI, through torch's profiler), its arguments put back and the L2 overwritten
before each launch. Then how alike the three orders are, and what each tuner's choice truly costs.

Exit codes: 0 reported, 2 no GPU or bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import triton
from kernel_suite import Call, TritonKernel, add_inplace

from calibration.command import number
from calibration.evaluate.side_by_side import (
    cold_times_us,
    device,
    has_device,
    kernel_times_us,
    rehearsing,
    surroundings,
)
from forecast_autotune.cli.output import table_text
from forecast_autotune.evaluation.scores import spearman

WAYS = ("stock", "ours", "truth")
ROUNDS = 40


def told_by(tuner: Any, configs: Sequence[Any], call: Call) -> tuple[list[float], int]:
    """What a tuner timed each config at, in microseconds, and which it chose."""
    call.launch(tuner)
    times_us = [float(tuner.configs_timings[config][0]) * 1e3 for config in configs]
    return times_us, next(i for i, config in enumerate(configs) if config is tuner.best_config)


def truth_us(kernel: TritonKernel, configs: Sequence[Any], call: Call) -> list[float]:
    """The median duration of the kernel alone, by config. A rehearsal has no clock of the GPU: there, between events."""
    launches = [partial(call.launch, kernel.function, **config.all_kwargs()) for config in configs]
    if device() == "cpu":
        samples = cold_times_us(launches, rounds=2)
        return [statistics.median(s) if s else float("nan") for s in samples]
    (out,) = call.outs
    saved = out.clone()
    return [
        statistics.median(taken)
        for taken in kernel_times_us(kernel.name, launches, lambda: out.copy_(saved), rounds=ROUNDS)
    ]


def summary(
    knobs: Sequence[dict[str, Any]], times_us: dict[str, Sequence[float]], chosen: dict[str, int]
) -> dict[str, Any]:
    """The report as its JSON has it: all times, how alike the orders are, and what each choice truly costs."""
    truth = times_us["truth"]
    best = min(range(len(truth)), key=truth.__getitem__)
    winners = {**chosen, "truth": best}
    return {
        "configs": [{"config": c, **{f"{way}_us": times_us[way][i] for way in WAYS}} for i, c in enumerate(knobs)],
        "rank_correlation": {way: spearman(times_us[way], truth) for way in ("stock", "ours")},
        "winners": {
            way: {"config": knobs[i], "truth_us": truth[i], "of_best": truth[i] / truth[best]}
            for way, i in winners.items()
        },
        "winners_differ": chosen["stock"] != chosen["ours"],
    }


def shown(report: dict[str, Any]) -> str:
    """The table, and what follows from it in sentences."""
    rows = [
        (" ".join(f"{k}={v}" for k, v in one["config"].items()), *(number(one[f"{way}_us"], 2) for way in WAYS))
        for one in report["configs"]
    ]
    words = [table_text(("config", "stock us", "ours us", "truth us"), rows)]
    for way, who in (("stock", "stock's"), ("ours", "our")):
        winner, alike = report["winners"][way], report["rank_correlation"][way]
        config = " ".join(f"{k}={v}" for k, v in winner["config"].items())
        words.append(
            f"{who} choice is {config}: truly {winner['truth_us']:.2f} us, {winner['of_best']:.3f} of the best; "
            f"rank correlation with the truth {number(alike, 2)}"
        )
    words.append("the two choose differently" if report["winners_differ"] else "the two choose the same config")
    return "\n".join(words)


def measure(kernel: TritonKernel) -> dict[str, Any]:
    """Tune both ways, from nothing, and time every config by the GPU's own clock."""
    case, configs = kernel.cases[0], kernel.configs()
    make = partial(kernel.make_call, case, 0, device())
    stock = triton.autotune(configs, key=list(kernel.key), restore_value=list(kernel.restore_value))(kernel.function)
    ours = kernel.tuned(configs=configs, budget="all")
    (stock_us, stock_chose), (ours_us, ours_chose) = (told_by(tuner, configs, make()) for tuner in (stock, ours))
    times_us: dict[str, Sequence[float]] = {
        "stock": stock_us,
        "ours": ours_us,
        "truth": truth_us(kernel, configs, make()),
    }
    report = summary([dict(c.knobs) for c in kernel.space], times_us, {"stock": stock_chose, "ours": ours_chose})
    size = make().outs[0]
    return {"kernel": kernel.name, "bytes": size.numel() * size.element_size(), **report}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--rehearse", action="store_true", help="no GPU, made-up times: tests the report itself")
    given = parser.parse_args(words)
    kernel = add_inplace.KERNEL
    with rehearsing([kernel]) if given.rehearse else contextlib.nullcontext():
        if not has_device():
            print("no GPU is to be had: torch sees no CUDA device here, so there is nothing to report", file=sys.stderr)
            return 2
        about = surroundings()
        with tempfile.TemporaryDirectory(prefix="inplace_timing_", ignore_cleanup_errors=True) as folder:
            for name in [n for n in os.environ if n.startswith("FORECAST_AUTOTUNE_")]:
                del os.environ[name]
            os.environ.update(TRITON_CACHE_DIR=f"{folder}/triton", FORECAST_AUTOTUNE_DIR=f"{folder}/store")
            os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns until somebody says which
            report = measure(kernel)
    print(f"GPU: {about['gpu']}; torch {about['torch']}, Triton {about['triton']}, {about['date']}")
    print(f"{report['kernel']}, {report['bytes'] / 2**20:.0f} MB updated in place, {len(report['configs'])} configs")
    print(shown(report))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**about, **report}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
