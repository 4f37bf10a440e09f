from __future__ import annotations

import math
from dataclasses import replace

import pytest
from contracts.store_contract import ReadOnlyStoreContract, a_job
from recorded import recording

from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.replay_runner import HistoryStore, forecast_space, replay
from forecast_autotune.surrogates.roofline import Roofline
from forecast_autotune.tuning.policies import Exhaustive, First, Selective

WHOLE = recording()
SPACE = RecordedSpace(recording=WHOLE)
FAILURE = Failure(stage="launch", message="no", cost_s=0.25)


def test_measuring_everything_decides_on_the_best() -> None:
    run = replay(SPACE, surrogate=Roofline(), policy=Exhaustive(), budget="all")
    assert run.slowdown == pytest.approx(1.0, abs=0.005)  # a tie goes to the config listed first
    assert run.measured == len(SPACE.space)
    assert run.decision is not None
    assert run.slowdown == SPACE.slowdown(SPACE.space.index(run.decision.config))


def test_the_recorded_cost_is_charged() -> None:
    run = replay(SPACE, surrogate=Roofline(), policy=Selective(0), budget="5")
    assert run.measured == 5
    assert run.spent_s > 2.0


def test_an_unmeasured_choice_that_fails_is_infinitely_slow() -> None:
    broken = RecordedSpace(recording=replace(WHOLE, outcomes={**WHOLE.outcomes, WHOLE.default: FAILURE}))
    run = replay(broken, surrogate=Roofline(), policy=First(), budget="0")
    assert run.decision is not None
    assert math.isinf(run.slowdown)


def test_where_nothing_runs_the_failures_are_paid_for() -> None:
    nothing = RecordedSpace(recording=replace(WHOLE, outcomes=dict.fromkeys(WHOLE.outcomes, FAILURE)))
    run = replay(nothing, surrogate=Roofline(), policy=Exhaustive(), budget="all")
    assert math.isinf(run.slowdown)
    assert run.measured == run.compiled == len(nothing.space)


def test_forecasts_stand_beside_what_was_measured() -> None:
    result = forecast_space(SPACE, surrogate=Roofline(), known=10)
    default = WHOLE.outcomes[WHOLE.default]
    assert isinstance(default, Measurement)
    expected = [math.log2(default.median_us / us) if math.isfinite(us) else -math.inf for us in SPACE.times_us]
    assert list(result.speedups) == pytest.approx(expected)
    assert len(result.forecasts) == len(SPACE.space)
    assert len(result.known) == 10


class TestHistoryStore(ReadOnlyStoreContract):
    @pytest.fixture
    def store(self) -> HistoryStore:
        return HistoryStore([WHOLE])


def test_a_store_for_a_replay_holds_what_it_was_given_and_nothing_more() -> None:
    assert HistoryStore([WHOLE]).related_recordings(a_job()) == [WHOLE]
    assert HistoryStore().related_recordings(a_job()) == ()
