"""A page of pictures that shows how good forecasts are and what they are worth: `python -m calibration report [TRACE …]`.

Slowdown against measurements beside other methods, and how honest forecasts are before measuring, after 10 and after 50
random measurements; with one sentence to each picture, and tables. The page is one HTML file that needs nothing else.
Without traces: the first by name of each kernel in `calibration/traces`, some minutes on two cores; `--all` takes all of
them. Forecasts come from a model fitted without the kernel that they are of. With `--history` everything is shown twice,
cold and knowing those of the given traces that are of the same kernel.

`--keep FILE` keeps each result, and a later run with the same file goes on from there. After Ctrl-C what is done is shown.

Exit codes: 0 done, 1 some searches failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.surrogates.by_name import make_surrogate

from ..command import positive, verb_parser
from ..evaluate.baselines import DRAWS, EVERY, WITH_HISTORY, cold
from ..evaluate.benchmark import (
    OURS,
    UNSTOPPED,
    Entry,
    ResultCache,
    Search,
    Task,
    code,
    collect,
    distinct,
)
from ..evaluate.honesty import PageForecasts
from ..evaluate.searches import METHODS
from ..paths import TRACES
from .page import PageContent, Source, page

METHODS_COLD = (OURS, "top-forecast-again", "gp-ei", "lfbo", "kt-bayes_opt", "random")
METHODS_WITH_HISTORY = (OURS, "top-forecast-again", "look-up", "gp-on-look-up", "hedge", "gp-ei", "lfbo", "random")
KNOWN = (0, 10, 50)  # outcomes given before forecasts are scored
STEPS = (1, 1.5, 2, 3, 5, 7)  # times 1, 10, 100, …: the budgets at which searches are scored


def budgets_to(most: int) -> tuple[str, ...]:
    """Nothing measured, and from there on in even steps of a logarithmic scale up to the most."""
    counts = {0, most, *(int(step * 10**e) for e in range(5) for step in STEPS if step * 10**e <= most)}
    return tuple(map(str, sorted(counts)))


def traces_of(given: argparse.Namespace) -> list[Path]:
    """Those named, all of the suite's, or one of each of its kernels.

    Raises:
        InvalidInputError: two have the same name, by which they are told apart, or there are none.
        OSError: one cannot be read.
    """
    suite = sorted(TRACES.glob("*.jsonl.gz"))
    paths: list[Path] = [*given.traces, *(suite if given.all else [])]
    if not paths:
        firsts: dict[str, Path] = {}
        for path in suite:
            firsts.setdefault(read_space(path).kernel, path)
        paths = list(firsts.values())
    if not paths:
        raise InvalidInputError(f"there are no traces in {TRACES}: name some")
    paths = distinct(paths)
    for path in paths:
        read_space(path)
    return paths


def tasks_for(entries: Sequence[Entry], given: argparse.Namespace, budgets: tuple[str, ...]) -> list[Task]:
    """Forecasts first, then searches seed by seed, so that what is done at any moment holds for all spaces."""
    draws = min(DRAWS, given.seeds)
    tasks: list[Task] = [
        PageForecasts(entry=entry, known=known, draws=draws)
        for entry in entries
        for known in KNOWN
        if known < len(read_space(entry.trace).space)
    ]
    for seed in range(given.seeds):
        for entry in entries:
            for method in given.methods or (METHODS_WITH_HISTORY if entry.setting == WITH_HISTORY else METHODS_COLD):
                if method in METHODS and METHODS[method].history and not entry.history:
                    continue
                alone = method in METHODS and METHODS[method].per_budget
                parts = [(budget,) for budget in budgets] if alone else [budgets]
                tasks += [Search(entry=entry, method=method, seed=seed, budgets=part) for part in parts]
    return tasks


def sources(traces: Sequence[Path]) -> list[Source]:
    """What the page tells of the traces; the hardware is left out of their labels where all have the same."""
    hardware = {read_space(path).hardware for path in traces}
    shared = f".{hardware.pop().replace(' ', '_')}" if len(hardware) == 1 else ""
    lines = []
    for path in traces:
        space = read_space(path)
        label = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json").removesuffix(shared)
        lines.append(
            Source(
                name=path.name,
                label=label or path.name,
                kernel=space.kernel,
                hardware=space.hardware,
                configs=len(space.space),
                default_over_best=space.default_slowdown,
                digest=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
            )
        )
    return lines


def versions() -> dict[str, str]:
    """Of Python, of what searches and draws, and of the package itself."""
    names = ("forecast-autotune", "numpy", "scikit-learn", "kernel-tuner", "matplotlib")
    installed = {str(of.metadata["Name"]).replace("_", "-"): of.version for of in importlib.metadata.distributions()}
    return {"Python": platform.python_version(), **{name: installed[name] for name in names if name in installed}}


def make(given: argparse.Namespace, arguments: Sequence[str]) -> PageContent:
    """Search and forecast what is asked for: all that the page shows.

    Raises:
        InvalidInputError: there is no such method, or the traces make no sense.
        OSError: a trace cannot be read.
    """
    if unknown := [name for name in given.methods if name not in (*EVERY, UNSTOPPED)]:
        raise InvalidInputError(f"no method {unknown[0]!r}: there are {', '.join((*EVERY, UNSTOPPED))}")
    traces = traces_of(given)
    entries = cold(traces, given.history)
    given.to.parent.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    rows, finished = collect(
        tasks_for(entries, given, budgets_to(given.budget)),
        given.jobs,
        ResultCache(given.keep),
        name="report",
        partly=", which the page shows",
    )
    return PageContent(
        rows=rows,
        sources=sources(traces),
        history=[path.name for path in given.history],
        seeds=given.seeds,
        command=shlex.join(["python", "-m", "calibration", "report", *arguments]),
        code=code(own=True)[:16],
        versions=versions(),
        shipped_on=list(make_surrogate("auto").fitted_on),
        finished=finished,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Search, forecast, and write the page."""
    arguments = list(sys.argv[1:] if words is None else words)
    given = _parser().parse_args(arguments)
    try:
        made = make(given, arguments)
        given.to.write_text(page(made), encoding="utf-8")
    except (InvalidInputError, OSError) as err:
        print(f"report: {err}", file=sys.stderr)
        return 2
    print(given.to)
    failed = [row for row in made.rows if row.get("failed")]
    for row in failed[:3]:
        print(f"report: {row.get('method', 'forecasts')} on {row['trace']}: {row['why']}", file=sys.stderr)
    return 130 if not made.finished else 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("report", __doc__)
    parser.add_argument(
        "traces", nargs="*", type=Path, metavar="TRACE", help="default: one of each kernel of the suite"
    )
    parser.add_argument("--all", action="store_true", help="all of the suite's traces")
    parser.add_argument("--history", nargs="+", action="extend", default=[], type=Path, metavar="TRACE")
    parser.add_argument(
        "--to", type=Path, default=Path("build/report.html"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--methods", nargs="+", default=[], metavar="M", help=", ".join((*EVERY, UNSTOPPED)))
    parser.add_argument("--seeds", type=positive, default=2, metavar="N", help="of each search; default: %(default)s")
    parser.add_argument(
        "--budget", type=positive, default=50, metavar="N", help="measured at most; default: %(default)s"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where results are kept and found again")
    return parser
