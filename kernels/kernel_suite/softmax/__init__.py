"""Softmax of each row of a float16 matrix in Triton: a row that fits in a block is read once, a longer one twice."""

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


@triton.jit  # type: ignore[untyped-decorator]
def softmax(out_ptr, x_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each element's exponential over the sum of its row's. Programs past the last row work on it again, to no harm."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    x, out = (x_ptr + row * columns)[:, None] + column, (out_ptr + row * columns)[:, None] + column
    if columns <= BLOCK:
        value = tl.load(x, mask=column < columns, other=-float("inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, 1)[:, None])
        tl.store(out, (power / tl.sum(power, 1)[:, None]).to(tl.float16), mask=column < columns)
    else:
        high = tl.full((ROWS,), -3e38, tl.float32)  # finite: blocks that are -inf throughout then add nothing, not NaN
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, columns, BLOCK):
            value = tl.load(x + start, mask=column < columns - start, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(high, tl.max(value, 1))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(value - higher[:, None]), 1)
            high = higher
        for start in range(0, columns, BLOCK):
            value = tl.load(x + start, mask=column < columns - start).to(tl.float32)
            power = tl.exp(value - high[:, None]) / total[:, None]
            tl.store(out + start, power.to(tl.float16), mask=column < columns - start)


SPACE = Space.grid(
    {"ROWS": [1, 2, 4], "BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [2, 4, 8, 16]},
    constraints=[
        # Fewer than 8 elements to a thread are no whole 16-byte load; more than 64 do not stay in registers, nor do twice
        # 16384 in all those of one multiprocessor.
        lambda ROWS, BLOCK: ROWS * BLOCK <= 16384,
        lambda ROWS, BLOCK, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= 64,
    ],
    default={"ROWS": 1, "BLOCK": 4096, "num_warps": 8},
    roles={"ROWS": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Numbers of a spread of 2; the first `masked` columns are -inf, as an attention mask leaves them."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, columns, generator=random, device=device).mul_(2).half()
    x[:, : case.sizes.get("masked", 0)] = -torch.inf
    out = torch.full_like(x, torch.nan)

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(rows, knobs["ROWS"]),)

    return Call(args=(out, x, rows, columns), grid=grid, outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x = call.args[1]
    return (torch.softmax(x.float(), dim=1).to(call.outs[0].dtype),)


def work(call: Call) -> Work:
    """An exponential, a subtraction, a comparison, a sum and a division for each element, which is moved twice."""
    return Work(flops=5.0 * call.outs[0].numel(), bytes=4.0 * call.outs[0].numel())


KERNEL = TritonKernel(
    name="softmax",
    function=softmax,
    space=SPACE,
    key=("rows", "columns"),
    cases=(
        Case(name="scores", sizes={"rows": 16384, "columns": 4096}),
        Case(name="vocabulary", sizes={"rows": 1024, "columns": 128256}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37}),
        Case(name="a_block", sizes={"rows": 2, "columns": 512}),
        Case(name="over_a_block", sizes={"rows": 3, "columns": 1025}),
        Case(name="over_every_block", sizes={"rows": 2, "columns": 8195}),
        Case(name="masked", sizes={"rows": 2, "columns": 8999, "masked": 8300}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Sums are in float32; what is left is half a unit in float16's last place, 2**-11 or, near zero, 2**-25. A second half
    # is allowed for results that lie where the rounding turns.
    rtol=2**-10,
    atol=2**-24,
)
