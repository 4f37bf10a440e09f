"""Mode `online`: a key is launched at once on the best known, and what follows is learned from its own calls.

The tuning loop runs in a thread of the key's own. It asks for configs to be compiled in the background and for times, which
`measure.real_calls` takes from the calls that come anyway. Of all these threads one works at a time; the others wait, for a
compiler or for calls.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import math
import os
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..core.config import Config
from ..core.decision import Decision
from ..core.forecast import Abstention
from ..core.job import Compile, Measure, Stop, View
from ..core.outcome import Evidence, Failure
from ..errors import AutotuneError
from ..measure.base import of_memory, raised
from ..measure.real_calls import LearningEndedError, RealCalls
from ..measure.turns import Turn
from ..protocols import Compiler, Policy, Store, without_limit
from ..tuning.policies import StoredOnly
from .tuning_lock import tuning_lock

log = logging.getLogger(__name__)

QUIET_S = 0.5  # after the first call of the newest key: a program's first step meets key after key, and needs the CPU
MOST_QUIET_S = 30.0  # threads wait for that
MOST_THREADS = 128  # keys that are learned at once; further ones wait for the end of one
MOST_TIMES = 16.0  # times the default's: an expected time beyond this counts as this
LEAVE_S = 2.0  # for threads to end with the process

_Result = TypeVar("_Result")


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

    def decided(self, decision: Decision, store: Store, *, seconds: float) -> None:
        """Tell whoever listens."""


class Learning:
    """What the calls of one key teach while it is undecided.

    Args:
        calls: takes the times.
        launcher: makes calls under a config of the job.
        compared, is_built_for: see `Learnable`.
        decide: runs the loop, in the key's thread; its result is what the key runs from then on.
    """

    def __init__(
        self,
        calls: RealCalls,
        launcher: Callable[[Config], Any],
        compared: Callable[[Config, Any], Failure | None],
        is_built_for: Callable[[Any], bool],
        decide: Callable[[], None],
    ) -> None:
        self.calls = calls
        self._launcher, self._compared, self._is_built_for = launcher, compared, is_built_for
        self.decide = decide
        self.meets_others = False
        """Whether calls came that teach nothing."""

    def teaches(self, call: Any) -> bool:
        """Whether configs are built for a call: one that is not would wait for a compiler under each that it tries."""
        try:
            built = self._is_built_for(call)
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
        """Whether a turn may launch its config: one that does not compute what the default does is out."""
        if not turn.to_compare:
            return True
        began = time.perf_counter()
        try:
            failure = self._compared(turn.config, call)
        except Exception as err:  # such as memory that is short for copies: what is not compared is not tried
            log.debug("%s is not compared", turn.config, exc_info=True)
            failure = Failure(stage="check", message=f"it cannot be compared with the default: {err}", transient=True)
        except BaseException:
            turn.drop()
            raise
        turn.compared_us = (time.perf_counter() - began) * 1e6
        if failure is not None:
            turn.failed(failure.message, transient=failure.transient, stage=failure.stage)
        return failure is None

    def run(self, turn: Turn | None, launcher: Any, make: Callable[[Any], _Result]) -> _Result:
        """Make a call in its turn; where a candidate raises, under the best known config instead.

        Args:
            turn: None for a call that teaches nothing.
            launcher: of the config that the call runs.
            make: makes the call by a launcher.
        Raises:
            Exception: what the call raises: under the best known config too, where a candidate was tried.
        """
        if turn is None:
            return make(launcher)
        try:
            turn.begin()
            if turn.dropped:
                return make(self.best())
            try:
                result = make(launcher)
            except Exception as err:
                turn.note_host()
                if turn.trial is None or _is_the_programs(err):
                    raise
                return self._make_otherwise(turn, err, make)
            turn.end()
            return result
        except BaseException:  # nothing is held for a call that is over
            turn.drop()
            raise

    def _make_otherwise(self, turn: Turn, err: Exception, make: Callable[[Any], _Result]) -> _Result:
        """Make a call under the best known config, for its candidate has raised."""
        try:
            result = make(self.best())
        except Exception:
            turn.failed(raised(err), transient=True)  # where this raises too, it is the call
            raise
        turn.failed(raised(err), transient=of_memory(err))
        return result

    def best(self) -> Any:
        """The launcher of the best known config."""
        return self._launcher(self.calls.incumbent)


def _is_the_programs(err: BaseException) -> bool:
    """Whether a handler of signals has raised: that is the program's, and the kernel may have been launched before."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    frames = traceback.walk_tb(err.__traceback__)
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in frames)


