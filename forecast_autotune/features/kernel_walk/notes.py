"""`Notes`: what a walk has met so far. Accesses, dots and arithmetic, each with how often it is repeated.

Numbers are written as lines `name = expression`, in the order in which they can be computed. An expression that names
`unknown`, or what no line before it could compute, has no value; see `kernel_counts`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .symbols import FAR, UNKNOWN, Symbol, broadcast, least, most, product, steps_of

_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**",
}  # fmt: skip
_BOUNDED = {ast.LShift: "shifted", ast.Pow: "power"}  # functions of `kernel_counts`: a source may ask for any number
_POINTS = (ast.Add, ast.Sub)  # what leaves a pointer a pointer
_WORDS = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class Access:
    """A load, a store or an atomic operation, its numbers as names of lines."""

    kind: str  # load, store, atomic
    base: str | None
    elements: str  # at a time
    times: str  # how often: the product of `repeats`
    repeats: tuple[str, ...]
    reach: str  # different elements that all programs together can reach by it
    indirect: bool  # whether its place was read from memory
    loop: str  # the innermost loop around it, by its repeat; empty if there is none
    width: str  # elements that follow one another where a compiler knows it
    # Elements along each, and from one to the next; None where nothing is known
    axes: tuple[tuple[str, str], ...] | None
    feeds_dot: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A product of two tiles, m by k and k by n."""

    m: str
    n: str
    k: str
    element: str | None  # bytes of an operand's element
    times: str
    loop: str


