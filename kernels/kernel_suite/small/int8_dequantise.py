"""Int8 products back to numbers in Triton: by a scale for each row and one for each column, and a bias."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved


@triton.jit  # type: ignore[untyped-decorator]
def int8_dequantise(  # type: ignore[no-untyped-def]
    q_ptr, row_scale_ptr, column_scale_ptr, bias_ptr, out_ptr, M, N, stride_q, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M by BLOCK_N of the 32-bit sums that a product of int8 leaves."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (m[:, None] < M) & (n[None, :] < N)
    q = tl.load(q_ptr + m[:, None].to(tl.int64) * stride_q + n[None, :], mask=mask, other=0)
    by_row = tl.load(row_scale_ptr + m, mask=m < M, other=0.0)
    by_column = tl.load(column_scale_ptr + n, mask=n < N, other=0.0)
    out = q.to(tl.float32) * by_row[:, None] * by_column[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + m[:, None].to(tl.int64) * stride_out + n[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


SPACE = Space.grid(
    {"BLOCK_M": [4, 16, 64], "BLOCK_N": [64, 128, 256], "num_warps": [4, 8]},
    constraints=[lambda BLOCK_M, BLOCK_N, num_warps: 2 <= BLOCK_M * BLOCK_N // (32 * num_warps) <= 64],
    default={"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4},
    roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    m, n = case.sizes["m"], case.sizes["n"]
    inputs = Inputs(case, seed, device, "bfloat16")
    q = inputs.integers(200_001, m, n, dtype=torch.int32).sub_(100_000)
    scales = [inputs.uniform(size, dtype=torch.float32).add_(0.5).mul_(0.01) for size in (m, n)]
    bias, out = inputs.normal(n) if case.sizes.get("bias") else None, inputs.unwritten(m, n)
    return Call(
        args=(q, *scales, bias, out, m, n, q.stride(0), out.stride(0)),
        grid=lambda knobs: (triton.cdiv(m, knobs["BLOCK_M"]), triton.cdiv(n, knobs["BLOCK_N"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    q, by_row, by_column, bias, out = call.args[:5]
    value = q.double() * by_row[:, None] * by_column
    return ((value if bias is None else value + bias).to(out.dtype),)


def work(call: Call) -> Work:
    q, _, _, bias, _ = call.args[:5]
    return Work(flops=(2.0 + (bias is not None)) * q.numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="int8_dequantise",
    function=int8_dequantise,
    space=SPACE,
    key=("M", "N"),
    cases=(
        Case(name="projection", sizes={"m": 8192, "n": 4096, "bias": 1}),
        Case(name="intermediate", sizes={"m": 4096, "n": 14336}),
        Case(name="decode", sizes={"m": 32, "n": 8192, "bias": 1}, dtype="float16"),
        Case(name="odd", sizes={"m": 3001, "n": 1111}, dtype="float32"),
        Case(name="narrow", sizes={"m": 131072, "n": 96}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"m": 1, "n": 1}),
        Case(name="below_a_block", sizes={"m": 3, "n": 50, "bias": 1}, dtype="float16"),
        Case(name="over_a_block", sizes={"m": 67, "n": 259}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-3,
)
