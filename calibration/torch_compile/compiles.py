"""Operations compiled in one way, in one process: how long each compile takes, and how long what it makes takes.

`python -m calibration.torch_compile.compiles WAY` is started by the verb. It reads an operation's name from each line of
stdin, and answers with a line of JSON. Caches and store are empty for each operation. Its first line says that it is ready:
what only a process's first compile takes is over then, and Inductor's compile workers have started.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache

import forecast_autotune as fa
from forecast_autotune.measure.clocks import EventClock, Launch

from .operations import operation_of
from .ways import DEFAULT, EVERYTHING, EXHAUSTIVE, MAX_AUTOTUNE, budget_of

ROUNDS, MAX_SAMPLES, ROUND_US = 3, 30, 1e4  # of samples, eager code and compiled code in turns
MIN_PHASE_S = 0.05  # what takes less is not told

candidates: list[str] = []
"""What Inductor has timed in this process, by name."""

own_s: list[float] = []
"""Seconds that each call of our narrowing took in this process."""


def clock() -> EventClock:
    """Times on cold caches, with launches handed over while the device is busy."""
    properties = torch.cuda.get_device_properties(0)
    cache = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device="cuda")
    return EventClock(torch.cuda, flush=cache.zero_, spin=lambda seconds: torch.cuda._sleep(int(seconds * 1.7e9)))


def times_us(calls: list[Callable[[], Any]], on: EventClock) -> list[float]:
    """The median time of each, the calls in turns."""
    launches = [Launch(call=call) for call in calls]
    firsts = [on.time_batch(launch, 2)[-1] for launch in launches]
    counts = [max(3, min(MAX_SAMPLES, int(ROUND_US / first))) for first in firsts]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for place, (launch, count) in enumerate(zip(launches, counts, strict=True)):
            samples[place] += on.time_batch(launch, count)
    return [statistics.median(each) for each in samples]


def given_to_compile(way: str) -> dict[str, Any]:
    """What torch.compile is given in a way."""
    if way == DEFAULT:
        return {}
    if way in (MAX_AUTOTUNE, EXHAUSTIVE) or way.endswith(EVERYTHING):
        return {"mode": "max-autotune-no-cudagraphs"}
    return {"options": {"max_autotune_gemm": True}}


def compiled(name: str, way: str, on: EventClock) -> dict[str, Any]:
    """One operation: seconds of its first run, microseconds of a later one and of eager code, and how far results differ.

    `phases` are seconds by Inductor's own names, one within another; `own_s` those of our narrowing among them.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    operation = operation_of(name)()
    expected = operation.run(operation.function)
    torch.cuda.synchronize()
    compilation_time_metrics.clear()
    before, own_before = len(candidates), len(own_s)
    workers_ready = AsyncCompile.use_process_pool()
    began = time.perf_counter()
    function = torch.compile(operation.function, **given_to_compile(way))
    results = operation.run(function)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    phases = {phase: sum(each) for phase, each in compilation_time_metrics.items() if sum(each) > MIN_PHASE_S}
    us, eager_us = times_us([lambda: operation.run(function), lambda: operation.run(operation.function)], on)
    return {
        "operation": name,
        "compile_s": seconds,
        "us": us,
        "eager_us": eager_us,
        "timed": len(candidates) - before,
        "far": max(map(_far, _tensors(results), _tensors(expected))),
        "own_s": sum(own_s[own_before:]),
        "phases": phases,
        "workers_ready": workers_ready,
    }


def _tensors(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _far(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest expected element."""
    return float((result.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-6))


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            own_s.append(time.perf_counter() - began)

    return counted


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Nothing compiled, timed or decided before is known meanwhile."""
    with fresh_cache(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as store:
        os.environ["FORECAST_AUTOTUNE_DIR"] = store
        yield


def first_compile(way: str) -> None:
    """What only a process's first compile takes, and its workers' start."""
    with cold():
        a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
        torch.compile(lambda a, b: torch.relu(a @ b), **given_to_compile(way))(a, a)
        AsyncCompile.wait_pool_ready()


def main(words: list[str] | None = None) -> int:
    """Compile each operation in one way; the environment says with what budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    given = parser.parse_args(words)
    if budget_of(given.way) is not None:
        fa.install(inductor=True)
        from forecast_autotune.frontends.inductor.choices import narrowing

        for method in ("narrow_listed", "narrow_rendered", "record_and_decide"):
            setattr(narrowing, method, _counted(getattr(narrowing, method)))
    select_algorithm.add_feedback_saver(lambda timings, *_: candidates.extend(each.name for each in timings))
    on = clock()
    first_compile(given.way)
    if given.way == EXHAUSTIVE:
        for space in ("max_autotune_gemm_search_space", "max_autotune_flex_search_space"):
            setattr(inductor_config, space, "EXHAUSTIVE")
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "threads": inductor_config.compile_threads}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        try:
            with cold():
                found = compiled(name, given.way, on)
        except Exception as err:
            found = {"operation": name, "problem": f"{type(err).__name__}: {err}"[:300]}
        gc.collect()
        torch.cuda.empty_cache()  # for the other ways' processes
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
