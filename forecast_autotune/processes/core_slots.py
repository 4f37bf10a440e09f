"""Cores for compiling, shared by all processes of one user on a machine: a lock file for each core."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .file_lock import file_lock
from .machine import usable_core_ids

LOOK_EVERY_S = 0.02  # whether a core is free; a compile takes some hundred times as long


class CoreSlots:
    """Lets no more compiles run at once than there are cores, those of other processes included.

    A compile holds the lock of one of the cores that its process may use. Where all are held it waits, unless it is its
    process's only one: so every process gets on, and there are at most as many compiles as cores and processes together.
    The system frees the locks of a process that dies. Processes on disjoint cores do not meet.

    Args:
        folder: where the lock files are; None for this user's in the system's folder for temporary files.
        cores: tells which cores this process may use.
    """

    def __init__(self, folder: Path | None = None, cores: Callable[[], list[int]] = usable_core_ids) -> None:
        self._folder = folder
        self._cores = cores
        self._lock = threading.Lock()
        self._running = 0  # compiles of this process

    @contextlib.contextmanager
    def held(self, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Compile while this is held; it may have to be waited for.

        Args:
            given_up: whether nobody wants the compile any more, so that it need not wait.
        """
        with contextlib.ExitStack() as stack:
            self._begin(stack, given_up)
            try:
                yield
            finally:
                with self._lock:
                    self._running -= 1

    def _begin(self, stack: contextlib.ExitStack, given_up: Callable[[], bool]) -> None:
        while True:
            with self._lock:
                if self._take_core(stack) or not self._running or given_up():
                    self._running += 1
                    return
            time.sleep(LOOK_EVERY_S)

    def _take_core(self, stack: contextlib.ExitStack) -> bool:
        """Take a core that is free; True as well where locks cannot be had, for then nobody knows."""
        cores = self._cores()
        try:
            folder = self._folder or _own_folder()
            for i in range(len(cores)):
                core = cores[(os.getpid() + i) % len(cores)]  # so that neighbours do not all begin with the same
                with contextlib.suppress(TimeoutError):
                    stack.enter_context(file_lock(folder / f"core-{core}.lock", timeout=0))
                    return True
        except OSError:
            return True
        return False


def _own_folder() -> Path:
    """This user's folder for locks that hold on this machine alone.

    Raises:
        OSError: it cannot be made, or somebody else has made it.
    """
    folder = Path(tempfile.gettempdir(), f"forecast_autotune-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(f"{folder} is not this user's")
    return folder


_shared: CoreSlots | None = None


def core_slots() -> CoreSlots:
    """The process's own; a forked child begins with none running."""
    global _shared
    if _shared is None:
        _shared = CoreSlots()
    return _shared


def _forget_shared() -> None:
    global _shared
    _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
