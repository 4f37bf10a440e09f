"""The candidate that is being timed in real calls: its samples, and when there are enough of them or will be none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.outcome import TIE_MARGIN, Failure, Measurement, Outcome, Stage

if TYPE_CHECKING:
    from .call_pairs import Pair

MIN_PAIRS, MAX_PAIRS = 4, 16  # of a candidate and what would have run; more than the least only while it is open
FINAL_PAIRS = 6  # of a finalist, in each round
APART_SIGMAS = 3.0  # standard errors by which a candidate is slower or faster, looked at after each pair
MAX_OVERLAPPED = 1000  # pairs in turn during which other threads launched on the stream: it is not tried further
MAX_REFUSED = 1000  # calls at which a candidate could not be compared: it is not tried
MAX_THROWN = 8  # pairs in turn that told nothing: then one counts in which the device waited in both calls
MAX_HELD_UP = 64  # pairs in turn that told nothing, or calls that raised: the candidate is not tried further

NOT_TIMED = "its calls could not be timed"


@dataclass(slots=True, eq=False)
class CallTrial:
    """One config that is being timed: its samples, as times on the scale of the run."""

    config: Config
    early_stop_us: float
    final: bool  # it is timed in turns with others: as long as they are
    on_outcome: Callable[[], object]  # told when it has one
    is_ready: bool = False  # its first launch loads nothing
    loaded: bool = False
    samples_us: list[float] = field(default_factory=list)
    is_first_call_under_way: bool = False  # launched and not read yet: no other call of it is timed beside it
    open_pairs: int = 0
    thrown: int = 0  # pairs in turn that told nothing
    stalls: int = 0  # pairs in turn in which its own launch alone took the host far longer than launches do
    refused: int = 0  # calls at which it could not be compared
    overlapped: int = 0  # pairs in turn beside which other threads launched
    untimed: int = 0  # calls that could not be timed, since a pair was complete
    first_us: float = math.nan  # of its first call, which is compared with nothing
    run_us: float = 0.0
    outcome: Outcome | None = None

    @property
    def most_pairs(self) -> int:
        """How many pairs it takes at most."""
        return FINAL_PAIRS if self.final else MAX_PAIRS

    def begin_first_call(self) -> None:
        """Note that its first call is about to be launched."""
        self.loaded = self.is_first_call_under_way = True

    def end_first_call(self) -> None:
        """Note that its first call is read, or never will be."""
        self.is_first_call_under_way, self.open_pairs = False, 0

    def await_first_call(self) -> None:
        """Have another call be its first one."""
        self.loaded = False
        self.end_first_call()

    def note_refused(self) -> None:
        """Note a call at which it could not be compared with the default."""
        self.refused += 1
        if self.refused >= MAX_REFUSED:
            self.fail("there was no idle moment to compare it with the default", stage="check")

    def note_untimed(self) -> None:
        """Note a call, its own or the incumbent's of a pair, that could not be timed."""
        self.untimed += 1
        if self.untimed >= MAX_HELD_UP:
            self.fail(NOT_TIMED)

    def note_pair(self, pair: Pair, level_us: float) -> None:
        """Take in a pair whose calls are both read: a sample, if it tells something.

        Args:
            pair: of this trial.
            level_us: of the incumbent, on the scale of the run.
        """
        candidate, incumbent = pair.candidate, pair.incumbent
        self.stalls = self.stalls + 1 if candidate.stalled and not incumbent.stalled else 0
        if pair.overlapped:
            self.overlapped += 1
            if self.overlapped >= MAX_OVERLAPPED:
                self.fail(f"{NOT_TIMED}: other threads launch at the same time")
            return
        # Of two calls that hold the host's part the ratio says something; of one such and another nothing.
        are_alike = candidate.held_up == incumbent.held_up
        tells = are_alike and (not candidate.held_up or self.thrown >= MAX_THROWN)
        self.thrown = self.thrown + 1 if candidate.held_up or incumbent.held_up else 0
        self.untimed = self.overlapped = 0
        if self.outcome is None and self.thrown >= MAX_HELD_UP:
            if self.samples_us:
                self.finish(self.samples_us)
            self.fail(f"{NOT_TIMED}: the device waits for the host")
        if self.outcome is None and tells:
            self.samples_us.append(candidate.us / incumbent.us * level_us)
            if self._is_enough(level_us):
                self.finish(self.samples_us)

    def _is_enough(self, level_us: float) -> bool:
        samples = self.samples_us
        if self.final:
            return len(samples) >= FINAL_PAIRS
        if min(samples) > self.early_stop_us and len(samples) >= 2:
            return True
        if len(samples) < MIN_PAIRS or len(samples) >= MAX_PAIRS:
            return len(samples) >= MAX_PAIRS
        seen = Measurement(samples_us=tuple(samples))
        gap = abs(seen.median_us / level_us - 1)
        return gap > APART_SIGMAS * seen.relative_error + TIE_MARGIN or APART_SIGMAS * seen.relative_error < TIE_MARGIN

    def finish(self, samples_us: list[float]) -> None:
        """End it: it is measured."""
        self.outcome = Measurement(samples_us=tuple(samples_us), run_s=self.run_us * 1e-6)
        self.on_outcome()

    def fail(self, message: str, *, stage: Stage = "launch", cost_s: float = 0.0, transient: bool = True) -> None:
        """End it, if it has not ended: it cannot be measured."""
        if self.outcome is None:
            self.outcome = Failure(stage=stage, message=message, cost_s=cost_s, transient=transient)
            self.on_outcome()
