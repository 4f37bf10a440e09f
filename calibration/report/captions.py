"""What to read from each picture of the report, in one sentence that states the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluate.benchmark import OURS
from .chart_data import (
    LEVEL,
    Curve,
    Fifths,
    Reliability,
    Rows,
    compared,
    leader,
    mean_score,
    pivot,
)
from .pictures import middle_of, words_of

NOTHING = "Nothing could be searched."
KEPT = 0.3  # share of the forecasts, of which a sentence tells the error
HONEST_WITHIN = 0.02  # of accuracy: mean confidence that is no further off counts as honest


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def times(slowdown: float | None) -> str:
    return "-" if slowdown is None or not math.isfinite(slowdown) else f"{slowdown:.3f}"


def listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def slowdowns_reading(curves: Mapping[str, Curve], rows: Rows) -> str:
    """Ours beside the best that owes nothing to our forecasts, after ten measurements or so."""
    if not curves:
        return NOTHING
    budget = pivot(int(b) for curve in curves.values() for b in curve.budgets)
    best = leader(curves, budget)
    ours = curves[OURS].at(budget) if OURS in curves else None
    lead = f"Lower is better: after {counted(budget)}"
    if ours is None or best is None:
        parts = [f"{m} stands at {times(s)}" for m, c in curves.items() if (s := c.at(budget)) is not None]
        return f"{lead} {listing(parts)} times the best time there is." if parts else NOTHING
    name, theirs = best
    text = f"{lead} ours stands at {times(ours)} times the best time there is"
    text += f", {name}, the best of those that do not use our forecasts, at {times(theirs)}"
    if (against := compared(rows, name, budget)) is not None:
        low, high = times(against["low"]), times(against["high"])
        text += f"; ours over it is {times(against['ratio'])} (95 % interval {low} to {high})"
    later = [int(b) for b, s in zip(curves[name].budgets, curves[name].middle, strict=True) if s <= ours]
    if theirs > ours:
        until = f"from {min(later)} on" if later else f"not within {int(curves[name].budgets.max())}"
        text += f", and {name} comes as low {until}"
    lowest = min(((s, m) for m, c in curves.items() if (s := c.at(budget)) is not None), default=(ours, OURS))
    return text + (f"; lowest is {lowest[1]} at {times(lowest[0])}." if lowest[1] not in (OURS, name) else ".")


def counted(budget: int) -> str:
    return f"{budget} measurement{'' if budget == 1 else 's'}"


def kernels_reading(by_kernel: Mapping[str, Mapping[str, Curve]]) -> str:
    """In how many kernels ours is as good as any other, and where it is furthest behind."""
    behind: dict[str, tuple[float, str]] = {}
    budgets = [int(b) for curves in by_kernel.values() for c in curves.values() for b in c.budgets]
    if not budgets:
        return NOTHING
    budget = pivot(budgets)
    for kernel, curves in by_kernel.items():
        best = leader(curves, budget)
        ours = curves[OURS].at(budget) if OURS in curves else None
        if best is not None and ours is not None:
            behind[kernel] = (ours / best[1], best[0])
    if not behind:
        return f"Each panel is one kernel, drawn as above; the sentence above speaks of {counted(budget)}."
    good = sum(over <= LEVEL for over, _ in behind.values())
    text = f"After {counted(budget)} ours is as low as the best of the others, or within 1 %,"
    text += f" in {good} of {len(behind)} kernels"
    worst, (over, method) = max(behind.items(), key=lambda item: item[1][0])
    return text + (f"; furthest behind in {worst}, {times(over)} times {method}." if over > LEVEL else ".")


def reliability_reading(classes: Mapping[int, Reliability]) -> str:
    """Whether forecasts are as sure as they are right."""
    parts = []
    for known, one in classes.items():
        apart = one.mean_confidence - one.mean_accuracy
        how = (
            "as sure as they are right"
            if abs(apart) <= HONEST_WITHIN
            else "too sure"
            if apart > 0
            else "not sure enough"
        )
        parts.append(
            f"{words_of(known)} forecasts are {how} ({percent(one.mean_confidence)} sure, "
            f"{percent(one.mean_accuracy)} right)"
        )
    return f"On the diagonal confidence is honest, below it too high: {listing(parts)}."


def fifths_reading(together: Mapping[int, Fifths], rows: Mapping[int, Rows]) -> str:
    """How much more the least sure fifth errs than the surest, and in how many spaces error falls."""
    if not together:
        return "No space has the five configs that fifths take."
    known = middle_of(list(together))
    error = together[known].error
    falls = [row["falls"] for row in rows[known] if row["falls"] is not None]
    return (
        f"Confidence means something where error falls from left to right: {words_of(known)} the least sure fifth errs in "
        f"{percent(error[0])} and the surest in {percent(error[-1])}, and error falls, within what chance may do, in "
        f"{sum(falls)} of {len(falls)} spaces."
    )


def risk_reading(curves: Mapping[int, tuple[Any, Sequence[Any]]], areas: Mapping[int, float | None]) -> str:
    """What trusting the surest part of the forecasts saves."""
    known = middle_of(list(curves))
    risk, _ = curves[known]
    kept, area = float(risk[round(100 * KEPT) - 1]), areas[known]
    text = (
        f"The lower at the left the better: {words_of(known)} the surest {percent(KEPT)} err in {percent(kept)}, all of "
        f"them in {percent(float(risk[-1]))}"
    )
    if area is None:
        return text + "."
    return (
        f"{text}; the area under the curve is {area:.2f}, where confidence without meaning gives {float(risk[-1]):.2f}."
    )


def beside_reading(rows: Rows) -> str:
    """How many outcomes lie inside their intervals, and how well forecasts rank."""
    known = rows[0]["known"]
    covered = [row["rest_coverage_90"] for row in rows if row["rest_coverage_90"] is not None]
    if not covered:
        return f"{words_of(known).capitalize()} all forecasts abstain."
    mean, rank = mean_score(rows, "rest_coverage_90"), mean_score(rows, "rest_rank_correlation")
    text = (
        f"On the line a forecast is exact, and an orange diamond lies outside its 90 % interval: {words_of(known)} "
        f"{percent(mean or 0.0)} of the outcomes lie inside, {percent(min(covered))} to "
        f"{percent(max(covered))} by space"
    )
    return text + ("." if rank is None else f", and forecasts and outcomes rank alike to {rank:.2f} (Spearman).")
