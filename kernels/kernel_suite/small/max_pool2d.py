"""Max pooling of images in Triton, with the place of each maximum for the backward pass."""

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
def max_pool2d(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, place_ptr, height, width, out_height, out_width, total,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK outputs that follow each other, whatever the plane."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = at % out_width
    row = at // out_width % out_height
    plane = at // (out_width * out_height)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            y, x = row * STRIDE - PADDING + i, column * STRIDE - PADDING + j
            inside = (at < total) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            value = tl.load(x_ptr + plane * height * width + y * width + x, mask=inside, other=float("-inf"))
            value = value.to(tl.float32)
            place = tl.where(value > best, (y * width + x).to(tl.int32), place)
            best = tl.maximum(best, value)
    tl.store(out_ptr + at, best.to(out_ptr.dtype.element_ty), mask=at < total)
    tl.store(place_ptr + at, place, mask=at < total)


SPACE = Space.grid(
    {"BLOCK": [128, 256, 512, 1024], "num_warps": [2, 4, 8]},
    default={"BLOCK": 256, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    planes, height, width, kernel, stride, padding = (
        case.sizes[name] for name in ("planes", "height", "width", "kernel", "stride", "padding")
    )
    inputs = Inputs(case, seed, device, "float32")
    x = inputs.normal(planes, height, width)
    shape = planes, *((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    out, place = inputs.unwritten(*shape), inputs.unwritten(*shape, dtype=torch.int32)
    return Call(
        args=(x, out, place, height, width, *shape[1:], out.numel(), kernel, stride, padding),
        grid=lambda knobs: (triton.cdiv(out.numel(), knobs["BLOCK"]),),
        outs=(out, place),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    kernel, stride, padding = call.args[-3:]
    out, place = torch.nn.functional.max_pool2d(call.args[0], kernel, stride, padding, return_indices=True)
    return out, place.int()


def work(call: Call) -> Work:
    x, out, place = call.args[:3]
    return Work(flops=float(out.numel() * call.args[-3] ** 2), bytes=moved(x, out, place))


KERNEL = TritonKernel(
    name="max_pool2d",
    function=max_pool2d,
    space=SPACE,
    key=("height", "width", "KERNEL", "STRIDE", "total"),
    cases=(
        Case(
            name="first_layer",
            sizes={"planes": 64 * 64, "height": 112, "width": 112, "kernel": 3, "stride": 2, "padding": 1},
        ),
        Case(
            name="halved",
            sizes={"planes": 32 * 128, "height": 112, "width": 112, "kernel": 2, "stride": 2, "padding": 0},
            dtype="float16",
        ),
        Case(
            name="same_size",
            sizes={"planes": 32 * 256, "height": 28, "width": 28, "kernel": 5, "stride": 1, "padding": 2},
            dtype="float16",
        ),
        Case(
            name="large_image",
            sizes={"planes": 3, "height": 4000, "width": 6000, "kernel": 2, "stride": 2, "padding": 0},
        ),
    ),
    corners=(
        Case(name="one", sizes={"planes": 1, "height": 1, "width": 1, "kernel": 1, "stride": 1, "padding": 0}),
        Case(name="odd", sizes={"planes": 3, "height": 9, "width": 13, "kernel": 3, "stride": 2, "padding": 1}),
        Case(
            name="over_a_block", sizes={"planes": 2, "height": 24, "width": 31, "kernel": 2, "stride": 1, "padding": 0}
        ),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
