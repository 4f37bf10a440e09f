"""Cumulative sum of each row that begins anew wherever a segment does, in Triton: a scan of pairs."""

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


@triton.jit
def continued(started, total, starts, value):  # type: ignore[no-untyped-def]
    """Two neighbouring stretches as one: the first counts unless a segment starts in the second."""
    return started | starts, tl.where(starts > 0, value, total + value)


@triton.jit  # type: ignore[untyped-decorator]
def segmented_cumsum(  # type: ignore[no-untyped-def]
    x_ptr, starts_ptr, out_ptr, rows, columns, x_stride, starts_stride, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """ROWS whole rows to a program, held in registers."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    starts = tl.load(starts_ptr + row * starts_stride + column, mask=inside, other=1).to(tl.int32)
    _, total = tl.associative_scan((starts, value), 1, continued)
    tl.store(out_ptr + row * columns + column, total, mask=inside)


SPACE = Space.grid(
    {"ROWS": [1, 2, 4], "num_warps": [1, 2, 4, 8]},
    default={"ROWS": 1, "num_warps": 4},
    roles={"ROWS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """A segment starts at one element of 50, said in a byte each."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "float32")
    x, out = inputs.normal(rows, columns), inputs.unwritten(rows, columns)
    starts = (inputs.uniform(rows, columns) < 0.02).to(torch.int8)
    return Call(
        args=(x, starts, out, rows, columns, x.stride(0), starts.stride(0), triton.next_power_of_2(columns)),
        grid=lambda knobs: (triton.cdiv(rows, knobs["ROWS"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """The cumulative sum less what it was where the segment began."""
    x, starts = call.args[:2]
    total = x.double().cumsum(1)
    place = torch.arange(x.shape[1], device=x.device).expand_as(x)
    first = torch.where(starts > 0, place, 0).cummax(1).values
    return ((total - (total - x).gather(1, first)).float(),)


def work(call: Call) -> Work:
    x, starts, out = call.args[:3]
    return Work(flops=2.0 * x.numel(), bytes=moved(x, starts, out))


KERNEL = TritonKernel(
    name="segmented_cumsum",
    function=segmented_cumsum,
    space=SPACE,
    key=("rows", "columns"),
    cases=(
        Case(name="sequences", sizes={"rows": 16384, "columns": 2048}),
        Case(name="short", sizes={"rows": 262144, "columns": 128}),
        Case(name="long", sizes={"rows": 2048, "columns": 8192}),
        Case(name="few_rows", sizes={"rows": 32, "columns": 4096}),
        Case(name="odd", sizes={"rows": 10007, "columns": 1000}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 77}),
        Case(name="a_row", sizes={"rows": 1, "columns": 256}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-4,
)
