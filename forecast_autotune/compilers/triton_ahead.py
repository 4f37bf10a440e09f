"""What the first compile of a process waits for, begun while the program still starts.

That is Triton's hash of itself, and what compile workers are forked from.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading

from ..errors import AutotuneError
from ..settings import Settings

DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA and AMD on Linux: without either there is nothing to launch on

_hashing: threading.Thread | None = None


def begin_ahead(mode: str | None = None, *, workers: bool = False) -> None:
    """Begin in threads, once in a process, what the first compile will need.

    To hash Triton takes 0.5 to 0.9 s on an H100, and Triton keeps the hash. What workers are forked from takes 0.3 s to
    start from a warm disk, and ends where no worker is wanted soon.

    Not in mode `first`, which leaves all to Triton, nor in processes such as those that load data.

    Args:
        mode: what code says of it; the environment has the last word.
        workers: whether kernels are sure to be launched: then workers are made ready too, where a first call will wait for
            them, as in mode `tune`.
    """
    global _hashing
    if _hashing is not None and not workers:
        return
    if multiprocessing.current_process().daemon or not any(map(os.path.exists, DRIVERS)):
        return
    # Not the process's own environment, of which mistakes would be warned of: that is for the first call.
    with contextlib.suppress(AutotuneError, RuntimeError):  # as are settings that are wrong; or no more threads
        mode = Settings.from_environment(dict(os.environ), mode=mode).mode
        if mode != "first" and _hashing is None:
            _hashing = threading.Thread(target=_hash_triton, name="forecast_autotune-hash", daemon=True)
            _hashing.start()
        if workers and mode == "tune":
            from .triton_pool import shared_pool

            shared_pool().start_ahead()


def wait_for_hash() -> None:
    """Wait for what was begun: to hash beside it would take longer."""
    if _hashing is not None and _hashing.is_alive():
        _hashing.join()


def _hash_triton() -> None:
    with contextlib.suppress(Exception):  # a launch tells of it
        from triton.runtime.cache import triton_key

        triton_key()
