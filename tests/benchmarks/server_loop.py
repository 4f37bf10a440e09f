"""How long a server's requests take while it meets new batch sizes: `python tests/benchmarks/server_loop.py [--gpu]`.

Each request is a batch of random size; each size is a key. Every mode serves the same requests, in a process with empty
caches: `first` runs one fixed config, `online` launches at once, `tune` measures each key at its first call, and with --gpu
`stock` is Triton's own tuner.

With --gpu a request is one call of the suite's matmul in Triton (12 configs, 4096 x 4096 weights) and ends when the device
is done. Without, it is one call of a C++ function, whose variants are all built before, so that requests wait for tuning
alone. Candidates are timed in the server's own process, for in mode `online` they run in its calls.

Prints a table, or with --json one object: for each mode its requests, their 50th and 99th percentile and the longest in
microseconds, the 50th of those that came in the last third of the time, the keys that were met and measured, and the
percentiles' ratios to those of `first`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import forecast_autotune as fa
from forecast_autotune.core.outcome import Failure

MODES = ("first", "online", "tune")
MODES_ON_A_GPU = (*MODES, "stock")
KEYS = 40
SECONDS = 90.0  # of each mode
MAX_ROWS = 2048
WIDTH = 256  # of a row of the C++ function: a batch of 2,048 rows is 2 MiB
SIDE = 4096  # of the matmul's weights
COMPARED = ("p50", "p99", "late_p50")

BINDING = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
void normalize(float* out, const float* x, int64_t rows, int64_t width);
void normalized(at::Tensor out, at::Tensor x) {
  normalize(out.data_ptr<float>(), x.data_ptr<float>(), x.size(0), x.size(1));
}
"""
KERNEL = """
#include <cmath>
#include <cstdint>
void normalize(float* out, const float* x, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    float sums[LANES] = {};
    for (int64_t i = 0; i < width; i += LANES)
      for (int64_t lane = 0; lane < LANES; ++lane) sums[lane] += x[row * width + i + lane] * x[row * width + i + lane];
    float sum = 0;
    for (float each : sums) sum += each;
    const float scale = 1 / std::sqrt(sum / width + 1e-6f);
    for (int64_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * scale;
  }
}
"""


def server(builds: str) -> Any:
    """The function that requests call."""
    return fa.load_inline(
        "server_loop",
        BINDING,
        functions=["normalized"],
        kernel_sources=KERNEL,
        extra_cflags=["-O3", "-ffast-math"],
        no_implicit_headers=True,
        build_directory=builds,
        space=[{"LANES": lanes} for lanes in (1, 4, 16)],
        signature="out, x",
        key="x",
    ).normalized


def products(sizes: Sequence[int], mode: str) -> tuple[Callable[[int], None], Callable[[], int]]:
    """A request of a batch of so many rows, on the GPU; and how many keys were measured."""
    import triton
    from kernel_suite.matmul import KEY, TYPICAL, matmul, space, triton_configs

    configs = triton_configs(space()[: len(TYPICAL)])
    tuner = (triton.autotune if mode == "stock" else fa.autotune)(configs=configs, key=KEY)(matmul)
    weights = torch.randn(SIDE, SIDE, device="cuda").half()
    batches = {rows: torch.randn(rows, SIDE, device="cuda").half() for rows in sizes}
    products = {rows: torch.empty_like(batch) for rows, batch in batches.items()}

    def request(rows: int) -> None:
        tensors = batches[rows], weights, products[rows]
        strides = [stride for tensor in tensors for stride in tensor.stride()]
        tuner[lambda knobs: (triton.cdiv(rows, knobs["BM"]) * triton.cdiv(SIDE, knobs["BN"]),)](
            *tensors, rows, SIDE, SIDE, *strides
        )
        torch.cuda.synchronize()

    def measured() -> int:
        ours = fa.tuner_of(tuner)
        return len(tuner.cache) if ours is None else measured_of(ours)

    return request, measured


