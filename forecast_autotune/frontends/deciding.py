"""Deciding is done by one thread at a time: what another one measured or built meanwhile would be in the times."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

STORED_S = 0.05  # a stored decision takes a few milliseconds: worth waiting for before the default is run instead


class Deciding:
    """Whose turn it is to decide; held with `with` against every other thread of the process."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Forget who holds it: in the fork of a process, that is nobody."""
        self._lock = threading.RLock()
        self._measuring = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def measuring(self, takes_time: bool) -> Iterator[None]:
        """Whoever decides may measure, or ask a language model, which takes its time."""
        before, self._measuring = self._measuring, takes_time
        try:
            yield
        finally:
            self._measuring = before

    @contextlib.contextmanager
    def unless_measuring(self) -> Iterator[bool]:
        """Wait for one's turn; False without it where another thread is busy measuring."""
        while not self._lock.acquire(timeout=STORED_S):
            if self._measuring:
                yield False
                return
        try:
            yield True
        finally:
            self._lock.release()


deciding = Deciding()
