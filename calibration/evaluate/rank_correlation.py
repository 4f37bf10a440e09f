"""Spearman's rank correlation of two lists of times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's, equal values sharing their mean rank; None where one side says nothing of the order."""
    if len(set(left)) < 2 or len(set(right)) < 2:
        return None
    return statistics.correlation(_ranks(left), _ranks(right))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]
