"""Gradient of a causal depthwise convolution's weight in Triton: stretches of time add theirs up with atomics."""

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
def causal_conv1d_backward_weight(  # type: ignore[no-untyped-def]
    dy_ptr, x_ptr, dweight_ptr, T, D, stretch, WIDTH: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """One stretch of one sequence, for BD channels and all taps. There are WIDTH taps, a power of two."""
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    first = tl.program_id(1) * stretch
    last = tl.minimum(first + stretch, T)
    base = tl.program_id(2).to(tl.int64) * T * D
    tap = tl.arange(0, WIDTH)
    total = tl.zeros((BD, WIDTH), tl.float32)
    for start in range(first, last, BT):
        time = start + tl.arange(0, BT)
        mask = (time < last)[:, None] & (channel < D)[None, :]
        dy = tl.load(dy_ptr + base + time[:, None] * D + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        for back in tl.static_range(WIDTH):
            past = (time - back)[:, None]
            x = tl.load(x_ptr + base + past * D + channel[None, :], mask=mask & (past >= 0), other=0.0).to(tl.float32)
            total += tl.where(tap == WIDTH - 1 - back, tl.sum(dy * x, 0)[:, None], 0.0)
    at = channel[:, None] * WIDTH + tap[None, :]
    tl.atomic_add(dweight_ptr + at, total, mask=(channel < D)[:, None], sem="relaxed")


SPACE = Space.grid(
    {"BT": [16, 32, 64], "BD": [32, 64], "num_warps": [2, 4, 8]},
    default={"BT": 32, "BD": 64, "num_warps": 4},
    roles={"BT": "tile", "BD": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """The gradient begins with zeros, which atomics add to."""
    batch, length, channels, width, stretch = (case.sizes[name] for name in ("B", "T", "D", "width", "stretch"))
    inputs = Inputs(case, seed, device, "bfloat16")
    dy, x = (inputs.normal(batch, length, channels) for _ in range(2))
    dweight = torch.zeros(channels, width, device=device)
    return Call(
        args=(dy, x, dweight, length, channels, stretch, width),
        grid=lambda knobs: (triton.cdiv(channels, knobs["BD"]), triton.cdiv(length, stretch), batch),
        outs=(dweight,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dy, x, dweight, length, _, _, width = call.args
    padded = torch.nn.functional.pad(x.double(), (0, 0, width - 1, 0))
    taps = [(dy.double() * padded[:, tap : tap + length]).sum((0, 1)) for tap in range(width)]
    return (dweight + torch.stack(taps, 1).float(),)


def work(call: Call) -> Work:
    dy, x, dweight, *_, width = call.args
    return Work(flops=2.0 * width * dy.numel(), bytes=moved(dy, x, dweight))


KERNEL = TritonKernel(
    name="causal_conv1d_backward_weight",
    function=causal_conv1d_backward_weight,
    space=SPACE,
    key=("T", "D", "WIDTH"),
    cases=(
        Case(name="layer", sizes={"B": 8, "T": 4096, "D": 4096, "width": 4, "stretch": 512}),
        Case(name="linear_attention", sizes={"B": 4, "T": 8192, "D": 1024, "width": 4, "stretch": 256}),
        Case(name="short", sizes={"B": 64, "T": 256, "D": 1536, "width": 2, "stretch": 256}, dtype="float16"),
        Case(name="odd", sizes={"B": 3, "T": 3001, "D": 1111, "width": 4, "stretch": 200}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1, "width": 2, "stretch": 16}),
        Case(name="over_stretches", sizes={"B": 2, "T": 75, "D": 37, "width": 4, "stretch": 30}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "T": 70, "D": 66, "width": 4, "stretch": 80}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-2,  # tens of thousands of products, in any order
    restore_value=("dweight_ptr",),
)
