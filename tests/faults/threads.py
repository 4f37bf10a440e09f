"""Threads of this process that are not the test's own."""

from __future__ import annotations

import gc
import sys
import threading
import time

GO_S = 20.0  # for threads that earlier tests have left to end


def alone() -> None:
    """Wait until no thread runs but this one and the package's own, beside which a candidate's changes are put back."""
    _end_inductors()
    deadline = time.monotonic() + GO_S
    while (others := _others()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not others, f"threads that this test did not begin: {', '.join(others)}"


def _end_inductors() -> None:
    """Let Inductor's threads end: those of its one pool, and of pools that its caches or garbage still hold."""
    if (utils := sys.modules.get("torch._inductor.utils")) is not None:
        utils.clear_caches()
    if (compiling := sys.modules.get("torch._inductor.async_compile")) is not None:
        pool = compiling.AsyncCompile.pool
        if pool.cache_info().currsize:
            pool().shutdown()
            pool.cache_clear()
    gc.collect()


def _others() -> list[str]:
    ours = ("forecast_autotune", "forecast-autotune")
    threads = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    return [repr(thread) for thread in threads if not thread.name.startswith(ours)]
