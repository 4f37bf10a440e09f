"""Rows scaled to a length of 1 in Triton, as queries and keys are before attention; the reciprocal length is kept."""

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
def l2_normalise(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, rstd_ptr, rows, eps, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """ROWS rows of D numbers: one tile in, one tile out."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    at = row.to(tl.int64)[:, None] * D + column[None, :]
    mask = (row < rows)[:, None] & (column < D)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) + eps)
    tl.store(y_ptr + at, (x * rstd[:, None]).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(rstd_ptr + row, rstd, mask=row < rows)


SPACE = Space.grid(
    {"ROWS": [4, 8, 16, 32, 64], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda ROWS, num_warps: ROWS // num_warps <= 32],
    default={"ROWS": 16, "num_warps": 4},
    roles={"ROWS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    rows, width = case.sizes["rows"], case.sizes["D"]
    inputs = Inputs(case, seed, device, "bfloat16")
    x, y, rstd = inputs.normal(rows, width), inputs.unwritten(rows, width), inputs.unwritten(rows, dtype=torch.float32)
    return Call(
        args=(x, y, rstd, rows, 1e-6, width, triton.next_power_of_2(width)),
        grid=lambda knobs: (triton.cdiv(rows, knobs["ROWS"]),),
        outs=(y, rstd),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, y, *_, eps, _, _ = call.args
    rstd = (x.double().square().sum(1) + eps).rsqrt()
    return (x * rstd[:, None]).to(y.dtype), rstd.float()


def work(call: Call) -> Work:
    """A square, a sum and a product."""
    x, y, rstd = call.args[:3]
    return Work(flops=3.0 * x.numel(), bytes=moved(x, y, rstd))


KERNEL = TritonKernel(
    name="l2_normalise",
    function=l2_normalise,
    space=SPACE,
    key=("rows", "D"),
    cases=(
        Case(name="heads", sizes={"rows": 32768 * 16, "D": 128}),
        Case(name="narrow_heads", sizes={"rows": 1 << 20, "D": 64}, dtype="float16"),
        Case(name="decode", sizes={"rows": 64 * 32, "D": 128}),
        Case(name="embeddings", sizes={"rows": 100_000, "D": 768}, dtype="float32"),
        Case(name="odd", sizes={"rows": 77_777, "D": 100}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "D": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "D": 37}, dtype="float16"),
        Case(name="over_a_block", sizes={"rows": 67, "D": 64}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-6,
)
