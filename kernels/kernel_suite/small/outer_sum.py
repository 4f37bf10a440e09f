"""out[i, j] = a[i] + b[j]: two vectors in, a matrix out."""

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
def outer_sum(a_ptr, b_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """One tile, numbered row by row."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    i = pid // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    j = pid % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a = tl.load(a_ptr + i, mask=i < M, other=0.0)
    b = tl.load(b_ptr + j, mask=j < N, other=0.0)
    tl.store(
        out_ptr + i.to(tl.int64)[:, None] * N + j[None, :],
        a[:, None] + b[None, :],
        mask=(i[:, None] < M) & (j[None, :] < N),
    )


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device, "float32"), case.sizes["M"], case.sizes["N"]
    a, b, out = inputs.normal(M), inputs.normal(N), inputs.unwritten(M, N)
    return Call(
        args=(a, b, out, M, N),
        grid=lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    a, b, out = call.args[:3]
    return ((a.float()[:, None] + b.float()).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=float(call.outs[0].numel()), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="outer_sum",
    function=outer_sum,
    space=Space.grid(
        {"BLOCK_M": [16, 32, 64], "BLOCK_N": [32, 64, 128], "num_warps": [4, 8]},
        default={"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="square", sizes={"M": 8192, "N": 8192}),
        Case(name="distances", sizes={"M": 1_000_000, "N": 128}, dtype="float16"),
        Case(name="wide", sizes={"M": 64, "N": 1_000_000}),
        Case(name="small", sizes={"M": 512, "N": 512}),
        Case(name="odd", sizes={"M": 5555, "N": 3331}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 11}, dtype="float16"),
        Case(name="over_a_block", sizes={"M": 65, "N": 130}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-10,  # a unit in float16's last place
    atol=1e-6,
)
