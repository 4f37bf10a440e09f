"""Forecasts of many configs as arrays, and what is computed on them: moments, the normal distribution, expected gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING

from ..core.forecast import Abstention, Forecast, LazyForecasts, Normal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Forecasts as arrays, one entry per config; NaN where it abstained.

    Attributes:
        mean, sigma: of log2 speed-up.
        fail: chance of failing.
        by_other_hardware: log2 speed-up by recordings on other hardware alone; None without them.
    """

    mean: Array
    sigma: Array
    fail: Array
    by_other_hardware: Array | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which configs have a forecast; shape `(configs,)`."""

        import numpy as np

        known: NDArray[np.bool_] = ~np.isnan(self.mean)
        return known


@dataclass(frozen=True, slots=True)
class Component:
    """One surrogate's part of a table: a bell for each config, and how much it counts there.

    Attributes:
        source: the surrogate's name.
        mean, sigma: of each config, in log2 speed-up; shape `(configs,)`.
        weight: how much the bell counts in each config's mixture, 0 to 1; shape `(configs,)`.
    """

    source: str
    mean: Array
    sigma: Array
    weight: Array


class ForecastTable(LazyForecasts):
    """The forecasts of many configs, held as arrays: a config's own is put together when it is asked for.

    As objects, 10,000 forecasts of three bells each take 80 ms to make and 60 ms to read back (one core of an EPYC).

    Args:
        components: the weights of a config sum to 1, and are all 0 where nobody forecasts it.
        fail: chance of failing of each config; shape `(configs,)`.
        source: who forecasts, for people.
        default_us: the default's time in microseconds where it is known.
        silent: why a config without a weight has no forecast.
        sigma_scale: the factor by which recalibration has multiplied every sigma.
        grounded: of which configs more than rules of thumb speaks, shape `(configs,)`; None: of all.
        by_other_hardware: where all recordings were made on other hardware, the log2 speed-up that they alone expect of each
            config, shape `(configs,)`. How much each recording counts is for this job's outcomes to say; the outcomes of
            similar configs count for nothing.
    """

    def __init__(
        self,
        components: Sequence[Component],
        fail: Array,
        *,
        source: str,
        default_us: float | None = None,
        silent: str = "not a config of the space",
        sigma_scale: float = 1.0,
        grounded: NDArray[np.bool_] | None = None,
        by_other_hardware: Array | None = None,
    ) -> None:
        self.components = tuple(components)
        self.fail = fail
        self.source = source
        self.default_us = default_us
        self.silent = silent
        self.sigma_scale = sigma_scale
        self.grounded = grounded
        self.by_other_hardware = by_other_hardware
        self._columns: Columns | None = None

    @classmethod
    def of_one(
        cls,
        name: str,
        mean: Array,
        sigma: Array,
        fail: Array,
        *,
        source: str,
        default_us: float | None = None,
        grounded: NDArray[np.bool_] | None = None,
        by_other_hardware: Array | None = None,
    ) -> ForecastTable:
        """A single bell for each config; all arrays have the shape `(configs,)`."""
        import numpy as np

        component = Component(name, mean, sigma, np.ones(mean.size))
        return cls(
            [component],
            fail,
            source=source,
            default_us=default_us,
            grounded=grounded,
            by_other_hardware=by_other_hardware,
        )

    @property
    def columns(self) -> Columns:
        """The first two moments and the chance of failing of each forecast."""
        import numpy as np

        if self._columns is None:
            weight = np.array([c.weight for c in self.components])
            means, sigmas = np.array([c.mean for c in self.components]), np.array([c.sigma for c in self.components])
            mean = np.where(weight > 0, weight * means, 0.0).sum(axis=0)
            spread = np.where(weight > 0, weight * (sigmas**2 + (means - mean) ** 2), 0.0).sum(axis=0)
            unknown = weight.sum(axis=0) <= 0
            fail = self.fail.copy()
            mean[unknown], spread[unknown], fail[unknown] = np.nan, np.nan, np.nan
            self._columns = Columns(mean, np.sqrt(spread), fail, self.by_other_hardware)
        return self._columns

    def at(self, positions: Sequence[int]) -> ForecastTable:
        """The forecasts at these positions, in their order; at -1 it abstains."""
        import numpy as np

        rows = np.array(positions, dtype=np.intp)
        known = rows >= 0
        components = [Component(c.source, c.mean[rows], c.sigma[rows], c.weight[rows] * known) for c in self.components]
        return ForecastTable(
            components,
            self.fail[rows],
            source=self.source,
            default_us=self.default_us,
            silent=self.silent,
            sigma_scale=self.sigma_scale,
            grounded=None if self.grounded is None else self.grounded[rows],
            by_other_hardware=None if self.by_other_hardware is None else self.by_other_hardware[rows],
        )

    def stretched(self, factor: float) -> ForecastTable:
        """The same with every sigma multiplied by a factor, and `sigma_scale` with it."""
        return ForecastTable(
            [Component(c.source, c.mean, c.sigma * factor, c.weight) for c in self.components],
            self.fail,
            source=self.source,
            default_us=self.default_us,
            silent=self.silent,
            sigma_scale=self.sigma_scale * factor,
            grounded=self.grounded,
            by_other_hardware=self.by_other_hardware,
        )

    def __len__(self) -> int:
        return int(self.fail.size)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self._forecast(k) for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"forecast {i} of {len(self)}")
        return self._forecast(i % len(self))

    def _forecast(self, i: int) -> Forecast | Abstention:
        bells = tuple(
            Normal(
                float(c.mean[i]), float(c.sigma[i]), float(c.weight[i]), c.source if len(self.components) > 1 else ""
            )
            for c in self.components
            if c.weight[i] > 0
        )
        if not bells:
            return Abstention(self.source, self.silent)
        grounded = self.grounded is None or bool(self.grounded[i])
        return Forecast(bells, self.source, float(self.fail[i]), self.default_us, self.sigma_scale, grounded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def columns_of(forecasts: Sequence[Forecast | Abstention]) -> Columns:
    """The first two moments and the chance of failing of each forecast."""
    import numpy as np

    if isinstance(forecasts, ForecastTable):
        return forecasts.columns
    nan = math.nan
    rows = [(nan, nan, nan) if isinstance(f, Abstention) else (f.mean, f.sigma, f.fail_probability) for f in forecasts]
    table = np.array(rows, dtype=float).reshape(len(rows), 3)
    return Columns(table[:, 0], table[:, 1], table[:, 2])


def median(values: Array) -> Array:
    """Along the last axis, as NumPy's own, for the first call of which `numpy.ma` is imported: 15 ms."""
    import numpy as np

    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    if n == 0:
        return np.full(ordered.shape[:-1], np.nan)
    middle: Array = 0.5 * (ordered[..., (n - 1) // 2] + ordered[..., n // 2])
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)


def normal_cdf(z: Array) -> Array:
    """Chance that a standard normal variable is at most z."""
    import numpy as np

    # numpy has no erf of its own; 10,000 calls take 0.8 ms (one core of an EPYC).
    erf = np.frompyfunc(math.erf, 1, 1)
    cdf: Array = 0.5 * (1.0 + np.asarray(erf(np.asarray(z, dtype=float) / math.sqrt(2.0)), dtype=float))
    return cdf


def expected_gain(columns: Columns, over: float) -> Array:
    """Expected improvement of each config over a log2 speed-up, a failure gaining nothing; NaN where abstained."""
    import numpy as np

    sigma = np.maximum(columns.sigma, 1e-9)
    z = (columns.mean - over) / sigma
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    gain: Array = (1.0 - columns.fail) * sigma * np.maximum(z * normal_cdf(z) + density, 0.0)
    return gain
