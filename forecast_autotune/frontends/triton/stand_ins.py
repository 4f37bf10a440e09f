"""Stand-ins for a call's arguments: what the compiler asks of them, and none of their memory."""

from __future__ import annotations

import copy
from typing import Any

import torch


class StandIn(torch.Tensor):  # type: ignore[misc]
    """A tensor without data that has another one's shape, strides and dtype, and an address as well aligned."""

    address = 0

    def data_ptr(self) -> int:
        """The other tensor's address, of which only the alignment counts."""
        return self.address


def stand_in(value: Any) -> Any:
    """What stands for an argument while its call is over: tensors, and what holds them, give way to stand-ins.

    Raises:
        TypeError: it holds a tensor in a way that is not known here.
    """
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta").as_subclass(StandIn)
        made.address = value.data_ptr()
        return made
    if isinstance(value, (tuple, list)):
        inner = [stand_in(each) for each in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    held = getattr(value, "__dict__", None)
    if held is None or callable(value) or not any(isinstance(each, torch.Tensor) for each in held.values()):
        if hasattr(value, "data_ptr"):
            raise TypeError(f"{type(value).__name__} has an address, and no tensor that it is of")
        return value
    made = copy.copy(value)  # a tensor descriptor, a tensor under another dtype
    for name, each in held.items():
        if isinstance(each, torch.Tensor):
            object.__setattr__(made, name, stand_in(each))
    return made
