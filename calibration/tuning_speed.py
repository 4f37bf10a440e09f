# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals, and annotate nothing else
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""How long tuning a matrix product takes, Triton's own tuner beside ours: `python -m calibration.tuning_speed`.

A typical list of configs and a grid of some 400 more, for one product of two float16 matrices of 4096 x 4096. On a GPU both
tune for real. Without one both tune on the rehearsal driver in real time: compiling is real, a launch lasts as long as
it was recorded to on an H200 (`calibration/traces`, made by `--record`). Each contender has a process and empty caches
of its own. What is counted: the seconds from the first call to its return, configs compiled, configs timed, and how the
config chosen compares with the best of the recording.
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
import triton.language as tl

from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.frontends.engine import make_store
from forecast_autotune.frontends.triton_autotune import ForecastAutotuner
from forecast_autotune.frontends.triton_call import TritonCall
from forecast_autotune.rehearsal_driver import rehearsal
from forecast_autotune.settings import Settings
from forecast_autotune.store.trace import read_trace, write_trace

TRACE = Path(__file__).parent / "traces" / "matmul_4096_H200.jsonl.gz"
SIZE = 4096
KNOBS = ("BM", "BN", "BK", "GROUP", "num_warps", "num_stages")
TYPICAL = [
    (128, 256, 64, 8, 8, 3),
    (128, 128, 64, 8, 4, 4),
    (128, 128, 64, 8, 8, 3),
    (64, 256, 32, 8, 4, 4),
    (128, 128, 32, 8, 4, 4),
    (128, 64, 32, 8, 4, 4),
    (64, 128, 32, 8, 4, 4),
    (256, 64, 64, 8, 4, 3),
    (64, 256, 64, 8, 4, 3),
    (128, 32, 32, 8, 4, 4),
    (64, 32, 32, 8, 2, 5),
    (32, 64, 32, 8, 2, 5),
]


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C = A B. Programs that run together take neighbouring rows of blocks, so that what they read of B is shared."""
    place = tl.program_id(0)
    across, down = tl.cdiv(N, BN), tl.cdiv(M, BM)
    first = place // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    row = first + place % (GROUP * across) % height
    column = place % (GROUP * across) // height
    rows = (row * BM + tl.arange(0, BM)) % M
    columns = (column * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * a_row + inner[None, :] * a_column
    b = b_ptr + inner[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = inner < K - k * BK
        total = tl.dot(tl.load(a, mask=left[None, :], other=0.0), tl.load(b, mask=left[:, None], other=0.0), total)
        a += BK * a_column
        b += BK * b_row
    out_rows, out_columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    c = c_ptr + out_rows[:, None] * c_row + out_columns[None, :] * c_column
    tl.store(c, total.to(tl.float16), mask=(out_rows[:, None] < M) & (out_columns[None, :] < N))


def space() -> list[Config]:
    """The typical list first, as a kernel's author would write it, and then the grid."""
    grid = Space.grid(
        {
            "BM": [32, 64, 128, 256],
            "BN": [32, 64, 128, 256],
            "BK": [32, 64],
            "GROUP": [1, 8],
            "num_warps": [4, 8],
            "num_stages": [2, 3, 4, 5],
        },
        constraints=[
            lambda BM, BN: BM * BN <= 128 * 256,
            lambda BM, BN, num_warps: num_warps == 4 or BM * BN >= 64 * 64,
        ],
    )
    return list(dict.fromkeys([*(Config(dict(zip(KNOBS, c, strict=True))) for c in TYPICAL), *grid]))


def triton_configs(configs: list[Config]) -> list[Any]:
    return [
        triton.Config({n: c[n] for n in KNOBS[:4]}, num_warps=c["num_warps"], num_stages=c["num_stages"])
        for c in configs
    ]


def ours(config: Any) -> Config:
    return Config({**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages})


def make(contender: str, configs: list[Config], budget: str) -> Any:
    if contender == "stock":
        return triton.autotune(triton_configs(configs), key=["M", "N", "K"])(matmul)
    return ForecastAutotuner(
        matmul, matmul.arg_names, triton_configs(configs), ["M", "N", "K"], budget=budget,
        mode="forecast" if contender == "forecast" else "tune",
    )  # fmt: skip


