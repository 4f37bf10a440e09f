"""Closures of expressions: their value, and the place that can be assigned or pointed to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import library
from .machine import InitList, Machine, Run, arithmetic, both
from .scopes import Scope
from .values import (
    UNKNOWN,
    UNKNOWN_BOOL,
    UNKNOWN_INT,
    AbstainError,
    ArrayType,
    Function,
    Parameter,
    Place,
    Pointer,
    PointerType,
    StructType,
    Tensor,
    Unknown,
    Variable,
    alignment,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_CUDA_VARIABLES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_CASTS = ("static_cast", "reinterpret_cast", "const_cast")
_FLOAT = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFlL]?\Z")


@dataclass(frozen=True, slots=True)
class Code:
    """An expression: its value; where it lies, if it lies anywhere; and what it does where nobody wants its value."""

    value: Run
    place: Run | None = None
    effect: Run | None = None


def text_of(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


def children(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def child_of(node: Node, name: str) -> Node:
    """The child of a name that the grammar asks for.

    Raises:
        AbstainError: it is not there.
    """
    child = node.child_by_field_name(name)
    if child is None:
        raise AbstainError(f"{node.type} without {name}")
    return child


def abstains(why: str) -> Run:
    """What ends the walk when it is reached."""

    def run(_: Machine) -> Any:
        raise AbstainError(why)

    return run


def _nothing(_: Machine) -> None:
    return None


def unsupported(node: Node) -> Run:
    return abstains(f"{node.type}: {text_of(node)[:60]}")


def field_of(m: Machine, base: Any, name: str) -> Any:
    """A field of a struct, as a place if the struct has one."""
    if isinstance(base, Variable):
        base = m.load(base)
    if isinstance(base, Pointer):
        base = Place(base.memory, base.path, base.offset, base.type)
    if isinstance(base, Place) and isinstance(base.type, StructType) and name in base.type.fields:
        of, offset = base.type.fields[name]
        at = base.offset if isinstance(base.offset, Unknown) else base.offset + offset
        return Place(base.memory, (*base.path, name), at, of)
    if isinstance(base, Unknown):
        kind = base.type
        if name == "multiProcessorCount" and m.world.units:
            return m.world.units
        return Unknown(kind.fields[name][0]) if isinstance(kind, StructType) and name in kind.fields else UNKNOWN
    raise AbstainError(f"field {name} of something else")


def element_of(m: Machine, base: Any, index: Any) -> Any:
    """An element of an array or of what a pointer leads to, as a place."""
    index = m.value_of(index)
    if isinstance(base, Variable):
        base = m.load(base)
    if isinstance(base, Place) and isinstance(base.type, ArrayType):
        base = Pointer(base.memory, base.path, base.offset, base.type.element)
    elif isinstance(base, Place):
        base = m.load(base)
    if isinstance(base, Pointer):
        if base.type is None:
            raise AbstainError("an element of unknown size")
        if isinstance(index, (Unknown, float)) or isinstance(base.offset, Unknown):
            return Place(base.memory, base.path, UNKNOWN_INT, base.type)
        return Place(base.memory, base.path, base.offset + index * base.type.size, base.type)
    if isinstance(base, (tuple, list)) and isinstance(index, int):
        return base[index]
    if isinstance(base, Unknown):
        kind = base.type
        if isinstance(kind, (ArrayType, PointerType)) and m.threads is not None:
            return Unknown(kind.element)
        if m.threads is None:
            return UNKNOWN
    raise AbstainError("an element of something else")


def pointed_to(m: Machine, value: Any) -> Any:
    value = m.value_of(value) if not isinstance(value, Variable) else value
    if isinstance(value, Variable):
        return value
    if isinstance(value, Pointer):
        if value.type is None:
            raise AbstainError("memory of unknown type")
        return Place(value.memory, value.path, value.offset, value.type)
    raise AbstainError("memory behind an unknown pointer")


class Expressions:
    """Closures of values; `scope` is of the function that is read."""

    def __init__(self) -> None:
        self.scope = Scope()

    def code(self, node: Node) -> Code:
        lower = _EXPRESSIONS.get(node.type)
        return Code(unsupported(node)) if lower is None else lower(self, node)

    def value(self, node: Node) -> Run:
        return self.code(node).value

    # Types --------------------------------------------------------------------------------------------------------------

    def type_of(self, node: Node | None) -> Run:
        """What gives a type, or None where the text leaves it open."""
        if node is None:
            return _nothing
        if node.type == "type_descriptor":
            base = self.type_of(node.child_by_field_name("type"))
            return self.declarator(node.child_by_field_name("declarator"), base)[1]
        if node.type in ("placeholder_type_specifier", "decltype", "dependent_type"):
            return _nothing
        if node.type in ("struct_specifier", "class_specifier", "enum_specifier"):
            name = text_of(node.child_by_field_name("name"))
            return lambda m: m.world.type(name, m.frame)
        words = text_of(node).replace("std::", "")
        name = _plain_type(words)
        if self.scope.find(name) is not None:  # a template's parameter
            return lambda m: m.frame.get("type " + name)
        return lambda m: m.world.type(name, m.frame)

    def declarator(self, node: Node | None, base: Run) -> tuple[str | None, Run, bool, int]:
        raise NotImplementedError

    # Leaves -------------------------------------------------------------------------------------------------------------

    def number(self, node: Node) -> Code:
        number = _number(text_of(node))
        return Code(lambda _: number)

    def constant(self, node: Node) -> Code:
        value = {"true": True, "false": False}.get(node.type, 0)
        return Code(lambda _: value)

    def string(self, node: Node) -> Code:
        value = text_of(node)
        return Code(lambda _: value)

    def identifier(self, node: Node) -> Code:
        return self.identifier_named(text_of(node).split("::")[-1])

    def identifier_named(self, name: str) -> Code:
        key = self.scope.find(name)
        if key is None:
            if name in self.scope.members:
                return self._member(name)
            return Code(lambda m: m.world.name(m, name), lambda m: m.world.place(m, name))

        def value(m: Machine) -> Any:
            held = m.frame.get(key, UNKNOWN)
            return m.load(held) if isinstance(held, (Place, Variable)) else held

        def place(m: Machine) -> Any:
            held = m.frame.get(key)
            return held if isinstance(held, (Place, Variable)) else Variable(m.frame, key)

        return Code(value, place)

    def _member(self, name: str) -> Code:
        def place(m: Machine) -> Any:
            return field_of(m, m.frame["this"], name)

        return Code(lambda m: m.value_of(place(m)), place)

    # Operators ------------------------------------------------------------------------------------------------------------

    def parenthesized(self, node: Node) -> Code:
        return self.code(children(node)[0])

    def binary(self, node: Node) -> Code:
        operator = child_of(node, "operator").type
        left, right = self.value(child_of(node, "left")), self.value(child_of(node, "right"))
        if operator in ("&&", "||"):
            return Code(_logical(operator, left, right))
        return Code(lambda m: arithmetic(m, operator, left(m), right(m)))

    def unary(self, node: Node) -> Code:
        operator = child_of(node, "operator").type
        inner = self.value(child_of(node, "argument"))
        if operator == "+":
            return Code(inner)
        if operator == "-":
            return Code(lambda m: arithmetic(m, "-", 0, inner(m)))
        if operator == "~":
            return Code(lambda m: arithmetic(m, "^", inner(m), -1))

        def negated(m: Machine) -> Any:
            holds = m.truth(inner(m))
            return UNKNOWN_BOOL if holds is None else (not holds if isinstance(holds, bool) else ~holds)

        return Code(negated)

    def conditional(self, node: Node) -> Code:
        condition = self.value(child_of(node, "condition"))
        then, other = (
            self.value(child_of(node, "consequence")),
            self.value(child_of(node, "alternative")),
        )
        return Code(lambda m: m.choose(condition(m), lambda: then(m), lambda: other(m)))

    def assignment(self, node: Node) -> Code:
        left, right = self.code(child_of(node, "left")), self.value(child_of(node, "right"))
        operator = child_of(node, "operator").type
        if left.place is None:
            return Code(unsupported(node))
        place_of = left.place

        def assign(m: Machine) -> Any:
            if operator == "=":
                value = right(m)
                place = place_of(m)
            else:
                place = place_of(m)
                value = arithmetic(m, operator[:-1], m.value_of(place), right(m))
            if isinstance(place, Place):
                value = m.cast(value, place.type)
            m.store(place, m.copied(value))
            return value

        return Code(assign, None)

    def update(self, node: Node) -> Code:
        operator = text_of(node.child_by_field_name("operator"))[0]
        inner = self.code(child_of(node, "argument"))
        is_before = text_of(node).startswith(operator * 2)
        if inner.place is None:
            return Code(unsupported(node))
        place_of = inner.place

        def move(m: Machine) -> Any:
            place = place_of(m)
            before = m.value_of(place)
            after = arithmetic(m, operator, before, 1)
            m.store(place, after)
            return after if is_before else before

        return Code(move)

    def pointer(self, node: Node) -> Code:
        operator = child_of(node, "operator").type
        inner = self.code(child_of(node, "argument"))
        if operator == "*":

            def place(m: Machine) -> Any:
                return pointed_to(m, inner.value(m))

            return Code(lambda m: m.load(place(m)), place)
        if inner.place is None:
            return Code(inner.value)
        place_of = inner.place

        def address(m: Machine) -> Any:
            place = place_of(m)
            if isinstance(place, Place):
                return Pointer(place.memory, place.path, place.offset, place.type)
            return place

        return Code(address)

    def subscript(self, node: Node) -> Code:
        base = self.code(child_of(node, "argument"))
        indices = [self.value(child) for child in children(child_of(node, "indices"))]
        at = base.place or base.value
        if len(indices) != 1:
            return Code(unsupported(node))
        index = indices[0]

        def place(m: Machine) -> Any:
            return element_of(m, at(m), index(m))

        return Code(lambda m: m.value_of(place(m)), place)

    def field(self, node: Node) -> Code:
        argument, name = child_of(node, "argument"), text_of(node.child_by_field_name("field"))
        own = text_of(argument)
        if own in _CUDA_VARIABLES and self.scope.find(own) is None:
            return Code(lambda m: m.world.cuda_variable(m, own, name))
        if argument.type == "this":
            return self._member(name)
        base = self.code(argument)
        is_pointer = text_of(node.child_by_field_name("operator")) == "->"
        at = base.value if is_pointer or base.place is None else base.place

        def place(m: Machine) -> Any:
            found = at(m)
            return field_of(m, pointed_to(m, found) if is_pointer and not isinstance(found, Unknown) else found, name)

        return Code(lambda m: m.value_of(place(m)), place)

    def this(self, node: Node) -> Code:  # noqa: ARG002
        def address(m: Machine) -> Any:
            place = m.frame["this"]
            return Pointer(place.memory, place.path, place.offset, place.type) if isinstance(place, Place) else UNKNOWN

        return Code(address)

    def comma(self, node: Node) -> Code:
        parts = [self.value(child) for child in children(node)]

        def run(m: Machine) -> Any:
            return [part(m) for part in parts][-1]

        return Code(run)

    def cast(self, node: Node) -> Code:
        kind = self.type_of(node.child_by_field_name("type"))
        inner = self.value(child_of(node, "value"))
        return Code(lambda m: m.cast(inner(m), kind(m)))

    def sizeof(self, node: Node) -> Code:
        type_node, value_node = node.child_by_field_name("type"), node.child_by_field_name("value")
        kind = self.type_of(type_node) if type_node is not None else None
        inner = self.code(value_node) if value_node is not None else None
        named = None
        if value_node is not None:
            named = text_of(value_node).strip("()")

        def size(m: Machine) -> Any:
            of = kind(m) if kind is not None else m.world.type(named, m.frame)
            if of is None and inner is not None:
                found = m.quietly(inner.place or inner.value)
                of = getattr(m.quietly(lambda _: m.load(found)) if isinstance(found, Variable) else found, "type", None)
            if of is None:
                raise AbstainError("the size of an unknown type")
            return of.size

        return Code(size)

    def alignof(self, node: Node) -> Code:
        kind = self.type_of(node.child_by_field_name("type"))

        def align(m: Machine) -> Any:
            of = kind(m)
            if of is None:
                raise AbstainError("the alignment of an unknown type")
            return alignment(of)

        return Code(align)

    def compound_literal(self, node: Node) -> Code:
        kind = self.type_of(node.child_by_field_name("type"))
        values = [self.value(child) for child in children(child_of(node, "value"))]
        return Code(lambda m: m.construct(kind(m), [value(m) for value in values]))

    def initializer_list(self, node: Node) -> Code:
        values = [self.value(child) for child in children(node)]
        return Code(lambda m: InitList(tuple(value(m) for value in values)))

    def lambda_(self, node: Node) -> Code:
        self.scope.blocks.append({})
        declarator = node.child_by_field_name("declarator")
        parameters: tuple[Parameter, ...] = ()
        if declarator is not None:
            parameters = self._parameters(declarator.child_by_field_name("parameters"))
        body = self.statement(child_of(node, "body"))
        self.scope.blocks.pop()
        return Code(lambda m: Function("(lambda)", parameters, body, frame=m.frame))

    def _parameters(self, node: Node | None) -> tuple[Parameter, ...]:
        raise NotImplementedError

    def statement(self, node: Node) -> Run:
        raise NotImplementedError

    # Calls --------------------------------------------------------------------------------------------------------------

    def call(self, node: Node) -> Code:
        callee = child_of(node, "function")
        arguments_node = child_of(node, "arguments")
        launch = next((c for c in node.children if c.type == "kernel_call_syntax"), None)
        name, templates = _named(callee)
        if name in _CASTS and templates is not None:
            kind = self.type_of(templates[0])
            value = self.value(children(arguments_node)[0])
            return Code(lambda m: m.cast(value(m), kind(m)))
        if name.startswith(library.IGNORED):
            return self._check(name, arguments_node)
        given = [self.code(child) for child in children(arguments_node)]
        of_templates = [self._template_argument(child) for child in templates or ()]
        if launch is not None:
            return self._launch(name, of_templates, launch, given)
        if callee.type == "field_expression":
            return self._method(callee, of_templates, given)
        if callee.type == "primitive_type" or callee.type == "sized_type_specifier":
            kind = self.type_of(callee)
            return Code(lambda m: m.construct(kind(m), [each.value(m) for each in given]))
        key = self.scope.find(name) if callee.type == "identifier" else None
        if key is not None or (callee.type not in ("identifier", "template_function", "qualified_identifier")):
            return self._called(self.code(callee), given, name)
        if name in self.scope.members:
            return Code(lambda m: self._call_method(m, m.frame["this"], name, given))
        scope = text_of(callee).split("<")[0].rpartition("::")[0] if callee.type == "qualified_identifier" else ""

        def call(m: Machine) -> Any:
            types = [template(m) for template in of_templates]
            function = m.world.function(name, len(given))
            if function is not None:
                return m.call(function, _arguments(m, function, given), types)
            return library.call(m, name, scope, types, given)

        return Code(call)

    def _check(self, name: str, arguments: Node) -> Code:
        given = [self.code(child) for child in children(arguments)] if name.startswith(library.CHECKED) else []

        def check(m: Machine) -> Any:
            for each in given if m.threads is None else ():
                each.value(m)
            return UNKNOWN

        return Code(check)

    def _template_argument(self, node: Node) -> Run:
        if node.type == "type_descriptor":
            kind = self.type_of(node)
            inner = text_of(node)
            key = self.scope.find(inner)

            def either(m: Machine) -> Any:
                """A type, or a constant that reads like one."""
                if key is not None and key in m.frame:
                    return m.value_of(m.frame[key])
                found = kind(m)
                if found is None and inner.isidentifier():
                    return m.world.name(m, inner)
                return found

            return either
        return self.value(node)

    def _launch(self, name: str, templates: list[Run], launch: Node, given: list[Code]) -> Code:
        settings = [self.value(child) for child in children(launch)]

        def run(m: Machine) -> Any:
            function = m.world.function(name, len(given))
            if function is None or m.threads is not None:
                raise AbstainError(f"kernel {name} is not there")
            types = [template(m) for template in templates]
            m.world.launch(m, function, _arguments(m, function, given), types, [each(m) for each in settings])
            return UNKNOWN

        return Code(run)

    def _called(self, callee: Code, given: list[Code], name: str) -> Code:
        """A call of a value: a lambda, or what has an operator for it; or of a template's type, which makes one."""

        def call(m: Machine) -> Any:
            if "type " + name in m.frame:
                return m.construct(m.frame["type " + name], [each.value(m) for each in given])
            function = (callee.place or callee.value)(m)
            while isinstance(function, Variable):
                function = function.frame.get(function.key)
            if isinstance(function, Function):
                return m.call(function, _arguments(m, function, given))
            return self._call_method(m, function, "operator()", given)

        return Code(call)

    def _method(self, callee: Node, templates: list[Run], given: list[Code]) -> Code:
        argument, field = child_of(callee, "argument"), child_of(callee, "field")
        name, _ = _named(field)
        if field.type == "template_method":
            arguments = child_of(field, "arguments")
            templates = [self._template_argument(child) for child in children(arguments)]
        base = self.code(argument)
        at = base.place or base.value

        def call(m: Machine) -> Any:
            found = at(m)
            while isinstance(found, Variable):
                found = m.load(found)
            if m.threads is None and not isinstance(found, (Place, Pointer)):
                m.world.may_launch |= not isinstance(found, (Tensor, tuple, list)) and name not in library.ASKED
                return library.host_method(found, name, [t(m) for t in templates], [each.value(m) for each in given])
            return self._call_method(m, found, name, given)

        return Code(call)

    def _call_method(self, m: Machine, this: Any, name: str, given: list[Code]) -> Any:
        if isinstance(this, Pointer):
            this = Place(this.memory, this.path, this.offset, this.type)
        kind = getattr(this, "type", None)
        method = kind.methods.get(name) if isinstance(kind, StructType) else None
        if method is None:
            raise AbstainError(f"method {name} is not known")
        return m.call(method, _arguments(m, method, given), (), this)

    def assembly(self, node: Node) -> Code:  # noqa: ARG002
        return Code(abstains("inline assembly"))


