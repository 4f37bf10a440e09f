"""install(): every later `triton.autotune` of this process becomes ours, in other people's packages too."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from ...errors import MissingExtraError

PLACES = ("triton", "triton.runtime", "triton.runtime.autotuner")
"""Modules that offer `autotune`. The class `Autotuner` stays Triton's: torch asks whether a kernel is one, and packages
derive their own from it."""

_lock = threading.Lock()
_before: dict[str, Any] = {}  # what each of the places held
_ours: list[Callable[..., Any]] = []  # what was put there instead


def install() -> None:
    """Make every later `triton.autotune` in this process `forecast_autotune`'s; kernels decorated before stay as they are.

    Doing it twice is doing it once.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    _import_triton()
    from .autotuner import autotune

    _put(autotune)


def install_lazily() -> None:
    """Like `install()`, for the moment Triton is imported: our front end, and torch with it, follow at the first decorator.

    Torch may be half imported at that moment; and what never decorates a kernel shall not wait for it.
    """
    if _ours:
        return
    _import_triton()
    theirs = importlib.import_module("triton.runtime.autotuner").autotune

    @functools.wraps(theirs)
    def autotune(*args: Any, **kwargs: Any) -> Any:
        from .autotuner import autotune as ours

        return ours(*args, **kwargs)

    _put(autotune)


def uninstall() -> None:
    """Give `triton.autotune` back what it was before `install()`; kernels decorated meanwhile stay ours.

    A place that somebody else has changed since is left to them.
    """
    with _lock:
        for name, theirs in _before.items():
            module = importlib.import_module(name)
            if any(module.autotune is ours for ours in _ours):
                module.autotune = theirs  # type: ignore[attr-defined]
        _before.clear()
        _ours.clear()


def _put(autotune: Callable[..., Any]) -> None:
    with _lock:
        for name in PLACES:
            module = importlib.import_module(name)
            if module.autotune is autotune:
                continue
            if not any(module.autotune is ours for ours in _ours):
                _before[name] = module.autotune
            module.autotune = autotune  # type: ignore[attr-defined]
        if autotune not in _ours:
            _ours.append(autotune)


def _import_triton() -> None:
    try:
        importlib.import_module("triton")
    except ImportError as err:
        raise MissingExtraError(
            "Triton is not installed, so there is no autotune to replace: pip install triton"
        ) from err
