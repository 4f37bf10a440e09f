"""Timing the best configs in turns, so that all of them see the same state of the machine, and comparing them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from ..core.config import Config
from ..core.outcome import SWITCH_MARGIN, TIE_MARGIN, Failure, Measurement
from ..core.space import Space
from .decision_rule import noise
from .state import RunState
from .trials import Trials

FINALISTS = 4  # the best so many are timed again, beside the default
FINALIST_WINDOW = 0.05  # and only those within so much of the best: campaigns differ by 3 % (FAIR benchmark hub, A4000)
MAX_ROUNDS = 4  # more than one only while it is open who is the fastest


class Finals:
    """Times the finalists of a run in turns, and keeps their new times.

    The new times are brought to the scale of the old ones, on which the default is as fast as before. Nothing changes
    where fewer than two configs come near each other, or where the time ends before each has had its turn, or one fails
    for a cause that may pass: then the old times are the fairer comparison.
    """

    def __init__(self, state: RunState, trials: Trials) -> None:
        self._state = state
        self._trials = trials
        self._firsts: dict[Config, Measurement] = {}  # of the finalists, from before their turns
        self._have_been_early = False

    def measure(self) -> None:
        """Time the finalists of all that was timed, with nothing being compiled beside them, unless that is done already."""
        while not {*(finalists := self._pick())} <= self._state.finals.keys():
            self._state.finals.clear()  # another config has come near since, or one has failed
            if len(finalists) < 2 or self._state.budget.seconds_left <= 0:
                return
            built = self._trials.recompile(finalists)
            if len(built) >= 2 and {*built} >= {*finalists} & self._state.measured().keys():
                with self._trials.compiler.paused():
                    self._measure(built)
            if {*finalists} <= self._state.measured().keys():
                return

    def measure_meanwhile(self, usual_s: float) -> bool:
        """Time those of now, once, while the last configs are being compiled, which may change them; whether it did.

        Args:
            usual_s: what a build usually takes: turns hold up what is built meanwhile, so they are to take half of that, and
                are given up beyond all of it.
        """
        finalists, ran = self._pick(), self._state.measured()
        if self._have_been_early or len(finalists) < 2 or not self._state.evidence.keys() >= {*finalists}:
            return False
        round_s = 2 * len(finalists) * statistics.median(ran[config].run_s for config in finalists)
        if round_s > usual_s / 2:
            return False
        self._have_been_early = True
        self._measure(finalists, within_s=usual_s)
        return True

    def _first_times(self) -> dict[Config, Measurement]:
        """Of all that ran, fastest first: none as it was timed in turns."""
        ran = {config: self._firsts.get(config, last) for config, last in self._state.measured().items()}
        return dict(sorted(ran.items(), key=lambda item: (item[1].median_us, self._state.space.index(item[0]))))

    def _pick(self) -> list[Config]:
        ran = self._first_times()
        return pick_finalists(ran, self._state.space) if ran else []

    def _measure(self, finalists: list[Config], within_s: float = math.inf) -> None:
        state, ran = self._state, self._first_times()
        again = _time_in_turns(finalists, state, self._trials, within_s)
        if not again or len(again) < len(finalists):
            return
        anchor = state.space.default if state.space.default in again else next(iter(again))
        scale = ran[anchor].median_us / again[anchor].median_us
        if anchor == state.space.default and anchor in state.tried:  # else it is an earlier run's time that was another
            state.drift = 1 / scale - 1
        for config, measurement in again.items():
            first, scaled = ran[config], measurement.scaled(scale)
            self._firsts[config] = first
            state.finals[config] = replace(scaled, compile_s=first.compile_s, run_s=first.run_s + measurement.run_s)
            state.keep(config, state.finals[config])


def pick_finalists(ran: Mapping[Config, Measurement], space: Space) -> list[Config]:
    """The best few and the default; of those as good as equal to the best, the first in the space come first.

    Args:
        ran: fastest first, not empty.
    """
    best_us = next(iter(ran.values())).median_us
    tie_us = best_us * (1 + TIE_MARGIN)
    close = [c for c, m in ran.items() if m.median_us * (1 - m.disturbance) <= best_us * (1 + FINALIST_WINDOW)]
    close.sort(key=lambda c: (max(ran[c].median_us, tie_us), space.index(c)))
    finalists = close[:FINALISTS]
    return finalists if space.default in finalists or space.default not in ran else [*finalists, space.default]


def settled(timed: Mapping[Config, Measurement]) -> bool:
    """Whether every config is either slower than the fastest beyond the noise, or known not to be worth a switch from it.

    On 88 spaces recorded on an H200, eight configs of each, 0.01 % of the speed is all that asking for a tie within
    `TIE_MARGIN` would gain, for a quarter more turns of short kernels.
    """
    best = min(timed.values(), key=lambda m: m.median_us, default=None)
    if best is None:
        return True
    noises = ((m.median_us / best.median_us - 1, noise(m, best, 0.0)) for m in timed.values() if m is not best)
    return all(gap > doubt or doubt <= SWITCH_MARGIN for gap, doubt in noises)


def _time_in_turns(
    finalists: list[Config], state: RunState, trials: Trials, within_s: float
) -> dict[Config, Measurement]:
    """Each finalist's samples of all rounds; one that fails leaves the list.

    Empty if they would take too long, or if one fails for a cause that may pass.

    A round goes there and back, so that a machine that slowly gets faster or slower favours none.
    """
    again: dict[Config, Measurement] = {}
    until_s = state.budget.spent_s + within_s
    for _ in range(MAX_ROUNDS):
        if state.budget.spent_s > until_s:
            return {}
        for config in (*finalists, *reversed(finalists)):
            if state.budget.seconds_left <= 0:
                return again
            if config not in finalists:
                continue
            outcome = trials.time_as_finalist(config)
            if isinstance(outcome, Failure):
                state.keep(config, outcome)
                if outcome.transient:
                    return {}
                finalists.remove(config)
                again.pop(config, None)
            else:
                again[config] = again[config].with_more(outcome) if config in again else outcome
        if settled(again):
            break
    return again
