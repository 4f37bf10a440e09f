"""A Gaussian process over encoded knobs: exact, small, and unsure of its own scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SCALE_COUNT = 4.0  # the prior guess of the scale counts like so many outcomes
NUGGETS = (0.003, 0.03, 0.2)  # what the knobs do not explain, as a share of the variance
LENGTH = 2.0  # prior length per square root of the number of columns, which have deviation 1
LENGTH_SPREAD = 0.8  # standard deviation of its logarithm
START_LENGTHS = (0.35, 0.6, 1.0, 1.7, 3.0)  # as multiples of the prior length, all columns alike
LENGTH_STEPS = (0.4, 0.63, 1.0, 1.6, 2.5, 6.0)  # then tried column by column
SWEEPS = 2
BLOCK = 512  # configs at a time, at most: they stay in the cache; all at once took 2.5 times longer
ONE_THREAD = 262_144
"""Multiplications up to which OpenBLAS stays in one thread. Its threads wait for one another, and where compilers hold the
cores, 10,000 configs at 50 outcomes took 620 ms with them, 26 without (setting `auto`, two cores, both busy)."""
DATA = 200  # outcomes the process is built on: best half, the rest at random; 11,130 configs then take 20 ms
FAILURE_NEARNESS = 0.4  # length over which failing spreads, as a share of that of times
FAILURE_PRIOR = 0.5  # what is known at large counts like so many outcomes next door
FAILURE_DATA = 1000  # configs that ran, and as many that failed, whose company is counted; of more, so many are drawn
FITTED_ON = 64  # lengths are chosen on so many outcomes: 64 take 11 ms, 200 would take 123 (one core of an EPYC)


@dataclass(frozen=True, slots=True)
class Shape:
    """How far one must move along each column for outcomes to differ, and how much the columns leave unexplained.

    Attributes:
        lengths: of each column, shape `(columns,)`.
        nugget: variance that the columns do not explain, as a share of what they do.
    """

    lengths: Array
    nugget: float


@dataclass(frozen=True, slots=True)
class KnownOutcomes:
    """Outcomes that a process is conditioned on.

    Attributes:
        x: knobs as numbers; shape `(outcomes, columns)`.
        basis: columns that outcomes may follow, each by an unknown factor; a column's scale is how far its factor is
            expected to be from 0. Shape `(outcomes, basis columns)`.
        y: the outcomes, shape `(outcomes,)`.
    """

    x: Array
    basis: Array
    y: Array

    def at(self, rows: NDArray[np.intp]) -> KnownOutcomes:
        """The outcomes of these rows."""
        return KnownOutcomes(self.x[rows], self.basis[rows], self.y[rows])


def choose_shape(known: KnownOutcomes, guess: float) -> Shape:
    """The most probable lengths, searched column by column over a small grid; `guess` is the expected deviation."""
    import numpy as np

    x, y = known.x, known.y
    n, d = x.shape
    prior_length = LENGTH * math.sqrt(max(d, 1))
    if d == 0 or n < 2:
        return Shape(np.full(d, prior_length), NUGGETS[1])
    apart = np.moveaxis((x[:, None, :] - x[None, :, :]) ** 2, 2, 0)
    noise = np.eye(n)
    common = known.basis @ known.basis.T

    def log_prior(log_lengths: Array) -> Array:
        prior: Array = -0.5 * ((log_lengths - math.log(prior_length)) / LENGTH_SPREAD) ** 2
        return prior

    alike = prior_length * np.array(START_LENGTHS)
    shared = matern(apart.sum(axis=0)[None] / alike[:, None, None] ** 2) + common
    ranked = [
        (float(score), float(length), nugget)
        for nugget in NUGGETS
        for score, length in zip(
            _log_evidence(shared + nugget * noise, y, guess) + log_prior(np.log(alike)), alike, strict=True
        )
    ]
    _, length, nugget = max(ranked)
    log_lengths = np.full(d, math.log(length))
    squared = np.tensordot(np.exp(-2.0 * log_lengths), apart, 1)
    low, high = math.log(prior_length / 8), math.log(prior_length * 12)
    for _ in range(SWEEPS):
        for k in range(d):
            tried = np.clip(log_lengths[k] + np.log(LENGTH_STEPS), low, high)
            changes = np.exp(-2.0 * tried) - math.exp(-2.0 * log_lengths[k])
            moved = np.maximum(squared[None] + changes[:, None, None] * apart[k][None], 0.0)
            scores = _log_evidence(matern(moved) + common + nugget * noise, y, guess) + log_prior(tried)
            best = int(np.argmax(scores))
            log_lengths[k], squared = tried[best], moved[best]
        by_nugget = (matern(squared) + common)[None] + np.array(NUGGETS)[:, None, None] * noise
        nugget = NUGGETS[int(np.argmax(_log_evidence(by_nugget, y, guess)))]
    return Shape(np.exp(log_lengths), nugget)


def predict(known: KnownOutcomes, x: Array, basis: Array, shape: Shape, guess: float) -> tuple[Array, Array]:
    """Mean and standard deviation expected of each config.

    The scale is integrated out under an inverse-gamma prior around `guess`, so few outcomes give wide answers.

    Args:
        known: the outcomes to go by.
        x, basis: of the configs, as in `known`; shapes `(configs, columns)` and `(configs, basis columns)`.
        shape: as `choose_shape` finds it.
        guess: the deviation that outcomes are expected to have.
    Returns:
        two arrays of shape `(configs,)`.
    """
    import numpy as np

    near = similarity(known.x, known.x, shape) + known.basis @ known.basis.T
    whiten = np.linalg.inv(np.linalg.cholesky(near + shape.nugget * np.eye(len(near))))
    white = whiten @ known.y
    scale = _mean_square(white, guess)
    single, single_white, known_basis = (a.astype(np.float32) for a in (whiten, white, known.basis))
    mean, left = np.empty(len(x)), np.empty(len(x))
    for part in _blocks(len(x), len(near) ** 2):
        spread = single @ (similarity(known.x, x[part], shape) + known_basis @ basis[part].astype(np.float32).T)
        mean[part] = single_white @ spread
        left[part] = np.einsum("ij,ij->j", spread, spread)
    left = 1.0 + (basis**2).sum(axis=1) + shape.nugget - left
    return mean, np.sqrt(scale * np.maximum(left, 1e-6))


def _blocks(count: int, each: int) -> Iterator[slice]:
    """Slices of so many rows, each of which takes so many multiplications."""
    step = max(16, min(BLOCK, ONE_THREAD // max(1, each)))
    return (slice(start, start + step) for start in range(0, count, step))


def similarity(x: Array, at: Array, shape: Shape) -> NDArray[np.float32]:
    """How alike rows are, 0 to 1.

    Args:
        x: shape `(n, columns)`.
        at: shape `(m, columns)`.
        shape: as `choose_shape` finds it.
    Returns:
        shape `(n, m)`, float32.
    """
    import numpy as np

    a, b = (x / shape.lengths).astype(np.float32), (at / shape.lengths).astype(np.float32)
    squared = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    alike: NDArray[np.float32] = matern(np.maximum(squared, 0.0, out=squared))
    return alike


def total_similarity(x: Array, at: Array, shape: Shape) -> Array:
    """How much company each row of `at` has among the rows of `x`: the sum of similarities, shape `(len(at),)`."""
    import numpy as np

    total = np.zeros(len(at))
    for part in _blocks(len(at), x.size):
        total[part] = similarity(x, at[part], shape).sum(axis=0)
    return total


def matern(squared: Any) -> Any:
    """Matern correlation of order 5/2 at squared distances, of any shape (Rasmussen and Williams, 2006, eq. 4.17)."""
    import numpy as np

    r = np.sqrt(5.0 * squared)
    return (1.0 + r + r * r / 3.0) * np.exp(-r)


def _mean_square(white: Array, guess: float) -> float:
    return float((SCALE_COUNT * guess**2 + white @ white) / (SCALE_COUNT + white.size))


def _log_evidence(near: Array, y: Array, guess: float) -> Array:
    """Log probability of the outcomes, up to a constant, for each of a stack of covariances; the scale integrated out."""
    import numpy as np

    lower = np.linalg.cholesky(near)
    rows = np.broadcast_to(y[:, None], (*near.shape[:-1], 1))
    white = np.linalg.solve(lower, rows)[..., 0]
    total = SCALE_COUNT * guess**2 + (white * white).sum(axis=-1)
    evidence: Array = -0.5 * (SCALE_COUNT + y.size) * np.log(total) - np.log(
        np.diagonal(lower, axis1=-2, axis2=-1)
    ).sum(axis=-1)
    return evidence


def most_telling(y: Array, limit: int = DATA) -> NDArray[np.intp]:
    """Positions of the outcomes to keep: all up to a limit; beyond, the best half of it, and as many others at random."""
    import numpy as np

    if y.size <= limit:
        return np.arange(y.size)
    order = np.argsort(-y, kind="stable")
    half = limit // 2
    # A fixed seed: equal outcomes give equal forecasts.
    others = np.random.default_rng(0).choice(order[half:], limit - half, replace=False)
    return np.concatenate([order[:half], others])


def share_of_failures(
    x: Array, shape: Shape, ran: NDArray[np.intp], failed: NDArray[np.intp], prior: Array | None
) -> Array:
    """Chance of failing of each config: the share of failures among its neighbours, drawn towards what holds at large.

    Args:
        x: knobs as numbers, shape `(configs, columns)`.
        shape: as `choose_shape` finds it.
        ran, failed: rows of all configs that did; of a part of either, the share would be another.
        prior: chance of failing at large, shape `(configs,)`; None: the share of all those that were tried.
    Returns:
        shape `(configs,)`.
    """
    import numpy as np

    at_large = np.full(len(x), failed.size / max(1, failed.size + ran.size)) if prior is None else prior
    if not failed.size and prior is None:
        return at_large
    # What fails does so beyond an edge that times do not show: look nearer than the lengths that times call for.
    near = Shape(shape.lengths * FAILURE_NEARNESS, shape.nugget)
    bad, good = _company(failed, x, near), _company(ran, x, near)
    chance: Array = (bad + FAILURE_PRIOR * at_large) / (bad + good + FAILURE_PRIOR)
    return chance


def _company(rows: NDArray[np.intp], x: Array, shape: Shape) -> Array:
    """How much company each row of `x` has among these of its rows; where they are many, among a seeded draw."""
    import numpy as np

    drawn = rows
    if rows.size > FAILURE_DATA:
        drawn = np.random.default_rng(0).choice(rows, FAILURE_DATA, replace=False)
    return total_similarity(x[drawn], x, shape) * (rows.size / max(1, drawn.size))


def loo_log_densities(known: KnownOutcomes, shape: Shape, guess: float) -> Array:
    """Log density of each outcome as predicted from all the others (Rasmussen and Williams, 2006, section 5.4.2).

    The scale is that of all outcomes, the one predicted included: without it, two outcomes say next to nothing of a scale.

    Returns:
        nats, shape `(outcomes,)`.
    """
    import numpy as np

    if not known.y.size:
        return np.zeros(0)
    near = similarity(known.x, known.x, shape) + known.basis @ known.basis.T
    inverse = np.linalg.inv(near + shape.nugget * np.eye(len(near)))
    weighed, precision = inverse @ known.y, np.maximum(np.diag(inverse), 1e-9)
    scale = (SCALE_COUNT * guess**2 + float(known.y @ weighed)) / (SCALE_COUNT + known.y.size)
    variance = scale / precision
    density: Array = -0.5 * (weighed / precision) ** 2 / variance - 0.5 * np.log(2.0 * math.pi * variance)
    return density
