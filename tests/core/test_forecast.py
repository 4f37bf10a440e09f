from __future__ import annotations

import math
import random

import pytest

from forecast_autotune.core.forecast import BIN_EDGES_LOG2, Forecast, Normal, bin_of
from forecast_autotune.errors import InvalidInputError


@pytest.mark.parametrize(
    ("log2", "index"), [(-9, 0), (-2, 0), (-1.99, 1), (-0.5, 2), (0, 3), (0.01, 4), (1, 5), (2, 6), (2.1, 7)]
)
def test_an_upper_edge_belongs_to_its_bin(log2: float, index: int) -> None:
    assert bin_of(log2) == index


def test_a_speedup_of_a_fifth_lies_above_the_reference() -> None:
    assert bin_of(math.log2(1.2)) == 4


@pytest.mark.parametrize("reference", [-3.0, 0.0, 0.7])
def test_bins_sum_to_one_against_any_reference(reference: float) -> None:
    forecast = Forecast((Normal(0.3, 0.4, 0.6), Normal(-2.0, 0.1, 0.4)), "s")
    assert math.isclose(sum(forecast.bins(reference)), 1.0, abs_tol=1e-12)


def test_a_reference_shifts_the_bins() -> None:
    sure = Forecast.normal(1.4, 1e-6, source="s")
    assert sure.bins()[6] == pytest.approx(1.0)
    assert sure.bins(1.0)[4] == pytest.approx(1.0)
    with pytest.raises(InvalidInputError):
        sure.bins(math.nan)


def test_bins_come_back_from_the_forecast_made_of_them() -> None:
    probabilities = (0.0, 0.05, 0.1, 0.3, 0.3, 0.15, 0.1, 0.0)
    forecast = Forecast.from_bins([10 * p for p in probabilities], source="s")
    assert forecast.bins() == pytest.approx(probabilities, abs=0.03)
    assert sum(c.weight for c in forecast.components) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [[1.0] * 7, [0.0] * 8, [-1.0, *[1.0] * 7], [math.nan, *[1.0] * 7]])
def test_bins_that_are_none_are_refused(bad: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        Forecast.from_bins(bad, source="s")


def test_moments_and_probabilities_of_one_normal() -> None:
    forecast = Forecast.normal(0.5, 0.2, source="s", fail_probability=0.25)
    assert forecast.mean == pytest.approx(0.5)
    assert forecast.sigma == pytest.approx(0.2)
    assert forecast.cdf(0.5) == pytest.approx(0.5)
    assert forecast.chance_above(0.5) == pytest.approx(0.375)
    assert forecast.cdf(0.7) == pytest.approx(0.8413447)


def test_a_mixture_is_as_wide_as_its_parts_are_apart() -> None:
    forecast = Forecast((Normal(-1.0, 0.1, 0.5), Normal(1.0, 0.1, 0.5)), "s")
    assert forecast.mean == pytest.approx(0.0)
    assert forecast.sigma == pytest.approx(math.hypot(1.0, 0.1))


def test_expected_gain_is_the_improvement_averaged_over_the_normal() -> None:
    assert Forecast.normal(0.0, 1.0, source="s").expected_gain(0.0) == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert Forecast.normal(3.0, 1e-9, source="s").expected_gain(1.0) == pytest.approx(2.0)
    assert Forecast.normal(-3.0, 1e-9, source="s").expected_gain(1.0) == pytest.approx(0.0)
    assert Forecast.normal(3.0, 1e-9, source="s", fail_probability=0.5).expected_gain(1.0) == pytest.approx(1.0)


def test_a_time_is_known_where_the_defaults_is() -> None:
    assert Forecast.normal(1.0, 0.1, source="s", default_us=80.0).time_us() == pytest.approx(40.0)
    assert Forecast.normal(1.0, 0.1, source="s").time_us() is None


def test_there_are_eight_bins() -> None:
    assert len(BIN_EDGES_LOG2) == 7


def test_expected_time_and_chance_of_being_slower_are_those_of_many_draws() -> None:
    draw = random.Random(0)
    bells = (Normal(0.4, 0.5, 0.7), Normal(-1.0, 1.5, 0.3))
    forecast = Forecast(bells, "test", fail_probability=0.1)
    times = []
    for _ in range(100_000):
        bell = bells[draw.random() < 0.3]
        times.append(math.inf if draw.random() < 0.1 else 2.0 ** -draw.gauss(bell.mean, bell.sigma))
    assert forecast.expected_time(4.0) == pytest.approx(sum(min(4.0, t) for t in times) / len(times), abs=0.02)
    assert forecast.chance_slower(1.3) == pytest.approx(sum(t > 1.3 for t in times) / len(times), abs=0.01)


@pytest.mark.parametrize("mean", [-3000.0, 0.0, 3000.0])
def test_expected_time_stays_finite_however_far_the_forecast_is_off(mean: float) -> None:
    assert 0.0 <= Forecast.normal(mean, 40.0, source="test").expected_time(4.0) <= 4.0
