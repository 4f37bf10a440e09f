"""torchao (BSD-3-Clause): conversions to 8-bit floats of every layout, products by blocks, quantised attention inputs."""

from __future__ import annotations

import os

import torch

from calibration.record.programs.attempts import DEVICE, attempt, in_rounds, normal, on_path, scaled

on_path("torchao")
os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")

from torchao.float8.float8_training_tensor import LinearMMConfig  # found on the path set above
from torchao.kernel.blockwise_quantization import blockwise_fp8_gemm, fp8_blockwise_act_quant
from torchao.prototype.attention.quantization import triton_hadamard_qkv_quantization as hadamard
from torchao.prototype.attention.quantization import triton_hadamard_rope_qkv_quantization as hadamard_rope
from torchao.prototype.attention.quantization import triton_qkv_quantization as plain
from torchao.prototype.attention.quantization import triton_rope_qkv_quantization as rope
from torchao.prototype.blockwise_fp8_training import deepgemm_quant, kernels
from torchao.prototype.common.triton.matmul import matmul
from torchao.prototype.float8nocompile.kernels import fp8_dynamic_tensorwise as tensorwise
from torchao.prototype.fp8_sdpa_inference import fp8_sdpa_quantization as sdpa
from torchao.prototype.moe_training.kernels import float8_rowwise, jagged_float8_scales
from torchao.prototype.mx_formats import kernels as mx
from torchao.prototype.quantized_training.int8_mm import scaled_int8_mm_cuda

F8, F32 = torch.float8_e4m3fn, torch.float32
SIZES = ((4096, 4096), (1024, 8192), (512, 1024))


