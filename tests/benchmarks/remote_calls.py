"""What the first call of a key costs with a remote store that is well, slow, silent and dead, and with a pack.

    python tests/benchmarks/remote_calls.py

Fresh processes call `fa.variants` functions through the front door, in mode `cached`, so that nothing but looking up,
forecasting and launching is timed. The storage is rclone speaking S3's protocol on loopback. Prints one line for each state
of it, in milliseconds: the first call of a process, which loads the model that forecasts, the first calls of further
keys, and what the process takes to end. With the pack, a tree on this disk, every key is decided from it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support")]

from s3_server import BUCKET, Faults, faulty_proxy, s3_environment, s3_server  # noqa: E402

STATES = ("no remote store", "well", "slow", "silent", "dead", "a pack")
SLOW_S = 2.0  # for each answer
FUNCTIONS, KEYS = 5, 20


def child() -> None:
    """Time first calls, and print them as JSON."""
    import torch

    import forecast_autotune as fa

    def one(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    def two(x: torch.Tensor) -> torch.Tensor:
        return 1.0 + x

    times_ms = []
    for number in range(FUNCTIONS):
        tuned = fa.variants([one, two], key=lambda x: (x.numel(),), name=f"function {number}")
        for n in range(1, KEYS + 1):
            x = torch.ones(n)
            began = time.perf_counter()
            tuned(x)
            times_ms.append(1000 * (time.perf_counter() - began))
        assert os.environ.get("EXPECTED", "") in ("", *(d.basis for d in tuned.decisions.values()))
    print(json.dumps(times_ms), flush=True)


def packed(folder: Path) -> dict[str, str]:
    """The environment of a process that has a pack of all that it calls: tuned here once, and written as a tree."""
    tree, store = folder / "tree", folder / "tuned"
    if not tree.exists():
        tuning = {
            "FORECAST_AUTOTUNE_MODE": "tune",
            "FORECAST_AUTOTUNE_BUDGET": "2",
            "FORECAST_AUTOTUNE_DIR": str(store),
        }
        command = [sys.executable, "-W", "ignore", __file__, "--child"]
        subprocess.run(command, env={**os.environ, **tuning}, check=True, capture_output=True)
        exporting = [sys.executable, "-m", "forecast_autotune", "export", f"{tree}/", "--dir", str(store)]
        subprocess.run(exporting, check=True, capture_output=True)
    return {"FORECAST_AUTOTUNE_PACKS": str(tree), "EXPECTED": "measured"}


@contextmanager
def remote(state: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that uses a storage in this state."""
    setting = {"FORECAST_AUTOTUNE_REMOTE_STORE": f"s3://{BUCKET}/tuning,trusted"}
    with ExitStack() as stack:
        if state == "no remote store":
            yield {}
            return
        if state == "a pack":
            yield packed(folder.parents[1])
            return
        if state in ("silent", "dead"):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            if state == "silent":  # connections are taken, and nobody answers
                taken.listen(1024)
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        else:
            server = stack.enter_context(s3_server(folder))
            faults = Faults(slow=1.0, slow_s=SLOW_S) if state == "slow" else Faults()
            url = stack.enter_context(faulty_proxy(server, faults))
        yield {**setting, **s3_environment(url)}


def main() -> None:
    """Print a line for each state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=20, help="for each state (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child()
        return
    columns = ("remote store", "processes", "first p50", "first max", "keys", "p50", "p99", "max", "end p50")
    print(f"{columns[0]:16}" + "".join(f"{column:>11}" for column in columns[1:]))
    with tempfile.TemporaryDirectory() as folder:
        first: dict[str, list[float]] = {state: [] for state in STATES}
        further: dict[str, list[float]] = {state: [] for state in STATES}
        ends: dict[str, list[float]] = {state: [] for state in STATES}
        for number in range(arguments.processes):  # in turns: what else runs here disturbs all alike
            for state in STATES:
                place = Path(folder) / f"{state} {number}"
                with remote(state, place / "s3") as variables:
                    environment = {
                        **os.environ,
                        "FORECAST_AUTOTUNE_MODE": "cached",
                        "FORECAST_AUTOTUNE_DIR": str(place),
                        **variables,
                    }
                    command = [sys.executable, "-W", "ignore", __file__, "--child"]
                    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                        assert process.stdout is not None
                        times_ms = json.loads(process.stdout.readline())
                        began = time.perf_counter()
                        process.wait()
                        ends[state].append(1000 * (time.perf_counter() - began))
                first[state].append(times_ms[0])
                further[state] += times_ms[1:]
    for state in STATES:
        a, b = sorted(first[state]), sorted(further[state])
        end_ms = sorted(ends[state])[len(a) // 2]
        figures = [a[len(a) // 2], a[-1], float(len(b)), b[len(b) // 2], b[int(0.99 * len(b))], b[-1], end_ms]
        print(f"{state:16}{len(a):11}" + "".join(f"{figure:11.4g}" for figure in figures))


if __name__ == "__main__":
    main()
