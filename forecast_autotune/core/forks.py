"""What is to be done in the child of a fork before anything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

_Handler = TypeVar("_Handler", bound=Callable[[], object])


def after_fork_in_child(handler: _Handler) -> _Handler:
    """Call a function in every child of a fork, after those that were registered before it; usable as a decorator."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=handler)
    return handler
