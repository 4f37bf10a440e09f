"""Small priors, as `Learned` takes them, with known answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forecast_autotune.surrogates.feature_columns import LAUNCH_FEATURES
from forecast_autotune.surrogates.prior import Factor, Prior, Width

SURE, UNSURE = 1e-3, 0.3


def following(
    followed: str = "bound", *, low: float = -2.0, high: float = 14.0, step: float = 0.25, trees: int = 3
) -> Prior:
    """A model whose trees predict that log2 of time equals a feature, in steps: a chain of nodes, the least value first."""
    steps = np.arange(low, high, step)
    size = 2 * len(steps) + 1
    feature, threshold, value = np.full(size, -1), np.zeros(size), np.zeros(size)
    left, right = np.zeros(size, dtype=int), np.zeros(size, dtype=int)
    inner = 2 * np.arange(len(steps))
    feature[inner], threshold[inner] = LAUNCH_FEATURES.index(followed), steps
    left[inner], right[inner] = inner + 1, inner + 2
    value[inner + 1] = steps - step / 2
    value[-1] = high
    tables = {"feature": feature, "threshold": threshold, "left": left, "right": right, "value": value}
    return Prior(
        ("toy",), **{name: np.tile(table, (trees, 1)) for name, table in tables.items()}, width=Width(-1.2), factors={}
    )


def believing(factors: Mapping[str, float], sigma: float = UNSURE) -> Prior:
    """A model without trees; each rule of thumb costs so many octaves per unit."""
    none = np.zeros((0, 0), dtype=int)
    return Prior(
        ("toy",),
        feature=none,
        threshold=none.astype(float),
        left=none,
        right=none,
        value=none.astype(float),
        width=Width(-1.2),
        factors={name: Factor(mean, sigma) for name, mean in factors.items()},
    )
