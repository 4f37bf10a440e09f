"""Cumulative logsumexp of each row in Triton: an associative scan in a block, carried from one to the next."""

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


@triton.jit
def log_add_exp(a, b):  # type: ignore[no-untyped-def]
    """Logarithm of the sum of two exponentials."""
    high = tl.maximum(a, b)
    return high + tl.log(1.0 + tl.exp(tl.minimum(a, b) - high))


@triton.jit  # type: ignore[untyped-decorator]
def cumulative_logsumexp(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row to a program. What is carried is the block's largest: the results only ever grow."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    before = -1e30
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        value = tl.load(x_ptr + row * columns + start + column, mask=inside, other=-1e30).to(tl.float32)
        total = log_add_exp(tl.associative_scan(value, 0, log_add_exp), before)
        tl.store(out_ptr + row * columns + start + column, total, mask=inside)
        before = tl.max(total, 0)


SPACE = Space.grid(
    {"BLOCK": [256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BLOCK, num_warps: BLOCK // num_warps >= 64],
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "float32")
    x, out = inputs.normal(rows, columns).mul_(3), inputs.unwritten(rows, columns, dtype=torch.float32)
    return Call(args=(x, out, columns), grid=lambda _: (rows,), outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return (call.args[0].double().logcumsumexp(1).float(),)


def work(call: Call) -> Work:
    """A comparison, a difference, an exponential, a sum, a logarithm and another sum for each element."""
    x, out = call.args[:2]
    return Work(flops=6.0 * x.numel(), bytes=moved(x, out))


KERNEL = TritonKernel(
    name="cumulative_logsumexp",
    function=cumulative_logsumexp,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="sequences", sizes={"rows": 8192, "columns": 2048}),
        Case(name="long", sizes={"rows": 512, "columns": 65536}),
        Case(name="short", sizes={"rows": 131072, "columns": 256}),
        Case(name="odd", sizes={"rows": 16, "columns": 100_001}),
        Case(name="half", sizes={"rows": 4096, "columns": 4096}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 2, "columns": 70}, dtype="float16"),
        Case(name="over_blocks", sizes={"rows": 1, "columns": 2051}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-4,
)
