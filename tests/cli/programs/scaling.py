"""A kernel with stock `triton.autotune`, and a program around it: what `run`, `tune-pending` and `forecast` are tried on."""
# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals

from __future__ import annotations

import argparse
import multiprocessing
import os
from typing import Any

import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128, 256) for warps in (2, 4)]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


@triton.jit
def plain(x_ptr, n):
    tl.store(x_ptr, n)


def whose() -> str:
    import forecast_autotune as fa

    return "Triton's" if fa.tuner_of(scale) is None else "ours"


def rehearse(n: int) -> str:
    import torch

    from forecast_autotune.frontends.triton.simulated_driver import rehearsal

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK"]),)

    with rehearsal("cuda:90", times=400.0) as on:  # long launches: a benchmark repeats them less often
        scale[grid](torch.empty(n), n, 2.0)
    return f"rank {os.environ.get('RANK', '-')}: {whose()} launched {len(on.launches)} configs"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[1000])
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--code", type=int, default=0)
    arguments = parser.parse_args()
    for size in arguments.sizes:
        if arguments.spawn:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(rehearse, (size,)), flush=True)
        else:
            print(rehearse(size), flush=True)
    raise SystemExit(arguments.code)
