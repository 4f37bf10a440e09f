"""Modules and scripts that a verb imports to find the kernels or tasks in them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.text import error_text
from ..errors import InvalidInputError
from .output import say


@contextlib.contextmanager
def without_arguments(program: str) -> Iterator[None]:
    """The command line as a script sees it that is given no arguments: ours are none of its own."""
    before, sys.argv = sys.argv, [program]
    try:
        yield
    finally:
        sys.argv = before


def load_named(text: str, noun: str, is_one: Callable[[Any], bool]) -> Any:
    """What `MODULE:NAME` names.

    Args:
        noun: what it is to be, such as `autotuned kernel`.
        is_one: whether a value is such; these are listed where there is nothing of the name.
    Raises:
        InvalidInputError: it names nothing, or the module cannot be imported.
    """
    place, _, name = text.rpartition(":")
    usage = f"FILE.py:{noun.split()[-1].upper()}"
    if not place or not name:
        raise InvalidInputError(f"{text!r} names no {noun}: give {usage.replace('FILE.py', 'MODULE')} or {usage}")
    wanted = name.partition(".")[0]
    module = load_module(place, usage, is_enough=lambda module: hasattr(module, wanted))
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            there = ", ".join(n for n, v in vars(module).items() if is_one(v))
            known = f"its {noun}s are {there}" if there else f"there is no {noun} in it"
            raise InvalidInputError(f"{place} has no {name}: {known}")
        value = getattr(value, part)
    return value


def load_module(place: str, usage: str, is_enough: Callable[[types.ModuleType], bool]) -> types.ModuleType:
    """The module of a name or in a file. Its own program is not run, but what stands outside functions is.

    What it prints goes to stderr, for it is no part of a verb's result.

    Args:
        place: a module's name, as Python imports it, or a .py file.
        usage: what to give instead of a module that there is not.
        is_enough: whether a file's module will do though its own program fails; it is left as far as it got.
    Raises:
        InvalidInputError: there is none, or it cannot be imported.
    """
    path = Path(place)
    is_file = path.suffix == ".py" or path.is_file()
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise InvalidInputError(
            f"{place} is a folder: name a Python file in it: {usage.replace('FILE', str(path / 'FILE'))}"
        )
    if is_file and not path.is_file():
        raise InvalidInputError(f"there is no file {place}: look at its spelling, or give its whole path")
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    with contextlib.redirect_stdout(sys.stderr), without_arguments(place):
        return _imported(place, path if is_file else None, usage, is_enough)


def _imported(
    place: str, path: Path | None, usage: str, is_enough: Callable[[types.ModuleType], bool]
) -> types.ModuleType:
    """The module of a name, or in a file where a path is given. See `load_module`."""
    module = None
    try:
        if path is None:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise InvalidInputError(f"{place} is no Python file: give {usage}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except InvalidInputError:
        raise
    except (Exception, SystemExit) as err:  # whatever the user's own module does
        if isinstance(err, ModuleNotFoundError) and err.name == place:
            hint = f"give one that is installed, or {usage}"
            raise InvalidInputError(f"there is no module {place}: {hint}") from err
        why = f"{type(err).__name__}: {error_text(err)}"
        if module is None or not is_enough(module):
            raise InvalidInputError(f"{place} cannot be imported: {why}") from err
        # A script that also calls its kernel, as a first one does, gets no further without a GPU.
        say(f"{place} is read as far as it runs here, where it stops with {why.partition(chr(10))[0]}")
        return module
