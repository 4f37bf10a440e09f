"""Fit the small neural networks of the shipped model, which expect a config's time from its launch beside the trees.

Alone they rank the suite's kernels, left out, no better than trees (0.63 for 0.62 by Spearman's measure); half and half the
two rank better than either (0.66), and the config ranked first takes 1.31 times the best instead of 1.37. More noise in the
features, a stronger decay (1.0), wider layers (128 and 64) and hyperbolic tangents gained nothing more.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from forecast_autotune.surrogates.feature_columns import unknown_features
from forecast_autotune.surrogates.networks import Networks, as_filed, network_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

HIDDEN = (64, 64)
POWER = 0.5  # see `kernel_weights`
EPOCHS, BATCH, RATE, DECAY = 12, 256, 2e-3, 1e-2


def fit_networks(
    x: Array, y: Array, of_kernel: NDArray[np.intp], *, count: int, seen: float, seed: int, power: float = POWER
) -> Networks:
    """So many networks, each fitted on a part of the kernels, which count by `kernel_weights`.

    Args:
        x: features, shape `(configs, features)`.
        y: log2 of time in their space, shape `(configs,)`.
        of_kernel: the number of each config's kernel.
        seen: share of the kernels that each network sees.
    """
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    random = np.random.default_rng([seed, 1])
    columns = np.arange(x.shape[1])
    centre, scale = _usual(x)
    inputs = network_inputs(x, columns, centre, scale)
    kernels = np.unique(of_kernel)
    share = kernel_weights(of_kernel, power)
    fitted = []
    # On one thread: how sums are split among several changes their last digits, and those the networks.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # they stop early on purpose
        for number in range(count):
            some = random.permutation(kernels)[: max(1, round(seen * kernels.size))]
            rows = np.flatnonzero(np.isin(of_kernel, some))
            rows = random.choice(rows, rows.size, p=share[rows] / share[rows].sum())
            network = MLPRegressor(
                hidden_layer_sizes=HIDDEN,
                alpha=DECAY,
                batch_size=min(BATCH, rows.size),
                learning_rate_init=RATE,
                max_iter=EPOCHS,
                n_iter_no_change=EPOCHS,
                random_state=count * seed + number,
            )
            fitted.append(network.fit(inputs[rows], y[rows].astype(np.float32)))
    layers = [
        (
            as_filed(np.stack([network.coefs_[layer] for network in fitted])),
            as_filed(np.stack([network.intercepts_[layer][None] for network in fitted])),
        )
        for layer in range(len(HIDDEN) + 1)
    ]
    return Networks(columns, centre, scale, tuple(layers))


def kernel_weights(of_kernel: NDArray[np.intp], power: float = POWER) -> Array:
    """How much each config counts in a fit: a kernel's as much in all as their number to a power. By default one of four
    times as many configs counts twice as much.

    More configs tell more, though neighbours repeat each other. With kernels of four configs counting as much as those of a
    thousand, the suite's Triton kernels, left out, came to 1.102 times the best within four measurements instead of 1.090
    (geometric mean over 69 spaces and eight models; 0.989 [0.978, 0.998] of the time, space by space).

    Args:
        of_kernel: the number of each config's kernel.
        power: 0 counts kernels alike, 1 configs.
    """
    import numpy as np

    weights: Array = 1.0 / np.bincount(of_kernel).astype(float)[of_kernel] ** (1.0 - power)
    return weights


def _usual(x: Array) -> tuple[Array, Array]:
    """Mean and deviation of each feature where it is known, to six digits; 0 and 1 where it is not or never differs."""
    import numpy as np

    known = ~unknown_features(x)
    times = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, x, 0.0).sum(axis=0) / times
    scale = np.sqrt((np.where(known, x - centre, 0.0) ** 2).sum(axis=0) / times)
    return np.round(centre, 6), np.where(scale > 1e-6, np.round(scale, 6), 1.0)
