"""A Triton kernel's source as a description: what it loads, stores and multiplies, as expressions of its arguments.

The syntax tree is walked once; shapes, sizes and trip counts are kept as Python expressions, into which a config only puts
numbers. What the walk does not understand it leaves out.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

log = logging.getLogger(__name__)

MAX_DEPTH = 8  # of helpers that call helpers
MAX_TEXT = 4000  # characters of an expression; longer ones come from runaway recursion, and are given up

_SIZES = {
    "int1": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8e5": 1, "float8e4nv": 1, "float8e4b15": 1, "float8e4b8": 1, "float8e5b16": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
_SAME_SHAPE = frozenset(
    [
        "multiple_of",
        "max_contiguous",
        "max_constancy",
        "cast",
        "sort",
        "cumsum",
        "cumprod",
        "flip",
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "abs",
        "floor",
        "ceil",
        "sigmoid",
        "erf",
        "tanh",
        "softmax",
        "associative_scan",
        "zeros_like",
    ]
)
_REDUCTIONS = frozenset(["sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce"])
_COSTLY = frozenset(["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "erf", "tanh", "softmax"])
_ATOMICS = frozenset(f"atomic_{name}" for name in ["add", "max", "min", "and", "or", "xor", "xchg", "cas"])


# The walk: one pass over the tree, shapes as expressions -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sym:
    """What is known of a value within the kernel: shape and numbers as expressions, bytes of an element, whose memory."""

    shape: tuple[str, ...] = ()
    value: str | None = None  # of a scalar
    element: str | None = None  # bytes of an element: an expression
    base: str | None = None  # the argument a pointer or descriptor points into
    items: tuple[_Sym, ...] | None = None  # of a tuple
    integer: bool = True
    loaded: tuple[int, ...] = ()  # the accesses its data came from


@dataclass(slots=True)
class Access:
    kind: str  # load, store, atomic
    base: str | None
    elements: str
    element: str | None
    trips: str
    looped: bool
    dims: tuple[str, ...]
    feeds_dot: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    m: str
    n: str
    k: str
    trips: str
    element: str | None


_UNKNOWN = _Sym()


def _argument(name: str) -> _Sym:
    """An argument of the kernel, which may be a number or point to memory; `describe_call` knows it by this name."""
    return _Sym(value=name, base=name, element=f"{name}__bytes")


class _Walker:
    """Walks the statements of one kernel and of the helpers it calls."""

    def __init__(self, globals_: Mapping[str, Any]) -> None:
        self.globals = globals_
        self.names: dict[str, _Sym] = {}
        self.trips: list[str] = []
        self.loops = 0
        self.depth = 0
        self.accesses: list[Access] = []
        self.dots: list[Dot] = []
        self.arithmetic: list[tuple[str, str]] = []  # elements, trips
        self.costly: list[tuple[str, str]] = []
        self.reductions = 0
        self.covers: dict[str, str] = {}  # knob to the argument it divides
        self.roles: dict[str, str] = {}
        self.constants: dict[str, int | float | bool | str] = {}
        self.returned: _Sym = _UNKNOWN

    # Statements

    def body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            handler = getattr(self, f"on_{type(statement).__name__.lower()}", None)
            if handler is not None:
                handler(statement)

    def on_expr(self, node: ast.Expr) -> None:
        self.see(node.value)

    def on_assign(self, node: ast.Assign) -> None:
        value = self.see(node.value)
        for target in node.targets:
            self.bind(target, value)

    def on_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.see(node.value))

    def on_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            old = self.names.get(node.target.id, _UNKNOWN)
            new = self.combined([old, self.see(node.value)], node.op)
            self.names[node.target.id] = replace(new, shape=new.shape or old.shape, element=old.element or new.element)

    def on_return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.returned = self.see(node.value)

    def on_if(self, node: ast.If) -> None:
        condition = self.see(node.test).value
        before = self.names
        outcomes = []
        for branch, holds in ((node.body, "1 if ({}) else 0"), (node.orelse, "0 if ({}) else 1")):
            self.names = dict(before)
            self.trips.append(f"({holds.format(condition)})" if condition else "1")
            self.body(branch)
            self.trips.pop()
            outcomes.append(self.names)
        self.names = dict(before)
        for name in {**outcomes[0], **outcomes[1]}:
            one, other = outcomes[0].get(name), outcomes[1].get(name)
            kept = one or other or _UNKNOWN
            if one is not None and other is not None and one != other:
                kept = one if one.shape or one.base else other
                both = condition and one.value and other.value
                kept = replace(kept, value=f"({one.value} if {condition} else {other.value})" if both else None)
            self.names[name] = kept

    def on_for(self, node: ast.For) -> None:
        call = node.iter
        trips = "1"
        if isinstance(call, ast.Call):
            bounds = [self.see(a) for a in call.args]
            for keyword in call.keywords:
                if keyword.arg in ("num_stages", "loop_unroll_factor") and isinstance(keyword.value, ast.Name):
                    self.roles[keyword.value.id] = "stages" if keyword.arg == "num_stages" else "unroll"
            texts = [b.value for b in bounds]
            start, stop, step = {1: ["0", *texts, "1"], 2: [*texts, "1"]}.get(len(texts), (texts + ["1"] * 3)[:3])
            if start and stop and step:
                trips = f"trips({start}, {stop}, {step})"
            if len(call.args) == 3:
                self.cover(call.args[2], call.args[1])
            if _last_name(call.func) == "static_range":
                for argument in call.args:
                    for name in _names_in(argument):
                        self.roles.setdefault(name, "unroll")
        self.loop(node.body, trips, [node.target])

    def on_while(self, node: ast.While) -> None:
        self.see(node.test)
        self.loop(node.body, "1", [])

    def on_with(self, node: ast.With) -> None:
        self.body(node.body)

    def loop(self, statements: Sequence[ast.stmt], trips: str, targets: Sequence[ast.expr]) -> None:
        for target in targets:
            self.bind(target, _UNKNOWN)
        for name in _assigned(statements):  # a number that changes from trip to trip is no number
            if name in self.names and self.names[name].value is not None:
                self.names[name] = replace(self.names[name], value=None)
        self.trips.append(trips)
        self.loops += 1
        self.body(statements)
        self.loops -= 1
        self.trips.pop()

    def bind(self, target: ast.expr, value: _Sym) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for i, element in enumerate(target.elts):
                self.bind(element, value.items[i] if value.items and i < len(value.items) else _UNKNOWN)

    # Expressions

    def see(self, node: ast.expr) -> _Sym:
        handler = getattr(self, f"see_{type(node).__name__.lower()}", None)
        found: _Sym = handler(node) if handler is not None else _UNKNOWN
        if found.value is not None and len(found.value) > MAX_TEXT:
            return replace(found, value=None)
        return found

    def see_constant(self, node: ast.Constant) -> _Sym:
        return _Sym(value=repr(node.value), integer=not isinstance(node.value, float))

    def see_name(self, node: ast.Name) -> _Sym:
        if node.id in self.names:
            return self.names[node.id]
        value = self.globals.get(node.id)
        value = getattr(value, "value", value)  # a constexpr's
        if isinstance(value, (bool, int, float, str)):
            self.constants[node.id] = value
            return _Sym(value=node.id, integer=not isinstance(value, float))
        return _UNKNOWN

    def see_tuple(self, node: ast.Tuple | ast.List) -> _Sym:
        return _Sym(items=tuple(self.see(e) for e in node.elts))

    see_list = see_tuple

    def see_binop(self, node: ast.BinOp) -> _Sym:
        return self.combined([self.see(node.left), self.see(node.right)], node.op)

    def see_unaryop(self, node: ast.UnaryOp) -> _Sym:
        inner = self.see(node.operand)
        sign = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not "}.get(type(node.op))
        return replace(inner, value=f"({sign}{inner.value})" if sign and inner.value else None)

    def see_boolop(self, node: ast.BoolOp) -> _Sym:
        parts = [self.see(v) for v in node.values]
        texts = [p.value for p in parts]
        word = " and " if isinstance(node.op, ast.And) else " or "
        return replace(self.broadcast(parts), value=f"({word.join(t for t in texts if t)})" if all(texts) else None)

    def see_compare(self, node: ast.Compare) -> _Sym:
        parts = [self.see(node.left), *(self.see(c) for c in node.comparators)]
        signs = {
            ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
            ast.Is: "is", ast.IsNot: "is not",
        }  # fmt: skip
        sign = signs.get(type(node.ops[0]))
        one, other = parts[0].value, parts[-1].value
        text = f"({one} {sign} {other})" if len(parts) == 2 and sign and one and other else None
        return _Sym(shape=self.broadcast(parts).shape, value=text, element="1")

    def see_ifexp(self, node: ast.IfExp) -> _Sym:
        condition, one, other = self.see(node.test), self.see(node.body), self.see(node.orelse)
        text = None
        if condition.value and one.value and other.value:
            text = f"({one.value} if {condition.value} else {other.value})"
        return replace(one if one.shape or one.base else other, value=text)

    def see_subscript(self, node: ast.Subscript) -> _Sym:
        inner = self.see(node.value)
        index = node.slice
        if inner.items is not None:
            if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value < len(inner.items):
                return inner.items[index.value]
            return _UNKNOWN
        if inner.base and inner.base == inner.value and isinstance(index, ast.Constant) and type(index.value) is int:
            return _argument(f"{inner.base}__{index.value}")  # of an argument that is a tuple
        shape, left = [], list(inner.shape)
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            if isinstance(part, ast.Constant) and part.value is None:
                shape.append("1")
            elif left:
                shape.append(left.pop(0))
        return replace(inner, shape=(*shape, *left), value=None)

    def see_attribute(self, node: ast.Attribute) -> _Sym:
        if node.attr == "T":
            inner = self.see(node.value)
            return replace(inner, shape=(*inner.shape[:-2], *inner.shape[-2:][::-1]))
        size = _SIZES.get(node.attr)
        return _UNKNOWN if size is None else _Sym(element=str(size), integer="float" not in node.attr)

    def see_call(self, node: ast.Call) -> _Sym:
        name = _last_name(node.func)
        named = {k.arg: k.value for k in node.keywords if k.arg}
        if isinstance(node.func, ast.Attribute):
            owner = self.see(node.func.value)
            if owner is not _UNKNOWN and not (owner.element and not owner.shape and not owner.base):
                return self.method(name, owner, node.args, named)
        handler = getattr(self, f"call_{name}", None)
        if handler is not None:
            found: _Sym = handler(node.args, named)
            return found
        if name in _ATOMICS and node.args:
            return self.access("atomic", self.see(node.args[0]), [self.see(a) for a in node.args[1:]])
        helper = self.helper(node.func)
        if helper is not None:
            return self.inline(helper, node.args, named)
        seen = [self.see(a) for a in node.args] + [self.see(v) for v in named.values()]
        whole = self.broadcast(seen)
        if name in _REDUCTIONS and seen:
            return self.reduced(seen[0], named.get("axis", node.args[1] if len(node.args) > 1 else None))
        if name in _COSTLY and whole.shape:
            self.costly.append((_product(whole.shape), self.trip_text()))
        if name in _SAME_SHAPE and seen:
            return replace(seen[0], value=None if seen[0].shape else seen[0].value)
        return replace(whole, value=None)

    # Calls that the description is made of

    def call_arange(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        start, stop = (self.see(a).value for a in (*args, ast.Constant(0))[:2])
        for argument in args:
            self.take_for_tiles(argument)
        if start is None or stop is None:
            return _UNKNOWN
        return _Sym(shape=(stop if start == "0" else f"({stop}-{start})",), element="4")

    def call_zeros(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        shape = args[0] if args else named.get("shape")
        kind = named.get("dtype", args[-1] if len(args) > 1 else None)
        dtype = self.see(kind) if kind is not None else _UNKNOWN
        return _Sym(shape=self.dims(shape), element=dtype.element or "4", integer=dtype.integer and bool(dtype.element))

    call_full = call_zeros

    def call_program_id(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        axis = args[0] if args else named.get("axis")
        return _Sym(value=f"pid{axis.value!r}" if isinstance(axis, ast.Constant) else None)

    def call_num_programs(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        axis = args[0] if args else named.get("axis")
        return _Sym(value=f"grid{axis.value!r}" if isinstance(axis, ast.Constant) else None)

    def call_cdiv(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        if len(args) != 2:
            return _UNKNOWN
        self.cover(args[1], args[0])
        one, other = self.see(args[0]).value, self.see(args[1]).value
        return _Sym(value=f"cdiv({one}, {other})" if one and other else None)

    def call_min(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        return self.extreme("min", args, named)

    def call_max(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        return self.extreme("max", args, named)

    call_minimum, call_maximum = call_min, call_max

    def extreme(self, name: str, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        seen = [self.see(a) for a in args]
        if len(seen) >= 2 and not any(s.shape for s in seen):
            texts = [s.value for s in seen]
            return _Sym(value=f"{name}({', '.join(t for t in texts if t)})" if all(texts) else None)
        if seen and (len(seen) == 1 or "axis" in named or isinstance(args[1], ast.Constant)):
            return self.reduced(seen[0], named.get("axis", args[1] if len(args) > 1 else None))
        return self.broadcast(seen)

    def call_where(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        seen = [self.see(a) for a in args]
        return replace(self.broadcast(seen), element=next((s.element for s in seen[1:] if s.element), None))

    def call_load(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        for value in [*args[1:], *named.values()]:
            self.see(value)
        pointer = args[0] if args else named.get("pointer")
        return self.access("load", self.see(pointer), []) if pointer is not None else _UNKNOWN

    def call_store(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        values = [self.see(a) for a in args]
        for value in named.values():
            self.see(value)
        return self.access("store", values[0], values[1:2]) if values else _UNKNOWN

    def call_dot(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        values = [self.see(a) for a in args]
        for value in named.values():
            self.see(value)
        return self.dot(values[0], values[1]) if len(values) >= 2 else _UNKNOWN

    def call_dot_scaled(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        values = [self.see(a) for a in args]
        return self.dot(values[0], values[3]) if len(values) >= 4 else _UNKNOWN

    def call_make_block_ptr(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        base = args[0] if args else named.get("base")
        block = named.get("block_shape", args[4] if len(args) > 4 else None)
        return replace(self.see(base) if base is not None else _UNKNOWN, shape=self.dims(block), value=None)

    def call_make_tensor_descriptor(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        base = args[0] if args else named.get("base")
        block = named.get("block_shape", args[3] if len(args) > 3 else None)
        return replace(self.see(base) if base is not None else _UNKNOWN, shape=self.dims(block), value=None)

    def call_advance(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        return self.see(args[0]) if args else _UNKNOWN

    def call_trans(self, args: list[ast.expr], _: dict[str, ast.expr]) -> _Sym:
        inner = self.see(args[0]) if args else _UNKNOWN
        return replace(inner, shape=(*inner.shape[:-2], *inner.shape[-2:][::-1]))

    def call_reshape(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        inner = self.see(args[0]) if args else _UNKNOWN
        shape = named.get("shape", args[1] if len(args) == 2 else ast.Tuple(args[1:], ast.Load()))
        return replace(inner, shape=self.dims(shape) or inner.shape)

    call_view = call_broadcast_to = call_reshape

    def call_expand_dims(self, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        inner = self.see(args[0]) if args else _UNKNOWN
        axis = named.get("axis", args[1] if len(args) > 1 else None)
        at = axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else len(inner.shape)
        shape = list(inner.shape)
        shape.insert(at if at >= 0 else len(shape) + 1 + at, "1")
        return replace(inner, shape=tuple(shape))

    def method(self, name: str, owner: _Sym, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        """A call on a value: `x.to(tl.float16)`, `descriptor.load([m, k])`, `x.sum(axis=0)`."""
        values = [self.see(a) for a in args]
        if name == "to" and values:
            size = values[0].element or owner.element
            return replace(owner, element=size, integer=values[0].integer if values[0].element else owner.integer)
        if name in ("load", "store"):
            if not owner.shape and owner.base and values and values[0].items:  # a descriptor made by the caller
                blocks = tuple(f"{owner.base}__block{i}" for i in range(len(values[0].items)))
                owner = replace(owner, shape=blocks, value=None)
            return self.access(name, owner, values[1:2])
        if name in _ATOMICS:
            return self.access("atomic", owner, values[1:2])
        if name == "trans":
            return replace(owner, shape=(*owner.shape[:-2], *owner.shape[-2:][::-1]))
        if name in ("reshape", "view"):
            return replace(
                owner, shape=self.dims(ast.Tuple(args, ast.Load()) if len(args) != 1 else args[0]) or owner.shape
            )
        if name in _REDUCTIONS:
            return self.reduced(owner, named.get("axis", args[0] if args else None))
        return replace(owner, value=None)

    # What is noted down

    def access(self, kind: str, pointer: _Sym, values: Sequence[_Sym]) -> _Sym:
        shape = pointer.shape or (values[0].shape if values else ())
        element = pointer.element if pointer.base else (values[0].element if values else None)
        note = Access(
            kind=kind,
            base=pointer.base,
            elements=_product(shape),
            element=element,
            trips=self.trip_text(),
            looped=self.loops > 0,
            dims=shape,
        )
        self.accesses.append(note)
        return _Sym(shape=shape, element=element, integer=False, loaded=(len(self.accesses) - 1,))

    def dot(self, one: _Sym, other: _Sym) -> _Sym:
        if len(one.shape) < 2 or len(other.shape) < 2:
            return _UNKNOWN
        for number in (*one.loaded, *other.loaded):
            self.accesses[number].feeds_dot = True
        batch = _product(one.shape[:-2])
        m = one.shape[-2] if batch == "1" else f"({batch}*{one.shape[-2]})"
        element = one.element or other.element
        self.dots.append(Dot(m, other.shape[-1], one.shape[-1], self.trip_text(), element))
        return _Sym(shape=(*one.shape[:-1], other.shape[-1]), element="4", integer=False)

    def reduced(self, value: _Sym, axis: ast.expr | None) -> _Sym:
        self.reductions += 1
        if isinstance(axis, ast.UnaryOp) and isinstance(axis.operand, ast.Constant):
            axis = ast.Constant(-axis.operand.value)  # type: ignore[operator]
        at = axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else None
        if at is None or not value.shape:
            return replace(value, shape=(), value=None, loaded=())
        shape = list(value.shape)
        if -len(shape) <= at < len(shape):
            shape.pop(at)
        return replace(value, shape=tuple(shape), value=None, loaded=())

    def combined(self, parts: Sequence[_Sym], operator: ast.operator) -> _Sym:
        """The outcome of an operator: shapes broadcast, a pointer stays one, numbers become a longer expression."""
        whole = self.broadcast(parts)
        sign = {
            ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
            ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>", ast.Pow: "**",
        }.get(type(operator))  # fmt: skip
        one, other = parts[0].value, parts[-1].value
        text = f"({one}{sign}{other})" if sign and one and other and not whole.shape and not whole.base else None
        if whole.shape and not whole.integer and not whole.base:
            self.arithmetic.append((_product(whole.shape), self.trip_text()))
        return replace(whole, value=text)

    def broadcast(self, parts: Sequence[_Sym]) -> _Sym:
        shape: tuple[str, ...] = ()
        for part in parts:
            longer, shorter = (shape, part.shape) if len(shape) >= len(part.shape) else (part.shape, shape)
            padded = ("1",) * (len(longer) - len(shorter)) + shorter
            shape = tuple(b if a == "1" else a for a, b in zip(longer, padded, strict=True))
        pointer = next((p for p in parts if p.base), None)
        blocks = [p for p in parts if p.shape] or list(parts)
        sizes = [p.element for p in blocks if p.element]
        return _Sym(
            shape=shape,
            element=pointer.element if pointer else (sizes[0] if sizes else None),
            base=pointer.base if pointer else None,
            integer=all(p.integer for p in parts),
            loaded=tuple(n for p in parts for n in p.loaded)[:8],
        )

    def dims(self, node: ast.expr | None) -> tuple[str, ...]:
        """A shape argument: a tuple, a list, or a single number."""
        if node is None:
            return ()
        self.take_for_tiles(node)
        found = self.see(node)
        texts = [item.value for item in found.items] if found.items is not None else [found.value]
        return tuple(t for t in texts if t) if all(texts) else ()

    def trip_text(self) -> str:
        factors = [t for t in self.trips if t != "1"]
        text = "*".join(factors)
        return text if factors and len(text) <= MAX_TEXT else "1"

    def cover(self, knob: ast.expr, length: ast.expr) -> None:
        """Note that a length is walked in steps of a knob: `cdiv(M, BLOCK_M)`, `range(0, K, BLOCK_K)`."""
        if isinstance(knob, ast.Name) and isinstance(length, ast.Name):
            one, other = self.names.get(knob.id), self.names.get(length.id)
            if one and other and one.value == knob.id and other.value == length.id:
                self.covers.setdefault(knob.id, length.id)

    def take_for_tiles(self, node: ast.expr) -> None:
        for name in _names_in(node):
            found = self.names.get(name)
            if found is not None and found.value is not None:
                for word in re.findall(r"[A-Za-z_]\w*", found.value):
                    self.roles.setdefault(word, "tile")

    # Helpers

    def helper(self, node: ast.expr) -> Any:
        found: Any = None
        if isinstance(node, ast.Name):
            found = self.globals.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(self.globals.get(node.value.id), node.attr, None)
        module = str(getattr(found, "__module__", ""))
        return found if hasattr(found, "src") and not module.startswith("triton.") else None

    def inline(self, helper: Any, args: list[ast.expr], named: dict[str, ast.expr]) -> _Sym:
        if self.depth >= MAX_DEPTH:
            return _UNKNOWN
        definition = _definition(helper)
        if definition is None:
            return _UNKNOWN
        parameters = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)]
        given = dict(zip(parameters, (self.see(a) for a in args), strict=False))
        given.update((name, self.see(value)) for name, value in named.items() if name in parameters)
        defaults = dict(zip(parameters[::-1], definition.args.defaults[::-1], strict=False))
        for name, default in defaults.items():
            if name not in given:
                given[name] = self.see(default)
        outer = self.names, self.globals, self.returned
        self.names, self.globals, self.returned = given, _scope(helper), _UNKNOWN
        self.depth += 1
        try:
            self.body(definition.body)
            return self.returned
        finally:
            self.depth -= 1
            self.names, self.globals, self.returned = outer


# What the walk leaves -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelModel:
    """One kernel's description: what `features` puts numbers into. Empty lists where the source does not tell."""

    parameters: tuple[str, ...]
    roles: Mapping[str, str]  # constexpr parameter to role, as far as its use shows it
    covers: Mapping[str, str]  # block size to the argument it divides
    constants: Mapping[str, int | float | bool | str] = field(repr=False)
    accesses: tuple[tuple[Access, CodeType | None, CodeType | None], ...] = field(repr=False)  # elements x trips, bytes
    dots: tuple[tuple[CodeType, CodeType, CodeType, CodeType, CodeType | None], ...] = field(repr=False)
    arithmetic: tuple[CodeType, ...] = field(repr=False)
    costly: tuple[CodeType, ...] = field(repr=False)
    reductions: int = 0
    loops: int = 0


