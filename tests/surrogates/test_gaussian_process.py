from __future__ import annotations

import math

import numpy as np
import pytest

from forecast_autotune.surrogates.gaussian_process import (
    DATA,
    SCALE_COUNT,
    KnownOutcomes,
    Shape,
    choose_shape,
    loo_log_densities,
    most_telling,
    predict,
    share_of_failures,
    similarity,
)


def small(n: int = 7, seed: int = 0) -> tuple[KnownOutcomes, Shape]:
    draw = np.random.default_rng(seed)
    x = draw.normal(0, 1, (n, 2))
    trend = np.column_stack([np.full(n, 1.2), x[:, 0]])
    return KnownOutcomes(x, trend, np.sin(2 * x[:, 0]) + 0.3 * draw.normal(0, 1, n)), Shape(np.array([1.5, 3.0]), 0.2)


def covariance(known: KnownOutcomes, shape: Shape) -> np.ndarray:
    near = similarity(known.x, known.x, shape) + known.basis @ known.basis.T
    return np.asarray(near + shape.nugget * np.eye(len(known.y)), dtype=float)


def test_loo_densities_equal_those_of_leaving_one_out_by_hand() -> None:
    known, shape = small()
    guess, n, y = 0.8, known.y.size, known.y
    near = covariance(known, shape)
    scale = (SCALE_COUNT * guess**2 + y @ np.linalg.solve(near, y)) / (SCALE_COUNT + n)
    by_hand = []
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        weights = np.linalg.solve(near[np.ix_(rest, rest)], near[rest, i])
        mean, variance = weights @ y[rest], scale * (near[i, i] - weights @ near[rest, i])
        by_hand.append(-0.5 * (y[i] - mean) ** 2 / variance - 0.5 * math.log(2 * math.pi * variance))
    assert loo_log_densities(known, shape, guess) == pytest.approx(by_hand, abs=1e-9)


def test_one_outcome_is_predicted_by_the_guess_alone_and_none_by_nothing() -> None:
    known, shape = small(1)
    variance = covariance(known, shape)[0, 0]
    scale = (SCALE_COUNT * 0.25 + known.y[0] ** 2 / variance) / (SCALE_COUNT + 1)
    expected = -0.5 * known.y[0] ** 2 / (scale * variance) - 0.5 * math.log(2 * math.pi * scale * variance)
    assert loo_log_densities(known, shape, 0.5) == pytest.approx([expected])
    assert loo_log_densities(known.at(np.zeros(0, dtype=np.intp)), shape, 0.5).size == 0


def test_an_outcome_unlike_its_neighbours_has_the_lowest_loo_density() -> None:
    x = np.linspace(-1.5, 1.5, 9)[:, None]
    y = 0.1 * x[:, 0]
    y[4] = 2.0
    told = loo_log_densities(KnownOutcomes(x, np.full((9, 1), 1.2), y), Shape(np.array([1.0]), 0.03), 0.8)
    assert int(told.argmin()) == 4


def test_a_prediction_is_the_textbooks_in_blocks_and_in_single_precision() -> None:
    known, shape = small(9)
    draw = np.random.default_rng(1)
    x = draw.normal(0, 1, (1300, 2))
    trend = np.column_stack([np.full(1300, 1.2), x[:, 0]])
    near, y = covariance(known, shape), known.y
    across = similarity(known.x, x, shape) + known.basis @ trend.T
    scale = (SCALE_COUNT * 0.64 + y @ np.linalg.solve(near, y)) / (SCALE_COUNT + y.size)
    left = 1 + (trend**2).sum(axis=1) + shape.nugget - np.einsum("ij,ij->j", across, np.linalg.solve(near, across))
    mean, sigma = predict(known, x, trend, shape, 0.8)
    assert mean == pytest.approx(across.T @ np.linalg.solve(near, y), abs=1e-3)
    assert sigma == pytest.approx(np.sqrt(scale * left), rel=1e-2)


def test_outcomes_follow_a_trend_far_from_all_that_was_seen() -> None:
    x = np.array([[0.0], [0.5], [1.0]])
    far, shape = np.array([[40.0]]), Shape(np.array([1.0]), 0.003)
    following, _ = predict(KnownOutcomes(x, 9.0 * x, 1.5 * x[:, 0]), far, 9.0 * far, shape, 0.8)
    assert following[0] == pytest.approx(60.0, rel=0.1)
    without, _ = predict(KnownOutcomes(x, 0.0 * x, 1.5 * x[:, 0]), far, 0.0 * far, shape, 0.8)
    assert without[0] == pytest.approx(0.0, abs=1e-6)


def test_lengths_are_short_along_what_counts() -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(0, 1, (40, 2))
    shape = choose_shape(KnownOutcomes(x, np.full((40, 1), 1.2), np.sin(3 * x[:, 0])), 0.8)
    assert shape.lengths[0] < 0.5 * shape.lengths[1]


def test_of_many_outcomes_the_best_half_and_as_many_fixed_others_are_kept() -> None:
    y = np.random.default_rng(3).normal(0, 1, 5 * DATA)
    kept = most_telling(y)
    assert len(set(kept.tolist())) == DATA
    assert set(np.argsort(-y)[: DATA // 2].tolist()) <= set(kept.tolist())
    assert kept.tolist() == most_telling(y).tolist()
    assert most_telling(y[:5]).tolist() == [0, 1, 2, 3, 4]


def test_failing_spreads_to_neighbours_and_fades() -> None:
    x = np.linspace(0, 9, 10)[:, None]
    ran, broken, none = np.array([0, 1]), np.array([9]), np.zeros(0, dtype=np.intp)
    shape = Shape(np.array([3.0]), 0.03)
    chance = share_of_failures(x, shape, ran, broken, None)
    assert chance[9] > 0.6
    assert chance[9] > chance[8] > chance[5] > chance[2]
    known = np.full(10, 0.25)
    assert share_of_failures(x, shape, none, none, known) == pytest.approx(known)
    assert share_of_failures(x, shape, ran, none, known)[0] < 0.1
    assert share_of_failures(x, shape, ran, none, None).tolist() == [0.0] * 10


@pytest.mark.parametrize("count", [100, 3_000])
def test_after_many_outcomes_the_share_that_failed_is_expected_of_others(count: int) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(0, 1, (4_000, 3))
    failed = draw.random(count) < 0.1
    ran, broken = np.flatnonzero(~failed), np.flatnonzero(failed)
    chance = share_of_failures(x, Shape(np.array([3.0, 3.0, 3.0]), 0.03), ran, broken, None)
    assert chance[count:].mean() == pytest.approx(failed.mean(), abs=0.02)
