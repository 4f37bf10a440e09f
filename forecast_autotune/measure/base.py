"""What every measurer does around a candidate: outputs compared with the default's, errors put down to who caused them."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, cast

from ..core.config import Config
from ..core.config_errors import is_of_the_config, of_memory, raised, says_of_memory
from ..core.outcome import Failure, Measurement, Outcome, Stage
from ..core.signal_handlers import raised_by_signal_handler
from ..core.timing_limits import IN_FULL, TimingLimits
from ..errors import AutotuneError, InvalidInputError
from ..processes.endings import (
    WorkerDiedError,
    WorkerKilledError,
    WorkerMemoryError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from .checks import Check, check_name, compare
from .copies import UnportableError
from .outputs import NOTHING, Outputs, OutputsError, opaque_in

log = logging.getLogger(__name__)


class DeviceLostError(AutotuneError):
    """A candidate took the device's context with it: nothing can be launched in this process any more."""


class CheckError(AutotuneError):
    """The check does not pass the default config's own outputs, so it can tell nothing about other configs'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run of a candidate showed, with outputs where they are to be compared.

    If writes were to be detected (see `Attempt.run`), `reads` names the arguments that the kernel both reads and writes, and
    `blank` holds the indices of those that can be blanked before a run.
    """

    outputs: Outputs | None
    overrun: str | None = None
    first_us: float = math.nan
    blank: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()


class Attempt(Protocol):
    """A candidate that is loaded."""

    def run(self, *, detect: bool, blank: Sequence[int], compared: bool) -> RunResult:
        """Run it on arguments that nobody has changed, and put them back; every run draws the same random numbers.

        With `detect`, run it again to learn what it reads of what it writes. The arguments in `blank` are filled with NaN
        first: outputs, of which whatever a candidate leaves unwritten then shows. Outputs are copied where they are to be
        `compared`.
        """

    def time(self, limits: TimingLimits) -> Measurement:
        """Time it, no further than is of use."""


