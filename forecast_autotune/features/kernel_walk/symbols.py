"""`Symbol`: what is known of a value within a kernel, its shape and numbers written as Python expressions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

ELEMENT_BYTES = {
    "int1": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8e5": 1, "float8e4nv": 1, "float8e4b15": 1, "float8e4b8": 1, "float8e5b16": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip

FAR = "1e30"  # a step to another place in memory altogether
WHOLE = 16  # elements in a row and divisors beyond are not told apart: they fill an access of 16 bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """A value within the kernel: shape and numbers as expressions, bytes of an element, whose memory it points into."""

    shape: tuple[str, ...] = ()
    value: str | None = None  # of a scalar; a name of `Notes.lines`, an argument's, or a literal
    element: str | None = None  # bytes of an element: an expression
    base: str | None = None  # the argument a pointer or descriptor points into
    items: tuple[Symbol, ...] | None = None  # of a tuple
    integer: bool = True
    loaded: tuple[int, ...] = ()  # the accesses its data came from, by elements
    varies: frozenset[str] = frozenset()  # the axes of the grid and the loops with which it changes
    from_memory: bool = False  # whether it depends on what was loaded
    # What a compiler knows of whole numbers and places: how many follow one another, and a power of two that divides the
    # first of each such run. By these it makes one access of several elements.
    run: str = "1"
    multiple: str = "1"
    # Along each axis, elements from one whole number or place to the next, as most neighbours have it: "0" where they are
    # the same, `FAR` where memory tells them. Unknown where they are not as many as there are axes.
    steps: tuple[str, ...] = field(default=(), compare=False)
    # What it depends on of the trip before: the loop, the variable, and whether through a product's operand.
    chained: frozenset[tuple[str, str, bool]] = frozenset()


UNKNOWN = Symbol()


def argument(name: str) -> Symbol:
    """An argument of the kernel, which may be a number or point to memory; `describe_call` knows it by this name."""
    return Symbol(value=name, base=name, element=f"{name}__bytes", multiple=f"told_multiple({name})")


def number_argument(name: str, *, constant: bool) -> Symbol:
    """An argument that is a number. Of one that is no compile-time constant a compiler knows only whether 16 divides it."""
    return Symbol(value=name, multiple=f"{'multiple' if constant else 'told_multiple'}({name})")


def broadcast(parts: Sequence[Symbol]) -> Symbol:
    """What several values have in common when they meet in one operation: shapes broadcast, a pointer stays one."""
    shape: tuple[str, ...] = ()
    for part in parts:
        longer, shorter = (shape, part.shape) if len(shape) >= len(part.shape) else (part.shape, shape)
        padded = ("1",) * (len(longer) - len(shorter)) + shorter
        shape = tuple(b if a == "1" else a for a, b in zip(longer, padded, strict=True))
    pointer = next((p for p in parts if p.base), None)
    blocks = [p for p in parts if p.shape] or list(parts)
    sizes = [p.element for p in blocks if p.element]
    return Symbol(
        shape=shape,
        element=pointer.element if pointer else (sizes[0] if sizes else None),
        base=pointer.base if pointer else None,
        integer=all(p.integer for p in parts),
        loaded=tuple(n for p in parts for n in p.loaded)[:8],
        varies=frozenset().union(*(p.varies for p in parts)),
        from_memory=any(p.from_memory for p in parts),
        chained=frozenset().union(*(p.chained for p in parts)),
    )


def steps_of(value: Symbol, rank: int) -> tuple[str, ...]:
    """`Symbol.steps` of a value that is broadcast to so many axes."""
    own = value.steps if len(value.steps) == len(value.shape) else ("unknown",) * len(value.shape)
    return ("0",) * (rank - len(own)) + own


def reduced(value: Symbol, axis: ast.expr | None, *, keep_dims: bool = False) -> Symbol:
    """What a reduction along an axis leaves; of everything where the axis is unknown."""
    if isinstance(axis, ast.UnaryOp) and isinstance(axis.operand, ast.Constant):
        axis = ast.Constant(-axis.operand.value)  # type: ignore[operator]
    at = axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else None
    if at is None or not value.shape:
        return replace(value, shape=(), value=None, loaded=())
    shape = list(value.shape)
    if -len(shape) <= at < len(shape):
        shape[at : at + 1 or None] = ["1"] if keep_dims else []
    return replace(value, shape=tuple(shape), value=None, loaded=())


def transposed(shape: Sequence[str]) -> tuple[str, ...]:
    """A shape with its last two axes exchanged."""
    return (*shape[:-2], *shape[-2:][::-1])


def product(dims: Sequence[str]) -> str:
    """The expression of how many elements a shape has."""
    factors = [d for d in dims if d != "1"]
    return "*".join(f"({d})" for d in factors) if factors else "1"


def least(one: str, other: str) -> str:
    """The expression of the smaller of two positive whole numbers."""
    return one if one == other else "1" if "1" in (one, other) else f"min({one},{other})"


def most(one: str, other: str) -> str:
    """The expression of the larger of two positive whole numbers."""
    return one if other in (one, "1") else other if one == "1" else f"max({one},{other})"


def last_name(node: ast.expr) -> str:
    """The name at the end of a dotted one; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_true(node: ast.expr | None) -> bool:
    """Whether an expression is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def names_in(node: ast.AST) -> list[str]:
    """Every name in an expression, in the order of the walk."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
