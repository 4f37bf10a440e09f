"""What a run of a candidate produced, in a form that can be compared with the default's and sent to another process."""

from __future__ import annotations

import dataclasses
import enum
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.signal_handlers import raised_by_signal_handler
from ..errors import AutotuneError

if TYPE_CHECKING:
    import torch

    from .buffers import Buffers

Gradients = Mapping[str, "torch.Tensor"] | str
"""By what they reach; or what the backward pass raised."""


_PLAIN = (type(None), str, bytes, range, slice, type, enum.Enum, numbers.Number, os.PathLike)
_TORCH = ("dtype", "device", "layout", "memory_format")


class OutputsError(AutotuneError):
    """What a run returned cannot be compared with anything; the message names it."""


NOTHING = {"kind": "NoneType", "value": "None"}
"""The form of what a function returns that returns nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a run returned and wrote, and the gradients it leads to.

    `form` says in JSON how the result is nested, and for each of its tensors the strides and whose memory it lies in.
    `tensors` are copies: of the tensors returned, then of the buffers, of what stands in slots and of what was empty, which
    `written` names.
    """

    form: Any
    tensors: Sequence[torch.Tensor]
    written: Sequence[str]
    gradients: Gradients = dataclasses.field(default_factory=dict)
    reuses_memory: bool = False  # of its result for that of the next call


def outputs_of(returned: Any, arguments: Buffers) -> Outputs:
    """What a run produced that has just ended. What the default is known to write counts, changed or not.

    What its backward pass writes, such as statistics of gradients, is a part of that.
    """
    seen = _SeenTensors(arguments)
    form, tensors = _form(returned, seen, ()), seen.tensors
    copies = [_dense(t.detach()).clone() for t in tensors]
    gradients = arguments.gradients(tensors)
    arguments.detect_writes()
    written = [b for b in arguments.buffers if b.touched or b.written]
    left = arguments.left()
    return Outputs(
        form=form,
        tensors=[*copies, *(b.output for b in written), *(_dense(t.detach()).clone() for _, t in left)],
        written=[*(b.name for b in written), *(name for name, _ in left)],
        gradients=gradients,
    )


def shared_memory(one: Any, another: Any, arguments: Buffers) -> list[torch.Tensor]:
    """Tensors that another call returned in storage that one call's results use too. Arguments and state do not count.

    Both calls' results must be alive.
    """
    seen = _SeenTensors(arguments)
    _form(one, seen, ())
    count = len(seen.tensors)
    _form(another, seen, ())
    earlier = set(seen.storages[:count]) - {0, *seen.holders}
    later = zip(seen.tensors[count:], seen.storages[count:], strict=True)
    return [tensor for tensor, storage in later if storage in earlier]


