"""Correcting what was expected of a space's configs by what was measured of some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.job import Job, log2_speedups
from ..core.outcome import Failure, Measurement, Outcome
from .gaussian_process import (
    FITTED_ON,
    Known,
    Shape,
    choose_shape,
    foretold,
    most_telling,
    predict,
    share_of_failures,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

OFFSET = 1.5  # variance of the unknown mean over a space, as a multiple of that around it
OWN_SIGMA = 0.03  # a config measured again differs by 3 % (FAIR benchmark hub, A4000, median)
OWN_FAILURE = 0.99  # chance that a config that failed here fails again
REFIT_FROM, REFIT_GROWTH = 20, 1.15  # lengths are chosen anew each time below so many outcomes, then by this growth


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of each config of a space before it is measured there: log2 speed-up against the default.

    Attributes:
        mean, sigma: a bell for each config.
        fail: chance of failing; None where nothing is known of that.
        trends: columns, in units of sigma, that outcomes may follow beyond the mean by an unknown factor each, standard
            normal.
        x: one row per config, columns of deviation 1: configs near each other are expected to do alike.
    """

    mean: Array
    sigma: Array
    fail: Array | None
    trends: Array
    x: Array


@dataclass(frozen=True, slots=True)
class Corrected:
    """Mean and sigma of log2 speed-up and chance of failing of each config, those measured included.

    `foretold` is the log density that the outcomes had, each told from all the others.
    """

    mean: Array
    sigma: Array
    fail: Array
    foretold: float


class Corrector:
    """A Gaussian process on what outcomes miss of what was expected."""

    def __init__(self) -> None:
        # Replaced as a whole, so that threads that share this object at worst compute an answer twice.
        self._shape: tuple[tuple[object, ...], frozenset[int], Shape] | None = None

    def apply(self, job: Job, expected: Expected, outcomes: Mapping[Config, Outcome]) -> Corrected:
        """What to expect of each config of the job's space, given the outcomes."""
        import numpy as np

        space = job.space
        speedups = {c: s for c, s in log2_speedups(outcomes, space.default).items() if c in space}
        at = np.array([space.index(c) for c in speedups], dtype=np.intp)
        y = np.array(list(speedups.values()))
        broken = np.array(
            [space.index(c) for c, o in outcomes.items() if isinstance(o, Failure) and c in space], dtype=np.intp
        )
        # Nothing measured: forecasts say how configs compare, and how the default's time compares with what is expected of
        # it is not known to be off.
        offset = math.sqrt(OFFSET) if speedups else 0.0
        trend = np.hstack([np.full((len(space), 1), offset), expected.trends])
        known = Known(expected.x[at], trend[at], (y - expected.mean[at]) / expected.sigma[at])
        shape = self._choose_shape(job, known, at, y)
        used = most_telling(y)
        shift, sigma = predict(known.at(used), expected.x, trend, shape, 1.0)
        mean, sigma = expected.mean + shift * expected.sigma, sigma * expected.sigma
        fail = share_of_failures(expected.x, shape, at, broken, expected.fail)
        mean[at], fail[at], fail[broken] = y, 0.0, OWN_FAILURE
        sigma[at] = [math.hypot(OWN_SIGMA, _log2_error(outcomes[c])) for c in speedups]
        told = foretold(known.at(used), shape, 1.0) - np.log(expected.sigma[at[used]])
        return Corrected(mean, sigma, fail, float(told.sum()))

    def _choose_shape(self, job: Job, known: Known, at: NDArray[np.intp], y: Array) -> Shape:
        """Lengths for these outcomes; below a growth of 15 % those chosen before."""
        n = at.size
        if n >= REFIT_FROM:
            n = int(REFIT_FROM * REFIT_GROWTH ** int(math.log(n / REFIT_FROM) / math.log(REFIT_GROWTH)))
        key = (job.workload.digest, job.hardware.digest, job.space.digest, known.x.shape[1], n)
        before = self._shape
        if before is not None and before[0] == key and before[1] <= set(at.tolist()):
            return before[2]
        shape = choose_shape(known.at(most_telling(y, FITTED_ON)), 1.0)
        self._shape = (key, frozenset(at.tolist()), shape)
        return shape


def _log2_error(outcome: object) -> float:
    return outcome.relative_error / math.log(2.0) if isinstance(outcome, Measurement) else 0.0
