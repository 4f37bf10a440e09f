"""A moving average of a model's weights in place, kept within bounds: clamp(lerp(average, weight, rate))."""

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

RATE, BOUND = 0.01, 2.0


@triton.jit  # type: ignore[untyped-decorator]
def ema_update(average_ptr, weight_ptr, n_elements, rate, bound, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Move the average a little towards the weight."""
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    average = tl.load(average_ptr + offsets, mask=mask).to(tl.float32)
    weight = tl.load(weight_ptr + offsets, mask=mask).to(tl.float32)
    average += rate * (weight - average)
    tl.store(average_ptr + offsets, tl.clamp(average, -bound, bound), mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device, "bfloat16"), case.sizes["n"]
    average, weight = inputs.normal(n, dtype=torch.float32), inputs.normal(n)
    return Call(
        args=(average, weight, n, RATE, BOUND),
        grid=lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),),
        outs=(average,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    average, weight, _, rate, bound = call.args
    return (torch.lerp(average, weight.float(), rate).clamp(-bound, bound),)


def work(call: Call) -> Work:
    return Work(flops=5.0 * call.args[2], bytes=moved(*call.args, *call.outs))


KERNEL = TritonKernel(
    name="ema_update",
    function=ema_update,
    space=Space(
        [
            {"BLOCK_SIZE": 1024, "num_warps": 4},
            {"BLOCK_SIZE": 128, "num_warps": 1},
            {"BLOCK_SIZE": 256, "num_warps": 2},
            {"BLOCK_SIZE": 512, "num_warps": 4},
            {"BLOCK_SIZE": 1024, "num_warps": 8},
            {"BLOCK_SIZE": 2048, "num_warps": 8},
            {"BLOCK_SIZE": 4096, "num_warps": 8},
            {"BLOCK_SIZE": 8192, "num_warps": 16},
        ],
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
    ),
    key=("n_elements",),
    cases=(
        Case(name="embedding", sizes={"n": 50304 * 1600}),
        Case(name="convolution", sizes={"n": 512 * 512 * 9}, dtype="float32"),
        Case(name="bias", sizes={"n": 1024}),
        Case(name="odd", sizes={"n": 5_000_011}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 100}, dtype="float32"),
        Case(name="over_a_block", sizes={"n": 8195}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-6,
    atol=1e-6,
    restore_value=("average_ptr",),
)
