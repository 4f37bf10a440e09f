"""What the calls of a key teach while it is undecided, and how a call is made that tries a config."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ...core.config import Config
from ...core.config_errors import of_memory, raised
from ...core.decision import Decision
from ...core.outcome import Failure
from ...core.signal_handlers import raised_by_signal_handler
from ...errors import AutotuneError
from ...measure.call_turns import Turn
from ...measure.observers import unobserved, unpack_hook
from ...measure.real_calls import RealCalls
from ...protocols import Compiler, Store
from ..tuning_lock import tuning_lock

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class AnotherThreadError(AutotuneError):
    """Another thread is timing, or comparing, at this moment."""


class Learnable(Protocol):
    """A call as far as it is kept once it is over, to learn its key: no tensor of it."""

    @property
    def compiler(self) -> Compiler:
        """Builds the job's configs, for nobody who waits."""

    compares: bool
    """Whether candidates are compared with the default before their first launch."""

    @property
    def new_event(self) -> Callable[[], Any]:
        """Makes an event of the device; see `call_events.Event`."""

    keep_busy: Callable[[float], object] | None
    """Keeps the device busy for so many seconds; see `HeadStart`."""

    @property
    def on_host(self) -> bool:
        """Whether a call is done when it returns; see `RealCalls`."""

    def launcher(self, config: Config) -> Any:
        """Makes calls of the key under a config."""

    def load(self, config: Config) -> bool:
        """Make a built config ready to launch, once, and tell whether it is; it may raise what a launch would."""

    def is_built_for(self, call: Any) -> bool:
        """Whether `compiler` builds what a call runs: another of the same key may be compiled apart, for a flag perhaps."""

    def for_other_calls(self) -> Iterable[tuple[Compiler, Callable[[Config], None]]]:
        """Calls that `is_built_for` has refused, as what builds and what loads a config for them."""

    def may_compare(self) -> bool:
        """Whether the device has nothing to do, so that comparing a candidate with the default waits for nothing else."""

    def compared(self, config: Config, call: Any) -> Failure | None:
        """Why a candidate must not be launched, by a comparison with the default on copies of a call's arguments."""

    def tell_listeners(self, decision: Decision, store: Store, *, seconds: float) -> None:
        """Tell whoever listens."""


