from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.scores import (
    bin_probabilities,
    rank_correlation,
    score_forecasts,
    score_trust,
)
from forecast_autotune.evaluation.scores.checks import checked
from forecast_autotune.evaluation.scores.confidence import confidence_and_error
from forecast_autotune.evaluation.scores.trust import regrets_of
from forecast_autotune.features.forecast_columns import Component, ForecastTable
from forecast_autotune.features.forecast_mixtures import Mixtures

SILENT = Abstention("s", "no idea")
FAILED = -math.inf


def normal(mean: float, sigma: float = 0.1, fail: float = 0.0) -> Forecast:
    return Forecast.normal(mean, sigma, source="s", fail_probability=fail)


def regrets(
    forecasts: Sequence[Forecast | Abstention], measured: Sequence[float], shares: Sequence[float]
) -> list[float | None]:
    mixtures, truth = Mixtures.of(forecasts), checked(forecasts, measured)
    confidence, _ = confidence_and_error(mixtures, truth, 0.0)
    return regrets_of(mixtures, confidence, truth, shares)


def test_coverage_is_the_share_inside_the_central_interval() -> None:
    # The central half of a normal reaches 0.6745 sigma to each side, its central 90 % 1.6449.
    forecasts = [normal(1.0, 2.0)] * 4
    measured = [1 + 2 * 0.67, 1 - 2 * 0.68, 1 + 2 * 1.64, 1 - 2 * 1.65]
    scores = score_trust(forecasts, measured)
    assert (scores.coverage_50, scores.coverage_90) == (0.25, 0.75)


def test_the_interval_is_that_of_the_mixture() -> None:
    # Two narrow bells at -1 and 1: the central half reaches from one to the other, what lies between included.
    two = Forecast((Normal(-1.0, 0.01, 0.5), Normal(1.0, 0.01, 0.5)), "s")
    assert score_trust([two] * 3, [0.0, -0.99, 1.02]).coverage_50 == pytest.approx(2 / 3)


def test_failures_and_abstentions_are_no_part_of_the_coverage() -> None:
    assert score_trust([normal(0.0), normal(0.0), SILENT], [0.0, FAILED, 0.0]).coverage_50 == 1.0
    assert score_trust([normal(0.0), SILENT], [FAILED, 0.0]).coverage_50 is None


def test_an_honest_forecaster_covers_what_it_says() -> None:
    draw = random.Random(2)
    forecasts = [normal(draw.uniform(-1, 1), draw.uniform(0.1, 1)) for _ in range(4000)]
    measured = [draw.gauss(f.mean, f.sigma) for f in forecasts]
    scores = score_trust(forecasts, measured)
    assert scores.coverage_50 == pytest.approx(0.5, abs=0.03)
    assert scores.coverage_90 == pytest.approx(0.9, abs=0.02)


def test_rank_correlation_is_spearmans_with_mean_ranks_for_ties() -> None:
    forecasts = [normal(m) for m in (1.0, 2.0, 2.0, 4.0)]
    # Ranks 0, 1.5, 1.5, 3 against 1, 0, 2, 3; less their mean of 1.5: (-1.5, 0, 0, 1.5) and (-0.5, -1.5, 0.5, 1.5).
    assert rank_correlation(forecasts, [0.2, 0.1, 0.3, 0.9]) == pytest.approx((0.75 + 2.25) / math.sqrt(4.5 * 5.0))
    assert rank_correlation(forecasts[:2], [0.1, 0.2]) == pytest.approx(1.0)
    assert rank_correlation(forecasts[:2], [0.2, 0.1]) == pytest.approx(-1.0)


def test_rank_correlation_covers_configs_that_ran_and_needs_an_order() -> None:
    assert rank_correlation([normal(1.0), normal(2.0), normal(9.0), SILENT], [0.1, 0.2, FAILED, 0.0]) == 1.0
    assert rank_correlation([normal(1.0)], [0.1]) is None
    assert rank_correlation([normal(1.0), normal(1.0)], [0.1, 0.2]) is None
    assert rank_correlation([normal(1.0), normal(2.0)], [0.1, 0.1]) is None
    assert rank_correlation([normal(1.0), normal(2.0)], [FAILED, FAILED]) is None


