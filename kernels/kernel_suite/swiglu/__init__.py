"""SwiGLU in float16 in Triton: silu(x W_gate) * (x W_up), both weights in one tensor of two matrices, gate first."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..matmul.variants import ROLES, put, tile_at, tile_sum
from ..suite import Case
from ..triton_kernel import Call, Output, SuiteKernel, TritonKernel, Variant


@triton.jit
def gated(gate, up):  # type: ignore[no-untyped-def]
    """silu(gate) * up."""
    return gate * tl.sigmoid(gate) * up


@triton.jit  # type: ignore[untyped-decorator]
def two_sums(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, M, N, K, step,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile: a tile of x is read once and multiplied with a tile of each weight, which lie `step` apart."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    rows, columns = ((row * BM + tl.arange(0, BM)) % M).to(tl.int64), (column * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    x, w = x_ptr + (rows * K)[:, None] + inner[None, :], w_ptr + (inner.to(tl.int64) * N)[:, None] + columns[None, :]
    gate, up = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = inner < K - k
        tile = tl.load(x, mask=inside[None, :], other=0.0)
        gate = tl.dot(tile, tl.load(w, mask=inside[:, None], other=0.0), gate)
        up = tl.dot(tile, tl.load(w + step, mask=inside[:, None], other=0.0), up)
        x += BK
        w += BK * N
    put(out_ptr, gated(gate, up), row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def one_wide_sum(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, M, N, K, step,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile: BN columns of the gate and the same of the other weight are one tile of 2 BN columns until the end."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    rows, both = ((row * BM + tl.arange(0, BM)) % M).to(tl.int64), tl.arange(0, 2 * BN)
    # Columns past the edge are masked and not taken modulo N: behind a modulo of a modulo the compiler (3.6, 3.9) sees no
    # neighbours any more, and copies element by element.
    columns = column * BN + both % BN
    inner = tl.arange(0, BK)
    x, w = x_ptr + (rows * K)[:, None] + inner[None, :], w_ptr + (inner.to(tl.int64) * N)[:, None]
    w += (columns + (both // BN).to(tl.int64) * step)[None, :]
    total = tl.zeros((BM, 2 * BN), tl.float32)
    for k in range(0, K, BK):
        inside = inner < K - k
        tile = tl.load(w, mask=inside[:, None] & (columns < N)[None, :], other=0.0)
        total = tl.dot(tl.load(x, mask=inside[None, :], other=0.0), tile, total)
        x += BK
        w += BK * N
    gate, up = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN)), (0, 2, 1)))
    put(out_ptr, gated(gate, up), row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def product(  # type: ignore[no-untyped-def]
    both_ptr, x_ptr, w_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of x times the weight that the second program number says."""
    row, column = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    which = tl.program_id(1).to(tl.int64)
    total = tile_sum(x_ptr, w_ptr + which * K * N, row, column, 0, K, M, N, K, 1, N, 1, BM, BN, BK)
    put(both_ptr + which * M * N, total, row, column, M, N, BM, BN)


