"""Mean over all pixels of each channel in Triton, with the channels last."""

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
def global_average_pool(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, pixels, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    """CHANNELS channels of one image, PIXELS pixels at a time."""
    image = tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    x_ptr += image.to(tl.int64) * pixels * channels
    total = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for start in range(0, pixels, PIXELS):
        pixel = start + tl.arange(0, PIXELS)[:, None]
        mask = (pixel < pixels) & (channel < channels)
        total += tl.load(x_ptr + pixel * channels + channel, mask=mask, other=0.0)
    mean = tl.sum(total, axis=0)[None, :] / pixels
    tl.store(out_ptr + image * channels + channel, mean, mask=channel < channels)


SPACE = Space.grid(
    {"PIXELS": [16, 64], "CHANNELS": [32, 64, 128], "num_warps": [2, 4, 8]},
    default={"PIXELS": 64, "CHANNELS": 64, "num_warps": 4},
    roles={"PIXELS": "tile", "CHANNELS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    images, pixels, channels = (case.sizes[name] for name in ("images", "pixels", "channels"))
    inputs = Inputs(case, seed, device, "float16")
    x, out = inputs.normal(images, pixels, channels), inputs.unwritten(images, channels)
    return Call(
        args=(x, out, pixels, channels),
        grid=lambda knobs: (triton.cdiv(channels, knobs["CHANNELS"]), images),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out = call.args[:2]
    return (x.float().mean(1).to(out.dtype),)


def work(call: Call) -> Work:
    x, out = call.args[:2]
    return Work(flops=float(x.numel()), bytes=moved(x, out))


KERNEL = TritonKernel(
    name="global_average_pool",
    function=global_average_pool,
    space=SPACE,
    key=("pixels", "channels"),
    cases=(
        Case(name="classifier", sizes={"images": 256, "pixels": 49, "channels": 2048}),
        Case(name="gates", sizes={"images": 128, "pixels": 3136, "channels": 256}, dtype="bfloat16"),
        Case(name="one_image", sizes={"images": 1, "pixels": 512 * 512, "channels": 320}),
        Case(name="odd", sizes={"images": 100, "pixels": 1001, "channels": 333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"images": 1, "pixels": 1, "channels": 1}),
        Case(name="below_a_block", sizes={"images": 3, "pixels": 17, "channels": 35}),
        Case(name="over_blocks", sizes={"images": 1, "pixels": 70, "channels": 131}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-4,
)
