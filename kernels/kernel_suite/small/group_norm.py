"""Group norm of images: a program for each group of each image, over it once for the moments and once to write."""

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

EPSILON = 1e-5


@triton.jit  # type: ignore[untyped-decorator]
def group_norm(  # type: ignore[no-untyped-def]
    y_ptr, x_ptr, weight_ptr, bias_ptr, groups, channels_per_group, pixels, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A group's channels lie one after the other, so that it is a run of memory."""
    image_group = tl.program_id(0)
    group = image_group % groups
    size = channels_per_group * pixels
    base = image_group.to(tl.int64) * size
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        x = tl.load(x_ptr + base + start + offsets, mask=start + offsets < size, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, 0) / size
    rstd = tl.rsqrt(tl.sum(squares, 0) / size - mean * mean + eps)
    for start in range(0, size, BLOCK):
        at = start + offsets
        x = tl.load(x_ptr + base + at, mask=at < size, other=0.0).to(tl.float32)
        channel = group * channels_per_group + at // pixels
        weight = tl.load(weight_ptr + channel, mask=at < size, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel, mask=at < size, other=0.0).to(tl.float32)
        tl.store(y_ptr + base + at, (x - mean) * rstd * weight + bias, mask=at < size)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    images, channels, side, groups = (case.sizes[name] for name in ("images", "channels", "side", "groups"))
    x, y = inputs.normal(images, channels, side, side), inputs.unwritten(images, channels, side, side)
    weight, bias = inputs.normal(channels), inputs.normal(channels)
    return Call(
        args=(y, x, weight, bias, groups, channels // groups, side * side, EPSILON),
        grid=lambda _: (images * groups,),
        outs=(y,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    y, x, weight, bias, groups, *_, eps = call.args
    return (torch.nn.functional.group_norm(x.double(), groups, weight.double(), bias.double(), eps).to(y.dtype),)


def work(call: Call) -> Work:
    return Work(flops=7.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="group_norm",
    function=group_norm,
    space=Space.grid(
        {"BLOCK": [1024, 2048, 4096], "num_warps": [4, 8, 16]},
        default={"BLOCK": 2048, "num_warps": 8},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("channels_per_group", "pixels"),
    cases=(
        Case(name="diffusion", sizes={"images": 8, "channels": 320, "side": 64, "groups": 32}),
        Case(name="decoder", sizes={"images": 2, "channels": 128, "side": 512, "groups": 32}, dtype="bfloat16"),
        Case(name="deep", sizes={"images": 16, "channels": 1280, "side": 8, "groups": 32}),
        Case(name="detection", sizes={"images": 4, "channels": 256, "side": 100, "groups": 32}, dtype="float32"),
        Case(name="odd", sizes={"images": 3, "channels": 96, "side": 37, "groups": 6}),
    ),
    corners=(
        Case(name="a_pixel", sizes={"images": 2, "channels": 8, "side": 1, "groups": 2}),
        Case(name="below_a_block", sizes={"images": 2, "channels": 6, "side": 5, "groups": 3}, dtype="float32"),
        Case(name="over_a_block", sizes={"images": 1, "channels": 6, "side": 41, "groups": 2}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-3,
)
