"""Whose turn it is to decide: one thread at a time, for what another measured or built meanwhile would be in the times."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator


class Turn:
    """One thread of the process decides; the others wait while that is quick, and go on without a decision if it is not."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Forget who holds it: in the child of a fork, that is nobody."""
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._depth = 0
        self._takes_time = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn, however long it takes to get it."""
        with self._held(lambda: self._is_free()):
            yield

    @contextlib.contextmanager
    def unless_it_takes_time(self) -> Iterator[bool]:
        """Hold the turn; False, at once, without it where another thread measures, compiles or asks a language model."""
        with self._held(lambda: self._is_free() or self._takes_time):
            yield self._owner == threading.get_ident()

    @contextlib.contextmanager
    def taking_time(self, takes_time: bool) -> Iterator[None]:
        """Say whether what the holder does now takes its time."""
        before = self._takes_time
        self._set_takes_time(takes_time or before)
        try:
            yield
        finally:
            self._set_takes_time(before)

    def _set_takes_time(self, takes_time: bool) -> None:
        with self._changed:
            self._takes_time = takes_time
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return self._owner in (None, threading.get_ident())

    @contextlib.contextmanager
    def _held(self, go_on: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(go_on)
            if mine := self._is_free():
                self._owner = threading.get_ident()
                self._depth += 1
        held_in = os.getpid()
        try:
            yield
        finally:
            if mine and os.getpid() == held_in:
                with self._changed:
                    self._depth -= 1
                    if self._depth == 0:
                        self._owner = None
                        self._changed.notify_all()


turn = Turn()
