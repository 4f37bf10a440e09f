"""A store's warnings: each kind once, and held back until the store is whole again and its lock is free."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.text import plain
from ..core.user_warnings import warn_user
from ..errors import StoreWarning

MAX_SHOWN = 2_000  # characters of a warning

_HELD = threading.local()  # warnings held back by this thread, for all stores


class HeldWarnings:
    """Warnings of one store.

    Args:
        quiet: give none.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._given: set[str] = set()  # kinds of trouble

    def warn_once(self, about: str, text: str) -> None:
        """Warn of one kind of trouble, unless this store has warned of it before; within `held`, at its end."""
        if about not in self._given and not self.quiet:
            self._given.add(about)
            _waiting().append(plain(text[:MAX_SHOWN]))  # it may quote a name that a stranger wrote
            if not getattr(_HELD, "depth", 0):
                _release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold warnings back: the user may have made them errors, and raised inside a step they would leave it half done."""
        _HELD.depth = getattr(_HELD, "depth", 0) + 1
        try:
            yield
        finally:
            _HELD.depth -= 1
        if not _HELD.depth:
            _release()


def forget_held() -> None:
    """Drop what this thread holds back: in the child of a fork it is the parent's to give."""
    _HELD.__dict__.clear()


def _waiting() -> list[str]:
    waiting: list[str] = _HELD.__dict__.setdefault("waiting", [])
    return waiting


def _release() -> None:
    waiting, _HELD.waiting = _waiting(), []
    for text in waiting:
        warn_user(text, StoreWarning)
