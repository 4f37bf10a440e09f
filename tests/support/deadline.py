"""A program's own deadline, which its handler of a signal raises while something is called."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest


class DeadlineError(OSError, ValueError):
    """The program's own, as TimeoutError is: of classes that much code passes over."""


def _raise(*_: object) -> None:
    raise DeadlineError


@contextlib.contextmanager
def deadline_in(owner: Any, name: str, *, call: int = 1) -> Iterator[None]:
    """While this is held, the deadline passes once: when `owner.name` is called for the first time, or a later one."""
    function, calls = getattr(owner, name), 0

    def signalled(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGALRM)
        return function(*args, **kwargs)

    before = signal.signal(signal.SIGALRM, _raise)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, signalled)
            yield
    finally:
        signal.signal(signal.SIGALRM, before)
