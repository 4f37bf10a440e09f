"""A step of heat on a plane in Triton: each point moves towards the mean of its four neighbours, and the edge stays."""

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
def stencil(  # type: ignore[no-untyped-def]
    u_ptr, out_ptr, height, width, rate, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr
):
    """A tile of BLOCK_Y by BLOCK_X; neighbours come out of the cache."""
    y = tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y)[:, None]
    x = tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X)[None, :]
    at = u_ptr + y * width + x
    written = (y < height) & (x < width)
    inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    here = tl.load(at, mask=written, other=0.0)
    around = tl.load(at - 1, mask=inner, other=0.0) + tl.load(at + 1, mask=inner, other=0.0)
    around += tl.load(at - width, mask=inner, other=0.0) + tl.load(at + width, mask=inner, other=0.0)
    tl.store(out_ptr + y * width + x, tl.where(inner, here + rate * (around - 4.0 * here), here), mask=written)


SPACE = Space.grid(
    {"BLOCK_Y": [1, 4, 16], "BLOCK_X": [64, 128, 256], "num_warps": [2, 4, 8]},
    constraints=[lambda BLOCK_Y, BLOCK_X, num_warps: 1 <= BLOCK_Y * BLOCK_X // (32 * num_warps) <= 32],
    default={"BLOCK_Y": 4, "BLOCK_X": 128, "num_warps": 4},
    roles={"BLOCK_Y": "tile", "BLOCK_X": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    height, width = case.sizes["height"], case.sizes["width"]
    inputs = Inputs(case, seed, device, "float32")
    u, out = inputs.normal(height, width), inputs.unwritten(height, width)
    return Call(
        args=(u, out, height, width, 0.2),
        grid=lambda knobs: (triton.cdiv(width, knobs["BLOCK_X"]), triton.cdiv(height, knobs["BLOCK_Y"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    u, rate = call.args[0], call.args[-1]
    out = u.clone()
    inner = u[1:-1, 1:-1].double()
    around = u[1:-1, :-2].double() + u[1:-1, 2:] + u[:-2, 1:-1] + u[2:, 1:-1]
    out[1:-1, 1:-1] = (inner + rate * (around - 4 * inner)).to(u.dtype)
    return (out,)


def work(call: Call) -> Work:
    """Five sums and two products for each point."""
    u, out = call.args[:2]
    return Work(flops=7.0 * u.numel(), bytes=moved(u, out))


KERNEL = TritonKernel(
    name="stencil",
    function=stencil,
    space=SPACE,
    key=("height", "width"),
    cases=(
        Case(name="square", sizes={"height": 8192, "width": 8192}),
        Case(name="small", sizes={"height": 1024, "width": 1024}),
        Case(name="double", sizes={"height": 4096, "width": 4096}, dtype="float64"),
        Case(name="odd", sizes={"height": 3001, "width": 5003}),
        Case(name="long", sizes={"height": 128, "width": 1 << 20}),
    ),
    corners=(
        Case(name="one", sizes={"height": 1, "width": 1}),
        Case(name="below_a_block", sizes={"height": 3, "width": 37}),
        Case(name="over_blocks", sizes={"height": 18, "width": 259}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-5,
)
