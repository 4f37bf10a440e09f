"""Tune two kernels and say what happened: `python -m kernel_suite.demo`."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.settings import Settings
from forecast_autotune.store.queries import StoreFile

COSINE = "kernel_suite_cosine"
COSINE_BUDGET = "5"
LANES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
MATMUL = "kernel_suite.matmul.matmul"
MATMUL_BUDGET = "16"
SHUFFLED_BY = 4  # of the first ten seeds, the one whose first config is nearest to the median: 2.5x the best's time
WIDTH = 80

BINDING = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

double cosine_kernel(int64_t n, const float* x, const float* y);

double cosine(const at::Tensor& x, const at::Tensor& y) {
    TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && x.numel() == y.numel(), "cosine takes two rows of one length");
    return cosine_kernel(x.numel(), x.const_data_ptr<float>(), y.const_data_ptr<float>());
}
"""

KERNEL = """
#include <cmath>
#include <cstdint>

// A sum waits for the addition before it. LANES sums side by side wait for nobody, as long as registers hold them.
double cosine_kernel(int64_t n, const float* x, const float* y) {
    float xy[LANES] = {}, xx[LANES] = {}, yy[LANES] = {};
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; ++lane) {
            const float a = x[i + lane], b = y[i + lane];
            xy[lane] += a * b, xx[lane] += a * a, yy[lane] += b * b;
        }
    double dot = 0, left = 0, right = 0;
    for (int64_t i = n - n % LANES; i < n; ++i) dot += x[i] * y[i], left += x[i] * x[i], right += y[i] * y[i];
    for (int lane = 0; lane < LANES; ++lane) dot += xy[lane], left += xx[lane], right += yy[lane];
    return dot / std::sqrt(left * right);
}
"""


