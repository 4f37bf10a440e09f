"""Python's garbage collector, kept from running where that would hold something up."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from .fork_safe_lock import fork_safe_lock
from .forks import after_fork_in_child

_lock = fork_safe_lock()
_held = 0  # how many threads keep it from running
_collects = False  # whether it ran before


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile, in no thread."""
    global _held, _collects
    with _lock:
        if not _held:
            _collects = gc.isenabled()
            gc.disable()
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            if not _held and _collects:
                gc.enable()


@after_fork_in_child
def _after_fork_in_child() -> None:
    """Whoever kept it from running may not be there any more."""
    global _held
    if _held and _collects:
        gc.enable()
    _held = 0
