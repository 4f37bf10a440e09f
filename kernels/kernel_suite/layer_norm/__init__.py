"""Layer norm of each row of a float16 matrix, with weight and bias, in Triton; rows longer than a block are read again."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel

EPSILON = 1e-5


@triton.jit  # type: ignore[untyped-decorator]
def layer_norm(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, weight_ptr, bias_ptr, rows, columns, epsilon, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Each row less its mean, over its deviation, times weight plus bias. Rows past the last are the last again.

    The deviation is summed from the mean, not from the squares of what was read: those cancel where the mean is large.
    """
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    x, out = (x_ptr + row * columns)[:, None] + column, (out_ptr + row * columns)[:, None] + column
    if columns <= BLOCK:
        inside = column < columns
        value = tl.load(x, mask=inside, other=0.0).to(tl.float32)
        mean = (tl.sum(value, 1) / columns)[:, None]
        centred = tl.where(inside, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 1) / columns + epsilon)[:, None]
        weight = tl.load(weight_ptr + column, mask=inside).to(tl.float32)
        bias = tl.load(bias_ptr + column, mask=inside).to(tl.float32)
        tl.store(out, (centred * scale * weight + bias).to(tl.float16), mask=inside)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, columns, BLOCK):
            total += tl.load(x + start, mask=column < columns - start, other=0.0).to(tl.float32)
        mean = (tl.sum(total, 1) / columns)[:, None]
        squares = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, columns, BLOCK):
            inside = column < columns - start
            centred = tl.where(inside, tl.load(x + start, mask=inside, other=0.0).to(tl.float32) - mean, 0.0)
            squares += centred * centred
        scale = tl.rsqrt(tl.sum(squares, 1) / columns + epsilon)[:, None]
        for start in range(0, columns, BLOCK):
            inside = column < columns - start
            centred = tl.load(x + start, mask=inside).to(tl.float32) - mean
            weight = tl.load(weight_ptr + start + column, mask=inside).to(tl.float32)
            bias = tl.load(bias_ptr + start + column, mask=inside).to(tl.float32)
            tl.store(out + start, (centred * scale * weight + bias).to(tl.float16), mask=inside)


SPACE = Space.grid(
    {"ROWS": [1, 2, 4], "BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [2, 4, 8, 16]},
    constraints=[
        # Fewer than 8 elements to a thread are no whole 16-byte load; with more than 32, and as many sums, registers spill
        # (compiled for sm_90: up to 2 KB).
        lambda ROWS, BLOCK, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= 32,
    ],
    default={"ROWS": 1, "BLOCK": 8192, "num_warps": 16},
    roles={"ROWS": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Rows of deviation 1 around `mean`; weights about 1, biases about 0."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, columns, generator=random, device=device).add_(case.sizes.get("mean", 0)).half()
    weight, bias = (torch.randn(columns, generator=random, device=device).mul_(0.1) for _ in range(2))
    out = torch.full_like(x, torch.nan)

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(rows, knobs["ROWS"]),)

    args = (out, x, weight.add_(1).half(), bias.half(), rows, columns, EPSILON)
    return Call(args=args, grid=grid, outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    _, x, weight, bias, _, columns, epsilon = call.args
    normal = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), epsilon)
    return (normal.to(call.outs[0].dtype),)


def work(call: Call) -> Work:
    """Seven operations for each element, which is moved twice; weight and bias are moved once."""
    rows, columns = call.outs[0].shape
    return Work(flops=7.0 * rows * columns, bytes=4.0 * rows * columns + 4.0 * columns)


KERNEL = TritonKernel(
    name="layer_norm",
    function=layer_norm,
    space=SPACE,
    key=("rows", "columns"),
    cases=(
        Case(name="hidden", sizes={"rows": 8192, "columns": 8192}),
        Case(name="narrow", sizes={"rows": 65536, "columns": 1024}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37}),
        Case(name="a_block", sizes={"rows": 2, "columns": 512}),
        Case(name="over_a_block", sizes={"rows": 3, "columns": 1025}),
        Case(name="over_every_block", sizes={"rows": 2, "columns": 8195}),
        Case(name="far_from_zero", sizes={"rows": 2, "columns": 600, "mean": 1000}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Sums are in float32, the result is rounded to float16 once: 2**-11 of it, twice that where the rounding turns. Around
    # a mean of 1000, float32 leaves 6e-5 of a deviation of 1.
    rtol=2**-10,
    atol=1e-3,
)
