"""Loads single modules of packages whose other dependencies are not installed: what those modules import is absent or given.

For scripts that run in a process of their own: `from half_packages import load`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock


class _Absent(types.ModuleType):
    """A module that has any name: each is a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str, real: Collection[str], given: Mapping[str, Mapping[str, Any]]) -> None:
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        self.package, self.root, self.real, self.given = package, Path(found.origin).parent, real, given

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != self.package or name in self.real:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Absent(spec.name)
        vars(module).update(self.given.get(spec.name, {}))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = [str(self.root.joinpath(*module.__name__.split(".")[1:]))]


def load(name: str, real: Collection[str] = (), given: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """A module of a package as it is installed, and with it those in `real`; every other one of the package is absent.

    Args:
        given: by module, names that an absent one is to have.
    """
    sys.meta_path.insert(0, _Finder(name.partition(".")[0], {name, *real}, given or {}))
    return importlib.import_module(name)
