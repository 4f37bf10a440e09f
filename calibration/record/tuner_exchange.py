"""Have every autotuned launch of this process go through a function of ours, whoever made the tuner, and when.

`install()` lets a class that derives from Triton's launch as it likes, and keep what it likes. A recording wants each launch
whole, also those of kernels without a tuner. So here the method `run` of Triton's class, of every class derived from it and
of JIT functions is exchanged.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner

Launch = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Gets a tuner or a JIT function, what would have launched it, and the launch's arguments; returns what that returns."""


class _Within(threading.local):
    """Whether this thread is in a launch already: what it launches there is its own business."""

    active = False


_within = _Within()


@contextlib.contextmanager
def launches_through(tuned: Launch, untuned: Launch | None = None) -> Iterator[None]:
    """While this is held, launches of autotuned kernels are made by `tuned`, those of kernels without a tuner by `untuned`.

    Only the outermost launch: what either of them launches, and what a class derived from Triton's hands on to it, is left
    alone. Tuners of this package stay as they are.
    """
    before: list[tuple[type[Any], Any]] = []
    inherited = vars(Autotuner).get("__init_subclass__")

    def exchange(kind: type[Any], by: Launch) -> None:
        if "run" not in vars(kind) or issubclass(kind, ForecastAutotuner):
            return
        theirs = vars(kind)["run"]
        before.append((kind, theirs))

        @functools.wraps(theirs)
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if _within.active:
                return theirs(kernel, *args, **kwargs)
            _within.active = True
            try:
                return by(kernel, functools.partial(theirs, kernel), args, kwargs)
            finally:
                _within.active = False

        kind.run = run

    def derived(kind: type[Any], /, **_: Any) -> None:
        exchange(kind, tuned)

    for kind in _with_derived(Autotuner):
        exchange(kind, tuned)
    if untuned is not None:
        exchange(JITFunction, untuned)
    Autotuner.__init_subclass__ = classmethod(derived)
    try:
        yield
    finally:
        if inherited is None:
            del Autotuner.__init_subclass__
        else:
            Autotuner.__init_subclass__ = inherited
        for kind, theirs in reversed(before):
            kind.run = theirs


def _with_derived(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _with_derived(below)
