"""Tensors that callables reach beside their arguments: through closures, modules, globals and attributes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .copies import kind_without_copy

if TYPE_CHECKING:
    import torch

_MOST = 100_000  # objects looked at
# Packages whose objects hold no state of a variant
_OTHERS = ("torch", "triton", "numpy", "forecast_autotune", "builtins")


def tensors_reached(values: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Dense tensors that some callables and objects hold, by where each was met, with those in their `.grad`.

    Followed are closures, the globals that a function names, bound objects, containers, and attributes of modules and of
    objects whose classes are the program's own. What is reached by name at run time only is not seen.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for name, value in _reached(values):
        if isinstance(value, torch.Tensor) and kind_without_copy(value) is None:
            tensors.setdefault(name, value)
    return tensors


def state_reached(values: Iterable[Any]) -> dict[str, Any]:
    """What `CopiedArguments` is to put back beside arguments: tensors, and generators of random numbers."""
    import torch

    roots = list(values)
    generators = [value for _, value in _reached(roots) if isinstance(value, torch.Generator)]
    return {"state": tensors_reached(roots), "generators": generators}


def weights_reached(values: Iterable[Any]) -> tuple[dict[str, torch.nn.Module], dict[str, torch.Tensor]]:
    """The modules that some callables hold, and the tensors beside their parameters that autograd may follow, now or later.

    By where each was met, with a number where two were met under one name. Buffers count if they require gradients now.
    """
    import torch

    modules: dict[str, torch.nn.Module] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in _reached(values):
        if isinstance(value, torch.nn.Module):
            modules[_unlike(name, modules)] = value
        elif isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            tensors[_unlike(name, tensors)] = value
    parameters = {id(t) for m in modules.values() for t in m._parameters.values()}
    gradients = {id(t.grad) for t in tensors.values() if t.is_leaf}
    buffers = {id(t) for m in modules.values() for t in m._buffers.values() if t is not None and not t.requires_grad}
    others = parameters | gradients | buffers
    return modules, {name: tensor for name, tensor in tensors.items() if id(tensor) not in others}


def _unlike(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken."""
    return next(n for n in itertools.chain([name], (f"{name}{i}" for i in itertools.count(2))) if n not in taken)


def outermost(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those of some modules that are in none of the others."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [m for m in modules if id(m) not in inner]


def _reached(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """All that some values hold, by where it was met, themselves included; of a tensor, what is in its `.grad`."""
    import torch

    seen: set[int] = set()
    waiting = [(_name(v), v) for v in values]
    held = []  # so that no identity is given away
    while waiting and len(seen) < _MOST:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        held.append(value)
        yield name, value
        if not isinstance(value, torch.Tensor):
            waiting += _parts(name, value)
        elif kind_without_copy(value) is None and value.is_leaf and value.grad is not None:
            waiting.append((f"{name}.grad", value.grad))


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", None) or type(value).__name__)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name."""
    import torch

    if isinstance(value, (str, bytes, int, float, type, types.ModuleType)) or value is None:
        return
    if isinstance(value, functools.partial):
        yield from ((name, v) for v in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from ((_name(value.__self__), value.__self__), (name, value.__func__))
    elif isinstance(value, types.FunctionType):
        if _package(value) not in _OTHERS:
            yield from _of_function(name, value)
    elif isinstance(value, dict):
        yield from ((f"{name}.{key}", v) for key, v in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{name}[{i}]", v) for i, v in enumerate(list(value)))
    elif isinstance(value, torch.nn.Module) or _package(type(value)) not in _OTHERS:
        held = getattr(value, "__dict__", {})
        inner = {"_parameters", "_buffers", "_modules"} if isinstance(value, torch.nn.Module) else set()
        for key, v in list(held.items()):
            yield (name if key in inner else f"{name}.{key}"), v


def _of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not bound yet
            yield variable, cell.cell_contents
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if inspect.iscode(c)]
        for variable in code.co_names:
            if variable in function.__globals__:
                yield variable, function.__globals__[variable]
    for v in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), function.__dict__):
        yield name, v


def _package(value: Any) -> str:
    return (getattr(value, "__module__", None) or "builtins").partition(".")[0]
