"""Arguments of a traced call as a launch gets them: sizes by their hints, tensors without data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

UNBACKED = 8192
"""The size that stands for one unknown before the graph runs: Inductor's own guess."""


def without_modes() -> Any:
    """A context in which our own work with tensors is neither traced nor faked."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def hinted(value: Any, build: Callable[..., Any]) -> Any:
    """A traced argument as a launch gets it: hints in the place of symbols, tensors without data.

    A hint puts no guard on the graph.

    Args:
        build: makes a tensor from size and stride, with `dtype=` and `device=`.
    """
    if _is_of_dynamo(value):
        value = value.realize()
        if hasattr(value, "block_shape"):
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor.from_tensor(hinted(value.get_tensor(), build), hinted(value.block_shape, build))
        value = value.as_python_constant() if value.is_python_constant() else value.as_proxy()
    if isinstance(value, torch.fx.Proxy):
        value = value.node.meta["example_value"]
    if isinstance(value, torch.Tensor):
        size, stride = ([hinted(n, build) for n in sizes] for sizes in (value.size(), value.stride()))
        return build(size, stride, dtype=value.dtype, device=value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = value.node
        return node.hint if node.has_hint() else UNBACKED if isinstance(value, torch.SymInt) else 1
    if isinstance(value, (list, tuple)):
        items = [hinted(v, build) for v in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    return value


def _is_of_dynamo(value: Any) -> bool:
    """Whether a value is Dynamo's stand-in for one."""
    base = sys.modules.get("torch._dynamo.variables.base")
    return base is not None and isinstance(value, base.VariableTracker)


def meta_tensor(size: Sequence[int], stride: Sequence[int], *, dtype: Any, device: Any) -> torch.Tensor:  # noqa: ARG001
    """A tensor on the meta device."""
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def fake_tensor(size: Sequence[int], stride: Sequence[int], *, dtype: Any, device: Any) -> torch.Tensor:
    """A tensor with all attributes of the real one, its device included, which a user's pruning may read."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
