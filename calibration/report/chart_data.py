"""What the report's pictures show, as numbers, from rows of searches and of `PageForecasts`. Nothing is drawn here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluate.aggregates import geomean_of_medians, is_baseline, p90, ratio, slowdowns
from ..evaluate.benchmark import OURS

Array = NDArray[np.float64]
Rows = Sequence[dict[str, Any]]

QUARTILES = (25, 75)
INTERVAL = (2.5, 97.5)  # percentiles
RESAMPLES = 1000
CLASSES = 10  # of confidence, of equal width
LEVEL = 1.01  # what is slower by less is as good: repeats of a measurement differ by as much
PERCENTS = range(1, 101)

SCORES = {  # as told to people, with what a perfect or an honest forecaster has
    "accuracy": ("right bin, share", "1"),
    "off_by_one": ("right bin or its neighbour, share", "1"),
    "brier_skill": ("Brier skill against the bins' own frequencies", "1"),
    "half_brier": ("half Brier", "0"),
    "crps7": ("CRPS over the bins, / 7", "0"),
    "nll": ("negative log likelihood", "0"),
    "ece": ("expected calibration error (ECE)", "0"),
    "aurc": ("area under risk\u2013coverage (AURC)", "0"),
    "coverage_50": ("inside the central 50 %", "0.5"),
    "coverage_90": ("inside the central 90 %", "0.9"),
    "rank_correlation": ("rank correlation", "1"),
    "regret_10": ("regret, least sure 10 % measured", "0"),
    "regret_30": ("regret, least sure 30 % measured", "0"),
}


# Slowdowns --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Slowdown of one method by measurements: the geometric mean over spaces of medians over seeds, and all runs' quartiles.

    Infinite where in half the runs of a space nothing had run yet.
    """

    budgets: Array
    middle: Array
    low: Array
    high: Array

    def at(self, budget: int) -> float | None:
        """None where the method was not asked, or nothing ran."""
        middle = self.middle[self.budgets == budget]
        return float(middle[0]) if middle.size and math.isfinite(middle[0]) else None


def curves(rows: Rows) -> dict[str, Curve]:
    """For each method that searched all spaces of these rows, at the budgets where it did; 0 is left to the tables."""
    spaces = {row["trace"] for row in rows}
    points: dict[str, dict[int, tuple[float, float, float]]] = {}
    for (_, budget, method), by_space in slowdowns(rows).items():
        if set(by_space) == spaces and int(budget) > 0:
            every = [s for values in by_space.values() for s in values]
            low, high = np.percentile(every, QUARTILES, method="inverted_cdf")  # of infinite ones nothing in between
            points.setdefault(method, {})[int(budget)] = (geomean_of_medians(by_space), float(low), float(high))
    by_method = {}
    for method, at in points.items():
        middle, low_at, high_at = np.array([at[b] for b in sorted(at)]).T
        by_method[method] = Curve(budgets=np.array(sorted(at), dtype=float), middle=middle, low=low_at, high=high_at)
    return by_method


def pivot(budgets: Iterable[int]) -> int:
    """The number of measurements that sentences speak of: ten, or the nearest below it."""
    asked = sorted(b for b in budgets if b > 0)
    return max((b for b in asked if b <= 10), default=asked[0])


def leader(curves: Mapping[str, Curve], budget: int) -> tuple[str, float] | None:
    """The best method at a budget that owes nothing to our forecasts, and its slowdown."""
    others = {m: s for m, c in curves.items() if is_baseline(m) and (s := c.at(budget)) is not None}
    return min(others.items(), key=lambda item: item[1], default=None)


