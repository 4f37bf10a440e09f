"""Softmax of each row of a float16 or bfloat16 matrix in Triton, one way for each length and number of rows.

An element of -inf, as an attention mask leaves it, gets 0; a row has at least one that is finite.
"""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.errors import InvalidInputError

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

MOST_HELD = 128  # by a thread: there they spill already, and compiling more takes minutes (sm_90)
LOWEST = tl.constexpr(-3e38)  # finite: what is -inf throughout then adds nothing, not NaN


@triton.jit  # type: ignore[untyped-decorator]
def summed(  # type: ignore[no-untyped-def]
    x, first, last, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr
):
    """Highest element and sum of exponentials less it, of the columns from `first` to before `last`, read once.

    The sum so far is scaled anew as higher elements come up. Where that is LATE, each lane has a maximum of its own, and
    lanes are brought together at the end: two exponentials for each element in place of a reduction for each block.
    """
    column = tl.arange(0, BLOCK)[None, :]
    high, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    lane_high = tl.full((ROWS, BLOCK if LATE else 1), LOWEST, tl.float32)
    lane_total = tl.zeros((ROWS, BLOCK if LATE else 1), tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        value = tl.load(x + start + column, mask=column < last - start, other=-float("inf")).to(tl.float32)
        if LATE:
            higher = tl.maximum(lane_high, value)
            lane_total = lane_total * tl.exp(lane_high - higher) + tl.exp(value - higher)
            lane_high = higher
        else:
            higher = tl.maximum(high, tl.max(value, 1))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(value - higher[:, None]), 1)
            high = higher
    if LATE:
        high = tl.max(lane_high, 1)
        total = tl.sum(lane_total * tl.exp(lane_high - high[:, None]), 1)
    return high, total


