"""Matrix product in float16 or bfloat16 in Triton: a program to a tile, several to a tile, or several tiles to a program.

Triton's interpreter multiplies bfloat16 as though its bits were integers (3.6 to 3.9), so no corner has that format: what
is of one format alone, the last conversion, is the store's.
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.errors import InvalidInputError

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

# Sums that parts leave behind, 1 GiB of them; writing and reading more takes longer than the product.
MOST_PARTIAL = 2**28


@triton.jit  # type: ignore[untyped-decorator]
def tile_at(place, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row and column of a tile. Places that follow each other go down GROUP rows first, and share what they read of B."""
    across, down = tl.cdiv(N, BN), tl.cdiv(M, BM)
    first = place // (GROUP * across) * GROUP
    height = tl.minimum(down - first, GROUP)
    within = place % (GROUP * across)
    return first + within % height, within // height


@triton.jit  # type: ignore[untyped-decorator]
def tile_sum(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, row, column, first, last, M, N, a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Sum over k from `first` to before `last` of one tile. What is past the edge of M or N is read from the other edge."""
    rows = ((row * BM + tl.arange(0, BM)) % M).to(tl.int64)
    columns = ((column * BN + tl.arange(0, BN)) % N).to(tl.int64)
    inner = tl.arange(0, BK)
    deep = (first + inner).to(tl.int64)
    a = a_ptr + rows[:, None] * a_row + deep[None, :] * a_column
    b = b_ptr + deep[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(first, last, BK):
        inside = inner < last - k
        total = tl.dot(tl.load(a, mask=inside[None, :], other=0.0), tl.load(b, mask=inside[:, None], other=0.0), total)
        a += BK * a_column
        b += BK * b_row
    return total


@triton.jit  # type: ignore[untyped-decorator]
def put(c_ptr, total, row, column, M, N, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write one tile of a matrix without gaps, in that matrix's format."""
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    to = c_ptr + (rows.to(tl.int64) * N)[:, None] + columns[None, :]
    tl.store(to, total.to(c_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    c_ptr, a_ptr, b_ptr, M, N, K, a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    total = tile_sum(a_ptr, b_ptr, row, column, 0, K, M, N, a_row, a_column, b_row, b_column, BM, BN, BK)
    put(c_ptr, total, row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def multiply_part(  # type: ignore[no-untyped-def]
    parts_ptr, a_ptr, b_ptr, M, N, K, a_row, a_column, b_row, b_column, PARTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile's sum over one part of K; a part past the end of K is zero."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    part = tl.program_id(1)
    length = tl.cdiv(tl.cdiv(K, PARTS), BK) * BK
    last = tl.minimum(K, (part + 1) * length)
    total = tile_sum(a_ptr, b_ptr, row, column, part * length, last, M, N, a_row, a_column, b_row, b_column, BM, BN, BK)
    put(parts_ptr + part.to(tl.int64) * M * N, total, row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(c_ptr, parts_ptr, elements, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all parts, always in the same order, of BLOCK elements. All parts together have less than 2**31."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts_ptr + at + part * elements, mask=at < elements, other=0.0)
    tl.store(c_ptr + at, total.to(c_ptr.dtype.element_ty), mask=at < elements)


@triton.jit  # type: ignore[untyped-decorator]
def multiply_in_turn(  # type: ignore[no-untyped-def]
    c_ptr, a_ptr, b_ptr, M, N, K, a_row, a_column, b_row, b_column, programs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """One tile after the other, as far apart as there are programs.

    Where FLATTEN, the compiler makes one loop of both, which reads for the next tile while it writes one.
    """
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for place in tl.range(tl.program_id(0), tiles, programs, flatten=FLATTEN):
        row, column = tile_at(place, M, N, BM, BN, GROUP)
        total = tile_sum(a_ptr, b_ptr, row, column, 0, K, M, N, a_row, a_column, b_row, b_column, BM, BN, BK)
        put(c_ptr, total, row, column, M, N, BM, BN)


def multiprocessors() -> int:
    """Of the GPU that Triton launches on; an H200's where there is none.

    In Triton's interpreter so few that there are more tiles than programs at small sizes too.
    """
    if triton.knobs.runtime.interpret:
        return 3
    try:
        driver = triton.runtime.driver.active
        device = driver.get_current_device()
    except RuntimeError:  # no driver: somebody asks on tensors without values what would be launched
        return 132
    if device not in _multiprocessors:
        _multiprocessors[device] = int(driver.utils.get_device_properties(device)["multiprocessor_count"])
    return _multiprocessors[device]


# By device. Asked at each launch, the driver took 1 to 100 ms (H200, eight processes at once, 2026-11): it tells clocks too.
_multiprocessors: dict[int, int] = {}


def check_parts(parts: int, elements: int) -> None:
    """Refuse more partial sums than are worth bringing together.

    Raises:
        InvalidInputError: there are.
    """
    if parts * elements > MOST_PARTIAL:
        raise InvalidInputError(
            f"{parts} parts of {elements} sums each: more than {MOST_PARTIAL} in all are not worth writing, take fewer parts"
        )


def grouped(a: Any, b: Any, c: Any, *, BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int) -> None:
    """A program to each tile, in groups of rows."""
    (M, K), N = a.shape, b.shape[1]
    multiply[triton.cdiv(M, BM) * triton.cdiv(N, BN),](
        c, a, b, M, N, K, *a.stride(), *b.stride(),
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def split_k(a: Any, b: Any, c: Any, *, PARTS: int, BM: int, BN: int, BK: int, num_warps: int, num_stages: int) -> None:
    """Several programs to each tile, one for each part of K: for few tiles and a long K.

    A second kernel adds the parts. Atomics into one buffer would write as much, want it zeroed first, and sum in another
    order each time.
    """
    (M, K), N = a.shape, b.shape[1]
    check_parts(PARTS, M * N)
    parts = torch.empty(PARTS, M, N, dtype=torch.float32, device=a.device)
    multiply_part[triton.cdiv(M, BM) * triton.cdiv(N, BN), PARTS](
        parts, a, b, M, N, K, *a.stride(), *b.stride(), PARTS=PARTS,
        BM=BM, BN=BN, BK=BK, GROUP=8, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    add_parts[triton.cdiv(M * N, 1024),](c, parts, M * N, PARTS=PARTS, BLOCK=1024, num_warps=4)


def persistent(
    a: Any, b: Any, c: Any, *,
    PER: int, BM: int, BN: int, BK: int, GROUP: int, FLATTEN: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """PER programs to each multiprocessor, each with several tiles, so that no tile waits for a program to start."""
    (M, K), N = a.shape, b.shape[1]
    programs = min(PER * multiprocessors(), triton.cdiv(M, BM) * triton.cdiv(N, BN))
    multiply_in_turn[programs,](
        c, a, b, M, N, K, *a.stride(), *b.stride(), programs,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, FLATTEN=FLATTEN, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


ROLES = {
    **dict.fromkeys(("BM", "BN", "BK"), "tile"),
    "GROUP": "order",
    "num_warps": "threads",
    "num_stages": "stages",
}
CONSTRAINTS: list[Callable[..., bool]] = [
    # Sums are held by the threads: more than 128 each spill, and with fewer than 16 four warps are enough.
    lambda BM, BN, num_warps: BM * BN // (32 * num_warps) <= 128,
    lambda BM, BN, num_warps: num_warps == 4 or BM * BN // (32 * num_warps) >= 16,
    # A tile far higher than wide reads more for each product than a square; a low one is for matrices of few rows.
    lambda BM, BN: BM <= 2 * BN,
    # Tiles of all stages lie in shared memory, 227 KiB of it on Hopper; with under 16 KiB on its way the memory has pauses.
    lambda BM, BN, BK, num_stages: 16 * 1024 <= 2 * (BM + BN) * BK * num_stages <= 224 * 1024,
]

GROUPED = Space.grid(
    {
        "BM": [16, 32, 64, 128, 256],
        "BN": [32, 64, 128, 256],
        "BK": [32, 64, 128],
        "GROUP": [1, 8],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4, 5],
    },
    # Matrices that want low tiles have few of them in a column: their order is the same in groups of any height.
    constraints=[*CONSTRAINTS, lambda BM, GROUP: GROUP == 8 or BM >= 64],
    default={"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3},
    roles=ROLES,
)
SPLIT_K = Space.grid(
    {
        "PARTS": [2, 4, 8, 16],
        "BM": [16, 32, 64, 128],
        "BN": [32, 64, 128],
        "BK": [64, 128],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    constraints=CONSTRAINTS,
    default={"PARTS": 4, "BM": 64, "BN": 128, "BK": 64, "num_warps": 4, "num_stages": 4},
    roles={k: v for k, v in ROLES.items() if k != "GROUP"} | {"PARTS": "algorithm"},
)
PERSISTENT = Space.grid(
    {
        "PER": [1, 2],
        "BM": [64, 128, 256],
        "BN": [64, 128, 256],
        "BK": [32, 64, 128],
        "GROUP": [4, 8],
        "FLATTEN": [False, True],
        "num_warps": [4, 8],
        "num_stages": [3, 4],
    },
    # The programs of a multiprocessor share its memory, where a tile of the result lies too where it is written late, and
    # its 65536 registers, of which a thread wants 64 beside its sums.
    constraints=[
        *CONSTRAINTS,
        lambda PER, BM, BN, BK, FLATTEN, num_stages: (
            2 * PER * ((BM + BN) * BK * num_stages + FLATTEN * BM * BN) <= 224 * 1024
        ),
        lambda PER, BM, BN, num_warps: PER * (BM * BN + 64 * 32 * num_warps) <= 65536,
    ],
    default={
        "PER": 1,
        "BM": 128,
        "BN": 256,
        "BK": 64,
        "GROUP": 8,
        "FLATTEN": True,
        "num_warps": 8,
        "num_stages": 3,
    },
    roles={**ROLES, "PER": "order", "FLATTEN": "algorithm"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal numbers in float16, or in bfloat16 where `bf16`; B lies column after column where `turned`, as weights do."""
    M, N, K = (case.sizes[name] for name in "MNK")
    dtype = torch.bfloat16 if case.sizes.get("bf16") else torch.float16
    random = torch.Generator(device).manual_seed(seed)
    a = torch.randn(M, K, generator=random, device=device, dtype=dtype)
    if case.sizes.get("turned"):
        b = torch.randn(N, K, generator=random, device=device, dtype=dtype).t()
    else:
        b = torch.randn(K, N, generator=random, device=device, dtype=dtype)
    return a, b, torch.full((M, N), torch.nan, dtype=dtype, device=device)


def reference(a: Any, b: Any, c: Any) -> tuple[torch.Tensor]:
    """The product, summed in float64."""
    return ((a.double() @ b.double()).to(c.dtype),)


def work(a: Any, b: Any, c: Any) -> Work:
    """A multiplication and an addition for each triple; every matrix is moved once."""
    return Work(flops=2.0 * c.numel() * a.shape[1], bytes=float(sum(t.numel() * t.element_size() for t in (a, b, c))))


VARIANTS = SuiteKernel(
    name="matmul",
    variants=(
        Variant(name="grouped", launch=grouped, space=GROUPED, functions=(multiply,)),
        Variant(name="split_k", launch=split_k, space=SPLIT_K, functions=(multiply_part, add_parts)),
        Variant(name="persistent", launch=persistent, space=PERSISTENT, functions=(multiply_in_turn,)),
    ),
    outputs=(
        # A sum that float32 took to the other side of a middle becomes bfloat16's neighbour, 2**-7 of it away. Terms that
        # nearly cancel leave what float32 lost of them, under 0.01 of thousands; one product too few is off by 1 or so.
        Output(name="c", rtol=2**-7, atol=1e-2),
    ),
    cases=(
        Case(name="square", sizes={"M": 4096, "N": 4096, "K": 4096}),
        Case(name="layer", sizes={"M": 4096, "N": 14336, "K": 4096, "bf16": 1, "turned": 1}),
        Case(name="few_rows", sizes={"M": 32, "N": 8192, "K": 8192, "bf16": 1, "turned": 1}),
        Case(name="deep", sizes={"M": 512, "N": 768, "K": 32768}),
        Case(name="odd", sizes={"M": 1111, "N": 999, "K": 1777}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1, "K": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 7, "K": 3}),
        Case(name="over_blocks", sizes={"M": 67, "N": 131, "K": 97, "turned": 1}),
        Case(name="over_a_group", sizes={"M": 300, "N": 260, "K": 33}),
        Case(name="whole_blocks", sizes={"M": 128, "N": 128, "K": 128}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
