from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from forecast_autotune.core.forecast import Forecast, Normal
from forecast_autotune.core.sigma_scale import SigmaScale
from forecast_autotune.surrogates.lessons import member_scores, recalibration

FAILED = -math.inf


def after(mean: float, sigma: float) -> Forecast:
    """Made knowing the default's time."""
    return Forecast.normal(mean, sigma, source="s", default_us=5.0)


def ahead(mean: float, sigma: float) -> Forecast:
    return Forecast.normal(mean, sigma, source="s")


def test_nothing_known_corrects_nothing() -> None:
    assert recalibration([]) == SigmaScale()
    assert recalibration([(after(0.0, 1.0), FAILED)]) == SigmaScale(), "a failure says nothing of sigma"


def test_the_scale_of_single_normals_is_their_rms_error_shrunk_towards_one() -> None:
    # 60 errors of 2 sigmas, and 20 of 1 counted in: sqrt((60 * 4 + 20) / 80).
    pairs = [(after(0.3, 0.2), 0.3 + 0.4 * sign) for sign in (-1, 1) for _ in range(30)]
    correction = recalibration(pairs)
    assert correction.warm == pytest.approx(math.sqrt(260 / 80), rel=1e-4)
    assert (correction.warm_pairs, correction.cold, correction.cold_pairs) == (60, 1.0, 0)
    # 20 errors of half a sigma: sqrt((20 / 4 + 20) / 40).
    assert recalibration([(ahead(0.0, 1.0), 0.5)] * 20).cold == pytest.approx(math.sqrt(25 / 40), rel=1e-4)


def test_forecasts_before_and_after_the_default_is_timed_are_scaled_apart() -> None:
    pairs = [(ahead(0.0, 1.0), 0.0)] * 200 + [(after(0.0, 0.1), 0.3)] * 100
    correction = recalibration(pairs)
    assert correction.factor(knows_default=False) < 0.6
    assert correction.factor(knows_default=True) > 2.5
    assert (correction.cold_pairs, correction.warm_pairs) == (200, 100)


def test_a_correction_is_bounded_and_one_error_does_not_decide_it() -> None:
    assert recalibration([(after(0.0, 0.001), 1.0)] * 500).warm == 4.0
    assert recalibration([(after(0.0, 1.0), 0.0)] * 5000).warm == pytest.approx(0.5)
    honest = [(after(0.0, 1.0), 1.0)] * 100
    assert recalibration([*honest, (after(0.0, 1e-9), 2.0)]).warm < 1.2


def test_an_earlier_sigma_scale_is_taken_out_first() -> None:
    pairs = [(after(0.0, 0.1), 0.2), (after(0.0, 0.3), -0.5)] * 40
    stretched = [
        (replace(f, components=tuple(replace(b, sigma=b.sigma * 1.7) for b in f.components), sigma_scale=1.7), m)
        for f, m in pairs
    ]
    assert recalibration(stretched).warm == pytest.approx(recalibration(pairs).warm)


@pytest.mark.parametrize("true", [0.6, 1.0, 2.0, 3.5])
def test_the_sigma_scale_of_simulated_forecasts_and_mixtures_is_recovered(true: float) -> None:
    draw = random.Random(8)
    pairs: list[tuple[Forecast, float]] = []
    for _ in range(3000):
        mean, sigma = draw.uniform(-1, 1), draw.uniform(0.05, 0.5)
        bells = (Normal(mean, sigma, 0.7), Normal(mean + 2.0, 2 * sigma, 0.3))
        bell = bells[draw.random() > 0.7]
        pairs.append((Forecast(bells, "s", default_us=1.0), draw.gauss(bell.mean, true * bell.sigma)))
    assert recalibration(pairs).warm == pytest.approx(true, rel=0.05)


def test_forecasts_that_make_no_sense_are_passed_over() -> None:
    mad = [Forecast((Normal(0.0, 1.0, 0.0),), "s"), ahead(1e300, 1.0), ahead(0.0, 1e300)]
    assert recalibration([(f, 0.0) for f in mad]) == SigmaScale()
    assert recalibration([(ahead(0.0, 0.0), 0.0)]).cold_pairs == 1


def said(**components: tuple[float, float]) -> Forecast:
    weight = 1 / len(components)
    return Forecast(tuple(Normal(m, s, weight, name) for name, (m, s) in components.items()), "blend")


def test_each_component_is_scored_by_its_own_density() -> None:
    pairs = [(said(right=(0.0, 0.5), far=(1.0, 0.5)), 0.0), (said(right=(0.5, 1.0), far=(1.5, 1.0)), 0.5)]
    scores = member_scores(pairs)
    at_mean = [-0.5 * math.log(2 * math.pi) - math.log(s) for s in (0.5, 1.0)]
    assert scores["right"] == pytest.approx(sum(at_mean) / 2)
    assert scores["far"] == pytest.approx((at_mean[0] - 2.0 + at_mean[1] - 0.5) / 2)


def test_a_component_is_scored_without_its_sigma_scale() -> None:
    plain = said(one=(0.0, 0.5), other=(0.2, 0.3))
    wide = replace(plain, components=tuple(replace(b, sigma=b.sigma * 3) for b in plain.components), sigma_scale=3.0)
    assert member_scores([(wide, 0.1)]) == pytest.approx(member_scores([(plain, 0.1)]))


def test_a_component_of_several_normals_is_their_mixture() -> None:
    bells = (Normal(0.0, 0.1, 0.2, "two"), Normal(1.0, 0.1, 0.2, "two"), Normal(0.0, 1.0, 0.6, "one"))
    scores = member_scores([(Forecast(bells, "blend"), 0.0)])
    assert scores["two"] == pytest.approx(math.log(0.5 / (0.1 * math.sqrt(2 * math.pi))), abs=1e-6)


def test_one_outcome_held_impossible_counts_as_one_in_a_million() -> None:
    assert member_scores([(said(sure=(5.0, 1e-3), other=(0.0, 1.0)), 0.0)])["sure"] == pytest.approx(math.log(1e-6))


def test_components_are_compared_on_the_same_pairs() -> None:
    both, three = said(a=(0.0, 1.0), b=(0.0, 2.0)), said(a=(0.0, 1.0), b=(0.0, 2.0), c=(0.0, 0.1))
    assert set(member_scores([(both, 0.0)] * 9 + [(three, 0.0)])) == {"a", "b"}
    assert set(member_scores([(both, 3.0)] * 5 + [(three, 0.0)] * 5)) == {"a", "b", "c"}
    mixed = member_scores([(both, 3.0)] * 5 + [(three, 0.0)] * 5)
    assert mixed == pytest.approx(member_scores([(three, 0.0)])), "what c did not speak of counts for nobody"


def test_nobody_is_compared_where_one_spoke_alone_or_nothing_ran() -> None:
    assert member_scores([]) == {}
    assert member_scores([(after(0.0, 1.0), 0.0), (said(a=(0.0, 1.0)), 0.0)]) == {}
    assert member_scores([(said(a=(0.0, 1.0), b=(0.0, 1.0)), FAILED)]) == {}
