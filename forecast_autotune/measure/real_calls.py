"""Times configs in real calls: a call of the key runs a candidate, between events that are read once they are done.

Nothing is launched twice, nothing is copied, and the device is never waited for.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..core.allowance import Allowance
from ..core.config import Config
from ..core.outcome import TIE_MARGIN, Failure, Measurement, Outcome
from ..core.timing_limits import IN_FULL, TimingLimits
from .call_account import CallAccount
from .call_events import Event
from .call_turns import CallTrial, Pair, Turn
from .expected_cost import ExpectedCost
from .head_start import HeadStart
from .known_times import LEVEL_SAMPLES, KnownTimes

LEAST_PAIRS, MOST_PAIRS = 4, 16  # of a candidate and what would have run; more than the least only while it is open
FINAL_PAIRS = 6  # of a finalist, in each round
FAR = 1.5  # times the incumbent's time: the default, which is a finalist however slow, is run no more
APART_SIGMAS = 3.0  # standard errors by which a candidate is slower or faster, looked at after each pair
FIRST_TIMES = 2.0  # the first call of a candidate may take so many times the others: its code and data are cold
OPEN_PAIRS = 2  # launched and not read yet: the host runs ahead of the device
STRAY_TURNS = 64  # calls of the key after which the second call of a pair comes no more
LOST_S = 10.0  # and seconds after which a call that was to be timed, and never came to its end, is given up
LOOK_S = 5.0  # between two looks whether a key that waits for calls is called at all
MOST_STRAYS = 3  # pairs so given up: then calls of one pair may come on different streams
FEW_STALLS, MOST_STALLS = 2, 8  # pairs in turn in which a candidate's launch alone is long: then it pays, and counts
MOST_OVERLAPPED = 1000  # pairs in turn during which other threads launched on the stream: it is not tried further
MOST_REFUSED = 1000  # calls at which a candidate could not be compared: it is not tried
MOST_UNREAD = 64  # looks in turn at a call for which the device does not answer
MOST_EARNED = 2.0  # times the usual, of one call: an event may also have waited for the host
MOST_THROWN = 8  # pairs in turn that told nothing: then one counts in which the device waited in both calls
MOST_HELD_UP = 64  # pairs in turn that told nothing, or calls that raised: the candidate is not tried further
MOST_THROWN_AT_FIRST = 64  # calls, before the incumbent's level is known: a program begins slowly

log = logging.getLogger(__name__)


class LearningEndedError(Exception):
    """Nothing more is to be learned from calls: the process ends, or exploring was ended."""


class RealCalls:
    """A measurer whose samples come from the calls of one key, in whatever threads and on whatever streams.

    `measure` waits, in a thread of its own, until calls have told enough. A call asks for its `turn`. It runs the
    incumbent, the best that is known, or the candidate that is being timed.

    A candidate's calls are paired with calls of the incumbent, one directly after the other, which of them first being
    drawn: so drift of clocks, the neighbours' load and regular patterns of calls cancel. What counts is the ratio within
    each pair. A candidate leaves as soon as it is slower beyond the noise. One that is faster beyond the noise is the
    incumbent from then on.

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
    ) -> None:
        self.times = KnownTimes(incumbent, default)
        self.measured = 0
        self.over = False
        self.made_way = False
        self.waited_s = 0.0
        self.on_host = on_host
        self.head_start = HeadStart(keep_busy, is_idle, new_event)
        self._default = default
        self._cost = ExpectedCost(self.times, expected)
        self._account = CallAccount(allowance, share)
        self._new_event = new_event
        self._may_compare = may_compare
        self._load = load
        self._met = False  # a call has run: what the first ones compile and load is no time of the kernel's
        self._has_raised = False  # or was given up otherwise
        self._random = random.Random(seed)
        self._waiting = waiting
        self._makes_way = makes_way
        self._on_wanted = on_wanted
        self._trial: CallTrial | None = None
        self._open: dict[Hashable, Pair] = {}  # by stream: pairs whose second call is still to come
        self._turns = self._strays = 0  # calls; pairs whose second call never came
        # Of the first incumbent: calls in turn that told nothing, and calls that could not be timed.
        self._thrown = self._dropped = 0
        self._unread = 0  # looks in turn at a call that the device did not answer
        self._compared: set[Config] = set()  # with the default, before a call that was not timed then
        self._is_choosing = False  # a handler of signals may launch the kernel while a call asks for its turn
        self._under_way: dict[Turn, tuple[int, float]] = {}  # since which call, and second
        self._tried: set[Config] = set()
        self._pending: deque[Turn] = deque()
        self._spare: list[tuple[Any, Any]] = []
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
        trial = CallTrial(config, limits.early_stop_us, final)
        try:
            trial.is_ready = self._load(config)
        except Exception as err:  # its first call says whether the config is to blame
            log.debug("%s is not loaded ahead: %s", config, err)
        began = time.perf_counter()
        with self._lock:
            self._trial = trial
        self._on_wanted()
        with self._waiting(), self._changed:
            turns, since_s = self._turns, time.monotonic()
            try:
                while trial.outcome is None:
                    if self._turns != turns:
                        turns, since_s = self._turns, time.monotonic()
                    self.made_way = not self.over and self._makes_way(time.monotonic() - since_s)
                    if self.over or self.made_way:
                        raise LearningEndedError
                    self._changed.wait(LOOK_S)
            finally:
                self._trial = None
                self.waited_s += time.perf_counter() - began
            if isinstance(trial.outcome, Measurement):
                self.measured += not final
                self._note_level(config, trial.outcome)
            return trial.outcome

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
            for turn in self._pending:
                self._account.settle(turn.hold, turn.head_cost_us if turn.hold is None else turn.hold.us)
            self._pending.clear()
            for stream in list(self._open):
                self._drop(stream)
            self._account.release_all()
            self._changed.notify_all()
        self._on_wanted()

    def after_fork_in_child(self) -> None:
        """Learn nothing more: the thread that asked is the parent's, and so are the events."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.over = True
        self._pending.clear()
        self._open.clear()
        self._under_way.clear()
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
        """Seconds that calls took less than under the default config."""
        return self._account.saved_s

    @property
    def is_met(self) -> bool:
        """Whether a call has come to its end, or to nothing."""
        return self._met or self._has_raised or self.over

    # Calls ----------------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether the next calls tell something: else they may run the incumbent without a turn, which takes the host less.

        What exploring may cost is reckoned by calls with a turn alone.
        """
        with self._lock:
            if self.over:
                return False
            return (
                not (self._met and self.times.has_begun) or self._trial is not None or bool(self._pending or self._open)
            )

    def turn(self, stream: Hashable = 0) -> Turn:
        """What a call runs."""
        with self._lock:
            if self.over or self._is_choosing:
                return Turn(self, self.incumbent, stream=stream)
            self._is_choosing = True
            try:
                turn = self._next(stream)
                turn.stream = stream
            finally:
                self._is_choosing = False
            if turn.trial is not None or turn.pair is not None:
                self._under_way[turn] = self._turns, time.monotonic()
            return turn

    def _next(self, stream: Hashable) -> Turn:
        self._turns += 1
        self._read()
        if self._strays >= MOST_STRAYS:
            stream = None
        if (pair := self._open.pop(stream, None)) is not None:
            return self._turn_in(pair, candidate=not pair.candidate_first)
        if not self._met:
            return Turn(self, self.incumbent, first=True)
        if not self.times.has_begun:
            return Turn(self, self.incumbent, timed=len(self._pending) < LEVEL_SAMPLES)
        trial = self._trial
        if trial is not None and trial.outcome is None and (turn := self._candidate(trial, stream)) is not None:
            return turn
        self._earn(min(self.times.incumbent_us, self.times.last_us))
        return Turn(self, self.incumbent)

    def _candidate(self, trial: CallTrial, stream: Hashable) -> Turn | None:
        """A call of the candidate, or the first of a pair with it; None where it is not its time."""
        most = FINAL_PAIRS if trial.final else MOST_PAIRS
        room = min(OPEN_PAIRS, most - len(trial.samples_us))
        if trial.open_pairs >= room:
            self._drop_strays()
            return None
        cost_us = self._cost_us(trial)
        if not trial.loaded:
            if self.compares(trial.config) and not self._may_compare_now():
                trial.refused += 1
                if trial.refused >= MOST_REFUSED:
                    self._fail(trial, "check", "there was no idle moment to compare it with the default")
                return None
            if trial.open_pairs or (hold := self._account.hold(cost_us)) is None:
                return None
            trial.loaded = True
            trial.open_pairs = OPEN_PAIRS + most  # nothing beside it
            return Turn(self, trial.config, timed=True, trial=trial, first=True, hold=hold)
        if (hold := self._account.hold(cost_us)) is None:
            return None
        pair = Pair(trial, self._random.random() < 0.5, hold, self._turns)
        trial.open_pairs += 1
        self._open[stream] = pair
        return self._turn_in(pair, candidate=pair.candidate_first)

    def _may_compare_now(self) -> bool:
        try:
            return self._may_compare is not None and self._may_compare()
        except Exception:  # such as while another thread captures a graph
            log.debug("whether candidates can be compared is not known", exc_info=True)
            return False

    def _drop_strays(self) -> None:
        """Give up pairs whose stream makes no more calls; where every call has a stream of its own, pair across them."""
        for stream, pair in list(self._open.items()):
            if self._turns - pair.opened > STRAY_TURNS:
                self._drop(stream)
                self._strays += 1
        now_s = time.monotonic()
        for turn, (since, since_s) in list(self._under_way.items()):
            if self._turns - since > STRAY_TURNS and now_s - since_s > LOST_S:
                turn.timed, turn.dropped = False, True
                self._lose(turn)

    def _drop(self, stream: Hashable) -> None:
        pair = self._open.pop(stream)
        self._shut(pair)
        if not pair.candidate_first:
            self._account.settle(pair.hold, 0.0)

    @staticmethod
    def _shut(pair: Pair) -> None:
        pair.trial.open_pairs -= not pair.closed
        pair.closed = True

    def _fail(self, trial: CallTrial, stage: str, message: str) -> None:
        if trial.outcome is None:
            trial.outcome = Failure(stage=stage, message=message, transient=True)
            self._changed.notify_all()

    def _turn_in(self, pair: Pair, *, candidate: bool) -> Turn:
        if candidate and pair.trial.outcome is None:
            return Turn(self, pair.trial.config, timed=True, trial=pair.trial, pair=pair, hold=pair.hold)
        if candidate:  # it is out by now
            self._account.settle(pair.hold, 0.0)
            return Turn(self, self.incumbent)
        return Turn(self, self.incumbent, timed=True, pair=pair)

    def _cost_us(self, trial: CallTrial) -> float:
        """What the next call of a candidate is expected to cost beyond the incumbent's time, with that of its pair."""
        heads_us = map(self.head_start.cost_us, (trial.config, self.incumbent))
        return sum(heads_us) + self._cost.of(trial, is_compared=not trial.loaded and self.compares(trial.config))

    def compares(self, config: Config) -> bool:
        """Whether a candidate is compared with the default before its first launch here."""
        known = config == self._default or config in self.times or config in self._compared
        return self._may_compare is not None and not known

    def beyond_usual(self, host_us: float) -> float:
        """What a first call takes the host that later ones will not."""
        if not self.on_host:
            return host_us
        return host_us - self.times.incumbent_us if self.times.has_begun else 0.0

    def events(self) -> tuple[Any, Any]:
        """Two events, used ones where there are any."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return self._new_event(), self._new_event()

    def launched(self, turn: Turn) -> None:
        """Take a call in; one that is timed is read at a later call."""
        with self._lock:
            self._met = True
            self._under_way.pop(turn, None)
            if turn.timed and not self.over:
                self._pending.append(turn)
            else:
                self._account.settle(turn.hold, 0.0 if turn.dropped else turn.lost_us)

    def failed(self, turn: Turn, message: str, *, transient: bool, stage: str = "launch") -> None:
        """End the trial of a candidate that does not run."""
        with self._changed:
            trial = turn.trial
            self._under_way.pop(turn, None)
            if turn.pair is not None:
                self._forget(turn, turn.pair)
            if trial is None:
                return
            cost_us = turn.lost_us
            self._account.settle(turn.hold, cost_us)
            if trial.outcome is None:
                cost_s = cost_us * 1e-6
                trial.outcome = Failure(stage=stage, message=message, cost_s=cost_s, transient=transient)
                self._changed.notify_all()

    def put_off(self, turn: Turn) -> None:
        """Have a later call be the first of a candidate: this one cannot compare it with the default."""
        with self._lock:
            self._under_way.pop(turn, None)
            self._account.settle(turn.hold, 0.0)
            if turn.trial is not None:
                turn.trial.loaded, turn.trial.open_pairs = False, 0

    def drop(self, turn: Turn) -> None:
        """Give up timing a call. A candidate whose calls cannot be timed, again and again, is not tried further."""
        with self._changed:
            self._has_raised = True
            self._lose(turn)
            is_hopeless = self._dropped >= MOST_THROWN_AT_FIRST and not self.over
        if is_hopeless:
            self.end()

    def _lose(self, turn: Turn) -> None:
        self._under_way.pop(turn, None)
        self._account.settle(turn.hold, turn.lost_us)
        if turn.compared_us:
            self._compared.add(turn.config)
        if turn.pair is not None:
            self._forget(turn, turn.pair)
        if turn.trial is not None and turn.first:
            turn.trial.loaded, turn.trial.open_pairs = False, 0
        trial = turn.trial if turn.pair is None else turn.pair.trial
        if trial is not None:
            trial.dropped += 1
            if trial.dropped >= MOST_HELD_UP:
                self._fail(trial, "launch", "its calls could not be timed")
        elif not self.times.has_begun:
            self._dropped += 1

    def _forget(self, turn: Turn, pair: Pair) -> None:
        """A pair that will not be complete."""
        self._shut(pair)
        if turn.trial is None and not pair.candidate_first:
            self._account.settle(pair.hold, 0.0)
        for stream in [stream for stream, each in self._open.items() if each is pair]:
            del self._open[stream]

    # Reading --------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take in the calls that the device is through with."""
        for _ in range(len(self._pending)):
            turn = self._pending[0]
            try:
                if not turn.stop.query():
                    return
                us = max(float(turn.start.elapsed_time(turn.stop)) * 1e3, 1e-3)
                if turn.head is not None:
                    self.head_start.read(turn.head, float(turn.head.before.elapsed_time(turn.start)) * 1e3)
            except Exception:  # such as while another thread captures a graph: another time
                log.debug("a call of %s cannot be read", turn.config, exc_info=True)
                self._unread += 1
                if self._unread >= MOST_UNREAD:
                    self._unread = 0
                    self._give_up(self._pending.popleft())
                return
            self._unread = 0
            self._pending.popleft()
            self._spare.append((turn.start, turn.stop))
            self._take_in(turn, us)

    def _give_up(self, turn: Turn) -> None:
        """A call that the device never answers for."""
        self._account.settle(turn.hold, turn.lost_us + (0.0 if turn.hold is None else turn.hold.us))
        if turn.pair is not None:
            self._forget(turn, turn.pair)
        if turn.trial is not None:
            self._fail(turn.trial, "launch", "its calls could not be timed")

    def _take_in(self, turn: Turn, us: float) -> None:
        if turn.pair is not None:
            turn.pair.candidate_stalled |= turn.stalled and turn.trial is not None
            turn.pair.incumbent_stalled |= turn.stalled and turn.trial is None
            turn.pair.overlapped |= turn.overlapped
        if self._tells_nothing(turn, us):
            self._of_held_up(turn, us)
        elif turn.trial is None:
            self._of_incumbent(turn, us)
        else:
            self._of_candidate(turn, turn.trial, us)
        if (pair := turn.pair) is not None and not math.isnan(pair.candidate_us + pair.incumbent_us):
            self._close(pair)

    def _tells_nothing(self, turn: Turn, us: float) -> bool:
        """Whether a call's time is the host's, for whom the device waited between the two moments; some count anyway."""
        if turn.overlapped and not turn.first:
            return True
        is_hosts = turn.waited or (turn.stalled and turn.host_us / 2 < us < 2 * turn.host_us)
        if turn.first:
            return False
        if turn.pair is not None:
            # Every launch of it is long, then.
            own = turn.trial is not None and turn.stalled and turn.trial.stalls >= MOST_STALLS
            return is_hosts and not own
        self._thrown = self._thrown + 1 if is_hosts else 0
        return is_hosts and self._thrown <= MOST_THROWN_AT_FIRST

    def _of_held_up(self, turn: Turn, us: float) -> None:
        """A call that is no sample; what it took beyond the host's part is a cost."""
        if turn.trial is not None:
            is_own = turn.stalled and turn.trial.stalls >= FEW_STALLS
            own_us = us - (0.0 if is_own else turn.waited_us)
            cost_us = max(0.0, own_us - self.times.last_us)
            if turn.overlapped and turn.hold is not None:  # the rest is another call's
                cost_us = min(cost_us, turn.hold.us)
            self._account.settle(turn.hold, cost_us + turn.head_cost_us)
        else:
            self._charge_head(turn)
        if turn.pair is not None:
            if turn.trial is None:
                turn.pair.incumbent_us, turn.pair.incumbent_held_up = us, True
            else:
                turn.pair.candidate_us, turn.pair.candidate_held_up = us, True

    def _charge_head(self, turn: Turn) -> None:
        if turn.head is not None:
            self._account.settle(None, turn.head_cost_us)

    def _of_incumbent(self, turn: Turn, us: float) -> None:
        self._charge_head(turn)
        times = self.times
        if turn.config == self.incumbent:
            times.last_us = us
        if times.has_begun:
            self._earn(min(us, MOST_EARNED * times.incumbent_us))  # what lies beyond is the host's
        if turn.pair is not None:
            turn.pair.incumbent_us = us
        elif turn.config == self.incumbent and not times.has_begun and (all_us := times.note_first(us)):
            self._earn(all_us)

    def _of_candidate(self, turn: Turn, trial: CallTrial, us: float) -> None:
        reference_us = self.times.last_us
        if turn.pair is not None:
            turn.pair.candidate_us = us
            if not math.isnan(turn.pair.incumbent_us):
                reference_us = turn.pair.incumbent_us
        cost_us = max(0.0, us - reference_us, turn.load_us) if turn.config != self.incumbent else turn.load_us
        cost_us += turn.compared_us + turn.head_cost_us
        self._account.earn(min(us, reference_us))
        self._account.settle(turn.hold, cost_us)
        trial.run_us += us
        if turn.first:
            trial.open_pairs = 0
            self._cost.note_load(turn.load_us, was_ready=trial.is_ready)
            if turn.compared_us:
                self._cost.note_comparison(turn.compared_us)
            if turn.load_us or turn.overlapped:  # which lies between the events, too
                return
            own_us = max(us - turn.waited_us, 1e-3) if turn.waited else us
            trial.first_us = own_us
            scaled_us = own_us * self.times.scale
            if scaled_us > FIRST_TIMES * trial.early_stop_us:
                self._finish(trial, (scaled_us,))

    def _close(self, pair: Pair) -> None:
        trial = pair.trial
        self._shut(pair)
        trial.stalls = trial.stalls + 1 if pair.candidate_stalled and not pair.incumbent_stalled else 0
        # Of two calls that hold the host's part the ratio says something; of one such and another nothing.
        are_alike = pair.candidate_held_up == pair.incumbent_held_up
        tells = are_alike and (not pair.candidate_held_up or trial.thrown >= MOST_THROWN)
        if pair.overlapped:
            trial.overlapped += 1
            if trial.overlapped >= MOST_OVERLAPPED:
                self._fail(trial, "launch", "its calls could not be timed: other threads launch at the same time")
            return
        trial.thrown = trial.thrown + 1 if pair.candidate_held_up or pair.incumbent_held_up else 0
        trial.dropped = trial.overlapped = 0
        if trial.outcome is None and trial.thrown >= MOST_HELD_UP:
            if trial.samples_us:
                self._finish(trial, tuple(trial.samples_us))
            self._fail(trial, "launch", "its calls could not be timed: the device waits for the host")
        if trial.outcome is None and tells:
            trial.samples_us.append(pair.candidate_us / pair.incumbent_us * self.times.incumbent_us)
            if self._is_enough(trial):
                self._finish(trial, tuple(trial.samples_us))

    def _is_enough(self, trial: CallTrial) -> bool:
        samples, level_us = trial.samples_us, self.times.incumbent_us
        if trial.final:
            return len(samples) >= FINAL_PAIRS
        if min(samples) > trial.early_stop_us and len(samples) >= 2:
            return True
        if len(samples) < LEAST_PAIRS or len(samples) >= MOST_PAIRS:
            return len(samples) >= MOST_PAIRS
        seen = Measurement(samples_us=tuple(samples))
        gap = abs(seen.median_us / level_us - 1)
        return gap > APART_SIGMAS * seen.relative_error + TIE_MARGIN or APART_SIGMAS * seen.relative_error < TIE_MARGIN

    def _finish(self, trial: CallTrial, samples_us: tuple[float, ...]) -> None:
        trial.outcome = Measurement(samples_us=samples_us, run_s=trial.run_us * 1e-6)
        self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------------------------

    def _note_level(self, config: Config, measurement: Measurement) -> None:
        """Keep how long a config takes; pairs with a former incumbent are given up."""
        if config != self.incumbent and self.times.note(config, measurement):
            for stream in list(self._open):
                self._drop(stream)

    def _earn(self, us: float) -> None:
        """Note a call of the incumbent."""
        self._account.earn(us, self.times.saved_us(us))
