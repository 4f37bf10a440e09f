"""Other people's packages under `install()`: `python -m calibration third-party [OPERATION …]`, and `--list [PACKAGE …]`.

With operations of flash-linear-attention, by default all: each runs in processes with empty caches, tuned by Triton,
untuned (each key's first config), under `install()`, in mode online with half a core to learn, and warmed (decided
before; then `warm` fills an empty cache of Triton's). Printed are the seconds until the ends of the first step, of
step 20 and of the last, the milliseconds of a step in the last third, of the host's part of it and of the device's,
the step and the second by which every key was measured, the most memory, the time of what ours chose over the best by
Triton's own clock (geometric mean over keys, and worst), and of a model in training its last loss, and how far at
most a loss is from stock's. With `--until S`, mode online goes on until every key is measured, for at most so many
seconds, and then makes as many steps again: its last loss is of a later step. This needs a GPU; --rehearse tries the
same without one, at small sizes, and its times mean nothing.

With --list no GPU is needed: each package's modules are imported, and its tuners are counted: those that are decided here,
and those that are not, with the reason.

Exit codes: 0 reported, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.core.text import error_text
from forecast_autotune.errors import InvalidInputError

from ..answers import LIMIT_S, AnswerFile, answer_of
from ..command import positive, verb_parser
from .steps import STEPS, WAYS

PACKAGES = ("fla", "liger_kernel", "flag_gems", "torchao", "unsloth", "vllm", "sglang")
WAYS_BY_DEFAULT = "stock,untuned,ours"
OF_BUDGET = ("ours", "online", "warmed")
MODES = {
    "untuned": {"FORECAST_AUTOTUNE_MODE": "first"},
    "online": {"FORECAST_AUTOTUNE_MODE": "online", "FORECAST_AUTOTUNE_ONLINE_CPU": "50%"},
}


def main(words: Sequence[str] | None = None) -> int:
    """The verb."""
    from .operations import OPERATIONS

    parser = verb_parser("third-party", __doc__)
    parser.add_argument("names", nargs="*", metavar="OPERATION|PACKAGE", help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--list", action="store_true", help=f"list tuners; of {', '.join(PACKAGES)} or what is named")
    parser.add_argument("--ways", default=WAYS_BY_DEFAULT, help=f"of {', '.join(WAYS)} (default: %(default)s)")
    parser.add_argument("--budget", default="8", metavar="B", help="as FORECAST_AUTOTUNE_BUDGET (default: 8)")
    parser.add_argument("--steps", type=positive, default=STEPS, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument(
        "--until",
        type=positive,
        default=0,
        metavar="S",
        help="seconds after which mode online stops, its keys measured or not",
    )
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
        kept = AnswerFile(given.keep)
    except (OSError, InvalidInputError) as err:
        print(f"third-party: --keep: {error_text(err)}", file=sys.stderr)
        return 2
    how = Run(budget=given.budget, steps=given.steps, until_s=given.until, rehearse=given.rehearse)
    return run_operations(operations, ways, how, kept, as_json=given.json)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


# Steps ------------------------------------------------------------------------------------------------------------------


FIGURES = (
    "first step s", "20 steps s", "all s", "step ms", "host ms", "device ms", "measured at", "after s", "peak MiB", "keys",
    "over best", "worst", "last loss", "from stock's",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all operations and ways have in common."""

    budget: str
    steps: int
    until_s: int
    rehearse: bool

    def asked(self, operation: str, way: str) -> tuple[str, ...]:
        """What an answer is kept under."""
        steps = () if self.steps == STEPS else (str(self.steps),)
        until = (f"until {self.until_s} s",) if self.until_s and way == "online" else ()
        mode = tuple(f"{name}={value}" for name, value in MODES.get(way, {}).items() if not name.endswith("_MODE"))
        return (
            operation,
            way,
            self.budget if way in OF_BUDGET else "",
            "rehearsed" if self.rehearse else "",
            *steps,
            *until,
            *mode,
        )


def run_operations(operations: Sequence[str], ways: Sequence[str], how: Run, kept: AnswerFile, *, as_json: bool) -> int:
    """Each operation in each way, a row for each pair as it is done."""
    failed, everything = False, []
    rows: list[tuple[str, ...]] = []
    for operation in operations:
        found: dict[str, Any] = {}
        for way in ways:
            found[way] = kept.answer(how.asked(operation, way), partial(run_step, operation, way, how))
            failed = failed or "problem" in found[way]
            figures = _figures_of(found[way], found.get("stock", {}))
            print(" ".join((operation, way, *figures)), file=sys.stderr, flush=True)
        rows += [(operation, way, *_figures_of(each, found.get("stock", {}))) for way, each in found.items()]
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
    figures = [f"{found[name]:.3g}" for name in ("first_s", "early_s", "all_s", "steady_ms", "host_ms", "device_ms")]
    figures += (
        [str(found["measured_at"]), f"{found['measured_keys'][-1][0]:.3g}"] if found["measured_at"] else ["-", "-"]
    )
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


def run_step(operation: str, way: str, how: Run) -> dict[str, Any]:
    """What `steps` answers in a process with empty caches; `problem` where it did not."""
    command = [sys.executable, "-m", "calibration.third_party.steps", operation, way, *["--rehearse"] * how.rehearse]
    all_steps = [*command, "--steps", str(how.steps), *["--until", str(how.until_s)] * (way == "online")]
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "triton")
        environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("FORECAST_AUTOTUNE_", "FLA_"))
            },
            "FORECAST_AUTOTUNE_DIR": folder,
            "TRITON_CACHE_DIR": cache,
            **MODES.get(way, {}),
            **({"FORECAST_AUTOTUNE_BUDGET": how.budget} if way in OF_BUDGET else {}),
        }
        if way != "warmed":
            return answer_of(all_steps, environment, limit_s=LIMIT_S + how.until_s)
        decided = answer_of([*command, "--steps", "1"], environment)
        if "problem" in decided:
            return decided
        shutil.rmtree(cache)
        warm = [sys.executable, "-m", "forecast_autotune", "warm", "--json", *["--hardware", "H200"] * how.rehearse]
        began = time.perf_counter()
        warmed: Any = answer_of(warm, environment)
        warm_s = time.perf_counter() - began
        results = Counter(row["result"] for row in warmed) if isinstance(warmed, list) else warmed
        return {**answer_of(all_steps, environment), "warm_s": warm_s, "warmed": results}


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


if __name__ == "__main__":
    sys.exit(main())
