"""CUDA text to closures: declarations, types and statements. What is not known abstains when it is reached, not before."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from .expressions import Expressions, abstains, child_of, children, text_of, unsupported
from .machine import Condition, LoopCode, Machine, Run, Step
from .scopes import Scope
from .values import (
    LONGEST_S,
    AbstainError,
    ArrayType,
    Function,
    Memory,
    Parameter,
    Place,
    PointerType,
    StructType,
    Unknown,
    struct_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_numbers = itertools.count()


@cache
def _parser() -> Parser:
    """tree-sitter's parser of CUDA.

    Raises:
        ImportError: it is not installed.
    """
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_cuda.language()))


@dataclass(slots=True)
class Declared:
    """What texts declare outside of functions, by name."""

    functions: dict[str, list[Function]] = field(default_factory=dict)
    structs: dict[str, Run] = field(default_factory=dict)
    aliases: dict[str, Run] = field(default_factory=dict)
    constants: dict[str, Run] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)  # functions by the name that Python has for them


def read_text(text: str, declared: Declared) -> None:
    """Add what a preprocessed text declares.

    Raises:
        AbstainError: it does not parse.
    """
    root = _parser().parse(text.encode()).root_node
    if root.has_error:
        raise AbstainError("the text does not parse")
    Statements(declared).top_level(root)


def read_expression(text: str) -> Run:
    """An expression as what gives its value.

    Raises:
        AbstainError: it does not parse.
    """
    root = _parser().parse(f"auto value = {text};".encode()).root_node
    if root.has_error:
        raise AbstainError(f"{text[:40]} does not parse")
    declared = Declared()
    Statements(declared).top_level(root)
    return declared.constants["value"]


class Statements(Expressions):
    """Closures of statements and declarations; see `Expressions` for those of values."""

    def __init__(self, declared: Declared) -> None:
        super().__init__()
        self.declared = declared
        self._until = time.monotonic() + LONGEST_S

    # Outside of functions -----------------------------------------------------------------------------------------------

    def top_level(self, node: Node) -> None:
        for child in node.named_children:
            kind = child.type
            if kind in ("namespace_definition", "linkage_specification"):
                body = child_of(child, "body")
                if body.type in ("declaration_list", "compound_statement"):
                    self.top_level(body)
                else:
                    self._top_level_one(body)
            elif kind == "template_declaration":
                self._template(child)
            else:
                self._top_level_one(child)

    def _top_level_one(self, node: Node, templates: tuple[str, ...] = ()) -> None:
        kind = node.type
        if kind == "function_definition":
            self._function_definition(node, templates)
        elif kind in ("struct_specifier", "class_specifier"):
            self._struct(node)
        elif kind == "enum_specifier":
            self._enum(node)
        elif kind in ("alias_declaration", "type_definition"):
            self._alias(node)
        elif kind == "declaration":
            type_node = node.child_by_field_name("type")
            if type_node is not None and type_node.type == "enum_specifier":
                self._enum(type_node)
            self._global(node)
        elif kind == "namespace_definition":
            self.top_level(child_of(node, "body"))

    def _template(self, node: Node) -> None:
        names = []
        for parameter in child_of(node, "parameters").named_children:
            found = parameter.child_by_field_name("declarator") or parameter.child_by_field_name("name")
            found = found or next((c for c in parameter.named_children if c.type == "type_identifier"), None)
            names.append(text_of(found) if found is not None else "")
        self._top_level_one(node.named_children[-1], tuple(names))

    def _function_definition(self, node: Node, templates: tuple[str, ...] = ()) -> None:
        declarator = _function_declarator(node.child_by_field_name("declarator"))
        if declarator is None or node.child_by_field_name("body") is None:
            return
        name = text_of(declarator.child_by_field_name("declarator"))
        if name.startswith("PYBIND11_MODULE"):
            self._bindings(node)
            return
        function = self._function(node, declarator, name, templates, frozenset())
        self.declared.functions.setdefault(name, []).append(function)

    def _bindings(self, node: Node) -> None:
        for statement in child_of(node, "body").named_children:
            call = statement.named_children[0] if statement.named_children else None
            if call is not None and call.type == "call_expression":
                words = [text_of(c) for c in children(child_of(call, "arguments"))[:2]]
                if len(words) == 2:
                    self.declared.bound[words[0].strip('"')] = words[1].lstrip("&").split("::")[-1]

    def _function(
        self, node: Node, declarator: Node, name: str, templates: tuple[str, ...], members: frozenset[str]
    ) -> Function:
        outer, self.scope = self.scope, Scope(members)
        parameters = self._parameters(declarator.child_by_field_name("parameters"))
        self.scope.of_call.update(parameter.key for parameter in parameters)
        for template in templates:
            self.scope.declare(template)
        body = self.statement(child_of(node, "body"))
        result = self.type_of(node.child_by_field_name("type"))
        self.scope = outer
        is_kernel = (
            any(child.type == "__global__" for child in node.children)
            or "__global__" in text_of(node)[:200].split("{")[0]
        )
        return Function(name, parameters, body, templates, is_kernel, result=result)

    def _parameters(self, node: Node | None) -> tuple[Parameter, ...]:
        parameters = []
        for child in node.named_children if node is not None else ():
            if child.type not in ("parameter_declaration", "optional_parameter_declaration"):
                continue
            type_node = child.child_by_field_name("type")
            name, kind, reference, pointers = self.declarator(
                child.child_by_field_name("declarator"), self.type_of(type_node)
            )
            if name is None and text_of(type_node) == "void" and not pointers:
                continue
            default = child.child_by_field_name("default_value")
            parameters.append(
                Parameter(
                    key=self.scope.declare(name or "(unnamed)"),
                    type=kind,
                    by_reference=reference,
                    pointers=pointers,
                    type_name=text_of(type_node),
                    default=self.value(default) if default is not None else None,
                )
            )
        return tuple(parameters)

    def _struct(self, node: Node) -> str:
        name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        name = text_of(name_node) if name_node is not None else f"(struct {next(_numbers)})"
        if body is None:
            return name
        fields: list[tuple[str, Run]] = []
        methods: list[tuple[Node, Node]] = []
        for child in body.named_children:
            if child.type == "template_declaration":
                child = child.named_children[-1]
            if child.type == "field_declaration":
                base = self.type_of(child.child_by_field_name("type"))
                for declarator in child.children_by_field_name("declarator"):
                    field_name, kind, _, _ = self.declarator(declarator, base)
                    if field_name is not None:
                        fields.append((field_name, kind))
            elif child.type == "function_definition":
                function = _function_declarator(child.child_by_field_name("declarator"))
                if function is not None and child.child_by_field_name("body") is not None:
                    methods.append((child, function))
            elif child.type in ("declaration", "alias_declaration") and "operator" not in text_of(child):
                self._top_level_one(child)
        of_methods: dict[str, Function] = {}
        members = frozenset(
            [name for name, _ in fields] + [text_of(f.child_by_field_name("declarator")) for _, f in methods]
        )
        for child, function in methods:
            method = text_of(function.child_by_field_name("declarator")).replace(" ", "")
            of_methods[method] = self._function(child, function, method, (), members)
        aligned = next((c for c in node.named_children if c.type == "alignas_qualifier"), None)
        align = self.value(aligned.named_children[0]) if aligned is not None else None

        def make(m: Machine) -> StructType:
            at = 1 if align is None else align(m)
            made = [(n, kind(m)) for n, kind in fields]
            if not isinstance(at, int) or any(kind is None for _, kind in made):
                raise AbstainError(f"struct {name} is not known")
            return struct_of(name, made, of_methods, at)

        self.declared.structs[name] = make
        return name

    def _enum(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None:
            self.declared.aliases[text_of(name)] = lambda m: m.world.type("int")
        previous: Run | None = None
        for child in children(body) if body is not None else ():
            given = child.child_by_field_name("value")
            value: Run = self.value(given) if given is not None else _after(previous)
            self.declared.constants[text_of(child.child_by_field_name("name"))] = previous = value

    def _alias(self, node: Node) -> None:
        kind = self.type_of(node.child_by_field_name("type"))
        name = node.child_by_field_name("name")
        if name is not None:
            self.declared.aliases[text_of(name)] = kind
        for declarator in node.children_by_field_name("declarator"):
            declared, of, _, _ = self.declarator(declarator, kind)
            if declared is not None:
                self.declared.aliases[declared] = of

    def _global(self, node: Node) -> None:
        """A constant, or memory of the device, outside of functions."""
        words = {child.type for child in node.children} | {
            text_of(c) for c in node.children if c.type == "type_qualifier"
        }
        space = "constant" if "__constant__" in words else "global" if "__device__" in words else ""
        base = self.type_of(node.child_by_field_name("type"))
        for declarator in node.children_by_field_name("declarator"):
            if _function_declarator(declarator) is not None:
                continue
            value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
            name, kind, _, _ = self.declarator(declarator, base)
            if name is None:
                continue
            if space:
                self.declared.constants[name] = _device_memory(name, space, kind)
            elif value is not None:
                self.declared.constants[name] = self.initial(value, kind)

    # Types ------------------------------------------------------------------------------------------------------------

    def declarator(self, node: Node | None, base: Run) -> tuple[str | None, Run, bool, int]:
        """The name that a declarator gives, its type, whether it is a reference, and how many pointers it has."""
        kind, reference, pointers = base, False, 0
        while node is not None:
            if node.type in ("pointer_declarator", "abstract_pointer_declarator"):
                kind, pointers = _pointer_to(kind), pointers + 1
            elif node.type in ("reference_declarator", "abstract_reference_declarator"):
                reference = True
            elif node.type in ("array_declarator", "abstract_array_declarator"):
                size = node.child_by_field_name("size")
                kind = self._array_of(kind, size)
            elif node.type in ("function_declarator", "abstract_function_declarator"):
                return None, abstains("a pointer to a function"), reference, pointers
            elif node.type not in ("init_declarator", "parenthesized_declarator", "abstract_parenthesized_declarator"):
                return text_of(node), kind, reference, pointers
            inner = node.child_by_field_name("declarator")
            node = (
                inner
                if inner is not None
                else next((c for c in node.named_children if "declarator" in c.type or "identifier" in c.type), None)
            )
        return None, kind, reference, pointers

    def _array_of(self, element: Run, size: Node | None) -> Run:
        count = self.value(size) if size is not None else None

        def array(m: Machine) -> ArrayType:
            number = 0 if count is None else count(m)
            of = element(m)
            if not isinstance(number, int) or of is None:
                raise AbstainError("the size of an array is not known")
            return ArrayType(of, number)

        return array

    # Statements -------------------------------------------------------------------------------------------------------

    def statement(self, node: Node) -> Run:
        """What a statement does.

        Raises:
            AbstainError: to read the text takes too long.
        """
        if time.monotonic() > self._until:
            raise AbstainError("the text takes too long to read")
        lower = _STATEMENTS.get(node.type)
        return unsupported(node) if lower is None else lower(self, node)

    def compound(self, node: Node) -> Run:
        self.scope.blocks.append({})
        parts = [self.statement(child) for child in children(node)]
        self.scope.blocks.pop()
        return _one_after_the_other(parts)

    def expression_statement(self, node: Node) -> Run:
        if not node.named_children:
            return _nothing
        value = self.code(node.named_children[0])
        return value.effect or value.value

    def declaration(self, node: Node) -> Run:
        words = {
            text_of(child)
            for child in node.children
            if not child.is_named or "qualifier" in child.type or "storage" in child.type
        }
        words |= {child.type for child in node.children}
        type_node = node.child_by_field_name("type")
        if (
            type_node is not None
            and type_node.type in ("struct_specifier", "class_specifier")
            and type_node.child_by_field_name("body")
        ):
            self._struct(type_node)
        base = self.type_of(type_node)
        parts = [self._declared(declarator, base, words) for declarator in node.children_by_field_name("declarator")]
        return _one_after_the_other(parts)

    def _declared(self, declarator: Node, base: Run, words: set[str]) -> Run:
        value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
        function = _function_declarator(declarator) if value is None else None
        if function is not None:
            return self._declared_with_call(function, base)
        # The name is known only behind its value.
        initial_scope = self.scope.blocks[-1].copy()
        name, kind, reference, _ = self.declarator(declarator, base)
        if name is None:
            return abstains("a declaration without a name")
        if "__shared__" in words:
            return _shared(self.scope.declare(name), name, kind, "extern" in words)
        self.scope.blocks[-1] = initial_scope
        initial = self.initial(value, kind, reference) if value is not None else None
        is_alias = reference or ("const" in words and value is not None and value.type == "identifier")
        key = self.scope.declare(name)
        if value is not None and self._is_of_call(value):
            self.scope.of_call.add(key)
        if initial is None:

            def declare(m: Machine) -> None:
                of = kind(m)
                if isinstance(of, (StructType, ArrayType)):
                    m.frame[key] = Place(Memory(name, "local", of.size), (), 0, of)
                    if m.threads is not None:
                        m.counts.local_bytes += of.size
                else:
                    m.frame[key] = Unknown(of)

            return declare

        def define(m: Machine) -> None:
            value = initial(m)
            m.frame[key] = value
            if m.threads is None or is_alias:
                return
            if isinstance(value, Place) and value.memory.space == "local" and value.type is not None:
                m.counts.local_bytes += value.type.size

        return define

    def _declared_with_call(self, function: Node, base: Run) -> Run:
        """`dim3 grid(a, b)`, which reads like a function that is declared."""
        values = []
        for parameter in children(child_of(function, "parameters")):
            type_node = parameter.child_by_field_name("type")
            if type_node is None or parameter.child_by_field_name("declarator") is not None:
                return _nothing
            values.append(self.identifier_named(text_of(type_node)).value)
        key = self.scope.declare(text_of(function.child_by_field_name("declarator")))

        def define(m: Machine) -> None:
            m.frame[key] = m.construct(base(m), [value(m) for value in values])

        return define

    def initial(self, node: Node, kind: Run, reference: bool = False) -> Run:
        """What a variable begins with."""
        if node.type == "argument_list" or node.type == "initializer_list":
            values = [self.value(child) for child in children(node)]
            return lambda m: m.construct(kind(m), [value(m) for value in values])
        code = self.code(node)
        if reference and code.place is not None:
            return code.place
        value = code.value
        return lambda m: m.cast(m.copied(value(m)), kind(m))

    def if_statement(self, node: Node) -> Run:
        self.scope.blocks.append({})
        condition_node = child_of(node, "condition")
        declared = condition_node.child_by_field_name("initializer")
        before = self.statement(declared) if declared is not None else None
        value_node = condition_node.child_by_field_name("value") or condition_node
        condition = self.value(value_node)
        consequence, alternative = child_of(node, "consequence"), node.child_by_field_name("alternative")
        then = self.statement(consequence)
        other = self.statement(alternative) if alternative is not None else None
        self.scope.blocks.pop()
        leaves = alternative is None and _only_leaves(consequence)

        def run(m: Machine) -> None:
            m.step()
            if before is not None:
                before(m)
            holds = condition(m)
            if m.threads is None and leaves and m.truth(holds) is None:
                return  # a check that the host makes
            m.branch(holds, lambda: then(m), None if other is None else lambda: other(m))

        return run

    def else_clause(self, node: Node) -> Run:
        return self.statement(children(node)[0])

    def for_statement(self, node: Node, unroll: Run | None = None) -> Run:
        self.scope.blocks.append({})
        initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
        update = node.child_by_field_name("update")
        begin = None
        if initializer is not None:
            begin = self.statement(initializer) if initializer.type == "declaration" else self.value(initializer)
        steps = self._steps(update) if update is not None else []
        body_node = child_of(node, "body")
        inner = self._steps_of_body(body_node)
        code = LoopCode(
            conditions=self._conditions(condition),
            steps=(*(steps or ()), *inner),
            body=self.statement(body_node),
            unroll=unroll,
        )
        of_host = LoopCode(conditions=code.conditions, steps=tuple(steps or ()), body=code.body)
        self.scope.blocks.pop()
        if steps is None:
            return abstains("a loop's step")

        def run(m: Machine) -> None:
            m.step()
            if begin is not None:
                begin(m)
            m.loop(of_host if m.threads is None else code)

        return run

    def while_statement(self, node: Node) -> Run:
        condition = child_of(node, "condition")
        condition = condition.child_by_field_name("value") or condition
        body = child_of(node, "body")
        code = LoopCode(
            conditions=self._conditions(condition),
            steps=tuple(self._steps_of_body(body)),
            body=self.statement(body),
            is_do=node.type == "do_statement",
            steps_in_body=True,
        )

        def run(m: Machine) -> None:
            m.step()
            m.loop(code)

        return run

    def attributed(self, node: Node) -> Run:
        inner = children(node)[-1]
        if inner.type == "for_statement":
            return self.for_statement(inner, self._unroll(node, inner))
        return self.statement(inner)

    def _unroll(self, node: Node, loop: Node) -> Run | None:
        """By how many trips a pragma unrolls a loop. Without a number it does nothing where only a call tells how many there
        are (CUDA programming guide, `#pragma unroll`)."""
        attribute = next((c for c in node.named_children[:-1] if "unroll" in text_of(c)), None)
        if attribute is None:
            return None
        counts = [c for each in children(attribute) for given in children(each) for c in children(given)]
        if counts and counts[-1].type in ("number_literal", "identifier", "binary_expression"):
            return self.value(counts[-1])
        initializer, *others = (loop.child_by_field_name(name) for name in ("initializer", "condition", "update"))
        own = _set_by(initializer) if initializer is not None else {}
        told_by = [each for each in (*own.values(), *others) if each is not None]
        return None if any(self._is_of_call(each, own) for each in told_by) else lambda _: math.inf

    def _is_of_call(self, node: Node, but: Collection[str] = ()) -> bool:
        """Whether only a call tells a value, as far as its text says; some names in it are told elsewhere."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            waiting += one.named_children
            name = text_of(one) if one.type == "identifier" else ""
            if name in but:
                continue
            if name in ("blockDim", "gridDim") or self.scope.find(name) in self.scope.of_call:
                return True
        return False

    def _conditions(self, node: Node | None) -> tuple[Condition | None, ...]:
        if node is None:
            return ()
        while node.type == "parenthesized_expression":
            node = children(node)[0]
        if node.type == "binary_expression":
            operator = child_of(node, "operator").type
            left, right = child_of(node, "left"), child_of(node, "right")
            if operator == "&&":
                return (*self._conditions(left), *self._conditions(right))
            if operator in ("<", "<=", ">", ">=", "!="):
                return (Condition(self.value(left), operator, self.value(right)),)
        if text_of(node) in ("0", "false"):  # of macros that are to be one statement: do { … } while (0)
            return (Condition(lambda _: 0, "!=", lambda _: 0),)
        if node.type in ("identifier", "update_expression"):
            return (Condition(self.value(node), "!=", lambda _: 0),) if node.type == "identifier" else (None,)
        return (None,)

    def _steps(self, node: Node) -> list[Step] | None:
        """What an expression does to variables by `+=` and the like; None if it does something else."""
        if node.type == "comma_expression":
            parts = [self._steps(child) for child in children(node)]
            return None if any(part is None for part in parts) else [step for part in parts for step in part or ()]
        if node.type == "update_expression":
            key = self.scope.find(text_of(node.child_by_field_name("argument")))
            operator = text_of(node.child_by_field_name("operator"))[0]
            return None if key is None else [Step(key, operator, lambda _: 1)]
        if node.type != "assignment_expression":
            return None
        left, right = child_of(node, "left"), child_of(node, "right")
        key = self.scope.find(text_of(left)) if left.type == "identifier" else None
        operator = child_of(node, "operator").type
        if key is None:
            return None
        if (
            operator == "="
            and right.type == "binary_expression"
            and text_of(right.child_by_field_name("left")) == text_of(left)
        ):
            return [Step(key, child_of(right, "operator").type, self.value(child_of(right, "right")))]
        return None if operator == "=" else [Step(key, operator[:-1], self.value(right))]

    def _steps_of_body(self, node: Node) -> list[Step]:
        """Variables that each trip of a loop moves on."""
        steps: list[Step] = []
        for child in children(node) if node.type == "compound_statement" else ():
            if child.type == "expression_statement" and child.named_children:
                inner = child.named_children[0]
                if inner.type == "update_expression" or (
                    inner.type == "assignment_expression" and child_of(inner, "operator").type in ("+=", "-=")
                ):
                    steps += self._steps(inner) or ()
        return steps

    def range_loop(self, node: Node) -> Run:
        """A loop over values in braces; of what else, nothing is known."""
        self.scope.blocks.append({})
        name, _, _, _ = self.declarator(
            node.child_by_field_name("declarator"), self.type_of(node.child_by_field_name("type"))
        )
        right = child_of(node, "right")
        values = [self.value(child) for child in children(right)] if right.type == "initializer_list" else None
        key = self.scope.declare(name or "(unnamed)")
        body = self.statement(child_of(node, "body"))
        self.scope.blocks.pop()
        if values is None:
            return unsupported(node)

        def run(m: Machine) -> None:
            for value in values:
                m.step()
                m.frame[key] = value(m)
                body(m)

        return run

    def return_statement(self, node: Node) -> Run:
        inner = children(node)
        value = self.value(inner[0]) if inner else None

        def run(m: Machine) -> None:
            result = None if value is None else value(m)
            m.return_(m.copied(result) if inner else None)

        return run

    def leave(self, node: Node) -> Run:  # noqa: ARG002
        """`break` and `continue`: the rest of the trip is left out."""

        def run(m: Machine) -> None:
            if m.is_sure or m.threads is None:
                m.gone = m.mask if m.gone is False else m.gone | m.mask
                m.mask = False

        return run

    def switch_statement(self, node: Node) -> Run:
        condition = self.value(child_of(child_of(node, "condition"), "value"))
        cases = []
        for child in children(child_of(node, "body")):
            if child.type != "case_statement":
                return unsupported(node)
            value = child.child_by_field_name("value")
            statements = [c for c in children(child) if value is None or c.id != value.id]
            cases.append(
                (
                    None if value is None else self.value(value),
                    _one_after_the_other([self.statement(s) for s in statements]),
                )
            )

        def run(m: Machine) -> None:
            chosen = condition(m)
            if not isinstance(chosen, int):
                raise AbstainError("a switch by what is not known")
            known = [None if value is None else value(m) for value, _ in cases]
            place = known.index(chosen) if chosen in known else known.index(None) if None in known else len(cases)
            gone, before = m.gone, m.mask
            for _, body in cases[place:]:
                body(m)
                if m.mask is False:
                    break
            m.gone = gone
            m.leave(before)

        return run

    def local_alias(self, node: Node) -> Run:
        self._alias(node)
        return _nothing

    def local_struct(self, node: Node) -> Run:
        self._struct(node)
        return _nothing

    def nothing(self, node: Node) -> Run:  # noqa: ARG002
        return _nothing


