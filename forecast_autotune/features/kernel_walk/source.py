"""The source of a kernel: its text, its syntax tree, and the names that its code finds outside of it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...core.syntax import parsed


def source_of(kernel: Any) -> str:
    """The text of a JITFunction, an interpreted one, or a plain function.

    Raises:
        OSError, TypeError: it cannot be read.
    """
    source = getattr(kernel, "src", None)
    if isinstance(source, str):
        return source
    return textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel)))


def definition_of(kernel: Any) -> ast.FunctionDef | None:
    """The syntax tree of a kernel's function; None if its source holds none."""
    return _first_function(source_of(kernel))


@lru_cache(maxsize=256)
def _first_function(source: str) -> ast.FunctionDef | None:
    body = parsed(lambda: ast.parse(source)).body
    return next((node for node in body if isinstance(node, ast.FunctionDef)), None)


def parameters_of(definition: ast.FunctionDef) -> list[ast.arg]:
    """Every parameter of a function but `*args` and `**kwargs`."""
    return [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]


def scope_of(kernel: Any) -> Mapping[str, Any]:
    """Names that a kernel's code finds outside of it: globals, and what its closure holds."""
    function = getattr(kernel, "fn", kernel)
    scope = getattr(function, "__globals__", {})
    closed = getattr(function, "__closure__", None)
    if not closed:
        return scope
    inner = {}
    for name, cell in zip(function.__code__.co_freevars, closed, strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            inner[name] = cell.cell_contents
    return {**scope, **inner}
