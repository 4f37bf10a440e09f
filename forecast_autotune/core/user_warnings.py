"""Warnings that point at the user's line, however deep inside this package they are given."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# Code between a user's line and us: Triton calls a tuner's `run` from `kernel[grid]`, torch wraps what it does not trace,
# and a thread begins in the standard library.
_BETWEEN = frozenset((__name__.partition(".")[0], "triton", "torch")) | sys.stdlib_module_names

SEE_TRACEBACK = (
    "to see the traceback, begin with: import logging; logging.basicConfig(); "
    "logging.getLogger('forecast_autotune').setLevel('DEBUG')"
)
"""What a warning of an error that nobody expected ends with: its traceback goes to the log, at level DEBUG."""

_given: set[str] = set()  # by `warn_once`


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the nearest line of the user's that led here; where there is none, as in a thread, at the outermost.

    `warnings.warn(skip_file_prefixes=…)` does so from Python 3.12 on.
    """
    frame = sys._getframe(1)
    while _is_between(frame) and frame.f_back is not None:
        frame = frame.f_back
    scope = frame.f_globals
    warnings.warn_explicit(
        text,
        category,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=scope.get("__name__") or "<unknown>",
        registry=scope.setdefault("__warningregistry__", {}),
    )


def warn_once(text: str, category: type[Warning]) -> None:
    """Warn as `warn_user`, unless this process has given the same warning before."""
    if text not in _given:
        _given.add(text)
        warn_user(text, category)


def _is_between(frame: FrameType) -> bool:
    """Whether a frame runs code of ours, of Triton, of torch or of the standard library."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in _BETWEEN
