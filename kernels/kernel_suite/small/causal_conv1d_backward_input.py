"""Gradient of a causal depthwise convolution's input in Triton; through SiLU it computes the convolution anew."""

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
def convolved(x_ptr, weight_ptr, time, T, inside, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The convolution at these steps of one channel."""
    total = tl.zeros_like(time).to(tl.float32)
    for tap in tl.static_range(WIDTH):
        past = time - (WIDTH - 1 - tap)
        x = tl.load(x_ptr + past, mask=inside & (past >= 0) & (past < T), other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + tap).to(tl.float32)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def causal_conv1d_backward_input(  # type: ignore[no-untyped-def]
    dy_ptr, x_ptr, weight_ptr, dx_ptr, D, T, WIDTH: tl.constexpr, SILU: tl.constexpr, BLOCK_T: tl.constexpr
):
    """BLOCK_T steps of one channel, whose steps lie side by side. An input reaches WIDTH outputs, itself the first."""
    row = tl.program_id(1)
    channel = row % D
    time = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    base = row.to(tl.int64) * T
    total = tl.zeros((BLOCK_T,), tl.float32)
    for later in tl.static_range(WIDTH):
        at = time + later
        gradient = tl.load(dy_ptr + base + at, mask=at < T, other=0.0).to(tl.float32)
        if SILU:
            y = convolved(x_ptr + base, weight_ptr + channel * WIDTH, at, T, at < T, WIDTH)
            sigmoid = tl.sigmoid(y)
            gradient = gradient * sigmoid * (1.0 + y * (1.0 - sigmoid))
        total += gradient * tl.load(weight_ptr + channel * WIDTH + WIDTH - 1 - later).to(tl.float32)
    tl.store(dx_ptr + base + time, total.to(dx_ptr.dtype.element_ty), mask=time < T)


SPACE = Space.grid(
    {"BLOCK_T": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BLOCK_T, num_warps: 2 <= BLOCK_T // (32 * num_warps) <= 32],
    default={"BLOCK_T": 512, "num_warps": 4},
    roles={"BLOCK_T": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, channels, length, width = (case.sizes[name] for name in ("B", "D", "T", "width"))
    inputs = Inputs(case, seed, device, "bfloat16")
    dy, x = (inputs.normal(batch, channels, length) for _ in range(2))
    weight, dx = inputs.normal(channels, width), inputs.unwritten(batch, channels, length)
    return Call(
        args=(dy, x, weight, dx, channels, length, width, bool(case.sizes.get("silu"))),
        grid=lambda knobs: (triton.cdiv(length, knobs["BLOCK_T"]), batch * channels),
        outs=(dx,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dy, x, weight, dx, channels, _, width, silu = call.args
    gradient, weight = dy.float(), weight.float()[:, None]
    if silu:
        y = torch.nn.functional.conv1d(torch.nn.functional.pad(x.float(), (width - 1, 0)), weight, groups=channels)
        gradient = gradient * y.sigmoid() * (1 + y * (1 - y.sigmoid()))
    later = torch.nn.functional.pad(gradient, (0, width - 1))
    return (torch.nn.functional.conv1d(later, weight.flip(2), groups=channels).to(dx.dtype),)


def work(call: Call) -> Work:
    """With SiLU the convolution and its derivative once for each step; the kernel does it WIDTH times. x is read then."""
    dy, x, weight, dx, _, _, width, silu = call.args
    flops = (4.0 * width + 7.0) if silu else 2.0 * width
    return Work(flops=flops * dy.numel(), bytes=moved(dy, weight, dx) + (moved(x) if silu else 0.0))


KERNEL = TritonKernel(
    name="causal_conv1d_backward_input",
    function=causal_conv1d_backward_input,
    space=SPACE,
    key=("D", "T", "WIDTH", "SILU"),
    cases=(
        Case(name="layer", sizes={"B": 8, "D": 4096, "T": 4096, "width": 4, "silu": 1}),
        Case(name="plain", sizes={"B": 16, "D": 1536, "T": 2048, "width": 4}, dtype="float16"),
        Case(name="long", sizes={"B": 1, "D": 1024, "T": 65536, "width": 3, "silu": 1}),
        Case(name="odd", sizes={"B": 3, "D": 1111, "T": 3001, "width": 4}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "D": 1, "T": 1, "width": 4, "silu": 1}),
        Case(name="below_a_block", sizes={"B": 2, "D": 3, "T": 37, "width": 3}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "D": 2, "T": 2051, "width": 4, "silu": 1}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=2e-3,
)
