"""A Triton kernel's source as a model of what it does: what it loads, stores and multiplies, as code to evaluate.

The syntax tree is walked once (`kernel_walk`); shapes, sizes and trip counts are Python expressions, into which a config
only puts numbers. What the walk does not understand it leaves out.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .kernel_walk.notes import Access, Notes
from .kernel_walk.source import definition_of, parameters_of, scope_of, source_of
from .kernel_walk.symbols import MAX_TEXT, Symbol, argument, last_name
from .kernel_walk.walker import Walker

log = logging.getLogger(__name__)

_OF_NUMBERS = ("range", "static_range", "cdiv", "arange", "min", "max")  # functions whose arguments are no pointers


@dataclass(frozen=True, slots=True)
class KernelModel:
    """What one kernel does: what `features` puts numbers into. Empty where the source does not tell."""

    roles: Mapping[str, str]  # constexpr parameter to role, as far as its use shows it
    covers: Mapping[str, str]  # block size to the argument it divides
    constants: Mapping[str, int | float | bool | str] = field(repr=False)
    accesses: tuple[tuple[Access, CodeType | None, CodeType | None], ...] = field(
        repr=False
    )  # elements x trips, elements
    dots: tuple[tuple[CodeType, CodeType, CodeType, CodeType], ...] = field(repr=False)  # m, n, k, trips
    arithmetic: tuple[CodeType, ...] = field(repr=False)
    costly: tuple[CodeType, ...] = field(repr=False)


_EMPTY = KernelModel({}, {}, {}, (), (), (), ())


def kernel_model(kernel: Any) -> KernelModel:
    """Describe a kernel, once: a JITFunction, an interpreted one, or a plain function with a kernel's body."""
    try:
        kept = vars(kernel).get("_forecast_autotune_model")
        source = source_of(kernel)
        if kept is not None and kept[0] == source:
            return kept[1]  # type: ignore[no-any-return]
        model = _describe(kernel)
        vars(kernel)["_forecast_autotune_model"] = (source, model)
        return model
    except Exception as err:  # a source that cannot be read, or a construct nobody foresaw: then nothing is known
        log.info("nothing is known of kernel %s from its source: %r", getattr(kernel, "__name__", kernel), err)
        return _EMPTY


def _describe(kernel: Any) -> KernelModel:
    definition = definition_of(kernel)
    if definition is None:
        return _EMPTY
    walker = Walker(scope_of(kernel))
    parameters = [a.arg for a in parameters_of(definition)]
    numbers = _numbers_among(definition)
    walker.names = {name: Symbol(value=name) if name in numbers else argument(name) for name in parameters}
    walker.body(definition.body)
    notes = walker.notes
    return KernelModel(
        roles={name: role for name, role in notes.roles.items() if name in parameters},
        covers=dict(notes.covers),
        constants=dict(notes.constants),
        accesses=tuple((a, _code(f"({a.elements})*({a.trips})"), _code(a.elements)) for a in notes.accesses),
        dots=tuple(
            (m, n, k, repeats)
            for d in notes.dots
            if (m := _code(d.m)) and (n := _code(d.n)) and (k := _code(d.k)) and (repeats := _code(d.trips))
        ),
        arithmetic=_arithmetic(notes),
        costly=tuple(code for e, t in notes.costly if (code := _code(f"({e})*({t})"))),
    )


def _arithmetic(notes: Notes) -> tuple[CodeType, ...]:
    """The operations by elements, equal ones counted once with how many they are."""
    merged: dict[tuple[str, str], int] = {}
    for elements, trips in notes.arithmetic:
        merged[elements, trips] = merged.get((elements, trips), 0) + 1
    codes = (_code(f"{count}*({elements})*({trips})") for (elements, trips), count in merged.items())
    return tuple(code for code in codes if code)


def _numbers_among(definition: ast.FunctionDef) -> set[str]:
    """The parameters that are numbers: constexprs, and what is used as a number. All others may point to memory."""
    parameters = parameters_of(definition)
    numbers = {p.arg for p in parameters if p.annotation is not None and "constexpr" in ast.unparse(p.annotation)}
    used = {operand.id for node in ast.walk(definition) for operand in _operands(node) if isinstance(operand, ast.Name)}
    return numbers | (used & {p.arg for p in parameters})


def _operands(node: ast.AST) -> Sequence[ast.expr]:
    """What a node multiplies, divides, compares or counts up to, which is no pointer."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)):
        return [node.left, node.right]
    if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and last_name(node.func) in _OF_NUMBERS:
        return node.args
    return []


def _code(text: str) -> CodeType | None:
    """An expression of our own making, ready to be evaluated; None if it grew beyond reason."""
    if len(text) > 2 * MAX_TEXT:
        return None
    try:
        return compile(text, "<kernel features>", "eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
