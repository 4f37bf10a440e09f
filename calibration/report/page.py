"""The report as one page of HTML that needs nothing else: no script, nothing to load, readable on a phone."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forecast_autotune.core.text import plain

from ..command import number
from ..evaluate.benchmark import OURS
from . import captions, chart_data, pictures
from .captions import percent, times
from .chart_data import SCORES, Rows, by_known, curves, grouped

SHOWN = (0, 5, 10, 20, 50, 100, 200, 500, 1000)  # budgets of the table, where they were asked for

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  margin: 0 auto; max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .25rem; }
p { max-width: 44rem; margin: .4rem 0; }
figure { margin: .75rem 0; }
figure.large img { width: 100%; max-width: 32rem; }
figcaption { font-size: .85rem; line-height: 1.35; overflow-wrap: anywhere; }
figcaption b { font-weight: 600; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14.5rem), 1fr)); gap: .75rem 1rem; }
.three { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: .75rem 1rem; }
.grid figure, .three figure { margin: 0; }
.grid img, .three img { width: 100%; max-width: 22rem; }
img { display: block; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; }
td:not(:first-child) { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.ours td { background: #fdf1ea; }
td small { display: block; color: #666; }
code { font-size: .9em; overflow-wrap: anywhere; }
summary { cursor: pointer; }
.warning { border-left: 4px solid #d55e00; padding-left: .75rem; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace that the page is about."""

    name: str
    label: str
    kernel: str
    hardware: str
    configs: int
    default_over_best: float
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """What a page is made of: `rows` of all searches and forecasts, and what is to be said of where they come from."""

    rows: Rows
    sources: Sequence[Source]
    history: Sequence[str]
    seeds: int
    command: str
    code: str  # digest of the source
    versions: Mapping[str, str]
    shipped_on: Sequence[str]  # kernels that the shipped model was fitted on
    finished: bool = True

    def label(self, trace: str) -> str:
        return next((s.label for s in self.sources if s.name == trace), trace)


def write(text: object) -> str:
    """Text as HTML, whatever is in it."""
    return html.escape(plain(str(text))).replace(" %", "\u00a0%")


def picture(svg: str, says: str, caption: str = "") -> str:
    """A picture in the page itself; `caption` is HTML."""
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{write(says)}" src="data:image/svg+xml;base64,{data}" />'
    return f"<figcaption>{caption}</figcaption>{image}" if caption else image


def figure(svg: str, reading: str) -> str:
    return f'<p>{write(reading)}</p>\n<figure class="large">{picture(svg, reading)}</figure>'


def panels(each: Iterable[tuple[str, str, str]], kind: str = "grid") -> str:
    """Small pictures side by side: of each the SVG, its name and what stands beside the name."""
    figures = [
        f"<figure>{picture(svg, name, f'<b>{write(name)}</b><br />{write(more)}')}</figure>" for svg, name, more in each
    ]
    return f'<div class="{kind}">\n' + "\n".join(figures) + "\n</div>"


def folded(title: str, inside: str) -> str:
    return f'<details open="open"><summary>{write(title)}</summary>\n{inside}\n</details>'