def by_columns(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, the second last dimension contiguous."""
    return x.transpose(-2, -1).contiguous().transpose(-2, -1)


def conversions(m: int, n: int) -> None:
    """A matrix to 8-bit floats, with one scale or a scale for each block, row-major and column-major."""
    x = normal(m, n)
    for name in (
        "row_major", "row_major_t", "col_major", "col_major_t", "row_and_col_major", "row_major_t_and_non_t",
        "col_major_t_and_non_t",
    ):  # fmt: skip
        convert = getattr(tensorwise, f"hp_to_fp8_{name}")
        attempt(f"tensorwise {name} {m}x{n}", lambda convert=convert: convert(x, F8, LinearMMConfig()))
    for name in (
        "act_quant_lhs",
        "act_quant_rhs",
        "act_quant_transposed_lhs",
        "weight_quant_rhs",
        "weight_quant_transposed_rhs",
    ):
        convert = getattr(kernels, f"triton_fp8_blockwise_{name}")
        attempt(f"by blocks {name} {m}x{n}", lambda convert=convert: convert(x))
    attempt(f"rows scaled {m}x{n}", lambda: float8_rowwise.triton_fp8_rowwise_2d_scale_and_cast(x))
    scales = torch.full((m, n // 32), 127, device=DEVICE, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    attempt(f"microscaling back {m}x{n}", lambda: mx.triton_mxfp8_dequant_dim0(x.to(F8), scales, torch.bfloat16))


def experts(groups: int, tokens: int, m: int, n: int) -> None:
    """Weights of experts, and tokens sorted by expert."""
    weights = scaled(groups, m, n)
    columns = by_columns(weights)
    ends = torch.arange(1, groups + 1, device=DEVICE, dtype=torch.int32) * (tokens // groups)
    x, g = normal(tokens, m), normal(tokens, n)
    label = f"{groups} experts of {m}x{n}, {tokens} tokens"
    attempt(f"{label}: transposed", lambda: float8_rowwise.triton_fp8_rowwise_3d_transpose_rhs(columns))
    attempt(
        f"{label}: transposed at once",
        lambda: float8_rowwise.triton_fp8_rowwise_3d_transpose_rhs_fused_reduction(columns),
    )
    attempt(f"{label}: columns", lambda: float8_rowwise.triton_fp8_colwise_3d_scale_and_cast(weights))
    attempt(f"{label}: scales of rows", lambda: jagged_float8_scales.triton_fp8_per_group_rowwise_scales(x.t(), ends))
    attempt(
        f"{label}: scales of columns",
        lambda: jagged_float8_scales.triton_fp8_per_group_colwise_scales(by_columns(x), ends),
    )
    attempt(
        f"{label}: scales of columns, two",
        lambda: jagged_float8_scales.triton_fp8_per_group_colwise_scales_dual(by_columns(x), by_columns(g), ends),
    )
    attempt(
        f"{label}: activations by blocks",
        lambda: deepgemm_quant._triton_fp8_blockwise_act_quant_k_grouped_deepgemm_with_group_sizes(
            x, ends, [tokens // groups] * groups, traceable=False
        ),
    )
    transposed = weights.transpose(-2, -1)
    attempt(
        f"{label}: weights by blocks",
        lambda: deepgemm_quant.triton_fp8_blockwise_weight_quant_grouped_transposed_rhs_deepgemm(transposed),
    )
    attempt(
        f"{label}: weights by blocks, for gradients",
        lambda: deepgemm_quant.triton_fp8_blockwise_weight_quant_grouped_rhs_deepgemm(transposed),
    )


def products(m: int, n: int, k: int) -> None:
    """Products of 8-bit matrices with scales for blocks, and of others."""
    a, b = normal(m, k).to(F8), by_columns(scaled(k, n)).to(F8)
    a_s, b_s = (
        by_columns(torch.rand(m, k // 128, device=DEVICE)),
        by_columns(torch.rand(k // 128, n // 128, device=DEVICE)),
    )
    attempt(f"fp8 blocks of weights {m}x{n}x{k}", lambda: kernels.triton_fp8_gemm_1x128_128x128(a, b, a_s, b_s))
    rows = torch.rand(k // 128, n, device=DEVICE)
    attempt(f"fp8 blocks of activations {m}x{n}x{k}", lambda: kernels.triton_fp8_gemm_1x128_128x1(a, b, a_s, rows))
    weights = scaled(n, k).to(F8), torch.rand(n // 128, k // 128, device=DEVICE)
    attempt(
        f"fp8 blocks at inference {m}x{n}x{k}",
        lambda: blockwise_fp8_gemm(*fp8_blockwise_act_quant(normal(m, k)), *weights),
    )
    ints = torch.ones(m, k, device=DEVICE, dtype=torch.int8), torch.ones(n, k, device=DEVICE, dtype=torch.int8)
    scales = torch.rand(m, device=DEVICE).bfloat16(), torch.rand(n, device=DEVICE).bfloat16()
    attempt(f"int8 {m}x{n}x{k}", lambda: scaled_int8_mm_cuda(ints[0], ints[1].t(), *scales))


def attention_inputs(batch: int, heads: int, length: int, dim: int) -> None:
    """Queries, keys and values to 8-bit floats, with rotary embeddings or a Hadamard transform on the way."""
    q, k, v = (normal(batch, heads, length, dim) for _ in range(3))
    across = tuple(normal(batch, length, heads, dim) for _ in range(3))
    angles = normal(length, dim, dtype=F32), normal(length, dim, dtype=F32)
    label = f"{batch}x{heads}x{length}x{dim}"
    attempt(f"quantised inputs {label}", lambda: plain.triton_fp8_sdpa_quantize(q, k, v))
    attempt(f"quantised, Hadamard {label}", lambda: hadamard.triton_fp8_hadamard_sdpa_quantize(q, k, v))
    attempt(f"quantised, rotary {label}", lambda: rope.triton_fp8_rope_sdpa_quantize(*across, *angles))
    attempt(
        f"quantised, rotary and Hadamard {label}",
        lambda: hadamard_rope.triton_fp8_hadamard_rope_sdpa_quantize(*across, *angles),
    )
    attempt(f"quantised at inference {label}", lambda: sdpa.fp8_sdpa_quantize_func(q, k, v))
    keys = normal(batch, heads, length // 2, dim)
    attempt(f"quantised at inference, fewer keys {label}", lambda: sdpa.fp8_sdpa_quantize_func(q, keys, keys))


def main() -> None:
    """Every attempt."""
    for m, n in SIZES:
        conversions(m, n)
    for sizes in ((8, 8192, 2048, 1024), (16, 4096, 1024, 2048), (4, 16384, 4096, 1024)):
        experts(*sizes)
    for sizes in ((4096, 4096, 4096), (16, 4096, 4096), (1024, 2048, 7168)):
        products(*sizes)
    attempt("product with few rows", lambda: matmul(normal(16, 4096), scaled(4096, 4096)))
    for sizes in ((2, 16, 4096, 128), (1, 32, 8192, 64), (8, 8, 1024, 128)):
        attention_inputs(*sizes)


if __name__ == "__main__":
    in_rounds(main)
