"""LMDeploy (Apache-2.0): products with 4- and 8-bit weights, adapters, experts and their routing."""

from __future__ import annotations

import logging

import torch

from calibration.record.programs.attempts import (
    DEVICE,
    attempt,
    in_rounds,
    indices,
    normal,
    on_path,
    scaled,
    stand_in,
    without_init,
)

on_path("lmdeploy")
for package in ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", "lmdeploy.pytorch.kernels.cuda"):
    without_init(package)
stand_in("lmdeploy.utils", get_logger=logging.getLogger)

from lmdeploy.pytorch.kernels.cuda import awq_kernels, blocked_gemm_fp8, fused_lora, w8a8_triton_kernels
from lmdeploy.pytorch.kernels.cuda.moe.fused_moe import fused_moe
from lmdeploy.pytorch.kernels.cuda.moe.route_noaux_tc import fused_noaux_tc_routing
from lmdeploy.pytorch.kernels.cuda.moe.w8a8 import fused_moe_w8a8

F16, F8, F32, I32, I8 = torch.float16, torch.float8_e4m3fn, torch.float32, torch.int32, torch.int8


def products(m: int, n: int, k: int) -> None:
    """Products with quantised weights."""
    x = normal(m, k, dtype=F16)
    packed = (
        indices(1 << 30, k, n // 8, dtype=I32),
        scaled(k // 128, n, dtype=F16),
        indices(1 << 30, k // 128, n // 8, dtype=I32),
    )
    attempt(f"4 bits {m}x{n}x{k}", lambda: awq_kernels.awq_linear(x, *packed))
    weights, scales = scaled(n, k).to(F8), torch.rand(n // 128, k // 128, device=DEVICE)

    def by_blocks() -> None:
        quantised, of_tokens = blocked_gemm_fp8.quant_fp8(x, 128)
        blocked_gemm_fp8.blocked_gemm_fp8(quantised, of_tokens, weights.t(), scales.t())

    attempt(f"fp8 by blocks {m}x{n}x{k}", by_blocks)
    ints, of_rows = torch.ones(m, k, device=DEVICE, dtype=I8), torch.rand(m, 1, device=DEVICE)
    others, of_columns = torch.ones(n, k, device=DEVICE, dtype=I8), torch.rand(n, 1, device=DEVICE)
    multiply = w8a8_triton_kernels.matmul_kernel_dynamic_quant
    attempt(f"int8 {m}x{n}x{k}", lambda: multiply(ints, others, of_rows, of_columns))
    residual = normal(m, n, dtype=F16)
    attempt(f"int8 and residual {m}x{n}x{k}", lambda: multiply(ints, others, of_rows, of_columns, residual=residual))


def adapters(sequences: int, length: int, hidden: int, rank: int) -> None:
    """A batch of sequences, each with an adapter of its own."""
    x = normal(sequences * length, hidden, dtype=F16)
    a, b = scaled(4 * rank, hidden, dtype=F16), scaled(4 * rank, hidden, dtype=F16)
    each = torch.arange(4, device=DEVICE)
    starts = torch.arange(sequences, device=DEVICE) * length
    lengths = torch.full((sequences,), length, device=DEVICE)
    fused_lora.fused_lora(
        x, a, b, torch.ones(4, device=DEVICE), each * rank, torch.full((4,), rank, device=DEVICE), starts, lengths,
        indices(4, sequences), rank, length,
    )  # fmt: skip


def experts(tokens: int, count: int, top: int, hidden: int, inner: int) -> None:
    """A layer of experts in 16 bits and in 8, and grouped routing."""
    x, weights = normal(tokens, hidden, dtype=F16), torch.rand(tokens, top, device=DEVICE)
    chosen = indices(count, tokens, top)
    up, down = scaled(count, 2 * inner, hidden, dtype=F16), scaled(count, hidden, inner, dtype=F16)
    label = f"{count} experts of {hidden}x{inner}, {tokens} tokens"
    attempt(label, lambda: fused_moe(x, up, down, weights, chosen, top))
    scales = torch.rand(count, 2 * inner, 1, device=DEVICE), torch.rand(count, hidden, 1, device=DEVICE)
    ints = torch.ones(tokens, hidden, device=DEVICE, dtype=I8), torch.rand(tokens, 1, device=DEVICE)
    attempt(
        f"{label}, int8",
        lambda: fused_moe_w8a8(
            *ints, up.to(I8), scales[0], down.to(I8), scales[1], weights, chosen, top, num_experts=count
        ),
    )


def main() -> None:
    """Every attempt."""
    for sizes in ((4096, 4096, 4096), (16, 4096, 4096), (1, 11008, 4096), (512, 7168, 2048)):
        products(*sizes)
    for sizes in ((8, 512, 4096, 16), (64, 1, 4096, 16), (2, 2048, 8192, 64)):
        attempt(f"adapters {sizes}", lambda: adapters(*sizes))
    for sizes in ((1024, 64, 6, 2048, 1024), (16, 64, 6, 2048, 1024), (4096, 8, 2, 4096, 2048)):
        experts(*sizes)
    for tokens in (1, 64, 4096):
        attempt(
            f"routing {tokens}", lambda: fused_noaux_tc_routing(normal(tokens, 256, dtype=F32), normal(256, dtype=F32))
        )


if __name__ == "__main__":
    in_rounds(main)
