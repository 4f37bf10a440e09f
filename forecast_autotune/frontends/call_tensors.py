"""The tensors of a call: their labels, and whether the call may be timed and compared on them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def tensors_of_call(values: Sequence[Any]) -> list[Any]:
    """The tensors among some values, those in lists, tuples and dicts included."""
    return [tensor for _, tensor in _labelled("", enumerate(values))]


def versions_of_tensors(values: Sequence[Any]) -> list[int]:
    """How often torch has written to each tensor of a call; 0 for those of inference mode, of which it does not say."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of_call(values)]


def labelled_tensors(values: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """The tensors of a call by label: the argument's name, and for one in a list or dict its index or key: `xs[0]`."""
    return dict(_labelled("", zip(labels_of(values, names), values, strict=True)))


def labels_of(values: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """The names of a call's arguments; the index of one without a name."""
    return [names[i] if names is not None and i < len(names) else str(i) for i in range(len(values))]


def _labelled(prefix: str, values: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    import torch

    for name, value in values:
        label = f"{prefix}[{name}]" if prefix else str(name)
        if isinstance(value, torch.Tensor):
            yield label, value
        elif isinstance(value, (list, tuple)):
            yield from _labelled(label, enumerate(value))
        elif isinstance(value, dict):
            yield from _labelled(label, value.items())


CAPTURING = "a CUDA graph was being captured"
"""Why a call is not measured while `is_capturing`."""

EMPTY = "the call launches an empty grid"
"""Why a call is not measured, and nothing is decided for it either."""


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: timing would wait for the device, which breaks the capture."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def why_unmeasured(values: Sequence[Any]) -> str:
    """Why a call must not be timed or run twice now; empty if it may."""
    if is_capturing():
        return CAPTURING
    return "its tensors held no data" if hold_no_data(values) else ""


def hold_no_data(values: Sequence[Any]) -> bool:
    """Whether a tensor among these is fake or on the meta device."""
    return any(is_fake(t) or t.is_meta for t in tensors_of_call(values))


def is_fake(value: Any) -> bool:
    """Whether it is a tensor of torch's fake mode, which warns of questions about its memory."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(value, fakes.FakeTensor)


def why_untuned(values: Sequence[Any], names: Sequence[str] | None) -> str:
    """Why a call of such tensors is never tuned; empty if it is. Copies of some cannot be compared byte by byte."""
    import torch

    for name, tensor in labelled_tensors(values, names or ()).items():
        if tensor.is_nested:
            return f"{name} is a tensor that is nested"
        if tensor.layout != torch.strided:
            return f"{name} is a tensor that is {str(tensor.layout).removeprefix('torch.')}"
        if tensor.is_quantized:
            return f"{name} is a tensor that is quantized"
        if tensor.is_conj() or tensor.is_neg():
            return f"{name} is a conjugate or negative view: its memory holds other numbers than it shows"
    return ""
