"""A matrix copied transposed: a tile is read by rows and written by rows of the other."""

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
def transpose_copy(  # type: ignore[no-untyped-def]
    in_ptr, out_ptr, M, N, stride_in, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile."""
    rm = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.load(in_ptr + rm[:, None] * stride_in + rn[None, :], mask=(rm[:, None] < M) & (rn[None, :] < N))
    tl.store(
        out_ptr + rn[:, None] * stride_out + rm[None, :], tl.trans(tile), mask=(rn[:, None] < N) & (rm[None, :] < M)
    )


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device), case.sizes["M"], case.sizes["N"]
    given, out = inputs.normal(M, N), inputs.unwritten(N, M)
    return Call(
        args=(given, out, M, N, given.stride(0), out.stride(0)),
        grid=lambda meta: (triton.cdiv(N, meta["BLOCK_N"]), triton.cdiv(M, meta["BLOCK_M"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return (call.args[0].T.contiguous(),)


def work(call: Call) -> Work:
    return Work(flops=0.0, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="transpose_copy",
    function=transpose_copy,
    space=Space.grid(
        {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128], "num_warps": [4, 8]},
        constraints=[lambda BLOCK_M, BLOCK_N: BLOCK_M * BLOCK_N <= 8192],
        default={"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="square", sizes={"M": 8192, "N": 8192}),
        Case(name="weights", sizes={"M": 14336, "N": 4096}, dtype="bfloat16"),
        Case(name="tall", sizes={"M": 500_000, "N": 64}, dtype="float32"),
        Case(name="small", sizes={"M": 1024, "N": 768}),
        Case(name="odd", sizes={"M": 3001, "N": 5003}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 30}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"M": 130, "N": 33}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
