"""Operations compiled in one way, in one process: how long each compile takes, and how long what it makes takes.

`python -m calibration.torch_compile.compiles` is started by the verb, with caches that are empty; each line of stdout is the
answer for one operation, as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm

import forecast_autotune as fa
from forecast_autotune.measure.clocks import EventClock, Launch

from .operations import operation_of

STOCK = ("default", "max-autotune", "exhaustive")
OURS = "ours"
ROUNDS, MOST_SAMPLES, ROUND_US = 3, 30, 1e4  # of samples, eager code and compiled code in turns

candidates: list[str] = []
"""What Inductor has timed in this process, by name."""


def clock() -> EventClock:
    """Times on cold caches, with launches handed over while the device is busy."""
    properties = torch.cuda.get_device_properties(0)
    cache = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device="cuda")
    return EventClock(torch.cuda, flush=cache.zero_, spin=lambda seconds: torch.cuda._sleep(int(seconds * 1.7e9)))


def times_us(calls: list[Callable[[], Any]], on: EventClock) -> list[float]:
    """The median time of each, the calls in turns."""
    launches = [Launch(call=call) for call in calls]
    firsts = [on.time_batch(launch, 2)[-1] for launch in launches]
    counts = [max(3, min(MOST_SAMPLES, int(ROUND_US / first))) for first in firsts]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for place, (launch, count) in enumerate(zip(launches, counts, strict=True)):
            samples[place] += on.time_batch(launch, count)
    return [statistics.median(each) for each in samples]


def compiled(name: str, way: str, on: EventClock) -> dict[str, Any]:
    """One operation: seconds of its first run, microseconds of a later one and of eager code, and how far results differ."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    operation = operation_of(name)()
    expected = operation.run(operation.function)
    torch.cuda.synchronize()
    mode = None if way == "default" else "max-autotune-no-cudagraphs"
    before = len(candidates)
    began = time.perf_counter()
    function = torch.compile(operation.function, mode=mode)
    results = operation.run(function)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    us, eager_us = times_us([lambda: operation.run(function), lambda: operation.run(operation.function)], on)
    return {
        "operation": name,
        "compile_s": seconds,
        "us": us,
        "eager_us": eager_us,
        "timed": len(candidates) - before,
        "far": max(map(_far, _tensors(results), _tensors(expected))),
    }


def _tensors(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _far(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest expected element."""
    return float((result.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-6))


def main(words: list[str] | None = None) -> int:
    """Compile each operation in one way; the environment says with what budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=(*STOCK, OURS))
    parser.add_argument("operations", nargs="+")
    given = parser.parse_args(words)
    if given.way == OURS:
        fa.install(inductor=True)
    if given.way == "exhaustive":
        inductor_config.max_autotune_gemm_search_space = "EXHAUSTIVE"
    select_algorithm.add_feedback_saver(lambda timings, *_: candidates.extend(each.name for each in timings))
    on = clock()
    torch.compile(lambda x: x + 1)(torch.ones(8, device="cuda"))  # what only a process's first compile takes
    for name in given.operations:
        try:
            found = compiled(name, given.way, on)
        except Exception as err:
            found = {"operation": name, "problem": f"{type(err).__name__}: {err}"[:300]}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
