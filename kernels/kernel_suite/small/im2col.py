"""Patches of images as the rows of a matrix in Triton, so that a convolution becomes a matrix product."""

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
def im2col(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, channels, height, width, out_height, out_width, stride, padding, patches,
    KERNEL: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_P patches and BLOCK_C of a row's columns: a channel, and a place within the kernel's window."""
    patch = (tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
    entry = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    entries = channels * KERNEL * KERNEL
    image, place = patch // (out_height * out_width), patch % (out_height * out_width)
    channel, tap = entry // (KERNEL * KERNEL), entry % (KERNEL * KERNEL)
    y = place // out_width * stride - padding + tap // KERNEL
    x = place % out_width * stride - padding + tap % KERNEL
    written = (patch < patches) & (entry < entries)
    inside = written & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    source = ((image.to(tl.int64) * channels + channel) * height + y) * width + x
    value = tl.load(x_ptr + source, mask=inside, other=0.0)
    tl.store(out_ptr + patch.to(tl.int64) * entries + entry, value, mask=written)


SPACE = Space.grid(
    {"BLOCK_P": [8, 16, 32], "BLOCK_C": [32, 64, 128], "num_warps": [4, 8]},
    default={"BLOCK_P": 16, "BLOCK_C": 64, "num_warps": 4},
    roles={"BLOCK_P": "tile", "BLOCK_C": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    names = "images", "channels", "height", "width", "kernel", "stride", "padding"
    images, channels, height, width, kernel, stride, padding = (case.sizes[name] for name in names)
    inputs = Inputs(case, seed, device, "float16")
    x = inputs.normal(images, channels, height, width)
    out_height, out_width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    patches = images * out_height * out_width
    out = inputs.unwritten(patches, channels * kernel * kernel)
    return Call(
        args=(x, out, channels, height, width, out_height, out_width, stride, padding, patches, kernel),
        grid=lambda knobs: (triton.cdiv(patches, knobs["BLOCK_P"]), triton.cdiv(out.shape[1], knobs["BLOCK_C"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out, *_, stride, padding, _, kernel = call.args
    return (torch.nn.functional.unfold(x, kernel, padding=padding, stride=stride).mT.reshape(out.shape),)


def work(call: Call) -> Work:
    return Work(flops=0.0, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="im2col",
    function=im2col,
    space=SPACE,
    key=("channels", "height", "width", "stride", "KERNEL", "patches"),
    cases=(
        Case(
            name="middle_layer",
            sizes={"images": 32, "channels": 128, "height": 28, "width": 28, "kernel": 3, "stride": 1, "padding": 1},
        ),
        Case(
            name="first_layer",
            sizes={"images": 64, "channels": 3, "height": 224, "width": 224, "kernel": 7, "stride": 2, "padding": 3},
        ),
        Case(
            name="patches",
            sizes={"images": 64, "channels": 3, "height": 224, "width": 224, "kernel": 16, "stride": 16, "padding": 0},
            dtype="bfloat16",
        ),
        Case(
            name="odd",
            sizes={"images": 5, "channels": 17, "height": 101, "width": 77, "kernel": 5, "stride": 2, "padding": 2},
            dtype="float32",
        ),
    ),
    corners=(
        Case(
            name="one",
            sizes={"images": 1, "channels": 1, "height": 1, "width": 1, "kernel": 1, "stride": 1, "padding": 0},
        ),
        Case(
            name="below_a_block",
            sizes={"images": 1, "channels": 2, "height": 4, "width": 3, "kernel": 3, "stride": 2, "padding": 1},
            dtype="float32",
        ),
        Case(
            name="over_blocks",
            sizes={"images": 2, "channels": 16, "height": 7, "width": 9, "kernel": 3, "stride": 1, "padding": 1},
        ),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
