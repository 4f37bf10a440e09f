"""Layer norm with weight and bias in Triton, for float16 or bfloat16, which also gives what training needs of each row.

y = (x - mean) rstd weight + bias, where rstd = (variance + epsilon)^-1/2; mean and rstd are in float32. Deviations are
summed from a mean, never from the squares of what was read: those cancel where the mean is large.
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

EPSILON = 1e-5
MOST_HELD = 64  # by a thread: the float32 values and their deviations of more do not stay in registers


@triton.jit  # type: ignore[untyped-decorator]
def moments(  # type: ignore[no-untyped-def]
    x, first, last, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr
):
    """Mean, and sum of squared deviations from it, of the columns from `first` to before `last`, read once.

    Each block's mean and deviations are brought together with those so far. Where that is LATE, each lane has a mean of its
    own, which moves with each element (Welford), and lanes are brought together at the end.
    """
    column = tl.arange(0, BLOCK)[None, :]
    mean, squares = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    lane_mean = tl.zeros((ROWS, BLOCK if LATE else 1), tl.float32)
    lane_squares = tl.zeros((ROWS, BLOCK if LATE else 1), tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        inside = column < last - start
        value = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
        if LATE:
            apart = tl.where(inside, value - lane_mean, 0.0)
            lane_mean += apart * (1.0 / ((start - first) // BLOCK + 1))
            lane_squares += apart * (value - lane_mean)
        else:
            count = tl.minimum(last - start, BLOCK)
            block_mean = tl.sum(value, 1) / count
            deviation = tl.where(inside, value - block_mean[:, None], 0.0)
            apart, share = block_mean - mean, count * 1.0 / (start - first + count)
            squares += tl.sum(deviation * deviation, 1) + apart * apart * share * (start - first)
            mean += apart * share
    if LATE:
        count = tl.maximum(last - first - column + BLOCK - 1, 0) // BLOCK  # of the elements that a lane has seen
        mean = tl.sum(lane_mean * count, 1) / tl.maximum(last - first, 1)
        apart = lane_mean - mean[:, None]
        squares = tl.sum(lane_squares + apart * apart * count, 1)
    return mean, squares


@triton.jit
def write(y, centred, rstd, weight_ptr, bias_ptr, column, inside):  # type: ignore[no-untyped-def]
    """What is less its mean already, times `rstd` and weight, plus bias."""
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y, (centred * rstd * weight + bias).to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def whole_rows(  # type: ignore[no-untyped-def]
    y_ptr, mean_ptr, rstd_ptr, x_ptr, weight_ptr, bias_ptr, rows, columns, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rows that are held in full: their mean is known before the first deviation. Rows past the last are the last again."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    at, inside = (row * columns)[:, None] + column, column < columns
    value = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, 1) / columns
    centred = tl.where(inside, value - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) / columns + epsilon)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    write(y_ptr + at, centred, rstd[:, None], weight_ptr, bias_ptr, column, inside)


@triton.jit  # type: ignore[untyped-decorator]
def rows_in_blocks(  # type: ignore[no-untyped-def]
    y_ptr, mean_ptr, rstd_ptr, x_ptr, weight_ptr, bias_ptr, rows, columns, epsilon,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows that are read twice, a block at a time."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    x, y = (x_ptr + row * columns)[:, None], (y_ptr + row * columns)[:, None]
    mean, squares = moments(x, 0, columns, ROWS, BLOCK, LATE, STAGES)
    rstd = tl.rsqrt(squares / columns + epsilon)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = column < columns
        centred = tl.load(x + column, mask=inside, other=0.0).to(tl.float32) - mean[:, None]
        write(y + column, centred, rstd[:, None], weight_ptr, bias_ptr, column, inside)


@triton.jit  # type: ignore[untyped-decorator]
def parts_of_rows(  # type: ignore[no-untyped-def]
    part_mean_ptr, part_squares_ptr, x_ptr, columns,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Mean and squared deviations of one part of a row; both are 0 for a part that lies past the row's end."""
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    length = tl.cdiv(tl.cdiv(columns, PARTS), BLOCK) * BLOCK
    x = (x_ptr + row * columns + tl.zeros((1,), tl.int64))[:, None]
    mean, squares = moments(x, part * length, tl.minimum(columns, (part + 1) * length), 1, BLOCK, LATE, STAGES)
    at = row * PARTS + part + tl.arange(0, 1)
    tl.store(part_mean_ptr + at, mean)
    tl.store(part_squares_ptr + at, squares)