def compare_on_copies(measuring: AbstractContextManager[Any], config: Config) -> Failure | None:
    """Why a candidate must not be launched, by a comparison with the default on copies of a call's arguments.

    Args:
        measuring: gives the measurer that compares.
    Raises:
        AutotuneError: they cannot be compared now.
    """
    with tuning_lock.held_unless_slow() as locked, tuning_lock.slow(locked), measuring as measurer:
        if not locked:
            raise AutotuneError("another thread is timing")
        failure: Failure | None = measurer.verify(config)
        if not measurer.can_compare:
            raise AutotuneError("the default does not run on copies")
        return failure


class RememberingPolicy:
    """A policy whose last view is remembered, so that what a candidate may cost is known before it is launched.

    Args:
        may_go_on: whether more configs may be tried; asked before each choice.
    """

    def __init__(self, may_go_on: Callable[[], bool] = lambda: True) -> None:
        self.policy: Policy = StoredOnly()
        self._may_go_on = may_go_on
        self._view: View | None = None

    def step(self, view: View) -> Compile | Measure | Stop:
        """What the policy says.

        Raises:
            LearningEndedError: nothing more is to be tried.
        """
        if not self._may_go_on():
            raise LearningEndedError
        self._view = view
        at_work.pause()
        return self.policy.step(view)

    def expected(self, config: Config) -> float | None:
        """A config's expected time as a multiple of the default's; None where it is not forecast."""
        view = self._view
        if view is None or config not in view.space:
            return None
        index = view.space.index(config)
        forecast = view.forecasts[index] if index < len(view.forecasts) else None
        return None if forecast is None or isinstance(forecast, Abstention) else forecast.expected_time(MOST_TIMES)


