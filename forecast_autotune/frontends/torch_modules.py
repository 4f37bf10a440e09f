"""What is asked of torch's modules before they are patched. Importing this imports no torch."""

from __future__ import annotations

import inspect
import sys
from typing import Any


def is_imported(name: str) -> bool:
    """Whether a module is imported, to its end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def takes(owner: Any, name: str, *parameters: str) -> bool:
    """Whether a class or module has a function of this name that takes exactly these parameters."""
    function = getattr(owner, name, None)
    return callable(function) and tuple(inspect.signature(function).parameters) == parameters