def table(head: Sequence[str], body: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Rows of cells that are HTML already, each with its class."""
    lines = [f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>' for kind, cells in body]
    first = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<div class="scroll"><table>\n<tr>{first}</tr>\n' + "\n".join(lines) + "\n</table></div>"


# The parts --------------------------------------------------------------------------------------------------------------


def page(made: PageContent) -> str:
    """All of it."""
    known = [row for row in made.rows if "why" not in row]
    settings = grouped(known, "setting")
    parts = [
        head(made),
        *(section(made, name, rows, len(settings) > 1) for name, rows in settings.items()),
        origins(made),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\" />\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f"<title>How good the forecasts are</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def head(made: PageContent) -> str:
    kernels, hardware = ({getattr(s, name) for s in made.sources} for name in ("kernel", "hardware"))
    what = (
        f"Tuning runs and forecasts replayed on {numbered(len(made.sources), 'recorded space')} of "
        f"{numbered(len(kernels), 'kernel')} on {', '.join(sorted(hardware))}; {numbered(made.seeds, 'seed')} of each "
        "search. Means are over spaces, each of which counts alike."
    )
    lines = ["<h1>How good the forecasts are, and what they are worth</h1>", f"<p>{write(what)}</p>", prior(made)]
    failed = [row for row in made.rows if row.get("failed")]
    if not made.finished:
        lines.append('<p class="warning">This run was interrupted: only what was done by then is shown.</p>')
    if failed:
        first = f"{failed[0].get('method', 'forecasts')} on {made.label(failed[0]['trace'])}: {failed[0]['why']}"
        lines.append(f'<p class="warning">{write(f"{len(failed)} of the runs failed, the first: {first}")}</p>')
    return "\n".join(lines)


def numbered(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def prior(made: PageContent) -> str:
    """What the shipped model has seen, and that nothing on this page was said by a model that had seen its kernel."""
    if made.shipped_on:
        shipped = (
            f"The shipped model was fitted on {numbered(len(made.shipped_on), 'kernel')}: {', '.join(made.shipped_on)}."
        )
    else:
        shipped = "The shipped model was fitted on no recorded kernel."
    rows = [row for row in made.rows if "fitted_on" in row]
    leaks = sorted({row["kernel"] for row in rows if row["kernel"] in {n.rpartition(".")[2] for n in row["fitted_on"]}})
    if leaks:
        sentence = f"On this page it had seen the kernel that it forecasts: {', '.join(leaks)}."
        return f'<p>{write(shipped)}</p><p class="warning">{write(sentence)}</p>'
    counts = sorted({len(row["fitted_on"]) for row in rows})
    of = f"on {counts[0]} to {counts[-1]} kernels" if len(counts) > 1 else f"on {numbered(sum(counts), 'kernel')}"
    sentence = f"On this page a kernel is forecast by a model fitted without it, {of}." if any(counts) else ""
    return f"<p>{write(f'{shipped} {sentence}')}</p>"


def section(made: PageContent, setting: str, rows: Rows, named: bool) -> str:
    searches = [row for row in rows if "method" in row]
    forecasts = [row for row in rows if "known" in row]
    suffix = f", {setting}" if named else ""
    parts = []
    if searches:
        parts += [f"<h2>{write(f'Slowdown against measurements{suffix}')}</h2>", *slowdown_parts(searches)]
    if forecasts:
        parts += [f"<h2>{write(f'How honest the forecasts are{suffix}')}</h2>", *forecast_parts(made, forecasts)]
    return "\n".join(parts)


def slowdown_parts(rows: Rows) -> list[str]:
    every = curves(rows)
    if not every:
        return [f"<p>{write(captions.NOTHING)}</p>"]
    asked = chart_data.pivot(int(b) for curve in every.values() for b in curve.budgets)
    best = chart_data.leader(every, asked)
    banded = [m for m in (OURS, best[0] if best else "") if m in every]
    bands = f"Bands hold the middle half of all runs of {captions.listing(banded)}." if banded else ""
    parts = [
        figure(pictures.slowdown_picture(every, banded=banded), captions.slowdowns_reading(every, rows)),
        f"<p>Lines are geometric means over spaces of medians over seeds. {write(bands)} A few slow spaces "
        "may lift a line above its band. A config that fails costs one measurement. Ours is the real tuning run, one for "
        "each budget, and may stop early.</p>",
        slowdown_table(rows),
    ]
    by_kernel = {kernel: curves(some) for kernel, some in grouped(rows, "kernel").items()}
    if len(by_kernel) > 1:
        each = []
        for kernel, some in sorted(by_kernel.items()):
            first = chart_data.leader(some, asked)
            ours = some[OURS].at(asked) if OURS in some else None
            leaders = [f"ours {times(ours)}"] if ours is not None else []
            leaders += [f"{first[0]} {times(first[1])}"] if first else []
            shown = pictures.slowdown_picture(some, banded=[OURS] if OURS in some else [], small=True)
            each.append((shown, kernel, f"{', '.join(leaders)} at {asked}" if leaders else ""))
        reading = captions.kernels_reading(by_kernel)
        parts += [
            "<h3>By kernel</h3>",
            f"<p>{write(reading)}</p>",
            folded(f"{numbered(len(each), 'kernel')}, colours as above", panels(each)),
        ]
    return parts


def slowdown_table(rows: Rows) -> str:
    cells = chart_data.standings(rows)
    asked = sorted({int(b) for _, b in cells})
    budgets = [b for b in asked if b in SHOWN or b == asked[-1]]
    best = {b: min((s.geomean for (_, at), s in cells.items() if at == str(b)), default=math.inf) for b in budgets}

    def cell(method: str, budget: int) -> str:
        one = cells.get((method, str(budget)))
        if one is None:
            return "-"
        bold = one.geomean == best[budget] and math.isfinite(one.geomean)
        first = f"<b>{times(one.geomean)}</b>" if bold else times(one.geomean)
        return f"{first}<small>{times(one.p90)} / {times(one.worst)}</small>"

    methods = pictures.in_order(list(dict.fromkeys(m for m, _ in cells)))
    body = [("ours" if m == OURS else "", [write(m), *(cell(m, b) for b in budgets)]) for m in methods]
    return (
        "<p>Time over the best there is, by configs measured: the geometric mean, bold where it is the lowest; below it "
        "the 90th percentile and the worst of all runs. At 0 nothing is measured. A dash: not asked for so many, or in "
        "half the runs of a space nothing had run.</p>" + table(["method", *map(str, budgets)], body)
    )


def forecast_parts(made: PageContent, rows: Rows) -> list[str]:
    known = by_known(rows)
    classes = {k: chart_data.reliability(some) for k, some in known.items()}
    together = {k: pooled for k, some in known.items() if (pooled := chart_data.fifths_together(some)) is not None}
    risks = {k: (chart_data.risk(some), [row["risk"] for row in some]) for k, some in known.items()}
    areas = {k: chart_data.mean_score(some, "rest_aurc") for k, some in known.items()}
    middle = known[pictures.middle_of(list(known))]
    parts = [
        f"<p>{write(EIGHT_BINS)}</p>",
        "<h3>Confidence against accuracy</h3>",
        f"<p>{write(captions.reliability_reading(classes))}</p>",
        panels(
            [
                (pictures.reliability_picture(one, k), pictures.words_of(k), f"ECE {score(known[k], 'rest_ece')}")
                for k, one in classes.items()
            ],
            "three",
        ),
        "<h3>Error by confidence</h3>",
        figure(pictures.fifths_picture(together), captions.fifths_reading(together, known)) if together else "",
        by_space(made, known, [row["trace"] for row in middle]) if len(middle) > 1 and together else "",
        "<h3>Risk and coverage</h3>",
        figure(pictures.risk_picture(risks, areas), captions.risk_reading(risks, areas)),
        "<h3>Forecast against measured</h3>",
        f"<p>{write(captions.beside_reading(middle))}</p>",
        beside(made, middle),
        "<h3>Scores</h3>",
        scores_table(known),
    ]
    return [part for part in parts if part]


EIGHT_BINS = (
    "A forecast gives chances to the eight speed-up bins of GPU Forecasters (arXiv 2605.31464), here against the space's "
    "median config; its confidence is that of the likeliest. Pictures are of the configs that were not measured. Before "
    "measuring, forecasts say how configs compare and nothing of the default: the median is where their own median is."
)


def by_space(made: PageContent, known: Mapping[int, Rows], traces: Sequence[str]) -> str:
    each = []
    for trace in traces:
        mine = {k: row for k, rows in known.items() for row in rows if row["trace"] == trace}
        by_known = {k: fifths for k, row in mine.items() if (fifths := chart_data.fifths_of(row)) is not None}
        if by_known:
            row = mine[pictures.middle_of(list(by_known))]
            words = "error falls" if row["falls"] else "error does not fall"
            each.append((pictures.fifths_picture(by_known, small=True), made.label(trace), f"{words} {words_of(row)}"))
    return folded(f"{numbered(len(each), 'space')}, each with its own 95 % intervals; colours as above", panels(each))


def words_of(row: Mapping[str, object]) -> str:
    return pictures.words_of(int(str(row["known"])))


def beside(made: PageContent, rows: Rows) -> str:
    each = []
    for row in rows:
        inside = row["inside_90"]
        if inside:
            words = f"{percent(sum(inside) / len(inside))} inside their 90 %, rank {number(row['rest_rank_correlation'], 2)}"
            drawn = pictures.beside_picture(row["expected"], row["measured"], inside)
            each.append((drawn, made.label(row["trace"]), words))
    what = f"{numbered(len(each), 'space')}: log2 speed-up over the default, of the configs that ran, at one draw"
    return folded(what, panels(each)) if each else ""


def score(rows: Rows, name: str) -> str:
    return number(chart_data.mean_score(rows, name), 3)


def scores_table(known: Mapping[int, Rows]) -> str:
    """A column for each number of outcomes told, over all configs; where there were any, another over the rest."""
    columns = [(k, rows, prefix) for k, rows in known.items() for prefix in (("", "rest_") if k else ("",))]
    body = [("", ["spaces", *(str(len(rows)) for _, rows, _ in columns), ""])]
    body += [
        ("", [write(words), *(score(rows, prefix + name) for _, rows, prefix in columns), ideal])
        for name, (words, ideal) in SCORES.items()
    ]
    for place, name in enumerate(("precision", "recall")):
        pairs = ["" if prefix else number(chart_data.discovered(rows)[place], 3) for _, rows, prefix in columns]
        body.append(("", [write(f"{name} of \u201cthis neighbour is 1.5 times as fast\u201d"), *pairs, "1"]))
    explained = (
        "Means over spaces, and over draws of what was measured; the last two are over the pairs of all spaces. Over all "
        "configs, as <code>forecast-autotune replay</code> tells them; and over the rest, which were not measured."
    )
    heads = [f"{pictures.words_of(k)}{', the rest' if prefix else ''}" for k, _, prefix in columns]
    return f"<p>{explained}</p>" + table(["score", *heads, "ideal"], body)


def origins(made: PageContent) -> str:
    """Which traces, seeds, versions and command made the page."""
    body = [
        ("", [write(s.name), write(s.kernel), write(s.hardware), str(s.configs), times(s.default_over_best), s.digest])
        for s in made.sources
    ]
    facts = [f"<p><code>{write(made.command)}</code></p>"]
    draws = sorted({row["draws"] for row in made.rows if row.get("known")})
    drawn = f"{numbered(draws[-1], 'draw')} of what was measured; " if draws else ""
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    facts.append(
        f"<p>{write(f'Seeds 0 to {made.seeds - 1}; {drawn}{versions}; source {made.code}. The same traces, source and ')}"
        "versions give the same figures.</p>"
    )
    if made.history:
        facts.append(f"<p>{write('Histories are taken from ' + ', '.join(made.history) + '.')}</p>")
    heads = ["trace", "kernel", "hardware", "configs", "default over best", "SHA-256"]
    return "\n".join(["<h2>How this page was made</h2>", *facts, folded("Traces", table(heads, body))])
