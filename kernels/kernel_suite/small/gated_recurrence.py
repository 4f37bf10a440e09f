"""A gated recurrence in Triton, one number to a channel: h = f h + (1 - f) x, step by step in time."""

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
def gated_recurrence(  # type: ignore[no-untyped-def]
    x_ptr, gate_ptr, h_ptr, T, D, stride_b, stride_t, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr
):
    """BLOCK_D channels of one sequence; UNROLL steps in a row, so that their loads are in flight at once."""
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = channel < D
    base = tl.program_id(0).to(tl.int64) * stride_b
    h = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for start in range(0, T, UNROLL):
        for step in tl.static_range(UNROLL):
            place = (start + step) * stride_t + channel
            at, mask = base + place, inside & (place < T * stride_t)
            x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
            keep = tl.sigmoid(tl.load(gate_ptr + at, mask=mask, other=0.0).to(tl.float32))
            h = keep * h + (1.0 - keep) * x
            tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty), mask=mask)


SPACE = Space.grid(
    {"BLOCK_D": [32, 64, 128, 256], "UNROLL": [1, 4], "num_warps": [1, 2]},
    default={"BLOCK_D": 64, "UNROLL": 1, "num_warps": 2},
    roles={"BLOCK_D": "tile", "UNROLL": "unroll", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, channels = (case.sizes[name] for name in ("B", "T", "D"))
    inputs = Inputs(case, seed, device, "float16")
    x, gate = (inputs.normal(batch, length, channels) for _ in range(2))
    h = inputs.unwritten(batch, length, channels)
    return Call(
        args=(x, gate, h, length, channels, x.stride(0), x.stride(1)),
        grid=lambda knobs: (batch, triton.cdiv(channels, knobs["BLOCK_D"])),
        outs=(h,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, gate, out = call.args[:3]
    keep = gate.float().sigmoid()
    given, h, every = (1 - keep) * x.float(), torch.zeros_like(x[:, 0], dtype=torch.float32), []
    for time in range(x.shape[1]):
        h = keep[:, time] * h + given[:, time]
        every.append(h.to(out.dtype))
    return (torch.stack(every, 1),)


def work(call: Call) -> Work:
    """A sigmoid of three steps, a difference, two products and a sum."""
    return Work(flops=7.0 * call.args[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="gated_recurrence",
    function=gated_recurrence,
    space=SPACE,
    key=("T", "D"),
    cases=(
        Case(name="layer", sizes={"B": 16, "T": 2048, "D": 2048}),
        Case(name="long", sizes={"B": 2, "T": 8192, "D": 4096}, dtype="bfloat16"),
        Case(name="short", sizes={"B": 512, "T": 64, "D": 1024}),
        Case(name="few_channels", sizes={"B": 64, "T": 1000, "D": 100}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1}),
        Case(name="odd", sizes={"B": 2, "T": 7, "D": 37}),
        Case(name="over_a_block", sizes={"B": 1, "T": 9, "D": 259}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-3,
)
