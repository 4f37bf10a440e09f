"""How long tuning a matrix product takes, Triton's own tuner beside ours: `python tests/benchmarks/tuning_speed.py`.

A typical list of configs and a grid of some 400 more, for one product of two float16 matrices of 4096 x 4096. On a GPU both
tune for real. Without one both tune on the rehearsal driver in real time: compiling is real, a launch lasts as long as
it was recorded to on an H200 (`kernel_suite.matmul.RECORDING`, made by `--record`). Each contender has a process and
empty caches of its own. What is counted: the seconds from the first call to its return, configs compiled, configs
timed, and how the config chosen compares with the best of the recording.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from kernel_suite.matmul import KEY, KNOBS, RECORDING, SIZE, arguments, matmul, space, triton_configs

from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.evaluation.traces import read_trace, write_trace
from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner
from forecast_autotune.frontends.triton.call import TritonCall
from forecast_autotune.frontends.triton.simulated_driver import rehearsal
from forecast_autotune.remote.fleet_store import open_store
from forecast_autotune.settings import Settings


def ours(config: Any) -> Config:
    return Config({**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages})


def make(contender: str, configs: list[Config], budget: str) -> Any:
    if contender == "stock":
        return triton.autotune(triton_configs(configs), key=KEY)(matmul)
    return ForecastAutotuner(
        matmul, matmul.arg_names, triton_configs(configs), KEY, budget=budget,
        mode="forecast" if contender == "forecast" else "tune",
    )  # fmt: skip


def call(kernel: Any, size: int = SIZE) -> float:
    """Seconds from the call to its return, with the device done."""
    args, grid = arguments(size)
    began = time.perf_counter()
    kernel[grid](*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compete(contender: str, configs: list[Config], budget: str) -> dict[str, Any]:
    """Tune once, in this process; what it took."""
    kernel = make(contender, configs, budget)
    result: dict[str, Any] = {"contender": contender, "configs": len(configs), "wall_s": call(kernel)}
    result["chosen"] = dict(ours(kernel.best_config).knobs)
    if contender == "stock":
        return result | {"compiled": len(configs), "timed": len(kernel.configs_timings)}
    (decision,) = kernel.decisions.values()
    return result | {"compiled": decision.compiled, "timed": decision.tried, "reason": decision.reason}


def forecast_misses(configs: list[Config], misses: int = 20) -> dict[str, Any]:
    """Milliseconds that a miss in mode `forecast` takes to decide: the first of a process, then keys ever new."""
    kernel = make("forecast", configs, "0")
    decided_ms = []
    for i in range(misses + 1):
        call(kernel, 128 + 16 * i)
        decided_ms.append(kernel.bench_time * 1e3)
    return {
        "contender": "forecast",
        "configs": len(configs),
        "first_ms": decided_ms[0],
        "warm_ms": statistics.median(decided_ms[1:]),
        "slowest_warm_ms": max(decided_ms[1:]),
    }


def play(contender: str, configs: list[Config], budget: str) -> dict[str, Any]:
    """One contender, on the GPU that is present or on the rehearsal driver."""
    if contender == "forecast":
        with rehearsal("H200", 1.0):
            return forecast_misses(configs[:100])
    if torch.cuda.is_available():
        return compete(contender, configs, budget)
    with rehearsal("H200", {"matmul": read_trace(RECORDING)}, realtime=True):
        return compete(contender, configs, budget)


def record(path: Path) -> None:
    """Time every config on the GPU that is present, through our own front door, and write what it took."""
    if not torch.cuda.is_available():
        raise SystemExit("recording needs a GPU: without one there are no times")
    kernel = make("ours", space(), "all")
    call(kernel)
    args, grid = arguments(SIZE)
    job = TritonCall(kernel, kernel.configs, args, {"grid": grid, "warmup": False}).job
    measured = open_store(Settings.from_environment()).outcomes(job)
    outcomes = {Config({n: c[n] for n in KNOBS}): measured[c] for c in job.space if c in measured}
    recording = Recording(
        workload=job.workload,
        hardware=job.hardware,
        toolchain=job.toolchain,
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )
    write_trace(recording, path)
    ran = sum(isinstance(outcome, Measurement) for outcome in outcomes.values())
    print(f"{path}: {ran} of {len(outcomes)} configs ran on {job.hardware}")


def in_a_process_of_its_own(contender: str, given: argparse.Namespace, sample: int | None = None) -> dict[str, Any]:
    """Run a contender with empty caches and an empty store; what it printed last."""
    command = [sys.executable, __file__, "--contender", contender, "--budget", given.budget]
    if sample is not None:
        command += ["--stock-sample", str(sample)]
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"TRITON_CACHE_DIR": f"{folder}/triton", "FORECAST_AUTOTUNE_DIR": f"{folder}/store"}
        settled = {"TRITON_DEFAULT_FP_FUSION": "1"}  # 3.9 warns until somebody says which
        done = subprocess.run(
            command, env={**settled, **os.environ, **fresh}, stdout=subprocess.PIPE, text=True, check=True
        )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def report(stock: dict[str, Any], tuned: dict[str, Any], total: int) -> None:
    """Print both, and by how much ours was quicker; a sample of stock's is scaled up, and that is said."""
    scale = total / stock["configs"]
    best_us, times = _recorded()
    for name, result, share in (("stock", stock, scale), ("ours", tuned, 1.0)):
        counts = f"{result['compiled'] * share:.0f} compiled, {result['timed'] * share:.0f} timed"
        note = "" if share == 1 else f" (scaled up from {result['configs']} drawn at random, {result['wall_s']:.1f} s)"
        us = times.get(Config(result["chosen"])) if share == 1 else None
        against_best = f"; its choice takes {us / best_us:.2f} of the best recorded" if us else ""
        print(f"{name:>6}: {counts}, {result['wall_s'] * share:.1f} s{note}{against_best}")
    stock_s = stock["wall_s"] * scale
    print(f" ratio: {stock_s / tuned['wall_s']:.1f} times quicker, of {total} configs")


