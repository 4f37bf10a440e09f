"""Cross entropy of bfloat16 logits in Triton: for each row its log of summed exponentials, and that less its target's logit.

A row whose target is `IGNORED` has a loss of 0. Logits of -inf, as a padded vocabulary has them, add nothing.
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

IGNORED = -100
MOST_HELD = 128  # by a thread: at 128 they spill already, at 4096 the compiler runs for minutes (sm_90)
LOWEST = tl.constexpr(-3e38)  # finite: what is -inf throughout then adds nothing, not NaN


@triton.jit
def write(loss_ptr, lse_ptr, x_ptr, target_ptr, row, columns, lse):  # type: ignore[no-untyped-def]
    """Both results of some rows. Rows past the last are the last again, to no harm."""
    target = tl.load(target_ptr + row)
    counted = (target >= 0) & (target < columns)
    logit = tl.load(x_ptr + row * columns + target, mask=counted, other=0.0).to(tl.float32)
    tl.store(lse_ptr + row, lse)
    tl.store(loss_ptr + row, tl.where(counted, lse - logit, 0.0))


@triton.jit  # type: ignore[untyped-decorator]
def summed(  # type: ignore[no-untyped-def]
    x, first, last, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr
):
    """Highest logit and sum of exponentials less it, of the columns from `first` to before `last`, read once.

    The sum so far is scaled anew as higher logits come up. Where that is LATE, each lane has a maximum of its own, and
    lanes are brought together at the end: two exponentials for each logit in place of a reduction for each block. Without
    a dot, only the loops themselves say how many blocks are on their way.
    """
    column = tl.arange(0, BLOCK)[None, :]
    if LATE:
        lane_high = tl.full((ROWS, BLOCK), LOWEST, tl.float32)
        lane_total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in tl.range(first, last, BLOCK, num_stages=STAGES):
            value = tl.load(x + start + column, mask=column < last - start, other=-float("inf"))
            value = value.to(tl.float32)
            higher = tl.maximum(lane_high, value)
            lane_total = lane_total * tl.exp(lane_high - higher) + tl.exp(value - higher)
            lane_high = higher
        high = tl.max(lane_high, 1)
        total = tl.sum(lane_total * tl.exp(lane_high - high[:, None]), 1)
    else:
        high, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
        for start in tl.range(first, last, BLOCK, num_stages=STAGES):
            value = tl.load(x + start + column, mask=column < last - start, other=-float("inf"))
            value = value.to(tl.float32)
            higher = tl.maximum(high, tl.max(value, 1))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(value - higher[:, None]), 1)
            high = higher
    return high, total


@triton.jit  # type: ignore[untyped-decorator]
def whole_rows(  # type: ignore[no-untyped-def]
    x_ptr, target_ptr, loss_ptr, lse_ptr, rows, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Rows that are held in full: the maximum of each is known before the first exponential."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(x_ptr + (row * columns)[:, None] + column, mask=column < columns, other=-float("inf")).to(
        tl.float32
    )
    high = tl.maximum(tl.max(value, 1), LOWEST)
    lse = high + tl.log(tl.sum(tl.exp(value - high[:, None]), 1))
    write(loss_ptr, lse_ptr, x_ptr, target_ptr, row, columns, lse)


@triton.jit  # type: ignore[untyped-decorator]
def rows_in_blocks(  # type: ignore[no-untyped-def]
    x_ptr, target_ptr, loss_ptr, lse_ptr, rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows that are read once, a block at a time."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    high, total = summed(x_ptr + (row * columns)[:, None], 0, columns, ROWS, BLOCK, LATE, STAGES)
    write(loss_ptr, lse_ptr, x_ptr, target_ptr, row, columns, high + tl.log(total))


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
def together(  # type: ignore[no-untyped-def]
    x_ptr, target_ptr, loss_ptr, lse_ptr, high_ptr, total_ptr, rows, columns, PARTS: tl.constexpr, ROWS: tl.constexpr
):
    """Both results of ROWS rows out of those of their parts."""
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1).to(tl.int64)
    at = (row * PARTS)[:, None] + tl.arange(0, PARTS)[None, :]
    highs, totals = tl.load(high_ptr + at), tl.load(total_ptr + at)
    high = tl.max(highs, 1)
    lse = high + tl.log(tl.sum(totals * tl.exp(highs - high[:, None]), 1))
    write(loss_ptr, lse_ptr, x_ptr, target_ptr, row, columns, lse)


def in_registers(x: Any, target: Any, loss: Any, lse: Any, *, ROWS: int, num_warps: int) -> None:
    """A row at once: no loop, but registers for all of it."""
    rows, columns = x.shape
    width = triton.next_power_of_2(columns)
    if (held := ROWS * width // (32 * num_warps)) > MOST_HELD:
        raise InvalidInputError(
            f"{held} logits to a thread, of {columns} columns: at most {MOST_HELD} are worth compiling"
        )
    grid = (triton.cdiv(rows, ROWS),)
    whole_rows[grid](x, target, loss, lse, rows, columns, ROWS=ROWS, WIDTH=width, num_warps=num_warps)


def online(
    x: Any, target: Any, loss: Any, lse: Any, *, ROWS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int
) -> None:
    """A row in blocks, the next of which is on its way while one is summed."""
    rows, columns = x.shape
    rows_in_blocks[triton.cdiv(rows, ROWS),](
        x,
        target,
        loss,
        lse,
        rows,
        columns,
        ROWS=ROWS,
        BLOCK=BLOCK,
        LATE=LATE,
        STAGES=num_stages,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def split(
    x: Any, target: Any, loss: Any, lse: Any, *, PARTS: int, BLOCK: int, LATE: bool, num_warps: int, num_stages: int
) -> None:
    """Several programs to a row, and a second kernel that brings together what they found: for few long rows."""
    rows, columns = x.shape
    highs, totals = (torch.empty(rows, PARTS, dtype=torch.float32, device=x.device) for _ in range(2))
    parts_of_rows[rows * PARTS,](
        highs, totals, x, columns,
        PARTS=PARTS, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    together[triton.cdiv(rows, 32),](
        x, target, loss, lse, highs, totals, rows, columns, PARTS=PARTS, ROWS=32, num_warps=4
    )


ROLES = {"BLOCK": "tile", "LATE": "algorithm", "num_warps": "threads", "num_stages": "stages"}

IN_REGISTERS = Space.grid(
    {"ROWS": [1, 2, 4, 8], "num_warps": [1, 2, 4, 8, 16, 32]},
    default={"ROWS": 1, "num_warps": 32},
    roles={"ROWS": "tile", "num_warps": "threads"},
)
ONLINE = Space.grid(
    {
        "ROWS": [1, 2, 4],
        "BLOCK": [512, 1024, 2048, 4096, 8192, 16384],
        "LATE": [False, True],
        "num_warps": [2, 4, 8, 16],
        "num_stages": [1, 2, 3],
    },
    # Fewer than 8 logits to a thread are no whole 16-byte load; more than 64 do not stay in registers, of which LATE takes
    # three for each.
    constraints=[
        lambda ROWS, BLOCK, LATE, num_warps: 8 <= ROWS * BLOCK // (32 * num_warps) <= (32 if LATE else 64),
    ],
    default={"ROWS": 1, "BLOCK": 4096, "LATE": False, "num_warps": 8, "num_stages": 2},
    roles={**ROLES, "ROWS": "tile"},
)
SPLIT = Space.grid(
    {
        "PARTS": [2, 4, 8, 16, 32],
        "BLOCK": [512, 1024, 2048, 4096, 8192],
        "LATE": [False, True],
        "num_warps": [2, 4, 8],
        "num_stages": [1, 2, 3],
    },
    constraints=[lambda BLOCK, LATE, num_warps: 8 <= BLOCK // (32 * num_warps) <= (32 if LATE else 64)],
    default={"PARTS": 8, "BLOCK": 4096, "LATE": False, "num_warps": 8, "num_stages": 2},
    roles={**ROLES, "PARTS": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Logits of a spread of 2, the last `masked` columns -inf; every `ignored`-th target is not to be counted."""
    rows, columns, masked = case.sizes["rows"], case.sizes["columns"], case.sizes.get("masked", 0)
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, columns, generator=random, device=device, dtype=torch.bfloat16).mul_(2)
    x[:, columns - masked :] = -torch.inf
    target = torch.randint(columns - masked, (rows,), generator=random, device=device)
    if ignored := case.sizes.get("ignored"):
        target[::ignored] = IGNORED
    loss, lse = (torch.full((rows,), torch.nan, device=device) for _ in range(2))
    return x, target, loss, lse