def _nothing(m: Machine) -> None:
    pass


def _one_after_the_other(parts: Sequence[Run]) -> Run:
    if len(parts) == 1:
        return parts[0]

    def run(m: Machine) -> None:
        for part in parts:
            m.step()
            part(m)
            if m.mask is False:
                return

    return run


def _after(previous: Run | None) -> Run:
    return (lambda _: 0) if previous is None else lambda m: previous(m) + 1


def _pointer_to(kind: Run) -> Run:
    return lambda m: PointerType(kind(m))


def _device_memory(name: str, space: str, kind: Run) -> Run:
    def make(m: Machine) -> Place:
        of = kind(m)
        return Place(Memory(name, space, of.size), (), 0, of)

    return make


def _shared(key: str, name: str, kind: Run, is_extern: bool) -> Run:
    number = next(_numbers)

    def declare(m: Machine) -> None:
        of = kind(m)
        memory = m.world.shared_memory(m, "(dynamic)" if is_extern else number, name)
        if not is_extern:
            m.counts.shared[f"{name} {number}"] = float(of.size)
        m.frame[key] = Place(memory, (), 0, of)

    return declare


def _set_by(initializer: Node) -> dict[str, Node | None]:
    """The variables that a loop begins with, and the text of what each is first; None where that is not said."""
    found: dict[str, Node | None] = {}
    for one in initializer.children_by_field_name("declarator") or [initializer]:
        name = one.child_by_field_name("declarator") or one.child_by_field_name("left")
        if name is not None:
            found[text_of(name)] = one.child_by_field_name("value") or one.child_by_field_name("right")
    return found


