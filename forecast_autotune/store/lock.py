"""Single flight: of all processes and threads that miss one key at once, one tunes and the rest wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..file_lock import file_lock

log = logging.getLogger(__name__)

WAIT_S = 600.0
NESTED_WAIT_S = 30.0
"""A tuning run inside another one waits only so long: two processes that nest in opposite orders wait for each other."""

TELL_S = 2.0
"""After waiting so long, it is told for whom."""

POLL_S = 0.05


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
    def hold(
        self,
        digest: str,
        *,
        prefix: str = "",
        wait_s: float | None = None,
        meanwhile: Callable[[], bool] | None = None,
        waits_for: Callable[[], str] | None = None,
    ) -> Iterator[bool]:
        """Hold a job's lock; yields False after waiting too long. A thread that holds it already has it.

        While waiting, `meanwhile` is called again and again; it says whether it found work to do. `waits_for` names, for
        the log, what is waited for and who has it.
        """
        slot = prefix + digest[:3]
        mine: set[str] = self._mine.__dict__.setdefault("slots", set())
        if slot in mine:
            yield True
            return
        wait_s = self.wait_s if wait_s is None else wait_s
        wait_s = min(wait_s, NESTED_WAIT_S) if mine else wait_s
        with self._guard:
            between_threads = self._threads.setdefault(slot, threading.Lock())
        waiting = _Waiting(wait_s, meanwhile, waits_for)
        while not between_threads.acquire(timeout=waiting.pause_s):
            if not waiting.goes_on():
                yield False
                return
        try:
            while (release := self._lock_file(slot, waiting)) is None:
                if not waiting.goes_on():
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

    def _lock_file(self, slot: str, waiting: _Waiting) -> Callable[[], object] | None:
        """Take the lock file and return what gives it back; None while it stays taken."""
        if self.folder is None:
            return lambda: None
        from .filesystem import make_folder

        held = ExitStack()
        try:
            make_folder(self.folder)
            held.enter_context(file_lock(self.folder / f"{slot}.lock", timeout=waiting.pause_s))
        except TimeoutError:
            return None
        except (OSError, RuntimeError) as err:
            self._complain(f"no lock can be had in {self.folder} ({err}): two processes may tune the same key at once")
            return lambda: None
        return held.close


class _Waiting:
    """One wait: how long it may go on, what is done meanwhile, and that it is told once."""

    def __init__(
        self, wait_s: float, meanwhile: Callable[[], bool] | None, waits_for: Callable[[], str] | None
    ) -> None:
        self._began = time.monotonic()
        self._wait_s = wait_s
        self._meanwhile = meanwhile
        self._waits_for = waits_for
        self._busy = self._told = False

    @property
    def pause_s(self) -> float:
        """How long to wait for the lock before doing something else."""
        left_s = self._began + self._wait_s - time.monotonic()
        return 0.0 if self._busy else max(0.0, min(left_s, POLL_S))

    def goes_on(self) -> bool:
        """Do what there is to do meanwhile; False when it has been waited long enough."""
        waited_s = time.monotonic() - self._began
        if waited_s >= self._wait_s:
            return False
        if self._waits_for is not None and not self._told and waited_s > TELL_S:
            self._told = True
            log.info("waiting for %s, at most %.0f s", self._waits_for(), self._wait_s)
        self._busy = self._meanwhile is not None and self._meanwhile()
        return True
