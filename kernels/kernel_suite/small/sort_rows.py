"""Short rows sorted in Triton, each number with the place it came from packed below it."""

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
def sort_rows(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, place_ptr, rows, columns, WIDTH: tl.constexpr, DESCENDING: tl.constexpr, ROWS: tl.constexpr
):
    """ROWS rows of whole numbers of 32 bits. What is equal keeps its order where ascending."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < columns)
    at = row.to(tl.int64) * columns + column
    value = tl.load(x_ptr + at, mask=inside, other=-2147483648 if DESCENDING else 2147483647).to(tl.int64)
    packed = tl.sort((value << 32) | column, descending=DESCENDING)
    tl.store(out_ptr + at, (packed >> 32).to(tl.int32), mask=inside)
    tl.store(place_ptr + at, (packed & 0xFFFFFFFF).to(tl.int32), mask=inside)


SPACE = Space.grid(
    {"ROWS": [1, 2, 4], "num_warps": [1, 2, 4, 8]},
    default={"ROWS": 1, "num_warps": 4},
    roles={"ROWS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """A few numbers are equal. Descending, the last of them comes first."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "int32")
    x = inputs.integers(columns * columns, rows, columns, dtype=inputs.dtype).sub_(1000)
    out, place = inputs.unwritten(rows, columns), inputs.unwritten(rows, columns)
    return Call(
        args=(x, out, place, rows, columns, triton.next_power_of_2(columns), bool(case.sizes.get("descending"))),
        grid=lambda knobs: (triton.cdiv(rows, knobs["ROWS"]),),
        outs=(out, place),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, *_, columns, _, descending = call.args
    packed = (x.long() << 32) + torch.arange(columns, device=x.device)
    packed = packed.sort(1, descending=descending).values
    return (packed >> 32).int(), (packed & 0xFFFFFFFF).int()


def work(call: Call) -> Work:
    """Two operations for each element and step of a bitonic network."""
    x, out, place, _, _, width, _ = call.args
    steps = (width.bit_length() - 1) * width.bit_length() // 2
    return Work(flops=2.0 * x.numel() * steps, bytes=moved(x, out, place))


KERNEL = TritonKernel(
    name="sort_rows",
    function=sort_rows,
    space=SPACE,
    key=("rows", "columns"),
    cases=(
        Case(name="candidates", sizes={"rows": 16384, "columns": 256, "descending": 1}),
        Case(name="tiles", sizes={"rows": 262144, "columns": 64}),
        Case(name="long", sizes={"rows": 2048, "columns": 1024}),
        Case(name="few_rows", sizes={"rows": 64, "columns": 512, "descending": 1}),
        Case(name="odd", sizes={"rows": 5003, "columns": 100}),
    ),
    corners=(
        Case(name="two", sizes={"rows": 1, "columns": 2}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 21, "descending": 1}),
        Case(name="over_a_block", sizes={"rows": 5, "columns": 64}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
