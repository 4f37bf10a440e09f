"""RMS norm of the sum of a layer's output and its residual in Triton, in float16 or bfloat16, as inference of LLMs has it.

residual_out = x + residual, rounded; y = residual_out (mean(residual_out^2) + epsilon)^-1/2 weight, for each row.
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

EPSILON = 1e-6
MOST_HELD = 64  # by a thread: the float32 sums of more, and their weights, do not stay in registers


@triton.jit
def add(out_ptr, x_ptr, residual_ptr, at, inside):  # type: ignore[no-untyped-def]
    """The sum, written as it is rounded, and what was written in float32."""
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    value = (x + residual).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, value, mask=inside)
    return value.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def whole_rows(  # type: ignore[no-untyped-def]
    out_ptr, y_ptr, x_ptr, residual_ptr, weight_ptr, rows, columns, epsilon, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Rows that are held in full. Rows past the last are the last again, to no harm."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    at, inside = (row * columns)[:, None] + column, column < columns
    value = add(out_ptr, x_ptr, residual_ptr, at, inside)
    scale = tl.rsqrt(tl.sum(value * value, 1) / columns + epsilon)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (value * scale[:, None] * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def rows_in_turn(  # type: ignore[no-untyped-def]
    out_ptr, y_ptr, x_ptr, residual_ptr, weight_ptr, rows, columns, epsilon, programs,
    WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One row after the other, as far apart as there are programs; the weight is read once."""
    column = tl.arange(0, WIDTH)
    inside = column < columns
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    for row in tl.range(tl.program_id(0), rows, programs, num_stages=STAGES):
        at = (row + tl.zeros((1,), tl.int64)) * columns + column
        value = add(out_ptr, x_ptr, residual_ptr, at, inside)
        scale = tl.rsqrt(tl.sum(value * value, 0) / columns + epsilon)
        tl.store(y_ptr + at, (value * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def rows_in_blocks(  # type: ignore[no-untyped-def]
    out_ptr, y_ptr, x_ptr, residual_ptr, weight_ptr, rows, columns, epsilon,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows that are added a block at a time, and read again as they were written. LATE, each lane sums for itself."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    at, column = (row * columns)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK if LATE else 1), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        value = add(out_ptr, x_ptr, residual_ptr, at + start + column, column < columns - start)
        total += value * value if LATE else tl.sum(value * value, 1)[:, None]
    scale = tl.rsqrt(tl.sum(total, 1) / columns + epsilon)[:, None]
    tl.debug_barrier()  # what follows may be read by other threads than those that wrote it
    for start in range(0, columns, BLOCK):
        inside = column < columns - start
        value = tl.load(out_ptr + at + start + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at + start + column, (value * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def add_block(  # type: ignore[no-untyped-def]
    out_ptr, squares_ptr, x_ptr, residual_ptr, columns, blocks, BLOCK: tl.constexpr
):
    """The sums of a block of one row, and of their squares."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    value = add(out_ptr, x_ptr, residual_ptr, row * columns + column, column < columns)
    tl.store(squares_ptr + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit  # type: ignore[untyped-decorator]
def scale_block(  # type: ignore[no-untyped-def]
    y_ptr, out_ptr, squares_ptr, weight_ptr, columns, epsilon, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of one row, by the squares of all `parts` of the row."""
    blocks = tl.cdiv(columns, BLOCK)
    row, part = (tl.program_id(0) // blocks).to(tl.int64), tl.arange(0, PARTS)
    squares = tl.sum(tl.load(squares_ptr + row * parts + part, mask=part < parts, other=0.0), 0)
    scale = tl.rsqrt(squares / columns + epsilon)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    at, inside = row * columns + column, column < columns
    value = tl.load(out_ptr + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (value * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


def width_of(columns: int, rows: int, num_warps: int) -> int:
    """The power of two that a row is held in.

    Raises:
        InvalidInputError: so many rows at once, of so many columns, do not fit in the registers of the threads.
    """
    width: int = triton.next_power_of_2(columns)
    if (held := rows * width // (32 * num_warps)) > MOST_HELD:
        raise InvalidInputError(
            f"{held} elements to a thread, of {columns} columns: at most {MOST_HELD} are worth compiling"
        )
    return width


def in_registers(x: Any, residual: Any, weight: Any, out: Any, y: Any, *, ROWS: int, num_warps: int) -> None:
    """A row at once: read once, with registers for all of it."""
    rows, columns = x.shape
    width = width_of(columns, ROWS, num_warps)
    whole_rows[triton.cdiv(rows, ROWS),](
        out, y, x, residual, weight, rows, columns, EPSILON, ROWS=ROWS, WIDTH=width, num_warps=num_warps
    )


def persistent(
    x: Any, residual: Any, weight: Any, out: Any, y: Any, *, PROGRAMS: int, num_warps: int, num_stages: int
) -> None:
    """A row at once by a fixed number of programs, which keep the weight and read ahead: for many rows."""
    rows, columns = x.shape
    width, programs = width_of(columns, 1, num_warps), min(PROGRAMS, rows)
    rows_in_turn[programs,](
        out, y, x, residual, weight, rows, columns, EPSILON, programs,
        WIDTH=width, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def in_blocks(
    x: Any, residual: Any, weight: Any, out: Any, y: Any,
    *, ROWS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A row in blocks, twice: to add it, and to scale what was added, which is in the cache."""
    rows, columns = x.shape
    rows_in_blocks[triton.cdiv(rows, ROWS),](
        out, y, x, residual, weight, rows, columns, EPSILON,
        ROWS=ROWS, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def two_kernels(
    x: Any, residual: Any, weight: Any, out: Any, y: Any, *, ADDED: int, SCALED: int, num_warps: int
) -> None:
    """Several programs to a row, which add ADDED columns each, and a second kernel that scales: for few long rows."""
    rows, columns = x.shape
    parts = triton.cdiv(columns, ADDED)
    squares = torch.empty(rows, parts, dtype=torch.float32, device=x.device)
    add_block[rows * parts,](out, squares, x, residual, columns, parts, BLOCK=ADDED, num_warps=num_warps)
    scale_block[rows * triton.cdiv(columns, SCALED),](
        y, out, squares, weight, columns, EPSILON, parts,
        PARTS=triton.next_power_of_2(parts), BLOCK=SCALED, num_warps=num_warps,
    )  # fmt: skip


IN_REGISTERS = Space.grid(
    {"ROWS": [1, 2, 4, 8], "num_warps": [1, 2, 4, 8, 16, 32]},
    default={"ROWS": 1, "num_warps": 8},
    roles={"ROWS": "tile", "num_warps": "threads"},
)
PERSISTENT = Space.grid(
    {
        "PROGRAMS": [132, 264, 528, 1056],  # of an H200's 132 multiprocessors: 1, 2, 4 and 8 each
        "num_warps": [4, 8, 16, 32],
        "num_stages": [1, 2, 3],
    },
    default={"PROGRAMS": 264, "num_warps": 16, "num_stages": 2},
    roles={"PROGRAMS": "order", "num_warps": "threads", "num_stages": "stages"},
)
# Fewer than 8 elements to a thread are no whole 16-byte load; with more than 32 of x and as many of the residual at once,
# registers are left for few programs on a multiprocessor.
IN_BLOCKS = Space.grid(
    {
        "ROWS": [1, 2],
        "BLOCK": [512, 1024, 2048, 4096, 8192],
        "LATE": [False, True],
        "num_warps": [2, 4, 8, 16],
        "num_stages": [1, 2, 3],
    },
    constraints=[lambda ROWS, BLOCK, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= 32],
    default={"ROWS": 1, "BLOCK": 2048, "LATE": False, "num_warps": 8, "num_stages": 2},
    roles={"ROWS": "tile", "BLOCK": "tile", "LATE": "algorithm", "num_warps": "threads", "num_stages": "stages"},
)
TWO_KERNELS = Space.grid(
    {"ADDED": [512, 1024, 2048, 4096], "SCALED": [512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]},
    constraints=[
        lambda ADDED, num_warps: 8 <= ADDED // (32 * num_warps) <= 32,
        lambda SCALED, num_warps: 8 <= SCALED // (32 * num_warps) <= 32,
    ],
    default={"ADDED": 1024, "SCALED": 1024, "num_warps": 4},
    roles={"ADDED": "tile", "SCALED": "tile", "num_warps": "threads"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Rows of sizes from 1/16 to 4, added to a residual of theirs; weights about 1. In bfloat16 where `bf16`, else float16.

    Where `small`, they are about the root of epsilon, which counts there. Where `exact`, sums are multiples of 1/4 that
    bfloat16 holds: Triton's interpreter (3.9) cuts off in place of rounding.
    """
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    dtype = torch.bfloat16 if case.sizes.get("bf16") else torch.float16
    random = torch.Generator(device).manual_seed(seed)
    x, residual = (torch.randn(rows, columns, generator=random, device=device) for _ in range(2))
    sizes = torch.randint(-4, 3, (rows, 1), generator=random, device=device).float().exp2_()
    if case.sizes.get("small"):
        sizes.mul_(2**-10)
    if case.sizes.get("exact"):
        x, residual = (t.mul_(4).round_().clamp_(-16, 16).mul_(0.25) for t in (x, residual))
    x, residual = (t.mul_(sizes).to(dtype) for t in (x, residual))
    weight = torch.randn(columns, generator=random, device=device).mul_(0.1).add_(1).to(dtype)
    return x, residual, weight, torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)


def reference(x: Any, residual: Any, weight: Any, out: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum as torch rounds it, normalised in double precision."""
    added = (x + residual).to(out.dtype)
    scale = (added.double().square().mean(1, keepdim=True) + EPSILON).rsqrt()
    return added, (added.double() * scale * weight.double()).to(y.dtype)


def work(x: Any, residual: Any, weight: Any, out: Any, y: Any) -> Work:
    """Two sums and three products for each element of four matrices that are moved once."""
    moved = sum(t.numel() * t.element_size() for t in (x, residual, weight, out, y))
    return Work(flops=5.0 * x.numel(), bytes=float(moved))


VARIANTS = SuiteKernel(
    name="rms_norm",
    variants=(
        Variant(name="in_registers", launch=in_registers, space=IN_REGISTERS, functions=(whole_rows,)),
        Variant(name="persistent", launch=persistent, space=PERSISTENT, functions=(rows_in_turn,)),
        Variant(name="in_blocks", launch=in_blocks, space=IN_BLOCKS, functions=(rows_in_blocks,)),
        Variant(name="two_kernels", launch=two_kernels, space=TWO_KERNELS, functions=(add_block, scale_block)),
    ),
    outputs=(
        Output(name="residual_out", rtol=0.0, atol=0.0),  # a sum of two, rounded once, is the same everywhere
        # Half a unit in bfloat16's last place, 2**-8, and a second half where the rounding turns, or in Triton's
        # interpreter, which cuts off.
        Output(name="y", rtol=2**-7, atol=2**-24),
    ),
    cases=(
        Case(name="prefill", sizes={"rows": 8192, "columns": 8192, "bf16": 1}),
        Case(name="experts", sizes={"rows": 4096, "columns": 7168, "bf16": 1}),
        Case(name="small_model", sizes={"rows": 16384, "columns": 4096}),
        Case(name="few_rows", sizes={"rows": 16, "columns": 16384, "bf16": 1}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37, "bf16": 1, "exact": 1}),
        Case(name="over_blocks", sizes={"rows": 3, "columns": 8195}),
        Case(name="over_rows", sizes={"rows": 35, "columns": 70}),
        Case(name="over_programs", sizes={"rows": 300, "columns": 5}),
        Case(name="small_numbers", sizes={"rows": 5, "columns": 70, "small": 1}),
        Case(name="whole_blocks", sizes={"rows": 4, "columns": 4096, "bf16": 1, "exact": 1}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
