"""What a Python function does beside returning something: whether calling it for nothing but its launches is safe."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

TRUSTED = frozenset({
    "__future__", "_operator", "builtins", "enum", "forecast_autotune", "functools", "itertools", "logging", "math",
    "operator", "torch", "triton", "typing", "warnings",
})  # fmt: skip
"""Packages whose functions keep nothing of what they are given, but for those named below."""

LASTING = frozenset({
    "__import__", "backward", "compile", "delattr", "distributed", "eval", "exec", "globals", "manual_seed", "open",
    "register_hook", "seed", "set_default_device", "set_default_dtype", "set_grad_enabled", "set_rng_state", "setattr",
    "vars",
})  # fmt: skip
"""Names of what changes something else, or is not to be done on one rank alone."""

FILLING = frozenset({
    "__setitem__", "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
})  # fmt: skip
"""Names of what changes a container. Torch has some of them too, so they count only beside a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """`keeps`: what a function may keep or change, in words; empty if nothing. `catches`: whether it handles errors."""

    keeps: str
    catches: bool


def habits(function: Any) -> Habits:
    """Read a function's code, and that of all it calls, for what would outlast a call.

    Nothing is said to be kept only where every function that may be called is known: a method and an object that can be
    called are not followed. A table or a cached function may keep numbers and text, where its annotation says so.
    """
    walk = _Walk()
    walk.value(function, getattr(function, "__name__", type(function).__name__))
    if not walk.keeps and walk.containers and walk.fills:
        walk.keeps = f"{walk.containers[0]} by {walk.fills[0]}"
    return Habits(keeps=walk.keeps, catches=walk.catches)


def is_plain(value: Any) -> bool:
    """Whether an argument is a tensor, a number, text or the like, or a list, tuple or dict of these."""
    import torch

    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return type(value) in (torch.Tensor, torch.nn.Parameter) or _constant(value)


class _Walk:
    def __init__(self) -> None:
        self.keeps = ""
        self.catches = False
        self.containers: list[str] = []
        self.fills: list[str] = []
        self._seen: dict[int, Any] = {}

    def value(self, value: Any, name: str) -> None:
        """Something that a function names or is."""
        import torch

        if self.keeps or id(value) in self._seen or _constant(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, (tuple, frozenset)):
            self.values(value, name)
        elif isinstance(value, (list, set, dict)):
            self.containers.append(name)
            self.values(value.values() if isinstance(value, dict) else value, name)
        elif isinstance(value, functools.partial):
            self.values((value.func, *value.args, *value.keywords.values()), name)
        elif hasattr(value, "run_under") or hasattr(getattr(value, "tuned", None), "run_under"):
            tuned = getattr(value, "tuned", value)  # what others tune does not tune itself
            self.values((v.function for v in getattr(tuned, "variants", ())), name)
        elif type(value).__module__.startswith("triton."):
            if hasattr(value, "configs"):
                self.keeps = f"what {name} finds out by tuning itself"
            elif hasattr(value, "values") and hasattr(value, "fn"):
                self.values((*value.values.values(), value.fn), name)  # heuristics
        elif inspect.isfunction(value):
            self.function(value)
        elif isinstance(value, functools._lru_cache_wrapper) and _of_numbers(value.__annotations__.get("return")):
            self.value(value.__wrapped__, name)
        elif not (
            type(value) in (torch.Tensor, torch.nn.Parameter)
            or isinstance(value, logging.Logger)
            or (isinstance(value, type) and _trusted(value.__module__))
            or (inspect.isbuiltin(value) and _trusted(_owner(value)))
        ):
            self.keeps = f"{name}, a {type(value).__name__}"

    def values(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self.value(value, name)

    def function(self, function: Any) -> None:
        if hasattr(function, "_torchdynamo_orig_callable"):
            self.keeps = f"what {function.__name__} compiles"
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if _trusted(function.__globals__.get("__name__", "")):  # a decorator, whose cells hold what it stands around
            for name, cell in cells.items():
                found = _content(cell)
                if inspect.isfunction(found) or isinstance(found, functools.partial):
                    self.value(found, name)
            return
        self.values((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), function.__name__)
        for code in _codes(function.__code__):
            self.code(code, function, cells)

    def code(self, code: CodeType, function: Any, cells: Mapping[str, Any]) -> None:
        steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG")]
        for i, step in enumerate(steps):
            if self.keeps:
                return
            name, does = step.argval, step.opname
            outside = does.endswith("_DEREF") and name in cells
            if does in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL") or (
                outside and does in ("STORE_DEREF", "DELETE_DEREF")
            ):
                self.keeps = f"{name}, set in {function.__name__}"
            elif does in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
                self.fills.append(function.__name__)
            elif does in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"):
                self.catches = True
            elif does == "IMPORT_NAME" and not _trusted(name):
                self.keeps = f"the import of {name}"
            elif does in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME") and name in LASTING:
                self.keeps = f"what {name} does in {function.__name__}"
            elif does in ("LOAD_ATTR", "LOAD_METHOD") and name in FILLING:
                self.fills.append(function.__name__)
            if does in ("LOAD_GLOBAL", "LOAD_NAME"):
                found = function.__globals__.get(name, getattr(builtins, name, _Unknown))
                if not _of_numbers(function.__globals__.get("__annotations__", {}).get(name)):
                    self.named(found, name, steps[i + 1 :])
            elif outside and does == "LOAD_DEREF":
                self.named(_content(cells[name]), name, steps[i + 1 :])

    def named(self, found: Any, name: str, then: list[dis.Instruction]) -> None:
        """What a name stands for, with the attributes that are asked of it, where that is a module."""
        for step in then:
            if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            if not isinstance(found, ModuleType):
                if inspect.isfunction(found) and not hasattr(found, "tuned"):
                    self.keeps = f"{name}.{step.argval}"
                break
            found, name = getattr(found, step.argval, _Unknown), f"{name}.{step.argval}"
            if _trusted(name) or _trusted(getattr(found, "__module__", None) or ""):
                break
        if not _trusted(getattr(found, "__name__", "") if isinstance(found, ModuleType) else ""):
            self.value(found, name)


def _of_numbers(annotation: Any) -> bool:
    """Whether an annotation is of numbers, text, or tables of these."""
    if annotation is None:
        return False
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return set(re.findall(r"[\w.]+", text)) <= {"None", "bool", "dict", "float", "int", "list", "set", "str", "tuple"}


class _Unknown:
    """Stands for what is not there yet."""


def _constant(value: Any) -> bool:
    import torch

    kinds = (bool, int, float, complex, str, bytes, type(None), type(...), enum.Enum)
    return isinstance(value, (*kinds, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)) or (
        type(value).__module__.startswith("triton.language")
    )


def _trusted(name: str) -> bool:
    return name.partition(".")[0] in TRUSTED


def _owner(value: Any) -> str:
    """The module of a function that is built in; of one that is bound, that of what it is bound to."""
    bound = getattr(value, "__self__", None)
    if bound is None or isinstance(bound, ModuleType):
        return str(getattr(value, "__module__", None) or getattr(bound, "__name__", ""))
    return bound.__module__ if isinstance(bound, type) else ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _Unknown


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
