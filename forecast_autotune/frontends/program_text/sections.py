"""One section of a program's text: a function, a class or a kernel below what it reads from outside."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.digest import digest
from .names import closure_of, is_state, reads_of
from .source import compiled_source, may_have_changed, source_of, without_decorators
from .values import is_kernel, scripted_text, tuned_by

if TYPE_CHECKING:
    from .code_text import CodeText

_MISSING = object()


def section_lines(reader: CodeText, label: str, value: Any) -> Iterator[str]:
    """The lines of one section, by the kind of the value that its label stands for."""
    if (tuned := tuned_by(value)) is not None:
        reader.tuners.append(tuned)
        if tuned.callables:  # as parts of this text: what they are bound to may hold this very tuner
            yield f"# {label}: {', '.join(map(reader.text_of, tuned.callables))}"
        else:
            reader.languages.add(tuned.program.language)
            yield f"# {label}: {tuned.program.name}\n{tuned.program.source}"
    elif is_kernel(value):
        reader.languages.add("triton")
        yield from _kernel_lines(reader, label, value)
    elif isinstance(value, types.FunctionType):
        yield from _function_lines(reader, label, value)
    elif isinstance(value, type):
        yield from _class_lines(reader, label, value)
    else:
        yield f"# {label}\n{scripted_text(value)}"


def _function_lines(reader: CodeText, label: str, function: types.FunctionType) -> Iterator[str]:
    scope = {**function.__globals__, **closure_of(function)}
    yield from _references(reader, function.__code__, scope, function.__module__)
    for name, given in (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)):
        if given:
            yield f"{label}.{name} = {reader.text_of(given)}"
    for name, given in vars(function).items():
        if name not in ("__wrapped__", "__signature__") and not is_state(given, name, function.__module__):
            yield f"{label}.{name} = {reader.text_of(given)}"
    source = source_of(function.__code__)
    if function.__name__ == "<lambda>":
        yield f"{label} = {source}"
    else:
        yield source if label == function.__name__ else f"# {label}\n{source}"


def _class_lines(reader: CodeText, label: str, kind: type) -> Iterator[str]:
    bases = ", ".join(reader.text_of(base) for base in kind.__bases__)
    yield f"class {label}({bases}):" if bases else f"class {label}:"
    if vars(kind).get("__triton_aggregate__", False):
        yield f"    __annotations__ = {reader.text_of(kind.__annotations__)}"
    for name, held in list(vars(kind).items()):
        method = held.__func__ if issubclass(type(held), (staticmethod, classmethod)) else held
        code = issubclass(type(method), (types.FunctionType, property)) or reader.is_code(method)
        special = name.startswith("__") and name.endswith("__")
        if code or not (special or is_state(held, name, kind.__module__)):
            yield f"    {name} = {reader.text_of(held)}"


def _references(reader: CodeText, code: types.CodeType, scope: Mapping[str, Any], module: str | None) -> Iterator[str]:
    """What code reads by name from its surroundings, a line each, but for what goes by its own name."""
    for chain in reads_of(code):
        if chain[0] == "import":
            yield from _imported(reader, chain, scope.get("__package__"))
            continue
        value = scope.get(chain[0], _MISSING)
        name, holding = chain[0], module
        for attribute in chain[1:]:
            if not issubclass(type(value), types.ModuleType) or not reader.ownership.is_own_module(value):
                break
            holder, name = value, f"{name}.{attribute}"
            holding = module and holder.__name__
            value = vars(holder).get(attribute, sys.modules.get(f"{holder.__name__}.{attribute}", _MISSING))
        last = name.rpartition(".")[2]
        if (
            value is _MISSING
            or issubclass(type(value), types.ModuleType)
            or (holding and is_state(value, last, holding))
        ):
            continue
        text = reader.text_of(value)
        if text != last:
            yield f"{name} = {text}"


def _imported(reader: CodeText, chain: tuple[str, ...], package: str | None) -> Iterator[str]:
    """A module that a function imports itself: its file as a whole, whether or not it is loaded yet.

    Where the file may have been saved after it was loaded, what the module holds.
    """
    _, name, dots = chain
    parts = (package or "").split(".")
    full = ".".join([*parts[: len(parts) - len(dots) + 1], *([name] if name else [])]) if dots else name
    if (file := reader.ownership.own_file(full)) is None:
        return
    loaded = sys.modules.get(full)
    if loaded is None or not may_have_changed(file):
        with open(file, "rb") as opened:
            yield f"import {full}  # {digest(opened.read().decode(errors='replace'))[:12]}"
        return
    for held_name, held in list(vars(loaded).items()):
        is_special = held_name.startswith("__") or issubclass(type(held), types.ModuleType)
        if not is_special and not is_state(held, held_name, full):
            yield f"{full}.{held_name} = {reader.text_of(held)}"


def _kernel_lines(reader: CodeText, label: str, kernel: Any) -> Iterator[str]:
    if type(kernel).__name__ == "BoundConstexprFunction":
        yield f"# {label} = {reader.text_of(kernel.__self__)}.{reader.text_of(kernel.__func__)}"
        return
    function = kernel.fn
    source = getattr(kernel, "src", None)
    if not isinstance(source, str):  # the interpreter's
        source = without_decorators(source_of(function.__code__))
    code = compiled_source(source) or function.__code__
    scope = {**function.__globals__, **closure_of(function)}
    # A function may be handed to a kernel by its parameters' defaults and types, too.
    yield from _references(reader, code, scope, None)  # a kernel writes to none of these
    for given in (function.__defaults__, function.__kwdefaults__):
        if given:
            yield f"{label}.__defaults__ = {reader.text_of(given)}"
    for given in function.__annotations__.values():
        if isinstance(given, type) and getattr(given, "__triton_aggregate__", False):
            yield f"{label}.__annotations__ = {reader.text_of(given)}"
    marks = [f"# {label}"] if label != function.__name__ else []
    marks += ["# noinline"] if getattr(kernel, "noinline", False) else []
    yield "\n".join([*marks, source])