@triton.jit  # type: ignore[untyped-decorator]
def whole_rows(y_ptr, x_ptr, rows, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows that are held in full. Rows past the last are the last again, to no harm."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    at, inside = (row * columns)[:, None] + column, column < columns
    value = tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    tl.store(y_ptr + at, (power * (1.0 / tl.sum(power, 1))[:, None]).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def rows_in_blocks(  # type: ignore[no-untyped-def]
    y_ptr, x_ptr, rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, BACK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows that are read twice; the second time from their end BACK, which was read last and is in the cache."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    x, y = (x_ptr + row * columns)[:, None], (y_ptr + row * columns)[:, None]
    high, total = summed(x, 0, columns, ROWS, BLOCK, LATE, STAGES)
    high, scale = high[:, None], (1.0 / total)[:, None]
    blocks = tl.cdiv(columns, BLOCK)
    for block in tl.range(0, blocks, num_stages=STAGES):
        column = (blocks - 1 - block if BACK else block) * BLOCK + tl.arange(0, BLOCK)[None, :]
        value = tl.load(x + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        tl.store(y + column, (tl.exp(value - high) * scale).to(y_ptr.dtype.element_ty), mask=column < columns)


@triton.jit  # type: ignore[untyped-decorator]
def parts_of_rows(  # type: ignore[no-untyped-def]
    high_ptr, total_ptr, x_ptr, columns,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of one part of a row; a part that lies past the row's end has a sum of 0."""
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    length = tl.cdiv(tl.cdiv(columns, PARTS), BLOCK) * BLOCK
    x = (x_ptr + row * columns + tl.zeros((1,), tl.int64))[:, None]
    high, total = summed(x, part * length, tl.minimum(columns, (part + 1) * length), 1, BLOCK, LATE, STAGES)
    at = row * PARTS + part + tl.arange(0, 1)
    tl.store(high_ptr + at, high)
    tl.store(total_ptr + at, total)


@triton.jit  # type: ignore[untyped-decorator]
def normalise(  # type: ignore[no-untyped-def]
    y_ptr, x_ptr, high_ptr, total_ptr, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of one row, by the maxima and sums of all parts of the row."""
    blocks = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    part = row * PARTS + tl.arange(0, PARTS)
    highs, totals = tl.load(high_ptr + part), tl.load(total_ptr + part)
    high = tl.max(highs, 0)
    scale = 1.0 / tl.sum(totals * tl.exp(highs - high), 0)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + row * columns + column, mask=column < columns, other=-float("inf")).to(tl.float32)
    power = (tl.exp(value - high) * scale).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * columns + column, power, mask=column < columns)


def online(x: Any, y: Any, *, ROWS: int, BLOCK: int, LATE: bool, BACK: bool, num_warps: int, num_stages: int) -> None:
    """A row in blocks, twice: for its maximum and sum, and to write it."""
    rows, columns = x.shape
    rows_in_blocks[triton.cdiv(rows, ROWS),](
        y, x, rows, columns,
        ROWS=ROWS, BLOCK=BLOCK, LATE=LATE, BACK=BACK, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def one_pass(x: Any, y: Any, *, ROWS: int, num_warps: int) -> None:
    """A row at once, read once: registers for all of it."""
    rows, columns = x.shape
    width = triton.next_power_of_2(columns)
    if (held := ROWS * width // (32 * num_warps)) > MOST_HELD:
        raise InvalidInputError(
            f"{held} elements to a thread, of {columns} columns: at most {MOST_HELD} are worth compiling"
        )
    whole_rows[triton.cdiv(rows, ROWS),](y, x, rows, columns, ROWS=ROWS, WIDTH=width, num_warps=num_warps)


def split_rows(x: Any, y: Any, *, PARTS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int) -> None:
    """Several programs to a row, and a second kernel that writes by what they found: for few long rows."""
    rows, columns = x.shape
    highs, totals = (torch.empty(rows, PARTS, dtype=torch.float32, device=x.device) for _ in range(2))
    parts_of_rows[rows * PARTS,](
        highs, totals, x, columns,
        PARTS=PARTS, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    normalise[rows * triton.cdiv(columns, BLOCK),](
        y, x, highs, totals, columns, PARTS=PARTS, BLOCK=BLOCK, num_warps=num_warps
    )


ROLES = {"BLOCK": "tile", "LATE": "algorithm", "num_warps": "threads", "num_stages": "stages"}

ONLINE = Space.grid(
    {
        "ROWS": [1, 2, 4],
        "BLOCK": [512, 1024, 2048, 4096, 8192],
        "LATE": [False, True],
        "BACK": [False, True],
        "num_warps": [2, 4, 8, 16],
        "num_stages": [1, 3],
    },
    # Fewer than 8 elements to a thread are no whole 16-byte load; more than 64 do not stay in registers, of which LATE
    # takes three for each.
    constraints=[lambda ROWS, BLOCK, LATE, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= (32 if LATE else 64)],
    default={"ROWS": 1, "BLOCK": 4096, "LATE": False, "BACK": False, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "ROWS": "tile", "BACK": "order"},
)
ONE_PASS = Space.grid(
    {"ROWS": [1, 2, 4, 8, 16], "num_warps": [1, 2, 4, 8, 16, 32]},
    default={"ROWS": 1, "num_warps": 32},
    roles={"ROWS": "tile", "num_warps": "threads"},
)
SPLIT_ROWS = Space.grid(
    {
        "PARTS": [4, 8, 16, 32],
        "BLOCK": [1024, 2048, 4096, 8192],
        "LATE": [False, True],
        "num_warps": [2, 4, 8],
        "num_stages": [1, 3],
    },
    constraints=[lambda BLOCK, LATE, num_warps: 8 <= BLOCK // (32 * num_warps) <= (32 if LATE else 64)],  # as above
    default={"PARTS": 16, "BLOCK": 4096, "LATE": False, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "PARTS": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Numbers of a spread of 2, the first `masked` columns -inf; in bfloat16 where `bf16`, else in float16."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    dtype = torch.bfloat16 if case.sizes.get("bf16") else torch.float16
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, columns, generator=random, device=device, dtype=dtype).mul_(2)
    x[:, : case.sizes.get("masked", 0)] = -torch.inf
    return x, torch.full_like(x, torch.nan)


def reference(x: Any, y: Any) -> tuple[torch.Tensor]:
    """Torch's own, in float32, rounded once."""
    return (torch.softmax(x, dim=1, dtype=torch.float32).to(y.dtype),)


def work(x: Any, y: Any) -> Work:
    """An exponential, a subtraction, a comparison, a sum and a product for each element, which is moved twice."""
    return Work(flops=5.0 * x.numel(), bytes=float(sum(t.numel() * t.element_size() for t in (x, y))))


VARIANTS = SuiteKernel(
    name="softmax",
    variants=(
        Variant(name="online", launch=online, space=ONLINE, functions=(rows_in_blocks,)),
        Variant(name="one_pass", launch=one_pass, space=ONE_PASS, functions=(whole_rows,)),
        Variant(name="split_rows", launch=split_rows, space=SPLIT_ROWS, functions=(parts_of_rows, normalise)),
    ),
    # Sums are in float32; what is left is half a unit in bfloat16's last place, 2**-8, and a second half where the rounding
    # turns, or in Triton's interpreter, which cuts off. Near zero float16's last unit is 2**-24.
    outputs=(Output(name="y", rtol=2**-7, atol=2**-24),),
    cases=(
        Case(name="scores", sizes={"rows": 16384, "columns": 4096}),
        Case(name="vocabulary", sizes={"rows": 1024, "columns": 128256, "bf16": 1}),
        Case(name="few_rows", sizes={"rows": 16, "columns": 128256, "bf16": 1}),
        Case(name="experts", sizes={"rows": 65536, "columns": 256, "bf16": 1}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37, "bf16": 1}),
        Case(name="over_blocks", sizes={"rows": 3, "columns": 8195}),
        Case(name="masked", sizes={"rows": 2, "columns": 8999, "masked": 8300}),
        Case(name="over_rows", sizes={"rows": 35, "columns": 70}),
        Case(name="whole_blocks", sizes={"rows": 4, "columns": 4096, "bf16": 1}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
