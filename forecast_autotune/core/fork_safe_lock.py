"""Locks that the child of a fork can take, whichever threads of its parent held them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from .forks import after_fork_in_child

if TYPE_CHECKING:
    from _thread import RLock

_locks: WeakSet[RLock] = WeakSet()


def fork_safe_lock() -> RLock:
    """A re-entrant lock, held in the child of a fork by the thread that forked alone: other threads are not there."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@after_fork_in_child
def _after_fork_in_child() -> None:
    for lock in list(_locks):
        if lock.acquire(blocking=False):  # nobody holds it, or the thread that forked
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as `logging` does
