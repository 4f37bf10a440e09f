"""What a first run made and put in slots: whether later runs change tensors in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .buffers import equal, memory_of
from .slots import PLAIN, Slot, Slots

if TYPE_CHECKING:
    import torch

_COPIED_BYTES = 512 << 20  # of tensors that the first run has made; of further ones torch's count of writes tells


class FirstMade:
    """What lies below the slots that a first run has bound, and was not reached before it.

    A cache that fills lazily is made by the first run, and later runs put tensors in it, or write to its own. Then the slot
    that holds it is state. What is made once and then only read (a table, packed weights), or is left with the same bytes
    by each run (a workspace), is none.

    Args:
        slots: of what candidates reach.
        first: the slots that the first run has bound, with what it left there.
    """

    def __init__(self, slots: Slots, first: Mapping[Slot, Any]) -> None:
        self._below: list[tuple[Slot, Slots, list[tuple[torch.Tensor, torch.Tensor | int]]]] = []
        copied = 0
        for slot, value in first.items():
            if slot[0].whole or type(value) in PLAIN:
                continue
            below, tensors = slots.below(value)
            looks: list[tuple[torch.Tensor, torch.Tensor | int]] = []
            for tensor in tensors:
                copied += (size := tensor.numel() * tensor.itemsize)
                looks.append((tensor, memory_of(tensor).clone() if copied <= _COPIED_BYTES else _writes(tensor)))
                copied -= size if copied > _COPIED_BYTES else 0
            self._below.append((slot, below, looks))

    def changed(self) -> list[Slot]:
        """The slots below which runs since have changed tensors."""
        return [slot for slot, below, looks in self._below if below.rebinds_tensors() or _differ(looks)]


def _differ(looks: Iterable[tuple[torch.Tensor, torch.Tensor | int]]) -> bool:
    return any(
        _writes(tensor) != before
        if isinstance(before, int)
        else not equal(memory_of(tensor).reshape(-1), before.reshape(-1))
        for tensor, before in looks
    )


def _writes(tensor: torch.Tensor) -> int:
    """How often torch's operators have written to a tensor; 0 for one of inference mode, of which it does not say."""
    return 0 if tensor.is_inference() else int(tensor._version)
