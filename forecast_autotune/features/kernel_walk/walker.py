"""`Walker`: walks the statements of a kernel, and of the helpers it calls, in the order in which they run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .expressions import EXPRESSIONS
from .notes import Notes
from .source import definition_of, parameters_of, scope_of
from .symbols import UNKNOWN, Symbol, last_name, least, names_in

MAX_DEPTH = 8  # of helpers that call helpers
MAX_CALLS = 500  # of helpers in all: beyond, the source is not one that anybody compiles


class Walker:
    """Walks the statements of one kernel and of the helpers it calls.

    Args:
        scope: what the kernel's code finds outside of it: globals, and what its closure holds.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.names: dict[str, Symbol] = {}
        self.notes = Notes()
        self._callers: list[Any] = []  # helpers whose bodies are being walked
        self._calls = 0
        self._returned: Symbol | None = None
        self._needed: frozenset[str] = frozenset()  # names that are read later
        self._read: frozenset[str] = frozenset()  # by the statement that is being walked
        self._held: tuple[Symbol, ...] = ()  # what the callers of a helper need later

    def body(self, statements: Iterable[ast.stmt]) -> None:
        """Walk statements in their order. Kinds that are not listed in `_STATEMENTS` are passed over."""
        left, outer = list(statements), self._needed
        reads = [_read(statement) for statement in left]
        for i, statement in enumerate(left):
            self._needed = outer.union(*reads[i + 1 :])
            if isinstance(statement, ast.If):
                if _ends(statement.body) or _ends(statement.orelse):  # what follows belongs to the other branch
                    self._needed = outer
                    self._if(statement, left[i + 1 :])
                    break
                self._if(statement, [])
            elif handler := _STATEMENTS.get(type(statement)):
                self._read = reads[i]
                handler(self, statement)
                self._read = reads[i]
                self.hold()
        self._needed = outer

    def hold(self, *fresh: Symbol) -> None:
        """Note what is needed at this point: by this statement and later ones, by callers, and what was just made."""
        needed = self._needed | self._read
        self.notes.hold([*self._held, *(s for name, s in self.names.items() if name in needed), *fresh])

    def see(self, node: ast.expr) -> Symbol:
        """What is known of an expression's value."""
        handler = EXPRESSIONS.get(type(node))
        return handler(self, node) if handler is not None else UNKNOWN

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
            if one and other and one.value and other.value:
                self.notes.covers.setdefault(one.value, other.value)

    def take_for_tiles(self, node: ast.expr) -> None:
        """Note that the names in an expression are sizes of tiles."""
        for name in names_in(node):
            symbol = self.names.get(name)
            if symbol is not None and symbol.value is not None:
                for word in self.notes.words(symbol.value):
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
        self._returned = self.see(node.value) if node.value is not None else UNKNOWN

    def _if(self, node: ast.If, rest: Sequence[ast.stmt]) -> None:
        """Walk both branches, each as often as the condition holds; `rest` follows a branch that does not end its block."""
        condition = self.see(node.test).value
        before, returned = self.names, self._returned
        names: list[dict[str, Symbol]] = []
        returns: list[Symbol | None] = []
        for branch, repeat in zip((node.body, node.orelse), self.notes.branches(condition), strict=True):
            self.names, self._returned = dict(before), None
            with self.notes.repeated(repeat, loop=False):
                self.body(branch if _ends(branch) else [*branch, *rest])
            names.append(self.names)
            returns.append(self._returned)
        self.names, self._returned = dict(before), returned
        for name in {**names[0], **names[1]}:
            self.names[name] = self.either(condition, names[0].get(name), names[1].get(name))
        if returns != [None, None]:
            self._returned = self.either(condition, *returns)

    def either(self, condition: str | None, one: Symbol | None, other: Symbol | None) -> Symbol:
        """What a name stands for after a branch. Where only one of two values is known, that one is, if it is picked."""
        if one is None or other is None:
            return one or other or UNKNOWN
        kept = one if one.shape or one.base or one.items else other
        steps = kept.steps
        if condition and one.steps != other.steps and len(one.steps) == len(other.steps):
            pairs = zip(one.steps, other.steps, strict=True)
            steps = tuple(a if a == b else self.notes.number(f"({a} if {condition} else {b})") for a, b in pairs)
        if one == other:
            return replace(one, steps=steps)
        value = None
        if condition and (one.value or other.value) and one.value != other.value:
            value = self.notes.number(f"({one.value or 'unknown'} if {condition} else {other.value or 'unknown'})")
        elif one.value == other.value:
            value = one.value
        items = kept.items
        if one.items and other.items and len(one.items) == len(other.items):
            items = tuple(self.either(condition, *pair) for pair in zip(one.items, other.items, strict=True))
        return replace(
            kept,
            value=value,
            items=items,
            steps=steps,
            loaded=(*one.loaded, *other.loaded)[:8],
            varies=one.varies | other.varies,
            from_memory=one.from_memory or other.from_memory,
            chained=one.chained | other.chained,
        )

    def _for(self, node: ast.For) -> None:
        bounds = self._range(node.iter) if isinstance(node.iter, ast.Call) else None
        self._loop(node.body, bounds, [node.target], self._unrolled(node.iter))

    def _unrolled(self, over: ast.expr) -> str | None:
        """How many trips of a loop `tl.range` makes one."""
        given = {k.arg: k.value for k in over.keywords} if isinstance(over, ast.Call) else {}
        factor = self.see(given["loop_unroll_factor"]).value if "loop_unroll_factor" in given else None
        return self.notes.number(f"max(1, {factor})") if factor else None

    def _range(self, call: ast.Call) -> list[Symbol] | None:
        """Start, stop and step of `range`, `tl.range` or `tl.static_range`; notes what its knobs are for."""
        roles = self.notes.roles
        named = {k.arg: k.value for k in call.keywords}
        if "step" in named and len(call.args) < 3:  # of tl.range, `range(0, n, step=4)`
            start = [ast.Constant(0)] if len(call.args) == 1 else []
            others = [k for k in call.keywords if k.arg != "step"]
            return self._range(ast.Call(call.func, [*start, *call.args, named["step"]], others))
        seen = [self.see(a) for a in call.args]
        for keyword in call.keywords:
            if keyword.arg in ("num_stages", "loop_unroll_factor") and isinstance(keyword.value, ast.Name):
                roles[keyword.value.id] = "stages" if keyword.arg == "num_stages" else "unroll"
        if len(call.args) == 3:
            self.cover(call.args[2], call.args[1])
        if last_name(call.func) == "static_range":
            for argument in call.args:
                for name in names_in(argument):
                    roles.setdefault(name, "unroll")
        zero, one = Symbol(value="0"), Symbol(value="1")
        return {1: [zero, *seen, one], 2: [*seen, one], 3: seen}.get(len(seen))

    def _while(self, node: ast.While) -> None:
        """A loop that counts a number up, as `while i < n`, is one over a range."""
        self.see(node.test)
        test, bounds, targets = node.test, None, []
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Lt, ast.LtE)):
            step = _step(node.body, test.left)
            if step is not None:
                bounds = [self.see(test.left), self.see(test.comparators[0]), self.see(step)]
                targets = [test.left]
        self._loop(node.body, bounds, targets)

    def _with(self, node: ast.With) -> None:
        self.body(node.body)

    def _loop(
        self,
        statements: Sequence[ast.stmt],
        bounds: list[Symbol] | None,
        targets: Sequence[ast.expr],
        unrolled: str | None = None,
    ) -> None:
        """Walk a loop's body once, in the middle of its way; of what changes from trip to trip no number is known."""
        texts = [b.value or "unknown" for b in bounds or ()]
        repeat = self.notes.repeat("for", f"trips({', '.join(texts)})" if bounds else "unknown")
        if unrolled:
            self.notes.unrolled[repeat] = unrolled
        changes = frozenset([repeat]).union(*(b.varies for b in bounds or ()))
        for name in _assigned(statements):
            if symbol := self.names.get(name):
                chained = symbol.chained | {(repeat, name, False)}
                self.names[name] = replace(symbol, value=None, varies=symbol.varies | changes, chained=chained)
        middle = self.notes.number(f"middle({texts[0]}, {repeat}, {texts[2]}, late)") if bounds else None
        for target in targets:
            multiple = self.notes.short(least(bounds[0].multiple, bounds[2].multiple)) if bounds else "1"
            self._bind(target, Symbol(value=middle, varies=changes, multiple=multiple))
        later = self._needed
        self._needed = later.union(*map(_read, statements))
        with self.notes.repeated(repeat, loop=True):
            self.body(statements)
        self._needed = later
        for name, symbol in self.names.items():
            if (repeat, name, True) in symbol.chained:
                self.notes.serial.add(repeat)
            if symbol.value is not None and repeat in symbol.varies:
                self.names[name] = replace(symbol, value=None)

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
        if helper in self._callers or len(self._callers) >= MAX_DEPTH or self._calls >= MAX_CALLS:
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
        around = self._needed, self._read, self._held
        self._held = (*self._held, *(s for name, s in self.names.items() if name in self._needed))
        self.names, self.scope, self._returned, self._needed = given, scope_of(helper), None, frozenset()
        self._callers.append(helper)
        self._calls += 1
        try:
            self.body(definition.body)
            return self._returned or UNKNOWN
        finally:
            self._callers.pop()
            self.names, self.scope, self._returned = outer
            self._needed, self._read, self._held = around


_STATEMENTS: dict[type[ast.stmt], Callable[[Walker, Any], None]] = {
    ast.Expr: Walker._expr,
    ast.Assign: Walker._assign,
    ast.AnnAssign: Walker._annassign,
    ast.AugAssign: Walker._augassign,
    ast.Return: Walker._return,
    ast.For: Walker._for,
    ast.While: Walker._while,
    ast.With: Walker._with,
}


def _ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing that follows these statements in their block is reached."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    return isinstance(last, (ast.Return, ast.Continue, ast.Break))


def _step(statements: Iterable[ast.stmt], counter: ast.expr) -> ast.expr | None:
    """What is added to a counter by one of these statements, `counter += …`."""
    for statement in statements:
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            continue
        if ast.unparse(statement.target) == ast.unparse(counter):
            return statement.value
    return None


def _read(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement reads; kept at the statement, since helpers are walked as often as they are called."""
    names: frozenset[str] | None = vars(statement).get("names_read")
    if names is None:
        names = vars(statement)["names_read"] = frozenset(
            node.id for node in ast.walk(statement) if type(node) is ast.Name and type(node.ctx) is ast.Load
        )
    return names


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
