"""Which config the next real call of a key runs, and what becomes of a turn that is not timed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.outcome import Stage
from .call_account import CallAccount
from .call_pairs import OpenPairs, Pair
from .call_reader import MAX_THROWN_AT_FIRST, CallReader
from .call_trial import CallTrial
from .call_turns import Turn
from .expected_cost import ExpectedCost
from .head_start import HeadStart
from .known_times import LEVEL_SAMPLES, KnownTimes

if TYPE_CHECKING:
    from .real_calls import RealCalls

OPEN_PAIRS = 2  # launched and not read yet: the host runs ahead of the device
STRAY_TURNS = 64  # calls of the key after which the second call of a pair comes no more
LOST_S = 10.0  # and seconds after which a call that was to be timed, and never came to its end, is given up
MAX_STRAYS = 3  # pairs so given up: then calls of one pair may come on different streams

log = logging.getLogger(__name__)


class CallSchedule:
    """Has each call of one key run the incumbent, the best that is known, or the candidate that is being timed.

    A candidate's calls are paired with calls of the incumbent, one directly after the other, which of them first being
    drawn: so drift of clocks, the neighbours' load and regular patterns of calls cancel. Not safe by itself: it is used
    under the lock of `RealCalls`.

    Args:
        default: the default config.
        times: what is known of the key's configs.
        account: what calls may cost.
        cost: what a candidate's next call is expected to cost.
        pairs: those whose second call is still to come.
        reader: takes in what earlier calls have told, before the next one is chosen.
        head_start: what keeping the device busy before a call costs.
        may_compare: see `RealCalls`.
        seed: of the draws.

    Attributes:
        trial: of the candidate that is being timed, if there is one.
        turns: how many calls had their turn.
        has_run: a call has: what the first ones compile and load is no time of the kernel's.
    """

    def __init__(
        self,
        *,
        default: Config,
        times: KnownTimes,
        account: CallAccount,
        cost: ExpectedCost,
        pairs: OpenPairs,
        reader: CallReader,
        head_start: HeadStart,
        may_compare: Callable[[], bool] | None,
        seed: int,
    ) -> None:
        self.trial: CallTrial | None = None
        self.turns = 0
        self.has_run = False
        self._default = default
        self._times = times
        self._account = account
        self._cost = cost
        self._pairs = pairs
        self._reader = reader
        self._head_start = head_start
        self._may_compare = may_compare
        self._random = random.Random(seed)
        self._strays = 0  # pairs whose second call never came
        self._untimed_at_first = 0  # calls of the first incumbent that could not be timed
        self._compared: set[Config] = set()  # with the default, before a call that was not timed then
        self._under_way: dict[Turn, tuple[int, float]] = {}  # since which call, and second

    # What the next call runs ----------------------------------------------------------------------------------------

    def next_turn(self, calls: RealCalls, stream: Hashable) -> Turn:
        """The turn of the next call on a stream, which tells `calls` how it goes."""
        self.turns += 1
        self._reader.read()
        if self._strays >= MAX_STRAYS:
            stream = None
        times = self._times
        if (pair := self._pairs.take(stream)) is not None:
            return self._turn_in_pair(calls, pair, candidate=not pair.candidate_first)
        if not self.has_run:
            return Turn(calls, times.incumbent, first=True)
        if not times.has_begun:
            return Turn(calls, times.incumbent, timed=len(self._reader.pending) < LEVEL_SAMPLES)
        trial = self.trial
        if (
            trial is not None
            and trial.outcome is None
            and (turn := self._turn_of_trial(calls, trial, stream)) is not None
        ):
            return turn
        us = min(times.incumbent_us, times.last_us)
        self._account.earn(us, times.saved_us(us))
        return Turn(calls, times.incumbent)

    def _turn_of_trial(self, calls: RealCalls, trial: CallTrial, stream: Hashable) -> Turn | None:
        """A call of the candidate, or the first of a pair with it; None where it is not its time."""
        room = min(OPEN_PAIRS, trial.most_pairs - len(trial.samples_us))
        if trial.is_first_call_under_way or trial.open_pairs >= room:
            self._give_up_strays()
            return None
        cost_us = self._cost_us(trial)
        if not trial.loaded:
            if self.compares(trial.config) and not self._may_compare_now():
                trial.note_refused()
                return None
            if trial.open_pairs or (hold := self._account.hold(cost_us)) is None:
                return None
            trial.begin_first_call()
            return Turn(calls, trial.config, timed=True, trial=trial, first=True, hold=hold)
        if (hold := self._account.hold(cost_us)) is None:
            return None
        pair = Pair(trial, self._random.random() < 0.5, hold, self.turns)
        trial.open_pairs += 1
        self._pairs.add(stream, pair)
        return self._turn_in_pair(calls, pair, candidate=pair.candidate_first)

    def _turn_in_pair(self, calls: RealCalls, pair: Pair, *, candidate: bool) -> Turn:
        if candidate and pair.trial.outcome is None:
            return Turn(calls, pair.trial.config, timed=True, trial=pair.trial, pair=pair, hold=pair.hold)
        if candidate:  # it is out by now
            self._account.settle(pair.hold, 0.0)
            return Turn(calls, self._times.incumbent)
        return Turn(calls, self._times.incumbent, timed=True, pair=pair)

    def _cost_us(self, trial: CallTrial) -> float:
        """What the next call of a candidate is expected to cost beyond the incumbent's time, with that of its pair."""
        heads_us = map(self._head_start.cost_us, (trial.config, self._times.incumbent))
        return sum(heads_us) + self._cost.of(trial, is_compared=not trial.loaded and self.compares(trial.config))

    def compares(self, config: Config) -> bool:
        """Whether a candidate is compared with the default before its first launch here."""
        known = config == self._default or config in self._times or config in self._compared
        return self._may_compare is not None and not known

    def _may_compare_now(self) -> bool:
        try:
            return self._may_compare is not None and self._may_compare()
        except Exception:  # such as while another thread captures a graph
            log.debug("whether candidates can be compared is not known", exc_info=True)
            return False

    def _give_up_strays(self) -> None:
        """Give up pairs whose stream makes no more calls; where every call has a stream of its own, pair across them."""
        self._strays += self._pairs.give_up_old(self.turns - STRAY_TURNS)
        now_s = time.monotonic()
        for turn, (since, since_s) in list(self._under_way.items()):
            if self.turns - since > STRAY_TURNS and now_s - since_s > LOST_S:
                turn.timed, turn.given_up = False, True
                self.give_up_timing(turn)

    # What became of a turn ------------------------------------------------------------------------------------------

    def await_end(self, turn: Turn) -> None:
        """Give a turn up once its call is lost, if it concerns a trial."""
        if turn.trial is not None or turn.pair is not None:
            self._under_way[turn] = self.turns, time.monotonic()

    def note_launched(self, turn: Turn) -> None:
        """A call has come to its end."""
        self.has_run = True
        self._under_way.pop(turn, None)

    def note_failed(self, turn: Turn, message: str, *, transient: bool, stage: Stage) -> None:
        """A call whose config does not run: if it is a candidate, its trial ends."""
        self._under_way.pop(turn, None)
        self._pairs.give_up_pair_of(turn)
        if turn.trial is not None:
            cost_us = turn.lost_us
            self._account.settle(turn.hold, cost_us)
            turn.trial.fail(message, stage=stage, cost_s=cost_us * 1e-6, transient=transient)

    def compare_later(self, turn: Turn) -> None:
        """A call that cannot compare its candidate with the default: a later one is its first."""
        self._under_way.pop(turn, None)
        self._account.settle(turn.hold, 0.0)
        if turn.trial is not None:
            turn.trial.await_first_call()

    def give_up_timing(self, turn: Turn) -> None:
        """A call that is not timed, or not any more."""
        self._under_way.pop(turn, None)
        self._account.settle(turn.hold, turn.lost_us)
        if turn.compared_us:
            self._compared.add(turn.config)
        self._pairs.give_up_pair_of(turn)
        if turn.trial is not None and turn.first:
            turn.trial.await_first_call()
        trial = turn.trial if turn.pair is None else turn.pair.trial
        if trial is not None:
            trial.note_untimed()
        elif not self._times.has_begun:
            self._untimed_at_first += 1

    @property
    def is_hopeless(self) -> bool:
        """Whether too many calls could not be timed, before any told how long the incumbent takes."""
        return self._untimed_at_first >= MAX_THROWN_AT_FIRST

    def after_fork_in_child(self) -> None:
        """Await the end of no call: they are the parent's."""
        self._under_way.clear()
