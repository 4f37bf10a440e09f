"""What listing costs in a remote store of a million segments: of one program, as a launch has it done, and of all.

    python tests/benchmarks/fleet_listing.py [--segments 1000000] [--storage file|s3]

The storage is a folder, or rclone speaking S3's protocol. The segments are empty, for a listing opens none. Prints
milliseconds, and how many requests each would be to a storage that lists 1,000 objects a request, as S3 does.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

from s3_server import BUCKET, s3_environment, s3_server  # noqa: E402

from forecast_autotune.core.digest import digest  # noqa: E402
from forecast_autotune.remote.location import ENDING, LAYOUT, Location  # noqa: E402

PAGE = 1_000
PRODUCTS, OF_A_PROGRAM = 5, 100
LOOKS = 100


def main() -> None:
    """Write the segments, and print what listing them takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--storage", choices=("file", "s3"), default="file")
    arguments = parser.parse_args()
    products = [digest("product", str(n)) for n in range(PRODUCTS)]
    programs = [digest("program", str(n)) for n in range(arguments.segments // (PRODUCTS * OF_A_PROGRAM))]
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"file://{name}"
        if arguments.storage == "s3":
            server = stack.enter_context(s3_server(Path(name)))
            os.environ.update(s3_environment(server.url))
            name, url = str(server.folder / BUCKET), f"s3://{BUCKET}"
        began = time.perf_counter()
        for product in products:
            for program in programs:
                folder = Path(name) / LAYOUT / product / program
                folder.mkdir(parents=True)
                for number in range(OF_A_PROGRAM):
                    (folder / f"{digest(program, str(number))}{ENDING}").touch()
        count = len(products) * len(programs) * OF_A_PROGRAM
        print(f"{count:,} segments of {len(programs):,} programs on {PRODUCTS} products, in {_since(began):.0f} s")
        location, draw = Location(url), random.Random(1)
        folders = [(draw.choice(products), draw.choice(programs)) for _ in range(LOOKS)]
        each = sorted(_timed(lambda f=f: location.segments(*f))[1] for f in folders)  # type: ignore[misc]
        middle = statistics.median(each)
        print(f"a program's {OF_A_PROGRAM}: median {middle:.2f} ms, most {each[-1]:.2f} ms; 1 request")
        print(f"a program that nobody has: {_timed(lambda: location.segments(products[0], digest('none')))[1]:.2f} ms")
        print(f"the products: {_timed(location.hardware)[1]:.2f} ms; 1 request")
        found, took_ms = _timed(location.all_segments)
        assert len(found) == count
        print(f"all, for commands: {took_ms / 1e3:.1f} s; {-(-count // PAGE):,} requests")


def _timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    found = ask()
    return found, 1e3 * _since(began)


def _since(began: float) -> float:
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
