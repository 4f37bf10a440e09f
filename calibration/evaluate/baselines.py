"""All methods side by side on recorded spaces: `python -m calibration baselines TABLE [TRACE …]`.

Every method measures the default config first, and a config that fails costs one measurement. Slowdown: the time of the best
config measured so far, or of the one that our tuning run decides on, over that of the best in the trace. Where nothing may
be measured, it is that of the config that would run. Methods stand in `searches`; ours is the real `tune()`, a run for each
budget. Budgets are counts or shares of the space.

suite        the recorded suite: with its kernel left out of all that was fitted, then knowing the kernel's other sizes
large        cold, on the traces given; with --history also knowing those of the same kernel
new-kernel   cold, kernel by kernel: against random search at 5, the Gaussian process at 10, the best baseline from there on
transfer     knowing the same kernel's other hardware among the traces given, then only other vendors'
stopping     what stopping by itself spends of a budget and loses against spending it all
honesty      skill and calibration of forecasts, and whether error falls as confidence grows
uncertainty  ours against measuring the top of the same forecasts

The last three know the same kernel's other traces, of --history or else of those given, and do without them too.
`--models 5 --seeds 5` draws the fitted model anew for each seed. `--keep FILE` keeps each result, and a later run with the
same file goes on from there. After Ctrl-C what is done is shown.

Exit codes: 0 done, 1 some searches failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.errors import InvalidInputError

from ..command import positive, verb_parser
from ..paths import TRACES
from . import aggregates
from .benchmark import (
    OURS,
    UNSTOPPED,
    Entry,
    Pool,
    ResultCache,
    Row,
    Search,
    Task,
    collect,
    distinct,
    limit_of,
    others,
)
from .honesty import Honesty
from .searches import METHODS

COLD, WITH_HISTORY = "cold", "with history"
KNOWN = {COLD: (0, 10, 50), WITH_HISTORY: (0, 50)}  # outcomes given before forecasts are scored
DRAWS = 10  # of those outcomes, at most

Paths = Sequence[Path]


# The tables -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is searched, and by whom if nobody else is named."""

    entries: Callable[[Paths, Paths], list[Entry]]
    budgets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # all, if empty
    suite: bool = False  # on the suite's traces, where none is named


def cold(traces: Paths, history: Paths) -> list[Entry]:
    informed = [Entry(trace=t, setting=WITH_HISTORY, history=others(t, history)) for t in traces]
    return [Entry(trace=t, setting=COLD) for t in traces] + [entry for entry in informed if entry.history]


def with_and_without(traces: Paths, history: Paths) -> list[Entry]:
    return cold(traces, history or traces)


def left_out(traces: Paths, history: Paths) -> list[Entry]:
    among = [*traces, *history]
    sizes = [
        Entry(
            trace=t,
            setting="sizes left out",
            history=others(t, among, lambda mine, theirs: mine.hardware.digest == theirs.hardware.digest),
        )
        for t in traces
    ]
    return [Entry(trace=t, setting="kernels left out") for t in traces] + [entry for entry in sizes if entry.history]


def transfer(traces: Paths, history: Paths) -> list[Entry]:
    among = [*traces, *history]
    sorts = {
        "other hardware": lambda mine, theirs: mine.hardware.digest != theirs.hardware.digest,
        "other vendor": lambda mine, theirs: mine.hardware.kind != theirs.hardware.kind,
    }
    entries = [
        Entry(trace=t, setting=setting, history=others(t, among, which))
        for setting, which in sorts.items()
        for t in traces
    ]
    return [entry for entry in entries if entry.history]


TABLES = {
    "suite": Table(entries=left_out, budgets=("0", "1", "4", "8", "16"), suite=True),
    "large": Table(entries=cold, budgets=("10", "20", "50", "1%", "10%")),
    "new-kernel": Table(entries=lambda traces, _: cold(traces, ()), budgets=("5", "10", "20", "50", "1%")),
    "transfer": Table(entries=transfer, budgets=("5", "10", "20", "50", "1%")),
    "stopping": Table(entries=with_and_without, budgets=("10%",), methods=(OURS, UNSTOPPED)),
    "honesty": Table(entries=with_and_without, suite=True),
    "uncertainty": Table(
        entries=with_and_without,
        budgets=("4", "8", "16"),
        methods=(OURS, *(name for name, method in METHODS.items() if method.forecasts)),
        suite=True,
    ),
}
EVERY = (OURS, *METHODS)
ALSO_WITH_HISTORY = (
    "lfbo",
    "gp-ei",
)  # the two leaders among methods that use no history; the others run cold only


