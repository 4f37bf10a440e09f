"""Backward of RMS norm: some rows at once, until a program's share of them is done; then its sum for the weight."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved, multiprocessors


@triton.jit  # type: ignore[untyped-decorator]
def rms_norm_backward(  # type: ignore[no-untyped-def]
    dx_ptr, dw_ptr, dy_ptr, x_ptr, w_ptr, rstd_ptr, M, N, rows_per_program,
    BLOCK_N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`rows_per_program` rows that follow each other."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    w = tl.load(w_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK_N,), tl.float32)
    first = pid * rows_per_program
    last = tl.minimum(first + rows_per_program, M)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        mask = (rows < last)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < last, other=0.0)[:, None]
        xhat = x * rstd
        wdy = dy * w[None, :]
        mean = tl.sum(wdy * xhat, axis=1)[:, None] / N
        tl.store(dx_ptr + at, (wdy - xhat * mean) * rstd, mask=mask)
        dw += tl.sum(dy * xhat, axis=0)
    tl.store(dw_ptr + pid * N + cols, dw, mask=cols < N)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device, "bfloat16"), case.sizes["M"], case.sizes["N"]
    x, dy, w = inputs.normal(M, N), inputs.normal(M, N), inputs.normal(N)
    rstd = (x.float().square().mean(1) + 1e-6).rsqrt()
    share = triton.cdiv(M, min(2 * multiprocessors(device), M))
    programs = triton.cdiv(M, share)
    dx, dw = inputs.unwritten(M, N), inputs.unwritten(programs, N, dtype=torch.float32)
    return Call(
        args=(dx, dw, dy, x, w, rstd, M, N, share, triton.next_power_of_2(N)),
        grid=lambda _: (programs,),
        outs=(dx, dw),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dx, dw, dy, x, w, rstd, M, N, share, _ = call.args
    dy, rstd = dy.double(), rstd.double()[:, None]
    xhat, wdy = x.double() * rstd, dy * w.double()
    gradient = (wdy - xhat * (wdy * xhat).mean(1, keepdim=True)) * rstd
    sums = torch.nn.functional.pad(dy * xhat, (0, 0, 0, len(dw) * share - M)).view(len(dw), share, N).sum(1)
    return gradient.to(dx.dtype), sums.float()


def work(call: Call) -> Work:
    return Work(flops=11.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="rms_norm_backward",
    function=rms_norm_backward,
    space=Space.grid(
        {"ROWS": [1, 2, 4], "num_warps": [2, 4, 8, 16]},
        default={"ROWS": 1, "num_warps": 8},
        roles={"ROWS": "tile", "num_warps": "threads"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="hidden", sizes={"M": 8192, "N": 4096}),
        Case(name="heads", sizes={"M": 262144, "N": 128}),
        Case(name="small_model", sizes={"M": 16384, "N": 896}, dtype="float16"),
        Case(name="few_rows", sizes={"M": 64, "N": 7168}, dtype="float32"),
        Case(name="odd", sizes={"M": 3001, "N": 1234}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 37}, dtype="float32"),
        Case(name="uneven_shares", sizes={"M": 45, "N": 16}, dtype="float16"),
        Case(name="a_block", sizes={"M": 9, "N": 128}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-3,
)
