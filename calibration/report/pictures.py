"""The report's pictures, each as an SVG that stands alone: no names from files in it, no link, the same bytes each time.

Drawn small, so that they can be read as wide as a phone. Colours are those of Okabe and Ito, which the colour-blind tell
apart; a method has its own whatever others are drawn beside it, and a dash of its own as well.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluate.benchmark import OURS
from ..evaluate.searches import METHODS
from .chart_data import CLASSES, PERCENTS, Curve, Fifths, Reliability

INK, FAINT = "#222222", "#b8b8b8"
VERMILLION, BLUE, GREEN, ORANGE, SKY, PURPLE, YELLOW = (
    *("#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#c9b900"),
)
SOLID, DASHED, DOTTED, MIXED = "-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5))
LARGE, SMALL, CHART = (4.3, 3.9), (2.9, 2.35), (7.4, 4.9)  # inches
TELLING = 0.02  # share of the forecasts
FLATTEST = 1.05  # an axis reaches at least as far, so that small differences look small
TICKS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)

OF_KNOWN = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"))  # before measuring, after some, after more
STYLES: Mapping[str, tuple[str, Any]] = {
    OURS: (VERMILLION, SOLID),
    "random": ("#8a8a8a", DOTTED),
    "lfbo": (BLUE, SOLID),
    "lfbo-neighbours": (BLUE, DOTTED),
    "trees-lcb": (SKY, SOLID),
    "gp-ei": (GREEN, SOLID),
    "top-forecast": (ORANGE, DOTTED),
    "top-forecast-again": (ORANGE, DASHED),
    "look-up": (PURPLE, SOLID),
    "look-up-vendor": (PURPLE, DOTTED),
    "portfolio": (YELLOW, DASHED),
    "gp-on-look-up": (GREEN, DASHED),
    "trees-on-look-up": (SKY, DASHED),
    "hedge": (INK, MIXED),
    "kt-bayes_opt": (PURPLE, MIXED),
    "kt-greedy_ils": (INK, DOTTED),
}
IN_CHART = {  # the name at the end of a line, its colour and dash
    OURS: ("forecast_autotune", VERMILLION, SOLID),
    "gp-ei": ("Bayesian optimisation", GREEN, SOLID),
    "random": ("random search", "#666666", DASHED),
    "list": ("the list's order", BLUE, MIXED),
}
RARE = [(c, dash) for dash in (MIXED, DOTTED) for c in (YELLOW, SKY, GREEN, INK)]  # for those without a style


def style_of(method: str) -> tuple[str, Any]:
    if method in STYLES:
        return STYLES[method]
    return RARE[sorted({*METHODS, method} - set(STYLES)).index(method) % len(RARE)]


def in_order(methods: Sequence[str]) -> list[str]:
    """Ours first, the others as they are listed."""
    known = [OURS, *METHODS]
    return sorted(methods, key=lambda m: known.index(m) if m in known else len(known))


# The canvas -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def canvas(size: tuple[float, float], **layout: Any) -> Iterator[tuple[Any, Any, list[str]]]:
    """A figure, its axes, and a list that holds the SVG once this is left."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    small = size[0] < LARGE[0]
    looks = {
        "font.size": 9.0 if small else 10.5,
        "axes.labelsize": 9.0 if small else 10.5,
        "xtick.labelsize": 8.5 if small else 10.0,
        "ytick.labelsize": 8.5 if small else 10.0,
        "legend.fontsize": 8.5 if small else 10.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#777777",
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": "#777777",
        "ytick.color": "#777777",
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "svg.hashsalt": "report",
        "svg.fonttype": "path",
        "savefig.dpi": 160,
    }
    drawn: list[str] = []
    with matplotlib.rc_context(looks):
        figure, axes = pyplot.subplots(figsize=size, layout="constrained", **layout)
        try:
            yield figure, axes, drawn
            written = io.StringIO()
            figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
            text = written.getvalue()
            drawn.append(re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL))
        finally:
            pyplot.close(figure)


def log_ticks(axis: Any, at: Sequence[float], form: str = "{:g}") -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(list(at)))
    axis.set_major_formatter(FixedFormatter([form.format(tick) for tick in at]))
    axis.set_minor_locator(NullLocator())


