"""The caller's own tensors, on which candidates run where copies of all of them would cost too much."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.outcome import Measurement
from ..workers import usable_memory_bytes
from .arguments import UnportableError, tensors_in
from .cells import Cell, differ, takes_nan
from .clocks import Clock, Launch
from .in_process import Trial, raise_if_lost
from .measuring import Attempt, Measuring, Ran
from .surroundings import surroundings_kept

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

LOOK_COPIES = 4  # of each argument, at the height of a look: as it was, as two runs left it, and what is compared
LOOK_BYTES = 512 << 20  # and temporaries


class LentArguments:
    """What the caller lent: restored as it asked, and where a run was seen to read what it writes.

    Nothing is copied but what must be put back; for the one look at what the default writes, everything is, for as long
    as that takes, where memory allows. What is only written is left as the last candidate left it: the caller's own launch
    writes it again.

    Args:
        tensors: the call's tensors by argument name.
        restored: names of those to put back before every run.
        zeroed: names of those to fill with zeros before every run.
        guarded: what a candidate writes where the default writes nothing is an error, and put back; copies of everything
            are then held until the end.
    Raises:
        UnportableError: memory is short for copies of what is to be restored.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        restored: Sequence[str] = (),
        zeroed: Sequence[str] = (),
        guarded: bool = False,
    ) -> None:
        self._guarded = guarded
        names = list(tensors)
        self._cells = [_memory(t) for t in tensors.values()]
        meet = [[j for j, other in enumerate(self._cells) if _overlap(cell, other)] for cell in self._cells]
        self._alone = [len(group) <= 1 for group in meet]
        self._names = [", ".join(names[j] for j in group) or names[i] for i, group in enumerate(meet)]
        self._zeroed = [names.index(n) for n in zeroed]
        self._look: dict[int, torch.Tensor] = {}
        self._written: set[int] = set()  # by the default, as seen so far
        self._looking = False
        asked = [names.index(n) for n in restored]
        if short := _shortage([self._cells[i] for i in asked], copies=1):
            raise UnportableError(f"a copy of {', '.join(restored)} to restore {short}")
        self._copies = {i: self._cells[i].clone() for i in asked}

    @property
    def changed(self) -> bool:
        return bool(self._copies or self._zeroed)

    def restore(self) -> None:
        for i, copy in self._copies.items():
            self._cells[i].copy_(copy)
        for i in self._zeroed:
            self._cells[i].zero_()

    def look(self) -> str:
        """Copy everything, so that what the next runs write can be found; why not, where memory does not allow it."""
        others = [cell for i, cell in enumerate(self._cells) if i not in self._copies]
        if short := _shortage(others, copies=LOOK_COPIES, beside=LOOK_BYTES):
            return f"looking at what is written {short}"
        self._look = {i: self._copies[i] if i in self._copies else cell.clone() for i, cell in enumerate(self._cells)}
        for i in self._zeroed:
            self._look[i] = self._look[i].clone().zero_()
        self._looking = True
        return ""

    def end_look(self, keep: bool) -> None:
        """Drop the copies that a look took; those of what is written are kept if outputs are to be compared."""
        if not self._guarded:
            self._look = {i: copy for i, copy in self._look.items() if keep and i in self._written}
        self._looking = False

    def look_anew(self) -> None:
        self.pristine()

    def pristine(self) -> None:
        for i, copy in {**self._look, **self._copies}.items():
            if i in self._written or i in self._copies or self._guarded:
                self._cells[i].copy_(copy)

    def cells(self) -> list[Cell]:
        return [
            Cell(index=i, name=self._names[i], memory=self._cells[i], before=self._look[i], alone=self._alone[i])
            for i in sorted(self._written)
        ]

    def blank(self, which: Sequence[int]) -> None:
        for i in which:
            self._cells[i].fill_(float("nan"))

    def could_be_blank(self) -> list[int]:
        return [i for i in self._look if self._alone[i] and i not in self._zeroed and takes_nan(self._cells[i].dtype)]

    def was_filled(self, index: int) -> bool:
        return not bool(self._cells[index].isnan().all())

    def note_written(self, which: Sequence[int]) -> None:
        self._written.update(which)

    def keep(self, which: Sequence[int]) -> None:
        for i in which:
            if i not in self._copies and i not in self._zeroed:
                self._copies[i] = self._look[i]

    def keep_written(self) -> None:
        """What a look that did not come to its end has found written may be read as well."""
        if self._looking:
            self.keep(sorted(self._written))

    def outputs(self, returned: Any) -> list[torch.Tensor]:
        """What a run returned, if anything, then what the default writes."""
        if self._looking:
            self._written |= {i for i in self._look if self._differs(i)}
        found = (tensor.detach() for tensor in tensors_in(returned))
        return [*found, *(self._cells[i] for i in sorted(self._written) if i in self._look)]

    def overrun(self) -> str | None:
        """Which tensors were written that the default does not write; what lies around them is in use, and not told."""
        if not self._guarded or self._looking:
            return None
        others = [n for n in self._look if n not in self._written and n not in self._zeroed]
        names = [self._names[i] for i in others if self._differs(i)]
        return f"wrote to {', '.join(names)}, which the default leaves as it was" if names else None

    def put_back(self) -> None:
        """Leave everything of which a copy is held as it was lent."""
        for i, copy in {**self._look, **self._copies}.items():
            self._cells[i].copy_(copy)

    def _differs(self, i: int) -> bool:
        return differ(self._cells[i].contiguous().view(-1), self._look[i].contiguous().view(-1))