def methods_for(entry: Entry, named: Sequence[str], table: Table) -> list[str]:
    """Who searches an entry: those named, or the table's; without history not those that need one."""
    chosen = named or table.methods or EVERY
    if not entry.history:
        return [name for name in chosen if name not in METHODS or not METHODS[name].history]
    return [
        name
        for name in chosen
        if named or name not in METHODS or METHODS[name].history or METHODS[name].forecasts or name in ALSO_WITH_HISTORY
    ]


def tasks_for(name: str, entries: Sequence[Entry], given: argparse.Namespace, budgets: tuple[str, ...]) -> list[Task]:
    """Seed by seed, so that what is done at any moment holds for all entries."""
    if name == "honesty":
        draws = min(DRAWS, given.seeds)
        return [
            Honesty(entry=e, known=known, draws=draws)
            for e in entries
            for known in KNOWN[WITH_HISTORY if e.history else COLD]
        ]
    tasks: list[Task] = [Pool(entry=entry) for entry in entries] if name == "suite" else []
    for seed in range(given.seeds):
        for entry in entries:
            for method in methods_for(entry, given.methods, TABLES[name]):
                alone = method not in METHODS or METHODS[method].per_budget
                parts = [(budget,) for budget in budgets] if alone else [budgets]
                ours = method not in METHODS or METHODS[method].forecasts
                models = given.models if ours else 1
                tasks += [Search(entry=entry, method=method, seed=seed, budgets=part, models=models) for part in parts]
    return tasks


