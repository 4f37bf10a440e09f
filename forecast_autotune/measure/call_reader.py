"""Reads real calls once the device is through with them: which tell a kernel's time, and what each has cost."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any

from .call_account import CallAccount
from .call_pairs import OpenPairs
from .call_trial import NOT_TIMED, CallTrial
from .call_turns import Turn
from .expected_cost import ExpectedCost
from .head_start import HeadStart
from .known_times import KnownTimes

FIRST_FACTOR = 2.0  # the first call of a candidate may take so many times the others: its code and data are cold
FEW_STALLS, MAX_STALLS = 2, 8  # pairs in turn in which a candidate's launch alone is long: then it pays, and counts
MAX_UNREAD = 64  # looks in turn at a call for which the device does not answer
MAX_EARNED = 2.0  # times the usual, of one call: an event may also have waited for the host
MAX_THROWN_AT_FIRST = 64  # calls, before the incumbent's level is known: a program begins slowly

log = logging.getLogger(__name__)


class CallReader:
    """Makes samples and costs of the timed calls of one key, in the order in which they were launched.

    A call is a sample of its candidate's trial, of the incumbent's level, or none, where its time is not the kernel's.
    Not safe by itself: it is used under the lock of `RealCalls`.

    Args:
        times: what is known of the key's configs.
        account: what calls earn and cost.
        cost: learns what first calls of candidates take.
        pairs: those whose second call is still to come.
        head_start: learns for how long it kept the device busy.

    Attributes:
        pending: calls that are launched and not read.
    """

    def __init__(
        self, *, times: KnownTimes, account: CallAccount, cost: ExpectedCost, pairs: OpenPairs, head_start: HeadStart
    ) -> None:
        self.pending: deque[Turn] = deque()
        self._times = times
        self._account = account
        self._cost = cost
        self._pairs = pairs
        self._head_start = head_start
        self._spare: list[tuple[Any, Any]] = []
        self._thrown = 0  # calls in turn of the first incumbent that told nothing
        self._unread = 0  # looks in turn at a call that the device did not answer

    def take_used_events(self) -> tuple[Any, Any] | None:
        """Two events of a call that is read; None where there are none."""
        return self._spare.pop() if self._spare else None

    def read(self) -> None:
        """Take in the calls that the device is through with."""
        for _ in range(len(self.pending)):
            turn = self.pending[0]
            try:
                if not turn.stop.query():
                    return
                us = max(float(turn.start.elapsed_time(turn.stop)) * 1e3, 1e-3)
                if turn.head is not None:
                    self._head_start.read(turn.head, float(turn.head.before.elapsed_time(turn.start)) * 1e3)
            except Exception:  # such as while another thread captures a graph: another time
                log.debug("a call of %s cannot be read", turn.config, exc_info=True)
                self._unread += 1
                if self._unread >= MAX_UNREAD:
                    self._unread = 0
                    self._give_up(self.pending.popleft())
                return
            self._unread = 0
            self.pending.popleft()
            self._spare.append((turn.start, turn.stop))
            self._take_in(turn, us)

    def end(self) -> None:
        """Read no call any more; those that are pending pay what was held for them."""
        for turn in self.pending:
            self._account.settle(turn.hold, turn.head_cost_us if turn.hold is None else turn.hold.us)
        self.pending.clear()

    def after_fork_in_child(self) -> None:
        """Read nothing: the events are the parent's."""
        self.pending.clear()

    def _give_up(self, turn: Turn) -> None:
        """A call that the device never answers for."""
        self._account.settle(turn.hold, turn.lost_us + (0.0 if turn.hold is None else turn.hold.us))
        self._pairs.give_up_pair_of(turn)
        if turn.trial is not None:
            turn.trial.fail(NOT_TIMED)

    def _take_in(self, turn: Turn, us: float) -> None:
        pair = turn.pair
        if pair is not None:
            pair.call_of(turn).stalled |= turn.stalled
            pair.overlapped |= turn.overlapped
        if self._tells_nothing(turn, us):
            self._charge_discarded(turn, us)
        elif turn.trial is None:
            self._note_incumbent(turn, us)
        else:
            self._note_candidate(turn, turn.trial, us)
        if pair is not None and pair.is_read:
            pair.close()
            pair.trial.note_pair(pair, self._times.incumbent_us)

    def _tells_nothing(self, turn: Turn, us: float) -> bool:
        """Whether a call's time is the host's, for whom the device waited between the two moments; some count anyway."""
        if turn.overlapped and not turn.first:
            return True
        is_hosts = turn.waited or (turn.stalled and turn.host_us / 2 < us < 2 * turn.host_us)
        if turn.first:
            return False
        if turn.pair is not None:
            # Every launch of it is long, then.
            own = turn.trial is not None and turn.stalled and turn.trial.stalls >= MAX_STALLS
            return is_hosts and not own
        self._thrown = self._thrown + 1 if is_hosts else 0
        return is_hosts and self._thrown <= MAX_THROWN_AT_FIRST

    def _charge_discarded(self, turn: Turn, us: float) -> None:
        """A call that is no sample; what it took beyond the host's part is a cost."""
        if turn.trial is not None:
            is_own = turn.stalled and turn.trial.stalls >= FEW_STALLS
            own_us = us - (0.0 if is_own else turn.waited_us)
            cost_us = max(0.0, own_us - self._times.last_us)
            if turn.overlapped and turn.hold is not None:  # the rest is another call's
                cost_us = min(cost_us, turn.hold.us)
            self._account.settle(turn.hold, cost_us + turn.head_cost_us)
        else:
            self._charge_head(turn)
        if turn.pair is not None:
            call = turn.pair.call_of(turn)
            call.us, call.held_up = us, True

    def _charge_head(self, turn: Turn) -> None:
        if turn.head is not None:
            self._account.settle(None, turn.head_cost_us)

    def _note_incumbent(self, turn: Turn, us: float) -> None:
        self._charge_head(turn)
        times = self._times
        if turn.config == times.incumbent:
            times.last_us = us
        if times.has_begun:
            self._earn(min(us, MAX_EARNED * times.incumbent_us))  # what lies beyond is the host's
        if turn.pair is not None:
            turn.pair.incumbent.us = us
        elif turn.config == times.incumbent and not times.has_begun and (all_us := times.note_first(us)):
            self._earn(all_us)

    def _earn(self, us: float) -> None:
        self._account.earn(us, self._times.saved_us(us))

    def _note_candidate(self, turn: Turn, trial: CallTrial, us: float) -> None:
        reference_us = self._times.last_us
        if turn.pair is not None:
            turn.pair.candidate.us = us
            if not math.isnan(turn.pair.incumbent.us):
                reference_us = turn.pair.incumbent.us
        of_another = turn.config != self._times.incumbent
        cost_us = max(0.0, us - reference_us, turn.load_us) if of_another else turn.load_us
        cost_us += turn.compared_us + turn.head_cost_us
        self._account.earn(min(us, reference_us))
        self._account.settle(turn.hold, cost_us)
        trial.run_us += us
        if turn.first:
            trial.end_first_call()
            self._cost.note_load(turn.load_us, was_ready=trial.is_ready)
            if turn.compared_us:
                self._cost.note_comparison(turn.compared_us)
            if turn.load_us or turn.overlapped:  # which lies between the events, too
                return
            own_us = max(us - turn.waited_us, 1e-3) if turn.waited else us
            trial.first_us = own_us
            scaled_us = own_us * self._times.scale
            if scaled_us > FIRST_FACTOR * trial.early_stop_us:
                trial.finish([scaled_us])
