"""Images made larger in Triton, each pixel repeated: outputs one after the other, wherever they lie."""

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
def upsample_nearest(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, total, height, width, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    """BLOCK outputs of any plane."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    out_width = width * SCALE
    row, column = at // out_width, at % out_width
    plane, row = row // (height * SCALE), row % (height * SCALE)
    value = tl.load(x_ptr + (plane * height + row // SCALE) * width + column // SCALE, mask=at < total)
    tl.store(out_ptr + at, value, mask=at < total)


SPACE = Space.grid(
    {"BLOCK": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    planes, height, width, scale = (case.sizes[name] for name in ("planes", "height", "width", "scale"))
    inputs = Inputs(case, seed, device, "float16")
    x, out = inputs.normal(planes, height, width), inputs.unwritten(planes, height * scale, width * scale)
    return Call(
        args=(x, out, out.numel(), height, width, scale),
        grid=lambda knobs: (triton.cdiv(out.numel(), knobs["BLOCK"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    scale = call.args[-1]
    return (call.args[0].repeat_interleave(scale, 1).repeat_interleave(scale, 2),)


def work(call: Call) -> Work:
    return Work(flops=0.0, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="upsample_nearest",
    function=upsample_nearest,
    space=SPACE,
    key=("total", "height", "width", "SCALE"),
    cases=(
        Case(name="decoder", sizes={"planes": 4 * 512, "height": 64, "width": 64, "scale": 2}),
        Case(name="decoder_end", sizes={"planes": 2 * 256, "height": 256, "width": 256, "scale": 2}, dtype="bfloat16"),
        Case(name="thumbnails", sizes={"planes": 96, "height": 56, "width": 56, "scale": 8}, dtype="float32"),
        Case(name="odd", sizes={"planes": 333, "height": 65, "width": 101, "scale": 3}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"planes": 1, "height": 1, "width": 1, "scale": 1}),
        Case(name="below_a_block", sizes={"planes": 3, "height": 2, "width": 5, "scale": 2}, dtype="bfloat16"),
        Case(name="over_blocks", sizes={"planes": 2, "height": 13, "width": 17, "scale": 3}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
