"""DeepSpeed (Apache-2.0): the product of experts' weights with tokens sorted by expert, both passes."""

from __future__ import annotations

import logging

import torch

from calibration.record.programs.attempts import (
    DEVICE,
    attempt,
    backward,
    in_rounds,
    normal,
    on_path,
    scaled,
    stand_in,
    without_init,
)

on_path("deepspeed")
without_init("deepspeed")
without_init("deepspeed.ops")
stand_in("deepspeed.utils", logger=logging.getLogger("deepspeed"))

from deepspeed.ops.triton_ops.group_gemm_triton import group_gemm_triton  # found on the path set above


def grouped(groups: int, tokens: int, n: int, k: int) -> None:
    """Groups of one size."""
    ends = torch.arange(1, groups + 1, device=DEVICE, dtype=torch.int32) * (tokens // groups)
    backward(group_gemm_triton(normal(tokens, k, grad=True), scaled(groups, k, n).requires_grad_(), ends))


def main() -> None:
    """Every attempt."""
    for sizes in ((8, 8192, 2048, 1024), (64, 4096, 1408, 2048), (16, 16384, 4096, 4096)):
        attempt(f"experts {sizes}", lambda: grouped(*sizes))


if __name__ == "__main__":
    in_rounds(main)
