"""How the walk reads expressions: one function for each kind of node, in `EXPRESSIONS`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .calls import read_call
from .symbols import ELEMENT_BYTES, UNKNOWN, Symbol, argument, broadcast, least, most, steps_of, transposed

if TYPE_CHECKING:
    from .walker import Walker

_UNARY = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not "}
_COMPARISONS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip


def _constant(_: Walker, node: ast.Constant) -> Symbol:
    return _number(node.value)


def _number(value: object) -> Symbol:
    multiple = f"multiple({value})" if type(value) is int else "1"
    return Symbol(value=repr(value), integer=not isinstance(value, float), multiple=multiple)


def _name(walker: Walker, node: ast.Name) -> Symbol:
    if node.id in walker.names:
        return walker.names[node.id]
    return _outside(walker.scope.get(node.id))


def _outside(value: object) -> Symbol:
    """A constant of the kernel's module, or of one that it imports."""
    value = getattr(value, "value", value)  # a constexpr's
    if value is None or isinstance(value, (bool, int, float, str)):
        return _number(value)
    return UNKNOWN


def _tuple(walker: Walker, node: ast.Tuple | ast.List) -> Symbol:
    return Symbol(items=tuple(walker.see(e) for e in node.elts))


def _binop(walker: Walker, node: ast.BinOp) -> Symbol:
    return walker.notes.combined([walker.see(node.left), walker.see(node.right)], node.op)


def _unaryop(walker: Walker, node: ast.UnaryOp) -> Symbol:
    inner = walker.see(node.operand)
    sign = _UNARY.get(type(node.op))
    return replace(inner, value=walker.notes.number(f"({sign}{inner.value})") if sign and inner.value else None)


def _boolop(walker: Walker, node: ast.BoolOp) -> Symbol:
    parts = [walker.see(v) for v in node.values]
    texts = [p.value for p in parts]
    word = " and " if isinstance(node.op, ast.And) else " or "
    text = f"({word.join(t or 'unknown' for t in texts)})"
    return replace(broadcast(parts), base=None, value=walker.notes.number(text) if any(texts) else None)


def _compare(walker: Walker, node: ast.Compare) -> Symbol:
    parts = [walker.see(node.left), *(walker.see(c) for c in node.comparators)]
    sign = _COMPARISONS.get(type(node.ops[0]))
    one, other = parts[0].value, parts[-1].value
    whole = broadcast(parts)
    known = len(parts) == 2 and sign and one and other and not whole.shape
    text = walker.notes.number(f"({one} {sign} {other})") if known else None
    run = most(parts[0].run, parts[-1].run)
    multiple = walker.notes.short(least(parts[0].multiple, parts[-1].multiple))
    return replace(whole, base=None, value=text, element="1", integer=True, loaded=(), run=run, multiple=multiple)


def _ifexp(walker: Walker, node: ast.IfExp) -> Symbol:
    condition = walker.see(node.test).value
    arms = []
    for arm, repeat in zip((node.body, node.orelse), walker.notes.branches(condition), strict=True):
        with walker.notes.repeated(repeat, loop=False):
            arms.append(walker.see(arm))
    return walker.either(condition, *arms)


def _subscript(walker: Walker, node: ast.Subscript) -> Symbol:
    inner = walker.see(node.value)
    index = node.slice
    if inner.items is not None:
        if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value < len(inner.items):
            return inner.items[index.value]
        return UNKNOWN
    if inner.base and inner.base == inner.value and isinstance(index, ast.Constant) and type(index.value) is int:
        return argument(f"{inner.base}__{index.value}")  # of an argument that is a tuple
    shape, left = [], list(inner.shape)
    steps, steps_left = [], list(steps_of(inner, len(left)))
    for part in index.elts if isinstance(index, ast.Tuple) else [index]:
        if isinstance(part, ast.Constant) and part.value is None:
            shape.append("1")
            steps.append("0")
        elif left:
            shape.append(left.pop(0))
            steps.append(steps_left.pop(0))
    return replace(inner, shape=(*shape, *left), steps=(*steps, *steps_left), value=None)


def _attribute(walker: Walker, node: ast.Attribute) -> Symbol:
    if node.attr == "T":
        inner = walker.see(node.value)
        return replace(inner, shape=transposed(inner.shape), steps=transposed(inner.steps))
    size = ELEMENT_BYTES.get(node.attr)
    if size is not None:
        return Symbol(element=str(size), integer="float" not in node.attr)
    if node.attr in ("dtype", "element_ty", "type", "scalar"):
        inner = walker.see(node.value)
        return Symbol(element=inner.element, integer=inner.integer and not inner.base)
    if isinstance(node.value, ast.Name) and isinstance(module := walker.scope.get(node.value.id), ModuleType):
        return _outside(vars(module).get(node.attr, UNKNOWN))
    return UNKNOWN


EXPRESSIONS: dict[type[ast.expr], Callable[[Walker, Any], Symbol]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.BinOp: _binop,
    ast.UnaryOp: _unaryop,
    ast.BoolOp: _boolop,
    ast.Compare: _compare,
    ast.IfExp: _ifexp,
    ast.Subscript: _subscript,
    ast.Attribute: _attribute,
    ast.Call: read_call,
}
"""Each takes the walker and a node, and returns what is known of its value. Of other kinds nothing is known."""
