"""Inductor's compile workers, which load Triton's driver while a graph is traced.

Else each loads it before it compiles its first kernel, all at once: 0.3 to 0.4 s, for a C compiler builds it where Triton's
cache is empty (H200's host). With several candidates of a product far more workers are needed than by default.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...core.fork_safe_lock import fork_safe_lock

log = logging.getLogger(__name__)

_loading = fork_safe_lock()


def woken_with_drivers(wakeup: Callable[[Any], None], is_wanted: Callable[[], bool]) -> Callable[[Any], None]:
    """`AsyncCompile.wakeup`, by which Inductor begins a compile, that also has each worker load Triton's driver.

    Args:
        wakeup: takes the class.
        is_wanted: whether it is to be done; asked each time.
    """

    @functools.wraps(wakeup)
    def woken(asynchronous: Any) -> None:
        wakeup(asynchronous)
        try:
            if is_wanted() and torch.cuda.is_initialized():
                _begin_loading(asynchronous)
        except Exception as err:  # no more threads, say: nobody needs this one
            log.info("Inductor's workers load Triton's driver when they compile: %s", err)

    return woken


def _begin_loading(asynchronous: Any) -> None:
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    # A pool has been asked whether it is ready, or none is to be used. Others than this one end once their jobs are done.
    if asynchronous._ready_future is None or not isinstance(pool := asynchronous.process_pool(), SubprocPool):
        return
    workers = inductor_config.compile_threads or 1  # as this thread has it
    threading.Thread(target=_load_drivers, args=(pool, workers), name="forecast_autotune drivers", daemon=True).start()


def _load_drivers(pool: Any, workers: int) -> None:
    """Have one worker build the driver where nobody has, and then the others load it; one that has it does nothing."""
    from torch._inductor.runtime.triton_helpers import set_driver_to_gpu

    if not _loading.acquire(blocking=False):
        return
    try:
        pool.submit(set_driver_to_gpu).result()
        for future in [pool.submit(set_driver_to_gpu) for _ in range(workers - 1)]:
            future.result()
    except Exception as err:  # a pool that ends, or a worker that sees no GPU: it says so when it is to compile
        log.info("Inductor's workers load Triton's driver when they compile: %s", err)
    finally:
        _loading.release()
