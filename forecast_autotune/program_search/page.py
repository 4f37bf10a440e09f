"""A search as one page of pictures: best so far, who came of whom, and what was forecast beside what was measured."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.outcome import Failure
from .candidate import PROMISE, RANDOM, REPAIR, SEED, TriedCandidate
from .loop import speedups

if TYPE_CHECKING:
    from .run import SearchResult

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 60, 40, 16
COLOURS = {SEED: "#333333", PROMISE: "#1f77b4", RANDOM: "#ff7f0e", REPAIR: "#2ca02c"}
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em;color:#222}"
    "svg{width:100%;height:auto}pre{background:#f4f4f4;padding:1em;overflow:auto;font-size:12px}"
    "text{font:12px system-ui,sans-serif}"
)


def page_of(result: SearchResult) -> str:
    """The page, in HTML with nothing loaded from elsewhere; text of others is escaped."""
    task, budget = result.task, result.budget
    told = (
        f"{budget.measured} candidates measured, {budget.built} built, {budget.failed} failed, {budget.tokens_used} tokens, "
        f"{budget.seconds:.0f} s. It ended because {result.stopped}."
    )
    parts = [
        f"<h1>Search: {html.escape(task.name)}</h1><p>{html.escape(told)}</p>",
        "<h2>Best so far</h2><p>Speed-up against the task's own source, by measurement. One in four was drawn at "
        "random: that line is "
        "what those alone would have found.</p>",
        _best_so_far(result.tried),
        "<h2>Lineage</h2><p>Each candidate that ran, at its speed-up, with a line from its parent. Failures "
        "stand at the bottom.</p>",
        _lineage(result.tried),
        "<h2>Forecast and outcome</h2><p>On the line, a forecast came true.</p>",
        _forecasts(result.forecast_pairs),
        f"<h2>Finals</h2><p>{html.escape(result.finals.reason)}</p>",
        f"<pre>{html.escape(result.diff())}</pre>" if result.winner is not None else "",
    ]
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>Search: "
        f"{html.escape(task.name)}</title><style>{STYLE}</style>\n"
        + "\n".join(part for part in parts if part)
        + "\n</html>\n"
    )


def _best_so_far(tried: Sequence[TriedCandidate]) -> str:
    gained = speedups(tried)
    lines: dict[str, list[tuple[float, float]]] = {PROMISE: [], RANDOM: []}
    for name, line in lines.items():
        best = -math.inf
        for i, one in enumerate(tried):
            value = gained.get(one.candidate.digest)
            counts = name == PROMISE or one.chosen in (SEED, RANDOM)
            if value is not None and counts:
                best = max(best, value)
            if best > -math.inf:
                line.append((float(i + 1), best))
    axes = _Axes([x for line in lines.values() for x, _ in line], [y for line in lines.values() for _, y in line])
    drawn = [axes.steps(line, COLOURS[name]) for name, line in lines.items()]
    return axes.svg([*drawn, axes.legend({"all": COLOURS[PROMISE], "drawn at random": COLOURS[RANDOM]})], "measured")


def _lineage(tried: Sequence[TriedCandidate]) -> str:
    gained = speedups(tried)
    low = min(gained.values(), default=0.0) - 0.2
    places = {t.candidate.digest: (float(i + 1), gained.get(t.candidate.digest, low)) for i, t in enumerate(tried)}
    axes = _Axes([x for x, _ in places.values()], [y for _, y in places.values()])
    drawn = [
        axes.line(places[parent], places[t.candidate.digest], "#bbbbbb")
        for t in tried
        for parent in t.candidate.parents
        if parent in places
    ]
    for t in tried:
        failed = isinstance(t.outcome, Failure)
        colour = "#d62728" if failed else COLOURS.get(t.chosen, "#333333")
        how = f"{t.candidate.proposer}: {t.candidate.last_step[:100]}"
        drawn.append(axes.dot(places[t.candidate.digest], colour, how))
    return axes.svg([*drawn, axes.legend({**COLOURS, "failed": "#d62728"})], "measured")


def _forecasts(pairs: Sequence[tuple[float, float, str]]) -> str:
    if not pairs:
        return "<p>Nothing was forecast.</p>"
    values = [v for forecast, measured, _ in pairs for v in (forecast, measured)]
    axes = _Axes([f for f, _, _ in pairs], values)
    ends = (max(axes.x[0], axes.y[0]), min(axes.x[1], axes.y[1]))
    drawn = [axes.line((ends[0], ends[0]), (ends[1], ends[1]), "#bbbbbb")]
    drawn += [
        axes.dot((f, m), COLOURS.get(chosen, "#333333"), f"{2**f:.2f}x forecast, {2**m:.2f}x measured")
        for f, m, chosen in pairs
    ]
    return axes.svg([*drawn, axes.legend({n: c for n, c in COLOURS.items() if n != SEED})], "log2 speed-up, forecast")


class _Axes:
    """A picture's axes: from values to places, and what is drawn at them."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x, self.y = _spread(xs), _spread(ys)

    def _at(self, point: tuple[float, float]) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self.x, self.y
        across = LEFT + (point[0] - x0) / (x1 - x0) * (WIDTH - LEFT - 20)
        return across, HEIGHT - BOTTOM - (point[1] - y0) / (y1 - y0) * (HEIGHT - BOTTOM - TOP)

    def dot(self, point: tuple[float, float], colour: str, title: str) -> str:
        x, y = self._at(point)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{html.escape(title)}</title></circle>'

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
        (x1, y1), (x2, y2) = self._at(start), self._at(end)
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'

    def steps(self, points: Sequence[tuple[float, float]], colour: str) -> str:
        places = [self._at(p) for p in points]
        path = "".join(
            f"{'M' if i == 0 else 'H'}{x:.1f}{f' {y:.1f}' if i == 0 else f'V{y:.1f}'}"
            for i, (x, y) in enumerate(places)
        )
        return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def legend(self, names: dict[str, str]) -> str:
        drawn = []
        for i, (name, colour) in enumerate(names.items()):
            x = LEFT + 10 + 120 * i
            drawn.append(
                f'<circle cx="{x}" cy="10" r="4" fill="{colour}"/><text x="{x + 8}" y="14">{html.escape(name)}</text>'
            )
        return "".join(drawn)

    def svg(self, drawn: Sequence[str], across: str) -> str:
        """The picture, with ticks; on the upright axis, speed-ups as factors."""
        (x0, x1), (y0, y1) = self.x, self.y
        ticks = []
        for i in range(5):
            x, y = x0 + (x1 - x0) * i / 4, y0 + (y1 - y0) * i / 4
            at_x, at_y = self._at((x, y0))[0], self._at((x0, y))[1]
            ticks.append(f'<text x="{at_x:.0f}" y="{HEIGHT - 18}" text-anchor="middle">{x:.3g}</text>')
            ticks.append(f'<text x="{LEFT - 8}" y="{at_y + 4:.0f}" text-anchor="end">{2**y:.2f}x</text>')
            ticks.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{at_y:.1f}" y2="{at_y:.1f}" stroke="#eeeeee"/>')
        name = f'<text x="{WIDTH / 2}" y="{HEIGHT - 2}" text-anchor="middle">{html.escape(across)}</text>'
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(ticks)}{"".join(drawn)}{name}</svg>'


def _spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.05 or 0.5
    return low - room, high + room
