from __future__ import annotations

import math
import random

import pytest

from forecast_autotune.core.forecast import Abstention, Forecast, bin_of
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.scores import bin_probabilities, score_forecasts, score_pairs


def sure(log2: float, fail: float = 0.0) -> Forecast:
    return Forecast.normal(log2, 1e-6, source="s", fail_probability=fail)


def test_perfect_forecasts_score_perfectly() -> None:
    pairs = [(sure(m), m) for m in (-3.0, -1.5, -0.7, -0.2, 0.3, 0.8, 1.5, 2.5)]
    scores = score_pairs(pairs)
    assert scores.count == 8
    assert (scores.accuracy, scores.off_by_one, scores.brier_skill) == (1.0, 1.0, 1.0)
    assert scores.half_brier == pytest.approx(0.0, abs=1e-9)
    assert (scores.crps7, scores.nll, scores.ece) == pytest.approx((0.0, 0.0, 0.0), abs=1e-6)
    assert scores.error_by_fifth == (0.0,) * 5
    assert (scores.top_1_percent, scores.top_10_percent, scores.top_50_percent) == (1.0, 1.0, 1.0)


def test_scores_of_one_forecast_are_those_computed_by_hand() -> None:
    # Half in bin 3 (0.71-1), half in bin 4 (1-1.41); measured in bin 5 (1.41-2).
    half = Forecast.from_bins([0, 0, 0, 1, 1, 0, 0, 0], source="s")
    narrow = Forecast(tuple(type(c)(c.mean, 1e-9, c.weight) for c in half.components), "s")
    scores = score_pairs([(narrow, 0.7), (sure(-0.2), -0.2)])
    assert scores.half_brier == pytest.approx((0.5 * (0.25 + 0.25 + 1.0) + 0.0) / 2)
    # Cumulated: 0 0 0 .5 1 1 1 1 against 0 0 0 0 0 1 1 1, over the 7 edges.
    assert scores.crps7 == pytest.approx((0.5**2 + 1.0**2) / 7 / 2)
    assert scores.accuracy == 0.5
    assert scores.nll == pytest.approx(-math.log(1e-6) / 2)
    # The one has confidence 0.5 and is wrong, the other 1.0 and is right.
    assert scores.ece == pytest.approx(0.25)
    # Bins 5 and 3 are met once each: always answering half and half scores 0.5 * (0.25 + 0.25) = 0.25.
    assert scores.brier_skill == pytest.approx(1 - 0.375 / 0.25)
    assert scores.error_by_fifth == ()


def test_off_by_one_counts_the_neighbour() -> None:
    scores = score_pairs([(sure(0.3), 0.3), (sure(0.3), 0.8), (sure(0.3), 1.5), (sure(0.3), -0.2)])
    assert scores.accuracy == 0.25
    assert scores.off_by_one == 0.75


def test_errors_are_listed_from_the_least_confident_fifth_to_the_most() -> None:
    pairs = [(Forecast.normal(0.25, 0.05 + 0.2 * i, source="s"), 0.25 if i < 3 else 3.0) for i in range(5)]
    assert score_pairs(pairs).error_by_fifth == (1.0, 1.0, 0.0, 0.0, 0.0)


def test_calibration_error_vanishes_when_confidence_is_the_hit_rate() -> None:
    draw = random.Random(1)
    pairs = [
        (Forecast.normal(m, 0.4, source="s"), draw.gauss(m, 0.4)) for m in (draw.uniform(-2, 2) for _ in range(4000))
    ]
    assert score_pairs(pairs).ece < 0.03
    bold = [(Forecast.normal(f.mean, 0.02, source="s"), measured) for f, measured in pairs]
    assert score_pairs(bold).ece > 0.2


def test_always_answering_the_frequencies_has_no_skill() -> None:
    measured = [-0.2] * 3 + [0.3] * 1
    forecast = Forecast.from_bins([0, 0, 0, 3, 1, 0, 0, 0], source="s")
    narrow = Forecast(tuple(type(c)(c.mean, 1e-9, c.weight) for c in forecast.components), "s")
    assert score_pairs([(narrow, m) for m in measured]).brier_skill == pytest.approx(0.0, abs=1e-9)


def test_skill_is_unknown_where_one_bin_has_all() -> None:
    assert score_pairs([(sure(0.3), 0.3), (sure(0.4), 0.4)]).brier_skill is None


def test_the_top_of_the_ranking_is_judged_by_its_best_config() -> None:
    measured = [float(-i) / 100 for i in range(200)]
    backwards = [sure(float(i) / 100) for i in range(200)]
    scores = score_forecasts(backwards, measured)
    assert scores.top_1_percent == pytest.approx(2 ** (1.98))
    assert scores.top_10_percent == pytest.approx(2**1.80)
    assert scores.top_50_percent == pytest.approx(2**1.00)


def test_a_failure_lies_in_the_slowest_bin() -> None:
    scores = score_pairs([(sure(0.4, fail=1.0), -math.inf), (sure(0.4), 0.4)])
    assert scores.accuracy == 1.0
    assert scores.half_brier == pytest.approx(0.0, abs=1e-9)
    assert scores.top_1_percent == 1.0
    assert score_pairs([(sure(0.5), -math.inf)]).top_1_percent is None


def test_an_abstention_is_eight_equal_chances() -> None:
    scores = score_forecasts([Abstention("s", "no idea"), sure(0.3)], [0.3, 0.3])
    assert scores.half_brier == pytest.approx(0.5 * (0.875**2 + 7 * 0.125**2) / 2)


def test_a_reference_moves_bins_and_outcomes_alike() -> None:
    shifted = score_pairs([(Forecast.normal(1.2, 0.3, source="s"), 1.4)], reference=1.0)
    plain = score_pairs([(Forecast.normal(0.2, 0.3, source="s"), 0.4)])
    assert shifted.half_brier == pytest.approx(plain.half_brier)
    assert shifted.crps7 == pytest.approx(plain.crps7)


def test_bins_as_an_array_are_the_forecasts_own() -> None:
    forecasts = [Forecast.normal(0.3, 0.5, source="s"), Forecast.from_bins([1, 2, 3, 4, 5, 6, 7, 8], source="s")]
    for row, forecast in zip(bin_probabilities(forecasts, reference=0.2), forecasts, strict=True):
        assert list(row) == pytest.approx(forecast.bins(0.2))
    assert bin_of(0.0) == 3


@pytest.mark.parametrize(
    ("forecasts", "measured"), [([], []), ([sure(0.0)], []), ([sure(0.0)], [math.nan]), ([sure(0.0)], [math.inf])]
)
def test_what_cannot_be_scored_is_refused(forecasts: list[Forecast], measured: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        score_forecasts(forecasts, measured)
