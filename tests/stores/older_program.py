# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""A kernel tuned by the version whose digests saw no heuristics: `programs/older_program.sqlite3` is what it stored.

Written by `python -c "from stores.older_program import tune; tune()"` in the folder `tests`, with that version on the path
and FORECAST_AUTOTUNE_DIR naming an empty folder. It is not written anew.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

TIMES = {fa.Config({"num_warps": w}): 20_000.0 / w for w in (1, 2, 4)}


@fa.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 2, 4)], key=["n"], budget="all")
@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])})
@triton.jit
def doubled(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def tune() -> Any:
    """Tune it for one key, as a rehearsal; the decision."""
    x = torch.zeros(1024)
    with fa.rehearsal("cuda:90", TIMES):
        doubled[(1,)](x.clone(), x, 1000)
    (decision,) = doubled.decisions.values()
    return decision