def report(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """All that a table says."""
    answer: dict[str, Any] = {"table": name}
    rankings = [row for row in rows if "ranking" in row]
    rows = [row for row in rows if "ranking" not in row]
    if name == "honesty":
        answer["honesty"] = aggregates.honesty(rows)
    elif name == "stopping":
        answer["stopping"] = aggregates.stopping(rows)
    elif name == "uncertainty":
        answer["comparisons"] = aggregates.comparisons(rows, [m for m in TABLES[name].methods if m in METHODS])
    elif name == "new-kernel":
        answer["comparisons"] = aggregates.bars(rows)
    else:
        answer["comparisons"] = aggregates.comparisons(rows)
    if name != "honesty":
        answer["summary"] = aggregates.summary(rows)
    if name == "suite":
        answer |= {"pools": aggregates.pools(rankings), "rankings": rankings}
    if name == "transfer":
        answer["spaces"] = aggregates.per_space(rows)
    left_out = [row for row in rows if "why" in row]
    return {**answer, "left_out": left_out, "runs": [row for row in rows if "why" not in row]}


# Showing it -------------------------------------------------------------------------------------------------------------


def number(value: object, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) and math.isfinite(value) else "-"


def grid(rows: Sequence[Row], budgets: Sequence[str], cell: Callable[[Row], str]) -> None:
    """Methods down, budgets across."""
    cells = {(row["method"], row["budget"]): cell(row) for row in rows}
    methods = [m for m in (*EVERY, UNSTOPPED) if any(m == method for method, _ in cells)]
    print_table(("method", *budgets), [(m, *(cells.get((m, b), "-") for b in budgets)) for m in methods], right=budgets)


def three(row: Row) -> str:
    figures_of = (row["geomean_of_medians"], row["p90"], row["worst"])
    return " / ".join(map(number, figures_of)) if row["whole"] else "-"


def within(row: Row) -> str:
    return f"{number(row['geomean_of_medians'])} [{number(row['low'])}, {number(row['high'])}]"


def heading(setting: object, kernel: object, what: str) -> None:
    print(f"\n{setting}, {kernel or 'all'}: {what}\n")


def titled(rows: Sequence[Row], *names: str) -> dict[tuple[object, ...], list[Row]]:
    parts: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        parts.setdefault(tuple(row[name] for name in names), []).append(row)
    return parts


def show(answer: Mapping[str, Any], budgets: Sequence[str]) -> None:
    for (setting, kernel), rows in titled(answer.get("summary", ()), "setting", "kernel").items():
        heading(setting, kernel, "slowdown, geometric mean over traces of medians over seeds / p90 / worst")
        grid(rows, budgets, three)
        heading(setting, kernel, "the same mean and its 95 % interval, kernels, traces and seeds drawn anew")
        grid([row for row in rows if row["method"] == OURS], budgets, within)
        if answer["table"] == "suite" and kernel is None:
            heading(setting, kernel, "the worst over the default's own time")
            grid(rows, budgets, lambda row: number(row["worst_over_default"]))
    for (setting, space), rows in titled(answer.get("spaces", ()), "setting", "trace").items():
        heading(setting, space, "slowdown, median / p90 over seeds")
        grid(rows, budgets, lambda row: f"{number(row['median'])} / {number(row['p90'])}")
    if answer.get("comparisons"):
        heading("ours over another", None, "ratio of geometric means of medians, and its 95 % interval")
        show_rows(answer["comparisons"], ("setting", "kernel", "budget", "against", "ratio", "low", "high"))
    if answer.get("stopping"):
        heading("stopping", None, "share of the budget spent, mean and median; slowdown over that of spending it all")
        shares = ("spent_share", "spent_share_median")
        show_rows(answer["stopping"], ("setting", "kernel", "budget", *shares, "ratio", "low", "high"))
    if answer.get("pools"):
        heading("all variants in one pool", None, "the best of the first part of a ranking over the best, less 1")
        show_rows(answer["pools"], tuple(answer["pools"][0]))
    if answer.get("honesty"):
        heading(
            "forecasts", None, "means over spaces; in how many error falls with confidence, within what chance may do"
        )
        show_rows(answer["honesty"], tuple(answer["honesty"][0]))


def show_rows(rows: Sequence[Row], names: Sequence[str]) -> None:
    def cell(row: Row, name: str) -> str:
        if row[name] is None:
            return "all" if name in ("kernel", "kind") else "-"
        return number(row[name]) if isinstance(row[name], float) else str(row[name])

    numbers = [name for name in names if name not in ("setting", "kernel", "kind", "against", "ranking")]
    cells = [[cell(row, name) for name in names] for row in rows]
    print_table([name.replace("_", " ") for name in names], cells, right=[n.replace("_", " ") for n in numbers])


def plain(value: Any) -> Any:
    """As JSON: what is infinite, because nothing ran, is null."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The command ------------------------------------------------------------------------------------------------------------


def entries_for(given: argparse.Namespace, budgets: Sequence[str]) -> list[Entry]:
    """What is searched.

    Raises:
        InvalidInputError: there is no such method, a budget or a trace makes no sense, two traces have the same name, or
            nothing is left to search.
        OSError: a trace cannot be read.
    """
    table = TABLES[given.table]
    if unknown := [name for name in given.methods if name not in (*EVERY, UNSTOPPED)]:
        raise InvalidInputError(f"no method {unknown[0]!r}: there are {', '.join((*EVERY, UNSTOPPED))}")
    for budget in budgets:
        limit_of(budget, 100)
    traces = distinct(given.traces or (sorted(TRACES.glob("*.jsonl.gz")) if table.suite else []))
    if not traces:
        raise InvalidInputError(f"table {given.table!r} has no traces of its own: name some")
    entries = table.entries(traces, given.history)
    if not entries:
        raise InvalidInputError(f"none of {len(traces)} traces has another one to learn from: name more, or --history")
    return entries


def main(words: Sequence[str] | None = None) -> int:
    """Search, and print what was asked for."""
    parser = verb_parser("baselines", __doc__)
    parser.add_argument("table", choices=list(TABLES), metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="some tables default to the suite's")
    parser.add_argument("--history", nargs="+", action="extend", default=[], type=Path, metavar="TRACE")
    parser.add_argument("--budget", action="append", metavar="B", help="10 or 1%%; may be repeated")
    parser.add_argument("--methods", nargs="+", default=[], metavar="M", help=", ".join((*EVERY, UNSTOPPED)))
    parser.add_argument("--seeds", type=positive, default=10, metavar="N", help="of each search; default: %(default)s")
    parser.add_argument(
        "--models",
        type=positive,
        default=1,
        metavar="N",
        help="models drawn anew, of which seeds take turns; default: 1",
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where results are kept and found again")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout, runs included")
    given = parser.parse_args(words)
    budgets = tuple(dict.fromkeys(given.budget or TABLES[given.table].budgets))
    try:
        entries = entries_for(given, budgets)
        kept = ResultCache(given.keep)
    except (InvalidInputError, OSError) as err:
        print(f"baselines: {err}", file=sys.stderr)
        return 2
    tasks = tasks_for(given.table, entries, given, budgets)
    rows, finished = collect(tasks, given.jobs, kept, name="baselines", partly="; these follow")
    answer = report(given.table, rows)
    if given.json:
        print_json(plain(answer))
    else:
        show(answer, budgets)
    failed = [row for row in answer["left_out"] if row.get("failed")]
    for row in failed[:3]:
        print(f"baselines: {row.get('method', 'forecasts')} on {row['trace']}: {row['why']}", file=sys.stderr)
    if failed:
        print(f"baselines: {len(failed)} searches failed", file=sys.stderr)
    return 130 if not finished else 1 if failed else 0
