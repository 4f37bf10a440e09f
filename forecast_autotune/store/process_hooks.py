"""All stores of this process: held still while it forks, and closed when it ends."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

from .held_warnings import forget_held


class ProcessBound(Protocol):
    """What a store does when its process forks or ends."""

    def before_fork(self) -> bool: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...

    def close(self) -> None: ...


_STORES: weakref.WeakValueDictionary[int, ProcessBound] = weakref.WeakValueDictionary()  # by id
_FORKING = threading.local()  # stores that this thread holds while it forks


def register(store: ProcessBound) -> None:
    """Tell a store of forks and of the process's end, for as long as it is referred to elsewhere."""
    _STORES[id(store)] = store


def _stores() -> list[ProcessBound]:
    """All stores of this process, copied in one step, as another thread may be making one."""
    return [store for reference in _STORES.valuerefs() if (store := reference()) is not None]


def _before_fork() -> None:
    # Each is noted before its lock is had: Python goes on with the fork when Ctrl-C ends this, and what is noted is freed.
    held: list[ProcessBound] = []
    _FORKING.stores = held
    for store in sorted(_stores(), key=id):  # in one order, lest two threads that fork wait for each other
        held.append(store)
        if not store.before_fork():
            held.pop()


def _after_fork_in_parent() -> None:
    for store in _FORKING.__dict__.pop("stores", []):
        store.after_fork_in_parent()


def _after_fork_in_child() -> None:
    _FORKING.__dict__.clear()
    forget_held()
    for store in _stores():
        store.after_fork_in_child()


@atexit.register
def _close_all() -> None:
    for store in _stores():
        store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
