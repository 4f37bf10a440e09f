"""The device at its full clock when Inductor times candidates.

While Inductor compiles, the device has nothing to do and lowers its clock. The first candidates that it times then, the
library's, were told at up to 4 times what they take (H200, torch 2.11: 38.9 us for 9.1), and slower templates were chosen.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

BUSY_S = 0.25  # candidates that were timed later than 0.1 s after the first were told right


def at_full_clock(benchmark_choices: Callable[..., dict[Any, float]], is_wanted: Callable[[], bool]) -> Any:
    """Inductor's `benchmark_choices`, with the device kept busy for a while before.

    Args:
        benchmark_choices: takes candidates, their arguments, and whether all ranks time them together; returns milliseconds
            by candidate, infinite for one that does not run.
        is_wanted: whether it is to be done; asked each time.
    """

    @functools.wraps(benchmark_choices)
    def benchmarked(choices: Sequence[Any], autotune_args: Any, *others: Any, **named: Any) -> dict[Any, float]:
        together = any([*others, *named.values()])  # each rank would have to run the same number of times
        if choices and not together and choices[0].layout.device.type != "cpu" and is_wanted():
            _keep_busy(lambda: benchmark_choices(choices[:1], autotune_args)[choices[0]])
        return benchmark_choices(choices, autotune_args, *others, **named)

    return benchmarked


def _keep_busy(run: Callable[[], float]) -> None:
    """Run what says how long it took, again and again; it ends at once where that does not run."""
    ends = time.perf_counter() + BUSY_S
    while math.isfinite(run()) and time.perf_counter() < ends:
        pass