class InBackground:
    """A compiler for a thread that nobody waits for: other such threads work while it waits, and it ends with the process.

    A config that the compiler says will spill more registers than the default does is not tried on a real call.
    """

    overlaps_timing = True

    def __init__(self, compiler: Compiler, default: Config, calls: RealCalls) -> None:
        self._compiler = compiler
        self._default = default
        self._calls = calls
        self._spilled_by_default: int | None = None

    @property
    def workers(self) -> int:
        """See `Compiler`."""
        return self._compiler.workers

    def paused(self) -> AbstractContextManager[None]:
        """See `Compiler`: nothing is paused, for real calls take what the machine gives them."""
        return contextlib.nullcontext()

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        patience_s: Callable[[], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """See `Compiler.compile`."""

        def patience() -> float:
            seconds = patience_s()
            at_work.leave()
            return seconds

        building = self._compiler.compile(configs, workers=workers, patience_s=patience)
        with contextlib.closing(building):
            while True:
                try:
                    built = next(building, None)
                finally:
                    at_work.enter()
                if self._calls.over:
                    raise LearningEndedError
                if built is None:
                    return
                yield built[0], self._worth(*built)

    def _worth(self, config: Config, built: Evidence | Failure) -> Evidence | Failure:
        if isinstance(built, Failure):
            return built
        if config == self._default:
            self._spilled_by_default = built.spill_bytes
        spilled, usual = built.spill_bytes or 0, self._spilled_by_default or 0
        if spilled <= usual:
            return built
        message = f"it spills {spilled} bytes of registers, the default {usual}: not tried in a real call"
        return Failure(stage="resources", message=message, cost_s=built.compile_s, transient=True)


class AtWork:
    """Held by the one thread of all that learn which works now; the others wait for compilers, for calls, or for it.

    Of those that wait for it the one that began first is next, so that first keys are decided while later ones still wait.
    It alone is woken: a thread that wakes beside a program that is busy in Python waits up to 5 ms for the interpreter.
    After work there is a pause, in which none works, so that all together take no more than a `share` of one core's time:
    Python code of the program waits for its interpreter meanwhile.
    """

    share = 1.0

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Held by nobody."""
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: dict[int, threading.Lock] = {}  # by number: locked until its turn
        self._numbers = itertools.count()
        self._mine = threading.local()  # `number`, and whether it is `held`
        self._since_s = self._ready_at = 0.0
        self.over = threading.Event()

    def enter(self) -> None:
        """Wait until no other one works; nothing where this thread does already."""
        if getattr(self._mine, "held", False):
            return
        turn = threading.Lock()
        with self._lock:
            if not hasattr(self._mine, "number"):
                self._mine.number = next(self._numbers)
            if self._is_held:
                turn.acquire()
                self._waiting[self._mine.number] = turn
            self._is_held = True
        with turn:  # whoever leaves lets this one go on
            self._mine.held = True
        self._begin_work()

    def leave(self) -> None:
        """Let others work."""
        if getattr(self._mine, "held", False):
            self._end_work()
            self._mine.held = False
            with self._lock:
                if self._waiting:
                    self._waiting.pop(min(self._waiting)).release()
                else:
                    self._is_held = False

    def pause(self) -> None:
        """In the midst of work, let threads work that began before this one; nothing where this thread does not work."""
        if not getattr(self._mine, "held", False):
            return
        with self._lock:
            is_next = self._mine.number < min(self._waiting, default=math.inf)
        if is_next:
            self._end_work()
            self._begin_work()
        else:
            self.leave()
            self.enter()

    def _begin_work(self) -> None:
        if (pause_s := self._ready_at - time.monotonic()) > 0:
            self.over.wait(pause_s)
        self._since_s = time.thread_time()

    def _end_work(self) -> None:
        worked_s = time.thread_time() - self._since_s
        self._ready_at = time.monotonic() + worked_s * (1 / self.share - 1)

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Others may work while this is held."""
        self.leave()
        try:
            yield
        finally:
            self.enter()


at_work = AtWork()


class Learners:
    """The threads of this process that learn keys."""

    def __init__(self) -> None:
        self._reset()
        self._met_at = 0.0

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Learning, threading.Thread] = {}
        self._waiting: deque[Learning] = deque()
        self._known: weakref.WeakSet[Learning] = weakref.WeakSet()
        self._registered = False
        self.frozen = False

    def start(self, learning: Learning) -> None:
        """Learn a key, now or when there is room."""
        with self._lock:
            self._met_at = time.monotonic()
            if not self._registered:
                self._registered = True
                atexit.register(self.end)  # after the pool's: what begins last ends first
            self._known.add(learning)
            self._waiting.append(learning)
            self._fill()

    def _fill(self) -> None:
        """Begin as many threads as may be. Called under the lock."""
        while self._waiting and len(self._threads) < MOST_THREADS:
            learning = self._waiting.popleft()
            thread = threading.Thread(target=self._learn, args=(learning,), name="forecast_autotune-learn", daemon=True)
            self._threads[learning] = thread
            try:
                thread.start()
            except RuntimeError as err:  # the process ends, or may have no more threads
                log.info("a key is not learned: %s", err)
                del self._threads[learning]
                return

    def _learn(self, learning: Learning) -> None:
        try:
            at_work.enter()  # it takes a number: the first key is the first to be worked on
            at_work.leave()
            self._await_quiet(learning)
            at_work.enter()
            learning.decide()
        except LearningEndedError:
            pass
        except BaseException as err:  # in a thread: whoever calls the kernel goes on with the best that is known
            log.warning("learning a key from its calls ended: %s: %s", type(err).__name__, err, exc_info=True)
        finally:
            learning.calls.end()
            at_work.leave()
            with self._lock:
                self._threads.pop(learning, None)
                self._fill()

    def _await_quiet(self, learning: Learning) -> None:
        """Wait until every key that was met has been launched, and no new one was met for a while."""
        ends = time.monotonic() + MOST_QUIET_S
        while not (learning.calls.over or at_work.over.is_set()) and (now := time.monotonic()) < ends:
            if now >= self._met_at + QUIET_S:
                with self._lock:
                    known = list(self._known)
                if all(each.calls.is_met for each in known):
                    return
                self._met_at = now
            at_work.over.wait(min(self._met_at + QUIET_S, ends) - now)

    def end(self) -> None:
        """Learn nothing more: every undecided key stays with the best that is known."""
        with self._lock:
            self._waiting.clear()
            threads = list(self._threads.values())
            known = list(self._known)
        for learning in known:
            learning.calls.end()
        at_work.over.set()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(LEAVE_S)

    def freeze(self) -> None:
        """Learn nothing more, of keys that are met later either."""
        self.frozen = True
        self.end()

    def after_fork_in_child(self) -> None:
        """The threads are the parent's: its keys are learned there."""
        known, frozen = list(self._known), self.frozen
        self._reset()
        self.frozen = frozen
        at_work.begin()
        for learning in known:
            learning.calls.after_fork_in_child()


learners = Learners()


def freeze() -> None:
    """End exploring in this process: in mode `online`, no call tries a config from now on.

    Keys that are decided keep their decision, all others run the best known config. What was timed is stored. Ends within
    a few seconds, also while configs compile; `forecast-autotune freeze` does the same for all programs with a store.
    """
    learners.freeze()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=learners.after_fork_in_child)
