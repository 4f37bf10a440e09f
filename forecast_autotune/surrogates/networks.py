"""Small neural networks that expect a config's time from what its launch does; they stand beside the trees of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .feature_columns import unknown_features
from .packed_numbers import packed, unpacked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Single = NDArray[np.float32]

MAX_ALONE = 1 << 18  # multiplications of a product that OpenBLAS makes in the thread that asks for it
FAR = 5.0  # standard deviations beyond which how far a feature is from the usual says no more


@dataclass(frozen=True, eq=False)
class Networks:
    """Perceptrons of one shape side by side, rectified between layers, each with one output.

    Attributes:
        columns: places among `LAUNCH_FEATURES` of the features that they are told.
        centre, scale: mean and standard deviation of each of these features; shape `(columns,)`.
        layers: weights of each layer, shape `(networks, inputs, outputs)`, and its biases, shape `(networks, 1, outputs)`.
    """

    columns: NDArray[np.intp]
    centre: Array
    scale: Array
    layers: Sequence[tuple[Single, Single]] = field(repr=False)

    def expected(self, features: Array) -> Array:
        """What each network expects: log2 of time, up to a constant.

        Args:
            features: shape `(configs, len(LAUNCH_FEATURES))`.
        Returns:
            shape `(networks, configs)`.
        """
        import numpy as np

        known = network_inputs(features, self.columns, self.centre, self.scale)
        *hidden, last = self.layers
        for weights, biases in hidden:
            known = np.maximum(_product(known, weights) + biases, 0.0)
        output: Array = (_product(known, last[0]) + last[1])[..., 0].astype(float)
        return output


def _product(inputs: Single, weights: Single) -> Single:
    """`inputs @ weights` by so few rows at a time that OpenBLAS starts no threads: a fork beside may stop these for good.

    Args:
        inputs: shape `(configs, in)` or `(networks, configs, in)`.
        weights: shape `(networks, in, out)`.
    Returns:
        shape `(networks, configs, out)`.
    """
    import numpy as np

    rows = max(1, MAX_ALONE // (weights.shape[-2] * weights.shape[-1]))
    parts = [inputs[..., at : at + rows, :] @ weights for at in range(0, inputs.shape[-2], rows)]
    return np.concatenate(parts, axis=-2) if parts else inputs @ weights


def network_inputs(features: Array, columns: NDArray[np.intp], centre: Array, scale: Array) -> Single:
    """Each feature in deviations from its mean, 0 where it is unknown; then for each feature 1 where it is unknown, else 0.

    Args:
        features: shape `(configs, len(LAUNCH_FEATURES))`.
    Returns:
        shape `(configs, 2 * columns)`.
    """
    import numpy as np

    unknown = unknown_features(features)[:, columns]
    away = np.clip((features[:, columns] - centre) / scale, -FAR, FAR)
    return np.hstack([np.where(unknown, 0.0, away), unknown]).astype(np.float32)


# Files ------------------------------------------------------------------------------------------------------------------

_NUMBER = "<f2"  # halves of the size, and forecasts differ by less than a thousandth of an octave


def as_filed(values: NDArray[Any]) -> Single:
    """Numbers of a layer as a file gives them back."""
    import numpy as np

    return values.astype(_NUMBER).astype(np.float32)


def packed_networks(networks: Networks) -> dict[str, object]:
    """Networks as JSON, features being those of this version."""
    return {
        "count": len(networks.layers[0][0]),
        "outputs": [weights.shape[2] for weights, _ in networks.layers],
        "centre": networks.centre.tolist(),
        "scale": networks.scale.tolist(),
        "weights": [packed(weights, _NUMBER) for weights, _ in networks.layers],
        "biases": [packed(biases, _NUMBER) for _, biases in networks.layers],
    }


def read_networks(found: Mapping[str, Any], columns: Sequence[int]) -> Networks:
    """Networks from JSON.

    Args:
        columns: places among `LAUNCH_FEATURES` of the features that they are told.
    Raises:
        ValueError, KeyError, TypeError: these are none.
    """
    import numpy as np

    count, outputs = found["count"], found["outputs"]
    if not all(type(size) is int and size > 0 for size in (count, *outputs)) or outputs[-1] != 1:
        raise ValueError(f"{count} networks with layers of {outputs}")
    centre, scale = (np.array(found[name], dtype=float) for name in ("centre", "scale"))
    if (
        not len(columns) == len(centre) == len(scale)
        or not all(map(math.isfinite, (*centre, *scale)))
        or min(scale) <= 0
    ):
        raise ValueError("the features' centres and scales are not one positive number for each")
    layers, inputs = [], 2 * len(columns)
    for size, weights, biases in zip(outputs, found["weights"], found["biases"], strict=True):
        layers.append(
            (
                unpacked(weights, _NUMBER, count * inputs * size).reshape(count, inputs, size).astype(np.float32),
                unpacked(biases, _NUMBER, count * size).reshape(count, 1, size).astype(np.float32),
            )
        )
        inputs = size
    return Networks(np.array(columns, dtype=np.intp), centre, scale, tuple(layers))