def normalizations(sizes: Sequence[int], builds: str) -> tuple[Callable[[int], None], Callable[[], int]]:
    """A request of a batch of so many rows, on the CPU; and how many keys were measured."""
    normalized = server(builds)
    batches = {rows: (torch.empty(rows, WIDTH), torch.randn(rows, WIDTH)) for rows in sizes}

    def request(rows: int) -> None:
        normalized(*batches[rows])

    return request, lambda: measured_of(normalized)


def measured_of(tuned: Any) -> int:
    """Keys whose decision was measured."""
    return sum(decision.basis == "measured" for decision in tuned.decisions.values())


def serve(given: argparse.Namespace) -> dict[str, float]:
    """Serve requests for a while, in this process's mode; how long they took."""
    draws = random.Random(0)
    sizes = draws.sample(range(1, MAX_ROWS), given.keys)
    request, measured = products(sizes, given.serve) if given.gpu else normalizations(sizes, given.builds)
    took_us: list[float] = []
    late_us: list[float] = []
    met = set()
    start = time.perf_counter()
    while (began := time.perf_counter()) < start + given.seconds:
        rows = draws.choice(sizes)
        request(rows)
        took_us.append((time.perf_counter() - began) * 1e6)
        met.add(rows)
        if began > start + given.seconds * 2 / 3:
            late_us.append(took_us[-1])
    return {
        "requests": len(took_us),
        **percentiles(took_us),
        "longest_us": max(took_us),
        "late_p50_us": percentiles(late_us or took_us)["p50_us"],
        "keys": len(met),
        "measured": measured(),
    }


def percentiles(took_us: Sequence[float]) -> dict[str, float]:
    """The 50th and the 99th percentile: of so many requests so many took no longer."""
    ordered = sorted(took_us)
    return {f"p{share}_us": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 99)}


def compare(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Each mode's row, with its percentiles' ratios to those of the fixed config in the same run."""
    fixed = rows["first"]
    return {
        mode: {**row, **{f"{name}_ratio": row[f"{name}_us"] / fixed[f"{name}_us"] for name in COMPARED}}
        for mode, row in rows.items()
    }


def served_by(mode: str, given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """What `serve` says in a process of a mode's own, with an empty store.

    Raises:
        CalledProcessError: it failed.
    """
    words = ["--keys", str(given.keys), "--seconds", str(given.seconds), "--builds", given.builds, "--serve", mode]
    changes = {"FORECAST_AUTOTUNE_DIR": str(folder / mode), "TRITON_CACHE_DIR": str(folder / mode / "triton")}
    if mode in MODES:
        changes |= {"FORECAST_AUTOTUNE_MODE": mode, "FORECAST_AUTOTUNE_ISOLATE": "0"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("FORECAST_AUTOTUNE_")}
    done = subprocess.run(
        [sys.executable, __file__, *words, *["--gpu"] * given.gpu],
        env={**others, **changes},
        stdout=subprocess.PIPE,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def build_all(builds: str) -> None:
    """Build every variant of the C++ function.

    Raises:
        SystemExit: one does not build.
    """
    normalized = server(builds)
    for config, built in normalized.compiler("cpu").compile(normalized.space):
        if isinstance(built, Failure):
            raise SystemExit(f"{config} does not build: {built.message}")


def main(words: Sequence[str] | None = None) -> int:
    """Serve in every mode, and print how long requests took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=KEYS, help=f"batch sizes (default: {KEYS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each mode (default: {SECONDS:g})")
    parser.add_argument(
        "--builds", default="", help="the folder of builds; one that is removed afterwards if not given"
    )
    parser.add_argument("--gpu", action="store_true", help="a Triton kernel on the GPU instead of a C++ function")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--serve", choices=MODES_ON_A_GPU, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.serve:
        print(json.dumps(serve(given)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        given.builds = given.builds or str(Path(folder) / "builds")
        if not given.gpu:
            build_all(given.builds)
        modes = MODES_ON_A_GPU if given.gpu else MODES
        rows = compare({mode: served_by(mode, given, Path(folder)) for mode in modes})
    if given.json:
        print(json.dumps(rows))
        return 0
    names = list(rows["first"])
    print("mode", *names, sep="\t")
    for mode, row in rows.items():
        print(mode, *(f"{row[name]:.4g}" for name in names), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
