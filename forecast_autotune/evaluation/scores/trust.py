"""What can be built on forecasts: their intervals, their order, and choosing without measuring everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.forecast import Abstention, Forecast
from ...features.forecast_mixtures import Mixtures
from .checks import checked
from .confidence import confidence_and_error, curve_of, fifths_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustScores:
    """Scores beside `ForecastScores`: whether doubt falls on the right forecasts, and what relying on them costs.

    Attributes:
        aurc: area under the risk-coverage curve; see `RiskCoverage`.
        error_by_fifth_se: standard errors of `ForecastScores.error_by_fifth`; empty for fewer than five forecasts.
        error_falls: see `FifthErrors.falls`; None for fewer than five forecasts.
        coverage_50: share of measured speed-ups inside the central 50 % of their forecasts, likewise `coverage_90`; an
            honest forecaster has 0.5 and 0.9. Configs that failed and abstentions are left out; None if nothing is left.
        rank_correlation: Spearman's, between expected and measured speed-up; see the function of this name.
        regret_10: relative time lost by measuring the least confident 10 % and trusting the forecasts of the others;
            likewise `regret_30`; see `regrets_of`. None if the config chosen does not run.
    """

    aurc: float
    error_by_fifth_se: tuple[float, ...]
    error_falls: bool | None
    coverage_50: float | None
    coverage_90: float | None
    rank_correlation: float | None
    regret_10: float | None
    regret_30: float | None


def score_trust(
    forecasts: Sequence[Forecast | Abstention], measured: Sequence[float], *, reference: float = 0.0
) -> TrustScores:
    """All of these scores at once; arguments and errors as of `score_forecasts`."""
    truth = checked(forecasts, measured)
    mixtures = Mixtures.of(forecasts)
    confidence, wrong = confidence_and_error(mixtures, truth, reference)
    fifths = fifths_of(confidence, wrong)
    covered_50, covered_90 = _coverages(mixtures, truth, (0.5, 0.9))
    regret_10, regret_30 = regrets_of(mixtures, confidence, truth, (0.1, 0.3))
    return TrustScores(
        aurc=curve_of(confidence, wrong).area,
        error_by_fifth_se=fifths.standard_error if fifths else (),
        error_falls=fifths.falls if fifths else None,
        coverage_50=covered_50,
        coverage_90=covered_90,
        rank_correlation=_rank_correlation(mixtures, truth),
        regret_10=regret_10,
        regret_30=regret_30,
    )


def rank_correlation(forecasts: Sequence[Forecast | Abstention], measured: Sequence[float]) -> float | None:
    """Spearman's rank correlation between expected and measured log2 speed-up, equal values sharing their mean rank.

    Over configs that ran and were forecast; None for fewer than two of them, or where either has one value alone.
    """
    return _rank_correlation(Mixtures.of(forecasts), checked(forecasts, measured))


def _coverages(mixtures: Mixtures, truth: Array, shares: Sequence[float]) -> list[float | None]:
    """Share of the measured speed-ups inside each central share of their forecast, quantile to quantile of the mixture."""
    import numpy as np

    usable = np.isfinite(truth) & ~mixtures.abstained
    if not usable.any():
        return [None] * len(shares)
    chance_below = mixtures.at(usable).cdf(truth[usable])
    return [float((abs(chance_below - 0.5) <= share / 2).mean()) for share in shares]


def _rank_correlation(mixtures: Mixtures, truth: Array) -> float | None:
    import numpy as np

    usable = np.isfinite(truth) & ~mixtures.abstained
    return spearman(mixtures.expected()[usable], truth[usable])


def spearman(one: ArrayLike, other: ArrayLike) -> float | None:
    """Spearman's rank correlation of two lists of equal length, equal values sharing their mean rank.

    None for fewer than two values, or where either list has one value alone.
    """
    import numpy as np

    left, right = _ranks(np.asarray(one, dtype=float)), _ranks(np.asarray(other, dtype=float))
    if len(left) < 2:
        return None
    left, right = left - left.mean(), right - right.mean()
    spread = math.sqrt(float(left @ left) * float(right @ right))
    return float(left @ right) / spread if spread > 0 else None


def _ranks(values: Array) -> Array:
    """Rank of each value from 0, equal ones sharing their mean rank."""
    import numpy as np

    _, level, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes) - 1
    ranks: Array = (last - (sizes - 1) / 2)[level]
    return ranks


def regrets_of(mixtures: Mixtures, confidence: Array, truth: Array, shares: Sequence[float]) -> list[float | None]:
    """What it costs to measure only the least confident share of the configs and to trust the others' forecasts.

    Chosen is the config that looks best, by its measured speed-up or by its expected one (log2 of the chance to run
    added); the regret is its time over the best's, minus 1 (GPU Forecasters, arXiv 2605.31464: trust the confident,
    measure the rest). An abstention cannot be trusted.

    Args:
        confidence: of each forecast, the probability of its most probable bin.
        truth: measured log2 speed-ups, -inf for a config that failed.
        shares: of the configs that are measured, 0 to 1, rounded up to whole configs.
    Returns:
        The regret at each share; None where the config chosen does not run, or there is none to choose.
    """
    import numpy as np

    expected = mixtures.expected() + np.log2(np.maximum(1.0 - mixtures.fail, 1e-9))
    trusted = np.where(mixtures.abstained, -math.inf, expected)
    # Who cannot be trusted is measured first, whatever the confidence of those that say something.
    order = np.argsort(np.where(mixtures.abstained, -1.0, confidence), kind="stable")
    best = float(truth.max())
    regrets: list[float | None] = []
    for share in shares:
        tried = order[: math.ceil(share * truth.size - 1e-9)]
        value = trusted.copy()
        value[tried] = truth[tried]
        chosen = int(value.argmax())
        reached = float(truth[chosen]) if value[chosen] > -math.inf else -math.inf
        regrets.append(float(2.0 ** (best - reached)) - 1.0 if reached > -math.inf else None)
    return regrets
