"""forecast-autotune replay: tune against recorded spaces and say what it would have cost and won."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.budget import BudgetLimits
from ..core.model_names import FORMS, is_language_model, parse_model_name
from ..errors import WorkerError
from ..evaluation.replay_runner import POLICIES, ReplayPlan, Row, Task, histories, show_progress, work
from ..frontends.engine import make_surrogate
from ..settings import SURROGATES, Settings, check_surrogate
from . import BAD_INPUT, OK

BUDGETS = ("10", "1%", "10%")
TARGETS = (0, 10, 50)  # configs whose outcomes are known when forecasts are scored
NAMED = 8  # of what the surrogate was fitted on, in the tables; --json names all
DRAWS = 10  # of those configs, at most; from one draw to the next Brier skill scatters by 0.04 to 0.10 (10 measured)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="tune against a recorded space: loss, spend, honesty",
        description="Tune against recorded spaces, as if their hardware were here, and say how close the decisions come "
        "to each space's best, what they cost, and how good and how honest the forecasts were.",
    )
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        type=Path,
        help="recorded run: our own form, T4 JSON, or a cache file of Kernel Tuner",
    )
    parser.add_argument(
        "--history",
        nargs="+",
        action="extend",
        default=[],
        metavar="TRACE",
        type=Path,
        help="runs that are in the store; the one under test is left out of its own history",
    )
    parser.add_argument("--budget", action="append", metavar="B", help="as FORECAST_AUTOTUNE_BUDGET; may be repeated")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="selective", help="default: %(default)s")
    parser.add_argument(
        "--surrogate",
        default="auto",
        metavar="S",
        help=f"{', '.join(SURROGATES)}, or a language model ({FORMS}); default: %(default)s",
    )
    parser.add_argument(
        "--seeds", type=_positive, default=10, metavar="N", help="runs per budget; default: %(default)s"
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay, print, and return the exit code: 0, 130 when interrupted, 2 when workers died.

    Raises:
        InvalidInputError: a budget or a surrogate does not parse, or a file is no trace.
        OSError: a file cannot be read.
    """
    budgets = list(dict.fromkeys(args.budget or BUDGETS))
    for text in budgets:
        BudgetLimits.parse(text)
    settings = Settings.from_environment()
    check_surrogate(args.surrogate, "--surrogate", remote=settings.remote == "1")
    plan = ReplayPlan(
        traces=tuple(args.traces),
        histories=tuple(histories(args.traces, args.history)),
        policy=args.policy,
        surrogate=args.surrogate,
        answer=settings.answer,
    )
    # Each process would load the model anew; a server is asked by all.
    loads = is_language_model(args.surrogate) and parse_model_name(args.surrogate).runs != "server"
    jobs = 1 if loads else args.jobs
    tasks: list[Task] = [
        Task(trace, text, seed)
        for seed in range(args.seeds)
        for text in sorted(budgets, key=lambda text: BudgetLimits.parse(text).share or 0.0, reverse=True)
        for trace in range(len(args.traces))
    ]
    draws = min(DRAWS, args.seeds)
    tasks += [
        Task(trace, known, draw)
        for trace in range(len(args.traces))
        for known in TARGETS
        for draw in range(draws if known else 1)
    ]
    priors = list(make_surrogate(args.surrogate).fitted_on)  # a broken model is told of before hours
    done: dict[Task, Row] = {}
    code = OK
    try:
        for task, row in show_progress(work(plan, tasks, jobs), len(tasks)):
            done[task] = row  # noqa: PERF403 - one by one: what is finished when Ctrl-C comes is reported
    except KeyboardInterrupt:
        code = 130
        print(f"interrupted: {len(done)} of {len(tasks)} runs are finished; these follow", file=sys.stderr)
    except WorkerError as err:
        code = BAD_INPUT
        print(f"{err}; {len(done)} of {len(tasks)} runs are finished, and follow", file=sys.stderr)
    report = _report(done, budgets)
    if args.json:
        print(json.dumps(report | {"priors": priors}, allow_nan=False))
    else:
        _show(report, priors)
    return code


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


# Reporting --------------------------------------------------------------------------------------------------------------


def _report(done: Mapping[Task, Row], budgets: Sequence[str]) -> dict[str, list[Row]]:
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


def _show(report: Mapping[str, Sequence[Row]], priors: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    def text(value: object) -> str:
        return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)

    def table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        drawn = Table(*(name.replace("_", " ") for name in columns), title=title, title_justify="left")
        for row in rows:
            drawn.add_row(*("all" if name == "kernel" and row[name] is None else text(row[name]) for name in columns))
        console.print(drawn)

    console = Console(width=None if sys.stdout.isatty() else 160)
    table(
        "Slowdown of the decided config against the best in the trace",
        ("budget", "kernel", "geomean_of_medians", "median", "p90", "worst"),
        report["summary"],
    )
    names = ("accuracy", "off_by_one", "half_brier", "brier_skill", "crps7", "nll", "ece", "top_1_percent")
    table("Forecasts in eight bins against the median config", ("trace", "target_measured", *names), report["forecast"])
    if priors:
        more = f" and {len(priors) - NAMED} more" if len(priors) > NAMED else ""
        text_of_priors = f"Forecasts rest on a model fitted beforehand on {', '.join(priors[:NAMED])}{more}"
        console.print(text_of_priors, markup=False, highlight=False)
