"""Programs that switch Python's collector off, as serving frameworks do."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """No cycle is collected within, as in programs that switch the collector off."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
