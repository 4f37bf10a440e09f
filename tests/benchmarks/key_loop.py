"""A program that meets ever new keys of one kernel, with `gc` off: does it grow? `python tests/benchmarks/key_loop.py`.

Serving does that: each length of a batch is a key. Every key comes with tensors of its own, dropped after two calls, so that
whatever still holds them is seen. Of the keys, a few are measured, some decided by forecast into the store, and the rest run
the first config, which decides nothing; all of them stand in the kernel's key table, which is bounded. From then on resident
memory and the GPU's are to stay as they are.

Prints a JSON line at each interval and at last whether both were flat. Exit codes: 0 they were, or too few keys were met to
tell; 1 memory grew, or a stored key that had left the table was not recalled; 2 no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from calibration.evaluate.side_by_side import device, has_device, own_environment, own_store, surroundings
from forecast_autotune import autotune
from forecast_autotune.frontends.key_table import MAX_KEYS
from forecast_autotune.frontends.triton.simulated_driver import rehearsal

KEYS = 100_000
MINUTES = 8.0
INTERVALS = 40
MEASURED = 0.002  # shares of the keys
STORED = 0.02  # a forecast takes 5 to 45 ms
SETTLED = 1.25  # times the bound, until memory is to be flat
FLAT_MIB = {"resident_mib": 8.0, "gpu_mib": 1.0}  # 90,000 keys that stay, at 400 bytes each, are 34 MiB
ELEMENTS = 1 << 14  # of each tensor: 100,000 pairs that stay are 12 GiB
BLOCKS = (256, 512, 1024, 2048)

SETTINGS = {
    "measured": {"FORECAST_AUTOTUNE_MODE": "tune", "FORECAST_AUTOTUNE_BUDGET": "2"},
    "stored": {"FORECAST_AUTOTUNE_MODE": "tune", "FORECAST_AUTOTUNE_BUDGET": "0"},
    "first": {"FORECAST_AUTOTUNE_MODE": "first", "FORECAST_AUTOTUNE_BUDGET": "0"},
    "recalled": {
        "FORECAST_AUTOTUNE_MODE": "strict",
        "FORECAST_AUTOTUNE_BUDGET": "0",
    },  # an error where nothing is stored
}


@triton.jit  # type: ignore[untyped-decorator]
def doubled(y_ptr, x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def call(kernel: Any, key: int, how: str) -> None:
    """Meet a key under the settings of its kind, with tensors that nobody else holds."""
    os.environ.update(SETTINGS[how])
    x = torch.empty(ELEMENTS, device=device())
    y = torch.empty_like(x)
    for _ in range(2):
        # Multiples of 16, which are compiled alike.
        kernel[lambda knobs: (triton.cdiv(ELEMENTS, knobs["BLOCK"]),)](y, x, 16 * (key + 1))


def kind(key: int, measured: float, stored: float) -> str:
    """How a key is decided: spread evenly, so that every stretch of keys holds all kinds."""
    if int((key + 1) * measured) > int(key * measured):
        return "measured"
    return "stored" if int((key + 1) * stored) > int(key * stored) else "first"


def memory() -> dict[str, float | None]:
    """This process's resident memory, and what its tensors take of the GPU's; None where there is none."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gpu = torch.cuda.memory_allocated() / 2**20 if device() == "cuda" else None
    return {"resident_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "gpu_mib": gpu}


def growth(samples: Sequence[Mapping[str, Any]], bound: int) -> dict[str, float] | None:
    """By how many MiB each memory grew from when the table was full to the end; None if too few keys were met to tell."""
    settled = [sample for sample in samples if sample["keys"] >= SETTLED * bound]
    if len(settled) < 2 or settled[-1]["keys"] < 2 * SETTLED * bound:
        return None
    first, last = settled[0], settled[-1]
    return {name: last[name] - first[name] for name in FLAT_MIB if first[name] is not None}


def loop(given: argparse.Namespace) -> int:
    """Meet the keys, and tell how memory goes."""
    kernel = autotune(configs=[triton.Config({"BLOCK": block}) for block in BLOCKS], key=["n"])(doubled)
    for key, how in enumerate(SETTINGS):  # what is imported and made once
        if how != "recalled":
            call(kernel, given.keys + key, how)
    samples: list[dict[str, Any]] = []
    began = time.perf_counter()
    gc.collect()
    gc.disable()
    first_measured = None
    every = max(1, given.keys // INTERVALS)
    met = 0
    for key in range(given.keys):
        how = kind(key, given.measured, given.stored)
        first_measured = key if first_measured is None and how == "measured" else first_measured
        call(kernel, key, how)
        met = key + 1
        spent_s = time.perf_counter() - began
        late = spent_s > 60 * given.minutes
        if met % every == 0 or met == given.keys or late:
            if device() == "cuda":
                torch.cuda.synchronize()
            ms = (spent_s - (samples[-1]["seconds"] if samples else 0.0)) * 1e3
            ms /= met - (samples[-1]["keys"] if samples else 0)
            samples.append({"keys": met, "seconds": spent_s, "ms_a_key": ms, "in_table": len(kernel.cache), **memory()})
            print(json.dumps(samples[-1]), flush=True)
        if late:
            break
    gc.enable()
    recalled = None if first_measured is None or met < SETTLED * MAX_KEYS else recalls(kernel, first_measured)
    grown = growth(samples, MAX_KEYS)
    flat = None if grown is None else all(mib <= FLAT_MIB[name] for name, mib in grown.items())
    verdict = {"bound": MAX_KEYS, "grown_mib_since": grown, "flat": flat, "recalled": recalled}
    print(json.dumps(verdict))
    print(
        f"{met} keys: fewer than it takes to tell; the table holds {MAX_KEYS}"
        if flat is None
        else f"{met} keys, the table holds {MAX_KEYS}: memory {'is flat' if flat else 'GROWS'} once it is full"
    )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**surroundings(), "samples": samples, **verdict}, indent=1))
    return 1 if flat is False or recalled is False else 0


def recalls(kernel: Any, key: int) -> bool:
    """Whether a key that has left the table long ago is answered from the store."""
    from forecast_autotune.errors import CacheMissError

    try:
        call(kernel, key, "recalled")
    except CacheMissError:
        return False
    return True


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=KEYS, metavar="N", help=f"how many to meet ({KEYS})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"to end after at the latest ({MINUTES:.0f})")
    parser.add_argument("--measured", type=float, default=MEASURED, metavar="SHARE", help=f"of the keys ({MEASURED})")
    parser.add_argument(
        "--stored", type=float, default=STORED, metavar="SHARE", help=f"of the keys, unmeasured ({STORED})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen there too")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: nothing is computed, a launch lasts 20 us")
    given = parser.parse_args(words)
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="key_loop_", ignore_cleanup_errors=True))
        stack.enter_context(own_environment(Path(cache)))
        stack.enter_context(own_store())
        if given.rehearse:
            stack.enter_context(rehearsal("H200", 20.0))
        if not has_device():
            print("no GPU is to be had: torch sees no CUDA device here; --rehearse needs none", file=sys.stderr)
            return 2
        return loop(given)


if __name__ == "__main__":
    raise SystemExit(main())
