"""What a run wrote: tensors before and after, and whether the kernel reads what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BLANK = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
CHUNK_BYTES = 16 << 20  # comparing takes temporaries of up to 16 times what is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Memory that a run wrote, and a copy of what was there before. `alone`: no other argument lies in that memory."""

    index: int
    name: str
    memory: torch.Tensor
    before: torch.Tensor
    alone: bool

    @property
    def now(self) -> torch.Tensor:
        """What is there now, flat."""
        return self.memory.contiguous().view(-1)

    @property
    def pristine(self) -> torch.Tensor:
        """What was there before, flat."""
        return self.before.contiguous().view(-1)

    @property
    def can_be_blank(self) -> bool:
        """Whether it can be filled with NaN before a run, without taking a number for an index or a lock from anybody."""
        return self.alone and takes_nan(self.memory.dtype)


def takes_nan(dtype: torch.dtype) -> bool:
    """Whether a tensor of this type can be blanked: not numbers that may be indices, nor floats of 8 bits."""
    return str(dtype).removeprefix("torch.") in _BLANK


def differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two flat tensors of equal size and dtype hold different bytes."""
    import torch

    return any(not torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in chunks(a, b))


def reads_itself(
    cell: Cell,
    first: torch.Tensor,
    close: Callable[[torch.Tensor, torch.Tensor], str | None],
    *,
    blanked: bool,
) -> bool:
    """Whether what a run leaves in a cell depends on what was there before it.

    `first` was left by a run that found the pristine cell; what is there now was left by one that found what the first
    had left, or NaN if `blanked`. NaN that is still there where the first run changed nothing was not written to, and tells
    nothing. `close` says how two flat tensors differ, or None.
    """
    import torch

    for before, one, two in chunks(cell.pristine, first, cell.now):
        if blanked:
            size = one.dtype.itemsize
            changed = (one.view(torch.uint8) != before.view(torch.uint8)).view(-1, size).any(dim=1)
            tells = changed | ~torch.isnan(two)
            one, two = one[tells], two[tells]
        if close(two, one) is not None:
            return True
    return False


def chunks(*tensors: torch.Tensor) -> Iterator[Sequence[torch.Tensor]]:
    """Flat tensors of one size, a piece of each at a time."""
    count = max(1, CHUNK_BYTES // tensors[0].dtype.itemsize)
    for start in range(0, tensors[0].numel(), count):
        yield [t[start : start + count] for t in tensors]
