"""What every measurer does around a candidate: outputs compared with the default's, errors put down to who caused them."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome
from ..errors import AutotuneError, InvalidInputError
from ..workers import WorkerDiedError, WorkerKilledError, WorkerRaisedError, WorkerTimeoutError, WorkshopError
from .arguments import UnportableError
from .checks import Check, check_name, disagreement
from .surroundings import ends_the_program

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_OF_THE_CONFIG = ("OutOfResources", "CompilationError", "PTXASError")
"""Triton's classes by name, so that nothing is imported; `CompileTimeAssertionFailure` is a `CompilationError`."""


class DeviceLostError(AutotuneError):
    """A candidate took the device's context with it: nothing can be launched in this process any more."""


class MemoryShortError(AutotuneError):
    """A candidate was ended before it took the last memory there was; how much that is, others have a part in."""


class CheckError(AutotuneError):
    """The check does not pass the default config's own outputs, so it can tell nothing about other configs'."""


def is_of_the_config(err: BaseException) -> bool:
    """Whether an error is the config's own doing, and would come again wherever it is compiled or launched alike."""
    return raised(err).partition(":")[0] in _OF_THE_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one run of a candidate showed.

    With a look (see `Attempt.run`): `reads` names arguments that the kernel both reads and writes, `blank` holds the
    indices of those that can be blanked before a run.
    """

    outputs: Sequence[torch.Tensor]
    overrun: str | None = None
    first_us: float = math.nan
    blank: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()


class Attempt(Protocol):
    """A candidate that is loaded."""

    def run(self, *, look: bool, blank: Sequence[int], compared: bool) -> Ran:
        """Run it on pristine arguments and put them back.

        With `look`, run it again to learn what it reads of what it writes. Else the arguments in `blank` are filled with
        NaN first. Its outputs are copied where they are to be `compared`.
        """

    def time(self, hopeless_us: float) -> Measurement:
        """Time it; one sample only where that shows more than `hopeless_us`."""


class Measuring(ABC):
    """A measurer; those for one process or another differ in how they load a candidate and run it.

    Args:
        name: of what is measured, for messages.
        default: the config whose outputs are right; it is run before any other where outputs are compared.
        check: how they are.
        tell_reads: told once of the arguments that the kernel both reads and writes.
    """

    repeatable = True

    def __init__(
        self,
        *,
        name: str,
        default: Config,
        check: Check,
        tell_reads: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self.name = name
        self.measured = 0  # how many configs were to be timed, whatever came of it
        self._default = default
        self._check = check
        self._tell_reads = tell_reads
        self._expected: Sequence[torch.Tensor] | None = None
        self._blank: tuple[int, ...] = ()
        self._default_tried = self._default_ran = False
        self._default_raised = ""
        self._lost = ""
        self._told = False  # that nothing can be compared
        self._looked = False

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back what was held for measuring."""

    @abstractmethod
    def attempt(self, config: Config) -> AbstractContextManager[Attempt]:
        """Load a candidate."""

    @property
    def looks(self) -> bool:
        """Whether the default is run twice to learn what the kernel writes, and reads of that."""
        return self._check is not None or self._tell_reads is not None

    def spare_default(self) -> None:
        """The default is known to take its process down: it is not to be run, not even to compare others with."""
        self._default_tried = True

    def measure(self, config: Config, *, hopeless_us: float = math.inf) -> Outcome:
        """Time one built config, one sample only where that shows more than `hopeless_us`.

        Raises:
            AutotuneError: nothing can be measured here: an argument that cannot be copied, no child process to be had, a
                check that fails on the default itself, a context lost to an earlier candidate.
        """
        if self._lost:
            raise DeviceLostError(self._lost)
        self.measured += 1
        if config != self._default and not self._default_tried and self.looks:
            self._try(self._default, math.inf, timed=False)
        if config != self._default and self._check is not None and self._expected is None and not self._told:
            self._told = True
            log.warning("%s: the default config does not run: nothing can be compared with it", self.name)
        return self._try(config, hopeless_us, timed=True)

    def _try(self, config: Config, hopeless_us: float, *, timed: bool, again: bool = False) -> Outcome:
        is_default = config == self._default
        self._default_tried |= is_default
        look = (
            self.looks and not self._looked and self._default_tried
        )  # at the first that runs, the default before others
        began = time.perf_counter()
        stage = "load"

        def failure(stage: str, message: str, *, crashed: bool = False, transient: bool = False) -> Failure:
            cost_s = time.perf_counter() - began
            return Failure(stage=stage, message=message, cost_s=cost_s, crashed=crashed, transient=transient)

        try:
            with self.attempt(config) as attempt:
                stage = "launch"
                compared = self._check is not None and (is_default or self._expected is not None)
                ran = attempt.run(look=look, blank=() if look else self._blank, compared=compared)
                if ran.overrun:
                    return failure("check", ran.overrun)
                self._default_ran |= is_default
                if look:
                    self._learn(ran, is_default)
                elif not is_default and self._expected is not None:
                    wrong = disagreement(self._check, ran.outputs, self._expected)
                    if wrong:
                        return failure("check", wrong)
                measurement = attempt.time(hopeless_us) if timed else None
                compared = measurement is not None and not is_default and self._expected is not None
                if compared and (found := self._spoilt(attempt)):
                    return failure("check", f"right at first, but after it was timed: {found}")
        except (UnportableError, WorkshopError, CheckError):
            raise
        except WorkerTimeoutError as err:
            # A slow default is a call that takes long, not one that must not be made.
            return failure("timeout", str(err), crashed=not is_default)
        except WorkerKilledError as err:
            if not again:  # of the default above all: nothing could be compared with it in the whole run
                log.warning("%s: %s was stopped from outside (%s): it is tried once more", self.name, config, err)
                return self._try(config, hopeless_us, timed=timed, again=True)
            return failure(stage, f"stopped from outside, twice: {err}", transient=True)
        except WorkerDiedError as err:
            return failure(stage, str(err), crashed=True)
        except MemoryShortError as err:
            return failure(stage, str(err), transient=True)
        except DeviceLostError as err:
            self._lost = f"{config} took the device's context of this process with it: {err}"
            return failure(stage, str(err), crashed=True)
        except WorkerRaisedError as err:
            return self._raised(stage, str(err), is_default, began)
        except InvalidInputError as err:  # a candidate's own words for what it does not take
            return self._raised(stage, raised(err), is_default, began)
        except AutotuneError as err:
            return failure("compile", str(err), transient=True)
        except (Exception, SystemExit) as err:  # a driver, a hook, a kernel: whatever it is, another config may run
            if ends_the_program(err):
                raise
            if look and of_memory(err):
                return self._without_look(config, hopeless_us, err, timed=timed)
            return self._raised(stage, raised(err), is_default, began)
        if measurement is None:
            return failure("check", "not timed", transient=True)
        return replace(measurement, run_s=round(time.perf_counter() - began, 6))

    def _spoilt(self, attempt: Attempt) -> str | None:
        """What is wrong with a candidate that was right at first, such as one whose counters are zero only then."""
        ran = attempt.run(look=False, blank=self._blank, compared=True)
        return ran.overrun or disagreement(self._check, ran.outputs, self._expected or ())

    def _without_look(self, config: Config, hopeless_us: float, err: BaseException, *, timed: bool) -> Outcome:
        """Try a config again without the copies that a look takes, which memory was short for."""
        if self._check is not None:
            raise CheckError(
                f"check= of {self.name} takes copies of its arguments, and memory is short: {err}"
            ) from err
        log.warning("%s: memory is short for a look at what it writes (%s)", self.name, err)
        self._looked = True
        return self._try(config, hopeless_us, timed=timed)

    def _learn(self, ran: Ran, is_default: bool) -> None:
        """Keep what the first run of a config that runs has shown."""
        self._looked = True
        if self._check is not None and is_default:
            if not ran.outputs:
                raise CheckError(
                    f"check={check_name(self._check)} of {self.name} has nothing to compare: the default config was not "
                    "seen to write or return anything (of integers, results that were there before do not show)"
                )
            if wrong := disagreement(self._check, ran.outputs, ran.outputs):
                raise CheckError(
                    f"check={check_name(self._check)} of {self.name} fails on the default config's own outputs ({wrong}): "
                    "mend it, or leave it out"
                )
            self._expected = ran.outputs
            self._blank = ran.blank
        if ran.reads and self._tell_reads is not None:
            self._tell_reads(ran.reads)

    def _raised(self, stage: str, message: str, is_default: bool, began: float) -> Failure:
        """The failure of a candidate that raised.

        It is the config's own where the device refuses it, or where the default ran and this one does not. What the
        default raises too, and what is raised before the default has run, may have another cause, memory for one.
        """
        of_the_config = message.partition(":")[0] in _OF_THE_CONFIG
        if is_default:
            self._default_raised = message
        shared = is_default or message == self._default_raised or not self._default_ran
        return Failure(
            stage="resources" if message.startswith("OutOfResources") else stage,
            message=message,
            cost_s=time.perf_counter() - began,
            transient=shared and not of_the_config,
        )


def of_memory(err: BaseException) -> bool:
    """Whether memory ran out, of the host or of a device."""
    return isinstance(err, MemoryError) or "out of memory" in str(err).lower()


def raised(err: BaseException) -> str:
    """An exception in words, beginning with its class."""
    kinds = [k.__name__ for k in type(err).__mro__ if k.__name__ in _OF_THE_CONFIG]
    return f"{kinds[0] if kinds else type(err).__name__}: {err}"