def _arguments(m: Machine, function: Function, given: list[Code]) -> list[Any]:
    """Arguments as a function takes them: places for references, else values."""
    values = []
    for number, code in enumerate(given):
        wants_place = number < len(function.parameters) and function.parameters[number].by_reference
        values.append(code.place(m) if wants_place and code.place is not None else code.value(m))
    return values


def _logical(operator: str, left: Run, right: Run) -> Run:
    decided = operator == "||"

    def value(m: Machine) -> Any:
        first = m.truth(left(m))
        if first is decided:
            return decided
        if isinstance(first, bool):
            second = m.truth(right(m))
            return UNKNOWN_BOOL if second is None else second
        mask, sure = m.mask, m.is_sure
        if first is not None and not decided and m.threads is not None:
            m.mask = both(mask, first)
        second = m.truth(right(m)) if m.mask is not False else False
        m.mask, m.is_sure = mask, sure
        if second is decided:
            return decided
        if first is None or second is None:
            return UNKNOWN_BOOL
        if isinstance(second, bool):
            return first
        return (first | second) if decided else (first & second)

    return value


def _named(node: Node) -> tuple[str, list[Node] | None]:
    """The last part of a function's name, and what stands in its angle brackets."""
    if node.type == "qualified_identifier":
        return _named(child_of(node, "name"))
    if node.type in ("template_function", "template_method", "template_type"):
        return text_of(node.child_by_field_name("name")), children(child_of(node, "arguments"))
    if node.type == "dependent_name":
        return _named(children(node)[-1])
    return text_of(node), None


