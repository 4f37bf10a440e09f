"""When a single run is enough."""

from __future__ import annotations

import math

import pytest
from small_runs import Fixed, Noisy, recorded_as, tuned_by

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.tuning.early_stop import early_stop_us


def forecast(mean: float, sigma: float = 0.1) -> Forecast:
    return Forecast.normal(mean, sigma, source="test")


def test_without_a_forecast_the_limit_is_three_errors_of_one_run() -> None:
    assert early_stop_us(50, 100, None) == pytest.approx(50 * 2**1.5)
    assert early_stop_us(50, 100, Abstention("test", "no idea")) == early_stop_us(50, 100, None)


def test_a_slow_forecast_ends_timing_sooner_but_never_below_twice_the_best() -> None:
    assert early_stop_us(50, 100, forecast(0.9)) < early_stop_us(50, 100, forecast(1.1))
    assert early_stop_us(50, 100, forecast(-9.0)) == pytest.approx(100)


def test_no_forecast_counts_as_surer_than_half_an_octave() -> None:
    assert early_stop_us(50, 100, forecast(1.0, 0.001)) == early_stop_us(50, 100, forecast(1.0, 0.5))


def test_the_early_stop_allows_for_the_best_the_forecast_and_the_noise() -> None:
    of = recorded_as([100, 50, 60, 70])
    blind, sure_slow, sure_fast = Noisy(of, 0.001), Noisy(of, 0.001), Noisy(of, 0.001)
    tuned_by(of, blind)
    tuned_by(of, sure_slow, Fixed({Config({"i": 3}): Forecast.normal(-1.0, 0.1, source="test")}))
    tuned_by(of, sure_fast, Fixed({Config({"i": 3}): Forecast.normal(3.0, 0.1, source="test")}))
    named = {"blind": blind, "slow": sure_slow, "fast": sure_fast}
    bounds = {name: dict(measurer.asked[:4])[Config({"i": 3})] for name, measurer in named.items()}
    assert blind.asked[0] == (Config({"i": 0}), math.inf), "nothing to compare the default with"
    assert bounds["blind"] == pytest.approx(50 * 2**1.5), "three errors of half an octave"
    assert bounds["slow"] == pytest.approx(100.0), "never below twice the best: one run says too little"
    assert bounds["fast"] > 2 * bounds["blind"]
    assert not math.isfinite(sure_fast.asked[-1][1]), "finalists are timed in full"