_EMPTY = KernelModel((), {}, {}, {}, (), (), (), ())


def kernel_model(kernel: Any) -> KernelModel:
    """Describe a kernel, once: a JITFunction, an interpreted one, or a plain function with a kernel's body."""
    try:
        kept = vars(kernel).get("_forecast_autotune_model")
        source = _source(kernel)
        if kept is not None and kept[0] == source:
            return kept[1]  # type: ignore[no-any-return]
        model = _describe(kernel)
        vars(kernel)["_forecast_autotune_model"] = (source, model)
        return model
    except Exception as err:  # a source that cannot be read, or a construct nobody foresaw: then nothing is known
        log.info("nothing is known of kernel %s from its source: %r", getattr(kernel, "__name__", kernel), err)
        return _EMPTY


def _describe(kernel: Any) -> KernelModel:
    definition = _definition(kernel)
    if definition is None:
        return _EMPTY
    walker = _Walker(_scope(kernel))
    parameters = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)]
    for name in parameters:
        walker.names[name] = _argument(name)
    _forget_pointers_that_are_numbers(walker, definition, parameters)
    walker.body(definition.body)
    merged: dict[tuple[str, str], int] = {}
    for elements, trips in walker.arithmetic:
        merged[elements, trips] = merged.get((elements, trips), 0) + 1
    arithmetic = [_code(f"{count}*({elements})*({trips})") for (elements, trips), count in merged.items()]
    return KernelModel(
        parameters=tuple(parameters),
        roles={name: role for name, role in walker.roles.items() if name in parameters},
        covers=dict(walker.covers),
        constants=dict(walker.constants),
        accesses=tuple((a, _code(f"({a.elements})*({a.trips})"), _code(a.elements)) for a in walker.accesses),
        dots=tuple(
            (m, n, k, repeats, _code(d.element) if d.element else None)
            for d in walker.dots
            if (m := _code(d.m)) and (n := _code(d.n)) and (k := _code(d.k)) and (repeats := _code(d.trips))
        ),
        arithmetic=tuple(code for code in arithmetic if code),
        costly=tuple(code for e, t in walker.costly if (code := _code(f"({e})*({t})"))),
        reductions=walker.reductions,
        loops=sum(isinstance(node, (ast.For, ast.While)) for node in ast.walk(definition)),
    )


