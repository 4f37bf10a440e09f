"""What many searches come to: means over spaces, tails over seeds, and how sure a comparison of two methods is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from .benchmark import OURS, UNSTOPPED, Row
from .searches import METHODS
from .trials import Array

RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles

BySpace = Mapping[str, Sequence[float]]
"""Slowdowns of one method at one budget: for each space those of its seeds."""


def is_baseline(method: str) -> bool:
    """Whether a method owes nothing to our forecasts."""
    return method in METHODS and not METHODS[method].forecasts


def p90(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def geomean_of_medians(by_space: BySpace) -> float:
    return statistics.geometric_mean(statistics.median(values) for values in by_space.values())


def interval(by_space: BySpace, kernel_of: Mapping[str, str]) -> Row:
    """The interval of a `geomean_of_medians`: kernels are drawn anew, traces of each, and seeds of each.

    Infinite where a search found nothing that runs.
    """
    if not all(np.isfinite(values).all() for values in by_space.values()):
        return {"low": math.inf, "high": math.inf}
    generator, again = np.random.default_rng(0), np.arange(RESAMPLES)
    by_kernel: dict[str, list[Array]] = {}
    for space, values in by_space.items():
        seeds = generator.integers(len(values), size=(RESAMPLES, len(values)))
        by_kernel.setdefault(kernel_of[space], []).append(np.log(np.median(np.array(values)[seeds], axis=1)))
    sums, count = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    times = generator.multinomial(len(by_kernel), [1 / len(by_kernel)] * len(by_kernel), size=RESAMPLES)
    for drawn, medians in zip(times.T, map(np.stack, by_kernel.values()), strict=True):
        traces = medians[generator.integers(len(medians), size=medians.shape), again]
        sums, count = sums + drawn * traces.sum(axis=0), count + drawn * len(medians)
    low, high = np.exp(np.percentile(sums / count, INTERVAL))
    return {"low": float(low), "high": float(high)}


# Slowdowns --------------------------------------------------------------------------------------------------------------


def slowdowns(rows: Iterable[Row], value: str = "slowdown") -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """By setting, budget and method, then by space; what was not run is left out."""
    by_method: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in rows:
        if isinstance(number := row.get(value), float):
            key = (str(row["setting"]), str(row["budget"]), str(row["method"]))
            by_method.setdefault(key, {}).setdefault(str(row["trace"]), []).append(number)
    return by_method


def of_kernels(rows: Sequence[Row]) -> Iterator[tuple[str | None, list[Row]]]:
    """All rows; then, if there are several, those of each kernel."""
    kernels = list(dict.fromkeys(str(row["kernel"]) for row in rows))
    for kernel in (None, *kernels) if len(kernels) > 1 else (None,):
        yield kernel, [row for row in rows if kernel in (None, row["kernel"])]


def summary(rows: Sequence[Row]) -> list[Row]:
    """For each setting, kernel or all, budget and method: what its searches come to.

    `whole` says that it searched every space that any method did: only then its figures stand beside others'.
    """
    lines: list[Row] = []
    for kernel, some in of_kernels(rows):
        spaces: dict[str, set[str]] = {}
        for row in some:
            spaces.setdefault(str(row["setting"]), set()).add(str(row["trace"]))
        over_default = slowdowns(some, "over_default")
        kernels = {str(row["trace"]): str(row["kernel"]) for row in some}
        for (setting, budget, method), by_space in slowdowns(some).items():
            every = [s for values in by_space.values() for s in values]
            against = [s for values in over_default.get((setting, budget, method), {}).values() for s in values]
            lines.append(
                {
                    "setting": setting,
                    "kernel": kernel,
                    "budget": budget,
                    "method": method,
                    "traces": len(by_space),
                    "runs": len(every),
                    "whole": set(by_space) == spaces[setting],
                    "geomean_of_medians": geomean_of_medians(by_space),
                    **(interval(by_space, kernels) if method == OURS else {}),
                    "geomean_of_p90s": statistics.geometric_mean(p90(v) for v in by_space.values()),
                    "p90": p90(every),
                    "worst": max(every),
                    "worst_over_default": max(against, default=None),
                }
            )
    return lines


def per_space(rows: Sequence[Row]) -> list[Row]:
    """For each setting, space, budget and method: median and p90 over seeds."""
    return [
        {
            "setting": setting,
            "trace": space,
            "budget": budget,
            "method": method,
            "median": statistics.median(values),
            "p90": p90(values),
        }
        for (setting, budget, method), by_space in slowdowns(rows).items()
        for space, values in by_space.items()
    ]


# Comparisons ------------------------------------------------------------------------------------------------------------


def ratio(ours: BySpace, theirs: BySpace) -> Row | None:
    """Ours over theirs in geometric means of medians, over the spaces of both; the interval by drawing anew.

    Spaces are drawn, and seeds of each, of both methods the same ones. None where there is nothing to compare, or where a
    method found nothing that runs.
    """
    both = [space for space in ours if space in theirs]
    pairs = [(np.array(ours[s][:n]), np.array(theirs[s][:n])) for s in both if (n := min(len(ours[s]), len(theirs[s])))]
    if not pairs or not all(np.isfinite(each).all() for pair in pairs for each in pair):
        return None
    generator = np.random.default_rng(0)
    redrawn = np.array([_log_ratios(a, b, generator) for a, b in pairs])
    spaces = generator.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    again = redrawn[spaces, generator.integers(RESAMPLES, size=spaces.shape)].mean(axis=1)
    medians = [math.log(float(np.median(a)) / float(np.median(b))) for a, b in pairs]
    low, high = np.exp(np.percentile(again, INTERVAL))
    return {"ratio": math.exp(sum(medians) / len(medians)), "low": float(low), "high": float(high)}


def _log_ratios(a: Array, b: Array, generator: np.random.Generator) -> Array:
    """Of two methods' medians on one space, each time of seeds drawn anew."""
    seeds = generator.integers(a.size, size=(RESAMPLES, a.size))
    ratios: Array = np.log(np.median(a[seeds], axis=1) / np.median(b[seeds], axis=1))
    return ratios


