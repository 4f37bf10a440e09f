"""x + bias, the bias broadcast over rows: a tile of both dimensions for each program."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
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
def add_bias(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, out_ptr, M, N, stride_x, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of the sum."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + rows[:, None] * stride_x + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows[:, None] * stride_out + cols[None, :], x + bias[None, :], mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device), case.sizes["M"], case.sizes["N"]
    x, bias, out = inputs.normal(M, N), inputs.normal(N), inputs.unwritten(M, N)
    return Call(
        args=(x, bias, out, M, N, x.stride(0), out.stride(0)),
        grid=lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, bias, out = call.args[:3]
    return ((x.float() + bias.float()).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=float(call.outs[0].numel()), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="add_bias",
    function=add_bias,
    space=Space.grid(
        {"BLOCK_M": [4, 16, 64], "BLOCK_N": [64, 128, 256], "num_warps": [4, 8]},
        default={"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="projection", sizes={"M": 8192, "N": 4096}),
        Case(name="vocabulary", sizes={"M": 2048, "N": 50257}, dtype="bfloat16"),
        Case(name="few_rows", sizes={"M": 16, "N": 12288}),
        Case(name="narrow", sizes={"M": 400_000, "N": 64}, dtype="float32"),
        Case(name="odd", sizes={"M": 3001, "N": 777}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 3, "N": 50}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"M": 65, "N": 257}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-5,
)
