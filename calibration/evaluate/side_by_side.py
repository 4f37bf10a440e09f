"""What reports on Triton kernels share: where they ran, empty stores and caches, timers that take contenders in turns."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from kernel_suite import TritonKernel
from triton.runtime.driver import driver

from forecast_autotune.frontends.triton.simulated_driver import current_rehearsal, rehearsal

Launch = Callable[[], None]


def has_device() -> bool:
    return bool(torch.cuda.is_available()) or current_rehearsal() is not None


def device() -> str:
    """Where tensors go; a rehearsal takes them as they are."""
    return "cuda" if torch.cuda.is_available() and current_rehearsal() is None else "cpu"


def surroundings() -> dict[str, Any]:
    """When and on what; of a rehearsal that it is one."""
    gpu = "none: a rehearsal with made-up times" if device() == "cpu" else torch.cuda.get_device_name()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu,
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "cores": os.cpu_count(),
    }


@contextmanager
def rehearsing(kernels: Iterable[TritonKernel]) -> Iterator[None]:
    """Run what is within on the rehearsal driver, each config with a time that is made up, so that code can be tested."""
    times = {
        # So long that few launches do.
        k.function.__name__: {c: 20_000.0 * (1 + int(c.digest[:4], 16) / 0xFFFF) for c in k.space}
        for k in kernels
    }
    with rehearsal("H200", times):
        yield


# Caches and settings of a report's own ------------------------------------------------------------------------------


@contextmanager
def own_environment(cache: Path) -> Iterator[None]:
    """No settings of ours within, and a folder for what Triton compiles."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith("FORECAST_AUTOTUNE_"):
            del os.environ[name]
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns until somebody says which
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def own_store() -> Iterator[None]:
    """A store that nothing has been put into, and that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="report_store_", ignore_cleanup_errors=True) as folder:
        os.environ["FORECAST_AUTOTUNE_DIR"] = folder
        yield


# Timers -------------------------------------------------------------------------------------------------------------


def cold_times_us(launches: Sequence[Launch], rounds: int = 40) -> list[list[float] | None]:
    """Samples for each launch between two events, all launches in turns, the L2 overwritten before each.

    Overwriting takes the GPU longer than queueing a launch takes the CPU, so that launches follow without a gap. One that
    raises when it is first tried gives None.
    """
    events = driver.active.get_device_interface()
    cache = driver.active.get_empty_cache_for_benchmark()
    running = [i for i, launch in enumerate(launches) if _runs(launch)]
    marks: list[tuple[int, Any, Any]] = []
    for _ in range(rounds + 1):
        for i in running:
            before, after = events.Event(enable_timing=True), events.Event(enable_timing=True)
            driver.active.clear_cache(cache)
            before.record()
            launches[i]()
            after.record()
            marks.append((i, before, after))
    events.synchronize()
    samples: list[list[float] | None] = [[] if i in running else None for i in range(len(launches))]
    for i, before, after in marks[len(running) :]:  # the first round warms up
        taken = samples[i]
        assert taken is not None  # noqa: S101  # marks are of those that run
        taken.append(before.elapsed_time(after) * 1e3)
    return samples


def _runs(launch: Launch) -> bool:
    try:
        launch()
    except Exception:  # too large for the device, or refused by the compiler: stock's tuner leaves it out as well
        return False
    return True


def kernel_times_us(name: str, launches: Sequence[Launch], reset: Launch, rounds: int = 40) -> list[list[float]]:
    """Samples for each launch of the kernel `name`, as the GPU itself keeps time (CUPTI): no launch, no event within.

    All launches in turns; before each, `reset` puts arguments back and then the L2 is overwritten.
    """
    from torch.profiler import ProfilerActivity, profile

    cache = driver.active.get_empty_cache_for_benchmark()
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(rounds + 1):
            for launch in launches:
                reset()
                driver.active.clear_cache(cache)
                launch()
        torch.cuda.synchronize()
    return in_turns(durations_us(profiler.events() or (), name), len(launches), rounds + 1)


def durations_us(events: Iterable[Any], name: str) -> list[float]:
    """How long each run of a kernel took, in the order in which they began."""
    runs = [e for e in events if e.name == name and e.device_type == torch.autograd.DeviceType.CUDA]
    return [e.time_range.elapsed_us() for e in sorted(runs, key=lambda e: e.time_range.start)]


def in_turns(durations: Sequence[float], contenders: int, rounds: int) -> list[list[float]]:
    """Each contender's share of what was seen in turns, without the first round, which warms up.

    Raises:
        RuntimeError: not every launch was seen, so that none can be told from another.
    """
    if len(durations) != contenders * rounds:
        raise RuntimeError(
            f"{contenders * rounds} launches, but the profiler saw {len(durations)}: none can be told apart"
        )
    return [list(durations[i::contenders][1:]) for i in range(contenders)]
