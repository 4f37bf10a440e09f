"""Cosine of the angle between rows of two matrices in Triton: three sums in one pass."""

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
def cosine_similarity(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, out_ptr, rows, columns, a_stride, b_stride, epsilon, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """ROWS rows, BLOCK of their columns at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row.to(tl.int64)[:, None]
    product = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    a_square = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    b_square = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row < rows)[:, None] & (column < columns)
        a = tl.load(a_ptr + at * a_stride + column, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + at * b_stride + column, mask=mask, other=0.0).to(tl.float32)
        product += a * b
        a_square += a * a
        b_square += b * b
    a_norm, b_norm = tl.sqrt(tl.sum(a_square, 1)), tl.sqrt(tl.sum(b_square, 1))
    cosine = tl.sum(product, 1) / (tl.maximum(a_norm, epsilon) * tl.maximum(b_norm, epsilon))
    tl.store(out_ptr + row, cosine, mask=row < rows)


SPACE = Space.grid(
    {"ROWS": [1, 4, 8], "BLOCK": [128, 256, 512], "num_warps": [2, 4]},
    default={"ROWS": 4, "BLOCK": 256, "num_warps": 4},
    roles={"ROWS": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Rows of b are those of a with as much noise. Where `one`, all of a is compared with the only row of b."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "float16")
    a = inputs.normal(rows, columns)
    b = inputs.normal(1, columns).expand(rows, columns) if case.sizes.get("one") else a + inputs.normal(rows, columns)
    out = inputs.unwritten(rows, dtype=torch.float32)
    return Call(
        args=(a, b, out, rows, columns, a.stride(0), b.stride(0), 1e-8),
        grid=lambda knobs: (triton.cdiv(rows, knobs["ROWS"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    a, b = (t.double() for t in call.args[:2])
    return (((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-8)).float(),)


def work(call: Call) -> Work:
    """A row that all are compared with is moved once."""
    a, b, out = call.args[:3]
    return Work(flops=6.0 * a.numel(), bytes=moved(a, out, b if b.stride(0) else b[0]))


KERNEL = TritonKernel(
    name="cosine_similarity",
    function=cosine_similarity,
    space=SPACE,
    key=("rows", "columns", "b_stride"),
    cases=(
        Case(name="pairs", sizes={"rows": 65536, "columns": 1024}),
        Case(name="search", sizes={"rows": 500_000, "columns": 768, "one": 1}),
        Case(name="hidden", sizes={"rows": 8192, "columns": 8192}, dtype="bfloat16"),
        Case(name="odd", sizes={"rows": 10001, "columns": 333}, dtype="float32"),
        Case(name="few_rows", sizes={"rows": 16, "columns": 4096}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 77, "one": 1}, dtype="bfloat16"),
        Case(name="over_blocks", sizes={"rows": 11, "columns": 515}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-5,
)
