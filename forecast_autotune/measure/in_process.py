"""Timing in the caller's own process: quick to start, and nothing protects the caller from a candidate that crashes."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.config_errors import of_memory, raised
from ..core.outcome import Measurement
from ..core.signal_handlers import raised_by_signal_handler
from ..core.timing_limits import IN_FULL, TimingLimits
from .base import Attempt, BaseMeasurer, DeviceLostError, RunResult
from .buffers import Buffer, Buffers, equal, load_kernels, memory_of, nudged, reads_itself, stand_in
from .checks import close, disagreement
from .clocks import Clock, CpuClock, Launch, cuda_clock
from .copies import BorrowedArguments, CopiedArguments, Values
from .outputs import Outputs, OutputsError, has_tensors, outputs_of, shared_memory
from .process_state import RandomState, preserve_process_state

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class InProcessAttempt:
    """One candidate: run once and looked at, then timed.

    Args:
        launch: makes a launch on the arguments as no candidate has seen them yet.
        random_state: from which the process's generators draw in each run that is looked at; None where they go on.
    """

    def __init__(
        self,
        launch: Callable[[], Launch],
        arguments: Buffers,
        clock: Clock,
        random_state: RandomState | None = None,
    ) -> None:
        self._launch = launch
        self._arguments = arguments
        self._clock = clock
        self._random_state = random_state
        self._last_us = math.nan
        self._returned: Any = None  # by the last run
        self._returns = False  # tensors, in the last run
        self._reuses: bool | None = None  # the memory of its results

    def run(self, *, detect: bool = False, blank: Sequence[int] = (), compared: bool = True) -> RunResult:
        """Run it once on arguments that nobody has changed; they are put back afterwards. See `Attempt.run`."""
        arguments = self._arguments
        arguments.reset()
        if detect:
            try:
                arguments.learn_compiled_writes(lambda: self._once(compared=False))
            except (Exception, SystemExit) as err:
                self._no_answer(err)
        for i in blank:
            arguments.buffers[i].written = True
            arguments.buffers[i].fill(math.nan)
        outputs = self._first_of_all(compared=compared) if detect else self._once(compared=compared)
        first_us, overrun, returned = self._last_us, arguments.overrun(), self._returned
        reads: list[str] = []
        if detect and overrun is None:
            written = [b for b in arguments.buffers if b.touched]
            if not written and compared and not self._returns and (written := self._holding_the_answer()):
                outputs = self._once(compared=True)
            blank, reads = self._detect_reads(written)
        if outputs is not None and self._returns and overrun is None and self._reuses is None:
            arguments.reset()
            self._once(compared=False)
            self._reuses = self._overwrites(shared_memory(returned, self._returned, arguments))
        self._returned = None
        if outputs is not None:
            outputs = replace(outputs, reuses_memory=bool(self._reuses))
        arguments.put_back()
        return RunResult(outputs=outputs, overrun=overrun, first_us=first_us, blank=tuple(blank), reads=tuple(reads))

    def time(self, limits: TimingLimits = IN_FULL) -> Measurement:
        """Time it, arguments put back before each sample, outside the timed region."""
        launch = self._launch()
        before = launch.before
        if self._arguments.changed:
            before = _both(self._arguments.restore, before)
        launch = Launch(call=launch.call, before=before, after=launch.after)
        return self._clock.measure(launch, first_us=self._last_us, limits=limits)

    def _first_of_all(self, *, compared: bool) -> Outputs | None:
        """Run the first candidate and see what it writes, and which of the slots that it rebinds are state.

        A slot is state if a second call rebinds it again, or adds to what the first call made for it. Where results depend
        on what the first call put there, all slots are state.
        """
        slots = self._arguments.slots
        if not slots:
            return self._once(compared=compared, detect=True)
        outputs = self._anew(compared=compared)
        if not (first := slots.rebound()):
            return outputs
        try:
            made = slots.sizes(first)
            again = self._anew(compared=compared)
            slots.note_state(first, slots.grown(made))
            if slots.have_state:
                again = self._anew(compared=compared)
            depends = compared and not _alike(again, outputs)
        except (Exception, SystemExit) as err:
            self._no_answer(err)
            depends = True
        if depends:
            slots.note_state({})
            again = self._anew(compared=compared)
        return again

    def _anew(self, *, compared: bool) -> Outputs | None:
        """Run it as though no run had been before, but for what stays in slots."""
        self._arguments.reset()
        return self._once(compared=compared, detect=True)

    def _detect_reads(self, written: Sequence[Buffer]) -> tuple[list[int], list[str]]:
        """What may be blanked before a run, and the names of what is read as well as written.

        A second run tells, which begins with other numbers in what the first has written; what the user has put back holds
        the same, for what follows from it would differ too. Where it raises, all that is written may be read. Nothing is
        blanked where tensors are returned: those are compared.
        """
        arguments, asked = self._arguments, [b for b in written if b.restored]
        for buffer in written:
            buffer.written = buffer.restored = True
            buffer.note_changed()
        if not written:
            return [], []
        try:
            left = {b: b.now.clone() for b in written}
            others = {b: stand_in(left[b], b.before) for b in written if b.can_be_blank and b not in asked}
            for buffer in asked:
                buffer.restore()
            for buffer, values in others.items():
                buffer.fill(values)
            arguments.slots.restore()
            self._once(compared=False)
            learned = {b: reads_itself(b, left[b], others.get(b), close) for b in written if b not in asked}
            reads = [b for b, about in learned.items() if about.reads]
            outputs = [b for b in others if learned[b].whole and not learned[b].reads and not self._returns]
            if reads:
                arguments.reset()
                self._once(compared=False)
                # What differs on equal arguments as well tells nothing about what it reads.
                certain = [b.name for b in reads if close(b.now, left[b]) is None]
        except (Exception, SystemExit) as err:
            self._no_answer(err)
            return [], []
        for buffer in written:
            buffer.restored = buffer in reads or buffer in asked
        return [arguments.buffers.index(b) for b in outputs], list(dict.fromkeys(certain)) if reads else []

    def _holding_the_answer(self) -> list[Buffer]:
        """Outputs that held the very results before, which no difference shows: a number moved a little is moved back."""
        arguments = self._arguments
        held = []
        try:
            for buffer in arguments.buffers:
                if buffer.can_be_blank:
                    arguments.reset()
                    buffer.fill(moved := nudged(buffer.now))
                    self._once(compared=False)
                    if not equal(buffer.now, moved.view(-1)):
                        held.append(buffer)
        except (Exception, SystemExit) as err:
            self._no_answer(err)
        for buffer in held:
            buffer.written = True
        arguments.reset()
        return held

    def _overwrites(self, shared: Sequence[torch.Tensor]) -> bool:
        """Whether a run writes to what earlier ones have returned, rather than returning it as it is.

        Told by what torch counts of writes, and by a run on other numbers. Those stand in copies of arguments alone: other
        threads may read what a candidate keeps.
        """
        if not shared:
            return False
        arguments = self._arguments
        counted, left = _versions(shared), [memory_of(t).clone() for t in shared]
        arguments.reset()
        for buffer in arguments.buffers:
            if buffer.can_be_blank:
                buffer.fill(stand_in(buffer.now, buffer.before))
        try:
            self._once(compared=False)
        except (Exception, SystemExit) as err:
            self._no_answer(err)
        same = all(equal(memory_of(t), before) for t, before in zip(shared, left, strict=True))
        return _versions(shared) != counted or not same

    def _no_answer(self, err: BaseException) -> None:
        """After an error in a run that was only to show something: no failure, unless the device is lost."""
        if raised_by_signal_handler(err):
            raise err
        if isinstance(err, Exception):
            raise_if_lost(self._clock, err)

    def _once(self, *, compared: bool, detect: bool = False) -> Outputs | None:
        """Run it; what it produced is copied before the hook that follows the launch may put something back.

        Every run draws the same random numbers: else results that follow from them would differ.
        """
        self._arguments.rewind()
        if self._random_state is not None:
            self._random_state.put_back()
        launch = self._launch()
        if launch.before is not None:
            launch.before()
        began = time.perf_counter()
        with self._arguments.seeing_writes():
            self._returned = returned = launch.call()
        if inspect.iscoroutine(returned):
            returned.close()  # nobody will await it, of which Python would warn
        self._clock.synchronize()
        self._last_us = (time.perf_counter() - began) * 1e6
        self._returns = has_tensors(returned)
        outputs = self._outputs(returned) if compared else None
        if detect or self._arguments.restores_all:
            self._arguments.detect_writes()
        if launch.after is not None:
            launch.after()
        return outputs

    def _outputs(self, returned: Any) -> Outputs:
        """What a call returned and wrote.

        Raises:
            OutputsError: they cannot be read, which is not the candidate's failure to run.
        """
        try:
            return outputs_of(returned, self._arguments)
        except Exception as err:
            if of_memory(err) or raised_by_signal_handler(err):
                raise
            raise_if_lost(self._clock, err)
            raise OutputsError(raised(err)) from err


def _alike(outputs: Outputs | None, before: Outputs | None) -> bool:
    """Whether a run produced what one before it did, and perhaps more."""
    if outputs is None or before is None:
        return outputs is before
    if list(outputs.written[: len(before.written)]) != list(before.written):
        return False
    return disagreement("allclose", outputs.tensors[: len(before.tensors)], before.tensors) is None


def _both(first: Callable[[], None], then: Callable[[], None] | None) -> Callable[[], None]:
    if then is None:
        return first

    def both() -> None:
        first()
        then()

    return both


def clock_for(values: Sequence[Any]) -> Clock:
    """The clock of the device that the tensors among some values are on, those in lists, tuples and dicts included."""
    device = next(_cuda_devices(values), None)
    return CpuClock() if device is None else cuda_clock(device)


def _cuda_devices(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, (list, tuple, dict)):
            yield from _cuda_devices(value.values() if isinstance(value, dict) else value)
        elif getattr(value, "is_cuda", False):
            yield f"cuda:{value.get_device()}"


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often torch's operators have written to each; 0 for those of inference mode, of which it does not say."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


class InProcess(BaseMeasurer):
    """Times candidates in the caller's own process, on arguments that are copied or borrowed.

    Args:
        launch: makes a candidate's launch, with the hooks around it, from its config and the arguments.
        clock: the clock to time a config by.
        arguments: makes the arguments, at the first measurement.
        draws: whether candidates may draw from the process's random number generators.
        untried: whether nothing but the clock may run a candidate: a user's benchmark may count the runs.
        others: see `BaseMeasurer`.
    """

    def __init__(
        self,
        *,
        launch: Callable[[Config, Values], Launch],
        clock: Callable[[Config], Clock],
        arguments: Callable[[], CopiedArguments | BorrowedArguments],
        draws: bool = True,
        untried: bool = False,
        repeatable: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.repeatable = repeatable
        self._launch = launch
        self._clock = clock
        self._make_arguments = arguments
        self._draws = draws
        self._untried = untried
        self._arguments: CopiedArguments | BorrowedArguments | None = None
        self._random_state: RandomState | None = None  # one for all candidates: other threads draw between two

    def _prepare_detection(self) -> bool:
        """Make the arguments, which may raise: on copies writes are always detected, on borrowed arguments never."""
        return isinstance(self._prepared(), CopiedArguments)

    def prepare(self) -> None:
        """Copy the arguments, prepare the clock, and have devices load what looks at copies. See `Measurer.prepare`."""
        try:
            arguments = self._prepared()
            self._clock(self._default).prepare()
            if isinstance(arguments, CopiedArguments) and not self._untried:
                load_kernels(arguments.buffers)
        except Exception as err:
            if raised_by_signal_handler(err):
                raise
            log.debug("%s: not prepared: %r", self.name, err)

    def close(self) -> None:
        """Put the caller's memory back, unless the device is lost, and drop all copies."""
        if self._arguments is not None and not self._lost:
            self._arguments.release()
        self._arguments = self._expected = None  # whoever holds the measurer holds no copies

    @contextlib.contextmanager
    def attempt(self, config: Config) -> Iterator[Attempt]:
        """Load a candidate into this process, whose state is preserved around it."""
        arguments, clock = self._prepared(), self._clock(config)

        def launch() -> Launch:
            return self._launch(config, arguments.values())

        if self._untried:
            yield _Untried(launch(), clock)
            return
        if self._draws and self._random_state is None:
            self._random_state = RandomState()
        try:
            with preserve_process_state(draws=self._draws):
                yield InProcessAttempt(launch, arguments, clock, self._random_state)
            spoiled = arguments.overrun() is not None
        except BaseException as err:
            if isinstance(err, Exception):
                raise_if_lost(clock, err)
            arguments.put_back()
            raise
        finally:
            arguments.slots.restore()
        if spoiled:  # what else it wrote, the copy that is put back included, nobody knows
            arguments.release()
            self._arguments = None

    def _prepared(self) -> CopiedArguments | BorrowedArguments:
        if self._arguments is None:
            self._arguments = self._make_arguments()
        return self._arguments


class _Untried:
    """A candidate that nothing runs but its clock."""

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self._launch = launch
        self._clock = clock

    def run(self, *, detect: bool, blank: Sequence[int], compared: bool) -> RunResult:  # noqa: ARG002  # an attempt's own contract
        return RunResult(outputs=None)

    def time(self, limits: TimingLimits) -> Measurement:
        return self._clock.measure(self._launch, first_us=math.nan, limits=limits)


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
