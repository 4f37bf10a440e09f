"""Backward pass of a gated recurrence in Triton, from the last step to the first: h = f h + (1 - f) x, all h given."""

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
def gated_recurrence_backward(  # type: ignore[no-untyped-def]
    dh_ptr, h_ptr, x_ptr, gate_ptr, dx_ptr, dgate_ptr, T, D, BLOCK_D: tl.constexpr
):
    """BLOCK_D channels of one sequence. What a step passes back is carried, decayed by its gate."""
    channel = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = channel < D
    at = tl.program_id(1).to(tl.int64) * T * D + (T - 1) * D + channel
    carried = tl.zeros((BLOCK_D,), tl.float32)
    for time in range(T - 1, -1, -1):
        gradient = tl.load(dh_ptr + at, mask=inside, other=0.0).to(tl.float32) + carried
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        keep = tl.sigmoid(tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32))
        before = tl.load(h_ptr + at - D, mask=inside & (time > 0), other=0.0).to(tl.float32)
        dgate = gradient * (before - x) * keep * (1.0 - keep)
        tl.store(dx_ptr + at, (gradient * (1.0 - keep)).to(dx_ptr.dtype.element_ty), mask=inside)
        tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
        carried = gradient * keep
        at -= D


SPACE = Space.grid(
    {"BLOCK_D": [32, 64, 128, 256, 512], "num_warps": [1, 2, 4]},
    constraints=[lambda BLOCK_D, num_warps: BLOCK_D // num_warps >= 32],
    default={"BLOCK_D": 128, "num_warps": 4},
    roles={"BLOCK_D": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, channels = (case.sizes[name] for name in ("B", "T", "D"))
    inputs = Inputs(case, seed, device, "float16")
    dh, h, x, gate = (inputs.normal(batch, length, channels) for _ in range(4))
    dx, dgate = (inputs.unwritten(batch, length, channels) for _ in range(2))
    return Call(
        args=(dh, h, x, gate, dx, dgate, length, channels),
        grid=lambda knobs: (triton.cdiv(channels, knobs["BLOCK_D"]), batch),
        outs=(dx, dgate),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dh, h, x, gate = (t.float() for t in call.args[:4])
    keep, carried, every = gate.sigmoid(), torch.zeros_like(dh[:, 0]), []
    for time in reversed(range(dh.shape[1])):
        every.append(dh[:, time] + carried)
        carried = every[-1] * keep[:, time]
    gradient = torch.stack(every[::-1], 1)
    before = torch.nn.functional.pad(h[:, :-1], (0, 0, 1, 0))
    dgate = gradient * (before - x) * keep * (1 - keep)
    return (gradient * (1 - keep)).to(call.outs[0].dtype), dgate.to(call.outs[1].dtype)


def work(call: Call) -> Work:
    return Work(flops=12.0 * call.args[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="gated_recurrence_backward",
    function=gated_recurrence_backward,
    space=SPACE,
    key=("T", "D"),
    cases=(
        Case(name="layer", sizes={"B": 16, "T": 1024, "D": 2048}),
        Case(name="long", sizes={"B": 2, "T": 4096, "D": 4096}, dtype="bfloat16"),
        Case(name="short", sizes={"B": 512, "T": 64, "D": 1024}),
        Case(name="odd", sizes={"B": 31, "T": 501, "D": 777}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1}),
        Case(name="below_a_block", sizes={"B": 2, "T": 7, "D": 37}),
        Case(name="over_a_block", sizes={"B": 1, "T": 4, "D": 515}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=2e-3,
)