class Learning:
    """What the calls of one key teach while it is undecided.

    Args:
        calls: takes the times.
        launcher: makes calls under a config of the job.
        compared, is_built_for: see `Learnable`.
        decide: runs the loop, in the key's thread; its result is what the key runs from then on.
        settle: has the key hold no more of this once it is over.
    """

    def __init__(
        self,
        calls: RealCalls,
        launcher: Callable[[Config], Any],
        compared: Callable[[Config, Any], Failure | None],
        is_built_for: Callable[[Any], bool],
        decide: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.calls = calls
        self._launcher, self._compared, self._is_built_for = launcher, compared, is_built_for
        self.decide = decide
        self._settle = settle
        self.called_at = time.monotonic()
        """When the key was called last, as far as its calls ask what to run."""
        self.meets_others = False
        """Whether calls came that teach nothing."""

    def choose(
        self, call: Any, first: Any, *, may_teach: Callable[[], bool], stream: Callable[[], Hashable]
    ) -> tuple[Turn | None, Any]:
        """What a call of the key runs: its turn, None where it teaches nothing, and the launcher of a config.

        Args:
            first: the launcher with which the key began. Calls for which candidates are not built stay with it.
            may_teach: whether the call may be timed; else it runs the best known config.
            stream: names the stream that the call is made on.
        """
        if not self.teaches(call):
            return None, first
        if not may_teach():
            return None, self.best()
        turn, launcher = self.turn(stream())
        return (turn, launcher) if self.passes(turn, call) else (None, self.best())

    def teaches(self, call: Any) -> bool:
        """Whether a call may try configs: they are built for it, and nothing keeps what it saves for a backward pass.

        A call for which they are not built would wait for a compiler under each that it tries. A checkpoint makes a call
        again, and both must save the same.
        """
        self.called_at = time.monotonic()
        try:
            built = self._is_built_for(call) and unpack_hook() is None
        except Exception:  # the launch will raise it, too
            log.debug("a call is not looked into", exc_info=True)
            built = False
        self.meets_others |= not built
        return built

    def turn(self, stream: Hashable) -> tuple[Turn, Any]:
        """What the next call of the key runs: a turn, and the launcher of its config."""
        turn = self.calls.turn(stream)
        return turn, self._launcher(turn.config)

    def passes(self, turn: Turn, call: Any) -> bool:
        """Whether a turn may launch its config, now: one that does not compute what the default does is out."""
        if not turn.to_compare:
            return True
        began = time.perf_counter()
        try:
            failure = self._compared(turn.config, call)
        except AnotherThreadError:
            turn.compare_later()
            return False
        except Exception as err:  # such as memory that is short for copies: what is not compared is not tried
            if raised_by_signal_handler(err):
                turn.give_up_timing()
                raise
            log.debug("%s is not compared", turn.config, exc_info=True)
            failure = Failure(stage="check", message=f"it cannot be compared with the default: {err}", transient=True)
        except BaseException:
            turn.give_up_timing()
            raise
        turn.compared_us = (time.perf_counter() - began) * 1e6
        if failure is not None:
            turn.failed(failure.message, transient=failure.transient, stage=failure.stage)
        return failure is None

    def run(
        self,
        turn: Turn | None,
        launcher: Any,
        make: Callable[[Any], _Result],
        watch: Callable[[], Callable[[], bool]] = lambda: lambda: False,
    ) -> _Result:
        """Make a call in its turn; where a candidate raises, under the best known config instead.

        Args:
            turn: None for a call that teaches nothing.
            launcher: of the config that the call runs.
            make: makes the call by a launcher.
            watch: called before the call, it gives what tells whether the call has written to its arguments or to state.
                A call that has, before its candidate raised, is not made again.
        Raises:
            Exception: what the call raises: under the best known config too, where a candidate was tried.
        """
        if turn is None:
            return make(launcher)
        try:
            has_written = None if turn.trial is None else watch()  # takes time, which is not the candidate's
            turn.begin()
            if turn.given_up:
                return make(self.best())
            try:
                result = make(launcher)
            except Exception as err:
                turn.note_host()
                if has_written is None or raised_by_signal_handler(err):  # it may have been launched before
                    raise
                if has_written():
                    turn.failed(raised(err), transient=True)
                    raise
                return self._make_otherwise(turn, err, make)
            turn.end()
            return result
        except BaseException:  # nothing is held for a call that is over
            turn.give_up_timing()
            raise

    def _make_otherwise(self, turn: Turn, err: Exception, make: Callable[[Any], _Result]) -> _Result:
        """Make a call under the best known config, for its candidate has raised."""
        try:
            result = make(self.best())
        except Exception as another:
            if raised(another) == raised(err):  # it is the call
                turn.give_up_timing()
            else:
                turn.failed(raised(err), transient=True)
            raise
        turn.failed(raised(err), transient=of_memory(err))
        return result

    def end(self, *, makes_way: bool = False) -> None:
        """Learn nothing more; a key that makes way is taken up again at its next call."""
        self.calls.made_way |= makes_way
        self.calls.end()
        self._settle()

    def best(self) -> Any:
        """The launcher of the best known config."""
        return self._launcher(self.calls.incumbent)


def compare_on_copies(measuring: AbstractContextManager[Any], config: Config) -> Failure | None:
    """Why a candidate must not be launched, by a comparison with the default on copies of a call's arguments.

    Args:
        measuring: gives the measurer that compares.
    Raises:
        AnotherThreadError: another thread is timing: a later call may be compared.
        AutotuneError: they cannot be compared.
    """
    with tuning_lock.held_unless_slow() as locked, tuning_lock.slow(locked), unobserved(), measuring as measurer:
        if not locked:
            raise AnotherThreadError("another thread is timing")
        failure: Failure | None = measurer.verify(config)
        if not measurer.can_compare:
            raise AutotuneError("the default does not run on copies")
        return failure
