"""What `tune` is given: a suite, whose calls are known by name, or any other program."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

from ..core.text import error_text
from ..errors import InvalidInputError

CALLS = "tuning_calls"
"""The function that makes a module a suite: it returns its calls, each a function without arguments, by name."""


def find_module(name: str) -> ModuleSpec | None:
    """A module by its name, looked for in the current folder first, as for a program that is run; None if there is none.

    Raises:
        InvalidInputError: a package that it is in cannot be imported.
    """
    _look_here()
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a package on the way to it is not there, or it is no name
        return None
    except Exception as err:  # a package on the way to it raises
        raise InvalidInputError(f"module {name}: {type(err).__name__}: {error_text(err)}") from err


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def is_suite(program: str, *, module: bool) -> bool:
    """Whether a file, or a module by its name, defines `tuning_calls`. It is read, not run."""
    path: str | None = program
    if module:
        found = find_module(program)
        path = None if found is None else found.origin
    if path is None or not path.endswith(".py"):
        return False
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # running it says more
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == CALLS for node in tree.body)


def calls_of(program: str, *, module: bool) -> Mapping[str, Callable[[], object]]:
    """The calls of a suite, by name; it is imported for that.

    Raises:
        InvalidInputError: it cannot be imported, or its `tuning_calls` returns something else.
    """
    try:
        if module:
            _look_here()
            suite = importlib.import_module(program)
        else:
            sys.path.insert(0, str(Path(program).absolute().parent))  # as for a program that is run
            name = f"_suite_{Path(program).stem}"
            spec = importlib.util.spec_from_file_location(name, program)
            if spec is None or spec.loader is None:
                raise InvalidInputError("it is no Python file")
            suite = importlib.util.module_from_spec(spec)
            sys.modules[name] = suite
            spec.loader.exec_module(suite)
        calls = getattr(suite, CALLS)()
    except Exception as err:
        raise InvalidInputError(f"suite {program}: {type(err).__name__}: {error_text(err)}") from err
    if not isinstance(calls, Mapping) or not all(isinstance(n, str) and callable(c) for n, c in calls.items()):
        raise InvalidInputError(f"suite {program}: {CALLS}() must return functions by name, a dict of str to callable")
    return calls


def chosen(names: list[str], wanted: list[str]) -> list[str]:
    """The names that are wanted: those, and all that begin with one of them and `/`; all where none is.

    Raises:
        InvalidInputError: one fits nothing.
    """
    for word in wanted:
        if not any(name == word or name.startswith(f"{word}/") for name in names):
            raise InvalidInputError(f"the suite has no call {word!r}: it has {', '.join(names)}")
    return [n for n in names if not wanted or any(n == word or n.startswith(f"{word}/") for word in wanted)]
