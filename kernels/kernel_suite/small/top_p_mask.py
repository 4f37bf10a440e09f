"""The likeliest tokens that reach a probability of p together, in Triton: the threshold is found by halving an interval.

What is less likely than the threshold gets -inf. Each step sums all of the row, which stays in registers.
"""

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
def top_p_mask(  # type: ignore[no-untyped-def]
    logits_ptr, out_ptr, top_p_ptr, columns, WIDTH: tl.constexpr, STEPS: tl.constexpr
):
    """One row, and p of its own. What is kept weighs at least p, and the threshold is as high as STEPS halvings tell."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    logits = tl.load(logits_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
    value = logits.to(tl.float32)
    high = tl.max(value, 0)
    power = tl.exp(value - high)
    wanted = tl.load(top_p_ptr + row) * tl.sum(power, 0)
    low = high - 32.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        enough = tl.sum(tl.where(value >= middle, power, 0.0), 0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    kept = tl.where(value >= low, logits, float("-inf"))
    tl.store(out_ptr + row * columns + column, kept, mask=column < columns)


SPACE = Space.grid(
    {"num_warps": [2, 4, 8, 16, 32], "num_stages": [1, 2]},
    default={"num_warps": 8, "num_stages": 1},
    roles={"num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """A row's p lies amid a token's share, far from where one more would be needed or one less."""
    rows, columns, steps = (case.sizes[name] for name in ("rows", "columns", "steps"))
    inputs = Inputs(case, seed, device, "float32")
    logits, out = inputs.normal(rows, columns).mul_(2), inputs.unwritten(rows, columns)
    chance = logits.float().softmax(1).sort(1, descending=True).values
    middles = chance.cumsum(1) - chance / 2
    top_p = middles.gather(1, inputs.integers(columns // 8 + 1, rows, 1))[:, 0].contiguous()
    return Call(
        args=(logits, out, top_p, columns, triton.next_power_of_2(columns), steps),
        grid=lambda _: (rows,),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    logits, out, top_p, *_, steps = call.args
    value = logits.float()
    high = value.amax(1)
    power = (value - high[:, None]).exp()
    wanted, low = top_p * power.sum(1), high - 32
    for _ in range(steps):
        middle = (low + high) / 2
        enough = torch.where(value >= middle[:, None], power, 0).sum(1) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return (torch.where(value >= low[:, None], logits, -torch.inf).to(out.dtype),)


def work(call: Call) -> Work:
    """A comparison and a sum for each element and step, and an exponential, a difference and a comparison before."""
    logits, out, top_p, *_, steps = call.args
    return Work(flops=(3.0 + 2.0 * steps) * logits.numel(), bytes=moved(logits, out, top_p))


KERNEL = TritonKernel(
    name="top_p_mask",
    function=top_p_mask,
    space=SPACE,
    key=("columns", "STEPS"),
    cases=(
        Case(name="codes", sizes={"rows": 8192, "columns": 4096, "steps": 20}),
        Case(name="bytes", sizes={"rows": 65536, "columns": 256, "steps": 16}),
        Case(name="vocabulary", sizes={"rows": 128, "columns": 32000, "steps": 24}, dtype="bfloat16"),
        Case(name="odd", sizes={"rows": 3001, "columns": 10_007, "steps": 20}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1, "steps": 8}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 77, "steps": 12}, dtype="float16"),
        Case(name="a_block", sizes={"rows": 2, "columns": 1024, "steps": 16}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
