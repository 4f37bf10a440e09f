"""What surrogates, policies and scores compute on arrays: knobs as numbers, forecasts as columns, the bell."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.digest import Value
from ..core.forecast import Abstention, Forecast, Normal
from ..core.space import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MAX_LEVELS = 24  # a text knob with more values than this is read by its position: a column each would drown the others
KEPT_SPACES = 8  # 10,000 configs of 8 knobs are 0.7 MB


@dataclass(frozen=True, slots=True)
class KnobMatrix:
    """A space's knobs as numbers: one row per config, in the space's order, and one column per thing that varies.

    Numbers stand on a log2 scale where all are positive and more than two, else as they are, scaled so that a knob's
    distinct values have mean 0 and standard deviation 1. Two values that are no numbers stand 2 apart; of more, each
    has a column of its own. `knob_of` names the knob behind each column; `levels` holds, per knob that varies, the
    value of each config as a whole number from 0.
    """

    values: Array
    knob_of: tuple[str, ...]
    levels: dict[str, NDArray[np.intp]]


_kept: OrderedDict[str, tuple[Space, KnobMatrix]] = OrderedDict()


def knob_matrix(space: Space) -> KnobMatrix:
    """The space's knobs as numbers; the last few spaces asked for are kept."""
    kept = _kept.get(space.digest)
    # A digest does not fix the order of the configs behind the default, and rows stand in that order.
    if kept is not None and (kept[0] is space or list(kept[0]) == list(space)):
        with contextlib.suppress(KeyError):  # another thread has just dropped it
            _kept.move_to_end(space.digest)
        return kept[1]
    matrix = _encode(space)
    _kept[space.digest] = (space, matrix)
    while len(_kept) > KEPT_SPACES:
        _kept.popitem(last=False)
    return matrix


def _encode(space: Space) -> KnobMatrix:
    import numpy as np

    columns: list[Array] = []
    knob_of: list[str] = []
    levels: dict[str, NDArray[np.intp]] = {}
    for knob in space.knobs:
        values = [config.knobs[knob] for config in space]
        # Keyed by type as well: True == 1 == 1.0 in Python, but they are three values of a knob.
        distinct = sorted({(type(v).__name__, v) for v in values}, key=_order)
        if len(distinct) < 2:
            continue
        position = {key: i for i, key in enumerate(distinct)}
        level = np.array([position[type(v).__name__, v] for v in values], dtype=np.intp)
        levels[knob] = level
        for per_level in _columns([v for _, v in distinct]):
            columns.append(per_level[level])
            knob_of.append(knob)
    values_of_all = np.stack(columns, axis=1) if columns else np.zeros((len(space), 0))
    return KnobMatrix(values_of_all, tuple(knob_of), levels)


def _order(key: tuple[str, Value]) -> tuple[bool, float, str, str]:
    number = number_of(key[1])
    return (number is None, 0.0 if number is None else number, key[0], str(key[1]))


def number_of(value: Value) -> float | None:
    """The number a value is or, as flags and defines are text, spells; None of what is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _columns(values: Sequence[Value]) -> list[Array]:
    """The columns for one knob's distinct values, each an array over those values."""
    import numpy as np

    numbers = [number_of(v) for v in values]
    known = np.array([n for n in numbers if n is not None])
    others = [i for i, n in enumerate(numbers) if n is None]
    columns: list[Array] = []
    if known.size >= 2:
        scaled = np.log2(known) if known.size > 2 and known.min() > 0 else known.astype(float)
        spread = float(scaled.std()) or 1.0
        column = np.zeros(len(values))
        column[[i for i, n in enumerate(numbers) if n is not None]] = (scaled - scaled.mean()) / spread
        columns.append(column)
    if len(values) == 2 and others:
        return [np.array([-1.0, 1.0])]
    if len(others) > MAX_LEVELS:
        column = np.zeros(len(values))
        column[others] = np.linspace(-1.7, 1.7, len(others))  # mean 0, standard deviation 1
        return [*columns, column]
    for i in others:
        column = np.zeros(len(values))
        column[i] = math.sqrt(2.0)  # so that any two values stand 2 apart, like the two of a boolean
        columns.append(column)
    return columns


@dataclass(frozen=True, slots=True)
class Columns:
    """Forecasts as arrays, one entry per config; NaN where it abstained.

    `mean` and `sigma` are of log2 speed-up, `fail` is the chance of failing.
    """

    mean: Array
    sigma: Array
    fail: Array

    @property
    def known(self) -> NDArray[np.bool_]:
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


class ForecastTable(Sequence[Forecast | Abstention]):
    """The forecasts of many configs, held as arrays: a config's own is put together when it is asked for.

    As objects, 10,000 forecasts of three bells each take 80 ms to make and 60 ms to read back (one core of an EPYC).

    Args:
        components: the weights of a config sum to 1, and are all 0 where nobody forecasts it.
        fail: chance of failing of each config; shape `(configs,)`.
        source: who forecasts, for people.
        default_us: the default's time in microseconds where it is known.
        silent: why a config without a weight has no forecast.
        sigma_scale: the factor by which recalibration has multiplied every sigma.
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
    ) -> None:
        self.components = tuple(components)
        self.fail = fail
        self.source = source
        self.default_us = default_us
        self.silent = silent
        self.sigma_scale = sigma_scale
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
    ) -> ForecastTable:
        """A single bell for each config; all arrays have the shape `(configs,)`."""
        import numpy as np

        component = Component(name, mean, sigma, np.ones(mean.size))
        return cls([component], fail, source=source, default_us=default_us)

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
            self._columns = Columns(mean, np.sqrt(spread), fail)
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
        return Forecast(bells, self.source, float(self.fail[i]), self.default_us, self.sigma_scale)

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


def indices_of(space: Space, configs: Sequence[Config]) -> list[int]:
    """Where each config stands in the space; -1 if it is not in it."""
    return [space.index(c) if c in space else -1 for c in configs]
