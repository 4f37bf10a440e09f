"""Inductor's candidates timed by our clock, whose times are the device's alone.

Inductor makes launch after launch. Where the host is slower at that than the device, as while compilers work beside it, what
it tells is the host's time: of the library, up to 4 times what it takes (H200, torch 2.11: 38.9 us for 9.1).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...measure.clocks import EventClock, Flush, Launch, spin

TIMED_S = 0.025  # of each candidate: as long as Inductor would at most


def by_our_clock(benchmark_choices: Callable[..., dict[Any, float]], is_wanted: Callable[[], bool]) -> Any:
    """Inductor's `benchmark_choices`, which has our clock time what it runs.

    Args:
        benchmark_choices: takes candidates, their arguments, and whether all ranks time them together; returns milliseconds
            by candidate, infinite for one that does not run.
        is_wanted: whether it is to be done; asked each time.
    """

    @functools.wraps(benchmark_choices)
    def benchmarked(choices: Sequence[Any], *others: Any, **named: Any) -> dict[Any, float]:
        device = choices[0].layout.device if choices else None
        ours = device is not None and device.type == "cuda" and is_wanted()
        with _clock_on(device) if ours else contextlib.nullcontext():
            return benchmark_choices(choices, *others, **named)

    return benchmarked


def clock_of(device: Any) -> EventClock:
    """What the events add is not taken off: Inductor goes on to compare these times with some of its own clock."""
    return EventClock(torch.cuda, flush=Flush(device), spin=spin, timed_s=TIMED_S, on=lambda: torch.cuda.device(device))


@contextlib.contextmanager
def _clock_on(device: Any) -> Iterator[None]:
    """Have whatever Inductor times on a device meanwhile be timed by our clock; it holds the device's memory so long."""
    from torch._inductor.runtime.benchmarking import benchmarker

    clock, theirs = clock_of(device), benchmarker.benchmark_gpu

    def benchmark_gpu(call: Callable[[], Any], *others: Any, **named: Any) -> Any:
        if named.get("return_mode", "min") != "min" or named.get("grad_to_none") is not None:
            return theirs(call, *others, **named)
        call()  # it is compiled and loaded, and raises here if it does not run
        clock.synchronize()
        return clock.measure(Launch(call=call), first_us=0.0).median_us / 1e3

    benchmarker.benchmark_gpu = benchmark_gpu
    try:
        yield
    finally:
        vars(benchmarker).pop("benchmark_gpu", None)
