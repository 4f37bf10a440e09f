"""Whose code a file or a value is: the program's own, an installed library's, or the toolchain's."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from typing import Any

from ...core.module_names import in_any_process, module_name

TOOLCHAIN = {"torch", "triton", "numpy", "forecast_autotune"}
"""Packages whose code is never read: their versions are part of the toolchain."""


class Ownership:
    """Tells a program's own code from code of libraries, and keeps the versions of the libraries that are named."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._packages: set[str] = set()

    def add_package(self, package: str) -> None:
        """Count a package as the program's own, wherever it is installed; not the toolchain or the standard library."""
        if not _is_never_read(package):
            self._packages.add(package)

    def name_of(self, module: str, name: str) -> str:
        """The full name of a library's function or class; the library's version is kept."""
        module = in_any_process(module)
        top = _top(module)
        if not _is_never_read(top):
            version = vars(sys.modules.get(top, types)).get("__version__")
            if isinstance(version, str):
                self.versions[top] = version
        return f"{module}.{name}".strip(".")

    def is_own(self, value: Any) -> bool:
        """Whether a function or class is the program's own, and not an installed library's."""
        module = module_name(value)
        file = value.__code__.co_filename if issubclass(type(value), types.FunctionType) else "<class>"
        if file.startswith("<"):  # typed in, or made by a decorator such as `dataclass`
            # `__main__` may name the file of what runs the program, such as pytest.
            known = sys.modules.get(module) if module != "__main__" else None
            file = vars(known).get("__file__") if known is not None else None
        if not isinstance(file, str):
            return not _is_never_read(_top(module))
        return not is_library(file) or (_top(module) in self._packages and package_holds(_top(module), file))

    def is_own_module(self, module: types.ModuleType) -> bool:
        """Whether a module is the program's own; the version of one that is not is kept."""
        top = _top(module.__name__)
        if top in self._packages:
            return True
        file = vars(module).get("__file__")
        if _is_never_read(top) or (file and is_library(str(file))):
            self.name_of(module.__name__, "")
            return False
        return True

    def own_file(self, module: str) -> str | None:
        """The file of a module by its name, loaded or not; None where it is not the program's own."""
        if _is_never_read(_top(module)):
            return None
        file = file_of_module(module)
        return None if file is None or (is_library(file) and _top(module) not in self._packages) else file


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_never_read(package: str) -> bool:
    return package in TOOLCHAIN or package in sys.stdlib_module_names


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders if folder)


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file is Python's, an installed package's, or, wherever it lies, the toolchain's."""
    real = os.path.realpath(file)
    if f"{os.sep}site-packages{os.sep}" in real or f"{os.sep}dist-packages{os.sep}" in real:
        return True
    return real.startswith(_library_folders()) or any(package_holds(name, file) for name in TOOLCHAIN)


def package_holds(package: str, file: str) -> bool:
    """Whether a file lies in a package that is loaded, or is the module of that name."""
    known = sys.modules.get(package)
    origin = vars(known).get("__file__") if known is not None else None
    if not isinstance(origin, str):
        return False
    if os.path.basename(origin).startswith("__init__."):
        return os.path.realpath(file).startswith(os.path.dirname(os.path.realpath(origin)) + os.sep)
    return os.path.realpath(file) == os.path.realpath(origin)


def module_of_file(file: str) -> str:
    """A file's module by its file name alone; empty for code that was typed in."""
    return "" if file.startswith("<") else os.path.splitext(os.path.basename(file))[0]


def file_of_module(module: str) -> str | None:
    """The file of a module by name, loaded or not; nothing is imported."""
    from importlib.machinery import PathFinder

    if (loaded := sys.modules.get(module)) is not None:
        file = vars(loaded).get("__file__")
    else:
        parent, _, _ = module.rpartition(".")
        path = vars(sys.modules.get(parent, types)).get("__path__") if parent else None
        spec = PathFinder.find_spec(module, path) if path is not None or not parent else None
        file = spec.origin if spec is not None else None
    return file if file and file.endswith(".py") and os.path.isfile(file) else None
