"""Memory that candidates run on, with a copy of what it held: what a run wrote, and whether it reads what it writes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .slots import Slots

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 4096
ALIGNMENT = 64  # of torch's CPU allocator; offsets within it are kept, for vector loads depend on them
CHUNK_BYTES = 16 << 20  # comparing takes temporaries of up to 16 times what is compared
_GUARD = 0xA5
_BLANK = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
Region = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Of a storage: sizes, strides and offset, all in elements, and the bytes of an element."""


@dataclass(slots=True, kw_only=True, eq=False)
class Buffer:
    """Memory that candidates may write.

    A copy's lies between two guard zones of known bytes, so that a candidate which writes past it is found out. The
    caller's own is put back element by element: only what differs, so that nothing is written that no candidate wrote.

    Args:
        name: of the arguments that lie there.
        memory: what candidates run on, flat where there are no gaps between its elements.
        pristine: what it held, or what it is to hold before a run.
        guarded: the memory with its guard zones, as bytes; None for the caller's own.
        alone: no two arguments lie there.
        shape: of the tensor that fills it, for messages and for a scale by rows.
        restored: the kernel reads what it writes there: it is put back before every run.
        written: the default config writes there.
        regions: of the caller's own memory, where candidates were seen to write: other changes are somebody else's. None
            where every change is a candidate's.
    """

    name: str
    memory: torch.Tensor
    pristine: torch.Tensor
    guarded: torch.Tensor | None = None
    alone: bool = False
    shape: tuple[int, ...] | None = None
    restored: bool = False
    written: bool = False
    touched: bool = False  # by the last run
    regions: set[Region] | None = None
    _changed: tuple[torch.Tensor, ...] | None = field(default=None, repr=False)  # elements of the caller's own

    @property
    def now(self) -> torch.Tensor:
        """What is there now, flat; without what others than candidates have changed."""
        now = self.memory
        if self.regions is not None:
            import torch

            now = torch.where(self._own(), now, self.pristine) if self.regions else self.pristine
        return now.contiguous().view(-1)

    @property
    def before(self) -> torch.Tensor:
        """What was there before any run, flat."""
        return self.pristine.contiguous().view(-1)

    @property
    def output(self) -> torch.Tensor:
        """A copy of what is there now, in the shape of the tensor that lies there."""
        now = self.now.clone()
        return now if self.shape is None else now.view(self.shape)

    @property
    def can_be_blank(self) -> bool:
        """Whether other numbers may stand there before a run: a copy, of floats, that no other argument shares."""
        return self.guarded is not None and self.alone and str(self.memory.dtype).removeprefix("torch.") in _BLANK

    def differs(self) -> bool:
        """Whether candidates have left other bytes there than before any run."""
        return self.regions != set() and not equal(self.now, self.before)

    def note_changed(self) -> None:
        """Keep which elements of the caller's own memory a run has changed: those are put back before every run."""
        if self.guarded is None:
            self._changed = self._differing()

    def restore(self) -> None:
        """Put back what the next run must not find changed, without waiting for the device."""
        with self._as_it_was_made():
            if self._changed is not None:
                self.memory.index_put_(self._changed, self.pristine[self._changed])
            else:
                self.memory.copy_(self.pristine)

    def put_back(self) -> None:
        """Leave it as it was before any run."""
        if self.guarded is not None:
            self.restore()
        elif self.differs():
            with self._as_it_was_made():
                changed = self._differing()
                self.memory.index_put_(changed, self.pristine[changed])

    def fill(self, values: torch.Tensor | float) -> None:
        """Write values there, or one number everywhere."""
        with self._as_it_was_made():
            if isinstance(values, float):
                self.memory.fill_(values)
            else:
                self.memory.copy_(values.view(self.memory.shape))

    def overrun(self) -> str | None:
        """What was written in its guard zones, in words."""
        for zone, where in zip(self.zones, ("before", "past the end of"), strict=False):
            if wrong := int((zone != _GUARD).sum()):
                return f"wrote {wrong} bytes {where} {self.name}"
        return None

    def mend_guard(self) -> None:
        """Fill its guard zones with the known bytes again."""
        for zone in self.zones:
            zone.fill_(_GUARD)

    @property
    def zones(self) -> Sequence[torch.Tensor]:
        """The bytes before and behind a copy."""
        if self.guarded is None:
            return ()
        start = self.memory.storage_offset() * self.memory.itemsize
        return self.guarded[:start], self.guarded[start + self.memory.numel() * self.memory.itemsize :]

    def note_write(self, memory: torch.Tensor) -> None:
        """A candidate writes to memory in the same storage, as `memory_of` gives it."""
        if self.regions is not None:
            start, end = (at * self.memory.itemsize for at in _extent(self.memory))
            first, last = (at * memory.itemsize for at in _extent(memory))
            if first < end and start < last:
                self.regions.add((tuple(memory.shape), memory.stride(), memory.storage_offset(), memory.itemsize))

    def _differing(self) -> tuple[torch.Tensor, ...]:
        """Indices of the elements of the caller's own memory that candidates have changed."""
        changed = different(self.memory, self.pristine)
        if self.regions is not None:
            changed &= self._own()
        indices: tuple[torch.Tensor, ...] = changed.nonzero(as_tuple=True)
        return indices

    def _own(self) -> torch.Tensor:
        """Which elements lie in `regions`; all of them where one was written to as another dtype."""
        import torch

        start, end = _extent(self.memory)
        own = torch.zeros(end - start, dtype=torch.bool, device=self.memory.device)
        for shape, stride, offset, itemsize in self.regions or ():
            first = offset - start
            if itemsize != self.memory.itemsize:
                own.fill_(True)
            elif stride == (1,):
                own[max(first, 0) : first + shape[0]] = True
            else:
                region = own.new_zeros(_span(shape, stride))
                region.as_strided(shape, stride).fill_(True)
                own[max(first, 0) : first + len(region)] |= region[max(-first, 0) : end - offset]
        return own.as_strided(self.memory.shape, self.memory.stride(), 0)

    def _as_it_was_made(self) -> contextlib.AbstractContextManager[object]:
        """In or out of inference mode: a tensor made in it cannot be written outside."""
        import torch

        mode: contextlib.AbstractContextManager[object] = torch.inference_mode(self.memory.is_inference())
        return mode


