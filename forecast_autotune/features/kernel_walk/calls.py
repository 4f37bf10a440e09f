"""How the walk reads calls: Triton's functions, methods of values, helpers of the kernel's own."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .symbols import FAR, UNKNOWN, WHOLE, Symbol, broadcast, is_true, last_name, least, reduced, steps_of, transposed

if TYPE_CHECKING:
    from .walker import Walker

Args = Sequence[ast.expr]
Named = Mapping[str, ast.expr]

_SAME_SHAPE = frozenset([
    "multiple_of", "max_contiguous", "max_constancy", "cast", "sort", "cumsum", "cumprod", "flip", "exp", "exp2", "log",
    "log2", "sqrt", "rsqrt", "sin", "cos", "abs", "floor", "ceil", "sigmoid", "erf", "tanh", "softmax", "associative_scan",
    "zeros_like",
])  # fmt: skip
_REDUCTIONS = frozenset(["sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce"])
_COSTLY = frozenset(["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "erf", "tanh", "softmax"])
_COST = 4  # operations that one of these counts as
_SCANS = frozenset(["cumsum", "cumprod", "associative_scan"])
_ATOMICS = frozenset(f"atomic_{name}" for name in ["add", "max", "min", "and", "or", "xor", "xchg", "cas"])


def read_call(walker: Walker, node: ast.Call) -> Symbol:
    """What a call returns, and note what it does."""
    name = last_name(node.func)
    named = {k.arg: k.value for k in node.keywords if k.arg}
    if isinstance(node.func, ast.Attribute):
        owner = walker.see(node.func.value)
        is_type = owner.element and not (owner.shape or owner.base or owner.from_memory)
        if owner is not UNKNOWN and not is_type:
            return _method(walker, name, owner, node.args, named)
    if name in _CALLS:
        return _CALLS[name](walker, node.args, named)
    if name in _ATOMICS and node.args:
        return walker.notes.access("atomic", walker.see(node.args[0]), [walker.see(a) for a in node.args[1:]])
    helper = walker.helper(node.func)
    if helper is not None:
        return walker.inline(helper, node.args, named)
    return _unlisted(walker, name, node.args, named)


def _unlisted(walker: Walker, name: str, args: Args, named: Named) -> Symbol:
    """A call of which no more is known than its name: a reduction, arithmetic by elements, or neither."""
    seen = [walker.see(a) for a in args] + [walker.see(v) for v in named.values()]
    whole = replace(broadcast([part for s in seen for part in s.items or (s,)]), base=None)
    if name in _REDUCTIONS and seen:
        return _reduced(walker, seen[0], args[1:], named)
    if name in _COSTLY or name in _SCANS:
        walker.notes.by_elements(whole, _COST if name in _COSTLY else 1)
    if name in _SAME_SHAPE and seen:
        return replace(seen[0], value=None if seen[0].shape else seen[0].value)
    return replace(whole, value=None)


def _method(walker: Walker, name: str, owner: Symbol, args: Args, named: Named) -> Symbol:
    """A call on a value: `x.to(tl.float16)`, `descriptor.load([m, k])`, `x.sum(axis=0)`."""
    values = [walker.see(a) for a in args]
    if name == "to" and values:
        size = values[0].element or owner.element
        return replace(owner, element=size, integer=values[0].integer if values[0].element else owner.integer)
    if name in ("load", "store"):
        if not owner.shape and owner.base and values and values[0].items:  # a descriptor made by the caller
            blocks = tuple(f"{owner.base}__block{i}" for i in range(len(values[0].items)))
            steps = (*(FAR for _ in blocks[1:]), "1")
            owner = replace(owner, shape=blocks, value=None, run=blocks[-1], steps=steps)
        where = broadcast([owner, *values[:1], *(values[0].items or () if values else ())])
        owner = replace(owner, varies=where.varies, from_memory=where.from_memory)
        return walker.notes.access(name, owner, values[1:2])
    if name in _ATOMICS:
        return walker.notes.access("atomic", owner, values[1:2])
    if name == "trans":
        return replace(owner, shape=transposed(owner.shape), steps=transposed(owner.steps))
    if name in ("reshape", "view"):
        shape = ast.Tuple(list(args), ast.Load()) if len(args) != 1 else args[0]
        return replace(owner, shape=walker.dims(shape) or owner.shape)
    if name in _REDUCTIONS:
        return _reduced(walker, owner, args, named)
    return replace(owner, value=None)


def _reduced(walker: Walker, value: Symbol, args: Args, named: Named) -> Symbol:
    walker.notes.by_elements(value)
    return reduced(value, named.get("axis", args[0] if args else None), keep_dims=is_true(named.get("keep_dims")))


def _arange(walker: Walker, args: Args, _: Named) -> Symbol:
    start, stop = (walker.see(a).value for a in (*args, ast.Constant(0))[:2])
    for argument in args:
        walker.take_for_tiles(argument)
    if start is None or stop is None:
        return UNKNOWN
    size = stop if start == "0" else walker.notes.number(f"({stop}-{start})")
    return Symbol(shape=(size,), element="4", run=size, multiple=f"multiple({start})", steps=("1",))


def _zeros(walker: Walker, args: Args, named: Named) -> Symbol:
    shape = args[0] if args else named.get("shape")
    kind = named.get("dtype", args[-1] if len(args) > 1 else None)
    dtype = walker.see(kind) if kind is not None else UNKNOWN
    integer = dtype.integer and bool(dtype.element)
    dims = walker.dims(shape)
    return Symbol(shape=dims, element=dtype.element or "4", integer=integer, steps=("0",) * len(dims))


def _of_the_grid(prefix: str, _: Walker, args: Args, named: Named) -> Symbol:
    """`program_id` and `num_programs`: numbers that `launch_features` sets as `pidN` and `gridN`."""
    axis = args[0] if args else named.get("axis")
    if not isinstance(axis, ast.Constant):
        return UNKNOWN
    varies = frozenset([f"grid{axis.value!r}"]) if prefix == "pid" else frozenset[str]()
    return Symbol(value=f"{prefix}{axis.value!r}", varies=varies)


def _cdiv(walker: Walker, args: Args, _: Named) -> Symbol:
    if len(args) != 2:
        return UNKNOWN
    walker.cover(args[1], args[0])
    whole = broadcast(seen := [walker.see(a) for a in args])
    known = seen[0].value and seen[1].value and not whole.shape
    value = walker.notes.number(f"cdiv({seen[0].value}, {seen[1].value})") if known else None
    return replace(whole, base=None, value=value, loaded=())


def _extreme(name: str, walker: Walker, args: Args, named: Named, *, by_elements: bool = False) -> Symbol:
    """`min` and `max`: of numbers, of a block along an axis, or of two blocks by elements."""
    seen = [walker.see(a) for a in args]
    if len(seen) >= 2 and not any(s.shape for s in seen):
        texts = [s.value for s in seen]
        value = walker.notes.number(f"{name}({', '.join(t for t in texts if t)})") if all(texts) else None
        return replace(broadcast(seen), base=None, value=value)
    if not by_elements and seen and (len(seen) == 1 or "axis" in named or isinstance(args[1], ast.Constant)):
        return _reduced(walker, seen[0], args[1:], named)
    walker.notes.by_elements(whole := broadcast(seen))
    return replace(whole, steps=_steps_of_one(seen, whole))


def _where(walker: Walker, args: Args, _: Named) -> Symbol:
    seen = [walker.see(a) for a in args]
    element = next((s.element for s in seen[1:] if s.element), None)
    return replace(whole := broadcast(seen), element=element, steps=_steps_of_one(seen[1:], whole))


def _steps_of_one(values: Sequence[Symbol], whole: Symbol) -> tuple[str, ...]:
    """The steps of a block that is one of several by elements: those of the first that is a block."""
    return next((steps_of(value, len(whole.shape)) for value in values if value.shape), ("0",) * len(whole.shape))


def _load(walker: Walker, args: Args, named: Named) -> Symbol:
    others = [walker.see(value) for value in args[1:]]
    told = {name: walker.see(value) for name, value in named.items()}
    pointer = args[0] if args else named.get("pointer")
    if pointer is None:
        return UNKNOWN
    mask = told.get("mask", others[0] if others else UNKNOWN)
    loaded = walker.notes.access("load", walker.see(pointer), [], mask)
    walker.hold(loaded)
    return loaded


def _store(walker: Walker, args: Args, named: Named) -> Symbol:
    values = [walker.see(a) for a in args]
    told = {name: walker.see(value) for name, value in named.items()}
    mask = told.get("mask", values[2] if len(values) > 2 else UNKNOWN)
    return walker.notes.access("store", values[0], values[1:2], mask) if values else UNKNOWN


def _dot(walker: Walker, args: Args, named: Named) -> Symbol:
    values = [walker.see(a) for a in args]
    for value in named.values():
        walker.see(value)
    return _product(walker, values[0], values[1]) if len(values) >= 2 else UNKNOWN


def _dot_scaled(walker: Walker, args: Args, _: Named) -> Symbol:
    values = [walker.see(a) for a in args]
    return _product(walker, values[0], values[3]) if len(values) >= 4 else UNKNOWN


def _product(walker: Walker, one: Symbol, other: Symbol) -> Symbol:
    made = walker.notes.dot(one, other)
    walker.hold(one, other, made)
    return made


def _blocked(place: int, walker: Walker, args: Args, named: Named) -> Symbol:
    """`make_block_ptr` and `make_tensor_descriptor`, whose block shape stands at a place of its own."""
    base = args[0] if args else named.get("base")
    block = named.get("block_shape", args[place] if len(args) > place else None)
    where = [walker.see(value) for value in [*args, *named.values()] if value is not block]
    whole = broadcast([part for s in where for part in s.items or (s,)])
    owner = walker.see(base) if base is not None else UNKNOWN
    shape = walker.dims(block)
    strides = named.get("strides", args[2] if len(args) > 2 else None)
    multiple = owner.multiple
    apart = (walker.see(strides).items if strides is not None else None) or ()
    for stride in apart:
        multiple = least(multiple, f"({WHOLE} if {stride.value or 0}==1 else {stride.multiple})")
    return replace(
        owner,
        shape=shape,
        value=None,
        varies=whole.varies,
        from_memory=whole.from_memory,
        run=shape[-1] if shape else "1",
        multiple=walker.notes.short(multiple),
        steps=tuple(stride.value or "unknown" for stride in apart),
    )


def _advance(walker: Walker, args: Args, _: Named) -> Symbol:
    return walker.see(args[0]) if args else UNKNOWN


def _trans(walker: Walker, args: Args, _: Named) -> Symbol:
    inner = walker.see(args[0]) if args else UNKNOWN
    return replace(inner, shape=transposed(inner.shape), steps=transposed(inner.steps))


def _reshape(walker: Walker, args: Args, named: Named) -> Symbol:
    inner = walker.see(args[0]) if args else UNKNOWN
    shape = named.get("shape", args[1] if len(args) == 2 else ast.Tuple(list(args[1:]), ast.Load()))
    return replace(inner, shape=walker.dims(shape) or inner.shape)


def _expand_dims(walker: Walker, args: Args, named: Named) -> Symbol:
    inner = walker.see(args[0]) if args else UNKNOWN
    axis = named.get("axis", args[1] if len(args) > 1 else None)
    at = axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else len(inner.shape)
    at = at if at >= 0 else len(inner.shape) + 1 + at
    shape, steps = list(inner.shape), list(steps_of(inner, len(inner.shape)))
    shape.insert(at, "1")
    steps.insert(at, "0")
    return replace(inner, shape=tuple(shape), steps=tuple(steps))


_CALLS: dict[str, Callable[[Walker, Args, Named], Symbol]] = {
    "arange": _arange,
    "zeros": _zeros,
    "full": _zeros,
    "program_id": partial(_of_the_grid, "pid"),
    "num_programs": partial(_of_the_grid, "grid"),
    "cdiv": _cdiv,
    "min": partial(_extreme, "min"),
    "max": partial(_extreme, "max"),
    "minimum": partial(_extreme, "min", by_elements=True),
    "maximum": partial(_extreme, "max", by_elements=True),
    "where": _where,
    "load": _load,
    "store": _store,
    "dot": _dot,
    "dot_scaled": _dot_scaled,
    "make_block_ptr": partial(_blocked, 4),
    "make_tensor_descriptor": partial(_blocked, 3),
    "advance": _advance,
    "trans": _trans,
    "reshape": _reshape,
    "view": _reshape,
    "broadcast_to": _reshape,
    "expand_dims": _expand_dims,
}
