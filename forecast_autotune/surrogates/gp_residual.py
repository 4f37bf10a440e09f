"""A Gaussian process on what outcomes miss of what was expected of a space's configs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.job import log2_speedups
from ..core.outcome import Failure, Measurement, Outcome
from ..core.space import Space
from .gaussian_process import (
    FITTED_ON,
    KnownOutcomes,
    Shape,
    choose_shape,
    loo_log_densities,
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
OWN_FAILURE = 0.99  # chance that a config that failed for this job fails again
REFIT_FROM = 20  # below so many outcomes lengths are chosen again each time
REFIT_GROWTH = 1.15  # from there on, each time the outcomes have become so many times as many


@dataclass(frozen=True, slots=True)
class GPPrior:
    """What is expected of each config of a space before it is measured: log2 speed-up against the default.

    Attributes:
        mean, sigma: a normal for each config; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`; None where nothing is known of that.
        basis: columns that outcomes may follow beyond the mean, each by an unknown factor that is standard normal; in units
            of sigma, shape `(configs, columns)`.
        x: what configs have in common: configs near each other are expected to do alike. Shape `(configs, columns)`, each
            column of deviation 1.
        shape: how far configs may be apart to do alike; None: the outcomes choose.
        offset: variance of the unknown mean over a space, as a multiple of that around it.
    """

    mean: Array
    sigma: Array
    fail: Array | None
    basis: Array
    x: Array
    shape: Shape | None = None
    offset: float = OFFSET


@dataclass(frozen=True, slots=True)
class GPPosterior:
    """What to expect of each config given the outcomes, those measured included.

    Attributes:
        mean, sigma: of log2 speed-up, shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`.
        loo_log_density: of the outcomes, each forecast from all the others; the sum, in nats.
    """

    mean: Array
    sigma: Array
    fail: Array
    loo_log_density: float


class GPResidual:
    """Corrects what was expected of one space's configs by outcomes; the columns `x` stay the same from call to call."""

    def __init__(self, space: Space) -> None:
        self._space = space
        # The last: when to fit again, on which configs, lengths
        self._fit: tuple[int, frozenset[int], Shape] | None = None

    def apply(self, prior: GPPrior, outcomes: Mapping[Config, Outcome]) -> GPPosterior:
        """What to expect of each config given the outcomes; those of configs outside the space count for nothing."""
        import numpy as np

        space = self._space
        speedups = {c: s for c, s in log2_speedups(outcomes, space.default).items() if c in space}
        at = np.array([space.index(c) for c in speedups], dtype=np.intp)
        y = np.array(list(speedups.values()))
        failed = np.array(
            [space.index(c) for c, o in outcomes.items() if isinstance(o, Failure) and c in space], dtype=np.intp
        )
        # Nothing measured: forecasts say how configs compare, and how the default's time compares with what is expected of
        # it is not known to be off.
        offset = math.sqrt(prior.offset) if speedups else 0.0
        basis = np.hstack([np.full((len(space), 1), offset), prior.basis])
        known = KnownOutcomes(prior.x[at], basis[at], (y - prior.mean[at]) / prior.sigma[at])
        shape = prior.shape or self._choose_shape(known, at, y)
        used = most_telling(y)
        shift, sigma = predict(known.at(used), prior.x, basis, shape, 1.0)
        mean, sigma = prior.mean + shift * prior.sigma, sigma * prior.sigma
        fail = share_of_failures(prior.x, shape, at, failed, prior.fail)
        mean[at], fail[at], fail[failed] = y, 0.0, OWN_FAILURE
        sigma[at] = [math.hypot(OWN_SIGMA, _log2_error(outcomes[c])) for c in speedups]
        densities = loo_log_densities(known.at(used), shape, 1.0) - np.log(prior.sigma[at[used]])
        return GPPosterior(mean, sigma, fail, float(densities.sum()))

    def _choose_shape(self, known: KnownOutcomes, at: NDArray[np.intp], y: Array) -> Shape:
        """Lengths for these outcomes; below a growth of 15 % those chosen before."""
        n = at.size
        if n >= REFIT_FROM:
            n = int(REFIT_FROM * REFIT_GROWTH ** int(math.log(n / REFIT_FROM) / math.log(REFIT_GROWTH)))
        if self._fit is not None and self._fit[0] == n and self._fit[1] <= set(at.tolist()):
            return self._fit[2]
        shape = choose_shape(known.at(most_telling(y, FITTED_ON)), 1.0)
        self._fit = (n, frozenset(at.tolist()), shape)
        return shape


def _log2_error(outcome: object) -> float:
    return outcome.relative_error / math.log(2.0) if isinstance(outcome, Measurement) else 0.0