def best_baseline(by_method: Mapping[str, BySpace]) -> str | None:
    """Of methods that searched all spaces, the best that is a baseline; chosen on these very runs, which favours it."""
    spaces = {space for by in by_method.values() for space in by}
    whole = {m: geomean_of_medians(by) for m, by in by_method.items() if is_baseline(m) and set(by) == spaces}
    return min(whole, key=whole.__getitem__, default=None)


def comparisons(rows: Sequence[Row], against: Sequence[str] = ()) -> list[Row]:
    """Ours over the best baseline, or over those named, at each setting, kernel or all, and budget."""
    lines: list[Row] = []
    for kernel, some in of_kernels(rows):
        every = slowdowns(some)
        keys = dict.fromkeys((setting, budget) for setting, budget, _ in every)
        for setting, budget in keys:
            by_method = {m: by for (s, b, m), by in every.items() if (s, b) == (setting, budget)}
            best = best_baseline(by_method)
            for other in against or ([best] if best else []):
                compared = (
                    ratio(by_method[OURS], by_method[other]) if OURS in by_method and other in by_method else None
                )
                if compared is not None:
                    named: Row = {"setting": setting, "kernel": kernel, "budget": budget, "against": other}
                    lines.append({**named, **compared})
    return lines


NEW_KERNEL_BARS = {"5": "random", "10": "gp-ei"}  # which baseline leads there on a kernel nobody has seen


def bars(rows: Sequence[Row]) -> list[Row]:
    """On each kernel, ours over random at 5, the process at 10 and the best baseline from there on."""
    against_best = comparisons(rows)
    named = [row for m in NEW_KERNEL_BARS.values() for row in comparisons(rows, [m])]
    return [r for r in named if NEW_KERNEL_BARS.get(str(r["budget"])) == r["against"]] + [
        r for r in against_best if r["budget"] not in NEW_KERNEL_BARS
    ]


def stopping(rows: Sequence[Row]) -> list[Row]:
    """What stopping by itself spends of each budget, and what it loses against spending all of it."""
    lines: list[Row] = []
    for kernel, some in of_kernels(rows):
        every = slowdowns(some)
        for (setting, budget, method), stopped in every.items():
            whole = every.get((setting, budget, UNSTOPPED))
            compared = ratio(stopped, whole) if method == OURS and whole else None
            if compared is None:
                continue
            mine = (setting, budget, OURS)
            spent = [r for r in some if (r["setting"], r["budget"], r["method"]) == mine and r.get("limit")]
            shares = [float(str(r["measured"])) / float(str(r["limit"])) for r in spent]
            lines.append(
                {
                    "setting": setting,
                    "kernel": kernel,
                    "budget": budget,
                    "spent_share": statistics.fmean(shares),
                    "spent_share_median": statistics.median(shares),
                    **compared,
                }
            )
    return lines


# Rankings and forecasts -------------------------------------------------------------------------------------------------


def pools(rows: Sequence[Row]) -> list[Row]:
    """By setting and ranking, how far the best of each first part is above the best: geometric mean and median."""
    lines: list[Row] = []
    keys = dict.fromkeys((str(row["setting"]), str(row["ranking"])) for row in rows)
    for setting, ranking in keys:
        mine = [row for row in rows if (row["setting"], row["ranking"]) == (setting, ranking)]
        figures: Row = {"setting": setting, "ranking": ranking, "traces": len(mine)}
        for part in [name for name in mine[0] if name.startswith("top_")]:
            values = [float(str(row[part])) for row in mine]
            figures[f"{part}_geomean"] = statistics.geometric_mean(values) - 1.0
            figures[f"{part}_median"] = statistics.median(values) - 1.0
        lines.append(figures)
    return lines


def honesty(rows: Sequence[Row]) -> list[Row]:
    """By setting and outcomes known, of all kernels and of each kind: skill, calibration, where error falls with confidence.

    Means over spaces; but `pooled_ece` is the calibration error of all their forecasts together, each space counting alike.
    """
    lines: list[Row] = []
    scored = [row for row in rows if "brier_skill" in row]
    kinds = [None, *sorted({str(row["kind"]) for row in scored})]
    for setting, known in sorted({(str(row["setting"]), int(str(row["known"]))) for row in scored}):
        for kind in kinds:
            mine = [row for row in scored if (row["setting"], row["known"]) == (setting, known)]
            mine = [row for row in mine if kind in (None, row["kind"])]
            if not mine:
                continue
            figures: Row = {"setting": setting, "kind": kind, "known": known, "traces": len(mine)}
            for name in ("brier_skill", "ece", "accuracy", "half_brier"):
                values = [v for row in mine if isinstance(v := row[name], float)]
                figures[name] = statistics.fmean(values) if values else None
            gaps: list[list[float]] = [row["gaps"] for row in mine]  # type: ignore[misc]
            figures["pooled_ece"] = sum(abs(sum(gap)) for gap in zip(*gaps, strict=True)) / len(gaps)
            figures["falls"] = sum(row["falls"] is True for row in mine)
            lines.append(figures)
    return lines
