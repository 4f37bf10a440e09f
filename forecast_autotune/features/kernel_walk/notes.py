"""`Notes`: what a walk has met so far. Accesses, dots and arithmetic, each with how often it is repeated."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .symbols import MAX_TEXT, UNKNOWN, Symbol, broadcast, product

_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**",
}  # fmt: skip


@dataclass(slots=True)
class Access:
    """A load, a store or an atomic operation, its numbers as expressions."""

    kind: str  # load, store, atomic
    base: str | None
    elements: str
    trips: str
    looped: bool
    feeds_dot: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A product of two tiles, m by k and k by n."""

    m: str
    n: str
    k: str
    trips: str


@dataclass(slots=True)
class Notes:
    """What a kernel does, in the order in which the walk meets it."""

    accesses: list[Access] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    arithmetic: list[tuple[str, str]] = field(default_factory=list)  # elements, trips
    costly: list[tuple[str, str]] = field(default_factory=list)  # the same, of exponentials and the like
    covers: dict[str, str] = field(default_factory=dict)  # knob to the argument it divides
    roles: dict[str, str] = field(default_factory=dict)
    constants: dict[str, int | float | bool | str] = field(default_factory=dict)
    _trips: list[str] = field(default_factory=list)
    _loops: int = 0

    @contextmanager
    def repeated(self, trips: str, *, loop: bool) -> Iterator[None]:
        """What is noted meanwhile happens so many times: in a `loop`, or in a branch, once or not at all."""
        self._trips.append(trips)
        self._loops += loop
        yield
        self._loops -= loop
        self._trips.pop()

    def trip_text(self) -> str:
        """How often what is met now is done, as an expression."""
        factors = [t for t in self._trips if t != "1"]
        text = "*".join(factors)
        return text if factors and len(text) <= MAX_TEXT else "1"

    def access(self, kind: str, pointer: Symbol, values: Sequence[Symbol]) -> Symbol:
        """Note an access through a pointer; returns what is loaded."""
        shape = pointer.shape or (values[0].shape if values else ())
        element = pointer.element if pointer.base else (values[0].element if values else None)
        note = Access(
            kind=kind,
            base=pointer.base,
            elements=product(shape),
            trips=self.trip_text(),
            looped=self._loops > 0,
        )
        self.accesses.append(note)
        return Symbol(shape=shape, element=element, integer=False, loaded=(len(self.accesses) - 1,))

    def dot(self, one: Symbol, other: Symbol) -> Symbol:
        """Note a product of two tiles, and that what was loaded for them feeds it; returns the product."""
        if len(one.shape) < 2 or len(other.shape) < 2:
            return UNKNOWN
        for number in (*one.loaded, *other.loaded):
            self.accesses[number].feeds_dot = True
        batch = product(one.shape[:-2])
        m = one.shape[-2] if batch == "1" else f"({batch}*{one.shape[-2]})"
        self.dots.append(Dot(m, other.shape[-1], one.shape[-1], self.trip_text()))
        return Symbol(shape=(*one.shape[:-1], other.shape[-1]), element="4", integer=False)

    def combined(self, parts: Sequence[Symbol], operator: ast.operator) -> Symbol:
        """Note an operator's arithmetic; returns its outcome, of numbers a longer expression."""
        whole = broadcast(parts)
        sign = _SIGNS.get(type(operator))
        one, other = parts[0].value, parts[-1].value
        text = f"({one}{sign}{other})" if sign and one and other and not whole.shape and not whole.base else None
        if whole.shape and not whole.integer and not whole.base:
            self.arithmetic.append((product(whole.shape), self.trip_text()))
        return replace(whole, value=text)
