"""A kernel of the suite's form that needs no compiler, for tests of recording; run as a program, it records itself."""

# ruff: noqa: N803  # knobs are written in capitals
from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from kernel_suite import Case, Output, SuiteKernel, Variant

from calibration.record import worker
from forecast_autotune import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.errors import InvalidInputError


def at_once(x: Any, out: Any, *, WAIT: int) -> None:
    """Double the input; the more it waits, the slower."""
    time.sleep(WAIT * 1e-3)
    out.copy_(x * 2)


def in_parts(x: Any, out: Any, *, PARTS: int) -> None:
    """Double the input part by part: wrong with 3 parts, refused with 7; with 5 the process dies if asked to."""
    if PARTS == 7:
        raise InvalidInputError("7 parts are no use here")
    if PARTS == 5 and os.environ.get("TOY_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    if PARTS == 5 and (once := os.environ.get("TOY_DIES_ONCE")) and not os.path.exists(once):
        open(once, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    for mine, to in zip(x.chunk(PARTS), out.chunk(PARTS), strict=True):
        time.sleep(1e-3)
        to.copy_(mine * (3 if PARTS == 3 else 2))


TOY = SuiteKernel(
    name="toy",
    variants=(
        Variant(
            name="at_once",
            launch=at_once,
            space=Space([{"WAIT": n} for n in (6, 1, 2, 3, 4, 5, 7, 8)], roles={"WAIT": "tile"}),
            functions=(),
        ),
        Variant(
            name="in_parts",
            launch=in_parts,
            space=Space([{"PARTS": n} for n in (2, 3, 4, 5, 6, 7, 8)], roles={"PARTS": "tile"}),
            functions=(),
        ),
    ),
    outputs=(Output(name="out", rtol=1e-6, atol=0.0),),
    cases=(
        Case(name="small", sizes={"n": 840}),
        Case(name="large", sizes={"n": 8400}),
        Case(name="short", sizes={"n": -1}),
    ),
    corners=(),
    make_inputs=lambda case, seed, device: _inputs(case.sizes["n"], seed, device),
    reference=lambda x, out: (x * 2,),
    work=lambda x, out: Work(flops=float(x.numel()), bytes=8.0 * x.numel()),
)


def _inputs(n: int, seed: int, device: str) -> tuple[Any, ...]:
    if n < 0:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 900.00 GiB")
    x = torch.randint(1, 100, (n,), generator=torch.Generator(device).manual_seed(seed))
    # Integers: an answer that lies there already cannot be told from one written.
    return x, torch.full_like(x, -(2**63))


if __name__ == "__main__":
    worker.recordable = lambda kind, corpus: {"toy": TOY}
    worker.serve(sys.argv[1])
