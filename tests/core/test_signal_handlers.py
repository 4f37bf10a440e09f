"""What a handler of signals raises is told from what the code raises that the signal met."""

from __future__ import annotations

import functools
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from collecting import without_collecting

from forecast_autotune.core.signal_handlers import raised_by_signal_handler


class DeadlineError(Exception):
    """The program's own."""


def late(*_: object) -> None:
    raise DeadlineError


def late_with_frames(_: int, frame: Any) -> None:
    while frame is not None:
        frame = frame.f_back
    raise DeadlineError


class Late:
    def __call__(self, number: int, frame: object) -> None:
        raise DeadlineError


def is_of_a_handler(function: Callable[..., object], *args: object) -> bool:
    try:
        function(*args)
    except DeadlineError as err:
        return raised_by_signal_handler(err)
    raise AssertionError("no error")


@pytest.mark.parametrize("handler", [late, late_with_frames, Late(), functools.partial(late, 1)])
def test_an_error_of_a_signal_handler_is_recognised(handler: Callable[..., None]) -> None:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        assert is_of_a_handler(signal.raise_signal, signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)


class Held:
    """Something that can be referred to weakly."""


def test_an_error_of_the_code_itself_is_none_and_leaves_no_cycle() -> None:
    def fail(_: Held) -> None:
        raise DeadlineError

    held = Held()
    held_still = weakref.ref(held)
    with without_collecting():
        assert not is_of_a_handler(fail, held)
        del held
        assert held_still() is None


def test_a_function_that_is_handed_its_callers_frame_is_no_handler() -> None:
    def fail(frame: Any) -> None:
        raise DeadlineError

    assert not is_of_a_handler(lambda: fail(sys._getframe()))


def test_an_error_that_was_never_raised_is_nobodys() -> None:
    assert not raised_by_signal_handler(DeadlineError())
