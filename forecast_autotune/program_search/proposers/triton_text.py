"""A Triton module's text with its tree: what stands where, which functions are kernels, and how each is launched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ...core.cached_property import cached_property

Change = tuple[int, int, str]  # where it begins and ends, in bytes, and what stands there instead

MAX_AXES = 3  # of a grid

# What is asked of a tensor, and of nothing else that a launch is given.
_OF_TENSORS = ("shape", "stride", "numel", "device", "dtype", "new_empty", "new_zeros", "size", "data_ptr")
Node = ast.expr | ast.stmt | ast.arg
Scope = ast.stmt | ast.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that is a statement: its grid axis by axis, as text, and an argument that is a tensor."""

    statement: ast.Expr
    call: ast.Call
    indexed: ast.Subscript
    grid: tuple[str, ...]
    given: Mapping[str, str]  # text of each argument, by the kernel's name for it
    tensor: str


class ModuleText:
    """A module's text with its tree: what stands where, and who launches whom."""

    def __init__(self, source: str) -> None:
        self.text = source.encode()
        self.tree = ast.parse(source)
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @property
    def kernels(self) -> list[ast.FunctionDef]:
        """Functions that Triton compiles."""
        return [f for f in self.functions.values() if any("jit" in self.of(d) for d in f.decorator_list)]

    @cached_property
    def has_torch(self) -> bool:
        """Whether the module knows torch by that name."""
        return any(
            isinstance(node, ast.Import) and any(a.name == "torch" and a.asname is None for a in node.names)
            for node in self.tree.body
        )

    def span(self, node: Node) -> tuple[int, int]:
        """Where a node begins and ends, in bytes."""
        last, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[last - 1] + column

    def of(self, node: Node) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end].decode()

    def lines(self, first: ast.stmt, last: ast.stmt) -> tuple[int, int]:
        """Where the lines of some statements begin and end."""
        return self._starts[first.lineno - 1], self._starts[last.end_lineno or last.lineno]

    def between(self, start: int, end: int, changes: Sequence[Change] = ()) -> str:
        """A part of the text with what lies in it replaced; changes at one place in their order."""
        new, at = b"", start
        inside = [c for c in changes if start <= c[0] and c[1] <= end]
        for first, last, how in sorted(inside, key=lambda change: change[:2]):
            new, at = new + self.text[at:first] + how.encode(), last
        return (new + self.text[at:end]).decode()

    def changed(self, changes: Sequence[Change]) -> str:
        """The whole text with some of it replaced."""
        return self.between(0, len(self.text), changes)

    def margin(self, statement: ast.stmt) -> str:
        """What stands ahead of a statement in its line."""
        start = self.span(statement)[0]
        return self.text[start - statement.col_offset : start].decode()

    def before(self, function: ast.FunctionDef, text: str) -> Change:
        """A change that puts a text ahead of a function."""
        first = function.decorator_list[0] if function.decorator_list else function
        at = self.span(first)[0] - (1 if function.decorator_list else 0)  # its @
        return at, at, text

    def parameters(self, function: ast.FunctionDef, more: str) -> Change:
        """A change that gives a function further parameters, its last."""
        at = self.span(function.args.args[-1])[1]
        return at, at, f", {more}"

    def arguments(self, call: ast.Call, more: Mapping[str, str]) -> Change:
        """A change that gives a call further arguments by name."""
        at = max(self.span(each)[1] for each in (*call.args, *(k.value for k in call.keywords)))
        while closed := re.compile(rb"\s*\)").match(self.text, at, self.span(call)[1] - 1):
            at = closed.end()  # of brackets around the last argument
        return at, at, "".join(f", {name}={text}" for name, text in more.items())

    def launches(self, kernel: ast.FunctionDef) -> list[Launch]:
        """Every launch of a kernel; none where one, or what else a function does with it, is not understood."""
        found: list[Launch] = []
        for top in _scopes(self.tree.body):
            inside = list(ast.walk(top))
            used = sum(isinstance(node, ast.Name) and node.id == kernel.name for node in inside)
            scope: Scope = top if isinstance(top, ast.FunctionDef) else self.tree
            launches = [
                launch
                for node in inside
                if isinstance(node, ast.Expr) and (launch := self._launch(scope, kernel, node)) is not None
            ]
            launched = sum(isinstance(n, ast.Subscript) and _is_named(n.value, kernel.name) for n in inside)
            if len(launches) < (launched if scope is self.tree else used):
                return []
            found += launches
        return found

    def _launch(self, scope: Scope, kernel: ast.FunctionDef, statement: ast.Expr) -> Launch | None:
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Subscript):
            return None
        if not _is_named(call.func.value, kernel.name):
            return None
        known = takewhile(lambda arg: not isinstance(arg, ast.Starred), call.args)
        given = dict(zip([arg.arg for arg in kernel.args.args], map(self.of, known), strict=False))
        given.update((k.arg, self.of(k.value)) for k in call.keywords if k.arg is not None)
        grid = self._grid(scope, call.func.slice, given)
        tensors = {
            node.value.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _OF_TENSORS
        }
        tensor = next((text for text in given.values() if text in tensors), "")
        if grid is None or not tensor:
            return None
        return Launch(statement=statement, call=call, indexed=call.func, grid=grid, given=given, tensor=tensor)

    def _grid(self, scope: Scope, node: ast.expr, given: Mapping[str, str]) -> tuple[str, ...] | None:
        """A grid axis by axis: a tuple, a name that is set to one once, or a function of the knobs that returns one."""
        if isinstance(node, ast.Name):
            name = node.id
            values = [n.value for n in ast.walk(scope) if isinstance(n, ast.Assign) and _is_named(n.targets[0], name)]
            if len(values) != 1 or len(_set_at(scope, {name})) > 1:
                return None
            node = values[0]
            if any(line > (node.end_lineno or node.lineno) for line in _set_at(scope, words(node))):
                return None  # what it is made of may be something else by the time of the launch
        changes: list[Change] = []
        if isinstance(node, ast.Lambda):
            told = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            knobs, node = [arg.arg for arg in node.args.args], node.body
            for each in ast.walk(node):
                if isinstance(each, ast.Subscript) and [self.of(each.value)] == knobs:
                    knob = each.slice.value if isinstance(each.slice, ast.Constant) else None
                    if knob not in given:
                        return None
                    changes.append((*self.span(each), bracketed(given[str(knob)])))
            if sum(isinstance(each, ast.Name) and each.id in told for each in ast.walk(node)) > len(changes):
                return None  # knobs that are asked for in another way
        if not isinstance(node, ast.Tuple) or not 1 <= len(node.elts) <= MAX_AXES:
            return None
        return tuple(self.between(*self.span(axis), changes) for axis in node.elts)


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _set_at(scope: Scope, names: set[str]) -> list[int]:
    """Lines where names are given values, as arguments too."""
    return [
        n.lineno
        for n in ast.walk(scope)
        if (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names)
        or (isinstance(n, ast.arg) and n.arg in names)
    ]


def _scopes(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, with what stands in classes on its own: a name in one method is none in another."""
    for each in statements:
        if isinstance(each, ast.ClassDef):
            yield from _scopes(each.body)
        else:
            yield each


def words(node: ast.AST) -> set[str]:
    """Every name in a node, and every attribute that is asked of one."""
    inside = list(ast.walk(node))
    return {n.id for n in inside if isinstance(n, ast.Name)} | {n.attr for n in inside if isinstance(n, ast.Attribute)}


def is_plain(function: ast.FunctionDef) -> bool:
    """Whether a function has one decorator and takes what it takes by position, without defaults."""
    given = function.args
    return bool(
        len(function.decorator_list) == 1
        and given.args
        and not (given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults)
        and function.body[0].lineno > function.lineno
    )


def bracketed(text: str) -> str:
    """A text that stands for itself in any formula."""
    return text if re.fullmatch(r"\w+(\.\w+)*(\([^()]*\))?", text) else f"({text})"
