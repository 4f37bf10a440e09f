"""Whether confidence means something: are the forecasts that are sure of their bin the ones that are right?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.forecast import Abstention, Forecast
from ...features.forecast_mixtures import Mixtures
from .bins import bins_of, probabilities_of
from .checks import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DOUBT = 2.0  # standard errors by which error may rise from a fifth to the next and still count as not rising


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskCoverage:
    """Error of the forecasts that are kept, the most confident first (Geifman and El-Yaniv, 2017).

    Attributes:
        error: share of wrong bins among the k + 1 most confident forecasts, at index k; 0 to 1.
        area: their mean, the area under the curve over all coverages (AURC); 0 is perfect, and what counts beside it is
            the plain error, the curve's last value, which a confidence that means nothing gives at every coverage.
    """

    error: Array
    area: float

    def error_at(self, coverage: float) -> float:
        """Error when this share of the forecasts is kept, at least one."""
        kept = min(self.error.size, max(1, math.ceil(coverage * self.error.size - 1e-9)))
        return float(self.error[kept - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class FifthErrors:
    """Share of wrong bins in each fifth of the forecasts, from the least confident to the most, with standard errors.

    Attributes:
        error: as `ForecastScores.error_by_fifth`.
        standard_error: of each, by the bootstrap within the fifth. Drawing m right-or-wrong forecasts with replacement
            gives a binomial number of wrong ones, so that its error is sqrt(error (1 - error) / m): nothing is drawn.
        falls: whether the most confident fifth errs less than the least confident one (or none errs at all) and no fifth
            errs more than the less confident one before it by over two standard errors of their difference.
    """

    error: tuple[float, ...]
    standard_error: tuple[float, ...]
    falls: bool


def risk_coverage(
    forecasts: Sequence[Forecast | Abstention], measured: Sequence[float], *, reference: float = 0.0
) -> RiskCoverage:
    """The risk-coverage curve over the eight bins; arguments and errors as of `score_forecasts`.

    Confidence is the probability of the most probable bin. Forecasts of equal confidence count as kept in any order: each
    place among them has their mean error.
    """
    return curve_of(*confidence_and_error(Mixtures.of(forecasts), checked(forecasts, measured), reference))


def confidence_and_error(mixtures: Mixtures, truth: Array, reference: float) -> tuple[Array, Array]:
    """Probability of each forecast's most probable bin, and 1 where that is not the one measured, else 0."""
    probabilities = probabilities_of(mixtures, reference)
    wrong: Array = (probabilities.argmax(axis=1) != bins_of(truth, reference)).astype(float)
    confidence: Array = probabilities.max(axis=1)
    return confidence, wrong


def curve_of(confidence: Array, wrong: Array) -> RiskCoverage:
    """The error of the surest forecasts, as more of them are trusted; equally confident ones share their mean error."""
    import numpy as np

    order = np.argsort(-confidence, kind="stable")
    _, begins, sizes = np.unique(-confidence[order], return_index=True, return_counts=True)
    of_level = np.add.reduceat(wrong[order], begins) / sizes
    error = np.cumsum(np.repeat(of_level, sizes)) / np.arange(1, wrong.size + 1)
    return RiskCoverage(error=error, area=float(error.mean()))


def fifths_of(confidence: Array, wrong: Array) -> FifthErrors | None:
    """Error by fifth of confidence, the least confident first; None for fewer than five forecasts."""
    import numpy as np

    if wrong.size < 5:
        return None
    fifths = np.array_split(wrong[np.argsort(confidence, kind="stable")], 5)
    error = [float(f.mean()) for f in fifths]
    variance = [e * (1.0 - e) / f.size for e, f in zip(error, fifths, strict=True)]
    rises = any(error[i + 1] - error[i] > DOUBT * math.sqrt(variance[i] + variance[i + 1]) for i in range(4))
    return FifthErrors(
        error=tuple(error),
        standard_error=tuple(math.sqrt(v) for v in variance),
        falls=not rises and (error[4] < error[0] or max(error) == 0.0),
    )
