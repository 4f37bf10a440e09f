"""Every class of the package that implements a protocol is held to that protocol's contract.

Nothing is listed by hand. An implementation is a class of the package that has all members of a protocol, its methods taking
the protocol's arguments. A name with a leading underscore is its module's own affair. A contract covers the classes that its
subclasses, anywhere in `tests/`, name as what one of their methods returns: `def make(self) -> Roofline`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forecast_autotune
from forecast_autotune import protocols

TESTS = Path(__file__).parents[1]
PROTOCOLS = ("Compiler", "Measurer", "Policy", "Store", "Surrogate")
NO_MODULES = ("forecast_autotune.__main__", "forecast_autotune.boot")  # programs: importing them runs them


def public_classes() -> Iterator[type]:
    """Every class that a module of the package defines at its top, but for abstract ones and protocols."""
    for found in pkgutil.walk_packages(forecast_autotune.__path__, "forecast_autotune."):
        if found.name.startswith(NO_MODULES):
            continue
        for value in vars(importlib.import_module(found.name)).values():
            own = inspect.isclass(value) and value.__module__ == found.name and not value.__name__.startswith("_")
            if own and not inspect.isabstract(value) and not getattr(value, "_is_protocol", False):
                yield value


def implements(cls: type, protocol: type) -> bool:
    """Whether a class has every member of a protocol, and its methods take what the protocol's take."""
    members = [name for name in {**vars(protocol), **inspect.get_annotations(protocol)} if not name.startswith("_")]
    return all(_has(cls, name, getattr(protocol, name, None)) for name in members)


def _has(cls: type, name: str, promised: Any) -> bool:
    if not inspect.isfunction(promised):  # a property or an attribute, which may be set where an instance is made
        made = getattr(getattr(cls, "__init__", None), "__code__", None)
        annotated = any(name in inspect.get_annotations(base) for base in cls.__mro__)
        return hasattr(cls, name) or annotated or (made is not None and name in made.co_names)
    method = getattr(cls, name, None)
    if not inspect.isfunction(method):
        return False
    theirs = list(inspect.signature(method).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in theirs):
        return True
    named = [p.name.lstrip("_") for p in theirs if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = inspect.signature(promised).parameters.values()
    return named == [p.name for p in needed if p.default is p.empty]


def covered(contract: str) -> set[type]:
    """The classes of the package that subclasses of a contract, or of a class that it extends, say they make."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
    classes = [(tree, node) for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    names, found = {contract}, set()
    while more := {
        node.name for _, node in classes if {_name(base) for base in node.bases} & names and node.name not in names
    }:
        names |= more
    for tree, node in classes:
        if node.name in names:
            for method in (part for part in node.body if isinstance(part, ast.FunctionDef) and part.returns):
                found |= _classes_named(method.returns, tree)
    return found


def _name(base: ast.expr) -> str:
    return base.id if isinstance(base, ast.Name) else ""


def _classes_named(annotation: ast.expr | None, tree: ast.Module) -> set[type]:
    """What an annotation says, as far as its names are imported from the package."""
    names = {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)} if annotation else set()
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forecast_autotune"):
            for alias in node.names:
                if (alias.asname or alias.name) in names:
                    value = getattr(importlib.import_module(str(node.module)), alias.name)
                    found |= {value} if inspect.isclass(value) else set()
    return found


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_implementation_of_a_protocol_is_held_to_its_contract(name: str) -> None:
    protocol = getattr(protocols, name)
    made = covered("ReadOnlyStoreContract" if name == "Store" else f"{name}Contract")
    found = [cls for cls in public_classes() if implements(cls, protocol)]
    assert found, f"nothing in the package implements {name}: is this test's idea of it wrong?"
    missing = [f"{cls.__module__}.{cls.__name__}" for cls in found if not any(issubclass(m, cls) for m in made)]
    assert not missing, (
        f"no test class holds {', '.join(missing)} to {name}Contract: subclass it in the tests of that room, "
        "and annotate what makes the instance with its class"
    )


def test_a_class_implements_a_protocol_by_its_members_and_their_arguments() -> None:
    class Warm:
        """As a compiler, but for what a test adds."""

        def __init__(self) -> None:
            self.workers = 1

        def compile(self, configs: Any) -> Any: ...

        def paused(self) -> Any: ...

    class Cold(Warm):
        def compile(self) -> Any: ...  # type: ignore[override]

    others = {name for name, part in vars(protocols.Compiler).items() if isinstance(part, property)} - {"workers"}
    whole = dict.fromkeys(others, False)
    assert not others or not implements(Warm, protocols.Compiler)
    assert implements(type("Whole", (Warm,), whole), protocols.Compiler)
    assert not implements(type("OfOtherArguments", (Cold,), whole), protocols.Compiler)
