"""install(): replace `triton.autotune` in this process, for other people's packages too."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from ...errors import MissingExtraError
from .autotune import autotune

MODULES = ("triton", "triton.runtime", "triton.runtime.autotuner")
"""Modules that offer `autotune`. The class `Autotuner` stays Triton's: torch asks whether a kernel is one, and packages
derive their own from it."""

_lock = threading.Lock()
_before: dict[str, Any] = {}  # the `autotune` of each module before


def install() -> None:
    """Make every later `triton.autotune` in this process `forecast_autotune`'s; kernels decorated before stay as they are.

    A second call changes nothing. Our front end, and torch with it, is imported at the first decorated kernel: when Triton
    is being imported torch may be half imported, and a program without kernels need not wait.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    try:
        importlib.import_module("triton")
    except ImportError as err:
        raise MissingExtraError(
            "Triton is not installed, so there is no autotune to replace: pip install triton"
        ) from err
    with _lock:
        for name in MODULES:
            module = importlib.import_module(name)
            if module.autotune is not autotune:
                _before[name] = module.autotune
                module.autotune = autotune  # type: ignore[attr-defined]


def uninstall() -> None:
    """Undo `install()`: `triton.autotune` is what it was before; kernels decorated meanwhile stay ours.

    A module whose `autotune` somebody else has replaced since keeps theirs.
    """
    with _lock:
        for name, theirs in _before.items():
            module = importlib.import_module(name)
            if module.autotune is autotune:
                module.autotune = theirs  # type: ignore[attr-defined]
        _before.clear()
