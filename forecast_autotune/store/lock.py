"""Single flight: of all processes and threads that miss one key at once, one tunes, and nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..core.text import error_text
from ..processes.file_lock import file_lock


class SingleFlight:
    """Locks for jobs, one of 4096 lock files each, by the first three digits of the job's digest.

    Two jobs that share a file take turns, which delays the tuning of one and nothing else: on one device they ought to
    take turns anyway. In return there is a bound on the files, all empty, and none need ever be removed (removing a lock
    that another process is about to take lets two in). The operating system frees the lock of a process that is killed.

    Args:
        folder: where the lock files are; None holds the threads of this process apart, and no other process.
        complain: gets why no lock file can be had, each time.
    """

    def __init__(self, folder: Path | None, *, complain: Callable[[str], None]) -> None:
        self.folder = folder
        self._complain = complain
        self.reset()

    def reset(self) -> None:
        """Forget every lock: those held when a process forks are the parent's."""
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Lock] = {}
        self._mine = threading.local()

    @contextmanager
    def hold(self, digest: str, *, prefix: str = "") -> Iterator[bool]:
        """Hold a job's lock; False, at once, where somebody else holds it. A thread that holds it already has it."""
        slot = prefix + digest[:3]
        mine: set[str] = self._mine.__dict__.setdefault("slots", set())
        if slot in mine:
            yield True
            return
        with self._guard:
            between_threads = self._threads.setdefault(slot, threading.Lock())
        if not between_threads.acquire(blocking=False):
            yield False
            return
        try:
            release = self._lock_file(slot)
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

    def _lock_file(self, slot: str) -> Callable[[], object] | None:
        """Take the lock file and return what gives it back; None where it is taken."""
        if self.folder is None:
            return lambda: None
        from .filesystem import make_folder

        held = ExitStack()
        try:
            make_folder(self.folder)
            held.enter_context(file_lock(self.folder / f"{slot}.lock", timeout=0))
        except TimeoutError:
            return None
        except (OSError, RuntimeError) as err:
            self._complain(
                f"no lock can be had in {self.folder} ({error_text(err)}): two processes may tune the same key at once"
            )
            return lambda: None
        return held.close
