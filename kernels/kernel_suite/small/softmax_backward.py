"""Backward of a softmax over rows: as many programs as the GPU runs at once, each taking every so manieth row."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
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
def softmax_backward(  # type: ignore[no-untyped-def]
    dx_ptr, dy_ptr, y_ptr, stride, n_rows, n_cols,
    BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(dy - the row's sum of dy y) y."""
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_cols
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=STAGES):
        dy = tl.load(dy_ptr + row * stride + offsets, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * stride + offsets, mask=mask, other=0.0).to(tl.float32)
        dx = (dy - tl.sum(dy * y, axis=0)) * y
        tl.store(dx_ptr + row * stride + offsets, dx, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, rows, columns = Inputs(case, seed, device), case.sizes["rows"], case.sizes["columns"]
    y = torch.softmax(inputs.normal(rows, columns, dtype=torch.float32), dim=1).to(inputs.dtype)
    dy, dx = inputs.normal(rows, columns), inputs.unwritten(rows, columns)
    programs = min(4 * multiprocessors(device), rows)
    return Call(
        args=(dx, dy, y, y.stride(0), rows, columns, triton.next_power_of_2(columns)),
        grid=lambda _: (programs,),
        outs=(dx,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dx, dy, y = (t.double() for t in call.args[:3])
    dx = (dy - (dy * y).sum(1, keepdim=True)) * y
    return (dx.to(call.outs[0].dtype),)


def work(call: Call) -> Work:
    return Work(flops=4.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="softmax_backward",
    function=softmax_backward,
    space=Space.grid(
        {"STAGES": [1, 2, 4], "num_warps": [2, 4, 8, 16]},
        default={"STAGES": 2, "num_warps": 8},
        roles={"STAGES": "stages", "num_warps": "threads"},
    ),
    key=("n_rows", "n_cols"),
    cases=(
        Case(name="scores", sizes={"rows": 32768, "columns": 2048}),
        Case(name="long", sizes={"rows": 4096, "columns": 16384}, dtype="bfloat16"),
        Case(name="classes", sizes={"rows": 8192, "columns": 1000}, dtype="float32"),
        Case(name="experts", sizes={"rows": 65536, "columns": 64}),
        Case(name="odd", sizes={"rows": 777, "columns": 3001}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 37}, dtype="bfloat16"),
        Case(name="over_every_program", sizes={"rows": 37, "columns": 64}, dtype="float32"),
        Case(name="over_a_block", sizes={"rows": 5, "columns": 1025}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=2e-6,
)
