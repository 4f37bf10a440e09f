"""Rewrites of a Triton module, each at one place of one kernel: loads, loops, the order of programs, registers.

Made on libcst's tree, so that the rest of the text stays as it was; those of whole grids stand in `triton_grids`. One may
change what the kernel computes: a candidate is examined before it counts. None asks for other arithmetic than the kernel's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtraError
from .triton_grids import grid_rewrites

if TYPE_CHECKING:
    import libcst as cst

LOADS = (
    ("eviction_policy", "evict_first"),
    ("eviction_policy", "evict_last"),
    ("cache_modifier", ".cg"),
    ("cache_modifier", ".ca"),
)
STORES = (
    ("eviction_policy", "evict_first"),
    ("cache_modifier", ".cs"),
    ("cache_modifier", ".cg"),
    ("cache_modifier", ".wb"),
)
EITHER = {"eviction_policy": "cache_modifier", "cache_modifier": "eviction_policy"}  # PTX has no access with both
# Of loops that begin elsewhere than at 0, Triton 3.6 unrolls most wrongly: they read illegal addresses, or add up too much.
UNROLL = "loop_unroll_factor"
LOOPS = (
    *(("num_stages", str(n)) for n in (1, 2, 3, 4)),
    *((UNROLL, str(n)) for n in (2, 4)),
    ("flatten", "True"),
    ("disallow_acc_multi_buffer", "True"),
)
GROUPS = (2, 4, 8)  # rows of a grid that are walked together
_AXIS = re.compile(r"\Atl\.program_id\((?:axis\s*=\s*)?(\d)\)\Z")
_GRID = "tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)"
REGISTERS = (64, 96, 128, 168, 255)
LOG2_E = "1.4426950408889634"

Rewrite = tuple[str, str]


def rewrites(source: str, entry: str = "") -> Iterator[Rewrite]:
    """Every rewrite of a module by one step, as `what@where=how` and the text that comes of it.

    Args:
        entry: a function of the module: only what it reaches is rewritten.
    Raises:
        MissingExtraError: libcst is not installed.
    """
    try:
        import libcst as cst
    except ImportError as err:
        raise MissingExtraError(
            f"rewriting Triton needs libcst ({err}): pip install 'forecast-autotune[search]'"
        ) from err
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError:
        return
    text, reached = source.encode(), _reached(source, entry)
    calls = _calls(module)
    yield from _swizzled(text, [call for call in calls if reached is None or call.function in reached])
    yield from grid_rewrites(source, reached)
    for call in calls:
        if reached is None or call.function in reached:
            for (what, how), made in _of_call(cst, call.node, call.in_kernel):
                code = module.code_for_node(made).encode()
                yield f"{what}@{call.place}={how}", (text[: call.start] + code + text[call.end :]).decode()


def _swizzled(text: bytes, calls: list[_Call]) -> Iterator[Rewrite]:
    """Programs of a grid of two axes in another order: so many rows of it at a time, whose columns then share a cache.

    Of kernels that ask for each of the two once.
    """
    by_function: dict[str, list[_Call]] = {}
    for call in calls:
        if call.in_kernel and _dotted(call.node.func) == "tl.program_id":
            by_function.setdefault(call.function, []).append(call)
    for function, asked in by_function.items():
        axes = {_AXIS.sub(r"\1", text[call.start : call.end].decode()): call for call in asked}
        if len(asked) != 2 or axes.keys() != {"0", "1"}:
            continue
        for rows in GROUPS:
            new, at = b"", 0
            for axis, call in sorted(axes.items(), key=lambda item: item[1].start):
                order = f"tl.swizzle2d({_GRID}, {rows})[{axis}]"
                new, at = new + text[at : call.start] + order.encode(), call.end
            yield f"swizzle@{function}.program_id={rows}", (new + text[at:]).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of the module: where it stands, in bytes too."""

    function: str
    place: str
    node: Any
    in_kernel: bool
    start: int
    end: int


