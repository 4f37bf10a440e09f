"""`Notes`: what a walk has met so far. Accesses, dots and arithmetic, each with how often it is repeated.

Numbers are written as lines `name = expression`, in the order in which they can be computed. An expression that names
`unknown`, or what no line before it could compute, has no value; see `kernel_counts`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .symbols import UNKNOWN, Symbol, broadcast, product

_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**",
}  # fmt: skip
_POINTS = (ast.Add, ast.Sub)  # what leaves a pointer a pointer
_WORDS = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class Access:
    """A load, a store or an atomic operation, its numbers as names of lines."""

    kind: str  # load, store, atomic
    base: str | None
    elements: str
    repeats: tuple[str, ...]
    varies: frozenset[str]  # the axes of the grid and the loops with which its place changes
    indirect: bool  # whether its place was read from memory
    looped: bool
    feeds_dot: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A product of two tiles, m by k and k by n."""

    m: str
    n: str
    k: str
    element: str | None  # bytes of an operand's element
    repeats: tuple[str, ...]


@dataclass(slots=True)
class Notes:
    """What a kernel does, in the order in which the walk meets it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    arithmetic: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)  # elements, repeats
    costly: Counter[tuple[str, tuple[str, ...]]] = field(
        default_factory=Counter
    )  # the same, of exponentials and the like
    covers: dict[str, str] = field(default_factory=dict)  # knob to the argument it divides
    roles: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # of lines, by their expressions
    _words: dict[str, frozenset[str]] = field(default_factory=dict)  # arguments in a line, by its name
    _repeats: list[str] = field(default_factory=list)
    _loops: int = 0

    def number(self, expression: str) -> str:
        """A name for an expression's value: the same for the same expression. What is short enough is its own name."""
        if expression.isidentifier() or expression.isdigit():
            return expression
        if expression not in self._names:
            self._names[expression] = self._line(f"_{len(self.lines)}", expression)
        return self._names[expression]

    def repeat(self, kind: str, expression: str) -> str:
        """A name for how often something is repeated, a line of its own: `for3`, `if4`."""
        return self._line(f"_{kind}{len(self.lines)}", expression)

    def _line(self, name: str, expression: str) -> str:
        self.lines.append((name, expression))
        words = _WORDS.findall(expression)
        self._words[name] = frozenset().union(*(self._words.get(word, {word}) for word in words))
        return name

    def words(self, value: str) -> frozenset[str]:
        """The arguments that a value is computed from."""
        return frozenset().union(*(self._words.get(word, {word}) for word in _WORDS.findall(value)))

    @contextmanager
    def repeated(self, repeat: str, *, loop: bool) -> Iterator[None]:
        """What is noted meanwhile happens so many times: in a `loop`, or in a branch, once or not at all."""
        self._repeats.append(repeat)
        self._loops += loop
        yield
        self._loops -= loop
        self._repeats.pop()

    def repeats(self) -> tuple[str, ...]:
        """How often what is met now is done: the product of these."""
        return tuple(self._repeats)

    def size(self, shape: Sequence[str]) -> str:
        """How many elements a shape has."""
        return self.number(product(shape))

    def access(self, kind: str, pointer: Symbol, values: Sequence[Symbol]) -> Symbol:
        """Note an access through a pointer; returns what is loaded."""
        shape = pointer.shape or (values[0].shape if values else ())
        element = pointer.element if pointer.base else (values[0].element if values else None)
        note = Access(
            kind=kind,
            base=pointer.base,
            elements=self.size(shape),
            repeats=self.repeats(),
            varies=pointer.varies,
            indirect=pointer.from_memory,
            looped=self._loops > 0,
        )
        self.accesses.append(note)
        return Symbol(
            shape=shape,
            element=element,
            integer=False,
            loaded=(len(self.accesses) - 1,),
            varies=pointer.varies,
            from_memory=True,
        )

    def dot(self, one: Symbol, other: Symbol) -> Symbol:
        """Note a product of two tiles, and that what was loaded for them feeds it; returns the product."""
        if len(one.shape) < 2 or len(other.shape) < 2:
            return UNKNOWN
        for number in (*one.loaded, *other.loaded):
            self.accesses[number].feeds_dot = True
        batch = product(one.shape[:-2])
        m = one.shape[-2] if batch == "1" else f"({batch}*{one.shape[-2]})"
        element = one.element or other.element
        self.dots.append(
            Dot(
                self.number(m),
                self.number(other.shape[-1]),
                self.number(one.shape[-1]),
                element and self.number(element),
                self.repeats(),
            )
        )
        return Symbol(
            shape=(*one.shape[:-1], other.shape[-1]),
            element="4",
            integer=False,
            varies=one.varies | other.varies,
            from_memory=one.from_memory or other.from_memory,
        )

    def combined(self, parts: Sequence[Symbol], operator: ast.operator) -> Symbol:
        """Note an operator's arithmetic; returns its outcome, of numbers a longer expression."""
        whole = broadcast(parts)
        if not isinstance(operator, _POINTS):
            whole = replace(whole, base=None)
        sign = _SIGNS.get(type(operator))
        one, other = parts[0].value, parts[-1].value
        known = sign and one and other and not whole.shape
        if whole.shape and not whole.integer and not whole.base:
            self.arithmetic[self.size(whole.shape), self.repeats()] += 1
        return replace(whole, value=self.number(f"({one}{sign}{other})") if known else None)
