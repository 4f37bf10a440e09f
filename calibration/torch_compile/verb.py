"""torch.compile's candidates for matrix products narrowed by forecasts, beside torch.compile as it is, on a GPU.

The ways:
    default, max-autotune, exhaustive    as torch.compile has them, the last with max-autotune's exhaustive list
    gemm                                 option max_autotune_gemm: of max-autotune what is about products
    0, 2, 4, 8                           `install(inductor=True)` with that option and budget; 0 is mode forecast
    4-max                                the same in mode max-autotune, which also tunes pointwise kernels, one config after
                                         another (coordinate descent), when they first run

Each way has a process of its own, and each operation is compiled in all ways one after the other, with caches and store
empty. What is compiled is timed on cold caches, in turns with eager code. Printed are the seconds of each first run, and its
time over that of the default way, both by eager code's time in the same process; then means; then where the seconds go. What
only a process's first compile takes does not count, in any way.

    python -m calibration inductor-report                        # 64 products in all ways but the exhaustive one
    python -m calibration inductor-report --exhaustive 6         # the first six at the end with the exhaustive list too
    python -m calibration inductor-report --products 0 --models  # three parts of models
    python -m calibration inductor-report --fp8                  # sixteen products of fp8
    python -m calibration inductor-report --only "addmm+gelu 2048x1408x6144 bf16" "mm 48x4096x2304 bf16"    # these, by name
    python -m calibration inductor-report --share 2/4 --limit-s 540 --keep two.jsonl    # every fourth, from the second on
    python -m calibration inductor-report --print one.jsonl two.jsonl                   # what was kept, without a GPU

Ctrl-C, and the limit, keep what --keep names; a later run goes on from there. Side by side on the GPUs of one host: a share
each, with CUDA_VISIBLE_DEVICES, and TORCHINDUCTOR_COMPILE_THREADS at its share of the cores.

Exit codes: 0 reported, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forecast_autotune.cli.output import print_json
from forecast_autotune.core.text import error_text
from forecast_autotune.errors import InvalidInputError

from ..command import positive, verb_parser
from ..paths import REPOSITORY
from ..rows import Row, append_row, is_number, read_rows
from .table import Found, print_found
from .ways import EXHAUSTIVE, STOCK, budget_of

WAYS = "default,max-autotune,gemm,0,2,4,8,4-max"
OPERATION_S = 300.0  # at most, of one operation in one way
READY_S = 180.0  # at most, until a process has compiled something
LAST_S = 5.0  # that a process is given to end


def main(words: Sequence[str] | None = None) -> int:
    """The verb."""
    parser = verb_parser("inductor-report", __doc__)
    parser.add_argument(
        "--products", type=int, default=64, metavar="N", help="how many, up to 64, or 16 of fp8 (default: all)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="products and parts of models, by name")
    parser.add_argument("--fp8", action="store_true", help="products of fp8 instead")
    parser.add_argument("--models", action="store_true", help="three parts of models, before the products")
    parser.add_argument("--ways", default=WAYS, help="of those above, any budgets (default: %(default)s)")
    parser.add_argument(
        "--exhaustive", type=positive, default=0, metavar="N", help="so many products, at the end, that way too"
    )
    parser.add_argument(
        "--share", type=_share, default=(1, 1), metavar="I/N", help="every N-th operation from the I-th on"
    )
    parser.add_argument("--limit-s", type=float, default=float("inf"), metavar="S", help="of everything")
    parser.add_argument(
        "--seconds",
        type=float,
        default=OPERATION_S,
        metavar="S",
        help="of one operation in one way (default: %(default).0f)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="JSON lines, written as they come; a later run goes on"
    )
    parser.add_argument("--print", nargs="+", type=Path, metavar="FILE", help="only print what these have kept")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    given = parser.parse_args(words)
    if given.print:
        if missing := [str(file) for file in given.print if not file.exists()]:
            print(f"inductor-report: --print {missing[0]}: there is no such file", file=sys.stderr)
            return 2
        try:
            kept = read_kept(given.print)
        except (OSError, InvalidInputError) as err:
            print(f"inductor-report: {error_text(err)}", file=sys.stderr)
            return 2
        return _print(kept, as_json=given.json)
    ways = given.ways.split(",")
    if unknown := [way for way in ways if way not in STOCK and budget_of(way) is None]:
        print(f"inductor-report: --ways {unknown[0]!r} is none of {', '.join(STOCK)}, and no budget", file=sys.stderr)
        return 2
    from .operations import MODELS, fp8_products, products

    if given.fp8 and given.only:
        print("inductor-report: --fp8 lists products, and so does --only: give one of them", file=sys.stderr)
        return 2
    chosen = (fp8_products() if given.fp8 else products())[: max(0, given.products)]
    names = [product.name for product in chosen]
    if given.only:
        known = {*MODELS, *(product.name for product in (*products(), *fp8_products()))}
        if unknown := [name for name in given.only if name not in known]:
            print(f"inductor-report: --only {unknown[0]!r} is none of {', '.join(sorted(known))}", file=sys.stderr)
            return 2
        names = given.only
    import torch

    if not torch.cuda.is_available():
        print("inductor-report: there is no GPU here, and what is compared are times on one", file=sys.stderr)
        return 2
    wanted = tasks([*(MODELS if given.models else ()), *names], ways, names[: given.exhaustive], given.share)
    try:
        found = collect(wanted, given.keep, given.limit_s, given.seconds)
    except (OSError, InvalidInputError) as err:
        print(f"inductor-report: {error_text(err)}", file=sys.stderr)
        return 2
    return _print(found, as_json=given.json)


def _share(text: str) -> tuple[int, int]:
    which, _, of = text.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r}: give it as 1/2, or 2/2")
    return int(which), int(of)


def _print(found: dict[str, Found], *, as_json: bool) -> int:
    if as_json:
        print_json(found)
    else:
        print_found(found)
    return int(any("problem" in each for of_one in found.values() for each in of_one.values()))


def tasks(
    names: Sequence[str], ways: Sequence[str], exhaustive: Iterable[str], share: tuple[int, int]
) -> list[tuple[str, str]]:
    """What to compile in which way, in this order: all ways of an operation one after the other, but long lists last."""
    which, of = share
    mine = list(names)[which - 1 :: of]
    last = [name for name in exhaustive if name in mine]
    return [*((name, way) for name in mine for way in ways), *((name, EXHAUSTIVE) for name in last)]


def read_kept(files: Iterable[Path]) -> dict[str, Found]:
    """What files have kept, the last word on each; a problem counts where there is nothing else.

    Raises:
        OSError, InvalidInputError: as `read_rows`.
    """
    found: dict[str, Found] = {}
    for file in files:
        for kept in read_rows(file, _is_found, cut_off=True):
            of_one = found.setdefault(kept["operation"], {})
            if "problem" not in kept or "us" not in of_one.get(kept["way"], {}):
                of_one[kept["way"]] = kept
    return found


def _is_found(row: Row) -> bool:
    if not isinstance(row.get("operation"), str) or not isinstance(row.get("way"), str):
        return False
    if "problem" in row:
        return isinstance(row["problem"], str) and "us" not in row
    positive = all(is_number(row.get(name)) and row[name] > 0 for name in ("us", "eager_us", "compile_s"))
    phases = row.get("phases", {})
    if not positive or not isinstance(phases, dict):
        return False
    return all(map(is_number, (row.get("timed"), row.get("own_s", 0.0), *phases.values())))


def collect(
    wanted: Sequence[tuple[str, str]],
    keep: Path | None,
    limit_s: float = float("inf"),
    operation_s: float = OPERATION_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Found]:
    """What is found of each operation in each way, as far as the limit allows; what was kept is not asked for again."""
    found = read_kept([keep]) if keep is not None and keep.exists() else {}
    ends = clock() + limit_s
    workers: dict[str, Worker] = {}
    left = [(name, way) for name, way in wanted if "us" not in found.get(name, {}).get(way, {})]
    try:
        for way in dict.fromkeys(way for _, way in left if way != EXHAUSTIVE):
            workers[way] = Worker(way)  # all at once: each takes half a minute to be ready
        for name, way in left:
            if clock() >= ends:
                break
            worker = workers.get(way)
            if worker is None or not worker.lives:
                worker = workers[way] = Worker(way)
            try:
                each = worker.compile(name, min(operation_s, ends - clock()))
            except TimeoutError:
                if clock() >= ends:
                    break
                each = {"operation": name, "problem": "it took too long"}
            each["way"] = way
            found.setdefault(name, {})[way] = each
            print(_told(each), file=sys.stderr, flush=True)
            if keep is not None:
                append_row(keep, each)
    except KeyboardInterrupt:
        pass
    finally:
        for worker in workers.values():
            worker.end()
    return found


class Worker:
    """A process that compiles operations in one way."""

    def __init__(self, way: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it lasts as long as the process
        self._process: Any = subprocess.Popen(
            command_of(way), env=environment_of(way), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True,
        )  # fmt: skip
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._machine: dict[str, Any] | None = None  # its first answer
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._answers.put(json.loads(line))
        self._answers.put(None)

    @property
    def lives(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def compile(self, name: str, limit_s: float) -> dict[str, Any]:
        """What it finds of one operation; a `problem` if it ends.

        Raises:
            TimeoutError: it was ended, for it took longer than the limit, or was not ready in time.
        """
        try:
            if self._machine is None:
                self._machine = self._answer(READY_S)
            print(name, file=self._process.stdin, flush=True)
            return {**self._answer(limit_s), **self._machine}
        except (BrokenPipeError, EOFError):
            return {"operation": name, "problem": self.end()[:300]}

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=max(limit_s, 0.0))
        except queue.Empty:
            self.end()
            raise TimeoutError from None
        if answer is None:
            raise EOFError
        return answer

    def end(self) -> str:
        """Have it end: by itself within moments, so that its compile workers end too, else now. Returns its last words."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._errors.closed:
            return ""
        with self._errors as errors:
            errors.seek(0)
            return (errors.read().strip().splitlines() or ["it ended without a word"])[-1]


def environment_of(way: str) -> dict[str, str]:
    """A process's environment; its compile workers do not rest while another way has its turn."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORECAST_AUTOTUNE_")}
    if (budget := budget_of(way)) is not None:
        environment |= {"FORECAST_AUTOTUNE_MODE": "forecast"} if budget == "0" else {"FORECAST_AUTOTUNE_BUDGET": budget}
    environment["TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL"] = "0"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), environment.get("PYTHONPATH", "")]))
    return environment


def command_of(way: str) -> list[str]:
    """The process that compiles operations in one way."""
    return [sys.executable, "-m", "calibration.torch_compile.compiles", way]


def _told(found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return f"{found['way']}: {found['operation']}: {found['problem']}"
    figures = (
        f"{found['compile_s']:.1f} s, {found['us']:.1f} us, eager {found['eager_us']:.1f} us, {found['timed']} timed"
    )
    return f"{found['way']}: {found['operation']}: {figures}, {100 * found['far']:.2g} % apart"


if __name__ == "__main__":
    sys.exit(main())
