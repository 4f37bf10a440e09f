"""Cumulative sum of each row in Triton: block by block, what came before carried along."""

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
def row_cumsum(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row to a program."""
    start_of_row = tl.program_id(0).to(tl.int64) * columns
    before = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + start_of_row + at, mask=at < columns, other=0.0).to(tl.float32)
        tl.store(out_ptr + start_of_row + at, before + tl.cumsum(value, 0), mask=at < columns)
        before += tl.sum(value, 0)


SPACE = Space.grid(
    {"BLOCK": [512, 1024, 2048, 4096], "num_warps": [2, 4, 8]},
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Numbers from 0 to 1; the sums are float32 whatever they are."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "float32")
    x, out = inputs.uniform(rows, columns), inputs.unwritten(rows, columns, dtype=torch.float32)
    return Call(args=(x, out, columns), grid=lambda _: (rows,), outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return (call.args[0].double().cumsum(1).float(),)


def work(call: Call) -> Work:
    x, out, _ = call.args
    return Work(flops=float(x.numel()), bytes=moved(x, out))


KERNEL = TritonKernel(
    name="row_cumsum",
    function=row_cumsum,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="batch", sizes={"rows": 4096, "columns": 8192}),
        Case(name="vocabulary", sizes={"rows": 256, "columns": 128256}),
        Case(name="narrow", sizes={"rows": 65536, "columns": 512}),
        Case(name="odd", sizes={"rows": 8, "columns": 1_000_003}),
        Case(name="half", sizes={"rows": 4096, "columns": 16384}, dtype="bfloat16"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 77}, dtype="bfloat16"),
        Case(name="over_blocks", sizes={"rows": 2, "columns": 4099}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Half a million times a rounding of float32 would be 3 %; blocks are summed as trees, their totals one by one.
    rtol=1e-4,
    atol=1e-5,
)