def main() -> None:
    """Tune a C++ kernel on this CPU, then a Triton kernel; a second run decides both from the store."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    began = time.perf_counter()
    settings = Settings.from_environment()
    recalled = tune_cosine(settings), tune_matmul(settings)
    took = f"{time.perf_counter() - began:.0f} s"
    if all(recalled):
        print(f"\nAll this took {took}: both were decided from the store, {settings.dir}")
    else:
        print(f"\nAll this took {took}, and is kept in {settings.dir}\nRun it again: nothing is compiled or timed.")
    command = "forecast-autotune" if shutil.which("forecast-autotune") else _beside_python("forecast-autotune")
    print("What to look at next:\n")
    print(f"   {command} list\n   {command} show {COSINE}.cosine\n   {command} show {MATMUL}")
    print("   kernels/examples/README.md: programs to copy")


def _beside_python(command: str) -> str:
    """A command of this environment, as it is typed from this folder."""
    path = Path(sys.executable).with_name(command)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def tune_cosine(settings: Settings) -> bool:
    """Tune the C++ kernel, and check its result; whether it was decided from the store."""
    import torch

    import forecast_autotune as fa

    say(
        "1. Cosine similarity of two rows of 65,536 numbers, in C++, on this CPU",
        f"The source leaves open how many sums run side by side: {len(LANES)} variants, budget "
        f"{settings.budget or COSINE_BUDGET}.",
    )
    if not (settings.dir / "builds" / COSINE).exists():
        say(
            "",
            "The first build compiles torch's headers, once: ten seconds on an idle machine. Later ones take one.",
        )
    module = fa.load_inline(
        COSINE,
        BINDING,
        kernel_sources=KERNEL,
        functions=["cosine"],
        signature="x, y",
        no_implicit_headers=True,  # the binding names those it needs: a third of the time
        extra_cflags=["-O3", "-march=native"],
        space=fa.Space.grid({"LANES": LANES}, roles={"LANES": "unroll"}),
        budget=COSINE_BUDGET,
    )
    x, y = torch.rand(2, 1 << 16, generator=torch.Generator().manual_seed(0))
    with first_call() as call:
        similarity = module.cosine(x, y)
    torch.testing.assert_close(similarity, float(torch.cosine_similarity(x, y, dim=0)), rtol=1e-3, atol=0)
    decision = list(module.cosine.decisions.values())[-1]
    return report(call, decision, settings, f"{COSINE}.cosine", Config({"LANES": LANES[0]}))


def tune_matmul(settings: Settings) -> bool:
    """Tune the Triton kernel: on the GPU here, or without one on the rehearsal driver, which is said; whether it was decided
    from the store.
    """
    import torch

    from forecast_autotune import autotune, rehearsal
    from forecast_autotune.evaluation.traces import read_trace

    from . import matmul

    configs = matmul.space()
    random.Random(SHUFFLED_BY).shuffle(configs)
    say(
        f"2. A matrix product in Triton, float16, {matmul.SIZE} cubed",
        f"{len(configs)} configs in no order, budget {settings.budget or MATMUL_BUDGET}. The first one is the default.",
    )
    kernel = autotune(matmul.triton_configs(configs), key=matmul.KEY, budget=MATMUL_BUDGET)(matmul.matmul)
    args, grid = matmul.arguments()
    device: Any = contextlib.nullcontext()
    best_us = None
    if not torch.cuda.is_available():
        say(
            "",
            "There is no GPU here, so this is a rehearsal: configs are compiled for an H200, and refused as there. A launch "
            "computes nothing and takes as long as it was measured to take on an H200.",
        )
        recording = read_trace(matmul.RECORDING)
        device = rehearsal("H200", {"matmul": recording})
        best_us = min(o.median_us for o in recording.outcomes.values() if isinstance(o, Measurement))
    with device, first_call() as call:
        kernel[grid](*args)
    return report(call, list(kernel.decisions.values())[-1], settings, MATMUL, configs[0], best_us=best_us)


@dataclass(slots=True)
class FirstCall:
    """The call that decides: when it began, in seconds since the epoch, and how long it took."""

    began_at: float
    took_s: float = 0.0


@contextlib.contextmanager
def first_call() -> Iterator[FirstCall]:
    """Time what is done within."""
    call, began = FirstCall(time.time()), time.perf_counter()
    yield call
    call.took_s = time.perf_counter() - began


def report(
    call: FirstCall, decision: Decision, settings: Settings, name: str, default: Config, *, best_us: float | None = None
) -> bool:
    """Print what a first call was decided by, and return whether it was recalled from the store.

    `best_us` is the time of the best config there is, where that is known.
    """
    recalled = decision.decided_at < call.began_at
    longest_build_s, timing_s = costs(settings, name, decision)
    print()
    say_fact("forecast", f"{decision.forecast} of {decision.space_size} configs, before any was compiled")
    say_fact("tried", f"{decision.tried} of them; {decision.failed} failed")
    say_fact("default", f"{as_time(decision.default_us)}  {default}")
    say_fact("chosen", f"{as_time(decision.config_us)}  {decision.config}")
    if best_us is not None and decision.config_us is not None:
        share = best_us / decision.config_us
        say_fact("of the best", f"{share:.0%}: of all configs, timed once, the best takes {as_time(best_us)}")
    say_fact("why", decision.reason)
    spent = f"{decision.spent_s:.1f} s: {timing_s:.1f} s of timing; the longest build {longest_build_s:.1f} s"
    say_fact("tuning", f"{spent}{', in an earlier run' if recalled else ''}")
    say_fact("this call", f"{call.took_s:.1f} s: {'decided from the store' if recalled else 'decided now'}")
    return recalled


def costs(settings: Settings, name: str, decision: Decision) -> tuple[float, float]:
    """Seconds that the longest build of a decision's run took, and that timing took in all."""
    store = StoreFile(settings.dir)
    stored = [found for found in store.find(name) if found.decision.run == decision.run]
    timed = [t.outcome for found in stored for t in store.detail(found).touched if isinstance(t.outcome, Measurement)]
    return max((outcome.compile_s for outcome in timed), default=0.0), sum(outcome.run_s for outcome in timed)


def as_time(us: float | None) -> str:
    """A kernel's time."""
    return "not timed" if us is None else f"{us:.1f} us"


def say(title: str, text: str) -> None:
    """Print a paragraph, under a title where there is one, before whatever takes its time."""
    if title:
        print(f"\n{title}\n")
    print(textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   "), flush=True)


def say_fact(name: str, text: str) -> None:
    """Print a line of a report, and what does not fit below it."""
    print(textwrap.fill(text, WIDTH, initial_indent=f"   {name:<12} ", subsequent_indent=" " * 16), flush=True)


if __name__ == "__main__":
    main()