class Buffers:
    """The buffers of a call's arguments, and what a run leaves in them.

    Args:
        slots: which candidates may rebind, to be put back.
    """

    restores_all = False  # before every run, whether or not the kernel reads what it writes

    def __init__(self, buffers: Sequence[Buffer], slots: Slots | None = None) -> None:
        self.buffers = buffers
        self.slots = Slots() if slots is None else slots

    @property
    def changed(self) -> bool:
        """Whether a run leaves them in a state that the next must not start from."""
        return any(self._is_restored(b) for b in self.buffers)

    def restore(self) -> None:
        """Put back what a run must not find changed."""
        for buffer in self.buffers:
            if self._is_restored(buffer):
                buffer.restore()

    def _is_restored(self, buffer: Buffer) -> bool:
        return buffer.restored or (self.restores_all and buffer.touched)

    def put_back(self) -> None:
        """Leave everything as it was before any run."""
        for buffer in self.buffers:
            buffer.put_back()

    def left(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors that a run has put somewhere, by name: outputs, as what it has written is."""
        return self.slots.left()

    def reset(self) -> None:
        """Leave everything as it was before any run, and forget what that wrote."""
        self.put_back()
        for buffer in self.buffers:
            buffer.touched = False
            buffer.mend_guard()

    def rewind(self) -> None:
        """Have the generators of random numbers that a run reaches draw what the first run drew."""

    def seeing_writes(self) -> contextlib.AbstractContextManager[object]:
        """Around a run: have what it writes told from what other threads write meanwhile, where that is to be told."""
        return contextlib.nullcontext()

    def learn_compiled_writes(self, run: Callable[[], object]) -> None:
        """See from a run what compiled code in it writes, where that is to be told from what other threads write."""

    def detect_writes(self) -> list[Buffer]:
        """The buffers that the last run wrote to; the rest of what it may have written lies in guard zones."""
        for buffer in self.buffers:
            buffer.touched |= buffer.differs()
        return [b for b in self.buffers if b.touched]

    def overrun(self) -> str | None:
        """What was written outside of the arguments, in words; None if nothing was.

        All zones of a device are looked at together: each look waits for the device.
        """
        import torch

        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for buffer in self.buffers:
            if zones := buffer.zones:
                by_device.setdefault(zones[0].device, []).extend(zones)
        if all(bool((torch.cat(zones) == _GUARD).all()) for zones in by_device.values()):
            return None
        return next((overrun for b in self.buffers if (overrun := b.overrun())), None)

    def names_by_storage(self) -> dict[int, list[str]]:
        """Names of the arguments by the address of the storage that they lie in."""
        names: dict[int, list[str]] = {}
        for buffer in self.buffers:
            if start := buffer.memory.untyped_storage().data_ptr():
                names.setdefault(start, []).append(buffer.name)
        return names

    def gradients(self, returned: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor] | str:  # noqa: ARG002
        """What a run's gradients are, by what they reach, or why there are none; of arguments in a child, nothing."""
        return {}

    def values(self) -> Any:
        """What to call a candidate with, made anew."""
        raise NotImplementedError


def guarded_copy(
    content: torch.Tensor,
    *,
    name: str,
    misalignment: int,
    dtype: torch.dtype,
    shape: tuple[int, ...] | None,
    alone: bool,
) -> Buffer:
    """A buffer with a copy of some bytes, aligned as these were. `content` is kept as the pristine copy."""
    import torch

    count, start = content.numel(), GUARD_BYTES + misalignment
    pinned = content.device.type == "cpu" and content.is_pinned()  # which a GPU's kernel reads, and no other
    size = start + count + GUARD_BYTES
    guarded = torch.empty(size, dtype=torch.uint8, device=content.device, pin_memory=pinned).fill_(_GUARD)
    memory = guarded[start : start + count]
    memory.copy_(content)
    if count % dtype.itemsize == 0:  # the guard and the misalignment are whole elements, as data pointers are aligned
        memory, content = memory.view(dtype), content.view(dtype)
    if shape is not None and math.prod(shape) != memory.numel():
        shape = None
    return Buffer(name=name, memory=memory, pristine=content, guarded=guarded, shape=shape, alone=alone)


def view_of(
    buffer: Buffer, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """A tensor over a copied storage, as one lies in the original: `offset` counts its elements from the start."""
    import torch

    start = buffer.memory.storage_offset() * buffer.memory.itemsize
    typed = torch.empty(0, dtype=dtype, device=buffer.memory.device)
    return typed.set_(buffer.memory.untyped_storage(), start // dtype.itemsize + offset, tuple(shape), tuple(stride))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over all the memory of another, each element once: flat where there are no gaps between them.

    Gaps are left alone: what lies there may be somebody else's. Through `data`, so that autograd does not take what is put
    back for a change of what it has saved.
    """
    tensor = tensor.data
    if tensor.is_conj():  # a view, of which torch does not show the bytes
        tensor = tensor.conj()
    if not tensor.numel():
        return tensor.reshape(0)
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    span = _span(sizes, tensor.stride())
    if span <= math.prod(sizes):
        return tensor.as_strided((span,), (1,), tensor.storage_offset())
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """From the first to the last element of a tensor, both included, in elements."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _extent(memory: torch.Tensor) -> tuple[int, int]:
    """Where it begins and ends in its storage, in elements."""
    start = memory.storage_offset()
    return start, start + _span(memory.shape, memory.stride())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, flat."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two flat tensors of equal size and dtype hold the same bytes."""
    import torch

    return all(torch.equal(bits(x), bits(y)) for x, y in chunks(a, b))


def different(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which elements of two tensors of one shape and dtype hold different bytes."""
    return (bits(a) != bits(b)).view(-1, a.itemsize).any(dim=1).view(a.shape)


def stand_in(left: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Numbers as harmless to a kernel as what a run has left, and others everywhere: the same from the end.

    Where these are what was left or stood there before the run, from which it would leave the same, they are halved, once
    or twice, and zeros are ones. A loop that ends on real numbers ends on these, and an index stays within bounds; NaN
    would do neither.
    """
    import torch

    ones = torch.ones_like(left)
    halved = torch.where(torch.isfinite(left) & (left != 0), left / 2, ones)
    other = left.flip(0)
    other = torch.where(torch.isfinite(other), other, ones)
    for less in (halved, halved / 2):
        other = torch.where((other == left) | (other == before), less, other)
    return other


def nudged(values: torch.Tensor) -> torch.Tensor:
    """The same floats, each one unit in the last place nearer to zero; zeros by as much away from it."""
    import torch

    real = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    whole = real.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[real.itemsize])
    moved = torch.where(real == 0, whole + 1, whole - 1)
    return torch.where(torch.isfinite(real), moved, whole).view(values.dtype).view(values.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferUse:
    """Whether what a run leaves in a buffer depends on what was there before, and whether every element was written."""

    reads: bool
    whole: bool


def reads_itself(
    buffer: Buffer,
    first: torch.Tensor,
    start: torch.Tensor | None,
    close: Callable[[torch.Tensor, torch.Tensor], str | None],
) -> BufferUse:
    """What two runs tell of a buffer.

    `first` is what a run left that began with the buffer's original contents. What is there now was left by a run that began
    with `start`, or with `first` if `start` is None. What neither run has changed was not written to, and tells nothing.
    `close` says how two flat tensors differ, or None.
    """
    reads, whole = False, True
    for before, began, one, two in chunks(buffer.before, first if start is None else start, first, buffer.now):
        tells = different(one, before) | different(two, began)
        whole = whole and bool(tells.all())
        reads = reads or not (equal(one, two) or close(two[tells], one[tells]) is None)
    return BufferUse(reads=reads, whole=whole)


def load_kernels(buffers: Sequence[Buffer]) -> None:
    """Have GPUs load the kernels that look at such buffers, on a few numbers: their first uses take 0.2 s (H100)."""
    import torch

    for dtype, device in {(b.memory.dtype, b.memory.device) for b in buffers if b.memory.is_cuda}:
        few = torch.zeros(64, dtype=torch.uint8, device=device)
        buffer = guarded_copy(few, name="few", misalignment=0, dtype=dtype, shape=None, alone=True)
        Buffers([buffer]).overrun()
        buffer.differs()
        buffer.restore()
        left = buffer.now.clone()
        if buffer.can_be_blank:
            other = stand_in(left, buffer.before)
            buffer.fill(other)
            reads_itself(buffer, left, other, lambda *_: None)
            buffer.fill(math.nan)


def chunks(*tensors: torch.Tensor) -> Iterator[Sequence[torch.Tensor]]:
    """Flat tensors of one size, a piece of each at a time."""
    count = max(1, CHUNK_BYTES // tensors[0].itemsize)
    for start in range(0, tensors[0].numel(), count):
        yield [t[start : start + count] for t in tensors]
