"""Times configs in real calls: a call of the key runs a candidate, between events that are read once they are done.

Nothing is launched twice, nothing is copied, and the device is never waited for.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..core.allowance import Allowance
from ..core.config import Config
from ..core.outcome import Measurement, Outcome, Stage
from ..core.timing_limits import IN_FULL, TimingLimits
from .call_account import CallAccount
from .call_events import Event
from .call_pairs import OpenPairs
from .call_reader import CallReader
from .call_schedule import CallSchedule
from .call_trial import CallTrial
from .call_turns import Turn
from .expected_cost import ExpectedCost
from .head_start import HeadStart
from .known_times import KnownTimes

FAR = 1.5  # times the incumbent's time: the default, which is a finalist however slow, is run no more
LOOK_S = 5.0  # between two looks whether a key that waits for calls is called at all

log = logging.getLogger(__name__)


class LearningEndedError(Exception):
    """Nothing more is to be learned from calls: the process ends, or exploring was ended."""


class RealCalls:
    """A measurer whose samples come from the calls of one key, in whatever threads and on whatever streams.

    `measure` waits, in a thread of its own, until calls have told enough. A call asks for its `turn`. It runs the
    incumbent, the best that is known, or the candidate that is being timed, as a `CallSchedule` has it; a `CallReader` reads
    it once it is done. What counts is the ratio within each pair of such calls. A candidate leaves as soon as it is slower
    beyond the noise. One that is faster beyond the noise is the incumbent from then on.

    Its lock guards all that the calls of the key share.

    Args:
        incumbent: what runs at first.
        default: the default config, for what was saved.
        allowance: what exploring may cost; see `Allowance`.
        share: of the time in tuned kernels that it may take.
        new_event: makes an event of the device.
        on_host: whether a call is done when it returns, so that the time it takes the host is its own.
        may_compare: whether this call may hold the program up to compare a candidate with the default, before the candidate
            is first launched; None where candidates are not compared.
        load: makes a config ready to launch in the thread of `measure`, so that no call is held up, and tells whether it is;
            it may raise. Asked for every measurement.
        expected: a candidate's expected time as a multiple of the default's; None where nobody says.
        seed: of the draws.
        keep_busy, is_idle: see `HeadStart`; for calls that take the host the same under every config.
        waiting: held while `measure` waits for calls.
        makes_way: takes for how many seconds no call has come, and tells whether to wait for calls no more.
        on_wanted: told when calls are to ask for turns again: one has something to tell, or all is over.
        on_better: told when another config is the best that is known; by the thread of `measure`, which holds no lock.
    """

    repeatable = True

    def __init__(
        self,
        *,
        incumbent: Config,
        default: Config,
        allowance: Allowance,
        share: float,
        new_event: Callable[[], Event],
        on_host: bool = False,
        may_compare: Callable[[], bool] | None = None,
        load: Callable[[Config], bool] = lambda _: False,
        expected: Callable[[Config], float | None] = lambda _: None,
        seed: int = 0,
        keep_busy: Callable[[float], object] | None = None,
        is_idle: Callable[[], bool] = lambda: False,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        makes_way: Callable[[float], bool] = lambda _: False,
        on_wanted: Callable[[], None] = lambda: None,
        on_better: Callable[[], None] = lambda: None,
    ) -> None:
        self.times = KnownTimes(incumbent, default)
        self.measured = 0
        self.over = False
        self.made_way = False
        self.waited_s = 0.0
        self.on_host = on_host
        self.head_start = HeadStart(keep_busy, is_idle, new_event)
        self._account = CallAccount(allowance, share)
        self._pairs = OpenPairs(self._account)
        cost = ExpectedCost(self.times, expected)
        self._reader = CallReader(
            times=self.times, account=self._account, cost=cost, pairs=self._pairs, head_start=self.head_start
        )
        self._schedule = CallSchedule(
            default=default,
            times=self.times,
            account=self._account,
            cost=cost,
            pairs=self._pairs,
            reader=self._reader,
            head_start=self.head_start,
            may_compare=may_compare,
            seed=seed,
        )
        self._new_event = new_event
        self._load = load
        self._waiting = waiting
        self._makes_way = makes_way
        self._on_wanted = on_wanted
        self._on_better = on_better
        self._has_given_up = False  # timing a call: it raised, or could not be timed
        self._is_choosing = False  # a handler of signals may launch the kernel while a call asks for its turn
        self._tried: set[Config] = set()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # The measurer ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Nothing is prepared here."""

    def skip_default(self) -> None:
        """See `Measurer`: the default is never run but by a call."""

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        """Wait until calls of the key have told enough of a config, whatever share is asked for. See `Measurer`.

        Raises:
            LearningEndedError: nothing more is to be learned.
        """
        final = limits.best_us == math.inf and config in self._tried
        self._tried.add(config)
        with self._lock:
            if final and config in self.times and self.times[config] > FAR * self.times.incumbent_us:
                return Measurement(samples_us=(self.times[config],))
        trial = CallTrial(config, limits.early_stop_us, final, self._wake_measure)
        try:
            trial.is_ready = self._load(config)
        except Exception as err:  # its first call says whether the config is to blame
            log.debug("%s is not loaded ahead: %s", config, err)
        began = time.perf_counter()
        with self._lock:
            self._schedule.trial = trial
        self._on_wanted()
        with self._waiting(), self._changed:
            turns, since_s = self._schedule.turns, time.monotonic()
            try:
                while trial.outcome is None:
                    if self._schedule.turns != turns:
                        turns, since_s = self._schedule.turns, time.monotonic()
                    self.made_way = not self.over and self._makes_way(time.monotonic() - since_s)
                    if self.over or self.made_way:
                        raise LearningEndedError
                    self._changed.wait(LOOK_S)
            finally:
                self._schedule.trial = None
                self.waited_s += time.perf_counter() - began
            outcome, is_better = trial.outcome, False
            if isinstance(outcome, Measurement):
                self.measured += not final
                is_better = config != self.incumbent and self.times.note(config, outcome)
                if is_better:
                    self._pairs.give_up_all()  # they are with the former incumbent
        if is_better:
            self._on_better()
        return outcome

    def _wake_measure(self) -> None:
        self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Wait while calls go on.

        Raises:
            LearningEndedError: nothing more is to be learned.
        """
        with self._waiting(), self._changed:
            self._changed.wait_for(lambda: self.over, seconds)
            if self.over:
                raise LearningEndedError

    def end(self) -> None:
        """Have every call run the incumbent from now on, and `measure` raise."""
        with self._changed:
            self.over = True
            self._reader.end()
            self._pairs.give_up_all()
            self._account.release_all()
            self._changed.notify_all()
        self._on_wanted()

    def after_fork_in_child(self) -> None:
        """Learn nothing more: the thread that asked is the parent's, and so are the events."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.over = True
        self._reader.after_fork_in_child()
        self._pairs.after_fork_in_child()
        self._schedule.after_fork_in_child()
        self._account.after_fork_in_child()

    @property
    def incumbent(self) -> Config:
        """The best config that is known, which calls run that try nothing."""
        return self.times.incumbent

    @property
    def explored_s(self) -> float:
        """Seconds that candidates took longer than what would have run."""
        return self._account.explored_s

    @property
    def saved_s(self) -> float:
        """Seconds that the calls that were timed took less than under the default config."""
        return self._account.saved_s

    @property
    def is_met(self) -> bool:
        """Whether a call has come to its end, or to nothing."""
        return self._schedule.has_run or self._has_given_up or self.over

    # Calls ----------------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether the next calls tell something: else they may run the incumbent without a turn, which takes the host less.

        What exploring may cost is reckoned by calls with a turn alone.
        """
        with self._lock:
            if self.over:
                return False
            has_level = self._schedule.has_run and self.times.has_begun
            return not has_level or self._schedule.trial is not None or bool(self._reader.pending or self._pairs)

    def turn(self, stream: Hashable = 0) -> Turn:
        """What a call runs."""
        with self._lock:
            if self.over or self._is_choosing:
                return Turn(self, self.incumbent, stream=stream)
            self._is_choosing = True
            try:
                turn = self._schedule.next_turn(self, stream)
                turn.stream = stream
            finally:
                self._is_choosing = False
            self._schedule.await_end(turn)
            return turn

    def compares(self, config: Config) -> bool:
        """Whether a candidate is compared with the default before its first launch here."""
        return self._schedule.compares(config)

    def beyond_usual(self, host_us: float) -> float:
        """What a first call takes the host that later ones will not."""
        if not self.on_host:
            return host_us
        return host_us - self.times.incumbent_us if self.times.has_begun else 0.0

    def events(self) -> tuple[Any, Any]:
        """Two events, used ones where there are any."""
        with self._lock:
            used = self._reader.take_used_events()
        return used or (self._new_event(), self._new_event())

    def launched(self, turn: Turn) -> None:
        """Take a call in; one that is timed is read at a later call."""
        with self._lock:
            self._schedule.note_launched(turn)
            if turn.timed and not self.over:
                self._reader.pending.append(turn)
            else:
                self._account.settle(turn.hold, 0.0 if turn.given_up else turn.lost_us)

    def failed(self, turn: Turn, message: str, *, transient: bool, stage: Stage = "launch") -> None:
        """End the trial of a candidate that does not run."""
        with self._lock:
            self._schedule.note_failed(turn, message, transient=transient, stage=stage)

    def compare_later(self, turn: Turn) -> None:
        """Have a later call be the first of a candidate: this one cannot compare it with the default."""
        with self._lock:
            self._schedule.compare_later(turn)

    def give_up_timing(self, turn: Turn) -> None:
        """Give up timing a call. A candidate whose calls cannot be timed, again and again, is not tried further."""
        with self._lock:
            self._has_given_up = True
            self._schedule.give_up_timing(turn)
            is_hopeless = self._schedule.is_hopeless and not self.over
        if is_hopeless:
            self.end()
