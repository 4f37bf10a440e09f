"""One search of one recorded space: what a method may look at, what it has tried, and how close that came to the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forecast_autotune.core.cached_property import cached_property
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.evaluation.recorded_space import RecordedSpace, log2_times
from forecast_autotune.features.forecast_columns import columns_of
from forecast_autotune.features.knob_matrix import knob_matrix
from forecast_autotune.protocols import Surrogate

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# Octaves beyond the slowest at which a failure counts, so that models have a number for it
FAILED = 0.3 / math.log(2.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case(RecordedSpace):
    """A recorded space to search, and what is known beforehand: the same kernel's times at other sizes or elsewhere."""

    recordings: Sequence[Recording] = ()
    surrogate: Callable[[], Surrogate]

    @cached_property
    def x(self) -> Array:
        """Knobs as numbers, a row for each config."""
        return knob_matrix(self.space).values

    @cached_property
    def levels(self) -> Indices:
        """The value of each knob that varies as a whole number from 0, a row for each config."""
        columns = list(knob_matrix(self.space).levels.values())
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.space), 0), dtype=np.intp)

    @cached_property
    def history(self) -> History:
        return read_history(self)


@dataclass(frozen=True, kw_only=True)
class History:
    """What other recordings say of a space, a row each: log2 of time over the median, NaN for a config they lack.

    A config that failed there counts as `FAILED` octaves beyond the slowest.
    """

    log2: Array
    same_vendor: NDArray[np.bool_]  # of each row

    def mean(self, *, same_vendor: bool = False) -> Array:
        """The mean over rows, or over those of the same vendor's hardware if there are any; 0 where none knows."""
        rows = self.log2[self.same_vendor] if same_vendor and self.same_vendor.any() else self.log2
        known = ~np.isnan(rows)
        total: Array = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return total


def read_history(case: Case) -> History:
    rows, kinds = [], []
    for recording in case.recordings:
        row = log2_times(recording, case.space)
        ran = row[np.isfinite(row)]
        if not ran.size:
            continue  # it shares nothing with this space
        row[np.isposinf(row)] = ran.max() + FAILED
        rows.append(row - np.median(ran))
        kinds.append(recording.hardware.kind == case.recording.hardware.kind)
    log2 = np.array(rows) if rows else np.zeros((0, len(case.space)))
    return History(log2=log2, same_vendor=np.array(kinds, dtype=bool))


class Trial:
    """A search under way: what was tried, in order, and what came of it. Of the recording a method sees nothing else.

    `unmeasured` is what the method would run where nothing may be measured; `broke` is how it broke down, if it did: what it
    has tried until then counts.
    """

    def __init__(self, case: Case, limit: int, seed: int) -> None:
        self.case = case
        self.limit = min(limit, len(case.space))
        self.random = np.random.default_rng(seed)
        self.tried: list[int] = []
        self.unmeasured = 0
        self.broke = ""
        self._session = case.surrogate().start(ForecastContext(job=case.job, recordings=case.recordings))
        self._free = np.ones(len(case.space), dtype=bool)
        if self.limit:
            self.measure(0)

    @property
    def left(self) -> int:
        return self.limit - len(self.tried)

    @property
    def untried(self) -> Indices:
        return np.flatnonzero(self._free)

    @property
    def at(self) -> Indices:
        """What was tried, as an index."""
        return np.array(self.tried, dtype=np.intp)

    @property
    def outcomes(self) -> dict[Config, Outcome]:
        configs = [self.case.space[i] for i in self.tried]
        return {c: self.case.recording.outcomes[c] for c in configs}

    def measure(self, config: int) -> None:
        """Try a config.

        Raises:
            ValueError: it was tried before, or no more may be tried.
        """
        if not self._free[config] or not self.left:
            raise ValueError(f"config {config}: it was tried before, or all {self.limit} tries are used")
        self._free[config] = False
        self.tried.append(int(config))

    def forecast(self, outcomes: dict[Config, Outcome]) -> Array:
        """Log2 speed-up of each config as our surrogate forecasts it, failing included; 0 where it abstains."""
        columns = columns_of(self._session.predict(outcomes, {}))
        expected: Array = np.nan_to_num(columns.mean + np.log2(np.maximum(1.0 - columns.fail, 1e-9)), nan=0.0)
        return expected

    def is_free(self, config: int) -> bool:
        return bool(self._free[config])

    def costs(self) -> Array:
        """Log2 time of each config tried; one that failed is `FAILED` beyond the slowest that ran."""
        times = self.case.log2_us[self.at]
        ran = times[np.isfinite(times)]
        return np.where(np.isfinite(times), times, (ran.max() if ran.size else 0.0) + FAILED)

    def draw(self, pool: Indices | None = None) -> int:
        """One of the untried configs, or of a pool of them, at random."""
        return int(self.random.choice(self.untried if pool is None else pool))

    def seed(self) -> int:
        """For a model that draws for itself."""
        return int(self.random.integers(2**31))

    def best_first(self, pool: Indices, promise: Array) -> list[int]:
        """A pool ordered by promise, the greatest first; equals at random."""
        mixed = self.random.permutation(pool.size)
        return [int(i) for i in pool[mixed][np.argsort(-promise[mixed], kind="stable")]]

    def slowdown(self, limit: int) -> float:
        """Time of the best of the first so many over the best there is; infinite if none of them ran.

        At 0 that of what would be run unmeasured; the default where that one fails, as its launch is then refused.
        """
        if not limit:
            chosen = self.case.slowdown(self.unmeasured)
            return chosen if math.isfinite(chosen) else self.case.default_slowdown
        return min(self.case.slowdown(i) for i in self.tried[:limit])
