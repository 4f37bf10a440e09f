"""What is decided, end to end on small recordings, and by the pure rule alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from recorded import job_of, measurement
from small_runs import FAILED, Fixed, Memory, decide, recorded_as

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Stop
from forecast_autotune.core.outcome import Failure, Outcome
from forecast_autotune.errors import NoWorkingConfigError
from forecast_autotune.tuning.decision_rule import Findings, choose, pick_winner
from forecast_autotune.tuning.policies import First, StoredOnly


def test_equal_times_are_decided_alike_and_the_others_are_named() -> None:
    times = [100, 50.1, 50.0, 50.05, 80]
    decision = decide(recorded_as(times))
    assert decision.config == Config({"i": 1})
    assert set(decision.equivalents) == {Config({"i": 2}), Config({"i": 3})}
    assert decide(recorded_as(times)).config == decision.config


def test_a_winner_must_beat_the_default_beyond_the_noise() -> None:
    decision = decide(recorded_as([100, 99]))
    assert decision.config == Config({"i": 0})
    assert "noise" in decision.reason
    noisy = recorded_as([measurement(100, spread=0.5), measurement(90, spread=0.5)])
    assert decide(noisy).config == Config({"i": 0})
    assert decide(recorded_as([100, 90])).config == Config({"i": 1})


def test_a_win_that_a_neighbour_may_have_made_does_not_count() -> None:
    disturbed = replace(measurement(90), disturbance=0.2)
    assert decide(recorded_as([100, disturbed])).config == Config({"i": 0})
    assert decide(recorded_as([disturbed, 80])).config == Config({"i": 0})
    assert decide(recorded_as([100, 90])).config == Config({"i": 1})


def test_a_failure_is_remembered_and_never_wins() -> None:
    store = Memory()
    decision = decide(recorded_as([100, FAILED, 80]), store=store)
    assert decision.config == Config({"i": 2})
    assert decision.failed == 1
    assert (Config({"i": 1}), FAILED) in [(c, o) for c, o, _ in store.recorded]


def test_a_trusted_forecast_decides_on_a_budget_of_nothing() -> None:
    forecasts = {
        Config({"i": 1}): Forecast.normal(0.5, 0.2, source="fixed"),
        Config({"i": 2}): Forecast.normal(0.9, 2.0, source="fixed"),  # better, but far from sure
        Config({"i": 3}): Forecast.normal(0.9, 0.2, source="fixed", fail_probability=0.5),
    }
    decision = decide(recorded_as([100, 60, 60, 60]), "0", policy=StoredOnly(), surrogate=Fixed(forecasts))
    assert (decision.config, decision.basis) == (Config({"i": 1}), "forecast")
    assert "fixed" in decision.reason


def test_what_is_stored_decides_on_a_budget_of_nothing() -> None:
    store = Memory(known={Config({"i": 0}): measurement(100), Config({"i": 1}): measurement(60)})
    decision = decide(recorded_as([100, 60]), "0", policy=StoredOnly(), store=store)
    assert (decision.config, decision.basis) == (Config({"i": 1}), "measured")


def test_the_first_config_may_be_asked_for() -> None:
    decision = decide(recorded_as([100, 60]), "0", policy=First())
    assert (decision.config, decision.basis) == (Config({"i": 0}), "default")


def test_a_default_that_kills_the_process_is_an_error_if_nothing_else_runs() -> None:
    crash = Failure(stage="launch", message="segmentation fault", cost_s=0.1, crashed=True)
    with pytest.raises(NoWorkingConfigError, match="segmentation fault"):
        decide(recorded_as([crash, FAILED]))
    assert decide(recorded_as([crash, 80])).config == Config({"i": 1})
    # One that merely fails is the caller's to launch, as if there had been no tuning.
    assert decide(recorded_as([FAILED, FAILED])).config == Config({"i": 0})


def test_without_a_working_default_the_fastest_is_taken() -> None:
    decision = decide(recorded_as([FAILED, 90, 80]))
    assert decision.config == Config({"i": 2})
    assert decision.default_us is None
    assert "default does not run" in decision.reason


# The rule alone ---------------------------------------------------------------------------------------------------------

DONE = Stop("done")


def findings(times: Sequence[float | Outcome | None], **more: Any) -> Findings:
    """What a run knows that tried configs i=0, 1, … with these times; None was not tried."""
    job = job_of(recorded_as([1.0 if t is None else t for t in times]))
    outcomes = {
        Config({"i": i}): measurement(t) if isinstance(t, (int, float)) else t
        for i, t in enumerate(times)
        if t is not None
    }
    facts: dict[str, Any] = {
        "finals": {},
        "forecasts": [Abstention("nobody", "")] * len(times),
        "tried": set(outcomes),
        "compiled": len(outcomes),
        "budget": "all",
        "spent_s": 1.0,
        "run": "run",
        "now": 0.0,
    }
    return Findings(job=job, outcomes=outcomes, **{**facts, **more})


def test_the_order_in_which_outcomes_came_decides_nothing() -> None:
    known = findings([100, 50.1, 50.0, 50.05, 80])
    turned = replace(known, outcomes=dict(reversed(known.outcomes.items())))
    assert choose(known, DONE) == choose(turned, DONE)


def test_who_was_not_timed_in_turns_does_not_win() -> None:
    finals = {Config({"i": i}): measurement(t) for i, t in ((0, 100), (1, 70))}
    choice = choose(findings([100, 70, 50], finals=finals), DONE)
    assert (choice.config, choice.basis) == (Config({"i": 1}), "measured")


def test_a_config_that_the_policy_names_is_chosen_whatever_was_measured() -> None:
    choice = choose(findings([100, 50, 70]), Stop("named", config=Config({"i": 2})), by_forecast=True)
    assert (choice.config, choice.basis, choice.reason) == (Config({"i": 2}), "default", "named")


@pytest.mark.parametrize(("mean", "basis"), [(0.9, "measured"), (1.5, "forecast")])
def test_a_trusted_forecast_must_beat_what_was_measured(mean: float, basis: str) -> None:
    forecasts = [Abstention("nobody", "")] * 2 + [Forecast.normal(mean, 0.1, source="fixed")]
    known = findings([100, 50, None], forecasts=forecasts)
    assert choose(known, DONE, by_forecast=True).basis == basis
    assert choose(known, DONE).basis == "measured", "only where nothing may be measured"


@pytest.mark.parametrize(
    ("forecast", "basis"),
    [
        (Forecast.normal(0.5, 0.3, source="fixed"), "forecast"),
        (Forecast.normal(0.5, 1.0, source="fixed"), "default"),  # one in five that it is far slower
        (Forecast.normal(0.5, 0.3, source="fixed", fail_probability=0.15), "default"),
        (replace(Forecast.normal(2.0, 0.3, source="fixed"), grounded=False), "default"),  # rules of thumb alone
        (Forecast.normal(0.02, 0.01, source="fixed"), "default"),  # surely faster, by too little
    ],
)
def test_an_untried_config_is_chosen_where_it_is_hardly_ever_far_slower(forecast: Forecast, basis: str) -> None:
    known = findings([None, None], forecasts=[Abstention("nobody", ""), forecast])
    assert choose(known, DONE, by_forecast=True).basis == basis


def test_of_several_good_forecasts_the_least_expected_time_wins() -> None:
    wide, narrow = Forecast.normal(0.9, 0.7, source="fixed"), Forecast.normal(0.9, 0.2, source="fixed")
    known = findings([None] * 3, forecasts=[Abstention("nobody", ""), wide, narrow])
    assert choose(known, DONE, by_forecast=True).config == Config({"i": 2})


def test_where_nothing_ran_the_reason_counts_the_stages() -> None:
    broken = Failure(stage="compile", message="no")
    choice = choose(findings([FAILED, broken, FAILED]), DONE)
    assert (choice.config, choice.basis) == (Config({"i": 0}), "default")
    assert choice.reason == "none of 3 configs tried runs here (2 at launch, 1 at compile); done"


def test_a_winner_needs_no_default_that_ran() -> None:
    known = findings([FAILED, 90, 80])
    assert pick_winner(known.ran, known.job.space).config == Config({"i": 2})
