"""What Dynamo traces of a call of variants: its arguments as constants, and functions of ours that are part of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CodeType
from typing import Any

TENSOR, MANY = "tensor", "many"


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Dynamo trace this function, which it would leave alone by its file: see `inductor._stay_out_of_graphs`."""

    def elsewhere(code: CodeType) -> CodeType:
        inner = tuple(elsewhere(c) if isinstance(c, CodeType) else c for c in code.co_consts)
        return code.replace(co_filename=f"<{__name__}>", co_consts=inner)

    function.__code__ = elsewhere(function.__code__)
    return function


@traced
def told(value: Any) -> Any:
    """What Dynamo, which traces this, can tell of an argument as a constant; `index` makes one of a symbolic size."""
    import torch

    if isinstance(value, torch.Tensor):
        shape, stride = (tuple([operator.index(n) for n in sizes]) for sizes in (value.shape, value.stride()))
        return (TENSOR, shape, stride, value.dtype, value.device, value.requires_grad and torch.is_grad_enabled())
    if isinstance(value, (list, tuple)):
        return (MANY, tuple([told(v) for v in value]))
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


def imagined(told: Any, mode: Any) -> Any:
    """An argument from what was told of it; of a tensor, one without data, of a fake mode that all of a call share."""
    import torch

    if isinstance(told, tuple) and told[0] == MANY:
        return tuple(imagined(each, mode) for each in told[1])
    if isinstance(told, tuple):
        _, shape, stride, dtype, device, tracked = told
        with mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=tracked)
    return told
