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
from forecast_autotune.frontends.engine import make_surrogate

from ..evaluate.baselines import DRAWS, EVERY, TOLD, cold, positive
from ..evaluate.benchmark import (
    OURS,
    UNSTOPPED,
    Entry,
    ResultCache,
    Row,
    Search,
    Task,
    code,
    distinct,
    told_progress,
    work,
)
from ..evaluate.honesty import Foretold
from ..evaluate.searches import METHODS
from ..paths import TRACES
from .page import Made, Source, page

METHODS_COLD = (OURS, "top-forecast-again", "gp-ei", "lfbo", "kt-bayes_opt", "random")
METHODS_TOLD = (OURS, "top-forecast-again", "look-up", "gp-on-look-up", "hedge", "gp-ei", "lfbo", "random")
KNOWN = (0, 10, 50)  # outcomes told before forecasts are scored
STEPS = (1, 1.5, 2, 3, 5, 7)  # and ten, a hundred times as many: at these budgets searches are looked at


def budgets_to(most: int) -> tuple[str, ...]:
    """Nothing measured, and from there on in even steps of a logarithmic scale up to the most."""
    found = {0, most, *(int(step * 10**e) for e in range(5) for step in STEPS if step * 10**e <= most)}
    return tuple(map(str, sorted(found)))


def traces_of(given: argparse.Namespace) -> list[Path]:
    """Those named, all of the suite's, or one of each of its kernels.

    Raises:
        InvalidInputError: two have the same name, by which they are told apart, or there are none.
        OSError: one cannot be read.
    """
    suite = sorted(TRACES.glob("*.jsonl.gz"))
    found: list[Path] = [*given.traces, *(suite if given.all else [])]
    if not found:
        firsts: dict[str, Path] = {}
        for path in suite:
            firsts.setdefault(read_space(path).kernel, path)
        found = list(firsts.values())
    if not found:
        raise InvalidInputError(f"there are no traces in {TRACES}: name some")
    found = distinct(found)
    for path in found:
        read_space(path)
    return found


def tasks_for(entries: Sequence[Entry], given: argparse.Namespace, budgets: tuple[str, ...]) -> list[Task]:
    """Forecasts first, then searches seed by seed, so that what is done at any moment holds for all spaces."""
    draws = min(DRAWS, given.seeds)
    tasks: list[Task] = [
        Foretold(entry=entry, known=known, draws=draws)
        for entry in entries
        for known in KNOWN
        if known < len(read_space(entry.trace).space)
    ]
    for seed in range(given.seeds):
        for entry in entries:
            for method in given.methods or (METHODS_TOLD if entry.setting == TOLD else METHODS_COLD):
                if method in METHODS and METHODS[method].history and not entry.history:
                    continue
                anew = method in METHODS and METHODS[method].anew
                parts = [(budget,) for budget in budgets] if anew else [budgets]
                tasks += [Search(entry=entry, method=method, seed=seed, budgets=part) for part in parts]
    return tasks


def collect(tasks: Sequence[Task], given: argparse.Namespace, kept: ResultCache) -> tuple[list[Row], bool]:
    """Rows in the order of the tasks, and whether all are done."""
    found: dict[int, list[Row]] = {}
    place = {task: i for i, task in enumerate(tasks)}
    finished = True
    try:
        for task, rows in told_progress(work(tasks, given.jobs, kept), len(tasks), name="report"):
            found[place[task]] = rows
    except KeyboardInterrupt:
        finished = False
        print(f"report: interrupted with {len(found)} of {len(tasks)} done, which the page shows", file=sys.stderr)
    return [row for i in sorted(found) for row in found[i]], finished


def sources(traces: Sequence[Path]) -> list[Source]:
    """What the page tells of the traces; the hardware is left out of their labels where all have the same."""
    hardware = {read_space(path).hardware for path in traces}
    shared = f".{hardware.pop().replace(' ', '_')}" if len(hardware) == 1 else ""
    told = []
    for path in traces:
        space = read_space(path)
        label = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json").removesuffix(shared)
        told.append(
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
    return told


def versions() -> dict[str, str]:
    """Of Python, of what searches and draws, and of the package itself."""
    names = ("forecast-autotune", "numpy", "scikit-learn", "kernel-tuner", "matplotlib")
    here = {str(of.metadata["Name"]).replace("_", "-"): of.version for of in importlib.metadata.distributions()}
    return {"Python": platform.python_version(), **{name: here[name] for name in names if name in here}}


def main(words: Sequence[str] | None = None) -> int:
    """Search, forecast, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    said = list(sys.argv[1:] if words is None else words)
    given = parser.parse_args(said)
    try:
        if unknown := [name for name in given.methods if name not in (*EVERY, UNSTOPPED)]:
            raise InvalidInputError(f"no method {unknown[0]!r}: there are {', '.join((*EVERY, UNSTOPPED))}")
        traces = traces_of(given)
        entries = cold(traces, given.history)
        given.to.parent.mkdir(parents=True, exist_ok=True)
        rows, finished = collect(tasks_for(entries, given, budgets_to(given.budget)), given, ResultCache(given.keep))
        made = Made(
            rows=rows,
            sources=sources(traces),
            history=[path.name for path in given.history],
            seeds=given.seeds,
            command=shlex.join(["python", "-m", "calibration", "report", *said]),
            code=code(own=True)[:16],
            versions=versions(),
            shipped_on=list(make_surrogate("auto").fitted_on),
            finished=finished,
        )
        given.to.write_text(page(made), encoding="utf-8")
    except (InvalidInputError, OSError) as err:
        print(f"report: {err}", file=sys.stderr)
        return 2
    print(given.to)
    failed = [row for row in rows if row.get("failed")]
    for row in failed[:3]:
        print(f"report: {row.get('method', 'forecasts')} on {row['trace']}: {row['why']}", file=sys.stderr)
    return 130 if not finished else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
