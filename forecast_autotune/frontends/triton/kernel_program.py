"""A Triton kernel as a Program: its source with the source of everything it calls."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from ...core.digest import Value
from ...core.module_names import module_name
from ...core.workload import Program
from ..program_text.code_text import CodeText, digest_of
from ..program_text.values import is_kernel


def program_of(kernel: Any) -> Program:
    """The program of a kernel, or of a tuner with the heuristics and hooks around one.

    Its text holds the kernel, the functions that it calls, the values they read from outside, and the functions called
    around a launch. Its digest changes when Triton's `cache_key` does, except by line numbers.
    """
    return Program(name=kernel_name(kernel), language="triton", source=CodeText([kernel]).text)


def kernel_name(kernel: Any) -> str:
    """The module and the name of the function under a kernel, tuners and heuristics: what its program goes by."""
    function = kernel
    while (inner := getattr(function, "fn", None)) is not None:
        function = inner
    return f"{module_name(function)}.{getattr(function, '__qualname__', type(function).__name__)}"


def plain_value(value: Any) -> Value:
    """The value of a knob or a key, as text where it has no JSON form, such as a dtype.

    A function given as a constexpr becomes its name with a digest of its code: two closures may share a name. So does an
    object whose text would be its address. What is held by containers and dataclasses is told likewise, a set's in sorted
    order, so that the text is the same in every process.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if type(value).__name__ == "constexpr":
        return plain_value(value.value)
    if isinstance(value, (tuple, list)):
        inner = [plain_value(each) for each in value]
        return str(inner if isinstance(value, list) else tuple(inner))
    if isinstance(value, dict):
        return str({plain_value(name): plain_value(held) for name, held in value.items()})
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({{{', '.join(sorted(repr(plain_value(each)) for each in value))}}})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f"{f.name}={plain_value(getattr(value, f.name))!r}" for f in dataclasses.fields(value) if f.repr)
        return f"{type(value).__qualname__}({', '.join(fields)})"
    if isinstance(value, functools.partial):
        return f"{plain_value(value.func)} of {plain_value((*value.args, *value.keywords.items()))}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    kind: Any = type(value)
    has_no_text = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    if is_kernel(value) or has_no_text or (callable(value) and name and not isinstance(value, type)):
        return f"{name or type(value).__qualname__} {digest_of(value)[:12]}"
    return str(name or value)
