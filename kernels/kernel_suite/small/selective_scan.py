"""Selective scan of a state-space model in Triton, step by step in time: gates and inputs depend on the token."""

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
def selective_scan(  # type: ignore[no-untyped-def]
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, skip_ptr, y_ptr, T, D, SKIP: tl.constexpr, N: tl.constexpr, BD: tl.constexpr
):
    """BD channels of one sequence, N states each. The step's size goes through softplus."""
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    batch = tl.program_id(1)
    inside, state = channel < D, tl.arange(0, N)
    rate = -tl.exp(tl.load(a_ptr + channel[:, None] * N + state[None, :], mask=inside[:, None], other=0.0))
    if SKIP:
        skip = tl.load(skip_ptr + channel, mask=inside, other=0.0)
    h = tl.zeros((BD, N), tl.float32)
    for time in range(T):
        at = batch.to(tl.int64) * T + time
        x = tl.load(x_ptr + at * D + channel, mask=inside, other=0.0).to(tl.float32)
        dt = tl.load(dt_ptr + at * D + channel, mask=inside, other=0.0).to(tl.float32)
        dt = tl.where(dt > 20.0, dt, tl.log(1.0 + tl.exp(dt)))
        b = tl.load(b_ptr + at * N + state).to(tl.float32)
        c = tl.load(c_ptr + at * N + state).to(tl.float32)
        h = h * tl.exp(dt[:, None] * rate) + (dt * x)[:, None] * b[None, :]
        y = tl.sum(h * c[None, :], 1)
        if SKIP:
            y += skip * x
        tl.store(y_ptr + at * D + channel, y.to(y_ptr.dtype.element_ty), mask=inside)


SPACE = Space.grid(
    {"BD": [8, 16, 32, 64, 128], "num_warps": [1, 2, 4]},
    default={"BD": 32, "num_warps": 1},
    roles={"BD": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, channels, states = (case.sizes[name] for name in ("B", "T", "D", "N"))
    inputs = Inputs(case, seed, device, "bfloat16")
    x, dt = inputs.normal(batch, length, channels), inputs.normal(batch, length, channels).sub_(2)
    b, c = inputs.normal(batch, length, states), inputs.normal(batch, length, states)
    rate = inputs.normal(channels, states, dtype=torch.float32)
    skip = inputs.normal(channels, dtype=torch.float32)
    y = inputs.unwritten(batch, length, channels)
    return Call(
        args=(x, dt, rate, b, c, skip, y, length, channels, bool(case.sizes.get("skip")), states),
        grid=lambda knobs: (triton.cdiv(channels, knobs["BD"]), batch),
        outs=(y,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, dt, rate, b, c = (t.float() for t in call.args[:5])
    skip, y, length, _, skips, _ = call.args[5:]
    rate, dt = -rate.exp(), torch.nn.functional.softplus(dt)
    h = torch.zeros(len(x), *rate.shape, device=x.device)
    outs = []
    for time in range(length):
        step = dt[:, time, :, None]
        h = h * (step * rate).exp() + step * x[:, time, :, None] * b[:, time, None, :]
        outs.append((h * c[:, time, None, :]).sum(2))
    out = torch.stack(outs, 1)
    return ((out + skip * x if skips else out).to(y.dtype),)


def work(call: Call) -> Work:
    """An exponential, three products and two sums for each state and step."""
    x, states = call.args[0], call.args[-1]
    return Work(flops=6.0 * x.numel() * states, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="selective_scan",
    function=selective_scan,
    space=SPACE,
    key=("T", "D", "SKIP", "N"),
    cases=(
        Case(name="layer", sizes={"B": 8, "T": 2048, "D": 2048, "N": 16, "skip": 1}),
        Case(name="wide", sizes={"B": 4, "T": 1024, "D": 5120, "N": 16}),
        Case(name="many_states", sizes={"B": 4, "T": 1024, "D": 1024, "N": 64}, dtype="float16"),
        Case(name="short", sizes={"B": 256, "T": 32, "D": 768, "N": 8, "skip": 1}, dtype="float32"),
        Case(name="odd", sizes={"B": 3, "T": 777, "D": 1001, "N": 16}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1, "N": 2}),
        Case(name="below_a_block", sizes={"B": 2, "T": 7, "D": 21, "N": 4, "skip": 1}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "T": 5, "D": 131, "N": 8}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=2e-3,
)
