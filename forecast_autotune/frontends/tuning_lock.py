"""The lock around tuning: one thread of the process tunes at a time, for another one's work would show in its times."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from ..core.forks import after_fork_in_child


class TuningLock:
    """Held by the one thread that decides. Others wait for it while that is quick, and do without while it is slow."""

    def __init__(self) -> None:
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        """Nobody holds it; in the child of a fork, whose thread may not be the holder's."""
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._depth = 0
        self._is_slow = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, however long it takes to get it."""
        with self._acquired(lambda: self._is_free()):
            yield

    @contextlib.contextmanager
    def held_unless_slow(self) -> Iterator[bool]:
        """Hold the lock. False, at once and without it, where another thread measures, compiles or asks a language model."""
        with self._acquired(lambda: self._is_free() or self._is_slow):
            yield self._owner == threading.get_ident()

    @contextlib.contextmanager
    def slow(self, is_slow: bool) -> Iterator[None]:
        """Tell other threads whether the holder may take long now, or wait for them; nothing from any other thread."""
        if self._owner != threading.get_ident():
            yield
            return
        before = self._is_slow
        self._set_slow(is_slow or before)
        try:
            yield
        finally:
            self._set_slow(before)

    def _set_slow(self, is_slow: bool) -> None:
        with self._changed:
            self._is_slow = is_slow
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return self._owner in (None, threading.get_ident())

    @contextlib.contextmanager
    def _acquired(self, go_on: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(go_on)
            if acquired := self._is_free():
                self._owner = threading.get_ident()
                self._depth += 1
        held_in = os.getpid()
        try:
            yield
        finally:
            if acquired and os.getpid() == held_in:
                with self._changed:
                    self._depth -= 1
                    if self._depth == 0:
                        self._owner = None
                        self._changed.notify_all()


tuning_lock = TuningLock()