@triton.jit  # type: ignore[untyped-decorator]
def normalise(  # type: ignore[no-untyped-def]
    y_ptr, mean_ptr, rstd_ptr, x_ptr, weight_ptr, bias_ptr, part_mean_ptr, part_squares_ptr, columns, epsilon,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of one row, by the moments of all parts of the row; the first block's program writes those of the row."""
    blocks = tl.cdiv(columns, BLOCK)
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    part = tl.arange(0, PARTS)
    length = tl.cdiv(tl.cdiv(columns, PARTS), BLOCK) * BLOCK  # as `parts_of_rows` has it
    count = tl.maximum(tl.minimum(columns - part * length, length), 0)
    part_mean = tl.load(part_mean_ptr + row * PARTS + part)
    mean = tl.sum(part_mean * count, 0) / columns
    apart = part_mean - mean
    squares = tl.sum(tl.load(part_squares_ptr + row * PARTS + part) + apart * apart * count, 0)
    rstd = tl.rsqrt(squares / columns + epsilon)
    tl.store(mean_ptr + row, mean, mask=block == 0)
    tl.store(rstd_ptr + row, rstd, mask=block == 0)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    centred = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32) - mean
    write(y_ptr + row * columns + column, centred, rstd, weight_ptr, bias_ptr, column, inside)