def reference(x: Any, target: Any, loss: Any, lse: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch's own loss, row by row, and the logarithm of the sum."""
    logits = x.float()
    losses = torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="none")
    return losses.to(loss.dtype), torch.logsumexp(logits, 1).to(lse.dtype)


def work(x: Any, target: Any, loss: Any, lse: Any) -> Work:
    """A comparison, a subtraction, an exponential and a sum for each logit, which is read once."""
    return Work(flops=4.0 * x.numel(), bytes=float(sum(t.numel() * t.element_size() for t in (x, target, loss, lse))))


# Sums are in float32, of up to 2**17 positive terms in blocks: 1e-5 of them at most, which the logarithm makes 1e-5 as such.
CLOSE = {"rtol": 1e-5, "atol": 3e-5}

VARIANTS = SuiteKernel(
    name="cross_entropy",
    variants=(
        Variant(name="online", launch=online, space=ONLINE, functions=(rows_in_blocks,)),
        Variant(name="in_registers", launch=in_registers, space=IN_REGISTERS, functions=(whole_rows,)),
        Variant(name="split", launch=split, space=SPLIT, functions=(parts_of_rows, together)),
    ),
    outputs=(Output(name="loss", **CLOSE), Output(name="lse", **CLOSE)),
    cases=(
        Case(name="vocabulary", sizes={"rows": 8192, "columns": 128256}),
        Case(name="small_vocabulary", sizes={"rows": 16384, "columns": 32000, "ignored": 7}),
        Case(name="few_rows", sizes={"rows": 32, "columns": 128256}),
        Case(name="classes", sizes={"rows": 65536, "columns": 1000}),
        Case(name="odd", sizes={"rows": 4097, "columns": 50257, "ignored": 5}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 37, "ignored": 2}),
        Case(name="over_blocks", sizes={"rows": 3, "columns": 8195, "ignored": 3}),
        Case(name="masked", sizes={"rows": 2, "columns": 2999, "masked": 2300}),
        Case(name="over_rows", sizes={"rows": 35, "columns": 70, "ignored": 4}),
        Case(name="whole_blocks", sizes={"rows": 4, "columns": 4096}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
