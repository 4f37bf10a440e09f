"""Names that code reads from outside itself, and names that the functions of a module write to."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

from ...core.syntax import parsed
from .source import lines_of
from .values import PLAIN, is_kernel

_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_MUTATES = frozenset(
    ("append", "add", "extend", "insert", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear")
)


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Names that code reads from outside itself.

    `lib.act.f` is `("lib", "act", "f")`; `from .lib import f` is `("import", "lib", ".")`, with as many dots.
    """
    chains: dict[tuple[str, ...], None] = {}
    _read(code, frozenset(), chains)
    return tuple(chains)


def _read(code: types.CodeType, local: frozenset[str], chains: dict[tuple[str, ...], None]) -> None:
    local |= frozenset(code.co_cellvars)
    chain: tuple[str, ...] = ()
    level = 0
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, step.argval)
            continue
        if chain:
            chains[chain] = None
        chain = ()
        if step.opname in _READS and step.argval not in local and not step.argval.startswith("__"):
            chain = (step.argval,)
        elif step.opname == "LOAD_CONST" and type(step.argval) is int:
            level = step.argval
        elif step.opname == "LOAD_SMALL_INT":
            level = step.arg or 0
        elif step.opname == "IMPORT_NAME":
            chains["import", step.argval, "." * level] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, local, chains)


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that a function reads, by name; those not assigned yet are left out."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            held[name] = cell.cell_contents
    return held


def is_state(value: Any, name: str, module: str) -> bool:
    """Whether the functions of a module write to the value that stands under this name."""
    if issubclass(type(value), (types.FunctionType, type, str, tuple)) or is_kernel(value):
        return False
    if type(value) in PLAIN and not re.search(rf"\b(global|nonlocal)\b.*\b{name}\b|\.{name}\b", _module_text(module)):
        return False  # which saves parsing it
    return name in _written_in(module)


def _module_text(module: str) -> str:
    file = vars(sys.modules.get(module, types)).get("__file__")
    try:
        return "".join(lines_of(file)) if isinstance(file, str) and module in sys.modules else ""
    except LookupError:
        return ""


@functools.lru_cache(maxsize=256)
def _written_in(module: str) -> frozenset[str]:
    """Names that the functions of a module write to: its caches and counters, which are state and no part of the code.

    That is what they index into, append to or count up; and what a `__call__` or `forward` sets in its object.
    """
    try:
        tree = parsed(lambda: ast.parse(_module_text(module)))
    except SyntaxError:
        return frozenset()
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
            written |= set(_writes(node))
    return frozenset(written)


def _writes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    nodes = list(ast.walk(function))
    shared = {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    local = {n.arg for n in nodes if isinstance(n, ast.arg)}
    local |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - shared
    called = function.name in ("__call__", "forward")
    for node in nodes:
        target: ast.AST | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATES:
            target = node.func.value
        elif isinstance(node, ast.AugAssign) or (
            called and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ):
            target = node.target if isinstance(node, ast.AugAssign) else node
        if isinstance(target, ast.Name) and target.id not in local:
            yield target.id
        elif isinstance(target, ast.Attribute):
            yield target.attr
