"""A Gaussian process over encoded knobs: exact, small, and unsure of its own scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CONSTANT = 1.0  # variance of the unknown common offset, as a multiple of the variance around it
SCALE_COUNT = 4.0  # the prior guess of the scale counts like so many outcomes
NUGGETS = (0.003, 0.03, 0.2)  # what the knobs do not explain, as a share of the variance
LENGTH = 1.5  # prior length per square root of the number of columns, which have deviation 1
LENGTH_SPREAD = 0.8  # standard deviation of its logarithm
START_LENGTHS = (0.35, 0.6, 1.0, 1.7, 3.0)  # as multiples of the prior length, all columns alike
LENGTH_STEPS = (0.4, 0.63, 1.0, 1.6, 2.5, 6.0)  # then tried column by column
SWEEPS = 2
BLOCK = 512  # configs at a time: 200 x 512 in single precision stay in the cache; all at once took 2.5 times longer
FITTED_ON = 64  # lengths are chosen on so many outcomes: 64 take 20 ms, 200 would take 400 (one core of an EPYC)


@dataclass(frozen=True, slots=True)
class Shape:
    """How far one must move along each column for outcomes to differ, and how much the columns leave unexplained."""

    lengths: Array
    nugget: float


def choose_shape(x: Array, y: Array, guess: float) -> Shape:
    """The most probable lengths, searched column by column over a small grid.

    Args:
        x: one row per outcome, one column per knob.
        y: outcomes, in units in which `guess` is their expected deviation.
    """
    import numpy as np

    n, d = x.shape
    prior_length = LENGTH * math.sqrt(max(d, 1))
    if d == 0 or n < 2:
        return Shape(np.full(d, prior_length), NUGGETS[1])
    apart = np.moveaxis((x[:, None, :] - x[None, :, :]) ** 2, 2, 0)
    noise = np.eye(n)

    def log_prior(log_lengths: Array) -> Array:
        prior: Array = -0.5 * ((log_lengths - math.log(prior_length)) / LENGTH_SPREAD) ** 2
        return prior

    alike = prior_length * np.array(START_LENGTHS)
    shared = matern(apart.sum(axis=0)[None] / alike[:, None, None] ** 2) + CONSTANT
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
            scores = _log_evidence(matern(moved) + CONSTANT + nugget * noise, y, guess) + log_prior(tried)
            best = int(np.argmax(scores))
            log_lengths[k], squared = tried[best], moved[best]
        by_nugget = (matern(squared) + CONSTANT)[None] + np.array(NUGGETS)[:, None, None] * noise
        nugget = NUGGETS[int(np.argmax(_log_evidence(by_nugget, y, guess)))]
    return Shape(np.exp(log_lengths), nugget)


def predict(x: Array, y: Array, at: Array, shape: Shape, guess: float) -> tuple[Array, Array]:
    """Mean and standard deviation expected at the rows of `at`, given outcomes `y` at the rows of `x`.

    The scale is integrated out under an inverse-gamma prior around `guess`, so few outcomes give wide answers.
    """
    import numpy as np

    near = similarity(x, x, shape) + CONSTANT + shape.nugget * np.eye(len(y))
    whiten = np.linalg.inv(np.linalg.cholesky(near))
    white = whiten @ y
    scale = _mean_square(white, guess)
    single, single_white = whiten.astype(np.float32), white.astype(np.float32)
    mean, left = np.empty(len(at)), np.empty(len(at))
    for start in range(0, len(at), BLOCK):
        part = slice(start, start + BLOCK)
        spread = single @ (similarity(x, at[part], shape) + np.float32(CONSTANT))
        mean[part] = single_white @ spread
        left[part] = 1.0 + CONSTANT + shape.nugget - np.einsum("ij,ij->j", spread, spread)
    return mean, np.sqrt(scale * np.maximum(left, 1e-6))


def similarity(x: Array, at: Array, shape: Shape) -> NDArray[np.float32]:
    """How alike each row of `x` and each row of `at` are, 0 to 1, in single precision."""
    import numpy as np

    a, b = (x / shape.lengths).astype(np.float32), (at / shape.lengths).astype(np.float32)
    squared = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    alike: NDArray[np.float32] = matern(np.maximum(squared, 0.0, out=squared))
    return alike


def total_similarity(x: Array, at: Array, shape: Shape) -> Array:
    """How much company each row of `at` has among the rows of `x`: the sum of similarities."""
    import numpy as np

    total = np.zeros(len(at))
    for start in range(0, len(at), BLOCK):
        part = slice(start, start + BLOCK)
        total[part] = similarity(x, at[part], shape).sum(axis=0)
    return total


def matern(squared: Any) -> Any:
    """Matern correlation of order 5/2 at a squared distance (Rasmussen and Williams, 2006, eq. 4.17)."""
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