def _function_declarator(node: Node | None) -> Node | None:
    """The declarator of a function within another, if there is one."""
    while node is not None and node.type != "function_declarator":
        if node.type == "parenthesized_declarator":
            return None
        inner = node.child_by_field_name("declarator")
        node = inner if inner is not None else next((c for c in node.named_children if "declarator" in c.type), None)
    return node


def _only_leaves(node: Node) -> bool:
    inner = children(node) if node.type == "compound_statement" else [node]
    return len(inner) >= 1 and inner[-1].type in ("return_statement", "throw_statement", "expression_statement")


_STATEMENTS: dict[str, Callable[[Statements, Node], Run]] = {
    "compound_statement": Statements.compound,
    "expression_statement": Statements.expression_statement,
    "declaration": Statements.declaration,
    "if_statement": Statements.if_statement,
    "else_clause": Statements.else_clause,
    "for_statement": Statements.for_statement,
    "while_statement": Statements.while_statement,
    "do_statement": Statements.while_statement,
    "for_range_loop": Statements.range_loop,
    "return_statement": Statements.return_statement,
    "break_statement": Statements.leave,
    "continue_statement": Statements.leave,
    "switch_statement": Statements.switch_statement,
    "attributed_statement": Statements.attributed,
    "static_assert_declaration": Statements.nothing,
    "alias_declaration": Statements.local_alias,
    "type_definition": Statements.local_alias,
    "struct_specifier": Statements.local_struct,
    "using_declaration": Statements.nothing,
    "throw_statement": Statements.nothing,
}
