"""Products of a mixture of experts, all experts at once, in float16 in Triton.

Each token of x [tokens, K] goes to some of the experts w [experts, N, K], as `choice` [tokens, TOPK] says, and what comes
back counts as `weight` says: out[t, j] = weight[t, j] w[choice[t, j]] x[t], [tokens, TOPK, N]. Routed tokens t TOPK + j are
also given in order of their experts, with `offsets` [experts + 1] of where each expert's begin: blocks of them are found on
the device, so that nothing has to be known about the routing when a kernel is launched.
"""

# ruff: noqa: ARG001, N803, N806  # all take the arguments of a call; Triton kernels write meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant


@triton.jit  # type: ignore[untyped-decorator]
def blocks_until(offsets_ptr, experts, EXPERTS: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many blocks of BM routed tokens there are up to each expert, with its own; an expert's last may be in part."""
    expert = tl.arange(0, EXPERTS)
    first = tl.load(offsets_ptr + expert, mask=expert < experts, other=0)
    last = tl.load(offsets_ptr + expert + 1, mask=expert < experts, other=0)
    return tl.cumsum(tl.cdiv(last - first, BM), 0)


@triton.jit  # type: ignore[untyped-decorator]
def tile(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, weight_ptr, order_ptr, offsets_ptr, until, turn, TOPK, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One block of routed tokens of one expert, BN columns of it.

    Turns run through GROUP blocks and then go on to the next columns: blocks of one expert share what is read of it.
    """
    blocks, columns = tl.max(until, 0), tl.cdiv(N, BN)
    group = turn // (GROUP * columns)
    size = tl.minimum(blocks - group * GROUP, GROUP)
    block = group * GROUP + turn % (GROUP * columns) % size
    column = turn % (GROUP * columns) // size * BN + tl.arange(0, BN)
    expert = tl.sum((until <= block).to(tl.int32), 0)
    before = tl.max(tl.where(until <= block, until, 0), 0)
    at = tl.load(offsets_ptr + expert) + (block - before) * BM + tl.arange(0, BM)
    here = at < tl.load(offsets_ptr + expert + 1)
    routed = tl.load(order_ptr + at, mask=here, other=0)
    inner = tl.arange(0, BK)
    x = x_ptr + (routed // TOPK).to(tl.int64)[:, None] * K + inner[None, :]
    w = w_ptr + expert.to(tl.int64) * N * K + (column[None, :] * K + inner[:, None])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        deep = inner < K - k
        a = tl.load(x + k, mask=here[:, None] & deep[None, :], other=0.0)
        b = tl.load(w + k, mask=deep[:, None] & (column < N)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    total *= tl.load(weight_ptr + routed, mask=here, other=0.0)[:, None]
    to = out_ptr + routed.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(to, total.to(tl.float16), mask=here[:, None] & (column < N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def each_tile(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, weight_ptr, order_ptr, offsets_ptr, experts, TOPK, N, K,
    EXPERTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile to a program, of which there are enough for any routing: some have nothing to do."""
    until, turn = blocks_until(offsets_ptr, experts, EXPERTS, BM), tl.program_id(0)
    if turn < tl.max(until, 0) * tl.cdiv(N, BN):
        tile(
            out_ptr, x_ptr, w_ptr, weight_ptr, order_ptr, offsets_ptr, until, turn, TOPK, N, K, BM, BN, BK, GROUP
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def tiles_in_turn(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, weight_ptr, order_ptr, offsets_ptr, experts, TOPK, N, K,
    EXPERTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Several tiles to a program, as many as the routing makes."""
    until = blocks_until(offsets_ptr, experts, EXPERTS, BM)
    for turn in range(tl.program_id(0), tl.max(until, 0) * tl.cdiv(N, BN), tl.num_programs(0)):
        tile(
            out_ptr, x_ptr, w_ptr, weight_ptr, order_ptr, offsets_ptr, until, turn, TOPK, N, K, BM, BN, BK, GROUP
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def each_token(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, weight_ptr, choice_ptr, TOPK, N, K,
    BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BN columns of one routed token, without matrix products; lanes are brought together at the end."""
    columns = tl.cdiv(N, BN)
    routed = (tl.program_id(0) // columns).to(tl.int64)
    column, inner = tl.program_id(0) % columns * BN + tl.arange(0, BN), tl.arange(0, BK)
    expert = tl.load(choice_ptr + routed).to(tl.int64)
    x, w = (
        x_ptr + routed // TOPK * K + inner,
        w_ptr + expert * N * K + (column[:, None] * K + inner[None, :]),
    )
    total = tl.zeros((BN, BK), tl.float32)
    for k in tl.range(0, K, BK, num_stages=STAGES):  # said here: loads that no matrix product waits for stay unstaged
        deep = inner < K - k
        value = tl.load(x + k, mask=deep, other=0.0).to(tl.float32)
        total += tl.load(w + k, mask=(column < N)[:, None] & deep[None, :], other=0.0).to(tl.float32) * value[None, :]
    result = tl.sum(total, 1) * tl.load(weight_ptr + routed)
    tl.store(out_ptr + routed * N + column, result.to(tl.float16), mask=column < N)


def most_tiles(routed: int, experts: int, N: int, BM: int, BN: int) -> int:
    """As many tiles as there can be: an expert with tokens has one block that is full in part."""
    busy = min(experts, routed)
    return (busy + (routed - busy) // BM) * int(triton.cdiv(N, BN))


def blocks(
    x: Any, w: Any, choice: Any, weight: Any, order: Any, offsets: Any, out: Any, *,
    BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A program to each tile there may be; it finds its expert by the number of its block."""
    experts, N, K = w.shape
    each_tile[most_tiles(len(order), experts, N, BM, BN),](
        out, x, w, weight, order, offsets, experts, choice.shape[1], N, K,
        EXPERTS=triton.next_power_of_2(experts), BM=BM, BN=BN, BK=BK, GROUP=GROUP,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def persistent(
    x: Any, w: Any, choice: Any, weight: Any, order: Any, offsets: Any, out: Any, *,
    PROGRAMS: int, BM: int, BN: int, BK: int, GROUP: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """As many programs as run side by side, which share out the tiles there are."""
    experts, N, K = w.shape
    tiles_in_turn[min(PROGRAMS, most_tiles(len(order), experts, N, BM, BN)),](
        out, x, w, weight, order, offsets, experts, choice.shape[1], N, K,
        EXPERTS=triton.next_power_of_2(experts), BM=BM, BN=BN, BK=BK, GROUP=GROUP,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def per_token(
    x: Any, w: Any, choice: Any, weight: Any, order: Any, offsets: Any, out: Any, *,
    BN: int, BK: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A program to some columns of each routed token, in no order: for so few tokens that experts have one each."""
    _, N, K = w.shape
    each_token[len(order) * triton.cdiv(N, BN),](
        out, x, w, weight, choice, choice.shape[1], N, K,
        BN=BN, BK=BK, STAGES=num_stages, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


ROLES = {
    **dict.fromkeys(("PROGRAMS", "BM", "BN", "BK"), "tile"),
    "GROUP": "order",
    "num_warps": "threads",
    "num_stages": "stages",
}
# Sums: 128 registers of a thread at most; fewer than 8 leave threads without work. Tiles of all stages: 227 KB of shared
# memory, less what else is kept there.
IN_REGISTERS = lambda BM, BN, num_warps: 8 <= BM * BN // (32 * num_warps) <= 128  # noqa: E731
IN_SHARED = lambda BM, BN, BK, num_stages: 2 * (BM + BN) * BK * num_stages <= 216 * 1024  # noqa: E731

BLOCKS = Space.grid(
    {
        "BM": [16, 32, 64, 128],
        "BN": [64, 128, 256],
        "BK": [32, 64, 128],
        "GROUP": [1, 16],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    constraints=[IN_REGISTERS, IN_SHARED],
    default={"BM": 64, "BN": 128, "BK": 64, "GROUP": 16, "num_warps": 4, "num_stages": 3},
    roles={name: role for name, role in ROLES.items() if name != "PROGRAMS"},
)
IN_TURN = Space.grid(
    {
        "PROGRAMS": [132, 264],
        "BM": [16, 64, 128],
        "BN": [64, 128, 256],
        "BK": [64, 128],
        "GROUP": [1, 16],
        "num_warps": [4, 8],
        "num_stages": [3, 4],
    },
    constraints=[IN_REGISTERS, IN_SHARED],
    default={"PROGRAMS": 132, "BM": 64, "BN": 128, "BK": 64, "GROUP": 16, "num_warps": 4, "num_stages": 3},
    roles=ROLES,
)
PER_TOKEN = Space.grid(
    {"BN": [4, 8, 16, 32, 64], "BK": [64, 128, 256, 512], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3, 4]},
    # Fewer than 8 weights to a thread are no whole 16-byte load; of more than 32, sums and weights crowd out each other.
    constraints=[lambda BN, BK, num_warps: 8 <= BN * BK // (32 * num_warps) <= 32],
    default={"BN": 16, "BK": 256, "num_warps": 4, "num_stages": 3},
    roles={name: ROLES[name] for name in ("BN", "BK", "num_warps", "num_stages")},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Tokens that prefer some experts to others, of which every `unused`-th gets none; weights that keep a variance of 1."""
    tokens, experts, TOPK, N, K = (case.sizes[name] for name in ("tokens", "experts", "topk", "N", "K"))
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device, dtype=dtype)

    x, w = normal(tokens, K), normal(experts, N, K).mul_(K**-0.5)
    scores = normal(tokens, experts, dtype=torch.float32) + 0.5 * normal(experts, dtype=torch.float32)
    if unused := case.sizes.get("unused"):
        scores[:, ::unused] = -torch.inf
    best, choice = scores.topk(TOPK, 1)
    experts_in_order, order = choice.flatten().sort(stable=True)
    offsets = torch.searchsorted(experts_in_order, torch.arange(experts + 1, device=device))
    out = torch.full((tokens, TOPK, N), torch.nan, dtype=torch.float16, device=device)
    return x, w, choice.int(), best.softmax(1), order.int(), offsets.int(), out


def reference(x: Any, w: Any, choice: Any, weight: Any, order: Any, offsets: Any, out: Any) -> tuple[torch.Tensor]:
    """The definition, expert by expert, in float32."""
    expected = torch.zeros_like(out)
    for expert, matrix in enumerate(w):
        token, among = torch.nonzero(choice == expert, as_tuple=True)
        product = x[token].float() @ matrix.float().T
        expected[token, among] = (weight[token, among][:, None] * product).to(out.dtype)
    return (expected,)


def work(x: Any, w: Any, choice: Any, weight: Any, order: Any, offsets: Any, out: Any) -> Work:
    """A product for each routed token; as many experts are read as may be, since the device alone knows which."""
    experts, N, K = w.shape
    read = min(experts, len(order)) * N * K * w.element_size()
    return Work(
        flops=2.0 * len(order) * N * K,
        bytes=float(read + sum(t.numel() * t.element_size() for t in (x, choice, weight, order, offsets, out))),
    )


VARIANTS = SuiteKernel(
    name="fused_moe",
    variants=(
        Variant(name="blocks", launch=blocks, space=BLOCKS, functions=(each_tile,)),
        Variant(name="persistent", launch=persistent, space=IN_TURN, functions=(tiles_in_turn,)),
        Variant(name="per_token", launch=per_token, space=PER_TOKEN, functions=(each_token,)),
    ),
    # Sums are in float32, and results, 5 at most, are rounded to float16: 2**-11 of them, on either side.
    outputs=(Output(name="out", rtol=2e-3, atol=1e-3),),
    cases=(
        Case(name="prompt", sizes={"tokens": 4096, "experts": 128, "topk": 8, "N": 1536, "K": 2048}),
        Case(name="one_each", sizes={"tokens": 16, "experts": 128, "topk": 8, "N": 1536, "K": 2048}),
        Case(name="few_experts", sizes={"tokens": 1024, "experts": 8, "topk": 2, "N": 14336, "K": 4096}),
        Case(name="many_experts", sizes={"tokens": 512, "experts": 256, "topk": 8, "N": 512, "K": 7168}),
        Case(name="odd", sizes={"tokens": 777, "experts": 60, "topk": 4, "N": 1400, "K": 1000, "unused": 7}),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "experts": 1, "topk": 1, "N": 16, "K": 16}),
        Case(name="below_a_block", sizes={"tokens": 5, "experts": 3, "topk": 2, "N": 12, "K": 20}),
        Case(name="unused_experts", sizes={"tokens": 9, "experts": 9, "topk": 3, "N": 40, "K": 24, "unused": 2}),
        Case(name="over_blocks", sizes={"tokens": 150, "experts": 2, "topk": 1, "N": 24, "K": 70}),
        Case(name="over_columns", sizes={"tokens": 2, "experts": 5, "topk": 2, "N": 150, "K": 290}),
        Case(name="over_programs", sizes={"tokens": 30, "experts": 500, "topk": 8, "N": 16, "K": 16}),
        Case(name="whole_blocks", sizes={"tokens": 16, "experts": 4, "topk": 2, "N": 128, "K": 128}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