@dataclass(slots=True)
class Notes:
    """What a kernel does, in the order in which the walk meets it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    arithmetic: Counter[tuple[str, str]] = field(default_factory=Counter)  # operations by elements and times
    held: dict[tuple[Symbol, ...], str] = field(default_factory=dict)  # tiles that are needed at once, and how often
    serial: set[str] = field(default_factory=set)  # loops in which a product waits for one of the trip before
    unrolled: dict[str, str] = field(default_factory=dict)  # loop to how many trips are made one
    covers: dict[str, str] = field(default_factory=dict)  # knob to the argument it divides
    roles: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # of lines, by their expressions
    _words: dict[str, frozenset[str]] = field(default_factory=dict)  # arguments in a line, by its name
    _repeats: list[str] = field(default_factory=list)
    _loops: list[str] = field(default_factory=list)

    def hold(self, tiles: Iterable[Symbol]) -> None:
        """Note that these are needed at one time. Whole numbers and places are few, or are computed again."""
        kept = tuple(t for t in tiles if t.shape and not t.integer and not t.base)
        if kept:
            self.held[kept] = self.times()

    def number(self, expression: str) -> str:
        """A name for an expression's value: the same for the same expression, and a name's own."""
        if expression.isidentifier():
            return expression
        if expression not in self._names:
            self._names[expression] = self._line(f"_{len(self.lines)}", expression)
        return self._names[expression]

    def short(self, expression: str) -> str:
        """The same as `number`, but a literal stays one, so that it can be told from other expressions."""
        return expression if expression.isdigit() else self.number(expression)

    def repeat(self, kind: str, expression: str) -> str:
        """A name for how often something is repeated, a line of its own: `_for3`, `_if4`."""
        return self._line(f"_{kind}{len(self.lines)}", expression)

    def branches(self, condition: str | None) -> tuple[str, str]:
        """How often what stands under a condition is done, and what stands under its contrary: once or never."""
        told = condition or "unknown"
        return self.repeat("if", f"(1 if {told} else 0)"), self.repeat("if", f"(0 if {told} else 1)")

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
        self._loops += [repeat] * loop
        yield
        del self._loops[len(self._loops) - loop :]
        self._repeats.pop()

    def times(self) -> str:
        """How often what is met now is done."""
        return self.number("*".join(self._repeats) or "1")

    def size(self, shape: Sequence[str]) -> str:
        """How many elements a shape has."""
        return self.number(product(shape))

    def access(self, kind: str, pointer: Symbol, values: Sequence[Symbol], mask: Symbol = UNKNOWN) -> Symbol:
        """Note an access through a pointer; returns what is loaded."""
        shape = pointer.shape or (values[0].shape if values else ())
        element = pointer.element if pointer.base else (values[0].element if values else None)
        elements = self.size(shape)
        spread = [r for r in self._repeats if r in pointer.varies or r not in self._loops]
        spread += sorted(axis for axis in pointer.varies if axis.startswith("grid"))
        note = Access(
            kind=kind,
            base=pointer.base,
            elements=elements,
            times=self.times(),
            repeats=tuple(self._repeats),
            reach=self.number("*".join([elements, *spread])),
            indirect=pointer.from_memory,
            loop=self._loops[-1] if self._loops else "",
            width=self.number(self._width(pointer, mask)),
            axes=self._axes(pointer, shape),
        )
        self.accesses.append(note)
        if kind == "atomic":
            self.arithmetic[elements, note.times] += 1
        return Symbol(
            shape=shape,
            element=element,
            integer=False,
            loaded=(len(self.accesses) - 1,),
            varies=pointer.varies,
            from_memory=True,
            steps=tuple("0" if extent == "1" else FAR for extent in shape),
        )

    def _axes(self, pointer: Symbol, shape: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
        if not pointer.base and not pointer.shape:
            return None
        axes = zip(shape, steps_of(pointer, len(shape)), strict=True)
        return tuple((self.number(f"({extent})"), self.number(f"({step})")) for extent, step in axes)

    @staticmethod
    def _width(pointer: Symbol, mask: Symbol) -> str:
        """Elements that one access may take; a mask splits it where it may end within. Of two axes it is taken not to."""
        width = least(pointer.run, pointer.multiple)
        return least(width, mask.multiple) if len(pointer.shape) == 1 and mask.run != "1" else width

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
                m=self.number(f"({m})"),
                n=self.number(f"({other.shape[-1]})"),
                k=self.number(f"({one.shape[-1]})"),
                element=element and self.number(f"({element})"),
                times=self.times(),
                loop=self._loops[-1] if self._loops else "",
            )
        )
        return Symbol(
            shape=(*one.shape[:-1], other.shape[-1]),
            element="4",
            integer=False,
            varies=one.varies | other.varies,
            from_memory=one.from_memory or other.from_memory,
            chained=frozenset((loop, name, True) for part in (one, other) for loop, name, _ in part.chained),
        )

    def by_elements(self, value: Symbol, operations: int = 1) -> None:
        """Note operations on each element of a block; numbers cost nothing."""
        if value.shape and not value.base:
            self.arithmetic[self.size(value.shape), self.times()] += operations

    def combined(self, parts: Sequence[Symbol], operator: ast.operator) -> Symbol:
        """Note an operator's arithmetic; returns its outcome, of numbers a longer expression."""
        whole = broadcast(parts)
        if not isinstance(operator, _POINTS):
            whole = replace(whole, base=None)
        sign = _SIGNS.get(type(operator))
        one, other = parts[0].value, parts[-1].value
        known = sign and one and other and not whole.shape
        if not whole.integer:
            self.by_elements(whole)
        bounded = _BOUNDED.get(type(operator))
        text = f"{bounded}({one},{other})" if bounded else f"({one}{sign}{other})"
        run, multiple = self._alignment(parts[0], parts[-1], operator)
        steps = self._steps(parts[0], parts[-1], operator, len(whole.shape))
        return replace(whole, value=self.number(text) if known else None, run=run, multiple=multiple, steps=steps)

    def _steps(self, one: Symbol, other: Symbol, operator: ast.operator, rank: int) -> tuple[str, ...]:
        """`Symbol.steps` of what an operator makes of two values."""
        number = one.value if not one.shape else other.value if not other.shape else None
        pairs = zip(steps_of(one, rank), steps_of(other, rank), strict=True)
        return tuple(self.short(_step(pair, operator, number or "unknown")) for pair in pairs)

    def _alignment(self, one: Symbol, other: Symbol, operator: ast.operator) -> tuple[str, str]:
        """`Symbol.run` and `Symbol.multiple` of what an operator makes of two values."""
        if isinstance(operator, _POINTS):
            run, multiple = most(one.run, other.run), least(one.multiple, other.multiple)
        elif isinstance(operator, ast.Mult):
            block, number = (one, other) if one.run != "1" else (other, one)
            multiple = f"({block.multiple}*{number.multiple})"
            run = "1"
            if block.run != "1":  # neighbours stay neighbours where they are multiplied by 1
                same = f"{number.value or 0}==1"
                run = f"({block.run} if {same} else 1)"
                multiple = f"({block.multiple} if {same} else {number.multiple})"
        elif isinstance(operator, ast.Mod):
            run, multiple = least(one.run, other.multiple), least(one.multiple, other.multiple)
        elif isinstance(operator, (ast.BitAnd, ast.BitOr)):  # masks
            runs = [part for part in (one, other) if part.run != "1"] or [UNKNOWN]
            run, multiple = most(runs[0].run, runs[-1].run), least(runs[0].multiple, runs[-1].multiple)
        else:
            return "1", "1"
        return self.short(run), self.short(multiple)


def _step(steps: tuple[str, str], operator: ast.operator, number: str) -> str:
    """What an operator makes of two values' steps along an axis; `number` is the one that is the same everywhere."""
    one, other = steps
    if steps == ("0", "0"):
        return "0"
    if isinstance(operator, (ast.Add, ast.Sub, ast.BitOr)):
        return one if other == "0" else other if one == "0" else f"({one}+{other})"
    if isinstance(operator, ast.Mult):
        return f"({other if one == '0' else one}*{number})"
    if isinstance(operator, ast.LShift):
        return f"({one}*power(2,{number}))"
    if isinstance(operator, (ast.FloorDiv, ast.RShift)):  # most neighbours have the same quotient
        return f"({one} if {number}=={1 if isinstance(operator, ast.FloorDiv) else 0} else 0)"
    if isinstance(operator, (ast.Mod, ast.BitAnd)):
        return one
    return "unknown"
