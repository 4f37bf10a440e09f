"""The tensors of a call: their labels, and whether the call may be timed and compared on them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat
from operator import itemgetter
from types import FrameType
from typing import Any

from ..core.signal_handlers import raised_by_signal_handler
from ..measure.copies import kind_beyond_torch, kind_without_copy
from ..measure.slots import PLAIN
from ..measure.state import state_reached, tensors_reached


def tensors_of_call(values: Sequence[Any]) -> list[Any]:
    """The tensors among some values, those in lists, tuples, dicts and dataclasses included."""
    import torch

    return [leaf for leaf in leaves_of_call(values) if isinstance(leaf, torch.Tensor)]


def leaves_of_call(values: Sequence[Any]) -> list[Any]:
    """The values with each list, tuple, dict and dataclass replaced by what it holds."""
    return _leaves(zip(repeat(""), values))


def reached_by_call(callables: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    """What `CopiedArguments` is to put back beside the arguments of a call, whose copies candidates are given."""
    import torch

    others = [v for v in leaves_of_call(values) if type(v) not in PLAIN and not isinstance(v, torch.Tensor)]
    also_reached = tensors_reached([*callables, *others]).values()
    return {**state_reached([*callables, *values]), "also_reached": also_reached}


def versions_of_tensors(values: Sequence[Any]) -> list[int]:
    """How often torch has written to each tensor of a call; 0 for those of inference mode, of which it does not say."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of_call(values)]


def labelled_tensors(values: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """The tensors of a call by label: the argument's name, with where it is in a list, dict or dataclass: `xs[0]`, `b.x`."""
    import torch

    labels: list[str] = []
    leaves = _leaves(zip(labels_of(values, names), values, strict=True), labels)
    return {label: leaf for label, leaf in zip(labels, leaves, strict=True) if isinstance(leaf, torch.Tensor)}


def labels_of(values: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """The names of a call's arguments; the index of one without a name."""
    return [names[i] if names is not None and i < len(names) else str(i) for i in range(len(values))]


def holds_leaves(value: Any) -> bool:
    """Whether a value is one of the kinds that `leaves_of_call` looks into."""
    return isinstance(value, (list, tuple, dict)) or _is_record(value)


def _is_record(value: Any) -> bool:
    try:
        if not hasattr(type(value), "__dataclass_fields__"):
            return False
    except Exception:  # of its metaclass
        return False
    import torch

    return not isinstance(value, (torch.Tensor, torch.nn.Module))


def _leaves(labelled: Iterable[tuple[str, Any]], labels: list[str] | None = None) -> list[Any]:
    """What is no container. A list, tuple or dict that holds itself is looked into once, a dataclass anyway.

    Each call with a container comes here: one loop, in which a look at the class tells most values.

    Args:
        labels: is given the label of each leaf, where it has one.
    """
    import torch

    leaves: list[Any] = []
    kinds = {torch.Tensor, torch.nn.Parameter, *PLAIN}
    records: set[int] = set()
    within: set[int] = set()
    path: list[tuple[int, Iterator[tuple[str, Any]]]] = [(0, iter(labelled))]
    while path:
        for label, value in path[-1][1]:
            if type(value) in kinds or not holds_leaves(value):
                leaves.append(value)
                if label and labels is not None:
                    labels.append(label)
            elif (key := id(value)) not in within and key not in records:
                (records if _is_record(value) else within).add(key)
                path.append((key, _labelled_parts(label, value)))
                break
        else:
            within.discard(path.pop()[0])
    return leaves


def items_of(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """A dict's items as its class gives them: in an AttrDict, `items` and `values` may be entries."""
    items: Iterable[tuple[Any, Any]] = type(value).items(value)
    return items


def _labelled_parts(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a container holds, by label; without labels where it has none, for they take as long as all else."""
    if isinstance(value, dict):
        items = items_of(value)
        if not label:
            return zip(repeat(""), map(itemgetter(1), items))
        return ((f"{label}[{key}]", held) for key, held in items)
    if isinstance(value, (list, tuple)):
        return zip((f"{label}[{i}]" for i in count()) if label else repeat(""), value, strict=False)
    return _fields(label, value)


def _fields(label: str, record: Any) -> Iterator[tuple[str, Any]]:
    for field in type(record).__dataclass_fields__:
        try:
            held = getattr(record, field)
        except Exception as err:  # it is a property, or not there yet
            if raised_by_signal_handler(err):
                raise
            continue
        yield label and f"{label}.{field}", held


CAPTURING = "a CUDA graph was being captured"
"""Why a call is not measured while `is_capturing`."""

EMPTY = "the call launches an empty grid"
UNINITIALIZED = "weights of a lazy module get their shapes in it"
UNDECIDED = (EMPTY, UNINITIALIZED)
"""Why a call is not measured, and nothing is decided for it either."""


FX_TRACES = "torch.fx traces the call"
"""Why a call is not tuned while `is_fx_tracing`."""


def is_fx_tracing() -> bool:
    """Whether `torch.fx.symbolic_trace` runs in this thread: whatever a call does would become part of its graph."""
    from torch.fx import _symbolic_trace

    if not getattr(_symbolic_trace, "is_fx_symbolic_tracing", bool)():
        return False
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if get_proxy_mode() is not None:
        return False  # it is `make_fx`, which traces tensors, and of which tuning can be hidden
    frame: FrameType | None = sys._getframe(1)
    trace = _symbolic_trace.Tracer.trace.__code__
    while frame is not None and frame.f_code is not trace:  # torch's own flag is one for all threads
        frame = frame.f_back
    return frame is not None


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
        if kind_without_copy(tensor) is None and (kind := kind_beyond_torch(tensor)):
            return f"{name} is a tensor that is {kind}"
    return ""