def arguments(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.randn(size, size, device=device).to(torch.float16) for _ in range(3))
    strides = [s for t in (a, b, c) for s in t.stride()]
    grid = lambda meta: (triton.cdiv(size, meta["BM"]) * triton.cdiv(size, meta["BN"]),)  # noqa: E731
    return (a, b, c, size, size, size, *strides), {"grid": grid, "warmup": False}


def call(kernel: Any, size: int = SIZE) -> float:
    """Seconds from the call to its return, with the device done."""
    args, keywords = arguments(size)
    began = time.perf_counter()
    kernel.run(*args, **keywords)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compete(contender: str, configs: list[Config], budget: str) -> dict[str, Any]:
    """Tune once, in this process; what it took."""
    kernel = make(contender, configs, budget)
    told: dict[str, Any] = {"contender": contender, "configs": len(configs), "wall_s": call(kernel)}
    told["chosen"] = dict(ours(kernel.best_config).knobs)
    if contender == "stock":
        return told | {"compiled": len(configs), "timed": len(kernel.configs_timings)}
    (decision,) = kernel.decisions.values()
    return told | {"compiled": decision.compiled, "timed": decision.measured, "reason": decision.reason}


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
    with rehearsal("H200", {"matmul": read_trace(TRACE)}, realtime=True):
        return compete(contender, configs, budget)


def record(path: Path) -> None:
    """Time every config on the GPU that is present, through our own front door, and write what it took."""
    if not torch.cuda.is_available():
        raise SystemExit("recording needs a GPU: without one there are no times")
    kernel = make("ours", space(), "all")
    call(kernel)
    args, keywords = arguments(SIZE)
    job = TritonCall(kernel, kernel.configs, args, keywords).job
    found = make_store(Settings.from_environment()).outcomes(job)
    outcomes = {Config({n: c[n] for n in KNOBS}): found[c] for c in job.space if c in found}
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
    command = [sys.executable, "-m", "calibration.tuning_speed", "--contender", contender, "--budget", given.budget]
    if sample is not None:
        command += ["--stock-sample", str(sample)]
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"TRITON_CACHE_DIR": f"{folder}/triton", "FORECAST_AUTOTUNE_DIR": f"{folder}/store"}
        settled = {"TRITON_DEFAULT_FP_FUSION": "1"}  # 3.9 warns until somebody says which
        done = subprocess.run(
            command, env={**settled, **os.environ, **fresh}, stdout=subprocess.PIPE, text=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def report(stock: dict[str, Any], tuned: dict[str, Any], total: int) -> None:
    """Print both, and by how much ours was quicker; a sample of stock's is scaled up, and that is said."""
    scale = total / stock["configs"]
    best_us, times = _recorded()
    for name, told, share in (("stock", stock, scale), ("ours", tuned, 1.0)):
        counts = f"{told['compiled'] * share:.0f} compiled, {told['timed'] * share:.0f} timed"
        note = "" if share == 1 else f" (scaled up from {told['configs']} drawn at random, {told['wall_s']:.1f} s)"
        us = times.get(Config(told["chosen"])) if share == 1 else None
        found = f"; its choice takes {us / best_us:.2f} of the best recorded" if us else ""
        print(f"{name:>6}: {counts}, {told['wall_s'] * share:.1f} s{note}{found}")
    stock_s = stock["wall_s"] * scale
    print(f" ratio: {stock_s / tuned['wall_s']:.1f} times quicker, of {total} configs")


def _recorded() -> tuple[float, dict[Config, float]]:
    if not TRACE.exists():
        return 1.0, {}
    recording = read_trace(TRACE)
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
    told = in_a_process_of_its_own("forecast", given)
    print(
        f"mode forecast, {told['configs']} configs: the first miss of a process is decided in {told['first_ms']:.0f} ms, "
        f"each later one in {told['warm_ms']:.1f} ms (slowest {told['slowest_warm_ms']:.1f})"
    )
    return None


if __name__ == "__main__":
    main()
