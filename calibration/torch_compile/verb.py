"""torch.compile's candidates for matrix products narrowed by forecasts, beside torch.compile as it is, on a GPU.

Each way compiles the same operations in a process of its own with empty caches: the default, max-autotune, max-autotune's
exhaustive list, and `install(inductor=True)` under max-autotune at each budget (0: nothing is timed, mode forecast). What
each compiled is timed on cold caches, in turns with eager code. Printed are, for every operation, the seconds of its first
run and its time over that of the default way, both by eager code's time in the same process; then the means.

    python -m calibration inductor-report                             # 60 products: max-autotune and budgets of 2, 4, 8
    python -m calibration inductor-report --products 6 --ways default,max-autotune,exhaustive,4
    python -m calibration inductor-report --models                    # three parts of models

Ctrl-C keeps what --keep names; a later run goes on from there.

Exit codes: 0 reported, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table

from ..command import positive
from ..paths import REPOSITORY

STOCK = ("default", "max-autotune", "exhaustive")
WAYS = "default,max-autotune,2,4,8"
LIMIT_S = 600.0  # of one process
Found = dict[str, dict[str, Any]]
"""By way, what was found of one operation."""


def main(words: Sequence[str] | None = None) -> int:
    """The verb."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration inductor-report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--products", type=positive, default=60, metavar="N", help="how many, up to 60 (default: 60)")
    parser.add_argument("--models", action="store_true", help="three parts of models, in place of products")
    parser.add_argument("--ways", default=WAYS, help=f"of {', '.join(STOCK)}, and budgets (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=LIMIT_S, metavar="S", help="of each way (default: %(default).0f)"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="JSON lines, written as they come; a later run goes on"
    )
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    given = parser.parse_args(words)
    ways = given.ways.split(",")
    if unknown := [way for way in ways if way not in STOCK and not way.isdecimal()]:
        print(f"inductor-report: --ways {unknown[0]!r} is none of {', '.join(STOCK)}, and no budget", file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print("inductor-report: there is no GPU here, and what is compared are times on one", file=sys.stderr)
        return 2
    from .operations import MODELS, products

    names = list(MODELS) if given.models else [product.name for product in products(min(60, given.products))]
    found = collect(names, ways, given.keep, given.seconds)
    if given.json:
        print_json(found)
    else:
        columns = ("operation", *(f"{way} {figure}" for way in ways for figure in ("s", "time")))
        print_table(columns, list(lines(found, ways)), right=columns[1:])
        print()
        print_table(MEANS, list(means(found, ways)), right=MEANS[1:])
    return int(any("problem" in each for of_one in found.values() for each in of_one.values()))


def collect(names: Sequence[str], ways: Sequence[str], keep: Path | None, limit_s: float) -> dict[str, Found]:
    """What is found of each operation in each way; what was kept is not asked for again."""
    found: dict[str, Found] = {name: {} for name in names}
    for line in keep.read_text().splitlines() if keep is not None and keep.exists() else ():
        kept = json.loads(line)
        if kept["operation"] in found and "problem" not in kept:
            found[kept["operation"]][kept["way"]] = kept
    for way in ways:
        left = [name for name in names if way not in found[name]]
        for each in compiled(way, left, limit_s) if left else ():
            each["way"] = way
            found[each["operation"]][way] = each
            print(_told(each), file=sys.stderr, flush=True)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(each) + "\n")
    return found


def compiled(way: str, names: Sequence[str], limit_s: float) -> Iterator[dict[str, Any]]:
    """What a process with empty caches finds of each operation, as it comes; a `problem` of those that it left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORECAST_AUTOTUNE_")}
    if way.isdecimal():
        environment |= {"FORECAST_AUTOTUNE_MODE": "forecast"} if way == "0" else {"FORECAST_AUTOTUNE_BUDGET": way}
    left = list(names)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment |= {
            "FORECAST_AUTOTUNE_DIR": os.path.join(folder, "store"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), environment.get("PYTHONPATH", "")])),
        }
        told = Path(folder, "told")
        with (
            told.open("w") as errors,
            subprocess.Popen(
                command_of(way, names), env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            alarm = threading.Timer(limit_s, process.kill)
            alarm.start()
            try:
                for line in process.stdout or ():
                    if line.startswith("{"):
                        found = json.loads(line)
                        left.remove(found["operation"])
                        yield found
            finally:
                alarm.cancel()
                process.kill()
        said = told.read_text().strip().splitlines() or [f"it ended after {limit_s:.0f} s"]
    for name in left:
        yield {"operation": name, "problem": said[-1][:300]}


def command_of(way: str, names: Sequence[str]) -> list[str]:
    """The process that compiles operations in one way."""
    return [sys.executable, "-m", "calibration.torch_compile.compiles", way if way in STOCK else "ours", *names]


def _told(found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return f"{found['way']}: {found['operation']}: {found['problem']}"
    figures = (
        f"{found['compile_s']:.1f} s, {found['us']:.1f} us, eager {found['eager_us']:.1f} us, {found['timed']} timed"
    )
    return f"{found['way']}: {found['operation']}: {figures}, {100 * found['far']:.2g} % apart"


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


MEANS = (
    "way",
    "operations",
    "over default",
    "worst",
    "over the best",
    "worst of all",
    "seconds",
    "over default's",
    "timed",
)


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
        seconds = [each[way]["compile_s"] for each in both]
        default_s = [each["default"]["compile_s"] for each in both]
        timed = statistics.fmean(each[way]["timed"] for each in both)
        yield (
            way, str(len(both)), f"{_mean(over):.3f}", f"{max(over):.3f}", f"{_mean(losses):.3f}", f"{max(losses):.3f}",
            f"{sum(seconds):.0f}", f"{sum(seconds) / sum(default_s):.1f}", f"{timed:.1f}",
        )  # fmt: skip


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    sys.exit(main())
