"""Every method on a small recorded space: the default first, nothing twice, the same again from the same seed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from recorded import HERE, recording

pytest.importorskip("sklearn")
pytest.importorskip("kernel_tuner")

from calibration.evaluate.kernel_tuner_strategies import STRATEGIES, strategy_order
from calibration.evaluate.searches import METHODS, PROCESS_START
from calibration.evaluate.trials import FAILED, Case, Trial
from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.surrogates.by_name import make_surrogate

ELSEWHERE = replace(HERE, name="B", units=60)
OTHER_VENDOR = replace(HERE, kind="hip", name="C")
LIMIT = 14


def case(of: Recording, *elsewhere: Recording) -> Case:
    return Case(recording=of, recordings=elsewhere, surrogate=lambda: make_surrogate("auto"))


@lru_cache
def bowl() -> Case:
    return case(
        recording(),
        recording(hardware=ELSEWHERE, best_block=6.5),
        recording(hardware=OTHER_VENDOR, best_block=9.0, best_tile=6.0, failures=False),
    )


def few(times: dict[int, float | None], default: int = 0) -> Recording:
    """One knob; a config without a time fails."""
    outcomes: dict[Config, Outcome] = {
        Config({"k": k}): Failure(stage="launch", message="no") if us is None else Measurement(samples_us=(us,))
        for k, us in times.items()
    }
    return replace(recording(), default=Config({"k": default}), outcomes=outcomes)


def searched(method: str, of: Case, limit: int = LIMIT, seed: int = 0) -> Trial:
    trial = Trial(of, limit, seed)
    METHODS[method].search(trial)
    return trial


@pytest.mark.parametrize("method", METHODS)
def test_the_default_comes_first_and_nothing_twice(method: str) -> None:
    trial = searched(method, bowl())
    assert trial.tried[0] == 0
    assert len(set(trial.tried)) == len(trial.tried) <= LIMIT
    assert not trial.broke
    if not method.startswith("kt-"):  # some of those end by themselves
        assert len(trial.tried) == LIMIT
    else:
        assert len(trial.tried) > LIMIT // 2


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_sequence(method: str) -> None:
    assert searched(method, bowl(), seed=3).tried == searched(method, bowl(), seed=3).tried


@pytest.mark.parametrize("method", ["random", "gp-ei", *(f"kt-{name}" for name in STRATEGIES)])
def test_another_seed_gives_another_sequence(method: str) -> None:
    assert searched(method, bowl(), seed=1).tried != searched(method, bowl(), seed=2).tried


@pytest.mark.parametrize("method", ["random", "look-up", "gp-on-look-up", "top-forecast"])
def test_a_curve_never_rises(method: str) -> None:
    trial = searched(method, bowl(), 40)
    curve = [trial.slowdown(n) for n in range(1, 41)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] >= 1.0


@pytest.mark.parametrize("method", METHODS)
def test_a_space_smaller_than_the_budget_is_tried_in_full_or_left(method: str) -> None:
    of = few({0: 4.0, 1: 3.0, 2: None, 3: 2.0, 4: 1.0})
    trial = searched(method, case(of, few({0: 4.0, 1: 3.0, 2: 2.5, 4: None})), 50)
    assert set(trial.tried) <= set(range(5))
    if not method.startswith("kt-"):
        assert len(trial.tried) == 5
        assert trial.slowdown(50) == 1.0


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("top-forecast", "top-forecast-again")])
def test_nothing_but_the_default_is_tried_with_a_budget_of_one(method: str) -> None:
    assert searched(method, bowl(), 1).tried == [0]
    assert searched(method, bowl(), 0).tried == []


def test_a_failing_config_costs_one_and_counts_as_slower_than_the_slowest() -> None:
    trial = Trial(case(few({0: 8.0, 1: None, 2: 2.0, 3: 1.0})), 3, 0)
    assert math.isinf(Trial(case(few({0: None, 1: 1.0})), 1, 0).slowdown(1))
    trial.measure(1)
    trial.measure(2)
    assert trial.left == 0
    assert trial.costs().tolist() == pytest.approx([3.0, 3.0 + FAILED, 1.0])
    assert [trial.slowdown(n) for n in (1, 2, 3)] == pytest.approx([8.0, 8.0, 2.0])


def test_a_trial_refuses_what_it_has_tried_and_more_than_it_may() -> None:
    trial = Trial(case(few({0: 8.0, 1: 4.0, 2: 2.0})), 2, 0)
    with pytest.raises(ValueError, match="tried before"):
        trial.measure(0)
    trial.measure(1)
    with pytest.raises(ValueError, match="tries are used"):
        trial.measure(2)


def test_unmeasured_scores_what_a_method_would_run_or_a_working_default() -> None:
    elsewhere = few({0: 4.0, 1: 1.0, 2: 2.0})
    assert searched("look-up", case(few({0: 4.0, 1: 2.0, 2: 1.0}), elsewhere), 0).slowdown(0) == pytest.approx(2.0)
    assert searched("look-up", case(few({0: 4.0, 1: None, 2: 1.0}), elsewhere), 0).slowdown(0) == pytest.approx(4.0)
    for method in ("random", "top-forecast"):  # without a source, forecasts abstain
        assert searched(method, case(few({0: 4.0, 1: 2.0, 2: 1.0})), 0).slowdown(0) == pytest.approx(4.0)


def test_the_look_up_is_the_mean_over_sources_of_log_time_over_each_median() -> None:
    here = few({0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0})
    told = case(
        here,
        few({0: 1.0, 1: 2.0, 2: 4.0}),
        replace(few({0: 64.0, 1: 16.0, 2: None, 3: 16.0}), hardware=OTHER_VENDOR),
    ).history
    # Medians: 2 and 16; what failed is beyond the slowest of its source.
    assert told.log2[0].tolist() == pytest.approx([-1.0, 0.0, 1.0, math.nan], nan_ok=True)
    assert told.log2[1].tolist() == pytest.approx([2.0, 0.0, 2.0 + FAILED, 0.0])
    assert told.mean().tolist() == pytest.approx([0.5, 0.0, (3.0 + FAILED) / 2, 0.0])
    assert told.mean(same_vendor=True).tolist() == pytest.approx([-1.0, 0.0, 1.0, 0.0])


def test_the_same_vendor_is_asked_where_there_is_one() -> None:
    both = bowl()
    alone = case(both.recording, both.recordings[0])
    other = case(both.recording, both.recordings[1])
    assert searched("look-up-vendor", both).tried == searched("look-up", alone).tried
    assert searched("look-up-vendor", other).tried == searched("look-up", other).tried


def test_a_recording_that_shares_no_config_says_nothing() -> None:
    assert case(few({0: 1.0, 1: 2.0}), few({7: 1.0, 8: 2.0}, default=7)).history.log2.shape == (0, 2)


def test_the_portfolio_takes_what_serves_both_sources_then_each_ones_best() -> None:
    here = few({0: 9.0, 1: 9.0, 2: 9.0, 3: 9.0})
    of = case(here, few({0: 64.0, 1: 1.0, 2: 32.0, 3: 2.0}), few({0: 64.0, 1: 32.0, 2: 1.0, 3: 2.0}))
    # Config 3 is twice the best of both; then 1 and 2 are the best of one each.
    trial = searched("portfolio", of, 4)
    assert trial.tried[:2] == [0, 3]
    assert set(trial.tried[2:]) == {1, 2}
    assert trial.unmeasured == 3


def test_models_on_the_look_up_begin_with_it() -> None:
    begun = searched("look-up", bowl(), PROCESS_START).tried
    for method in ("gp-on-look-up", "trees-on-look-up"):
        assert searched(method, bowl(), 8).tried[:PROCESS_START] == begun


@pytest.mark.thorough
def test_models_find_the_bottom_of_a_bowl_sooner_than_chance() -> None:
    def mean(method: str) -> float:
        found = [searched(method, bowl(), 24, seed).slowdown(24) for seed in range(3)]
        return float(np.mean(found))

    for method in ("gp-ei", "trees-lcb"):
        assert mean(method) <= mean("random")


def test_kernel_tuner_sees_the_recorded_times() -> None:
    """Its hill climbing ends at the fastest of a smooth row, which its random start seldom is."""
    of = case(few({k: float(1 + (k - 30) ** 2) for k in range(40)}))
    order, broke = strategy_order(of, "greedy_ils", 39, 5)
    assert not broke
    assert 30 in order
    order, broke = strategy_order(of, "bayes_opt", 30, 5)
    assert (30 in order, broke) == (True, "")


def test_a_strategy_that_breaks_down_keeps_what_it_has_tried() -> None:
    """Kernel Tuner's hill climbing has no answer where no config differs from its start in one knob alone."""
    outcomes: dict[Config, Outcome] = {Config({"a": k, "b": k}): Measurement(samples_us=(1.0 + k,)) for k in range(10)}
    of = case(replace(recording(), default=Config({"a": 0, "b": 0}), outcomes=outcomes))
    trial = searched("kt-greedy_ils", of, 8)
    assert "NoneType" in trial.broke
    assert trial.tried[0] == 0