def in_registers(x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any, *, ROWS: int, num_warps: int) -> None:
    """A row at once, read once: registers for all of it."""
    rows, columns = x.shape
    width = triton.next_power_of_2(columns)
    if (held := ROWS * width // (32 * num_warps)) > MOST_HELD:
        raise InvalidInputError(
            f"{held} elements to a thread, of {columns} columns: at most {MOST_HELD} are worth compiling"
        )
    whole_rows[triton.cdiv(rows, ROWS),](
        y, mean, rstd, x, weight, bias, rows, columns, EPSILON, ROWS=ROWS, WIDTH=width, num_warps=num_warps
    )


def in_blocks(
    x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any,
    *, ROWS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A row in blocks, twice: for its moments, and to write it."""
    rows, columns = x.shape
    rows_in_blocks[triton.cdiv(rows, ROWS),](
        y, mean, rstd, x, weight, bias, rows, columns, EPSILON,
        ROWS=ROWS, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def split(
    x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any,
    *, PARTS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Several programs to a row, and a second kernel that writes by what they found: for few long rows."""
    rows, columns = x.shape
    part_mean, part_squares = (torch.empty(rows, PARTS, dtype=torch.float32, device=x.device) for _ in range(2))
    parts_of_rows[rows * PARTS,](
        part_mean, part_squares, x, columns,
        PARTS=PARTS, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    normalise[rows * triton.cdiv(columns, BLOCK),](
        y, mean, rstd, x, weight, bias, part_mean, part_squares, columns, EPSILON,
        PARTS=PARTS, BLOCK=BLOCK, num_warps=num_warps,
    )  # fmt: skip


ROLES = {"BLOCK": "tile", "LATE": "algorithm", "num_warps": "threads", "num_stages": "stages"}

IN_REGISTERS = Space.grid(
    {"ROWS": [1, 2, 4, 8], "num_warps": [1, 2, 4, 8, 16, 32]},
    default={"ROWS": 1, "num_warps": 16},
    roles={"ROWS": "tile", "num_warps": "threads"},
)
IN_BLOCKS = Space.grid(
    {
        "ROWS": [1, 2, 4],
        "BLOCK": [512, 1024, 2048, 4096, 8192],
        "LATE": [False, True],
        "num_warps": [2, 4, 8, 16],
        "num_stages": [1, 2, 3],
    },
    # Fewer than 8 elements to a thread are no whole 16-byte load; more than 32 with their deviations, and with LATE two sums
    # for each, leave registers for few programs on a multiprocessor.
    constraints=[lambda ROWS, BLOCK, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= 32],
    default={"ROWS": 1, "BLOCK": 2048, "LATE": False, "num_warps": 8, "num_stages": 2},
    roles={**ROLES, "ROWS": "tile"},
)
SPLIT = Space.grid(
    {
        "PARTS": [4, 8, 16, 32],
        "BLOCK": [512, 1024, 2048, 4096],
        "LATE": [False, True],
        "num_warps": [2, 4, 8],
        "num_stages": [1, 3],
    },
    constraints=[lambda BLOCK, num_warps: 8 <= BLOCK // (32 * num_warps) <= 32],  # as above
    default={"PARTS": 8, "BLOCK": 2048, "LATE": False, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "PARTS": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Rows of deviation 1 around `mean`; weights about 1, biases about 0. In bfloat16 where `bf16`, else in float16."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    dtype = torch.bfloat16 if case.sizes.get("bf16") else torch.float16
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, columns, generator=random, device=device).add_(case.sizes.get("mean", 0)).to(dtype)
    weight, bias = (torch.randn(columns, generator=random, device=device).mul_(0.1) for _ in range(2))
    mean, rstd = (torch.full((rows,), torch.nan, device=device) for _ in range(2))
    return x, weight.add_(1).to(dtype), bias.to(dtype), torch.full_like(x, torch.nan), mean, rstd


def reference(x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any) -> tuple[torch.Tensor, ...]:
    """In double precision, rounded once."""
    variance, means = torch.var_mean(x.double(), dim=1, correction=0)
    rstds = (variance + EPSILON).rsqrt()
    normal = (x.double() - means[:, None]) * rstds[:, None] * weight.double() + bias.double()
    return normal.to(y.dtype), means.to(mean.dtype), rstds.to(rstd.dtype)


def work(x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any) -> Work:
    """Seven operations for each element, which is moved twice."""
    moved = sum(t.numel() * t.element_size() for t in (x, weight, bias, y, mean, rstd))
    return Work(flops=7.0 * x.numel(), bytes=float(moved))


VARIANTS = SuiteKernel(
    name="layer_norm",
    variants=(
        Variant(name="in_registers", launch=in_registers, space=IN_REGISTERS, functions=(whole_rows,)),
        Variant(name="in_blocks", launch=in_blocks, space=IN_BLOCKS, functions=(rows_in_blocks,)),
        Variant(name="split", launch=split, space=SPLIT, functions=(parts_of_rows, normalise)),
    ),
    outputs=(
        # Rounded to bfloat16 once: half a unit in its last place, 2**-8, and a second half where the rounding turns, or in
        # Triton's interpreter, which cuts off. Around a mean of 1000, float32 leaves 6e-5 of a deviation of 1.
        Output(name="y", rtol=2**-7, atol=3e-4),
        Output(name="mean", rtol=1e-6, atol=1e-6),  # a few units in float32's last place, of what is summed
        Output(name="rstd", rtol=1e-5, atol=0.0),
    ),
    cases=(
        Case(name="hidden", sizes={"rows": 8192, "columns": 8192, "bf16": 1}),
        Case(name="narrow", sizes={"rows": 65536, "columns": 1024}),
        Case(name="vision", sizes={"rows": 50432, "columns": 768}),  # 256 images of 197 tokens
        Case(name="few_rows", sizes={"rows": 32, "columns": 32768, "bf16": 1}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37, "bf16": 1}),
        Case(name="over_blocks", sizes={"rows": 3, "columns": 8195}),
        Case(name="far_from_zero", sizes={"rows": 2, "columns": 5000, "mean": 1000}),
        Case(name="over_rows", sizes={"rows": 35, "columns": 70}),
        Case(name="whole_blocks", sizes={"rows": 4, "columns": 4096, "bf16": 1}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
