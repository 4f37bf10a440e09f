"""Forecasts as arrays of bells: what scores and the lessons of a store's record compute on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.forecast import Abstention, Forecast
from .forecast_columns import ForecastTable, normal_cdf

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

NARROWEST = 1e-9  # deviation, in log2 speed-up, that a bell is taken to have at least


@dataclass(frozen=True, slots=True)
class Mixtures:
    """The bells of n forecasts, each array with one row per bell and one column per forecast; weight 0: no such bell.

    Attributes:
        mean: of each bell, in log2 speed-up; likewise `sigma`.
        weight: a forecast's weights sum to 1, an abstention's are all 0.
        fail: chance of failing of each forecast; 0 of an abstention.
        sigma_scale: by how much recalibration has multiplied the sigmas of each forecast.
        knows_default: whether each forecast was made knowing the default's time.
    """

    mean: Array
    sigma: Array
    weight: Array
    fail: Array
    sigma_scale: Array
    knows_default: NDArray[np.bool_]

    @classmethod
    def of(cls, forecasts: Sequence[Forecast | Abstention]) -> Mixtures:
        """Forecasts as arrays, a column for each; an abstention weighs nothing."""
        import numpy as np

        n = len(forecasts)
        if isinstance(forecasts, ForecastTable):
            weight = np.array([v.weight for v in forecasts.components]).reshape(-1, n)
            heard = weight > 0
            return cls(
                np.where(heard, np.array([v.mean for v in forecasts.components]).reshape(-1, n), 0.0),
                np.where(heard, np.array([v.sigma for v in forecasts.components]).reshape(-1, n), 1.0),
                weight,
                np.where(heard.any(axis=0), forecasts.fail, 0.0),
                np.full(n, forecasts.sigma_scale),
                np.full(n, forecasts.default_us is not None),
            )
        most = max((len(f.components) for f in forecasts if isinstance(f, Forecast)), default=0)
        mean, sigma, weight = np.zeros((most, n)), np.ones((most, n)), np.zeros((most, n))
        fail, sigma_scale, knows_default = np.zeros(n), np.ones(n), np.zeros(n, dtype=bool)
        for i, forecast in enumerate(forecasts):
            if isinstance(forecast, Abstention):
                continue
            for k, bell in enumerate(forecast.components):
                mean[k, i], sigma[k, i], weight[k, i] = bell.mean, bell.sigma, bell.weight
            fail[i], sigma_scale[i] = forecast.fail_probability, forecast.sigma_scale
            knows_default[i] = forecast.default_us is not None
        return cls(mean, sigma, weight, fail, sigma_scale, knows_default)

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Which of the forecasts are abstentions."""
        import numpy as np

        abstained: NDArray[np.bool_] = np.logical_not((self.weight > 0).any(axis=0))
        return abstained

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Mixtures:
        """Some of the forecasts."""
        return Mixtures(
            self.mean[:, rows],
            self.sigma[:, rows],
            self.weight[:, rows],
            self.fail[rows],
            self.sigma_scale[rows],
            self.knows_default[rows],
        )

    def expected(self) -> Array:
        """Expected log2 speed-up of each forecast, given that the config runs; 0 of an abstention."""
        expected: Array = (self.weight * self.mean).sum(axis=0)
        return expected

    def spread(self) -> Array:
        """Standard deviation of each forecast, in log2 speed-up; 0 of an abstention."""
        import numpy as np

        apart = (self.mean - self.expected()) ** 2
        spread: Array = np.sqrt((self.weight * (self.sigma**2 + apart)).sum(axis=0))
        return spread

    def cdf(self, at: Array) -> Array:
        """Chance that each forecast gives of at most `at`, of shape (n,) or (n, so many places each)."""
        import numpy as np

        places = at[:, None] if at.ndim == 1 else at
        below = np.zeros(places.shape)
        for mean, sigma, weight in zip(self.mean, self.sigma, self.weight, strict=True):
            heard = np.flatnonzero(weight > 0)
            z = (places[heard] - mean[heard, None]) / np.maximum(sigma[heard, None], NARROWEST)
            below[heard] += weight[heard, None] * normal_cdf(z)
        return below.reshape(at.shape)
