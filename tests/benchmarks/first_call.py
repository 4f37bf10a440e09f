"""What the first call of a key costs in a fresh container that has a copy of a pack: nothing is measured.

    python tests/benchmarks/first_call.py [--processes 10] [--profile Triton]

A process tunes some kernels and exports a pack. Fresh processes then start with an empty store and that pack, import torch
and the kernels, and call: functions (`fa.variants`), a C++ extension (`load_inline`; what it builds stays in the store's
folder, as an image keeps it), and a Triton kernel on the simulated driver. Prints for each, in milliseconds: the decision of
the first key of a process, and what of it was computing; that of further keys; the first call as a whole, which compiles the
config that was decided, or loads what was built; and importing this package and the kernels once torch is there.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support")]

KINDS = ("functions", "C++", "Triton")
KEYS = 5


def calls_of(kind: str) -> Callable[[int], None]:
    """A function that calls a kernel of a kind at a key."""
    import torch

    import forecast_autotune as fa

    if kind == "functions":

        def one(x: torch.Tensor, *, n: int) -> torch.Tensor:
            return x + 1.0

        function = fa.variants([(one, [{"n": n} for n in range(16)])], key=lambda x: (x.numel(),), name="one")
        return lambda n: function(torch.ones(n))
    if kind == "C++":
        from toy import BINDING, KERNEL

        toy = fa.load_inline(
            "first_call", cpp_sources=BINDING, kernel_sources=KERNEL, functions=["scale_into"],
            no_implicit_headers=True, space=[{"MODE": "plain"}, {"MODE": "slow"}], key=lambda out, *_: (out.numel(),),
        )  # fmt: skip
        return lambda n: toy.scale_into(torch.zeros(64 * n), torch.ones(64 * n), 2.0)
    from rehearsed import call, configs, tuned

    kernel = tuned(configs=configs(warps=(1, 2, 4, 8)))
    return lambda n: call(kernel, n)


def child(kind: str, profile: bool) -> None:
    """Call, and print how long deciding and calling took, as JSON."""
    import torch  # noqa: F401

    began = time.perf_counter()
    from forecast_autotune.frontends import dispatch

    decide, decided_ms, computed_ms = dispatch.Dispatcher._decide, list[float](), list[float]()
    call = calls_of(kind)
    imported_ms = 1000 * (time.perf_counter() - began)

    profiler = cProfile.Profile()

    def timed(*given: Any) -> Any:
        profiled = profiler if profile and not decided_ms else nullcontext()
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            with profiled:
                return decide(*given)
        finally:
            decided_ms.append(1000 * (time.perf_counter() - began))
            computed_ms.append(1000 * (time.process_time() - began_cpu))

    dispatch.Dispatcher._decide = timed  # type: ignore[method-assign]
    called_ms = []
    playing = importlib.import_module("rehearsed").playing if kind == "Triton" else nullcontext
    with playing():
        for key in range(1, KEYS + 1):
            began = time.perf_counter()
            call(key)
            called_ms.append(1000 * (time.perf_counter() - began))
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumtime").print_stats(60)
    assert len(decided_ms) == KEYS, "each key was decided once"
    print(
        json.dumps({"import": imported_ms, "decided": decided_ms, "computed": computed_ms, "called": called_ms}),
        flush=True,
    )


def run(kind: str, folder: Path, changes: dict[str, str], *words: str) -> Any:
    """What a fresh process says."""
    environment = {
        **os.environ,
        "FORECAST_AUTOTUNE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        **changes,
    }
    command = [sys.executable, "-W", "ignore", __file__, "--child", kind, *words]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])  # the C++ kernel prints too


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10, help="for each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--profile", choices=KINDS, help="print where the time goes, of one process")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, bool(arguments.profile))
        return
    columns = ("kind", "processes", "first decided", "most", "of it CPU", "further", "most", "first call", "import")
    print(f"{columns[0]:10}" + "".join(f"{column:>14}" for column in columns[1:]))
    for kind in (arguments.profile,) if arguments.profile else arguments.kinds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run(kind, folder / "tuned", {"FORECAST_AUTOTUNE_BUDGET": "2"})
            pack = folder / "pack.jsonl"
            exporting = [sys.executable, "-m", "forecast_autotune", "export", str(pack), "--dir", str(folder / "tuned")]
            subprocess.run(exporting, check=True, capture_output=True)
            fresh = folder / "tuned"
            (fresh / "store.sqlite3").unlink()
            changes = {"FORECAST_AUTOTUNE_PACKS": str(pack), "FORECAST_AUTOTUNE_MODE": "strict"}
            words = ("--profile", kind) if arguments.profile else ()
            told = [run(kind, fresh, changes, *words) for _ in range(1 if arguments.profile else arguments.processes)]
        first = sorted(each["decided"][0] for each in told)
        further = sorted(ms for each in told for ms in each["decided"][1:])
        calls, imports = (sorted(ms) for ms in zip(*((t["called"][0], t["import"]) for t in told), strict=True))
        computed = sorted(each["computed"][0] for each in told)
        figures = [*_middle_and_most(first), _middle_and_most(computed)[0], *_middle_and_most(further)]
        figures += [_middle_and_most(ms)[0] for ms in (calls, imports)]
        print(f"{kind:10}{len(told):14}" + "".join(f"{figure:14.3g}" for figure in figures))


def _middle_and_most(sorted_ms: list[float]) -> tuple[float, float]:
    return sorted_ms[len(sorted_ms) // 2], sorted_ms[-1]


if __name__ == "__main__":
    main()
