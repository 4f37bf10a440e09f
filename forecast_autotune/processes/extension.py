"""A built extension as a value, and loading it. Where it is built and where it is run share this and nothing else."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BuildError, InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A shared library with functions: a Python module, or one that registers torch operators.

    `name` is the module's name, the one in its init symbol. `namespace` is that of its operators, None for a module.
    """

    path: str
    name: str
    namespace: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads it from."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Extension:
        """The extension that `as_json` wrote."""
        return cls(path=value["path"], name=value["name"], namespace=value["namespace"])

    def function(self, name: str) -> Callable[..., Any]:
        """Load the library into this process and return one of its functions.

        Raises:
            InvalidInputError: it has no such function; lists those it has.
            BuildError: the library is gone, as where another process has removed it since.
            ImportError, OSError: it cannot be loaded.
        """
        try:
            return self._loaded_function(name)
        except (ImportError, OSError) as err:
            if pathlib.Path(self.path).exists():
                raise
            raise BuildError(f"{self.path} was removed before it was loaded") from err

    def _loaded_function(self, name: str) -> Callable[..., Any]:
        import torch

        if self.namespace is not None:
            torch.ops.load_library(self.path)
            operators = getattr(torch.ops, self.namespace)
            try:
                return getattr(operators, name)  # type: ignore[no-any-return]
            except AttributeError:
                raise InvalidInputError(f"no operator {name!r} in torch.ops.{self.namespace}") from None
        # Only the last part of the name is the init symbol's. The first keeps variants apart: pybind11 3 caches modules by
        # their full name, and a second library of the same name would yield the first one's functions.
        variant = pathlib.Path(self.path).parent.name
        spec = importlib.util.spec_from_file_location(f"forecast_autotune_{variant}.{self.name}", self.path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.path} is no extension module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return getattr(module, name)  # type: ignore[no-any-return]
        except AttributeError:
            there = sorted(n for n in vars(module) if not n.startswith("__"))
            raise InvalidInputError(f"no function {name!r} in module {self.name}; it has {', '.join(there)}") from None
