"""Locks that a forked child finds free: the thread that held one is not there to let it go."""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

_holders: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()


def renew_in_children(holder: Any, name: str) -> None:
    """Have a forked child find a new `threading.RLock` as this attribute of an object, or of a module."""
    _holders.setdefault(holder, []).append(name)


def _renew() -> None:
    for holder, names in list(_holders.items()):
        for name in names:
            setattr(holder, name, threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
