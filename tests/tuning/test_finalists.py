"""Finalists are timed in turns, and what drifts between them and the search decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from recorded import job_of, measurement
from small_runs import Fixed, Memory, Noisy, recorded_as, tuned_by

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Evidence, Failure, Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.replay import Replay
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive
from forecast_autotune.tuning.trials import TURN_SHARE


def test_finalists_are_timed_again_in_turns() -> None:
    shares = []

    class Repeatable(Replay):
        repeatable = True
        asked: list[Config]

        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            self.__dict__.setdefault("asked", []).append(config)
            shares.append(limits.share)
            return super().measure(config)

    of = recorded_as([100, 50, 51, 90])
    replay = Repeatable(of)
    store = Memory()
    decision = tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=Exhaustive(),
        measurer=replay,
        store=store,
        budget=Budget(4, clock=replay.clock),
    ).decision
    assert decision.config == Config({"i": 1})
    assert decision.tried == 4
    turns = [c["i"] for c in replay.asked[4:]]
    assert turns == ([1, 2, 0, 0, 2, 1] * len(turns))[: len(turns)]
    assert shares == [1.0] * 4 + [TURN_SHARE] * len(turns)
    last = [o for c, o, _ in store.recorded if c == Config({"i": 1})][-1]
    assert isinstance(last, Measurement)
    assert len(last.samples_us) == 8 * (len(turns) // 3)


@pytest.mark.parametrize(("spread", "rounds"), [(0.0001, 2), (0.2, 8)])
def test_finalists_are_timed_until_they_differ_or_a_limit_is_reached(spread: float, rounds: int) -> None:
    of = recorded_as([100, 50, 51, 90])
    measurer = Noisy(of, spread)
    tuned_by(of, measurer)
    assert len(measurer.asked[4:]) == 3 * rounds


class Warming(Noisy):
    """Slows down by a factor from the timing of this number on."""

    def __init__(self, of: Recording, *, factor: float, after: int) -> None:
        super().__init__(of, spread=0.0001)
        self.factor = factor
        self.after = after

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        outcome = super().measure(config, limits)
        assert isinstance(outcome, Measurement)
        slow = self.factor if len(self.asked) > self.after else 1.0
        return replace(outcome, samples_us=tuple(t * slow for t in outcome.samples_us))


@pytest.mark.parametrize("each", [0.995, 1.005])
def test_a_drift_from_turn_to_turn_favours_no_finalist(each: float) -> None:
    class Drifting(Noisy):
        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            outcome = super().measure(config, limits)
            assert isinstance(outcome, Measurement)
            turns = max(0, len(self.asked) - 4)
            return replace(outcome, samples_us=tuple(t * each**turns for t in outcome.samples_us))

    of = recorded_as([106, 100, 102, 104])
    decision = tuned_by(of, Drifting(of, 0.0001))
    assert decision.config == Config({"i": 1})
    assert decision.speedup == pytest.approx(1.06, rel=2e-3)


@pytest.mark.parametrize("factor", [0.8, 0.97, 1.03, 1.14, 1.3])
def test_a_drift_before_the_finals_lets_none_win_that_was_not_in_them(factor: float) -> None:
    of = recorded_as([150, 100, 100.7, 101.4, 102.1, 99])
    decision = tuned_by(of, Warming(of, factor=factor, after=6))
    assert decision.config == Config({"i": 5})
    assert decision.speedup == pytest.approx(150 / 99, rel=1e-3)
    assert decision.config_us == pytest.approx(99, rel=1e-3), "on one scale with what is stored of the others"


def test_what_is_stored_of_a_run_is_on_one_scale_whatever_drifted() -> None:
    of = recorded_as([150, 100, 120, 130])
    store = Memory()
    tuned_by(of, Warming(of, factor=1.2, after=4), store=store)
    times = {c: o.median_us for c, o, _ in store.recorded if isinstance(o, Measurement)}
    assert times == {
        c: pytest.approx(o.median_us, rel=1e-3) for c, o in of.outcomes.items() if isinstance(o, Measurement)
    }


def test_where_the_fastest_fail_in_their_turns_the_next_have_theirs() -> None:
    class Failing(Noisy):
        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            outcome = super().measure(config, limits)
            has_failed = limits.share < 1 and config["i"] in (1, 2)
            return Failure(stage="launch", message="out of memory", cost_s=0.1) if has_failed else outcome

    of = recorded_as([150, 90, 92, 110, 130])
    decision = tuned_by(of, Failing(of, 0.0001))
    assert (decision.config, decision.failed) == (Config({"i": 3}), 2)
    assert decision.speedup == pytest.approx(150 / 110, rel=1e-3)


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1, 2}])
def test_a_finalist_that_fails_for_a_cause_that_may_pass_keeps_its_time(failing: set[int]) -> None:
    class Disturbed(Noisy):
        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            outcome = super().measure(config, limits)
            fails = limits.share < 1 and config["i"] in failing
            return Failure(stage="compile", message="it is gone", transient=True) if fails else outcome

    of, store = recorded_as([150, 90, 92, 130]), Memory()
    decision = tuned_by(of, Disturbed(of, 0.0001), store=store)
    assert (decision.config, decision.basis, decision.failed) == (Config({"i": 1}), "measured", 0)
    assert decision.speedup == pytest.approx(150 / 90, rel=1e-3)
    assert all(isinstance(outcome, Measurement) for _, outcome, _ in store.recorded)


def test_a_finalist_whose_build_fails_for_a_cause_that_may_pass_can_win() -> None:
    class Unbuilt(Noisy):
        def compile(self, configs: Iterable[Config], **how: Any) -> Iterator[tuple[Config, Evidence | Failure]]:
            full = Failure(stage="compile", message="No space left on device", transient=True)
            for config, built in super().compile(configs, **how):
                yield config, full if config["i"] == 2 else built

    of = recorded_as([150, 100, 90])
    store = Memory(known={Config({"i": i}): measurement(us) for i, us in enumerate((150, 92, 90))})
    decision = tuned_by(of, Unbuilt(of, 0.0001), store=store)
    assert (decision.config, decision.basis) == (Config({"i": 2}), "measured")


def test_a_run_that_finds_everything_timed_still_decides_by_turns() -> None:
    of = recorded_as([150, 100, 90])
    known: dict[Config, Outcome] = {Config({"i": 0}): measurement(150), Config({"i": 1}): measurement(89)}
    decision = tuned_by(of, Noisy(of, 0.0001), store=Memory(known={**known, Config({"i": 2}): measurement(90)}))
    assert (decision.config, decision.tried) == (Config({"i": 2}), 0)


def test_of_many_equally_fast_the_first_in_the_space_is_a_finalist() -> None:
    of = recorded_as([150, *(100 + 0.01 * i for i in range(9, 0, -1))])
    assert tuned_by(of, Noisy(of, 0.0001)).config == Config({"i": 1})


def test_who_looked_slow_beside_a_neighbour_is_timed_again_in_the_finals() -> None:
    class Neighboured(Noisy):
        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            outcome = super().measure(config, limits)
            assert isinstance(outcome, Measurement)
            beside = config == Config({"i": 2}) and len(self.asked) <= 4
            return replace(outcome.scaled(1.5), disturbance=1 / 3) if beside else outcome

    of = recorded_as([150, 100, 90, 110])
    assert tuned_by(of, Neighboured(of, 0.0001)).config == Config({"i": 2})
