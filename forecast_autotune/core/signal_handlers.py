"""Errors that a program raises in its handlers of signals, such as for a deadline or at a supervisor's SIGTERM."""

from __future__ import annotations

import inspect
import signal
import traceback
import types


def raised_by_signal_handler(err: BaseException) -> bool:
    """Whether a handler of signals has raised an error that the caller caught; what the signal met is not to blame."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    # Not the caller's own frame: to read its variables makes a cycle of it and the error, before Python 3.13.
    below = None if err.__traceback__ is None else err.__traceback__.tb_next
    return any(frame.f_code in handlers or _is_a_handlers(frame) for frame, _ in traceback.walk_tb(below))


def _is_a_handlers(frame: types.FrameType) -> bool:
    """Whether it was called with a signal's number and the frame that calls it, as a handler is, and little else."""
    names, varargs, _, values = inspect.getargvalues(frame)
    given = [values.get(name) for name in names]
    rest = values.get(varargs) if varargs else None
    if type(rest) is tuple:
        given.extend(rest)
    # A value may be anything: isinstance could ask it.
    has_number = any(issubclass(type(value), int) for value in given)
    return has_number and frame.f_back is not None and any(value is frame.f_back for value in given)
