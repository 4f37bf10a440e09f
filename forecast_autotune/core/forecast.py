"""Forecast: what a surrogate expects of a config, as a distribution."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidInputError

BIN_EDGES_LOG2 = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Edges between the eight speed-up bins, as log2 of S = reference time / candidate time: S at 1/4, 1/2, 0.71, 1, 1.41,
2, 4; an upper edge belongs to its bin (Khan et al., GPU Forecasters, arXiv 2605.31464)."""

MAX_LOG2 = 1000.0  # of a component's values: no two times lie further apart, and 2 to this power is a float

ROUNDED = 1e-6  # that a probability may be off, as sums in single precision are

_SQRT2 = math.sqrt(2.0)


def bin_of(log2_speedup: float) -> int:
    """Index, 0 to 7, of the speed-up bin that a measured log2 speed-up falls into."""
    return bisect.bisect_left(BIN_EDGES_LOG2, log2_speedup)


@dataclass(frozen=True, slots=True)
class Normal:
    """One weighted bell of a forecast, in log2 speed-up; `source` names the surrogate it comes from, if several spoke."""

    mean: float
    sigma: float
    weight: float = 1.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A distribution over log2 speed-up against the default config: a mixture of normals.

    +1 is twice as fast as the default, 0 the same. `default_us` is the default's time in microseconds where the source
    knows it, which makes the forecast an absolute one. `fail_probability` is the chance that the config does not run;
    the distribution is of those that do. `sigma_scale` is the factor by which recalibration has multiplied every sigma.
    `grounded` is false where nothing but rules of thumb speaks: no description of the launch, no recording, no outcome.
    """

    components: tuple[Normal, ...]
    source: str
    fail_probability: float = 0.0
    default_us: float | None = None
    sigma_scale: float = 1.0
    grounded: bool = True

    @classmethod
    def normal(
        cls,
        mean: float,
        sigma: float,
        *,
        source: str,
        fail_probability: float = 0.0,
        default_us: float | None = None,
    ) -> Forecast:
        """A single bell of `mean` and `sigma` in log2 speed-up."""
        return cls((Normal(mean, sigma),), source, fail_probability, default_us)

    @classmethod
    def from_bins(cls, probabilities: Sequence[float], *, source: str) -> Forecast:
        """The forecast that eight bin probabilities stand for: a bell inside each bin, centred, a quarter of its width.

        Raises:
            InvalidInputError: not eight non-negative numbers with a positive sum.
        """
        if len(probabilities) != 8 or not all(math.isfinite(p) and p >= 0 for p in probabilities):
            raise InvalidInputError(f"bins {list(probabilities)}: give eight probabilities, none negative")
        total = sum(probabilities)
        if total <= 0:
            raise InvalidInputError("bins sum to 0: at least one must be positive")
        edges = (-3.0, *BIN_EDGES_LOG2, 3.0)
        return cls(
            tuple(
                Normal((low + high) / 2, (high - low) / 4, p / total)
                for (low, high), p in zip(itertools.pairwise(edges), probabilities, strict=True)
                if p > 0
            ),
            source,
        )

    def checked(self) -> Forecast:
        """The same forecast with Python's own floats, whatever kind of numbers it was made of.

        Raises:
            InvalidInputError: a value is no number, is not finite, or has no meaning where it stands.
        """
        if not isinstance(self.components, tuple) or not all(isinstance(c, Normal) for c in self.components):
            raise InvalidInputError(f"components {self.components!r}: give a tuple of Normals")
        if not self.components:
            raise InvalidInputError("no components: give at least one, or an Abstention with a reason")
        components = tuple(
            Normal(_finite(c.mean, "mean"), _finite(c.sigma, "sigma"), _finite(c.weight, "weight"), c.source)
            for c in self.components
        )
        for c in components:
            if c.sigma < 0 or c.weight < 0:
                raise InvalidInputError(f"component {c}: sigma and weight must not be negative")
            if max(abs(c.mean), c.sigma, c.weight) > MAX_LOG2:
                raise InvalidInputError(f"component {c}: nothing in it may be beyond {MAX_LOG2:g}")
        fail_probability = _finite(self.fail_probability, "fail_probability")
        if not -ROUNDED <= fail_probability <= 1 + ROUNDED:
            raise InvalidInputError(f"fail_probability {fail_probability}: it must lie between 0 and 1")
        fail_probability = min(max(fail_probability, 0.0), 1.0)
        sigma_scale = _finite(self.sigma_scale, "sigma_scale")
        if sigma_scale <= 0:
            raise InvalidInputError(f"sigma_scale {sigma_scale}: it must be a positive factor")
        default_us = None if self.default_us is None else _finite(self.default_us, "default_us")
        return Forecast(components, self.source, fail_probability, default_us, sigma_scale, self.grounded)

    @property
    def mean(self) -> float:
        """Expected log2 speed-up."""
        return sum(c.weight * c.mean for c in self.components)

    @property
    def sigma(self) -> float:
        """Standard deviation of the log2 speed-up."""
        mean = self.mean
        return math.sqrt(sum(c.weight * (c.sigma**2 + (c.mean - mean) ** 2) for c in self.components))

    def cdf(self, log2_speedup: float) -> float:
        """Probability of a log2 speed-up of at most this much, given that the config runs."""
        return sum(
            c.weight * 0.5 * (1.0 + math.erf((log2_speedup - c.mean) / (max(c.sigma, 1e-9) * _SQRT2)))
            for c in self.components
        )

    def chance_above(self, log2_speedup: float) -> float:
        """Probability that the config runs and is faster than this."""
        return (1.0 - self.fail_probability) * (1.0 - self.cdf(log2_speedup))

    def chance_slower(self, times: float) -> float:
        """Probability that the config fails, or takes over so many times the default's time."""
        return self.fail_probability + (1.0 - self.fail_probability) * self.cdf(-math.log2(times))

    def expected_time(self, most: float) -> float:
        """Expected time as a multiple of the default's; what takes longer than `most`, or fails, counts as that."""
        time, edge = 0.0, math.log2(most)
        for c in self.components:
            sigma = max(c.sigma, 1e-9)
            # Of a log-normal, cut off at the edge.
            shift = math.log(2.0) * sigma * sigma
            beyond = 0.5 * math.erfc((edge + c.mean) / (sigma * _SQRT2))
            within = 0.5 * math.erfc((shift - edge - c.mean) / (sigma * _SQRT2))
            scale = math.exp(min(700.0, math.log(2.0) * (0.5 * shift - c.mean)))
            time += c.weight * (min(most, scale * within) + most * beyond)
        return (1.0 - self.fail_probability) * time + self.fail_probability * most

    def expected_gain(self, over: float) -> float:
        """Expected improvement over a log2 speed-up, in log2, a failure gaining nothing."""
        gain = 0.0
        for c in self.components:
            sigma = max(c.sigma, 1e-9)
            z = (c.mean - over) / sigma
            gain += c.weight * sigma * (z * 0.5 * math.erfc(-z / _SQRT2) + math.exp(-0.5 * z * z) * 0.3989422804014327)
        return (1.0 - self.fail_probability) * gain

    def bins(self, reference: float = 0.0) -> tuple[float, ...]:
        """Probability of each of the eight speed-up bins against a reference config.

        Bins are in S = reference time / candidate time: <=1/4, 1/4-1/2, 1/2-0.71, 0.71-1, 1-1.41, 1.41-2, 2-4, >4
        (Khan et al., GPU Forecasters, arXiv 2605.31464). Sums to 1.

        Args:
            reference: log2 speed-up of the reference against the default; 0 makes the default the reference.
        Raises:
            InvalidInputError: the reference is not finite.
        """
        if not math.isfinite(reference):
            raise InvalidInputError(f"reference {reference}: give the finite log2 speed-up of the reference config")
        below = [0.0, *(self.cdf(edge + reference) for edge in BIN_EDGES_LOG2), 1.0]
        return tuple(high - low for low, high in itertools.pairwise(below))

    def time_us(self) -> float | None:
        """Median run time it stands for, in microseconds; None where no absolute time is known."""
        return None if self.default_us is None else self.default_us * 2.0**-self.mean


def _finite(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many elements
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(f"{name} {value!r}: it must be a finite number")
    return number


@dataclass(frozen=True, slots=True)
class Abstention:
    """A surrogate declining to forecast a config, and why."""

    source: str
    reason: str


class LazyForecasts(Sequence[Forecast | Abstention]):
    """Forecasts of configs that are made when they are looked at, of arrays of floats: they need no check."""