def percent_ticks(*axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    for axis in axes:
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


# Slowdowns --------------------------------------------------------------------------------------------------------------


def slowdown_picture(curves: Mapping[str, Curve], *, banded: Sequence[str] = (), small: bool = False) -> str:
    """Slowdown against measurements; the quartiles of some methods as bands, and of all no legend where it is small."""
    with canvas(SMALL if small else LARGE) as (figure, axes, drawn):
        most = max((float(c.budgets.max()) for c in curves.values()), default=1.0)
        highest = 1.0
        for method in reversed(in_order(list(curves))):  # ours is drawn last, on top
            curve, (colour, dash) = curves[method], style_of(method)
            ours = method == OURS
            runs = np.isfinite(curve.middle)
            if method in banded:
                both = runs & np.isfinite(curve.high)
                axes.fill_between(
                    curve.budgets[both],
                    curve.low[both],
                    curve.high[both],
                    color=colour,
                    alpha=0.18 if ours else 0.1,
                    linewidth=0,
                )
                highest = max(highest, *curve.high[both].tolist(), 1.0)
            axes.plot(
                curve.budgets[runs],
                curve.middle[runs],
                color=colour,
                linestyle=dash,
                linewidth=(2.2 if small else 3.0) if ours else (1.1 if small else 1.6),
                marker="o" if ours and not small else None,
                markersize=4.5,
                label=method,
                zorder=3 if ours else 2,
                solid_capstyle="round",
            )
            highest = max(highest, *curve.middle[runs].tolist(), 1.0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        counts = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
        log_ticks(axes.xaxis, [c for c in counts if c <= most and not (small and c in (2, 20, 200, 2000))])
        top = max(FLATTEST, highest**1.06)
        log_ticks(axes.yaxis, spaced([t for t in TICKS if t <= top], top, 6 if small else 10), "{:g}x")
        axes.set_ylim(1.0 / top**0.02, top)
        axes.set_xlim(0.93, most * 1.08)
        if not small:
            axes.set_xlabel("configs measured, the default included")
            axes.set_ylabel("time over the best there is")
            labels = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
            names = in_order(list(labels))
            figure.legend([labels[n] for n in names], names, loc="outside lower center", ncols=3, handlelength=2.4)
    return drawn[0]


def spaced(ticks: Sequence[float], top: float, most: int) -> list[float]:
    """Ticks of a log axis from 1 to `top` that are not too close, the lowest first kept."""
    least = math.log(top) / most
    kept: list[float] = []
    for tick in ticks:
        if not kept or math.log(tick / kept[-1]) >= least:
            kept.append(tick)
    return kept


def chart_picture(figures: Mapping[str, Any]) -> str:
    """The README's chart, of the figures in `chart.json`: names stand at the ends of their lines."""
    with canvas(CHART) as (figure, axes, drawn):
        for method, points in reversed(figures["lines"].items()):  # ours is drawn last, on top
            _, colour, dash = IN_CHART[method]
            x, y, low, high = ([p[part] for p in points] for part in ("measured", "slowdown", "low", "high"))
            ours = method == OURS
            if ours:
                axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
            axes.plot(
                x,
                y,
                color=colour,
                linestyle=dash,
                linewidth=3.4 if ours else 2.0,
                marker="o",
                markersize=7.0 if ours else 4.5,
                markeredgecolor="white",
                markeredgewidth=0.8,
                solid_capstyle="round",
                zorder=4 if ours else 3,
            )
            for measured, slowdown in list(zip(x, y, strict=True))[1:-1] if ours else ():
                beside(axes, f"{slowdown:.2f}x", (measured, slowdown), (-4, -5), colour, ha="right", va="top")
        ends = sorted((points[-1]["slowdown"], method) for method, points in figures["lines"].items())
        least = 0.062 * (axes.get_ylim()[1] - 1.0)
        for place, (slowdown, method) in zip(apart([end for end, _ in ends], least), ends, strict=True):
            name, colour, _ = IN_CHART[method]
            beside(axes, f"{name}  {slowdown:.2f}x", (figures["measured"][-1], place), (11, 0), colour, va="center")
        first = figures["lines"][OURS][0]["slowdown"]
        beside(axes, f"the list's first config  {first:.2f}x", (1, first), (12, 4), INK, va="center")
        axes.axhline(1.0, color="#777777", linewidth=1.2, zorder=1)
        axes.set_xscale("log", base=2)
        log_ticks(axes.xaxis, figures["measured"])
        axes.set_xlim(0.93, figures["measured"][-1] * 1.04)
        axes.set_ylim(0.96, max(p["high"] for p in figures["lines"][OURS]) + 0.02)
        axes.yaxis.set_major_formatter("{x:.1f}x")
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(bottom=False)
        axes.set_xlabel("configs measured")
        _head(figure, figures)
    return drawn[0]


def _head(figure: Any, figures: Mapping[str, Any]) -> None:
    """What the chart shows, in words above it."""
    sizes = [space["configs"] for space in figures["spaces"].values()]
    kernels = {space["kernel"] for space in figures["spaces"].values()}
    under = (
        f"Time of the chosen config over the best one's; 1.0x takes measuring all {min(sizes)} to {max(sizes)} configs.\n"
        f"{len(kernels)} kernels, {len(sizes)} sizes, {', '.join(figures['hardware'])}; ours has no times of the kernel "
        "beforehand.\nGeometric mean; the band is its 95 % interval over kernels."
    )
    figure.suptitle(
        "How close to the best config a few measurements come", x=0.012, ha="left", fontsize=15, fontweight="bold"
    )
    figure.axes[0].set_title(under, x=-0.08, ha="left", fontsize=10.5, color="#505050", pad=12, linespacing=1.35)


def beside(
    axes: Any, text: str, at: tuple[float, float], points: tuple[float, float], colour: str, **where: Any
) -> None:
    """Bold text at so many points from a place, on a white ground that keeps lines out of it."""
    axes.annotate(
        text,
        at,
        points,
        textcoords="offset points",
        color=colour,
        fontweight="bold",
        annotation_clip=False,
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        zorder=5,
        **where,
    )


def apart(places: Sequence[float], least: float) -> list[float]:
    """Ascending places, moved up where one would come closer to the one below it than `least`."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    return moved


# Forecasts --------------------------------------------------------------------------------------------------------------


def reliability_picture(classes: Reliability, known: int) -> str:
    """Accuracy against confidence over a histogram of confidences, with the number of forecasts in each class."""
    colour = colour_of(known)
    with canvas((3.1, 3.7), nrows=2, sharex=True, height_ratios=(3, 1.15)) as (_, (upper, lower), drawn):
        upper.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, zorder=1)
        held = classes.share >= TELLING  # what a few forecasts say is a dot, but no line leads there
        upper.plot(classes.confidence[held], classes.accuracy[held], color=colour, linewidth=1.2, alpha=0.6, zorder=2)
        sizes = 14 + 150 * classes.share
        dots = {"s": sizes, "color": colour, "edgecolor": "white", "linewidth": 0.7, "clip_on": False, "zorder": 3}
        upper.scatter(classes.confidence, classes.accuracy, **dots)
        upper.set_xlim(0, 1)
        upper.set_ylim(0, 1)
        upper.set_ylabel("right bin, share")
        upper.set_aspect("auto")
        places = np.minimum((classes.confidence * CLASSES).astype(int), CLASSES - 1) + 0.5
        lower.bar(places / CLASSES, classes.share, width=0.92 / CLASSES, color=colour, alpha=0.75)
        for place, share, count in zip(places, classes.share, classes.count, strict=True):
            lower.text(place / CLASSES, share, shortly(int(count)), ha="center", va="bottom", fontsize=7)
        lower.set_ylim(0, 1.3 * float(classes.share.max()))
        lower.set_xlabel("confidence: chance of the likeliest bin")
        lower.set_ylabel("forecasts")
        lower.grid(visible=False)
        percent_ticks(upper.xaxis, upper.yaxis, lower.xaxis, lower.yaxis)
    return drawn[0]


def shortly(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"


def fifths_picture(by_known: Mapping[int, Fifths], *, small: bool = False) -> str:
    """Share of wrong bins by fifth of confidence, with intervals; a line for each number of outcomes known."""
    with canvas(SMALL if small else (4.3, 3.3)) as (figure, axes, drawn):
        for place, (known, fifths) in enumerate(by_known.items()):
            colour, marker = look_of(known)
            at = np.arange(1, fifths.error.size + 1) + 0.11 * (place - (len(by_known) - 1) / 2)
            reach = np.maximum([fifths.error - fifths.low, fifths.high - fifths.error], 0.0)
            axes.errorbar(
                at,
                fifths.error,
                yerr=reach,
                color=colour,
                marker=marker,
                markersize=4 if small else 6,
                linewidth=1.3 if small else 2.0,
                elinewidth=1.0,
                capsize=2,
                label=short(known),
            )
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0.6, 5.4)
        axes.set_xticks([1, 2, 3, 4, 5], ["least\nsure", "2", "3", "4", "most\nsure"])
        axes.grid(visible=False, axis="x")
        percent_ticks(axes.yaxis)
        if not small:
            axes.set_ylabel("wrong bin, share")
            axes.set_xlabel("fifth of the forecasts, by confidence")
            figure.legend(loc="outside lower center", ncols=3, handlelength=1.6)
    return drawn[0]


def risk_picture(by_known: Mapping[int, tuple[Any, Sequence[Any]]], areas: Mapping[int, float | None]) -> str:
    """Error of the surest part of the forecasts against how large a part it is; single spaces as faint lines."""
    with canvas((4.3, 3.7)) as (figure, axes, drawn):
        coverage = np.array(PERCENTS) / 100
        for known, (together, each) in by_known.items():
            colour, _ = look_of(known)
            if known == middle_of(list(by_known)):
                for one in each:
                    axes.plot(coverage, one, color=colour, alpha=0.22, linewidth=0.7, zorder=1)
            area = areas[known]
            label = short(known) + ("" if area is None else f": {area:.2f}")
            axes.plot(coverage, together, color=colour, linewidth=2.4, label=label, zorder=3)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("coverage: share kept, the surest first")
        axes.set_ylabel("wrong bin among those kept")
        percent_ticks(axes.xaxis, axes.yaxis)
        figure.legend(loc="outside lower center", ncols=3, handlelength=1.4, title="area under the curve (AURC)")
    return drawn[0]


def beside_picture(expected: Sequence[float], measured: Sequence[float], inside: Sequence[bool]) -> str:
    """Forecast against measured log2 speed-up of each config; those outside their 90 % interval in another colour."""
    x, y, within = np.array(expected), np.array(measured), np.array(inside, dtype=bool)
    with canvas(SMALL) as (_, axes, drawn):
        both = np.concatenate([x, y]) if x.size else np.zeros(1)
        low, high = float(both.min()) - 0.2, float(both.max()) + 0.2
        axes.plot([low, high], [low, high], color=FAINT, linewidth=1.2, zorder=1)
        dots = {"s": 9 if x.size < 500 else 4, "linewidth": 0, "rasterized": True}
        axes.scatter(x[within], y[within], color=BLUE, alpha=0.55, zorder=2, **dots)
        axes.scatter(x[~within], y[~within], color=VERMILLION, alpha=0.8, zorder=3, marker="D", **dots)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_xlabel("forecast")
        axes.set_ylabel("measured")
    return drawn[0]


# Outcomes known ---------------------------------------------------------------------------------------------------------


def words_of(known: int) -> str:
    return f"after {known} measured" if known else "before measuring"


def short(known: int) -> str:
    return f"after {known}" if known else "before"


def look_of(known: int) -> tuple[str, str]:
    return OF_KNOWN[0 if not known else 1 if known <= 10 else 2]


def colour_of(known: int) -> str:
    return look_of(known)[0]


def middle_of(known: Sequence[int]) -> int:
    """The number of outcomes that single spaces are shown with: ten, or the nearest below it."""
    return max((k for k in known if k <= 10), default=min(known))