class Lent(Measuring):
    """Times candidates in the caller's own process, on its own tensors.

    Args:
        launch: a config to what launches it once, with the hooks that stand around a launch.
        clock: a config to what it is timed by.
        arguments: makes the lent arguments, at the first measurement.
        looks: whether to look at what the default writes where no outputs are compared either.
        untried: that nothing but the clock may run a candidate, as where a user's benchmark counts the runs.
        others: see `Measuring`.
    """

    def __init__(
        self,
        *,
        launch: Callable[[Config], Launch],
        clock: Callable[[Config], Clock],
        arguments: Callable[[], LentArguments],
        looks: bool,
        untried: bool = False,
        repeatable: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.repeatable = repeatable
        self._launch = launch
        self._clock = clock
        self._lend = arguments
        self._looks = looks
        self._untried = untried and self._check is None
        self._arguments: LentArguments | None = None

    @property
    def looks(self) -> bool:
        return not self._untried and (self._looks or self._check is not None)

    def close(self) -> None:
        if self._arguments is not None and not self._lost:
            self._arguments.put_back()
        self._arguments = self._expected = None  # whoever holds the measurer holds no copies

    @contextlib.contextmanager
    def attempt(self, config: Config) -> Iterator[Attempt]:
        clock = self._clock(config)
        if self._untried:
            yield _Untried(self._launch(config), clock)
            return
        if self._arguments is None:
            self._arguments = self._lend()
            if self.looks and (short := self._arguments.look()):
                self._without_copies(short)
        try:
            with surroundings_kept():
                yield Trial(self._launch(config), self._arguments, clock)
        except BaseException as err:
            if isinstance(err, Exception):
                raise_if_lost(clock, err)
            self._arguments.keep_written()
            self._arguments.put_back()
            raise
        finally:
            if self._looked:
                self._arguments.end_look(keep=self._check is not None)

    def _without_copies(self, short: str) -> None:
        if self._check is not None:
            raise UnportableError(f"check= takes copies of the arguments, and {short}")
        log.warning(
            "%s: %s, so it is not done: name in restore_value what the kernel reads and writes", self.name, short
        )
        self._looked = True


class _Untried:
    """A candidate that nothing runs but its clock."""

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self._launch = launch
        self._clock = clock

    def run(self, *, look: bool, blank: Sequence[int], compared: bool) -> Ran:  # noqa: ARG002  # an attempt's own contract
        return Ran(outputs=())

    def time(self, hopeless_us: float) -> Measurement:
        return self._clock.measure(self._launch, first_us=math.nan, hopeless_us=hopeless_us)


def tensors_of(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among a call's arguments: a tensor descriptor's is its base, those of a tuple are numbered."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, (tuple, list)):
            found.update(tensors_of({f"{name}[{i}]": v for i, v in enumerate(value)}))
        elif isinstance(base := getattr(value, "base", None), torch.Tensor):
            found[name] = base
    return found


def names_of_storages(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """What the storages of some tensors are called, in the order in which they are met: by all that lie in one."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        names.setdefault(storage.data_ptr() or id(storage), []).append(name)
    return [", ".join(group) for group in names.values()]


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over all the memory of another, each element once: flat where there are no gaps between them.

    Gaps are left alone: what lies there may be somebody else's. Through `data`, so that autograd does not take what is put
    back for a change of what it has saved.
    """
    tensor = tensor.data
    if not tensor.numel():
        return tensor.reshape(0)
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, tensor.stride(), strict=True))
    if span <= math.prod(sizes):
        return tensor.as_strided((span,), (1,), tensor.storage_offset())
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())


def _extent(memory: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one behind its last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(memory.shape, memory.stride(), strict=True))
    return memory.data_ptr(), memory.data_ptr() + (span if memory.numel() else 0) * memory.itemsize


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def _shortage(tensors: Sequence[torch.Tensor], *, copies: int, beside: int = 0) -> str:
    """By how much memory is short for so many copies of some tensors, in words; empty where it suffices."""
    needed: Counter[torch.device] = Counter()
    for tensor in tensors:
        needed[tensor.device] += tensor.numel() * tensor.itemsize
    for device, size in needed.items():
        free = _free_bytes(device)
        if copies * size + beside > free:
            return f"takes {(copies * size + beside) >> 20} MiB, and {free >> 20} MiB are free"
    return ""


def _free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device."""
    import torch

    if device.type != "cuda":
        return usable_memory_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)