def _reached(source: str, entry: str) -> set[str] | None:
    """The functions of a module that one of them reaches by name; None where that is not among them."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    if entry not in functions:
        return None
    reached: set[str] = set()
    waiting = [entry]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += [n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name) and n.id in functions]
    return reached


def _of_call(cst: Any, node: Any, kernel: bool) -> Iterator[tuple[tuple[str, str], Any]]:
    name = _dotted(node.func)
    if not kernel:
        if isinstance(node.func, cst.Subscript):  # a launch
            for count in REGISTERS:
                yield ("maxnreg", str(count)), _with(cst, node, "maxnreg", str(count))
        return
    if name in ("tl.load", "tl.store"):
        for option, value in LOADS if name == "tl.load" else STORES:
            if _given(node, option) != f'"{value}"' and not _given(node, EITHER[option]):
                yield (f"{name[3:]}_{option}", value), _with(cst, node, option, f'"{value}"')
    elif name in ("range", "tl.range"):
        loop = node.with_changes(func=cst.parse_expression("tl.range"))
        for option, value in LOOPS:
            if _given(node, option) != value and (option != UNROLL or _begins_at_zero(cst, node)):
                yield (option, value), _with(cst, loop, option, value)
    elif name in ("tl.exp", "tl.math.exp") and len(node.args) == 1:
        inner = cst.BinaryOperation(
            left=_bracketed(cst, node.args[0].value), operator=cst.Multiply(), right=cst.parse_expression(LOG2_E)
        )
        yield ("exp2", "on"), cst.Call(func=cst.parse_expression("tl.exp2"), args=[cst.Arg(inner)])
    elif name == "tl.program_id" and len(node.args) == 1:
        axis = node.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        last = cst.Call(func=cst.parse_expression("tl.num_programs"), args=[axis])
        backward = cst.BinaryOperation(
            left=cst.BinaryOperation(left=last, operator=cst.Subtract(), right=cst.Integer("1")),
            operator=cst.Subtract(),
            right=node,
        )
        yield ("backward", "on"), _bracketed(cst, backward)


def _calls(module: cst.Module) -> list[_Call]:
    """Every call in a function of the module."""
    import libcst as cst
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    found: list[_Call] = []

    class Visitor(cst.CSTVisitor):
        METADATA_DEPENDENCIES = (ByteSpanPositionProvider,)

        def __init__(self) -> None:
            super().__init__()
            self.functions: list[tuple[str, bool]] = []
            self.counts: dict[str, int] = {}

        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
            kernel = any("jit" in _dotted(d.decorator) for d in node.decorators)
            self.functions.append((node.name.value, kernel))

        def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802, ARG002
            self.functions.pop()

        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
            if not self.functions:
                return
            function, in_kernel = self.functions[0][0], any(kernel for _, kernel in self.functions)
            called = _dotted(node.func).rpartition(".")[2] or "launch"
            number = self.counts[f"{function}.{called}"] = self.counts.get(f"{function}.{called}", -1) + 1
            span = self.get_metadata(ByteSpanPositionProvider, node)
            found.append(_Call(
                function=function, place=f"{function}.{called}{number}", node=node, in_kernel=in_kernel,
                start=span.start, end=span.start + span.length,
            ))  # fmt: skip

    MetadataWrapper(module, unsafe_skip_copy=True).visit(Visitor())
    return found


def _with(cst: Any, node: Any, option: str, value: str) -> Any:
    """A call with a keyword argument set."""
    kept = [arg for arg in node.args if arg.keyword is None or arg.keyword.value != option]
    kept = [arg.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) for arg in kept]
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return node.with_changes(args=[*kept, cst.Arg(cst.parse_expression(value), keyword=cst.Name(option), equal=equal)])


def _given(node: Any, option: str) -> str:
    import libcst as cst

    for arg in node.args:
        if arg.keyword is not None and arg.keyword.value == option:
            return cst.Module([]).code_for_node(arg.value)
    return ""


def _begins_at_zero(cst: Any, node: Any) -> bool:
    """Whether the first number of a range is written as 0, or not at all."""
    bounds = [arg.value for arg in node.args if arg.keyword is None]
    return len(bounds) == 1 or (len(bounds) > 1 and isinstance(bounds[0], cst.Integer) and bounds[0].value == "0")


def _bracketed(cst: Any, node: Any) -> Any:
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def _dotted(node: Any) -> str:
    """`tl.load` of a node that names it; empty of one that names nothing."""
    import libcst as cst

    if isinstance(node, cst.Name):
        return str(node.value)
    if isinstance(node, cst.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr.value}" if inner else ""
    return _dotted(node.func) if isinstance(node, cst.Call) else ""
