"""A Triton kernel as a Program: its source with that of everything it calls."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any

from ..core.workload import Program

_JIT = ("JITFunction", "InterpretedFunction", "GluonJITFunction")


def program_of(kernel: Any) -> Program:
    """The program a kernel stands for; of an interpreted or foreign kernel what can be told.

    Its text holds the kernel, the JIT functions it calls, and the global constants it reads, so that its digest changes
    when any of these does, and not with line numbers.
    """
    seen: dict[int, str] = {}
    constants: dict[str, str] = {}
    _collect(kernel, seen, constants)
    texts = [*(f"{name} = {value}" for name, value in sorted(constants.items())), *seen.values()]
    function = getattr(kernel, "fn", kernel)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(kernel).__name__)}"
    return Program(name=name, language="triton", source="\n\n".join(texts))


def _collect(kernel: Any, seen: dict[int, str], constants: dict[str, str]) -> None:
    if id(kernel) in seen:
        return
    function = getattr(kernel, "fn", kernel)
    source = getattr(kernel, "src", None)
    if not isinstance(source, str):
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            source = repr(getattr(function, "__qualname__", function))
    seen[id(kernel)] = source
    scope = dict(getattr(function, "__globals__", {}))
    if inspect.isfunction(function):
        scope.update(inspect.getclosurevars(function).nonlocals)
    for name in names_in(source):
        owner, _, attribute = name.partition(".")
        value = scope.get(owner)
        if attribute:
            value = getattr(value, attribute, None) if inspect.ismodule(value) else None
        plain = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(plain, (bool, int, float, str)):
            constants[name] = repr(plain)
        elif (
            value is not None
            and type(value).__name__ in _JIT
            and not str(value.fn.__module__).startswith("triton.language")
        ):  # those are the toolchain's
            _collect(value, seen, constants)


@functools.lru_cache(maxsize=512)
def names_in(source: str) -> tuple[str, ...]:
    """Names read in a source, `module.name` among them; none where it does not parse."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return ()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found[node.id] = None
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found[f"{node.value.id}.{node.attr}"] = None
    return tuple(found)
