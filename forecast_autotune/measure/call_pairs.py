"""Pairs of real calls that are compared, a candidate's and the incumbent's, and those whose second call is still to come."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .call_account import CallAccount, Hold
from .call_trial import CallTrial

if TYPE_CHECKING:
    from .call_turns import Turn


@dataclass(slots=True, eq=False)
class PairedCall:
    """What was read of one call of a pair."""

    us: float = math.nan
    held_up: bool = False  # within it the device waited for the host
    stalled: bool = False  # its launch took the host far longer than launches do


@dataclass(slots=True, eq=False)
class Pair:
    """A call of a candidate and one of what would have run, one after the other on one stream, in an order that is drawn."""

    trial: CallTrial
    candidate_first: bool
    hold: Hold
    opened: int  # at which call
    candidate: PairedCall = field(default_factory=PairedCall)
    incumbent: PairedCall = field(default_factory=PairedCall)
    overlapped: bool = False
    closed: bool = False

    @property
    def is_read(self) -> bool:
        """Whether both calls are read."""
        return not math.isnan(self.candidate.us + self.incumbent.us)

    def call_of(self, turn: Turn) -> PairedCall:
        """Which of its two calls a turn is."""
        return self.incumbent if turn.trial is None else self.candidate

    def close(self) -> None:
        """Make room for another pair of the trial: it is complete, or never will be. Once more does nothing."""
        self.trial.open_pairs -= not self.closed
        self.closed = True


class OpenPairs:
    """The pairs of one key whose second call is still to come, by stream.

    Not safe by itself: it is used under the lock of `RealCalls`.

    Args:
        account: holds what a pair's candidate may cost.
    """

    def __init__(self, account: CallAccount) -> None:
        self._account = account
        self._pairs: dict[Hashable, Pair] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, stream: Hashable, pair: Pair) -> None:
        """Await the second call of a pair on a stream."""
        self._pairs[stream] = pair

    def take(self, stream: Hashable) -> Pair | None:
        """The pair whose second call is the next one on a stream, which is awaited no more; None where there is none."""
        return self._pairs.pop(stream, None)

    def give_up_old(self, before: int) -> int:
        """Await no second call of pairs that were opened before some call; returns how many these were."""
        count = 0
        for stream, pair in list(self._pairs.items()):
            if pair.opened < before:
                self._give_up(stream)
                count += 1
        return count

    def give_up_all(self) -> None:
        """Await no second call of any pair."""
        for stream in list(self._pairs):
            self._give_up(stream)

    def _give_up(self, stream: Hashable) -> None:
        pair = self._pairs.pop(stream)
        pair.close()
        if not pair.candidate_first:
            self._account.settle(pair.hold, 0.0)

    def give_up_pair_of(self, turn: Turn) -> None:
        """Give up the pair, if there is one, of a call that has no time."""
        pair = turn.pair
        if pair is None:
            return
        pair.close()
        if turn.trial is None and not pair.candidate_first:
            self._account.settle(pair.hold, 0.0)
        for stream in [stream for stream, each in self._pairs.items() if each is pair]:
            del self._pairs[stream]

    def after_fork_in_child(self) -> None:
        """Forget them: they are of the parent's calls."""
        self._pairs.clear()
