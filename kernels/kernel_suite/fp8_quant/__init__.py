"""Quantisation of bfloat16 to float8 (e4m3) in Triton, each group of 128 along a row with a scale of its own.

The scale is the group's largest magnitude over 448, the largest of the format; a row's last group may be shorter.
"""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

GROUP = 128
LARGEST = 448.0
LEAST = 1e-10  # magnitude that a group is taken to reach: one of zeros would divide by zero


@triton.jit  # type: ignore[untyped-decorator]
def quantise_tile(  # type: ignore[no-untyped-def]
    q_ptr, scale_ptr, x_ptr, down, along, rows, columns, groups, largest, least,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Scale and quotients of GROUPS groups of ROWS rows, which are read once."""
    row = (down * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    group = along * GROUPS + tl.arange(0, GROUPS)[None, :]
    column = group[:, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    at, inside = (row * columns)[:, :, None] + column, (row < rows)[:, :, None] & (column < columns)
    value = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 2), least) / largest
    tl.store(scale_ptr + row * groups + group, scale, mask=(row < rows) & (group < groups))
    tl.store(q_ptr + at, (value / scale[:, :, None]).to(q_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def quantise(  # type: ignore[no-untyped-def]
    q_ptr, scale_ptr, x_ptr, rows, columns, groups, largest, least,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile."""
    across = tl.cdiv(groups, GROUPS)
    down, along = tl.program_id(0) // across, tl.program_id(0) % across
    quantise_tile(q_ptr, scale_ptr, x_ptr, down, along, rows, columns, groups, largest, least, ROWS, GROUPS, GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def quantise_in_turn(  # type: ignore[no-untyped-def]
    q_ptr, scale_ptr, x_ptr, rows, columns, groups, largest, least, programs,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile after the other, as far apart as there are programs. Without a dot, only the loop itself says its stages."""
    across = tl.cdiv(groups, GROUPS)
    for tile in tl.range(tl.program_id(0), across * tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
        quantise_tile(
            q_ptr, scale_ptr, x_ptr, tile // across, tile % across, rows, columns, groups, largest, least,
            ROWS, GROUPS, GROUP,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def find_scales(  # type: ignore[no-untyped-def]
    scale_ptr, x_ptr, rows, columns, groups, largest, least, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """The scales alone, of GROUPS groups wherever in the matrix they lie."""
    place = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    row, column = place // groups, (place % groups * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    inside = (row < rows)[:, None] & (column < columns)
    value = tl.load(x_ptr + (row * columns)[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(scale_ptr + place, tl.maximum(tl.max(tl.abs(value), 1), least) / largest, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def divide(  # type: ignore[no-untyped-def]
    q_ptr, x_ptr, scale_ptr, elements, columns, groups, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """Quotients of BLOCK elements that follow each other, by scales that are known: no sum, no row to end at."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scale_ptr + at // columns * groups + at % columns // GROUP, mask=at < elements, other=1.0)
    value = tl.load(x_ptr + at, mask=at < elements, other=0.0).to(tl.float32)
    tl.store(q_ptr + at, (value / scale).to(q_ptr.dtype.element_ty), mask=at < elements)


def one_pass(x: Any, q: Any, scale: Any, *, ROWS: int, GROUPS: int, num_warps: int) -> None:
    """A tile of groups to a program: read once, written once."""
    rows, columns = x.shape
    groups = scale.shape[1]
    quantise[triton.cdiv(groups, GROUPS) * triton.cdiv(rows, ROWS),](
        q, scale, x, rows, columns, groups, LARGEST, LEAST, ROWS=ROWS, GROUPS=GROUPS, GROUP=GROUP, num_warps=num_warps
    )


def persistent(
    x: Any, q: Any, scale: Any, *, ROWS: int, GROUPS: int, PROGRAMS: int, num_warps: int, num_stages: int
) -> None:
    """As `one_pass` by a fixed number of programs, which read ahead."""
    rows, columns = x.shape
    groups = scale.shape[1]
    programs = min(PROGRAMS, triton.cdiv(groups, GROUPS) * triton.cdiv(rows, ROWS))
    quantise_in_turn[programs,](
        q, scale, x, rows, columns, groups, LARGEST, LEAST, programs,
        ROWS=ROWS, GROUPS=GROUPS, GROUP=GROUP, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def two_kernels(x: Any, q: Any, scale: Any, *, GROUPS: int, BLOCK: int, num_warps: int) -> None:
    """Scales first and then quotients: x is read twice, the second time out of the cache if it fits there."""
    rows, columns = x.shape
    groups = scale.shape[1]
    find_scales[triton.cdiv(rows * groups, GROUPS),](
        scale, x, rows, columns, groups, LARGEST, LEAST, GROUPS=GROUPS, GROUP=GROUP, num_warps=num_warps
    )
    divide[triton.cdiv(x.numel(), BLOCK),](
        q, x, scale, x.numel(), columns, groups, BLOCK=BLOCK, GROUP=GROUP, num_warps=num_warps
    )


ROLES = dict.fromkeys(("ROWS", "GROUPS"), "tile") | {"num_warps": "threads"}

# Fewer than 8 elements to a thread are no whole 16-byte load; more than 64, which are quotients as well, leave few
# registers for another program on the same multiprocessor.
ONE_PASS = Space.grid(
    {"ROWS": [1, 2, 4, 8, 16, 32], "GROUPS": [1, 2, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda ROWS, GROUPS, num_warps: 8 <= ROWS * GROUPS * GROUP // (32 * num_warps) <= 64],
    default={"ROWS": 1, "GROUPS": 8, "num_warps": 4},
    roles=ROLES,
)
PERSISTENT = Space.grid(
    {
        "ROWS": [1, 4, 16],
        "GROUPS": [1, 4, 16],
        "PROGRAMS": [264, 528, 1056, 2112],  # of an H200's 132 multiprocessors: 2, 4, 8 and 16 each
        "num_warps": [1, 2, 4, 8],
        "num_stages": [1, 2, 3],
    },
    constraints=[lambda ROWS, GROUPS, num_warps: 8 <= ROWS * GROUPS * GROUP // (32 * num_warps) <= 64],
    default={"ROWS": 1, "GROUPS": 16, "PROGRAMS": 528, "num_warps": 4, "num_stages": 2},
    roles={**ROLES, "PROGRAMS": "order", "num_stages": "stages"},
)
TWO_KERNELS = Space.grid(
    {"GROUPS": [2, 4, 8, 16, 32], "BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8]},
    constraints=[
        lambda GROUPS, num_warps: 8 <= GROUPS * GROUP // (32 * num_warps) <= 64,
        lambda BLOCK, num_warps: 8 <= BLOCK // (32 * num_warps) <= 64,
    ],
    default={"GROUPS": 8, "BLOCK": 2048, "num_warps": 4},
    roles={"GROUPS": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal numbers, groups of very different sizes, one row in `zero` zeros throughout.

    Where `exact`, every group is made of numbers of the format times a power of two, its largest among them: then each
    quotient is such a number itself, and there is nothing to round. Where `wide`, quotients are to be left in float32.
    Triton's interpreter (3.9) rounds to float8 wrongly, 127.5 to 64, so that there it is one of the two.
    """
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    random = torch.Generator(device).manual_seed(seed)
    groups = triton.cdiv(columns, GROUP)
    sizes = torch.randint(-6, 7, (rows, groups), generator=random, device=device).float().exp2_()
    sizes = sizes.repeat_interleave(GROUP, dim=1)[:, :columns]
    x = torch.randn(rows, columns, generator=random, device=device)
    if case.sizes.get("exact"):
        x = x.mul_(100).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()
        x[:, ::GROUP] = -LARGEST
    x = x.mul_(sizes).bfloat16()
    if zero := case.sizes.get("zero"):
        x[::zero] = 0
    q = torch.full((rows, columns), torch.nan, device=device)
    q = q if case.sizes.get("wide") else q.to(torch.float8_e4m3fn)
    return x, q, torch.full((rows, groups), torch.nan, device=device)


def reference(x: Any, q: Any, scale: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Group by group, in float32; torch rounds to the nearest."""
    rows, groups = scale.shape
    padded = torch.nn.functional.pad(x.float(), (0, groups * GROUP - x.shape[1])).view(rows, groups, GROUP)
    scales = padded.abs().amax(2).clamp_min(LEAST) / LARGEST
    quotients = (padded / scales[..., None]).view(rows, groups * GROUP)[:, : x.shape[1]]
    return quotients.to(q.dtype), scales


def work(x: Any, q: Any, scale: Any) -> Work:
    """A magnitude, a comparison and a division for each element, which is read once and written once."""
    return Work(flops=3.0 * x.numel(), bytes=float(sum(t.numel() * t.element_size() for t in (x, q, scale))))


VARIANTS = SuiteKernel(
    name="fp8_quant",
    variants=(
        Variant(name="one_pass", launch=one_pass, space=ONE_PASS, functions=(quantise,)),
        Variant(name="persistent", launch=persistent, space=PERSISTENT, functions=(quantise_in_turn,)),
        Variant(name="two_kernels", launch=two_kernels, space=TWO_KERNELS, functions=(find_scales, divide)),
    ),
    outputs=(
        # A GPU's quotients are right but for float32's last places, which matters where the rounding turns: then float8's
        # neighbour is taken, 2**-3 away, or 2**-9 near zero.
        Output(name="q", rtol=2**-3, atol=2**-9),
        Output(name="scale", rtol=1e-6, atol=0.0),
    ),
    cases=(
        Case(name="activations", sizes={"rows": 8192, "columns": 7168}),
        Case(name="wide_rows", sizes={"rows": 4096, "columns": 18432}),
        Case(name="few_rows", sizes={"rows": 64, "columns": 7168, "zero": 9}),
        Case(name="narrow", sizes={"rows": 65536, "columns": 512}),
        Case(name="odd", sizes={"rows": 4097, "columns": 3333, "zero": 7}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1, "exact": 1}),
        Case(name="part_of_a_group", sizes={"rows": 3, "columns": 50, "exact": 1}),
        Case(name="over_groups", sizes={"rows": 35, "columns": 1300, "exact": 1, "zero": 5}),
        Case(name="unrounded", sizes={"rows": 5, "columns": 777, "wide": 1, "zero": 3}),
        Case(name="many_rows", sizes={"rows": 70, "columns": 260, "wide": 1}),
        Case(name="whole_blocks", sizes={"rows": 32, "columns": 512, "exact": 1}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
