"""install(): replace `triton.autotune` in this process, for other people's packages too."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from ...errors import MissingExtraError

MODULES = ("triton", "triton.runtime", "triton.runtime.autotuner")
"""Modules that offer `autotune`. The class `Autotuner` stays Triton's: torch asks whether a kernel is one, and packages
derive their own from it."""

_lock = threading.Lock()
_before: dict[str, Any] = {}  # the `autotune` of each module before
_ours: list[Callable[..., Any]] = []  # those that replaced it


def install() -> None:
    """Make every later `triton.autotune` in this process `forecast_autotune`'s; kernels decorated before stay as they are.

    A second call changes nothing.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    _import_triton()
    from .autotuner import autotune

    _put(autotune)


def install_lazily() -> None:
    """Like `install()`, but our front end, and torch with it, is imported at the first decorated kernel.

    For the moment when Triton is imported: torch may be half imported then, and a program without kernels need not wait.
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
    """Undo `install()`: `triton.autotune` is what it was before; kernels decorated meanwhile stay ours.

    A module whose `autotune` somebody else has replaced since keeps theirs.
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
        for name in MODULES:
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
