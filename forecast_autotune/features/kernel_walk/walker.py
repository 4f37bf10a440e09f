"""`Walker`: walks the statements of a kernel, and of the helpers it calls, in the order in which they run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .expressions import EXPRESSIONS
from .notes import Notes
from .source import definition_of, parameters_of, scope_of
from .symbols import MAX_TEXT, UNKNOWN, Symbol, last_name, names_in

MAX_DEPTH = 8  # of helpers that call helpers


class Walker:
    """Walks the statements of one kernel and of the helpers it calls.

    Args:
        scope: what the kernel's code finds outside of it: globals, and what its closure holds.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.names: dict[str, Symbol] = {}
        self.notes = Notes()
        self._depth = 0
        self._returned: Symbol = UNKNOWN

    def body(self, statements: Iterable[ast.stmt]) -> None:
        """Walk statements in their order. Kinds that are not listed in `_STATEMENTS` are passed over."""
        for statement in statements:
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                handler(self, statement)

    def see(self, node: ast.expr) -> Symbol:
        """What is known of an expression's value."""
        handler = EXPRESSIONS.get(type(node))
        seen = handler(self, node) if handler is not None else UNKNOWN
        if seen.value is not None and len(seen.value) > MAX_TEXT:
            return replace(seen, value=None)
        return seen

    def dims(self, node: ast.expr | None) -> tuple[str, ...]:
        """A shape argument: a tuple, a list, or a single number."""
        if node is None:
            return ()
        self.take_for_tiles(node)
        shape = self.see(node)
        texts = [item.value for item in shape.items] if shape.items is not None else [shape.value]
        return tuple(t for t in texts if t) if all(texts) else ()

    def cover(self, knob: ast.expr, length: ast.expr) -> None:
        """Note that a length is walked in steps of a knob: `cdiv(M, BLOCK_M)`, `range(0, K, BLOCK_K)`."""
        if isinstance(knob, ast.Name) and isinstance(length, ast.Name):
            one, other = self.names.get(knob.id), self.names.get(length.id)
            if one and other and one.value == knob.id and other.value == length.id:
                self.notes.covers.setdefault(knob.id, length.id)

    def take_for_tiles(self, node: ast.expr) -> None:
        """Note that the names in an expression are sizes of tiles."""
        for name in names_in(node):
            symbol = self.names.get(name)
            if symbol is not None and symbol.value is not None:
                for word in re.findall(r"[A-Za-z_]\w*", symbol.value):
                    self.notes.roles.setdefault(word, "tile")

    # Statements

    def _expr(self, node: ast.Expr) -> None:
        self.see(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.see(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.see(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            old = self.names.get(node.target.id, UNKNOWN)
            new = self.notes.combined([old, self.see(node.value)], node.op)
            self.names[node.target.id] = replace(new, shape=new.shape or old.shape, element=old.element or new.element)

    def _return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._returned = self.see(node.value)

    def _if(self, node: ast.If) -> None:
        condition = self.see(node.test).value
        before = self.names
        outcomes = []
        for branch, holds in ((node.body, "1 if ({}) else 0"), (node.orelse, "0 if ({}) else 1")):
            self.names = dict(before)
            with self.notes.repeated(f"({holds.format(condition)})" if condition else "1", loop=False):
                self.body(branch)
            outcomes.append(self.names)
        self.names = dict(before)
        for name in {**outcomes[0], **outcomes[1]}:
            self.names[name] = _either(condition, outcomes[0].get(name), outcomes[1].get(name))

    def _for(self, node: ast.For) -> None:
        call = node.iter
        trips = "1"
        if isinstance(call, ast.Call):
            trips = self._range(call)
        self._loop(node.body, trips, [node.target])

    def _range(self, call: ast.Call) -> str:
        """How often a loop over `range`, `tl.range` or `tl.static_range` runs; notes what its knobs are for."""
        trips, roles = "1", self.notes.roles
        texts = [self.see(a).value for a in call.args]
        for keyword in call.keywords:
            if keyword.arg in ("num_stages", "loop_unroll_factor") and isinstance(keyword.value, ast.Name):
                roles[keyword.value.id] = "stages" if keyword.arg == "num_stages" else "unroll"
        start, stop, step = {1: ["0", *texts, "1"], 2: [*texts, "1"]}.get(len(texts), (texts + ["1"] * 3)[:3])
        if start and stop and step:
            trips = f"trips({start}, {stop}, {step})"
        if len(call.args) == 3:
            self.cover(call.args[2], call.args[1])
        if last_name(call.func) == "static_range":
            for argument in call.args:
                for name in names_in(argument):
                    roles.setdefault(name, "unroll")
        return trips

    def _while(self, node: ast.While) -> None:
        self.see(node.test)
        self._loop(node.body, "1", [])

    def _with(self, node: ast.With) -> None:
        self.body(node.body)

    def _loop(self, statements: Sequence[ast.stmt], trips: str, targets: Sequence[ast.expr]) -> None:
        for target in targets:
            self._bind(target, UNKNOWN)
        for name in _assigned(statements):  # a number that changes from trip to trip is no number
            if name in self.names and self.names[name].value is not None:
                self.names[name] = replace(self.names[name], value=None)
        with self.notes.repeated(trips, loop=True):
            self.body(statements)

    def _bind(self, target: ast.expr, value: Symbol) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for i, element in enumerate(target.elts):
                self._bind(element, value.items[i] if value.items and i < len(value.items) else UNKNOWN)

    # Helpers that the kernel calls

    def helper(self, node: ast.expr) -> Any:
        """The JIT function of the user's own that a call is of; None for anything else."""
        function: Any = None
        if isinstance(node, ast.Name):
            function = self.scope.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            function = getattr(self.scope.get(node.value.id), node.attr, None)
        module = str(getattr(function, "__module__", ""))
        return function if hasattr(function, "src") and not module.startswith("triton.") else None

    def inline(self, helper: Any, args: Sequence[ast.expr], named: Mapping[str, ast.expr]) -> Symbol:
        """Walk a helper's body with these arguments; returns what it returns."""
        if self._depth >= MAX_DEPTH:
            return UNKNOWN
        definition = definition_of(helper)
        if definition is None:
            return UNKNOWN
        parameters = [a.arg for a in parameters_of(definition)]
        given = dict(zip(parameters, (self.see(a) for a in args), strict=False))
        given.update((name, self.see(value)) for name, value in named.items() if name in parameters)
        defaults = dict(zip(parameters[::-1], definition.args.defaults[::-1], strict=False))
        for name, default in defaults.items():
            if name not in given:
                given[name] = self.see(default)
        outer = self.names, self.scope, self._returned
        self.names, self.scope, self._returned = given, scope_of(helper), UNKNOWN
        self._depth += 1
        try:
            self.body(definition.body)
            return self._returned
        finally:
            self._depth -= 1
            self.names, self.scope, self._returned = outer


_STATEMENTS: dict[type[ast.stmt], Callable[[Walker, Any], None]] = {
    ast.Expr: Walker._expr,
    ast.Assign: Walker._assign,
    ast.AnnAssign: Walker._annassign,
    ast.AugAssign: Walker._augassign,
    ast.Return: Walker._return,
    ast.If: Walker._if,
    ast.For: Walker._for,
    ast.While: Walker._while,
    ast.With: Walker._with,
}


def _either(condition: str | None, one: Symbol | None, other: Symbol | None) -> Symbol:
    """What a name stands for after a branch: an expression of both where a condition picks between two numbers."""
    if one is None or other is None or one == other:
        return one or other or UNKNOWN
    kept = one if one.shape or one.base else other
    both = condition and one.value and other.value
    return replace(kept, value=f"({one.value} if {condition} else {other.value})" if both else None)


def _assigned(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that some statements set."""
    names = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names
