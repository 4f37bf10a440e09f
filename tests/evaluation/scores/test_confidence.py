from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.scores import FifthErrors, risk_coverage, score_forecasts, score_trust
from forecast_autotune.evaluation.scores.checks import checked
from forecast_autotune.evaluation.scores.confidence import confidence_and_error, fifths_of
from forecast_autotune.features.forecast_mixtures import Mixtures

SILENT = Abstention("s", "no idea")


def sure_by(confidence: float, bin_: int = 4) -> Forecast:
    """The given probability in one bin, the rest in the slowest."""
    bins = [0.0] * 8
    bins[0], bins[bin_] = 1.0 - confidence, confidence
    narrow = tuple(type(b)(b.mean, 1e-9, b.weight) for b in Forecast.from_bins(bins, source="s").components)
    return Forecast(narrow, "s")


def by_fifth(forecasts: Sequence[Forecast], measured: Sequence[float]) -> FifthErrors | None:
    return fifths_of(*confidence_and_error(Mixtures.of(forecasts), checked(forecasts, measured), 0.0))


RIGHT, WRONG = 0.3, 0.8  # in bin 4, and beside it


def test_the_curve_of_four_forecasts_is_the_one_computed_by_hand() -> None:
    forecasts = [sure_by(c) for c in (0.6, 0.9, 0.7, 0.8)]
    curve = risk_coverage(forecasts, [WRONG, RIGHT, WRONG, RIGHT])
    # Kept in the order 0.9, 0.8, 0.7, 0.6: right, right, wrong, wrong.
    assert curve.error.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert curve.area == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert [curve.error_at(c) for c in (0.01, 0.5, 0.51, 0.75, 1.0)] == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 2])


def test_equal_confidence_counts_alike_in_any_order() -> None:
    forecasts = [sure_by(0.9), *[sure_by(0.7)] * 3]
    for outcomes in ([WRONG, RIGHT, RIGHT], [RIGHT, WRONG, RIGHT], [RIGHT, RIGHT, WRONG]):
        curve = risk_coverage(forecasts, [RIGHT, *outcomes])
        assert curve.error.tolist() == pytest.approx([0, (1 / 3) / 2, (2 / 3) / 3, 1 / 4])


def test_a_confidence_that_means_nothing_gives_the_plain_error_everywhere() -> None:
    draw = random.Random(3)
    truth = [draw.choice([RIGHT, WRONG]) for _ in range(200)]
    curve = risk_coverage([sure_by(0.8)] * 200, truth)
    plain = 1.0 - score_forecasts([sure_by(0.8)] * 200, truth).accuracy
    assert curve.area == pytest.approx(plain)
    assert set(curve.error.round(12)) == {round(plain, 12)}


def test_the_best_order_of_the_same_errors_has_the_least_area() -> None:
    truth = [RIGHT] * 6 + [WRONG] * 4
    honest = [sure_by(0.95 - i / 100) for i in range(10)]
    area = risk_coverage(honest, truth).area
    # Errors come last: (1/7 + 2/8 + 3/9 + 4/10) / 10.
    assert area == pytest.approx((1 / 7 + 2 / 8 + 3 / 9 + 4 / 10) / 10)
    draw = random.Random(1)
    for _ in range(20):
        shuffled = draw.sample(truth, len(truth))
        assert risk_coverage(honest, shuffled).area >= area - 1e-12
    assert risk_coverage(honest[::-1], truth).area > 2 * area


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_a_perfect_forecaster_has_no_area_and_its_error_does_not_rise(n: int) -> None:
    draw = random.Random(n)
    truth = [draw.uniform(-3, 3) for _ in range(n)]
    forecasts = [Forecast.normal(m, 1e-6, source="s") for m in truth]
    assert risk_coverage(forecasts, truth).area == 0.0
    fifths = by_fifth(forecasts, truth)
    assert (fifths is None) == (n < 5)
    if fifths is not None:
        assert fifths.error == fifths.standard_error == (0.0,) * 5
        assert fifths.falls


def test_an_abstention_is_the_least_confident_of_all() -> None:
    curve = risk_coverage([SILENT, sure_by(0.6)], [RIGHT, RIGHT])
    assert curve.error.tolist() == [0.0, 0.5]
    assert risk_coverage([SILENT], [RIGHT]).area == 1.0


def test_where_all_failed_the_curve_says_who_knew() -> None:
    knew = Forecast.normal(0.3, 0.1, source="s", fail_probability=0.95)
    assert risk_coverage([knew, sure_by(0.8)], [-math.inf, -math.inf]).error.tolist() == [0.0, 0.5]


def test_errors_by_fifth_carry_the_error_of_a_bootstrap_without_drawing() -> None:
    truth = [WRONG, WRONG, WRONG, RIGHT] * 2 + [WRONG, RIGHT, WRONG, RIGHT] + [WRONG, RIGHT, RIGHT, RIGHT] + [RIGHT] * 4
    forecasts = [sure_by(0.55 + i / 100) for i in range(20)]
    fifths = by_fifth(forecasts, truth)
    assert fifths is not None
    assert fifths.error == (0.75, 0.75, 0.5, 0.25, 0.0) == score_forecasts(forecasts, truth).error_by_fifth
    assert fifths.standard_error == pytest.approx([math.sqrt(e * (1 - e) / 4) for e in fifths.error])
    draw = random.Random(5)
    means = [sum(draw.choice([1, 1, 1, 0]) for _ in range(4)) / 4 for _ in range(20_000)]
    spread = math.sqrt(sum((m - 0.75) ** 2 for m in means) / len(means))
    assert fifths.standard_error[0] == pytest.approx(spread, rel=0.03)
    assert fifths.falls


def test_error_falls_unless_it_rises_beyond_its_own_error() -> None:
    def falls(*wrong: int, each: int) -> bool:
        truth = [WRONG if i < count else RIGHT for count in wrong for i in range(each)]
        found = by_fifth([sure_by(0.51 + 0.4 * i / len(truth)) for i in range(len(truth))], truth)
        assert found is not None
        assert found.error == tuple(count / each for count in wrong)
        return found.falls

    assert falls(50, 40, 30, 20, 10, each=100)
    assert falls(50, 30, 40, 20, 10, each=100)  # 0.1 more, with a standard error of 0.067
    assert not falls(500, 300, 400, 200, 100, each=1000)  # the same, with one of 0.021
    assert not falls(10, 10, 10, 10, 10, each=10), "always wrong alike"
    assert not falls(20, 21, 22, 21, 22, each=100), "the most confident are the worst"
    assert falls(0, 0, 0, 0, 0, each=1)


def test_what_cannot_be_scored_is_refused() -> None:
    for score in (risk_coverage, score_trust):
        with pytest.raises(InvalidInputError, match="at least one"):
            score([], [])
        with pytest.raises(InvalidInputError, match="NaN"):
            score([SILENT], [math.nan])
