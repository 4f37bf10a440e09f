"""The README's chart and the figures that it is drawn from: `python -m calibration chart`.

How close to a kernel's best config each way of searching comes, by how many configs it measures, on every recorded space
in `calibration/traces`: our tuning run with a model that was fitted without the kernel, random search, a Gaussian process
with expected improvement, and the order of the kernel's own list. Each measures the list's first config first, and a config
that fails costs one measurement. A point is the geometric mean over spaces of the median over seeds; its interval comes
from drawing kernels anew. Ten minutes on two cores.

`--keep FILE` keeps each result, and a later run with the same file goes on from there. `--draw` searches nothing: it draws
the figures that are there.

Exit codes: 0 done, 1 some searches failed or were not done, 2 bad input.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernel_suite import Kernel, SuiteKernel, cuda_kernels, suite_kernels

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.frontends.variants.arguments import KNOB

from ..command import positive, verb_parser
from ..evaluate.aggregates import INTERVAL, RESAMPLES, geomean_of_medians
from ..evaluate.benchmark import OURS, Entry, ResultCache, Row, Search, collect
from ..paths import FOLDER, TRACES
from .pictures import chart_picture

LIST = "list"
SEARCHED = (OURS, "random", "gp-ei")
BUDGETS = (1, 2, 4, 8, 16, 32)
FIGURES, PICTURE = FOLDER / "report" / "chart.json", FOLDER / "report" / "chart.svg"

Slowdowns = Sequence[Sequence[float]]
"""Of one method on one space: at each budget those of its seeds."""


def list_order(kernel: str, trace: Path) -> list[int]:
    """Positions in a recorded space in the order of the kernel's own list: variant after variant, as each is listed."""
    suite: list[SuiteKernel | Kernel] = [*suite_kernels(), *cuda_kernels()]
    there = next(k for k in suite if k.name == kernel)
    if isinstance(there, SuiteKernel):
        listed = [{KNOB: v.launch.__name__, **c.knobs} for v in there.variants for c in v.space]
    else:
        listed = [dict(c.knobs) for c in itertools.chain.from_iterable(there.variants.values())]
    place = {frozenset(knobs.items()): i for i, knobs in enumerate(listed)}
    # A joint config has the knobs of every variant: None is one that its own variant lacks.
    recorded = [frozenset((k, v) for k, v in c.knobs.items() if v is not None) for c in read_space(trace).space]
    return sorted(range(len(recorded)), key=lambda i: place[recorded[i]])


def by_list(trace: Path) -> Slowdowns:
    """What one gets who times the first so many of the list."""
    space = read_space(trace)
    order = list_order(space.kernel, trace)
    return [[min(space.slowdown(i) for i in order[:budget])] for budget in BUDGETS]


def figures(traces: Sequence[Path], rows: Sequence[Row], seeds: int) -> dict[str, Any]:
    """All that the chart shows and whence it comes, for JSON.

    Raises:
        InvalidInputError: a search is missing or found nothing that runs.
    """
    found = {
        (r["trace"], r["method"], int(str(r["budget"])), r["seed"]): s
        for r in rows
        if isinstance(s := r.get("slowdown"), float) and math.isfinite(s)
    }
    # All are read before Triton is imported: reading freezes what the garbage collector knows, and Triton complains at exit.
    recorded = {trace: read_space(trace) for trace in traces}
    spaces = {}
    for trace, space in recorded.items():
        try:
            searched = {
                method: [[round(found[trace.name, method, b, s], 4) for s in range(seeds)] for b in BUDGETS]
                for method in SEARCHED
            }
        except KeyError as err:
            raise InvalidInputError(f"no result of the search {err}: nothing is written") from None
        listed = [[round(s, 4) for s in at] for at in by_list(trace)]
        spaces[trace.name.removesuffix(".jsonl.gz")] = {
            "kernel": space.kernel,
            "configs": len(space.space),
            "slowdown": {**searched, LIST: listed},
        }
    return {
        "hardware": sorted({space.hardware for space in recorded.values()}),
        "seeds": seeds,
        "measured": list(BUDGETS),
        "lines": lines(spaces),
        "spaces": spaces,
    }