@triton.jit  # type: ignore[untyped-decorator]
def gate_elements(out_ptr, both_ptr, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """silu of the first half times the second, of BLOCK elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(both_ptr + at, mask=at < elements, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + elements + at, mask=at < elements, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, gated(gate, up).to(tl.float16), mask=at < elements)


def fused(x: Any, w: Any, out: Any, *, BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int) -> None:
    """Both products in one program, which keeps a sum for each: x is read once, nothing is written in between."""
    (M, K), N = x.shape, w.shape[2]
    two_sums[triton.cdiv(M, BM) * triton.cdiv(N, BN),](
        out, x, w, M, N, K, w.stride(0), BM=BM, BN=BN, BK=BK, GROUP=GROUP, num_warps=num_warps, num_stages=num_stages
    )


def wide(x: Any, w: Any, out: Any, *, BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int) -> None:
    """As `fused` by a single product of twice the width, whose halves pass through shared memory in the end."""
    (M, K), N = x.shape, w.shape[2]
    one_wide_sum[triton.cdiv(M, BM) * triton.cdiv(N, BN),](
        out, x, w, M, N, K, w.stride(0), BM=BM, BN=BN, BK=BK, GROUP=GROUP, num_warps=num_warps, num_stages=num_stages
    )


def two_steps(
    x: Any, w: Any, out: Any, *, BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int
) -> None:
    """Products into a buffer in float16, as a library's matrix product leaves them, and then a kernel that gates them."""
    (M, K), N = x.shape, w.shape[2]
    both = x.new_empty(2, M, N)
    product[triton.cdiv(M, BM) * triton.cdiv(N, BN), 2](
        both, x, w, M, N, K, BM=BM, BN=BN, BK=BK, GROUP=GROUP, num_warps=num_warps, num_stages=num_stages
    )
    gate_elements[triton.cdiv(M * N, 2048),](out, both, M * N, BLOCK=2048, num_warps=4)


ORDER = {"GROUP": [1, 8], "num_warps": [4, 8], "num_stages": [2, 3, 4]}

# Of either, x's tile and two of weights lie in shared memory for each stage, 227 KiB of it on Hopper; under 16 KiB on their
# way the memory has pauses. Two sums: more than 128 registers of a thread spill, and under 32 four warps are enough.
ONE_KERNEL: list[Callable[..., bool]] = [
    lambda BM, BN, BK, num_stages: 16 * 1024 <= 2 * (BM + 2 * BN) * BK * num_stages <= 224 * 1024,
    lambda BM, BN, num_warps: 2 * BM * BN // (32 * num_warps) <= 128,
    lambda BM, BN, num_warps: num_warps == 4 or 2 * BM * BN // (32 * num_warps) >= 32,
    # Matrices that want low tiles have few of them in a column: their order is the same in groups of any height.
    lambda BM, GROUP: GROUP == 8 or BM >= 64,
]
FUSED = Space.grid(
    {"BM": [16, 32, 64, 128, 256], "BN": [32, 64, 128], "BK": [32, 64, 128], **ORDER},
    constraints=ONE_KERNEL,
    default={"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3},
    roles=ROLES,
)
WIDE = Space.grid(
    {"BM": [16, 32, 64, 128, 256], "BN": [16, 32, 64, 128], "BK": [32, 64, 128], **ORDER},
    constraints=ONE_KERNEL,
    default={"BM": 128, "BN": 64, "BK": 64, "GROUP": 8, "num_warps": 4, "num_stages": 4},
    roles=ROLES,
)
TWO_STEPS = Space.grid(
    {"BM": [16, 32, 64, 128], "BN": [64, 128, 256], "BK": [32, 64, 128], **ORDER},
    constraints=[
        lambda BM, BN, BK, num_stages: 16 * 1024 <= 2 * (BM + BN) * BK * num_stages <= 224 * 1024,
        lambda BM, BN, num_warps: BM * BN // (32 * num_warps) <= 128,
        lambda BM, BN, num_warps: num_warps == 4 or BM * BN // (32 * num_warps) >= 32,
        lambda BM, GROUP: GROUP == 8 or BM >= 64,
    ],
    default={"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3},
    roles=ROLES,
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal x, and weights that keep a variance of 1; all lie without gaps."""
    M, N, K = (case.sizes[name] for name in "MNK")
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(M, K, generator=random, device=device, dtype=torch.float16)
    w = torch.randn(2, K, N, generator=random, device=device, dtype=torch.float16).mul_(K**-0.5)
    return x, w, torch.full((M, N), torch.nan, dtype=torch.float16, device=device)


def reference(x: Any, w: Any, out: Any) -> tuple[torch.Tensor]:
    """The definition, summed in float64."""
    gate, up = (x.double() @ matrix for matrix in w.double())
    return ((torch.nn.functional.silu(gate) * up).to(out.dtype),)


def work(x: Any, w: Any, out: Any) -> Work:
    """Two products, and four operations for each element; every tensor is moved once."""
    return Work(
        flops=float(out.numel() * (4 * x.shape[1] + 4)),
        bytes=float(sum(t.numel() * t.element_size() for t in (x, w, out))),
    )


VARIANTS = SuiteKernel(
    name="swiglu",
    variants=(
        Variant(name="fused", launch=fused, space=FUSED, functions=(two_sums,)),
        Variant(name="wide", launch=wide, space=WIDE, functions=(one_wide_sum,)),
        Variant(name="two_steps", launch=two_steps, space=TWO_STEPS, functions=(product, gate_elements)),
    ),
    # Rounded to float16 three times at most, 2**-11 each: gate and up in the buffer, and the result. What that changes of a
    # gate, silu makes more of as it falls to zero, which leaves 1e-3 of small results.
    outputs=(Output(name="out", rtol=2**-8, atol=2e-3),),
    cases=(
        Case(name="layer", sizes={"M": 4096, "N": 14336, "K": 4096}),
        Case(name="small_layer", sizes={"M": 2048, "N": 8192, "K": 3072}),
        Case(name="few_rows", sizes={"M": 32, "N": 14336, "K": 4096}),
        Case(name="expert", sizes={"M": 512, "N": 2048, "K": 7168}),
        Case(name="odd", sizes={"M": 1111, "N": 2731, "K": 1025}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1, "K": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 7, "K": 3}),
        Case(name="over_blocks", sizes={"M": 67, "N": 131, "K": 97}),
        Case(name="over_a_group", sizes={"M": 131, "N": 131, "K": 33}),
        Case(name="whole_blocks", sizes={"M": 128, "N": 128, "K": 128}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)


def _is_typical(config: Config) -> bool:
    """Of `FUSED`, what a person would write down: large tiles, deep ones in groups and a few others beside them."""
    depth = (config["BK"], config["GROUP"], config["num_stages"])
    large = config["BM"] in (64, 128, 256) and config["BN"] in (64, 128)
    return large and depth in ((64, 8, 2), (64, 8, 3), (64, 8, 4), (64, 1, 3), (32, 8, 4))


def make_call(case: Case, seed: int, device: str) -> Call:
    """The kernel of `fused` with the arguments of the suite's."""
    x, w, out = make_inputs(case, seed, device)
    (M, K), N = x.shape, w.shape[2]

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(M, knobs["BM"]) * triton.cdiv(N, knobs["BN"]),)

    return Call(args=(out, x, w, M, N, K, w.stride(0)), grid=grid, outs=(out,))


KERNEL = TritonKernel(
    name="swiglu",
    function=two_sums,
    space=Space([c for c in FUSED if _is_typical(c)], roles=ROLES),
    key=("M", "N", "K"),
    cases=VARIANTS.cases,
    corners=VARIANTS.corners,
    make_call=make_call,
    reference=lambda call: reference(call.args[1], call.args[2], call.outs[0]),
    work=lambda call: work(call.args[1], call.args[2], call.outs[0]),
    rtol=VARIANTS.outputs[0].rtol,
    atol=VARIANTS.outputs[0].atol,
)
