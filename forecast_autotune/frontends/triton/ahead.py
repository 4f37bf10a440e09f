"""What the first launch of a process waits for, done in a thread while the program still starts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading

from ...errors import SettingError
from ...settings import Settings

DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA and AMD on Linux: without either there is nothing to launch on

_lock = threading.Lock()
_is_begun = False


def hash_triton_ahead() -> None:
    """Begin to hash Triton, once in a process: each of its compiles and look-ups needs that, and 0.5 to 0.9 s pass (H100).

    Triton keeps it. Not in mode `first`, which leaves all to Triton, nor in processes such as those that load data.
    """
    global _is_begun
    with _lock:
        if _is_begun or not any(map(os.path.exists, DRIVERS)) or multiprocessing.current_process().daemon:
            return
        _is_begun = True
    with contextlib.suppress(SettingError, RuntimeError):  # the first call tells of a setting; no more threads
        if Settings.from_environment().mode != "first":
            threading.Thread(target=_hash_triton, name="forecast_autotune-hash", daemon=True).start()


def _hash_triton() -> None:
    with contextlib.suppress(Exception):  # a launch tells of it
        from triton.runtime.cache import triton_key

        triton_key()
