"""Causal depthwise convolution along time in Triton, with a bias and SiLU where asked for."""

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
def causal_conv1d(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, y_ptr, T, D,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """BT steps of BD channels of one sequence."""
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    time = tl.program_id(1) * BT + tl.arange(0, BT)
    base = tl.program_id(2).to(tl.int64) * T * D
    inside = (time < T)[:, None] & (channel < D)[None, :]
    total = tl.zeros((BT, BD), tl.float32)
    for tap in tl.static_range(WIDTH):
        past = time - (WIDTH - 1 - tap)
        mask = inside & (past >= 0)[:, None]
        x = tl.load(x_ptr + base + past[:, None] * D + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + channel * WIDTH + tap, mask=channel < D, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=channel < D, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total * tl.sigmoid(total)
    tl.store(y_ptr + base + time[:, None] * D + channel[None, :], total.to(y_ptr.dtype.element_ty), mask=inside)


SPACE = Space.grid(
    {"BT": [16, 32, 64], "BD": [32, 64, 128], "num_warps": [2, 4]},
    default={"BT": 32, "BD": 64, "num_warps": 4},
    roles={"BT": "tile", "BD": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, channels, width = (case.sizes[name] for name in ("B", "T", "D", "width"))
    inputs = Inputs(case, seed, device, "bfloat16")
    x, y = inputs.normal(batch, length, channels), inputs.unwritten(batch, length, channels)
    weight, bias = inputs.normal(channels, width), inputs.normal(channels) if case.sizes.get("bias") else None
    return Call(
        args=(x, weight, bias, y, length, channels, width, bias is not None, bool(case.sizes.get("silu"))),
        grid=lambda knobs: (triton.cdiv(channels, knobs["BD"]), triton.cdiv(length, knobs["BT"]), batch),
        outs=(y,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, weight, bias, y, _, channels, width, _, silu = call.args
    padded = torch.nn.functional.pad(x.float().mT, (width - 1, 0))
    bias = None if bias is None else bias.float()
    total = torch.nn.functional.conv1d(padded, weight.float()[:, None], bias, groups=channels).mT
    return ((torch.nn.functional.silu(total) if silu else total).to(y.dtype),)


def work(call: Call) -> Work:
    x, width, bias, silu = call.args[0], *call.args[6:]
    return Work(flops=(2.0 * width + bias + 4.0 * silu) * x.numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="causal_conv1d",
    function=causal_conv1d,
    space=SPACE,
    key=("T", "D", "WIDTH"),
    cases=(
        Case(name="layer", sizes={"B": 8, "T": 4096, "D": 4096, "width": 4, "bias": 1, "silu": 1}),
        Case(name="linear_attention", sizes={"B": 4, "T": 8192, "D": 1024, "width": 4, "silu": 1}),
        Case(name="plain", sizes={"B": 16, "T": 2048, "D": 1536, "width": 3}, dtype="float16"),
        Case(name="odd", sizes={"B": 3, "T": 3001, "D": 1111, "width": 4, "bias": 1}),
        Case(name="wide", sizes={"B": 32, "T": 512, "D": 768, "width": 8, "bias": 1}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1, "width": 4}),
        Case(name="over_blocks", sizes={"B": 2, "T": 67, "D": 131, "width": 3, "bias": 1, "silu": 1}, dtype="float16"),
        Case(name="silu", sizes={"B": 1, "T": 20, "D": 40, "width": 5, "silu": 1}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-3,
)
