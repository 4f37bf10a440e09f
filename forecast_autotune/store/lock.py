"""Single flight: of all processes and threads that miss one key at once, one tunes and the rest wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 600.0
NESTED_WAIT_S = 30.0
"""A tuning run inside another one waits only so long: two processes that nest in opposite orders wait for each other."""


class SingleFlight:
    """Locks for jobs, one of 4096 lock files each, by the first three digits of the job's digest.

    Two jobs that share a file take turns, which costs a wait and nothing else: on one device they ought to take turns
    anyway. In return there is a bound on the files, all empty, and none need ever be removed (removing a lock that
    another process is about to take lets two in). The operating system frees the lock of a process that is killed.

    Args:
        folder: where the lock files are; None holds the threads of this process apart, and no other process.
        wait_s: after so long, go on without.
        complain: told once when no lock file can be had.
    """

    def __init__(self, folder: Path | None, *, wait_s: float, complain: Callable[[str], None]) -> None:
        self.folder = folder
        self.wait_s = wait_s
        self._complain = complain
        self.begin()

    def begin(self) -> None:
        """Forget every lock: those held when a process forks are the parent's."""
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Lock] = {}
        self._mine = threading.local()

    @contextmanager
    def hold(self, digest: str) -> Iterator[bool]:
        """Hold a job's lock; yields False after waiting too long. A thread that holds it already has it."""
        slot = digest[:3]
        mine: set[str] = self._mine.__dict__.setdefault("slots", set())
        if slot in mine:
            yield True
            return
        wait_s = min(self.wait_s, NESTED_WAIT_S) if mine else self.wait_s
        deadline = time.monotonic() + wait_s
        with self._guard:
            between_threads = self._threads.setdefault(slot, threading.Lock())
        if not between_threads.acquire(timeout=wait_s):
            yield False
            return
        try:
            release = self._lock_file(slot, deadline)
            if release is None:
                yield False
                return
            mine.add(slot)
            try:
                yield True
            finally:
                mine.discard(slot)
                release()
        finally:
            between_threads.release()

    def _lock_file(self, slot: str, deadline: float) -> Callable[[], object] | None:
        """Take the lock file and return what gives it back; None when it stays taken until the deadline."""
        if self.folder is None:
            return lambda: None
        import filelock

        from .filesystem import make_folder

        try:
            make_folder(self.folder)
            lock = filelock.FileLock(str(self.folder / f"{slot}.lock"), mode=0o600, thread_local=False)
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()), poll_interval=0.05)
        except filelock.Timeout:
            return None
        except (OSError, RuntimeError, NotImplementedError) as err:
            self._complain(f"no lock can be had in {self.folder} ({err}): two processes may tune the same key at once")
            return lambda: None
        return lock.release