def test_regret_is_of_the_config_that_looks_best_measured_or_trusted() -> None:
    # From the least confident: b is forecast too high, c too low; a is known well.
    forecasts = [normal(0.25, 0.01), normal(0.5, 2.0), normal(0.1, 0.5), normal(-0.25, 0.02)]
    measured = [0.3, 0.0, 1.0, -0.2]
    # Nothing measured: b looks best at 0.5, measured 0.0 against 1.0. Then b is measured, a looks best at 0.25, measured
    # 0.3. Then c as well, found to be the best.
    assert regrets(forecasts, measured, [0.0, 0.25, 0.5, 1.0]) == pytest.approx([1.0, 2**0.7 - 1, 0, 0])
    assert regrets(forecasts, measured, [0.01]) == pytest.approx([2**0.7 - 1]), "rounded up to one"


def test_regret_is_unknown_where_the_choice_does_not_run() -> None:
    assert regrets([normal(2.0, 0.01), normal(0.0, 1.0)], [FAILED, 0.0], [0.0, 0.5, 1.0]) == [
        None,
        None,
        0,
    ]
    assert regrets([SILENT, SILENT], [0.0, 1.0], [0.0, 1.0]) == [None, 0.0]
    assert regrets([normal(0.0)], [FAILED], [0.0, 1.0]) == [None, None]


def test_a_likely_failure_and_an_abstention_are_not_trusted() -> None:
    doubted = normal(1.0, 0.01, fail=0.9)
    assert regrets([doubted, normal(0.0, 0.01)], [FAILED, 0.0], [0.0]) == [0.0]
    assert regrets([SILENT, normal(-1.0, 0.01)], [0.0, -1.0], [0.0, 0.5]) == [1.0, 0.0]


def test_measuring_more_never_hurts_a_forecaster_that_is_right() -> None:
    draw = random.Random(4)
    truth = [draw.gauss(0, 1) for _ in range(50)]
    perfect = [normal(m, draw.uniform(0.001, 0.1)) for m in truth]
    assert regrets(perfect, truth, [0, 0.1, 0.5, 1]) == [0.0] * 4
    scores = score_trust(perfect, truth)
    assert (scores.rank_correlation, scores.regret_10, scores.regret_30) == (pytest.approx(1.0), 0.0, 0.0)
    assert (scores.coverage_50, scores.coverage_90) == (1.0, 1.0)


def test_all_scores_bear_a_single_forecast_and_nothing_that_ran() -> None:
    alone = score_trust([normal(0.3, 1e-6)], [0.3])
    assert (alone.aurc, alone.error_by_fifth_se, alone.error_falls, alone.regret_10) == (0.0, (), None, 0.0)
    failed = score_trust([normal(0.3), SILENT, normal(0.1)] * 3, [FAILED] * 9)
    assert (failed.coverage_50, failed.rank_correlation, failed.regret_30) == (None, None, None)
    assert failed.error_by_fifth_se != ()
    silent = score_trust([SILENT] * 6, [0.1 * i for i in range(6)])
    assert (silent.coverage_90, silent.rank_correlation, silent.regret_10) == (None, None, pytest.approx(2**0.5 - 1))
    with pytest.raises(InvalidInputError, match="1 forecasts for 0 outcomes"):
        score_trust([SILENT], [])


def test_a_table_scores_as_the_same_forecasts_one_by_one() -> None:
    import numpy as np

    draw = np.random.default_rng(7)
    weight = draw.uniform(0, 1, 40)
    weight[:5] = 0.0
    silent = np.zeros(40)
    silent[35:] = 1.0
    components = [
        Component("one", draw.normal(0, 1, 40), draw.uniform(0.1, 1, 40), weight * (1 - silent)),
        Component("other", draw.normal(0, 1, 40), draw.uniform(0.1, 1, 40), (1 - weight) * (1 - silent)),
    ]
    components[0].mean[35:] = math.nan  # what nobody says may be anything
    table = ForecastTable(components, draw.uniform(0, 0.3, 40), source="s", default_us=5.0)
    truth = draw.normal(0, 1, 40)
    truth[3] = FAILED
    objects = list(table)
    assert isinstance(objects[36], Abstention)
    assert bin_probabilities(table, reference=0.2) == pytest.approx(bin_probabilities(objects, reference=0.2))
    for forecast, row in zip(objects, bin_probabilities(table), strict=True):
        if isinstance(forecast, Forecast):
            fail = forecast.fail_probability
            expected = [(1 - fail) * p + (fail if i == 0 else 0) for i, p in enumerate(forecast.bins())]
            assert row.tolist() == pytest.approx(expected)
        else:
            assert set(row) == {0.125}
    assert score_forecasts(table, truth.tolist()) == score_forecasts(objects, truth.tolist())
    assert score_trust(table, truth.tolist()) == score_trust(objects, truth.tolist())
