"""A Triton kernel's source as a model of what it does: what it loads, stores and multiplies, as code to evaluate.

The syntax tree is walked once (`kernel_walk`); shapes, sizes and trip counts are Python expressions, into which a config
only puts numbers (`kernel_counts`). What the walk does not understand it leaves out.
"""

from __future__ import annotations

import ast
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .kernel_walk.notes import Access, Dot, Notes
from .kernel_walk.source import definition_of, parameters_of, scope_of, source_of
from .kernel_walk.symbols import argument, last_name, number_argument
from .kernel_walk.walker import Walker

log = logging.getLogger(__name__)

_OF_NUMBERS = ("range", "static_range", "cdiv", "arange", "min", "max")  # functions whose arguments are no pointers
_PROGRAM = re.compile(r"\bpid\d")
_OURS = re.compile(r"\b_(?:for|if)?\d+\b")  # names of lines


@dataclass(frozen=True, slots=True)
class KernelModel:
    """What one kernel does: what `kernel_counts` puts numbers into. Empty where the source does not tell."""

    roles: Mapping[str, str]  # constexpr parameter to role, as far as its use shows it
    covers: Mapping[str, str]  # block size to the argument it divides
    code: CodeType | None = field(repr=False)  # sets the numbers that all below names
    repeats: tuple[str, ...] = field(repr=False)  # of loops and branches, the outer before the inner
    by_program: bool = field(repr=False)  # whether numbers depend on which program it is
    uneven: tuple[str, ...] = field(repr=False)  # repeats of loops that do
    accesses: tuple[Access, ...] = field(repr=False)
    dots: tuple[Dot, ...] = field(repr=False)
    arithmetic: Counter[tuple[str, str]] = field(repr=False)  # operations by elements and times
    serial: frozenset[str] = field(repr=False)  # loops in which a product waits for one of the trip before
    unrolled: Mapping[str, str] = field(repr=False)  # loop to how many of its trips are made one
    held: tuple[tuple[str, str], ...] = field(repr=False)  # bytes that lie in registers at one time, and how often


_EMPTY = KernelModel({}, {}, None, (), False, (), (), (), Counter(), frozenset(), {}, ())


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
    constants, numbers = _constants_among(definition), _numbers_among(definition)
    walker.names = {
        name: number_argument(name, constant=name in constants) if name in constants | numbers else argument(name)
        for name in parameters
    }
    walker.body(definition.body)
    notes = walker.notes
    held = _held(notes)
    lines = _needed(notes, [name for pair in held for name in pair])
    by_program = _by_program(lines)
    return KernelModel(
        roles={name: role for name, role in notes.roles.items() if name in parameters},
        covers={knob: length for knob, length in notes.covers.items() if {knob, length} <= set(parameters)},
        code=compile(_text(lines), "<kernel model>", "exec"),
        repeats=tuple(name for name, _ in lines if name.startswith(("_for", "_if"))),
        by_program=bool(by_program),
        uneven=tuple(name for name in by_program if name.startswith("_for")),
        accesses=tuple(notes.accesses),
        dots=tuple(notes.dots),
        arithmetic=notes.arithmetic,
        serial=frozenset(notes.serial),
        unrolled=notes.unrolled,
        held=held,
    )


def _held(notes: Notes) -> tuple[tuple[str, str], ...]:
    """The bytes that lie in registers at one time; operands that are read from memory for a product lie elsewhere."""
    held: dict[tuple[str, str], None] = {}
    for tiles, times in notes.held.items():
        sizes = [
            f"{notes.size(tile.shape)}*({tile.element or 4})"
            for tile in dict.fromkeys(tiles)
            if not tile.loaded or not all(notes.accesses[number].feeds_dot for number in tile.loaded)
        ]
        if sizes:
            held[notes.number("+".join(sizes)), times] = None
    return tuple(held)


def _needed(notes: Notes, names: Iterable[str]) -> list[tuple[str, str]]:
    """The lines that the model's numbers are computed from, in their order."""
    wanted = {*names, *notes.unrolled.values(), *(name for place in notes.arithmetic for name in place)}
    for access in notes.accesses:
        wanted.update((access.elements, access.times, access.reach, access.width))
        wanted.update(name for axis in access.axes or () for name in axis)
    for dot in notes.dots:
        wanted.update((dot.m, dot.n, dot.k, dot.element or "", dot.times))
    lines = []
    for name, expression in reversed(notes.lines):
        if name in wanted:
            wanted.update(_OURS.findall(expression))
            lines.append((name, expression))
    return lines[::-1]


def _by_program(lines: Iterable[tuple[str, str]]) -> list[str]:
    """The lines that depend on which program it is."""
    found: list[str] = []
    for name, expression in lines:
        if _PROGRAM.search(expression) or not set(found).isdisjoint(_OURS.findall(expression)):
            found.append(name)
    return found


def _text(lines: Iterable[tuple[str, str]]) -> str:
    """The lines as a program. What cannot be computed stays unset; of a loop or a branch, `unsure` tells its repeats."""
    parts = []
    for name, expression in lines:
        rescue = f"{name} = unsure({name!r})" if name.startswith(("_for", "_if")) else "pass"
        parts.append(f"try: {name} = {expression}\nexcept Exception: {rescue}\n")
    return "".join(parts)


def _constants_among(definition: ast.FunctionDef) -> set[str]:
    """The parameters that are constexprs."""
    parameters = parameters_of(definition)
    return {p.arg for p in parameters if p.annotation is not None and "constexpr" in ast.unparse(p.annotation)}


def _numbers_among(definition: ast.FunctionDef) -> set[str]:
    """The parameters that are used as numbers. All others but constexprs may point to memory."""
    used = {operand.id for node in ast.walk(definition) for operand in _operands(node) if isinstance(operand, ast.Name)}
    return used & {p.arg for p in parameters_of(definition)}


def _operands(node: ast.AST) -> Sequence[ast.expr]:
    """What a node multiplies, divides, compares or counts up to, which is no pointer."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)):
        return [node.left, node.right]
    if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and last_name(node.func) in _OF_NUMBERS:
        return node.args
    return []
