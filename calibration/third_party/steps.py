"""One operation in one process of its own: how long its first step takes, and each later one, and what was chosen.

`python -m calibration.third_party.steps` is started by the verb, with caches that are empty; the last line of stdout is the
answer, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

import forecast_autotune as fa
from calibration.record.programs.dry_run import pretended_cuda
from forecast_autotune.frontends.triton.installed import living_tuners

from .operations import OPERATIONS, Size

WAYS = ("stock", "untuned", "ours", "online", "warmed")
STEPS, UNTIMED_STEPS, EARLY_STEP, PROFILED_STEPS = 50, 4, 20, 5
REHEARSED = Size(device="cpu", batch=1, tokens=128, heads=2, width=64, slots=16)
REHEARSED_US = 400.0  # every launch's

Timings = dict[str, dict[str, float]]
"""By kernel and key: the median of each config in milliseconds, by its text."""


@contextlib.contextmanager
def noting_timings() -> Iterator[Timings]:
    """What Triton's own tuner times meanwhile."""
    found: Timings = {}
    theirs = Autotuner._bench

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        times = theirs(self, *args, config=config, **meta)
        call = {**dict(zip(self.arg_names, args, strict=False)), **meta}
        key = [call[name] for name in self.keys if name in call]
        key += [str(call[name].dtype) for name in call if name in self.arg_names and hasattr(call[name], "dtype")]
        found.setdefault(key_text(self, tuple(key)), {})[str(config)] = float(times[0])
        return times

    Autotuner._bench = bench
    try:
        yield found
    finally:
        Autotuner._bench = theirs


def key_text(kernel: Any, key: tuple[Any, ...]) -> str:
    """A kernel and a key as Triton makes it, so that two processes write the same."""
    return f"{kernel.base_fn.__module__}.{kernel.base_fn.__qualname__} {key}"


def chosen() -> dict[str, str]:
    """The config decided for each key of every tuner that lives, by its text."""
    found = {}
    for kernel in living_tuners():
        tuner = fa.tuner_of(kernel)
        known = dict(kernel.cache) if tuner is None else tuner.cache.by_tritons_key()
        if tuner is None or tuner.decisions:
            found.update({key_text(kernel, key): str(config) for key, config in known.items()})
    return found


def spent() -> dict[str, float]:
    """Seconds of tuning in all: as a whole, waiting, compiling on all cores, timing; and lost and saved in real calls."""
    tuners = [tuner for kernel in living_tuners() if (tuner := fa.tuner_of(kernel)) is not None]
    decisions = [decision for tuner in tuners for decision in tuner.decisions.values()]
    names = ("spent_s", "waiting_s", "compiling_s", "timing_s", "explored_s", "saved_s")
    return {name: sum(getattr(decision, name) for decision in decisions) for name in names}


def synchronize(size: Size) -> None:
    """Wait for the device."""
    if size.device != "cpu":
        torch.cuda.synchronize()


def device_time_ms(step: Callable[[], torch.Tensor]) -> float:
    """Milliseconds that the device works for a step, whatever its host takes: what its kernels and copies take together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(PROFILED_STEPS):
            output = step()
            output.backward(torch.ones_like(output))
        torch.cuda.synchronize()
    on_device = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    return float(sum(each.time_range.elapsed_us() for each in on_device)) / PROFILED_STEPS / 1e3


def measured(operation: str, size: Size, steps: int, until_s: float = 0.0) -> dict[str, Any]:
    """What so many steps take.

    Seconds of the first, and until the ends of step 20 and of the last; milliseconds of one in the last third, until it is
    done and until the host is free again, and of a few more, by torch's profiler, that the device works; the step by which
    every key was measured, 0 if not all were; how many keys were measured, as pairs of a second and a count whenever one
    more was; the most memory in MiB; and, of a model, the loss at each step. Where keys are not all measured by the last of
    the steps, there are more of them until they are, for at most `until_s` seconds in all, and then as many steps again.
    """
    torch.manual_seed(0)
    step = OPERATIONS[operation](size)
    losses: list[torch.Tensor] = []
    ends_s, host_ms, step_ms = [0.0], [], []
    tuners: list[Any] = []
    measured_at = 0
    measured_keys: list[tuple[float, int]] = [(0.0, 0)]
    synchronize(size)
    began = time.perf_counter()
    last, number = steps, 0
    while number < last:
        number += 1
        started = time.perf_counter()
        output = step()
        output.backward(torch.ones_like(output))
        if output.ndim == 0:
            losses.append(output.detach())
        host_ms.append(1e3 * (time.perf_counter() - started))
        synchronize(size)
        step_ms.append(1e3 * (time.perf_counter() - started))
        ends_s.append(time.perf_counter() - began)
        if not measured_at:
            tuners = tuners or [tuner for each in living_tuners() if (tuner := fa.tuner_of(each)) is not None]
            decided = [decision.basis for tuner in tuners for decision in tuner.decisions.values()]
            measured_at = number if decided and set(decided) == {"measured"} else 0
            if (count := decided.count("measured")) > measured_keys[-1][1]:
                measured_keys.append((round(ends_s[-1], 2), count))
            if number >= steps and ends_s[-1] < until_s:
                last = number + steps
    device_ms = device_time_ms(step) if size.device != "cpu" else 0.0
    late = slice(-max(1, min(steps - UNTIMED_STEPS, math.ceil(steps / 3))), None)
    return {
        "first_s": ends_s[1],
        "early_s": ends_s[min(EARLY_STEP, steps)],
        "all_s": ends_s[-1],
        "steady_ms": statistics.median(step_ms[late]),
        "host_ms": statistics.median(host_ms[late]),
        "device_ms": device_ms,
        "measured_at": measured_at,
        "measured_keys": measured_keys,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if size.device != "cpu" else 0.0,
        "losses": [float(loss) for loss in losses],
    }


def main(words: list[str] | None = None) -> int:
    """Run the operation in one of the `WAYS`; the environment says with what budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--until", type=float, default=0.0)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args(words)
    if given.way != "stock":
        fa.install()
    size = REHEARSED if given.rehearse else Size(device="cuda")
    with contextlib.ExitStack() as stack:
        if given.rehearse:
            stack.enter_context(pretended_cuda())
            stack.enter_context(fa.rehearsal("H200", REHEARSED_US))
        timings = stack.enter_context(noting_timings())
        found = measured(given.operation, size, given.steps, given.until)
        print(json.dumps({**found, "timings_ms": timings, "chosen": chosen(), "tuning": spent()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