def _forget_pointers_that_are_numbers(walker: _Walker, definition: ast.FunctionDef, parameters: Sequence[str]) -> None:
    """A parameter is taken for a number when it is a constexpr, or named or used as one; otherwise it may point."""
    for parameter in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs):
        marked = parameter.annotation is not None and "constexpr" in ast.unparse(parameter.annotation)
        if marked:
            walker.names[parameter.arg] = _Sym(value=parameter.arg)
    for node in ast.walk(definition):  # what is multiplied, divided or counted up to is no pointer
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators] if not isinstance(node.ops[0], (ast.Is, ast.IsNot)) else []
        elif isinstance(node, ast.Call) and _last_name(node.func) in (
            "range",
            "static_range",
            "cdiv",
            "arange",
            "min",
            "max",
        ):
            operands = list(node.args)
        for operand in operands:
            if isinstance(operand, ast.Name) and operand.id in parameters:
                walker.names[operand.id] = _Sym(value=operand.id)


def _definition(kernel: Any) -> ast.FunctionDef | None:
    tree = ast.parse(_source(kernel))
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)


def _source(kernel: Any) -> str:
    source = getattr(kernel, "src", None)
    if isinstance(source, str):
        return source
    return textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel)))


def _scope(kernel: Any) -> Mapping[str, Any]:
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


def _code(text: str) -> CodeType | None:
    """An expression of our own making, ready to be evaluated; None if it grew beyond reason."""
    if len(text) > 2 * MAX_TEXT:
        return None
    try:
        return compile(text, "<kernel features>", "eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _product(dims: Sequence[str]) -> str:
    factors = [d for d in dims if d != "1"]
    return "*".join(f"({d})" for d in factors) if factors else "1"


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names_in(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _assigned(statements: Iterable[ast.stmt]) -> set[str]:
    found = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found
