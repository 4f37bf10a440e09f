"""Arguments of a traced call as constants that Dynamo can hold, and functions of ours that it may trace."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

TENSOR, SEQUENCE = "tensor", "sequence"


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Dynamo trace this function, though it does not trace files of this package: see `triton.torch_capture`."""

    def without_file(code: CodeType) -> CodeType:
        inner = tuple(without_file(c) if isinstance(c, CodeType) else c for c in code.co_consts)
        return code.replace(co_filename=f"<{__name__}>", co_consts=inner)

    function.__code__ = without_file(function.__code__)
    return function


@traced
def as_constant(value: Any) -> Any:
    """An argument as a constant, while Dynamo traces this; `operator.index` makes one of a symbolic size."""
    import torch

    if isinstance(value, torch.Tensor):
        shape, stride = (tuple([operator.index(n) for n in sizes]) for sizes in (value.shape, value.stride()))
        return (TENSOR, shape, stride, value.dtype, value.device, value.requires_grad and torch.is_grad_enabled())
    if isinstance(value, (list, tuple)):
        return (SEQUENCE, tuple([as_constant(v) for v in value]))
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


def from_constant(constant: Any, mode: Any) -> Any:
    """The argument that a constant describes; a tensor without data, in the fake mode that all of a call share."""
    import torch

    if isinstance(constant, tuple) and constant[0] == SEQUENCE:
        return tuple(from_constant(each, mode) for each in constant[1])
    if isinstance(constant, tuple):
        _, shape, stride, dtype, device, tracked = constant
        with mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=tracked)
    return constant