def lines(spaces: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """For each method a point at each budget: the geometric mean over spaces, and its interval from drawing kernels anew."""
    kernels = sorted({space["kernel"] for space in spaces.values()})
    drawn = np.random.default_rng(0).integers(len(kernels), size=(RESAMPLES, len(kernels)))
    made: dict[str, list[dict[str, float]]] = {}
    for method in (*SEARCHED, LIST):
        for place, budget in enumerate(BUDGETS):
            runs = {name: space["slowdown"][method][place] for name, space in spaces.items()}
            logs = {name: math.log(float(np.median(values))) for name, values in runs.items()}
            of = [[logs[name] for name, space in spaces.items() if space["kernel"] == kernel] for kernel in kernels]
            sums, counts = np.array([sum(each) for each in of]), np.array([len(each) for each in of])
            again = np.exp(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
            low, high = np.percentile(again, INTERVAL)
            point = {"measured": budget, "slowdown": geomean_of_medians(runs), "low": float(low), "high": float(high)}
            made.setdefault(method, []).append({name: round(value, 4) for name, value in point.items()})
    return made


def caption(figures: Mapping[str, Any]) -> str:
    """The sentence that stands with the chart in READMEs: ours beside random search, where four or more are measured."""
    ours, random = figures["lines"][OURS], figures["lines"]["random"]
    pairs = [(mine, theirs) for mine, theirs in zip(ours, random, strict=True) if mine["measured"] >= 4]
    *measured, most = (f"{mine['measured']}" for mine, _ in pairs)
    ours_text, random_text = (", ".join(f"{each[i]['slowdown']:.2f}" for each in pairs) for i in (0, 1))
    return (
        f"Time of the chosen config over the best one's, with {', '.join(measured)} and {most} configs measured: "
        f"{ours_text}; random search {random_text}."
    )


def as_text(value: Mapping[str, Any]) -> str:
    """JSON with a line for each space and each method, so that a change is read as such."""
    parts = []
    for name, part in value.items():
        if isinstance(part, dict):
            inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in part.items())
            parts.append(f"  {json.dumps(name)}: {{\n{inner}\n  }}")
        else:
            parts.append(f"  {json.dumps(name)}: {json.dumps(part)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(words: Sequence[str] | None = None) -> int:
    """Search, unless only a picture is wanted; write the figures and the picture."""
    parser = verb_parser("chart", __doc__)
    parser.add_argument("--draw", action="store_true", help="search nothing, draw the figures that are there")
    parser.add_argument("--seeds", type=positive, default=2, metavar="N", help="of each search; default: %(default)s")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where results are kept and found again")
    given = parser.parse_args(words)
    if not given.draw:
        traces = sorted(TRACES.glob("*.jsonl.gz"))
        budgets = tuple(map(str, BUDGETS))
        tasks = [
            Search(entry=Entry(trace=trace, setting="cold"), method=method, seed=seed, budgets=budgets)
            for trace in traces
            for method in SEARCHED
            for seed in range(given.seeds)
        ]
        rows, _ = collect(tasks, given.jobs, ResultCache(given.keep), name="chart", partly="")
        try:
            FIGURES.write_text(as_text(figures(traces, rows, given.seeds)), encoding="utf-8")
        except InvalidInputError as err:
            print(f"chart: {err}", file=sys.stderr)
            return 1
    try:
        read = json.loads(FIGURES.read_text(encoding="utf-8"))
        drawn = chart_picture(read)
    except (OSError, ValueError) as err:
        print(f"chart: {FIGURES}: {err}", file=sys.stderr)
        return 2
    PICTURE.write_text(drawn, encoding="utf-8")
    print(caption(read), FIGURES, PICTURE, sep="\n")
    return 0