def _plain_type(words: str) -> str:
    """A type's name without what says nothing of its size."""
    if "<" in words:
        words = words.split("<")[0]
    parts = [w for w in words.replace("::", " ").split() if w not in ("const", "volatile", "std", "at", "c10", "torch")]
    named = [w for w in parts if w not in ("unsigned", "signed", "long", "short", "int", "char")]
    if named:
        return named[-1]
    if "char" in parts or "short" in parts:
        return "char" if "char" in parts else "short"
    return "int64_t" if "long" in parts else "int"


def _number(text: str) -> Any:
    plain = text.replace("'", "").lower()
    if not plain.startswith("0x") and (("." in plain or "e" in plain or plain.endswith("f")) and _FLOAT.match(plain)):
        return float(plain.rstrip("fl"))
    plain = plain.rstrip("ulz")
    try:
        if plain.startswith(("0x", "0b")):
            return int(plain, 0)
        return int(plain, 8) if plain.startswith("0") and len(plain) > 1 else int(plain)
    except ValueError:
        raise AbstainError(f"the number {text}") from None


_EXPRESSIONS: dict[str, Callable[[Expressions, Node], Code]] = {
    "number_literal": Expressions.number,
    "true": Expressions.constant,
    "false": Expressions.constant,
    "null": Expressions.constant,
    "nullptr": Expressions.constant,
    "char_literal": Expressions.string,
    "string_literal": Expressions.string,
    "concatenated_string": Expressions.string,
    "identifier": Expressions.identifier,
    "type_identifier": Expressions.identifier,
    "qualified_identifier": Expressions.identifier,
    "parenthesized_expression": Expressions.parenthesized,
    "binary_expression": Expressions.binary,
    "unary_expression": Expressions.unary,
    "conditional_expression": Expressions.conditional,
    "assignment_expression": Expressions.assignment,
    "update_expression": Expressions.update,
    "pointer_expression": Expressions.pointer,
    "subscript_expression": Expressions.subscript,
    "field_expression": Expressions.field,
    "this": Expressions.this,
    "comma_expression": Expressions.comma,
    "cast_expression": Expressions.cast,
    "sizeof_expression": Expressions.sizeof,
    "alignof_expression": Expressions.alignof,
    "compound_literal_expression": Expressions.compound_literal,
    "initializer_list": Expressions.initializer_list,
    "lambda_expression": Expressions.lambda_,
    "call_expression": Expressions.call,
    "gnu_asm_expression": Expressions.assembly,
}