def _recorded() -> tuple[float, dict[Config, float]]:
    if not RECORDING.exists():
        return 1.0, {}
    recording = read_trace(RECORDING)
    times = {c: o.median_us for c, o in recording.outcomes.items() if isinstance(o, Measurement)}
    return min(times.values()), times


def main() -> None:
    """Run the contenders one after the other, each in a process of its own, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="16", help="ours; as FORECAST_AUTOTUNE_BUDGET")
    parser.add_argument(
        "--stock-sample", type=int, metavar="N", help="stock tunes N configs drawn at random; scaled up"
    )
    parser.add_argument("--skip-stock", action="store_true", help="ours alone")
    parser.add_argument("--record", type=Path, metavar="FILE", help="time every config on this GPU and write a trace")
    parser.add_argument("--contender", choices=["stock", "ours", "forecast"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record:
        return record(given.record)
    configs = space()
    if given.contender:
        if given.contender == "stock" and given.stock_sample:
            configs = random.Random(0).sample(configs, given.stock_sample)
        print(json.dumps(play(given.contender, configs, given.budget)))
        return None
    where = "on this GPU" if torch.cuda.is_available() else "on the rehearsal driver, in real time"
    print(f"Triton {triton.__version__}, {len(configs)} configs, {where}, {os.cpu_count()} cores", flush=True)
    tuned = in_a_process_of_its_own("ours", given)
    print(json.dumps(tuned), flush=True)
    if not given.skip_stock:
        report(in_a_process_of_its_own("stock", given, given.stock_sample), tuned, len(configs))
    took = in_a_process_of_its_own("forecast", given)
    print(
        f"mode forecast, {took['configs']} configs: the first miss of a process is decided in {took['first_ms']:.0f} ms, "
        f"each later one in {took['warm_ms']:.1f} ms (slowest {took['slowest_warm_ms']:.1f})"
    )
    return None


if __name__ == "__main__":
    main()
