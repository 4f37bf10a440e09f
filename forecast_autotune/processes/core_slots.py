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

from ..core.forks import after_fork_in_child
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
        # Lock files by core, kept open: with 128 cores all held, a look takes 0.9 ms and not 30 (two busy cores).
        self._files: dict[int, tuple[int, os.stat_result]] = {}
        self._held: set[int] = set()

    @contextlib.contextmanager
    def held(self, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Compile while this is held; it may have to be waited for.

        Args:
            given_up: whether nobody wants the compile any more, so that it need not wait.
        """
        core = self._begin(given_up)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if core is not None:
                    self._free(core)

    def _begin(self, given_up: Callable[[], bool]) -> int | None:
        """Wait for a core; None for a compile that goes on without one."""
        while True:
            with self._lock:
                try:
                    core = self._take_core()
                    waits = core is None
                except (OSError, ImportError):  # locks cannot be had, so nobody knows
                    core, waits = None, False
                if not waits or not self._running or given_up():
                    self._running += 1
                    return core
            time.sleep(LOOK_EVERY_S)

    def _take_core(self) -> int | None:
        """Take a core that is free.

        Raises:
            OSError, ImportError: files cannot be locked here.
        """
        import fcntl

        cores = self._cores()
        folder = self._folder or own_folder()
        for i in range(len(cores)):
            core = cores[(os.getpid() + i) % len(cores)]  # so that neighbours do not all begin with the same
            if core in self._held:
                continue
            file = self._file(core)
            if file is not None and not os.fstat(file).st_nlink:  # removed: others lock a new one of that name
                self._close(core)
                file = None
            if file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                file = os.open(folder / f"core-{core}.lock", flags, 0o600)
                self._files[core] = file, os.fstat(file)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._held.add(core)
                return core
        return None

    def _free(self, core: int) -> None:
        import fcntl

        self._held.discard(core)
        if (file := self._file(core)) is not None:
            fcntl.flock(file, fcntl.LOCK_UN)  # in so many words: a forked child may have the file open too

    def _file(self, core: int) -> int | None:
        """A core's open lock file; None where it is not open any more, as in a program that closes all it has open."""
        file, opened = self._files.get(core, (-1, None))
        with contextlib.suppress(OSError):
            if opened is not None and os.path.samestat(os.fstat(file), opened):
                return file
        self._files.pop(core, None)  # its number may be somebody else's by now
        return None

    def _close(self, core: int) -> None:
        if (file := self._file(core)) is not None:
            os.close(file)
            del self._files[core]

    def after_fork_in_child(self) -> None:
        """Close what is the parent's: a core that it held must be free when it is killed."""
        for core in list(self._files):
            self._close(core)


def own_folder() -> Path:
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


@after_fork_in_child
def _after_fork_in_child() -> None:
    global _shared
    if _shared is not None:
        _shared.after_fork_in_child()
    _shared = None
