"""Quantisation to float8 (e4m3) by a scale already known, in Triton, keeping the largest magnitude for the next one."""

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
def fp8_delayed_scale(  # type: ignore[no-untyped-def]
    x_ptr, scale_ptr, q_ptr, largest_ptr, n, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    """BLOCK numbers; what is too large becomes the format's largest. Programs agree on the maximum with atomics."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    scaled = x / tl.load(scale_ptr)
    scaled = tl.minimum(tl.maximum(scaled, -LIMIT), LIMIT)
    tl.store(q_ptr + at, scaled.to(q_ptr.dtype.element_ty), mask=at < n)
    tl.atomic_max(largest_ptr, tl.max(tl.abs(x), 0))


SPACE = Space.grid(
    {"BLOCK": [1024, 2048, 4096, 8192], "num_warps": [2, 4, 8]},
    default={"BLOCK": 2048, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Where `wide`, what is written is left in float32, for interpreters and GPUs without the format."""
    n = case.sizes["n"]
    inputs = Inputs(case, seed, device, "bfloat16")
    x, scale = inputs.normal(n), torch.full((1,), 0.01, device=device)
    q = inputs.unwritten(n, dtype=torch.float32 if case.sizes.get("wide") else torch.float8_e4m3fn)
    largest = torch.zeros(1, device=device)
    return Call(
        args=(x, scale, q, largest, n, 448.0),
        grid=lambda knobs: (triton.cdiv(n, knobs["BLOCK"]),),
        outs=(q, largest),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, scale, q, largest, _, limit = call.args
    value = (x.float() / scale).clamp(-limit, limit)
    return value.to(q.dtype), torch.maximum(largest, x.float().abs().max())


def work(call: Call) -> Work:
    """A division, two limits, a magnitude and a comparison."""
    x, scale, q, largest = call.args[:4]
    return Work(flops=5.0 * x.numel(), bytes=moved(x, scale, q, largest))


KERNEL = TritonKernel(
    name="fp8_delayed_scale",
    function=fp8_delayed_scale,
    space=SPACE,
    key=("n",),
    cases=(
        Case(name="activations", sizes={"n": 8192 * 8192}),
        Case(name="weights", sizes={"n": 28672 * 8192}),
        Case(name="decode", sizes={"n": 64 * 4096}, dtype="float16"),
        Case(name="odd", sizes={"n": 10_000_003}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1, "wide": 1}),
        Case(name="below_a_block", sizes={"n": 77, "wide": 1}, dtype="float16"),
        Case(name="over_a_block", sizes={"n": 8195, "wide": 1}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Float8's neighbour where the rounding turns: 2**-3 away, or 2**-9 near zero. The corners have nothing to round.
    rtol=2**-3,
    atol=2**-9,
    restore_value=("largest_ptr",),
)
