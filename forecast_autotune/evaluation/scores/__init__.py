"""How good and how honest forecasts are, judged on what was measured afterwards."""

from __future__ import annotations

from .bins import ForecastScores, against_median, bin_probabilities, score_forecasts, score_pairs, score_probabilities
from .confidence import FifthErrors, RiskCoverage, risk_coverage
from .discovery import Discovery, discovery
from .trust import TrustScores, rank_correlation, score_trust, spearman

__all__ = [
    "Discovery",
    "FifthErrors",
    "ForecastScores",
    "RiskCoverage",
    "TrustScores",
    "against_median",
    "bin_probabilities",
    "discovery",
    "rank_correlation",
    "risk_coverage",
    "score_forecasts",
    "score_pairs",
    "score_probabilities",
    "score_trust",
    "spearman",
]
