"""What `replay` prints: runs and scores put together, as JSON values and as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ..core.layout import Block, Facts, Table
from ..evaluation.replay_runner import Row, Task
from .output import print_blocks

SHOWN_PRIORS = 8  # of what the surrogate had been fitted on, in the tables; --json names all

Report = dict[str, list[Row]]


def report_of(done: Mapping[Task, Row], budgets: Sequence[str]) -> Report:
    """Finished tasks as `replay --json` prints them: each run, a summary by budget and kernel, and mean scores."""
    tuned = [t for t in done if isinstance(t.what, str)]
    tuned.sort(key=lambda t: (t.trace, budgets.index(str(t.what)), t.seed))
    runs = [done[t] for t in tuned]
    kernels = list(dict.fromkeys(str(r["kernel"]) for r in runs))
    summary: list[Row] = []
    for budget in budgets:
        for kernel in (None, *kernels):
            # By place, not by name: files of one name may lie in several folders.
            some = [(t.trace, done[t]) for t in tuned if t.what == budget and kernel in (None, done[t]["kernel"])]
            if some:
                summary.append(_summary(budget, kernel, some))
    scored: dict[tuple[int, int], list[Row]] = {}
    for task in sorted((t for t in done if isinstance(t.what, int)), key=lambda t: (t.trace, int(t.what), t.seed)):
        scored.setdefault((task.trace, int(task.what)), []).append(done[task])
    return {
        "runs": runs,
        "summary": summary,
        "forecast": [_mean_row(rows) for rows in scored.values()],
    }


def _summary(budget: str, kernel: str | None, runs: Sequence[tuple[int, Row]]) -> Row:
    """Over all runs: median, 90th percentile, worst; and the geometric mean over traces of their medians over seeds."""
    by_trace: dict[int, list[float]] = {}
    for trace, row in runs:
        slowdown = row["slowdown"]
        by_trace.setdefault(trace, []).append(slowdown if isinstance(slowdown, float) else math.inf)
    everything = sorted(s for slowdowns in by_trace.values() for s in slowdowns)
    figures = {
        "geomean_of_medians": statistics.geometric_mean(statistics.median(s) for s in by_trace.values()),
        "median": statistics.median(everything),
        "p90": everything[math.ceil(0.9 * len(everything)) - 1],
        "worst": everything[-1],
    }
    return {"budget": budget, "kernel": kernel} | {k: v if math.isfinite(v) else None for k, v in figures.items()}


def _mean_row(rows: Sequence[Row]) -> Row:
    """The rows' mean, entry by entry; None where one of them has none."""

    def mean(values: list[object]) -> object:
        if isinstance(values[0], list):
            return [mean(list(v)) for v in zip(*values, strict=True)]
        numbers = [v for v in values if isinstance(v, float)]
        return sum(numbers) / len(numbers) if len(numbers) == len(values) else None

    same = ("trace", "target_measured")
    return {name: rows[0][name] if name in same else mean([row[name] for row in rows]) for name in rows[0]}


def show_report(report: Report, priors: Sequence[str]) -> None:
    """Print the report as tables, and what the surrogate had been fitted on."""
    scores = ("accuracy", "off_by_one", "half_brier", "brier_skill", "crps7", "nll", "ece", "top_1_percent")
    blocks: list[Block] = [
        _paragraph("Slowdown of the decided config against the best in the trace"),
        _table(("budget", "kernel"), ("geomean_of_medians", "median", "p90", "worst"), report["summary"]),
        _paragraph("Forecasts in eight bins against the median config"),
        _table(("trace",), ("target_measured", *scores), report["forecast"]),
    ]
    if priors:
        more = f" and {len(priors) - SHOWN_PRIORS} more" if len(priors) > SHOWN_PRIORS else ""
        shown = ", ".join(priors[:SHOWN_PRIORS])
        blocks.append(_paragraph(f"Forecasts rest on a model fitted beforehand on {shown}{more}"))
    print_blocks(blocks)


def _paragraph(text: str) -> Facts:
    return Facts([("", text)])


def _table(labels: Sequence[str], figures: Sequence[str], rows: Sequence[Row]) -> Table:
    def cell(row: Row, name: str) -> str:
        value = row[name]
        if value is None:
            return "all" if name == "kernel" else "-"
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    def heading(name: str) -> str:
        return name.replace("_", " ")

    columns = (*labels, *figures)
    cells = [[cell(row, name) for name in columns] for row in rows]
    return Table([heading(name) for name in columns], cells, right=[heading(name) for name in figures])
