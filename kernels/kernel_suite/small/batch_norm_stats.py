"""Mean and reciprocal deviation of each channel over a batch of images: a program for each channel."""

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
def batch_norm_stats(mean_ptr, rstd_ptr, x_ptr, images, channels, pixels, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums and sums of squares in float32, an image after the other."""
    channel = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for image in range(images):
        base = x_ptr + (image * channels + channel).to(tl.int64) * pixels
        for start in range(0, pixels, BLOCK):
            x = tl.load(base + start + offs, mask=start + offs < pixels, other=0.0).to(tl.float32)
            total += x
            squares += x * x
    count = images * pixels
    mean = tl.sum(total, axis=0) / count
    variance = tl.sum(squares, axis=0) / count - mean * mean
    tl.store(mean_ptr + channel, mean)
    tl.store(rstd_ptr + channel, 1.0 / tl.sqrt(variance + eps))


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    images, channels, side = (case.sizes[name] for name in ("images", "channels", "side"))
    x = inputs.normal(images, channels, side, side)
    mean, rstd = (inputs.unwritten(channels, dtype=torch.float32) for _ in range(2))
    return Call(
        args=(mean, rstd, x, images, channels, side * side, EPSILON),
        grid=lambda _: (channels,),
        outs=(mean, rstd),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, eps = call.args[2], call.args[-1]
    variance, mean = torch.var_mean(x.double(), dim=(0, 2, 3), unbiased=False)
    return mean.float(), (variance + eps).rsqrt().float()


def work(call: Call) -> Work:
    return Work(flops=3.0 * call.args[2].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="batch_norm_stats",
    function=batch_norm_stats,
    space=Space.grid(
        {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [2, 4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("images", "channels", "pixels"),
    cases=(
        Case(name="middle", sizes={"images": 32, "channels": 256, "side": 28}),
        Case(name="stem", sizes={"images": 64, "channels": 64, "side": 112}),
        Case(name="last", sizes={"images": 128, "channels": 2048, "side": 7}, dtype="float32"),
        Case(name="few_images", sizes={"images": 2, "channels": 512, "side": 64}, dtype="bfloat16"),
        Case(name="odd", sizes={"images": 13, "channels": 99, "side": 55}),
    ),
    corners=(
        Case(name="two", sizes={"images": 2, "channels": 1, "side": 1}, dtype="float32"),
        Case(name="below_a_block", sizes={"images": 3, "channels": 4, "side": 5}),
        Case(name="over_a_block", sizes={"images": 2, "channels": 3, "side": 17}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-5,
)