class BaseMeasurer(ABC):
    """A measurer; those for one process or another differ in how they load a candidate and run it.

    Args:
        name: of what is measured, for messages.
        default: the config whose outputs are right; it is run before any other where outputs are compared.
        check: how outputs are compared.
        tell_reads: called once, with the names of the arguments that the kernel both reads and writes.
        tell_error: called at the end with the first config, and its error, that raised something which is neither a
            compiler's nor a device's refusal.
    """

    repeatable = True
    explored_s = saved_s = 0.0

    def __init__(
        self,
        *,
        name: str,
        default: Config,
        check: Check,
        tell_reads: Callable[[Sequence[str]], None] | None = None,
        tell_error: Callable[[Config, str], None] | None = None,
    ) -> None:
        self.name = name
        self.measured = 0  # how many configs were to be timed, whatever came of it
        self._default = default
        self._check = check
        self._tell_reads = tell_reads
        self._tell_error = tell_error
        self._expected: Outputs | None = None
        self._blank: tuple[int, ...] = ()
        self._default_tried = self._default_ran = False
        self._default_raised = ""
        self._ran = False  # any config
        self._unexpected: tuple[Config, str] | None = None
        self._lost = ""
        self._warned = False  # that nothing can be compared
        self._detected = False

    def __enter__(self) -> BaseMeasurer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        # Where no config ran, it is the call that is wrong, and its launch raises the same.
        if kind is None and self._unexpected is not None and self._ran and self._tell_error is not None:
            self._tell_error(*self._unexpected)

    @abstractmethod
    def close(self) -> None:
        """Give back what was held for measuring."""

    @abstractmethod
    def attempt(self, config: Config) -> AbstractContextManager[Attempt]:
        """Load a candidate."""

    def _prepare_detection(self) -> bool:
        """Get ready to run the default twice, which tells what the kernel writes and reads; False where nobody asks."""
        return self._check is not None or self._tell_reads is not None

    def prepare(self) -> None:  # noqa: B027  # nothing need be
        """See `Measurer.prepare`."""

    def skip_default(self) -> None:
        """The default is known to take its process down: it is not to be run, not even to compare others with."""
        self._default_tried = True

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        """Time one built config, no further than is of use.

        Raises:
            AutotuneError: nothing can be measured here: an argument that cannot be copied, no child process to be had, a
                check that fails on the default itself, a context lost to an earlier candidate.
        """
        if self._lost:
            raise DeviceLostError(self._lost)
        self.measured += 1
        if config != self._default and not self._default_tried and self._prepare_detection():
            self._try(self._default, timed=False)
        if config != self._default and self._check is not None and self._expected is None and not self._warned:
            self._warned = True
            log.warning("%s: the default config does not run: nothing can be compared with it", self.name)
        return cast("Outcome", self._try(config, limits, timed=True))

    def verify(self, config: Config) -> Failure | None:
        """Run a config once beside the default, on arguments as when measuring: why it must not be used, None if it may.

        None, too, where there is nothing to compare: without a check, or where the default does not run.
        """
        if self._check is None or isinstance(self._try(self._default, timed=False), Failure):
            return None
        outcome = self._try(config, timed=False)
        return outcome if isinstance(outcome, Failure) else None

    @property
    def can_compare(self) -> bool:
        """Whether outputs of the default are there to be compared with, once it was run; True where nothing is compared."""
        return self._check is None or self._expected is not None

    def _try(
        self,
        config: Config,
        limits: TimingLimits = IN_FULL,
        *,
        timed: bool,
        again: bool = False,
    ) -> Outcome | None:
        """Run a config and time it; None where it runs, is right and was not to be `timed`."""
        trying = _Trying(config=config, is_default=config == self._default, began=time.perf_counter())
        self._default_tried |= trying.is_default
        try:
            outcome = self._run_and_time(trying, limits, timed=timed)
        except (UnportableError, WorkersUnavailableError, CheckError):
            raise
        except WorkerKilledError as err:
            if not again:  # of the default above all: nothing could be compared with it in the whole run
                log.warning("%s: %s was stopped from outside (%s): it is tried once more", self.name, config, err)
                return self._try(config, limits, timed=timed, again=True)
            return trying.failure(f"stopped from outside, twice: {err}", transient=True)
        except (Exception, SystemExit) as err:
            return self._failure_of(trying, err)
        if not isinstance(outcome, Measurement):
            return outcome
        return replace(outcome, run_s=round(time.perf_counter() - trying.began, 6))

    def _run_and_time(self, trying: _Trying, limits: TimingLimits, *, timed: bool) -> Measurement | Failure | None:
        """Run, compare and time. What a candidate raises is raised."""
        # Writes are detected once, at the first config that runs: the default, unless that one does not.
        trying.detect = self._prepare_detection() and not self._detected and self._default_tried
        with self.attempt(trying.config) as attempt:
            trying.stage = "launch"
            compared = self._check is not None and (trying.is_default or self._expected is not None)
            blank = () if trying.detect else self._blank
            ran = attempt.run(detect=trying.detect, blank=blank, compared=compared)
            if ran.overrun:
                return trying.failure(ran.overrun, stage="check")
            self._ran = True
            self._default_ran |= trying.is_default
            if trying.detect:
                self._learn(ran, trying.is_default)
            elif not trying.is_default and (wrong := self._wrong(ran)):
                return trying.failure(wrong, stage="check")
            measurement = attempt.time(limits) if timed else None
            if measurement is not None and not trying.is_default and self._expected is not None:
                # Once more: timing may have left a counter of its own that is no longer zero.
                ran = attempt.run(detect=False, blank=self._blank, compared=True)
                if wrong := ran.overrun or self._wrong(ran):
                    return trying.failure(f"right at first, but after it was timed: {wrong}", stage="check")
        return measurement

    def _failure_of(self, trying: _Trying, err: BaseException) -> Failure:
        """The failure that an exception means.

        Raises:
            CheckError: nothing can be compared, whatever the config.
            BaseException: what a handler of signals has raised.
        """
        if raised_by_signal_handler(err):
            raise err
        message = str(err)
        if isinstance(err, OutputsError):
            if trying.is_default:
                name = check_name(self._check)
                raise CheckError(f"check={name} of {self.name} cannot compare outputs: {err}") from err
            return trying.failure(message, stage="check")
        if isinstance(err, WorkerTimeoutError):
            # A slow default is a call that takes long, not one that must not be made.
            return trying.failure(message, stage="timeout", crashed=not trying.is_default)
        if isinstance(err, WorkerDiedError):
            return trying.failure(message, crashed=True)
        if isinstance(err, WorkerMemoryError):
            return trying.failure(message, transient=True)
        if isinstance(err, DeviceLostError):
            self._lost = f"{trying.config} took the device's context of this process with it: {err}"
            return trying.failure(message, crashed=True)
        if isinstance(err, WorkerRaisedError):
            return self._raised(trying, message)
        if isinstance(err, InvalidInputError):  # a candidate's own words for what it does not take
            return self._raised(trying, raised(err))
        if isinstance(err, AutotuneError):
            return trying.failure(message, stage="compile", transient=True)
        # A driver, a hook, a kernel: whatever raised it, another config may run.
        if trying.is_default and trying.detect and of_memory(err):
            raise CheckError(f"{self.name} is tried on copies of its arguments, and memory is short: {err}") from err
        return self._raised(trying, raised(err))

    def _wrong(self, ran: RunResult) -> str | None:
        """How what a candidate produced differs from what the default did, where that is known."""
        if self._expected is None or ran.outputs is None:
            return None
        return compare(self._check, ran.outputs, self._expected)

    def _learn(self, ran: RunResult, is_default: bool) -> None:
        """Keep what the first run of a config that runs has shown."""
        self._detected = True
        if self._check is not None and is_default and ran.outputs is not None:
            if not ran.outputs.tensors and not ran.outputs.gradients and ran.outputs.form == NOTHING:
                raise CheckError(
                    f"check={check_name(self._check)} of {self.name} has nothing to compare: the default config was not "
                    "seen to write or return anything (of integers, results that were there before do not show)"
                )
            if not callable(self._check) and (opaque := opaque_in(ran.outputs.form)):
                raise CheckError(
                    f"check={check_name(self._check)} of {self.name} cannot look into what the default config returns, a "
                    f"{opaque}: return tensors, numbers and containers of them, or give check= as a callable"
                )
            if wrong := compare(self._check, ran.outputs, ran.outputs):
                raise CheckError(
                    f"check={check_name(self._check)} of {self.name} fails on the default config's own outputs ({wrong}): "
                    "mend it, or leave it out"
                )
            self._expected = ran.outputs
            self._blank = ran.blank
        if ran.reads and self._tell_reads is not None:
            self._tell_reads(ran.reads)

    def _raised(self, trying: _Trying, message: str) -> Failure:
        """The failure of a candidate that raised.

        It is the config's own where the device refuses it, or where the default ran and this one does not. What the
        default raises too, what is raised before the default has run, and a lack of memory may have another cause.
        """
        of_the_config = is_of_the_config(message)
        if trying.is_default:
            self._default_raised = message
        shared = message == self._default_raised or not self._default_ran
        if not (of_the_config or says_of_memory(message)):
            self._unexpected = self._unexpected or (trying.config, message)
        return trying.failure(
            message,
            stage="resources" if message.startswith("OutOfResources") else None,
            transient=(shared or says_of_memory(message)) and not of_the_config,
        )


@dataclass(slots=True, kw_only=True)
class _Trying:
    """A config that is being tried, and how far that has come."""

    config: Config
    is_default: bool
    began: float  # by `time.perf_counter`
    stage: Stage = "load"
    detect: bool = False  # it is run more than once, to learn what it writes and reads

    def failure(
        self, message: str, *, stage: Stage | None = None, crashed: bool = False, transient: bool = False
    ) -> Failure:
        """A failure at this stage, unless another is given, that cost the time so far."""
        cost_s = time.perf_counter() - self.began
        return Failure(stage=stage or self.stage, message=message, cost_s=cost_s, crashed=crashed, transient=transient)
