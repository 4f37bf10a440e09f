"""The caller's own tensors, on which candidates run where copies of all of them would cost too much."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.outcome import Measurement
from ..workers import usable_memory_bytes
from .arguments import UnportableError, tensors_in
from .cells import Cell, differ
from .clocks import Clock, Launch
from .in_process import Trial, raise_if_lost
from .measuring import Attempt, Measuring, Ran

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

HEADROOM = 1.25  # free memory must exceed what is copied by so much: the kernel and its comparison need some, too


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
        UnportableError: a name to restore or to zero is no tensor of the call, or memory is short for copies.
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
        self._names = list(tensors)
        self._cells = [_flat(t) for t in tensors.values()]
        self._alone = [not any(_overlap(c, o) for o in self._cells if o is not c) for c in self._cells]
        self._zeroed = [self._names.index(n) for n in zeroed]
        self._copies: dict[int, torch.Tensor] = {}
        self._look: dict[int, torch.Tensor] = {}
        self._written: set[int] = set()  # by the default, as seen so far
        self._looking = False
        asked = [self._names.index(n) for n in restored]
        needed = sum(self._cells[i].nbytes for i in asked)
        if asked and needed * HEADROOM > (free := _free_bytes(self._cells[asked[0]])):
            raise UnportableError(
                f"restoring {', '.join(restored)} takes a copy of {needed >> 20} MiB, and {free >> 20} MiB are free"
            )
        self._copies = {i: self._cells[i].clone() for i in asked}

    @property
    def changed(self) -> bool:
        return bool(self._copies or self._zeroed)

    def restore(self) -> None:
        for i, copy in self._copies.items():
            self._cells[i].copy_(copy)
        for i in self._zeroed:
            self._cells[i].zero_()

    def look(self) -> bool:
        """Copy everything, so that what the next runs write can be found; whether memory allowed it."""
        needed = sum(c.nbytes for i, c in enumerate(self._cells) if i not in self._copies)
        if self._cells and 2 * needed * HEADROOM > _free_bytes(self._cells[0]):
            log.info("%d MiB of arguments are too many to copy: what the kernel writes is not looked at", needed >> 20)
            return False
        self._look = {i: self._copies.get(i, cell).clone() for i, cell in enumerate(self._cells)}
        for i in self._zeroed:
            self._look[i].zero_()
        self._looking = True
        return True

    def end_look(self, keep: bool) -> None:
        """Drop the copies that a look took; those of what is written are kept if outputs are to be compared."""
        if not self._guarded:
            self._look = {i: copy for i, copy in self._look.items() if keep and i in self._written}
        self._looking = False

    def look_anew(self) -> None:
        """Everything that may have been written by earlier runs is put back, as far as a look has kept it."""
        for i, copy in self._look.items():
            if i not in self._copies:
                self._cells[i].copy_(copy)

    def cells(self) -> list[Cell]:
        return [
            Cell(index=i, name=self._names[i], now=self._cells[i], pristine=self._look[i], alone=self._alone[i])
            for i in sorted(self._written)
        ]

    def blank(self, which: Sequence[int]) -> None:
        for i in which:
            self._cells[i].fill_(float("nan"))

    def keep(self, which: Sequence[int]) -> None:
        for i in which:
            if i not in self._copies and i not in self._zeroed:
                self._copies[i] = self._look[i]

    def outputs(self, returned: Any) -> list[torch.Tensor]:
        """What a run returned, if anything, then what the default writes."""
        if self._looking:
            self._written |= {i for i, copy in self._look.items() if differ(self._cells[i], copy)}
        return [*tensors_in(returned), *(self._cells[i] for i in sorted(self._written) if i in self._look)]

    def overrun(self) -> str | None:
        """Which tensors were written that the default does not write; what lies around them is in use, and not told."""
        if not self._guarded or self._looking:
            return None
        others = [n for n in self._look if n not in self._written and n not in self._zeroed]
        names = [self._names[i] for i in others if differ(self._cells[i], self._look[i])]
        return f"wrote to {', '.join(names)}, which the default leaves as it was" if names else None

    def put_back(self) -> None:
        """Leave everything of which a copy is held as it was lent."""
        for i, copy in {**self._look, **self._copies}.items():
            self._cells[i].copy_(copy)


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
        return not self._untried and (self._looks or super().looks)

    def close(self) -> None:
        if self._arguments is not None and not self._lost:
            self._arguments.put_back()

    @contextlib.contextmanager
    def attempt(self, config: Config) -> Iterator[Attempt]:
        clock = self._clock(config)
        try:
            if self._untried:
                yield _Untried(self._launch(config), clock)
                return
            if self._arguments is None:
                self._arguments = self._lend()
                self._looks = self._arguments.look() if self.looks else False
                if self._check is not None and not self._looks:
                    raise UnportableError(f"check= of {self.name} takes copies of its arguments: memory is short")
            yield Trial(self._launch(config), self._arguments, clock)
        except Exception as err:
            raise_if_lost(clock, err)
            raise
        finally:
            if config == self._default and self._arguments is not None:
                self._arguments.end_look(keep=self._check is not None)


class _Untried:
    """A candidate that nothing runs but its clock."""

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self._launch = launch
        self._clock = clock

    def run(self, *, look: bool, blank: Sequence[int]) -> Ran:  # noqa: ARG002  # an attempt's own contract
        return Ran(outputs=())

    def time(self, hopeless_us: float) -> Measurement:
        return self._clock.measure(self._launch, first_us=math.nan, hopeless_us=hopeless_us)


def tensors_of(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among a call's arguments; a tensor descriptor's is its base."""
    import torch

    held = {name: v if isinstance(v, torch.Tensor) else getattr(v, "base", None) for name, v in arguments.items()}
    return {name: v for name, v in held.items() if isinstance(v, torch.Tensor)}


def names_of_storages(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """What the storages of some tensors are called, in the order in which they are met: by all that lie in one."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        names.setdefault(storage.data_ptr() or id(storage), []).append(name)
    return [", ".join(group) for group in names.values()]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, flat.

    Through `data`, so that autograd does not take what is put back for a change of what it has saved.
    """
    tensor = tensor.data
    if not tensor.numel():
        return tensor.reshape(0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes)


def _free_bytes(tensor: torch.Tensor) -> int:
    """Memory that can still be had where a tensor lies."""
    import torch

    if not tensor.is_cuda:
        return usable_memory_bytes()
    free, _ = torch.cuda.mem_get_info(tensor.device)
    held = torch.cuda.memory_reserved(tensor.device) - torch.cuda.memory_allocated(tensor.device)
    return int(free + held)
