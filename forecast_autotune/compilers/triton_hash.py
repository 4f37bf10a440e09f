"""Triton's hash of itself, which the first compile of a process waits for, taken while the program still starts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading

from ..errors import AutotuneError
from ..settings import Mode, Settings

DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA and AMD on Linux: without either there is nothing to launch on

_hashing: threading.Thread | None = None


def begin_hashing(mode: Mode | None = None) -> None:
    """Begin to hash Triton in a thread, once in a process: each compile and look-up needs that, 0.5 to 0.9 s on an H100.

    Triton keeps it. Not in mode `first`, which leaves all to Triton, nor in processes such as those that load data.

    Args:
        mode: what code says of it; the environment has the last word.
    """
    global _hashing
    if _hashing is not None or multiprocessing.current_process().daemon or not any(map(os.path.exists, DRIVERS)):
        return
    # Not the process's own environment, of which mistakes would be warned of: that is for the first call.
    with contextlib.suppress(AutotuneError, RuntimeError):  # as are settings that are wrong; or no more threads
        if Settings.from_environment(dict(os.environ), mode=mode).mode != "first":
            _hashing = threading.Thread(target=_hash_triton, name="forecast_autotune-hash", daemon=True)
            _hashing.start()


def wait_for_hash() -> None:
    """Wait for what was begun: to hash beside it would take longer."""
    if _hashing is not None and _hashing.is_alive():
        _hashing.join()


def _hash_triton() -> None:
    with contextlib.suppress(Exception):  # a launch tells of it
        from triton.runtime.cache import triton_key

        triton_key()
