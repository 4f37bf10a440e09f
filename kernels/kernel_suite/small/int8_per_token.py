"""Quantisation to int8 in Triton, each token by its own largest magnitude."""

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
def int8_per_token(x_ptr, q_ptr, scale_ptr, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """One token to a program, in registers. Halves are rounded away from zero."""
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    mask = column < columns
    x = tl.load(x_ptr + row.to(tl.int64) * columns + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-7) / 127.0
    scaled = x / scale
    rounded = tl.where(scaled >= 0, scaled + 0.5, scaled - 0.5).to(tl.int8)
    tl.store(scale_ptr + row, scale)
    tl.store(q_ptr + row.to(tl.int64) * columns + column, rounded, mask=mask)


SPACE = Space.grid(
    {"num_warps": [1, 2, 4, 8, 16], "num_stages": [1, 2]},
    default={"num_warps": 4, "num_stages": 2},
    roles={"num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Whole numbers times a power of two, the first of each row 127: no quotient lies near a half."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "bfloat16")
    x = inputs.normal(rows, columns, dtype=torch.float32).mul_(30).round_().clamp_(-127, 127)
    x[:, 0] = 127
    x = x.mul_(inputs.integers(9, rows, 1).sub_(4).float().exp2_()).to(inputs.dtype)
    q, scale = inputs.unwritten(rows, columns, dtype=torch.int8), inputs.unwritten(rows, dtype=torch.float32)
    return Call(
        args=(x, q, scale, columns, triton.next_power_of_2(columns)),
        grid=lambda _: (rows,),
        outs=(q, scale),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x = call.args[0].float()
    scale = x.abs().amax(1).clamp_min(1e-7) / 127
    return (x / scale[:, None]).round().to(torch.int8), scale


def work(call: Call) -> Work:
    """A magnitude, a comparison, a division and a sum."""
    x, q, scale = call.args[:3]
    return Work(flops=4.0 * x.numel(), bytes=moved(x, q, scale))


KERNEL = TritonKernel(
    name="int8_per_token",
    function=int8_per_token,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="prefill", sizes={"rows": 16384, "columns": 4096}),
        Case(name="intermediate", sizes={"rows": 8192, "columns": 14336}),
        Case(name="decode", sizes={"rows": 64, "columns": 8192}, dtype="float16"),
        Case(name="narrow", sizes={"rows": 262144, "columns": 128}),
        Case(name="odd", sizes={"rows": 10001, "columns": 3333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 77}, dtype="float16"),
        Case(name="a_block", sizes={"rows": 2, "columns": 1024}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-6,
    atol=0.0,
)
