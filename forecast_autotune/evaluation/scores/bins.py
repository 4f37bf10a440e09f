"""Scores over the eight speed-up bins of GPU Forecasters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.forecast import BIN_EDGES_LOG2, Abstention, Forecast
from ...features.forecast_mixtures import Mixtures
from .checks import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

BINS = len(BIN_EDGES_LOG2) + 1
SMALLEST = 1e-6  # of a probability in the log score: one event held impossible must not hide all the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScores:
    """Scores of a set of forecasts over the eight speed-up bins of GPU Forecasters (arXiv 2605.31464).

    Attributes:
        count: forecasts scored.
        accuracy: share whose most probable bin is the one measured.
        off_by_one: share whose most probable bin is the one measured or its neighbour.
        half_brier: half the squared distance between the probabilities and the bin measured (Brier 1950), 0 to 1.
        brier_skill: 1 - Brier / Brier of always answering the measured bins' frequencies; None if one bin has all.
        crps7: squared distance between cumulated probabilities and the step at the bin measured, over the 7 edges
            (ranked probability score, Epstein 1969), 0 to 1.
        nll: mean of -ln(probability of the bin measured), probabilities below 1e-6 counted as 1e-6.
        ece: |accuracy - mean confidence| over ten equal-width classes of confidence, weighted by their size (expected
            calibration error, Naeini 2015); the confidence is the probability of the most probable bin.
        error_by_fifth: share of wrong bins in each fifth of the forecasts, from the least confident to the most; empty
            for fewer than five forecasts. Falls from fifth to fifth if confidence means something.
        top_1_percent: slowdown of the best config within the top 1 % of the forecasts' own ranking, against the best of
            all (1.0: the best is among them); None if none of them runs. Likewise 10 % and 50 %.
    """

    count: int
    accuracy: float
    off_by_one: float
    half_brier: float
    brier_skill: float | None
    crps7: float
    nll: float
    ece: float
    error_by_fifth: tuple[float, ...]
    top_1_percent: float | None
    top_10_percent: float | None
    top_50_percent: float | None


def score_pairs(pairs: Sequence[tuple[Forecast, float]], *, reference: float = 0.0) -> ForecastScores:
    """Score forecasts against measured log2 speed-ups over the default config.

    A config that failed is given as minus infinity: it lies in the slowest bin, where a forecast's chance of failing
    counts too.

    Args:
        pairs: each forecast, and the log2 speed-up then measured.
        reference: log2 speed-up, against the default, of the config that the bins relate to.
    Raises:
        InvalidInputError: no pairs, or a measured speed-up that is NaN or plus infinity.
    """
    return score_forecasts([f for f, _ in pairs], [m for _, m in pairs], reference=reference)


def score_forecasts(
    forecasts: Sequence[Forecast | Abstention], measured: Sequence[float], *, reference: float = 0.0
) -> ForecastScores:
    """As `score_pairs`; an abstention is scored as eight equal probabilities, ranked as the reference."""
    import numpy as np

    truth = checked(forecasts, measured)
    mixtures = Mixtures.of(forecasts)
    ran = np.maximum(1.0 - mixtures.fail, 1e-9)
    expected = np.where(mixtures.abstained, reference, mixtures.expected() + np.log2(ran))
    return score_probabilities(probabilities_of(mixtures, reference), expected, truth - reference)


def score_probabilities(probabilities: Array, expected: Array, speedups: Array) -> ForecastScores:
    """As `score_pairs`, of forecasts that are eight probabilities and nothing else.

    Args:
        probabilities: eight for each config, shape (configs, 8); a row sums to 1.
        expected: log2 speed-up by which each config is ranked, shape (configs,).
        speedups: log2 speed-up measured, over the reference of the bins; minus infinity for a config that failed.
    """
    import numpy as np

    truth = np.asarray(speedups, dtype=float)
    order = np.argsort(-np.asarray(expected, dtype=float), kind="stable")
    return ForecastScores(
        count=int(truth.size),
        **_bin_scores(probabilities, bins_of(truth, 0.0)),  # type: ignore[arg-type]
        top_1_percent=_slowdown_within(truth[order], 0.01),
        top_10_percent=_slowdown_within(truth[order], 0.10),
        top_50_percent=_slowdown_within(truth[order], 0.50),
    )


def against_median(
    forecasts: Sequence[Forecast | Abstention], log2_us: Sequence[float], *, default_us: float | None
) -> tuple[list[float], float]:
    """What was measured of a whole space, on the forecasts' own scale, and where its median config stands on it.

    Forecasts are speed-ups over the default. While the default's time is not known to whoever forecasts, they only say how
    configs compare with one another: then the median of the space lies where the forecasts' own median does, and not
    where the default, one config among many, would put it.

    Args:
        log2_us: measured times, plus infinity for a failure; at least one is finite.
        default_us: the default's time, if forecasts knew it.
    Returns:
        log2 speed-ups, minus infinity for a failure; and the reference, for `score_forecasts`.
    """
    import numpy as np

    slow = np.asarray(log2_us, dtype=float)
    median = float(np.median(slow[np.isfinite(slow)]))
    if default_us is not None:
        unit = math.log2(default_us)
        return (unit - slow).tolist(), unit - median
    mixtures = Mixtures.of(forecasts)
    reference = 0.0 if mixtures.abstained.all() else float(np.median(mixtures.expected()[~mixtures.abstained]))
    return (median - slow + reference).tolist(), reference


def bin_probabilities(forecasts: Sequence[Forecast | Abstention], *, reference: float = 0.0) -> Array:
    """Eight bin probabilities per forecast, as rows; the chance of failing is added to the slowest bin.

    An abstention's are equal. 10,000 forecasts of two bells, all scores included, take 21 ms as a `ForecastTable` and 31 as
    objects (one core of an EPYC).
    """
    return probabilities_of(Mixtures.of(forecasts), reference)


def probabilities_of(mixtures: Mixtures, reference: float) -> Array:
    """As `bin_probabilities`."""
    import numpy as np

    n = mixtures.fail.size
    cumulated = np.zeros((n, BINS + 1))
    cumulated[:, -1] = 1.0
    cumulated[:, 1:-1] = mixtures.cdf(np.tile(np.asarray(BIN_EDGES_LOG2) + reference, (n, 1)))
    probabilities: Array = np.clip(np.diff(cumulated, axis=1), 0.0, None)
    probabilities *= (1.0 - mixtures.fail)[:, None]
    probabilities[:, 0] += mixtures.fail
    probabilities[mixtures.abstained] = 1.0 / BINS
    return probabilities


def bins_of(truth: Array, reference: float) -> NDArray[np.intp]:
    """The bin of each measured log2 speed-up; an upper edge belongs to its bin, as in `bin_of`."""
    import numpy as np

    return np.searchsorted(np.asarray(BIN_EDGES_LOG2), truth - reference, side="left")


def _bin_scores(probabilities: Array, bins: NDArray[np.intp]) -> dict[str, object]:
    import numpy as np

    n = bins.size
    hit = np.zeros_like(probabilities)
    hit[np.arange(n), bins] = 1.0
    half_brier = 0.5 * float(((probabilities - hit) ** 2).sum(axis=1).mean())
    frequencies = hit.mean(axis=0)
    by_frequency = 0.5 * float(((frequencies - hit) ** 2).sum(axis=1).mean())
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    right = (predicted == bins).astype(float)
    steps = (np.cumsum(probabilities, axis=1) - np.cumsum(hit, axis=1))[:, :-1]
    classes = np.minimum((confidence * 10).astype(int), 9)
    gaps = [
        abs(float(right[classes == c].sum() - confidence[classes == c].sum()))
        for c in range(10)
        if (classes == c).any()
    ]
    fifths = np.array_split(1.0 - right[np.argsort(confidence, kind="stable")], 5) if n >= 5 else []
    return {
        "accuracy": float(right.mean()),
        "off_by_one": float((abs(predicted - bins) <= 1).mean()),
        "half_brier": half_brier,
        "brier_skill": 1.0 - half_brier / by_frequency if by_frequency > 0 else None,
        "crps7": float((steps**2).sum(axis=1).mean()) / (BINS - 1),
        "nll": float(-np.log(np.maximum(probabilities[np.arange(n), bins], SMALLEST)).mean()),
        "ece": sum(gaps) / n,
        "error_by_fifth": tuple(float(f.mean()) for f in fifths),
    }


def _slowdown_within(ranked: Array, share: float) -> float | None:
    """Best of all over best within the first `share` of the ranking, at least one config."""
    within = ranked[: max(1, math.ceil(share * ranked.size))]
    best = float(within.max())
    return None if math.isinf(best) else float(2.0 ** (float(ranked.max()) - best))
