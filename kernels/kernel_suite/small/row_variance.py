"""Mean and variance of each row in Triton by Welford's way: blocks are merged by their counts, means and squares."""

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
def merged(mean_a, square_a, count_a, mean_b, square_b, count_b):  # type: ignore[no-untyped-def]
    """Two samples as one; one of them may be empty."""
    count = count_a + count_b
    share = tl.where(count > 0.0, count_b / tl.maximum(count, 1.0), 0.0)
    apart = mean_b - mean_a
    return mean_a + apart * share, square_a + square_b + apart * apart * count_a * share, count


@triton.jit  # type: ignore[untyped-decorator]
def row_variance(  # type: ignore[no-untyped-def]
    x_ptr, mean_ptr, variance_ptr, columns, correction, BLOCK: tl.constexpr
):
    """One row to a program. Each lane has a sample of its own, and all of them are merged in the end."""
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((BLOCK,), tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        count += inside.to(tl.float32)
        apart = tl.where(inside, value - mean, 0.0)
        mean += apart / tl.maximum(count, 1.0)
        square += apart * tl.where(inside, value - mean, 0.0)
    mean, square, count = tl.reduce((mean, square, count), 0, merged)
    tl.store(mean_ptr + row, mean)
    tl.store(variance_ptr + row, square / (count - correction))


SPACE = Space.grid(
    {"BLOCK": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Around 10, with a deviation of 1."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "float32")
    x = inputs.normal(rows, columns).add_(10)
    mean, variance = (inputs.unwritten(rows, dtype=torch.float32) for _ in range(2))
    return Call(args=(x, mean, variance, columns, 1), grid=lambda _: (rows,), outs=(mean, variance))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, *_, correction = call.args
    return x.double().mean(1).float(), x.double().var(1, correction=correction).float()


def work(call: Call) -> Work:
    """Three differences and sums, a product and a division."""
    x, mean, variance = call.args[:3]
    return Work(flops=6.0 * x.numel(), bytes=moved(x, mean, variance))


KERNEL = TritonKernel(
    name="row_variance",
    function=row_variance,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="groups", sizes={"rows": 8192, "columns": 16384}),
        Case(name="hidden", sizes={"rows": 32768, "columns": 4096}, dtype="bfloat16"),
        Case(name="narrow", sizes={"rows": 262144, "columns": 256}, dtype="float16"),
        Case(name="odd", sizes={"rows": 5001, "columns": 3333}),
        Case(name="few_rows", sizes={"rows": 64, "columns": 1 << 20}, dtype="float16"),
    ),
    corners=(
        Case(name="two", sizes={"rows": 1, "columns": 2}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 77}, dtype="float16"),
        Case(name="over_blocks", sizes={"rows": 2, "columns": 2051}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-5,
)
