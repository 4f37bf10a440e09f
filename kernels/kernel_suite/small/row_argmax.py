"""Maximum of each row and where it is, in Triton: block by block, the first of equal ones."""

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
def row_argmax(x_ptr, value_ptr, index_ptr, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row to a program; each lane keeps its own best until the end."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = lane
    for start in range(0, columns, BLOCK):
        column = start + lane
        value = tl.load(x_ptr + row * stride + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        place = tl.where(value > best, column, place)
        best = tl.maximum(best, value)
    highest = tl.max(best, 0)
    tl.store(value_ptr + row, highest.to(value_ptr.dtype.element_ty))
    tl.store(index_ptr + row, tl.min(tl.where(best == highest, place, columns), 0).to(tl.int64))


SPACE = Space.grid(
    {"BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]},
    constraints=[lambda BLOCK, num_warps: 2 <= BLOCK // (32 * num_warps) <= 32],
    default={"BLOCK": 2048, "num_warps": 8},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """One number in 44 is the largest of all, as a limit on logits leaves them.

    Rows are `gap` elements further apart than they are long.
    """
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "bfloat16")
    x = inputs.normal(rows, columns + case.sizes.get("gap", 0)).clamp_max_(2)[:, :columns]
    value, index = inputs.unwritten(rows), inputs.unwritten(rows, dtype=torch.int64)
    return Call(args=(x, value, index, columns, x.stride(0)), grid=lambda _: (rows,), outs=(value, index))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, _, _, columns, _ = call.args
    value = x.amax(1)
    place = torch.arange(columns, device=x.device)
    return value, torch.where(x == value[:, None], place, columns).amin(1)


def work(call: Call) -> Work:
    x, value, index = call.args[:3]
    return Work(flops=float(x.numel()), bytes=moved(x, value, index))


KERNEL = TritonKernel(
    name="row_argmax",
    function=row_argmax,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="greedy", sizes={"rows": 256, "columns": 128256}),
        Case(name="prompt", sizes={"rows": 4096, "columns": 151936}),
        Case(name="classes", sizes={"rows": 65536, "columns": 1000}, dtype="float32"),
        Case(name="odd", sizes={"rows": 1000, "columns": 50257, "gap": 47}, dtype="float16"),
        Case(name="one_row", sizes={"rows": 1, "columns": 1 << 20}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 77, "gap": 3}),
        Case(name="over_blocks", sizes={"rows": 2, "columns": 9001}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