def compared(rows: Rows, other: str, budget: int) -> dict[str, Any] | None:
    """Ours over another at a budget: the ratio, and its 95 % interval."""
    by_method = {m: by for (_, b, m), by in slowdowns(rows).items() if b == str(budget)}
    return ratio(by_method[OURS], by_method[other]) if {OURS, other} <= set(by_method) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A cell of the table of slowdowns: geometric mean over spaces of medians over seeds; of all runs p90 and worst."""

    geomean: float
    p90: float
    worst: float


def standings(rows: Rows) -> dict[tuple[str, str], Standing]:
    """By method and budget, of methods that searched all spaces of these rows."""
    spaces = {row["trace"] for row in rows}
    cells = {}
    for (_, budget, method), by_space in slowdowns(rows).items():
        if set(by_space) == spaces:
            every = [s for values in by_space.values() for s in values]
            cells[method, budget] = Standing(geomean=geomean_of_medians(by_space), p90=p90(every), worst=max(every))
    return cells


# Forecasts --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Forecasts by class of confidence; every space counts alike, whatever its size.

    Attributes:
        confidence: the mean of each class that holds any, likewise `accuracy`; `count` forecasts.
        share: of all forecasts in each class, that of a space counting as one.
        mean_confidence: over all classes, likewise `mean_accuracy`.
    """

    confidence: Array
    accuracy: Array
    share: Array
    count: NDArray[np.intp]
    mean_confidence: float
    mean_accuracy: float


def reliability(rows: Rows) -> Reliability:
    """Of rows that tell of the same number of outcomes, one for each space."""
    confidence = [np.ravel(row["confidence"]) for row in rows]
    weight = np.concatenate([np.full(c.size, 1.0 / c.size / len(rows)) for c in confidence])
    sure = np.concatenate(confidence)
    right = 1.0 - np.concatenate([np.ravel(row["wrong"]) for row in rows]).astype(float)
    place = np.minimum((sure * CLASSES).astype(int), CLASSES - 1)
    share: Array = np.bincount(place, weight, CLASSES).astype(float)
    held = share > 0
    return Reliability(
        confidence=np.bincount(place, weight * sure, CLASSES)[held] / share[held],
        accuracy=np.bincount(place, weight * right, CLASSES)[held] / share[held],
        share=share[held],
        count=np.bincount(place, minlength=CLASSES)[held],
        mean_confidence=float(weight @ sure),
        mean_accuracy=float(weight @ right),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifths:
    """Share of wrong bins from the least confident fifth to the most, and the 95 % intervals."""

    error: Array
    low: Array
    high: Array


def fifths_of(row: Mapping[str, Any]) -> Fifths | None:
    """Of one space, the interval by drawing its configs anew; None for fewer than five configs."""
    if not row["error_by_fifth"]:
        return None
    error, low, high = (np.array(row[name]) for name in ("error_by_fifth", "error_low", "error_high"))
    return Fifths(error=error, low=low, high=high)


def fifths_together(rows: Rows) -> Fifths | None:
    """The mean over spaces, the interval by drawing spaces anew; of a single one its own."""
    each = [fifths for row in rows if (fifths := fifths_of(row)) is not None]
    if len(each) < 2:
        return each[0] if each else None
    errors = np.array([fifths.error for fifths in each])
    drawn = np.random.default_rng(0).integers(len(each), size=(RESAMPLES, len(each)))
    low, high = np.percentile(errors[drawn].mean(axis=1), INTERVAL, axis=0)
    return Fifths(error=errors.mean(axis=0), low=low, high=high)


def risk(rows: Rows) -> Array:
    """Error of the surest 1, 2, … 100 % of the forecasts, the mean over spaces."""
    errors: Array = np.mean([row["risk"] for row in rows], axis=0)
    return errors


def mean_score(rows: Rows, name: str) -> float | None:
    """The mean over the spaces that have the score, None if none has; a `rest_…` is over the configs that were not told."""
    values = [row[name] for row in rows if row[name] is not None]
    return statistics.fmean(values) if values else None


def discovered(rows: Rows) -> tuple[float | None, float | None]:
    """Precision and recall of calling a neighbour 1.5 times as fast, over the pairs of all spaces."""
    events, called, spotted = (sum(row[name] for row in rows) for name in ("events", "called", "spotted"))
    return spotted / called if called else None, spotted / events if events else None


def by_known(rows: Rows) -> dict[int, list[dict[str, Any]]]:
    """Rows of forecasts by the number of outcomes told before."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["known"], []).append(row)
    return dict(sorted(groups.items()))


def grouped(rows: Rows, name: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups
