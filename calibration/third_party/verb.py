"""Other people's packages under `install()`: `python -m calibration third-party [OPERATION …]`, and `--list [PACKAGE …]`.

With operations of flash-linear-attention, by default all: each runs in three processes with empty caches, tuned by Triton,
untuned (each key's first config), and under `install()`. Printed are the seconds of the first step, the milliseconds of a
later step and of the host's part of it, the most memory, the time of what ours chose over the best by Triton's own clock
(geometric mean over keys, and worst), and of a model in training its last loss, and how far at most a loss is from stock's.
This needs a GPU; --rehearse tries the same without one, at small sizes, and its times mean nothing.

With --list no GPU is needed: each package's modules are imported, and its tuners are counted: those that are decided here,
and those that are not, with the reason.

Exit codes: 0 reported, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table

from ..paths import REPOSITORY
from .steps import WAYS

PACKAGES = ("fla", "liger_kernel", "flag_gems", "torchao", "unsloth", "vllm", "sglang")
LIMIT_S = 600.0  # of one process
OURS = {"untuned": {"FORECAST_AUTOTUNE_MODE": "first"}, "stock": {}}


def main(words: Sequence[str] | None = None) -> int:
    """The verb."""
    from .operations import OPERATIONS

    parser = argparse.ArgumentParser(
        prog="python -m calibration third-party",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="OPERATION|PACKAGE", help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--list", action="store_true", help=f"list tuners; of {', '.join(PACKAGES)} or what is named")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them (default: %(default)s)")
    parser.add_argument("--budget", default="8", metavar="B", help="as FORECAST_AUTOTUNE_BUDGET (default: 8)")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU; the times mean nothing")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="JSON lines, written as they come; a later run goes on"
    )
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    given = parser.parse_args(words)
    if given.list:
        return list_packages(given.names or [p for p in PACKAGES if importlib.util.find_spec(p)], as_json=given.json)
    if unknown := [name for name in given.names if name not in OPERATIONS]:
        print(f"third-party: there is no operation {unknown[0]!r}: {', '.join(OPERATIONS)}", file=sys.stderr)
        return 2
    if importlib.util.find_spec("fla") is None:
        print(
            "third-party: flash-linear-attention is not installed: pip install --no-deps fla-core==0.6.0 "
            "flash-linear-attention==0.6.0 einops",
            file=sys.stderr,
        )
        return 2
    if not given.rehearse and not _has_gpu():
        print("third-party: there is no GPU here; --rehearse tries everything but the timing", file=sys.stderr)
        return 2
    ways = given.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        print(f"third-party: --ways {unknown[0]!r} is none of {', '.join(WAYS)}", file=sys.stderr)
        return 2
    operations = given.names or list(OPERATIONS)
    try:
        kept = Kept(given.keep)
    except (OSError, ValueError) as err:
        print(f"third-party: --keep {given.keep}: {err}", file=sys.stderr)
        return 2
    return run_operations(operations, ways, given.budget, kept, rehearse=given.rehearse, as_json=given.json)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


# Steps ------------------------------------------------------------------------------------------------------------------


FIGURES = ("first step s", "step ms", "host ms", "peak MiB", "keys", "over best", "worst", "last loss", "from stock's")


class Kept:
    """Answers, in a file of JSON lines if one is named."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._found: dict[tuple[str, ...], dict[str, Any]] = {
            tuple(line["asked"]): line["found"] for line in map(json.loads, lines)
        }

    def answer(self, asked: tuple[str, ...], ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found before, else what is found now; what names a problem is asked for again the next time."""
        if asked not in self._found:
            self._found[asked] = ask()
            if self._file is not None and "problem" not in self._found[asked]:
                with self._file.open("a") as file:
                    file.write(json.dumps({"asked": asked, "found": self._found[asked]}) + "\n")
        return self._found[asked]


def run_operations(
    operations: Sequence[str], ways: Sequence[str], budget: str, kept: Kept, *, rehearse: bool, as_json: bool
) -> int:
    """Each operation in each way, a row for each pair as it is done."""
    failed, everything = False, []
    rows: list[tuple[str, ...]] = []
    for operation in operations:
        found: dict[str, Any] = {}
        for way in ways:
            asked = (operation, way, budget if way == "ours" else "", "rehearsed" if rehearse else "")
            found[way] = kept.answer(asked, partial(run_step, operation, way, budget, rehearse=rehearse))
            failed = failed or "problem" in found[way]
            rows.append((operation, way, *_figures_of(found[way], found.get("stock", {}))))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
        everything.append({"operation": operation, **found})
    if as_json:
        print_json(everything)
    else:
        print_table(("operation", "way", *FIGURES), rows, right=FIGURES)
    return int(failed)


def _figures_of(found: Mapping[str, Any], stock: Mapping[str, Any]) -> tuple[str, ...]:
    if "problem" in found:
        return found["problem"], *[""] * (len(FIGURES) - 1)
    ratios = list(over_best(stock, found).values()) if found is not stock else []
    figures = [f"{found[name]:.3g}" for name in ("first_s", "steady_ms", "host_ms")]
    keys = str(len(found["timings_ms"] if found is stock else found["chosen"]))
    mean = f"{math.exp(statistics.fmean(map(math.log, ratios))):.4f}" if ratios else ""
    worst = f"{max(ratios):.3f}" if ratios else ""
    losses = found["losses"]
    far = (
        [abs(a - b) / abs(b) for a, b in zip(losses, stock.get("losses", ()), strict=False)]
        if found is not stock
        else []
    )
    loss, apart = f"{losses[-1]:.4f}" if losses else "", f"{100 * max(far):.2g} %" if far else ""
    return *figures, f"{found['peak_mib']:.0f}", keys, mean, worst, loss, apart


def run_step(operation: str, way: str, budget: str, *, rehearse: bool) -> dict[str, Any]:
    """What `steps` answers in a process with empty caches; `problem` where it did not."""
    command = [sys.executable, "-m", "calibration.third_party.steps", operation, way, *["--rehearse"] * rehearse]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("FORECAST_AUTOTUNE_", "FLA_"))
            },
            "FORECAST_AUTOTUNE_DIR": folder,
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            **OURS.get(way, {"FORECAST_AUTOTUNE_BUDGET": budget}),
        }
        return answer_of(command, environment)


def over_best(stock: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, float]:
    """By key that both met: stock's time of the config that is used here, over its best."""
    ratios = {}
    for key, config in ours["chosen"].items():
        times = stock.get("timings_ms", {}).get(key, {})
        if math.isfinite(times.get(config, math.inf)):
            ratios[key] = times[config] / min(times.values())
    return ratios


# Lists ------------------------------------------------------------------------------------------------------------------


def list_packages(packages: Sequence[str], *, as_json: bool) -> int:
    """A row for each package, then why tuners are not reached and why modules are not imported."""
    found = [
        answer_of([sys.executable, "-m", "calibration.third_party.package_tuners", package], dict(os.environ))
        | {"package": package}
        for package in packages
    ]
    if as_json:
        print_json(found)
        return int(any("problem" in each for each in found))
    columns = (
        "package",
        "version",
        "kernels with a tuner",
        "of a class of its own",
        "reached",
        "not reached",
        "modules",
        "failed",
    )
    print_table(columns, [_row_of(each) for each in found], right=columns[2:])
    why_not = Counter((e["package"], t["why"]) for e in found for t in e.get("tuners", ()) if not t["ours"])
    reasons = Counter((e["package"], why) for e in found for why in e.get("missing", {}).values())
    for title, counted in (("not reached", why_not), ("modules that cannot be imported here", reasons)):
        if counted:
            print()
            print_table(
                ("package", title, "how many"),
                [(p, w, str(n)) for (p, w), n in counted.most_common()],
                right=("how many",),
            )
    return int(any("problem" in each for each in found))


def _row_of(found: Mapping[str, Any]) -> tuple[str, ...]:
    if "problem" in found:
        return found["package"], found["problem"], "", "", "", "", "", ""
    tuners = found["tuners"]
    reached = sum(tuner["ours"] for tuner in tuners)
    own = sum(not tuner["tuner"].startswith("triton.") for tuner in tuners)
    counts = (len(tuners), own, reached, len(tuners) - reached, found["modules"], len(found["missing"]))
    return found["package"], found["version"], *map(str, counts)


def answer_of(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The last line that a process prints, as JSON; else `problem`, with the last line of its errors."""
    paths = [str(REPOSITORY), environment.get("PYTHONPATH", "")]
    environment = {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"problem": f"it took more than {LIMIT_S:.0f} s"}
    except (IndexError, ValueError):
        told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and not a word"]
        return {"problem": told[-1][:200]}
    return answer


if __name__ == "__main__":
    sys.exit(main())
