"""A module among a call's arguments, such as a method's `self`, as part of the call's key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from ..core.digest import canonical_json, digest
from ..core.module_names import module_name

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_attributes_by_module: dict[int, tuple[Callable[[], Any], str]] = {}  # by identity


def is_module(value: Any) -> bool:
    """Whether a value is a `torch.nn.Module`."""
    import torch

    return isinstance(value, torch.nn.Module)


def module_part(module: Any) -> Hashable:
    """What of a module separates keys: its class, its plain attributes, and the form of each parameter and buffer.

    Plain attributes (numbers, text, lists of these; those of its submodules, too) count as they were when the module was
    first seen: what counts its calls must not have each of them tuned. What they train is told by `CallState`.
    """
    forms = tuple([(t.dtype, t.shape, t.stride(), t.is_cuda) for t in _tensors(module)])
    return (type(module), _attributes(module), forms)


def module_as_json(module: Any) -> str:
    """The same for the store: its class, how many numbers its parameters and buffers hold, and a digest of the rest."""
    forms = [(str(t.dtype), list(t.shape), list(t.stride())) for t in _tensors(module)]
    held = sum(t.numel() for t in _tensors(module))
    kind = f"{module_name(type(module))}.{type(module).__qualname__}"
    return f"{kind}({held} weights, {digest(_attributes(module), canonical_json(forms))[:12]})"


def _tensors(module: Any) -> Iterator[Any]:
    """Its parameters and buffers; without those of lazy modules, which have no shape before the first call."""
    from torch.nn.parameter import is_lazy

    for held in module.modules():
        for tensor in (*held._parameters.values(), *held._buffers.values()):
            if tensor is not None and not is_lazy(tensor):
                yield tensor


def _attributes(module: Any) -> str:
    """A digest of the classes and plain attributes of a module and its submodules, made once for each module."""
    known, key = _attributes_by_module, id(module)
    if (entry := known.get(key)) is not None and entry[0]() is module:
        return entry[1]
    import torch

    of_all = vars(torch.nn.Module())
    parts = []
    for name, held in module.named_modules():
        plain = {n: repr(v) for n, v in vars(held).items() if n not in of_all and _is_plain(v)}
        parts.append(f"{name}: {type(held).__qualname__} {canonical_json(plain)}")
    known[key] = weakref.ref(module, lambda _: known.pop(key, None)), digest(*parts)
    return known[key][1]


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) in (list, tuple) and all(map(_is_plain, value)))
