"""Backward of layer norm: the input's gradient of each row, and sums over a group of rows for weight and bias."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved, multiprocessors


@triton.jit  # type: ignore[untyped-decorator]
def layer_norm_backward(  # type: ignore[no-untyped-def]
    dx_ptr, dw_ptr, db_ptr, dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, stride, M, N,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Every so many rows there are programs, from the program's own number on."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK_N], dtype=tl.float32)
    db = tl.zeros([BLOCK_N], dtype=tl.float32)
    for row in range(pid, M, tl.num_programs(0)):
        x = tl.load(x_ptr + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        xhat = tl.where(mask, (x - mean) * rstd, 0.0)
        wdy = w * dy
        c1 = tl.sum(xhat * wdy, axis=0) / N
        c2 = tl.sum(wdy, axis=0) / N
        dx = (wdy - (xhat * c1 + c2)) * rstd
        tl.store(dx_ptr + row * stride + cols, dx, mask=mask)
        dw += dy * xhat
        db += dy
    tl.store(dw_ptr + pid * N + cols, dw, mask=mask)
    tl.store(db_ptr + pid * N + cols, db, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, rows, columns = Inputs(case, seed, device), case.sizes["M"], case.sizes["N"]
    x, dy, w = inputs.normal(rows, columns), inputs.normal(rows, columns), inputs.normal(columns)
    mean = x.float().mean(1)
    rstd = (x.float().var(1, unbiased=False) + 1e-5).rsqrt()
    groups = min(2 * multiprocessors(device), rows)  # each with its own sums of the gradients of weight and bias
    dx = inputs.unwritten(rows, columns)
    dw, db = (inputs.unwritten(groups, columns, dtype=torch.float32) for _ in range(2))
    args = (dx, dw, db, dy, x, w, mean, rstd, x.stride(0), rows, columns, triton.next_power_of_2(columns))

    def grid(_: Mapping[str, int]) -> tuple[int, ...]:
        return (groups,)

    return Call(args=args, grid=grid, outs=(dx, dw, db))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dx, dw, _, dy, x, w, mean, rstd, _, M, N, _ = call.args
    dy, xhat = dy.double(), (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    wdy = w.double() * dy
    gradient = (wdy - xhat * (xhat * wdy).mean(1, True) - wdy.mean(1, True)) * rstd.double()[:, None]
    nothing = dy.new_zeros(len(dw), N)
    group = torch.arange(M, device=dy.device) % len(dw)
    sums = (nothing.index_add(0, group, each).float() for each in (dy * xhat, dy))
    return (gradient.to(dx.dtype), *sums)


def work(call: Call) -> Work:
    return Work(flops=15.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="layer_norm_backward",
    function=layer_norm_backward,
    space=Space.grid(
        {"num_warps": [1, 2, 4, 8, 16], "num_stages": [1, 2]},
        default={"num_warps": 8, "num_stages": 1},
        roles={"num_warps": "threads", "num_stages": "stages"},
    ),
    key=("M", "N"),
    cases=(
        Case(name="hidden", sizes={"M": 8192, "N": 4096}),
        Case(name="vision", sizes={"M": 50176, "N": 768}, dtype="bfloat16"),
        Case(name="few_rows", sizes={"M": 128, "N": 8192}),
        Case(name="odd", sizes={"M": 4099, "N": 1111}),
        Case(name="narrow", sizes={"M": 131072, "N": 128}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 37}, dtype="float32"),
        Case(name="over_the_groups", sizes={"M": 13, "N": 16}),
        Case(name="a_block", sizes={"M": 3, "N": 128}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # of bfloat16, in which the input's gradient is written
    atol=2e-3,
)
