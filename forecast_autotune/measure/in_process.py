"""Timing in the caller's own process: quick to start, and nothing protects the caller from a candidate that crashes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..core.config import Config
from ..core.outcome import Measurement
from .arguments import Arguments, Snapshot, snapshot
from .cells import Cell, reads_itself
from .checks import close
from .clocks import Clock, CpuClock, Launch, cuda_clock
from .measuring import Attempt, DeviceLostError, Measuring, Ran
from .surroundings import surroundings_kept

if TYPE_CHECKING:
    import torch


class Lendable(Protocol):
    """The arguments that candidates run on: copies of the caller's, or lent by the caller."""

    @property
    def changed(self) -> bool:
        """Whether a run leaves them in a state that the next must not start from."""

    def restore(self) -> None:
        """Put back what a run must not find changed."""

    def look_anew(self) -> None:
        """Forget what earlier runs were found to write."""

    def blank(self, which: Sequence[int]) -> None:
        """Fill these with NaN, so that what a candidate leaves unwritten shows."""

    def pristine(self) -> None:
        """Put back all that a run was found to write, as far as a copy of it is held."""

    def could_be_blank(self) -> list[int]:
        """Those that could be blanked if they were outputs."""

    def was_filled(self, index: int) -> bool:
        """Whether anything was written to one that had been blanked."""

    def put_back(self) -> None:
        """Leave everything of which a copy is held as it was lent."""

    def note_written(self, which: Sequence[int]) -> None:
        """These are outputs, whether or not a difference shows."""

    def outputs(self, returned: Any) -> list[torch.Tensor]:
        """What a run produced."""

    def cells(self) -> list[Cell]:
        """What the last run was found to write."""

    def overrun(self) -> str | None:
        """What was written outside of them, in words; None if nothing was."""

    def keep(self, which: Sequence[int]) -> None:
        """These are read as well as written: they are to be put back before every run."""


class Trial:
    """One candidate on arguments lent to it: run once and look, then time."""

    def __init__(self, launch: Launch, arguments: Lendable, clock: Clock) -> None:
        self._launch = launch
        self._arguments = arguments
        self._clock = clock
        self._last_us = math.nan

    def run(self, *, look: bool = False, blank: Sequence[int] = (), compared: bool = True) -> Ran:
        """Run it once on pristine arguments; they are put back afterwards. See `Attempt.run`."""
        arguments = self._arguments
        arguments.look_anew()
        arguments.restore()
        outputs = self._once(blank, compared and not look)
        first_us, overrun = self._last_us, arguments.overrun()
        reads: list[Cell] = []
        if look and overrun is None:
            if not arguments.cells() and self._find_answered():
                outputs = self._once((), compared=False)
            cells = arguments.cells()
            left = {cell.index: cell.now.clone() for cell in cells}
            blank = tuple(cell.index for cell in cells if cell.can_be_blank)
            outputs = self._once(blank, compared)  # what cannot be blank still holds what the first run left
            reads = [c for c in cells if reads_itself(c, left[c.index], close, blanked=c.index in blank)]
            if reads:
                blank = tuple(i for i in blank if i not in {cell.index for cell in reads})
                arguments.keep([cell.index for cell in reads])
                arguments.restore()
                outputs = self._once(blank, compared)
                # What differs on equal arguments as well tells nothing about what it reads.
                reads = [cell for cell in reads if close(cell.now, left[cell.index]) is None]
        arguments.pristine()
        return Ran(
            outputs=outputs,
            overrun=overrun,
            first_us=first_us,
            blank=tuple(blank),
            reads=tuple(dict.fromkeys(cell.name for cell in reads)),
        )

    def time(self, hopeless_us: float = math.inf) -> Measurement:
        """Time it, arguments put back before each sample, outside the timed region."""
        before = self._launch.before
        if self._arguments.changed:
            before = _both(self._arguments.restore, before)
        launch = Launch(call=self._launch.call, before=before, after=self._launch.after)
        return self._clock.measure(launch, first_us=self._last_us, hopeless_us=hopeless_us)

    def _find_answered(self) -> bool:
        """Look for outputs that held the very results before, which no difference shows; whether there are any."""
        arguments = self._arguments
        found = []
        for index in arguments.could_be_blank():
            arguments.blank((index,))
            self._launch.once()
            self._clock.synchronize()
            if arguments.was_filled(index):
                found.append(index)
            arguments.put_back()
        arguments.note_written(found)
        return bool(found)

    def _once(self, blank: Sequence[int], compared: bool) -> list[torch.Tensor]:
        """Run it; copies of its outputs, taken before the hook that follows the launch may put something back."""
        launch, arguments = self._launch, self._arguments
        arguments.blank(blank)
        if launch.before is not None:
            launch.before()
        began = time.perf_counter()
        returned = launch.call()
        self._clock.synchronize()
        self._last_us = (time.perf_counter() - began) * 1e6
        outputs = arguments.outputs(returned)
        found = [o.clone() for o in outputs] if compared else []
        if launch.after is not None:
            launch.after()
        return found


def _both(first: Callable[[], None], then: Callable[[], None] | None) -> Callable[[], None]:
    if then is None:
        return first

    def both() -> None:
        first()
        then()

    return both


def clock_for(values: Sequence[Any]) -> Clock:
    """The clock of the device that the tensors among some values are on."""
    device = next((v.device for v in values if getattr(v, "is_cuda", False)), None)
    return CpuClock() if device is None else cuda_clock(device)


class InProcess(Measuring):
    """Times candidates in the caller's own process, on copies of its arguments.

    Args:
        function: a config to what is called.
        arguments: what to call it with; copied at the first measurement.
        others: see `Measuring`.
    """

    def __init__(
        self, *, function: Callable[[Config], Callable[..., Any]], arguments: Sequence[Any], **others: Any
    ) -> None:
        super().__init__(**others)
        self._function = function
        self._given = arguments
        self._snapshot: Snapshot | None = None
        self._copies: Arguments | None = None  # laid out once: a trial finds them as if they were new

    def close(self) -> None:
        self._copies = None
        if self._snapshot is not None:
            self._snapshot.close()

    @contextlib.contextmanager
    def attempt(self, config: Config) -> Iterator[Attempt]:
        if self._snapshot is None:
            self._snapshot = snapshot(self._given)
        if self._copies is None:
            self._copies = Arguments(self._snapshot.layout, self._snapshot.file, self._snapshot.size)
        arguments = self._copies
        values = arguments.build(self._snapshot.layout["values"])  # the last candidate may have reshaped its own
        function, clock = self._function(config), clock_for(values)
        try:
            with surroundings_kept():
                yield Trial(Launch(call=lambda: function(*values)), arguments, clock)
            if arguments.overrun() is not None:
                self._copies = None  # what else it wrote, the copy that is put back included, nobody knows
        except BaseException as err:
            self._copies = None
            if isinstance(err, Exception):
                raise_if_lost(clock, err)
            raise


def raise_if_lost(clock: Clock, err: Exception) -> None:
    """After an error: see whether the device still answers.

    An illegal access or an assertion on the device ends the context: whatever is asked of it later fails with the same.

    Raises:
        DeviceLostError: it does not.
    """
    with contextlib.suppress(Exception):
        clock.synchronize()  # may tell of the very error at hand, which a device that is well has then got over
    try:
        clock.synchronize()
    except Exception:
        raise DeviceLostError(str(err).partition("\n")[0]) from err
