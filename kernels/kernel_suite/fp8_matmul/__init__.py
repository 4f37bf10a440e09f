"""Product of float8 (e4m3) matrices with scales in Triton, as DeepSeek-V3 multiplies: A [M, K], B [N, K], C = A B^T.

A has a float32 scale for each 128 elements along a row, B one for each block of 128 x 128; the last of either may be
smaller. Scales change along K, so the sum over each 128 of K is scaled before it is added to the rest, in float32.
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

from ..matmul.variants import ROLES, add_parts, check_parts, put, tile_at
from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

SCALED = 128
LARGEST = 448.0
UNIT = tl.constexpr(2.0**16)  # of a product of two numbers that `as_half` made


@triton.jit
def as_half(x):  # type: ignore[no-untyped-def]
    """A 256th of a float8 number, given as a byte, in float16: exact, since its exponent has more bits. NaN is 480 / 256."""
    bits = x.to(tl.uint16)
    return ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def scaled_sum(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, row, column, first, last, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SCALED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Sum over k from `first` to before `last` of one tile, which lies within one block of B's scales.

    Where HALF, both matrices are given as bytes and multiplied in float16. What is past the edge of M or N is read from the
    other edge.
    """
    rows, columns = (
        ((row * BM + tl.arange(0, BM)) % M).to(tl.int64),
        ((column * BN + tl.arange(0, BN)) % N).to(tl.int64),
    )
    inner = tl.arange(0, BK)
    a, b = a_ptr + (rows * K)[:, None] + first + inner[None, :], b_ptr + (columns * K)[None, :] + first + inner[:, None]
    groups = tl.cdiv(K, SCALED)
    a_scale = a_scale_ptr + rows * groups
    b_scale = b_scale_ptr + (column * BN // SCALED).to(tl.int64) * groups
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(first, last, BK):
        inside = inner < last - k
        x, y = tl.load(a, mask=inside[None, :], other=0.0), tl.load(b, mask=inside[:, None], other=0.0)
        if HALF:
            x, y = as_half(x), as_half(y)
        scale = tl.load(a_scale + k // SCALED) * tl.load(b_scale + k // SCALED)
        total += tl.dot(x, y) * scale[:, None]
        a += BK
        b += BK
    return total * UNIT if HALF else total


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    c_ptr, a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SCALED: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """One tile."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    total = scaled_sum(
        a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, row, column, 0, K, M, N, K, BM, BN, BK, SCALED, HALF
    )  # fmt: skip
    put(c_ptr, total, row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def multiply_part(  # type: ignore[no-untyped-def]
    parts_ptr, a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, M, N, K, PARTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One tile's sum over one part of K; a part past the end of K is zero."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    part = tl.program_id(1)
    length = tl.cdiv(tl.cdiv(K, PARTS), BK) * BK
    total = scaled_sum(
        a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, row, column, part * length, tl.minimum(K, (part + 1) * length), M, N, K,
        BM, BN, BK, SCALED, False,
    )  # fmt: skip
    put(parts_ptr + part.to(tl.int64) * M * N, total, row, column, M, N, BM, BN)


def check_float8() -> None:
    """Refuse a GPU whose tensor cores have no float8, where Triton knows which it launches on.

    Raises:
        InvalidInputError: they have none.
    """
    if triton.knobs.runtime.interpret:
        return
    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no driver: somebody asks on tensors without values what would be launched
        return
    if target.backend == "cuda" and target.arch < 89:
        raise InvalidInputError(
            f"compute capability {target.arch // 10}.{target.arch % 10} multiplies no float8, 8.9 is the first that does: "
            "take the variant 'halves'"
        )


def scaled_sums(
    a: Any, b: Any, a_scale: Any, b_scale: Any, c: Any, *,
    BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A program to each tile, and products in float8."""
    check_float8()
    (M, K), N = a.shape, b.shape[0]
    multiply[triton.cdiv(M, BM) * triton.cdiv(N, BN),](
        c, a, b, a_scale, b_scale, M, N, K,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, SCALED=SCALED, HALF=False, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def halves(
    a: Any, b: Any, a_scale: Any, b_scale: Any, c: Any, *,
    BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """As `scaled_sums` with products in float16, which every GPU has and whose sums are kept in full.

    It is given bytes, since a kernel with float8 in it is not compiled for a GPU that has none.
    """
    (M, K), N = a.shape, b.shape[0]
    multiply[triton.cdiv(M, BM) * triton.cdiv(N, BN),](
        c, a.view(torch.uint8), b.view(torch.uint8), a_scale, b_scale, M, N, K,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, SCALED=SCALED, HALF=True, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def split_k(
    a: Any, b: Any, a_scale: Any, b_scale: Any, c: Any, *,
    PARTS: int, BM: int, BN: int, BK: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Several programs to each tile, one for each part of K, and a second kernel that adds their sums: for few rows."""
    check_float8()
    (M, K), N = a.shape, b.shape[0]
    check_parts(PARTS, M * N)
    parts = torch.empty(PARTS, M, N, dtype=torch.float32, device=a.device)
    multiply_part[triton.cdiv(M, BM) * triton.cdiv(N, BN), PARTS](
        parts, a, b, a_scale, b_scale, M, N, K, PARTS=PARTS,
        BM=BM, BN=BN, BK=BK, GROUP=8, SCALED=SCALED, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    add_parts[triton.cdiv(M * N, 1024),](c, parts, M * N, PARTS=PARTS, BLOCK=1024, num_warps=4)


CONSTRAINTS: list[Callable[..., bool]] = [
    # Of two sums, the whole and that of the last step, more than 64 registers of a thread each spill; with fewer than 16
    # four warps are enough.
    lambda BM, BN, num_warps: BM * BN // (32 * num_warps) <= 64,
    lambda BM, BN, num_warps: num_warps == 4 or BM * BN // (32 * num_warps) >= 16,
    # Tiles of all stages lie in shared memory, 227 KiB of it on Hopper; with under 16 KiB on its way the memory has pauses.
    lambda BM, BN, BK, num_stages: 16 * 1024 <= (BM + BN) * BK * num_stages <= 224 * 1024,
]
IN_GROUPS = {
    # No tile is wider than a block of B's scales, and none deeper: then one step has one scale.
    "BM": [16, 32, 64, 128],
    "BN": [32, 64, 128],
    "BK": [64, 128],
    "GROUP": [1, 8],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4, 5],
}
DEFAULT = {"BM": 128, "BN": 128, "BK": 128, "GROUP": 8, "num_warps": 8, "num_stages": 3}

SCALED_SUMS = Space.grid(IN_GROUPS, constraints=CONSTRAINTS, default=DEFAULT, roles=ROLES)
HALVES = Space.grid(IN_GROUPS, constraints=CONSTRAINTS, default={**DEFAULT, "BK": 64, "num_stages": 4}, roles=ROLES)
SPLIT_K = Space.grid(
    {"PARTS": [2, 4, 8, 16], **{k: v for k, v in IN_GROUPS.items() if k != "GROUP"}},
    constraints=CONSTRAINTS,
    default={"PARTS": 4, "BM": 64, "BN": 128, "BK": 128, "num_warps": 4, "num_stages": 4},
    roles={k: v for k, v in ROLES.items() if k != "GROUP"} | {"PARTS": "algorithm"},
)


def quantised(x: torch.Tensor, down: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in float8 and its scales, one for `down` rows and 128 columns: the largest magnitude there over 448."""
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, -columns % SCALED, 0, -rows % down))
    blocks = padded.view(-1, down, padded.shape[1] // SCALED, SCALED)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp_min(1e-10) / LARGEST
    q = (blocks / scale).view_as(padded)[:rows, :columns].to(torch.float8_e4m3fn)
    return q.contiguous(), scale[:, 0, :, 0].contiguous()


def restored(q: torch.Tensor, scale: torch.Tensor, down: int) -> torch.Tensor:
    """A matrix in float64 out of what `quantised` made of it."""
    wide = scale.repeat_interleave(SCALED, 1)[:, : q.shape[1]]
    return (q.float() * wide.repeat_interleave(down, 0)[: q.shape[0]]).double()


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal numbers, blocks of different sizes, B so that C has a spread of 4 or so; in float16 where `half`."""
    M, N, K = (case.sizes[name] for name in "MNK")
    random = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, down: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = triton.cdiv(rows, down), triton.cdiv(K, SCALED)
        sizes = torch.randint(-2, 3, shape, generator=random, device=device).float().exp2_()
        sizes = sizes.repeat_interleave(down, 0)[:rows].repeat_interleave(SCALED, 1)[:, :K]
        normal = torch.randn(rows, K, generator=random, device=device)
        return quantised(normal.mul_(sizes).mul_(K**-0.25), down)

    (a, a_scale), (b, b_scale) = matrix(M, 1), matrix(N, SCALED)
    dtype = torch.float16 if case.sizes.get("half") else torch.bfloat16
    return a, b, a_scale, b_scale, torch.full((M, N), torch.nan, dtype=dtype, device=device)


def reference(a: Any, b: Any, a_scale: Any, b_scale: Any, c: Any) -> tuple[torch.Tensor]:
    """The product of what the numbers and their scales stand for, summed in float64."""
    return ((restored(a, a_scale, 1) @ restored(b, b_scale, SCALED).t()).to(c.dtype),)


def work(a: Any, b: Any, a_scale: Any, b_scale: Any, c: Any) -> Work:
    """A multiplication and an addition for each triple; every tensor is moved once."""
    tensors = (a, b, a_scale, b_scale, c)
    return Work(flops=2.0 * c.numel() * a.shape[1], bytes=float(sum(t.numel() * t.element_size() for t in tensors)))


VARIANTS = SuiteKernel(
    name="fp8_matmul",
    variants=(
        Variant(name="scaled_sums", launch=scaled_sums, space=SCALED_SUMS, functions=(multiply,)),
        Variant(name="halves", launch=halves, space=HALVES, functions=(multiply,)),
        Variant(name="split_k", launch=split_k, space=SPLIT_K, functions=(multiply_part, add_parts)),
    ),
    # Rounded to bfloat16, to one neighbour or to the other (Triton's interpreter cuts off): 2**-7. Hopper's tensor cores
    # keep about 14 bits of a sum of float8 products (DeepSeek-V3's report), of which little is left where terms cancel.
    outputs=(Output(name="c", rtol=2**-7, atol=2e-2),),
    cases=(
        Case(name="prefill", sizes={"M": 4096, "N": 4096, "K": 7168}),
        Case(name="down", sizes={"M": 4096, "N": 7168, "K": 2048, "half": 1}),
        Case(name="latent", sizes={"M": 2048, "N": 24576, "K": 1536}),
        Case(name="few_rows", sizes={"M": 64, "N": 7168, "K": 16384}),
        Case(name="odd", sizes={"M": 1111, "N": 1999, "K": 1777, "half": 1}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1, "K": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 7, "K": 3, "half": 1}),
        Case(name="over_scales", sizes={"M": 19, "N": 131, "K": 259, "half": 1}),
        Case(name="over_a_group", sizes={"M": 131, "N": 131, "K": 33}),
        Case(name="whole_blocks", sizes={"M": 128, "N": 128, "K": 256}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
