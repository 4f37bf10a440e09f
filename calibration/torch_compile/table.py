"""What was found of operations in several ways, as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forecast_autotune.cli.output import print_table

from .ways import in_order

Found = dict[str, dict[str, Any]]
"""By way, what was found of one operation."""

MEANS = (
    "way",
    "operations",
    "over default",
    "worst",
    "over max-autotune",
    "over the best",
    "worst of all",
    "seconds",
    "over default's",
    "timed",
)
PHASES = 12  # that are printed, those first that take longest


def print_found(found: Mapping[str, Found]) -> None:
    """A row an operation; means over all, over those that were compiled in all ways, and by kind; where the seconds go."""
    ways = in_order({way for of_one in found.values() for way in of_one})
    columns = ("operation", *(f"{way} {figure}" for way in ways for figure in ("s", "time")))
    print_table(columns, list(lines(found, ways)), right=columns[1:])
    for title, part in parts(found, ways):
        print(f"\n{title}")
        print_table(MEANS, list(means(part, ways)), right=MEANS[1:])
    columns = ("seconds of an operation", *ways)
    print()
    print_table(columns, list(phases(found, ways)), right=columns[1:])


def parts(found: Mapping[str, Found], ways: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Found]]]:
    """What means are taken over, each with its title."""
    products = {name: of_one for name, of_one in found.items() if " " in name}
    if products:
        yield "products", products
    whole = {name: each for name, each in products.items() if all("us" in each.get(way, {}) for way in ways)}
    if 0 < len(whole) < len(products):
        yield "products compiled in all ways", whole
    if len(products) < len(found):
        yield "parts of models", {name: each for name, each in found.items() if name not in products}
    kinds = dict.fromkeys(name.partition(" ")[0] for name in products)
    for kind in sorted(kinds) if len(kinds) > 1 else ():
        yield kind, {name: each for name, each in products.items() if name.partition(" ")[0] == kind}


def relative(found: Found, way: str) -> float | None:
    """The time of a way over eager code's in the same process, over the same of the default way."""
    figures = [found.get(each, {}) for each in (way, "default")]
    if any("us" not in each for each in figures):
        return None
    mine, default = (each["us"] / each["eager_us"] for each in figures)
    return float(mine / default)


def lines(found: Mapping[str, Found], ways: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A row for each operation."""
    for name, of_one in found.items():
        cells = []
        for way in ways:
            ratio, seconds = relative(of_one, way), of_one.get(way, {}).get("compile_s")
            cells += ["-" if seconds is None else f"{seconds:.1f}", "-" if ratio is None else f"{ratio:.3f}"]
        yield name, *cells


def means(found: Mapping[str, Found], ways: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A row for each way: geometric means over the operations that it and the default way compiled."""
    for way in ways:
        both = [each for each in found.values() if relative(each, way) is not None]
        if not both:
            yield way, "0", *["-"] * (len(MEANS) - 2)
            continue
        over = [float(relative(each, way) or 0.0) for each in both]
        best = [min(r for each_way in ways if (r := relative(each, each_way)) is not None) for each in both]
        losses = [mine / least for mine, least in zip(over, best, strict=True)]
        tuned = [
            mine / ratio
            for mine, each in zip(over, both, strict=True)
            if (ratio := relative(each, "max-autotune")) is not None
        ]
        seconds = [each[way]["compile_s"] for each in both]
        default_s = [each["default"]["compile_s"] for each in both]
        timed = statistics.fmean(each[way]["timed"] for each in both)
        yield (
            way, str(len(both)), f"{_mean(over):.3f}", f"{max(over):.3f}", f"{_mean(tuned):.3f}" if tuned else "-",
            f"{_mean(losses):.3f}", f"{max(losses):.3f}",
            f"{sum(seconds):.0f}", f"{sum(seconds) / sum(default_s):.1f}", f"{timed:.1f}",
        )  # fmt: skip


def phases(found: Mapping[str, Found], ways: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A row for each phase by Inductor's name, the longest first; phases lie within one another."""
    spent: dict[str, dict[str, float]] = {}
    counts = {way: sum("us" in of_one.get(way, {}) for of_one in found.values()) for way in ways}
    for of_one in found.values():
        for way, each in of_one.items():
            for phase, seconds in {**each.get("phases", {}), "ours": each.get("own_s", 0.0)}.items():
                of_phase = spent.setdefault(phase, dict.fromkeys(ways, 0.0))
                of_phase[way] += seconds / max(counts[way], 1)
    ordered = sorted(spent, key=lambda phase: -max(spent[phase].values()))
    for phase in dict.fromkeys([*ordered[:PHASES], *(["ours"] if "ours" in spent else [])]):
        yield phase, *(f"{spent[phase][way]:.2f}" for way in ways)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