def has_tensors(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether a tensor, or a number, is among what was returned."""
    if isinstance(value, (int, float, complex)) or hasattr(value, "dtype"):
        return True
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = list((_attributes(value) or {}).values())
    return id(value) not in within and any(has_tensors(part, (*within, id(value))) for part in parts)


def opaque_in(form: Any) -> str | None:
    """The kind of something in a form that shows nothing of what it holds, such as a generator; None if all is seen."""
    if form.get("opaque"):
        return str(form["kind"])
    inner = [*form.get("items", ()), *form.get("keys", {}).values()]
    return next((kind for part in inner if (kind := opaque_in(part))), None)


class _SeenTensors:
    """The tensors of results in their order. All are held: numbers become tensors, whose addresses would be given away.

    Attributes:
        storages: the address of each one's storage; 0 without one.
        first: the index of the first tensor in each storage.
        holders: names of the arguments that lie in a storage.
    """

    def __init__(self, arguments: Buffers) -> None:
        self.tensors: list[torch.Tensor] = []
        self.storages: list[int] = []
        self.first: dict[int, int] = {}
        self.holders = arguments.names_by_storage()

    def add(self, tensor: torch.Tensor) -> int:
        """Append one. Returns its index."""
        index, storage = len(self.tensors), tensor.untyped_storage().data_ptr() if _has_memory(tensor) else 0
        self.tensors.append(tensor)
        self.storages.append(storage)
        self.first.setdefault(storage, index)
        return index


def _form(value: Any, seen: _SeenTensors, within: tuple[int, ...]) -> Any:
    """See `Outputs.form`; `within` are the identities of what holds the value."""
    import torch

    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        index = seen.add(value)
        return {"tensor": index, "class": kind, **_place(index, seen)}
    if (number := _as_tensor(value)) is not None:
        return {"kind": kind, "tensor": seen.add(number)}
    if id(value) in within:
        return {"kind": kind, "value": f"what holds it, {len(within) - within.index(id(value))} above"}
    within = (*within, id(value))
    if isinstance(value, Mapping):
        names = sorted(value, key=repr)  # an order that does not depend on who made it
        return {"kind": kind, "keys": {repr(n): _form(value[n], seen, within) for n in names}}
    if isinstance(value, (list, tuple)):
        return {"kind": kind, "items": [_form(v, seen, within) for v in value]}
    if isinstance(value, _PLAIN) or (type(value).__module__ == "torch" and kind in _TORCH):
        return {"kind": kind, "value": repr(value)}
    if isinstance(value, (set, frozenset)) and all(isinstance(v, _PLAIN) for v in value):
        return {"kind": kind, "value": f"{{{', '.join(sorted(map(repr, value)))}}}"}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # of text or objects
        return {"kind": kind, "value": repr(value.tolist())}
    if (held := _attributes(value)) is None:
        return {"kind": kind, "opaque": True}
    return {"kind": kind, "keys": {n: _form(v, seen, within) for n, v in held.items()}}


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A number, or a NumPy array of numbers, as a tensor; None for anything else, such as an integer of over 64 bits."""
    import torch

    try:
        if isinstance(value, (int, float, complex)):  # truth values included
            return torch.tensor(value)
        if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
            return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    return None


def _attributes(value: Any) -> dict[str, Any] | None:
    """What an object holds by name; None of one that does not show it, or that is run rather than read."""
    import torch

    if isinstance(value, (Iterator, torch.nn.Module)) or callable(value):
        return None
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    if not (slots or hasattr(value, "__dict__")):
        return None
    names = [n for n in (*getattr(value, "__dict__", {}), *slots) if n not in ("__dict__", "__weakref__")]
    return {n: getattr(value, n, None) for n in names}


def _names(slots: Any) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _place(index: int, seen: _SeenTensors) -> dict[str, Any]:
    """How a tensor lies in memory, and in whose."""
    tensor, storage = seen.tensors[index], seen.storages[index]
    place: dict[str, Any] = {
        "followed": tensor.requires_grad,
        "inference": tensor.is_inference(),  # which autograd cannot save
        "layout": str(tensor.layout),
    }
    if not _has_memory(tensor):
        return place
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    place["stride"] = [stride if size > 1 and tensor.numel() else 0 for size, stride in pairs]
    place["within"] = seen.holders.get(storage, [])
    first = seen.first[storage]
    place["shares"] = first if storage and first < index else None
    return place


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether it lies in one piece of memory."""
    import torch

    return tensor.layout == torch.strided and not tensor.is_nested and tensor.device.type != "meta"


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_nested:
        return torch.cat([t.reshape(-1) for t in tensor.unbind()])
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def gradients_of(tensors: Sequence[torch.Tensor], names: Mapping[int, str]) -> Gradients:
    """The gradients of a weighted sum of some tensors, by the names of the leaves they reach, known by identity."""
    import torch

    ends = [t for t in tensors if t.grad_fn is not None]
    leaves = _leaves(ends)
    if not leaves:
        return {}
    try:
        # A part of the graph may be the program's own, made before the call: it is to be walked again.
        gradients = torch.autograd.grad(ends, leaves, [_weights(t) for t in ends], retain_graph=True, allow_unused=True)
    except Exception as err:
        if raised_by_signal_handler(err):
            raise
        return f"{type(err).__name__}: {err}"
    pairs = zip(leaves, gradients, strict=True)
    return {names.get(id(v), f"a tensor at {id(v):#x}"): g.detach() for v, g in pairs if g is not None}


def _leaves(ends: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in which a backward pass from these would accumulate gradients."""
    waiting, seen = [t.grad_fn for t in ends], set()
    leaves: dict[int, torch.Tensor] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            leaves[id(variable)] = variable
        waiting += [following for following, _ in node.next_functions]
    return list(leaves.values())


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    """A weight for each element, no two alike: not drawn, for random numbers are the program's own."""
    import torch

    weights = torch.linspace(0.5, 1.5, tensor.numel(), device=tensor.device)
    return weights.view(tensor.shape).to(tensor.dtype)
