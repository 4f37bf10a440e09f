"""A matrix times a vector: some rows for each program, a block of columns at a time."""

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
def matvec(  # type: ignore[no-untyped-def]
    y_ptr, a_ptr, x_ptr, M, N, stride_am, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Products are summed once, at the end."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * stride_am + cols[None, :]
    for n in range(0, N, BLOCK_N):
        mask = (rows[:, None] < M) & (n + cols[None, :] < N)
        a = tl.load(a_ptrs + n, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + n + cols, mask=n + cols < N, other=0.0).to(tl.float32)
        acc += a * x[None, :]
    tl.store(y_ptr + rows, tl.sum(acc, axis=1), mask=rows < M)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device), case.sizes["M"], case.sizes["N"]
    a, x, y = inputs.normal(M, N), inputs.normal(N).mul_(N**-0.5), inputs.unwritten(M, dtype=torch.float32)
    return Call(args=(y, a, x, M, N, a.stride(0)), grid=lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),), outs=(y,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    y, a, x, *_ = call.args
    return ((a.double() @ x.double()).to(y.dtype),)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.args[1].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="matvec",
    function=matvec,
    space=Space.grid(
        {"BLOCK_M": [1, 4, 16], "BLOCK_N": [256, 512, 1024], "num_warps": [4, 8]},
        constraints=[lambda BLOCK_M, BLOCK_N: BLOCK_M * BLOCK_N <= 8192],
        default={"BLOCK_M": 4, "BLOCK_N": 512, "num_warps": 4},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="projection", sizes={"M": 4096, "N": 4096}),
        Case(name="vocabulary", sizes={"M": 128256, "N": 4096}, dtype="bfloat16"),
        Case(name="down", sizes={"M": 4096, "N": 14336}),
        Case(name="small", sizes={"M": 768, "N": 768}, dtype="float32"),
        Case(name="odd", sizes={"M": 5001, "N": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 3, "N": 50}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"M": 17, "N": 1025}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-4,
)
