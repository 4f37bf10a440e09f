"""Attention, forward, in float16 in Triton, with the logarithm of each query's sum: several ways to go about the keys.

Of q [heads, queries, D] and k, v [kv_heads, keys, D], a batch being among the heads, of which heads // kv_heads share keys:
out = softmax(q k^T D^-1/2) v, [heads, queries, D], and lse, the logarithm of what the softmax divides by, [heads, queries].
Where it is causal, the last query sees all keys and each one before it one less; there are as many keys as queries, or more.
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
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
from . import LOG2_E, attend

LN_2 = tl.constexpr(1 / LOG2_E)
LOWEST = tl.constexpr(-1e30)  # finite: a query that has seen nothing yet must not become NaN
MOST_PARTIAL_BYTES = 1 << 30  # of parts of results: beyond, there are queries enough to go round


@triton.jit  # type: ignore[untyped-decorator]
def attended(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, head, block, first, last, queries, keys, group, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TWO_STAGES: tl.constexpr,
):  # fmt: skip
    """What a block of queries finds among the keys from `first`, a multiple of BN, to before `last`.

    Returns sums of values, sums of powers and highest scores; `scale` holds log2(e), since powers are of two.
    """
    query, inner = block * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(
        q_ptr + head * queries * D + query[:, None] * D + inner[None, :], mask=query[:, None] < queries, other=0.0
    )
    q = (q * scale).to(tl.float16)
    k, v = k_ptr + head // group * keys * D, v_ptr + head // group * keys * D
    high, total = tl.full((BM,), LOWEST, tl.float32), tl.zeros((BM,), tl.float32)
    out = tl.zeros((BM, D), tl.float32)
    own = keys - queries + block * BM  # key beside the first query of the block
    if CAUSAL:
        last = tl.minimum(last, own + BM)
    whole = first
    if TWO_STAGES:
        whole = tl.maximum(first, (tl.minimum(last, own + 1) if CAUSAL else last) // BN * BN)
        out, total, high = attend(out, total, high, q, k, v, query, first, whole, keys, D, CAUSAL, BN, False)
    sees = query + (keys - queries)
    return attend(out, total, high, q, k, v, sees, whole, last, keys, D, CAUSAL, BN, True)


@triton.jit  # type: ignore[untyped-decorator]
def write(  # type: ignore[no-untyped-def]
    out_ptr, lse_ptr, out, total, high, head, block, queries, D: tl.constexpr, BM: tl.constexpr
):
    """Both results of a block of queries."""
    query, inner = block * BM + tl.arange(0, BM), tl.arange(0, D)
    to = out_ptr + head * queries * D + query[:, None] * D + inner[None, :]
    tl.store(to, (out / total[:, None]).to(tl.float16), mask=query[:, None] < queries)
    tl.store(lse_ptr + head * queries + query, (high + tl.log2(total)) * LN_2, mask=query < queries)


@triton.jit  # type: ignore[untyped-decorator]
def each_block(  # type: ignore[no-untyped-def]
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, queries, keys, group, scale, D: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, LAST_FIRST: tl.constexpr, TWO_STAGES: tl.constexpr,
):  # fmt: skip
    """A block of queries to a program; the last ones, which see most where it is causal, may begin."""
    head, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    if LAST_FIRST:
        block = tl.num_programs(0) - 1 - block
    out, total, high = attended(
        q_ptr, k_ptr, v_ptr, head, block, 0, keys, queries, keys, group, scale, D, CAUSAL, BM, BN, TWO_STAGES
    )
    write(out_ptr, lse_ptr, out, total, high, head, block, queries, D, BM)


@triton.jit  # type: ignore[untyped-decorator]
def blocks_in_turn(  # type: ignore[no-untyped-def]
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, heads, queries, keys, group, scale, D: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Several blocks of queries to a program, the last ones of all heads first.

    Who came first in one round comes last in the next: where it is causal, to see most once and least once is even.
    """
    blocks, programs = tl.cdiv(queries, BM), tl.num_programs(0)
    for first in range(0, heads * blocks, programs):
        back = first // programs % 2
        turn = first + back * (programs - 1) + (1 - 2 * back) * tl.program_id(0)
        if turn < heads * blocks:
            head, block = (turn % heads).to(tl.int64), blocks - 1 - turn // heads
            out, total, high = attended(
                q_ptr, k_ptr, v_ptr, head, block, 0, keys, queries, keys, group, scale, D, CAUSAL, BM, BN, True
            )
            write(out_ptr, lse_ptr, out, total, high, head, block, queries, D, BM)


@triton.jit  # type: ignore[untyped-decorator]
def parts_of_keys(  # type: ignore[no-untyped-def]
    outs_ptr, totals_ptr, highs_ptr, q_ptr, k_ptr, v_ptr, queries, keys, group, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A block of queries over one part of the keys; a part of which it sees nothing has sums of 0."""
    block, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.cdiv(tl.cdiv(keys, PARTS), BN) * BN
    first = part * length
    out, total, high = attended(
        q_ptr, k_ptr, v_ptr, head, block, first, tl.minimum(keys, first + length),
        queries, keys, group, scale, D, CAUSAL, BM, BN, True,
    )  # fmt: skip
    query, inner = block * BM + tl.arange(0, BM), tl.arange(0, D)
    at = (head * queries + query) * PARTS + part
    tl.store(outs_ptr + at[:, None] * D + inner[None, :], out, mask=query[:, None] < queries)
    tl.store(totals_ptr + at, total, mask=query < queries)
    tl.store(highs_ptr + at, high, mask=query < queries)


@triton.jit  # type: ignore[untyped-decorator]
def together(  # type: ignore[no-untyped-def]
    out_ptr, lse_ptr, outs_ptr, totals_ptr, highs_ptr, D: tl.constexpr, PARTS: tl.constexpr
):
    """Both results of a query out of those of its parts."""
    row = tl.program_id(0).to(tl.int64)
    at, inner = row * PARTS + tl.arange(0, PARTS), tl.arange(0, D)
    highs = tl.load(highs_ptr + at)
    high = tl.max(highs, 0)
    share = tl.exp2(highs - high)
    total = tl.sum(share * tl.load(totals_ptr + at), 0)
    out = tl.sum(share[:, None] * tl.load(outs_ptr + at[:, None] * D + inner[None, :]), 0)
    tl.store(out_ptr + row * D + inner, (out / total).to(tl.float16))
    tl.store(lse_ptr + row, (high + tl.log2(total)) * LN_2)


def flash(
    q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any, *,
    BM: int, BN: int, LAST_FIRST: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """One pass over the keys, all of them masked alike: the shortest program."""
    knobs = {"BM": BM, "BN": BN, "LAST_FIRST": LAST_FIRST, "num_warps": num_warps, "num_stages": num_stages}
    in_blocks(q, k, v, causal, out, lse, TWO_STAGES=False, **knobs)


def two_stages(
    q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any, *,
    BM: int, BN: int, LAST_FIRST: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Blocks of keys that all queries of a block see, without masks; then those at an edge, with them."""
    knobs = {"BM": BM, "BN": BN, "LAST_FIRST": LAST_FIRST, "num_warps": num_warps, "num_stages": num_stages}
    in_blocks(q, k, v, causal, out, lse, TWO_STAGES=True, **knobs)


def in_blocks(q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any, *, BM: int, **knobs: Any) -> None:
    """A program to each block of queries of each head."""
    heads, queries, D = q.shape
    scale = LOG2_E * D**-0.5
    each_block[triton.cdiv(queries, BM), heads](
        out, lse, q, k, v, queries, k.shape[1], heads // len(k), scale, D=D, CAUSAL=causal, BM=BM, **knobs
    )


def balanced(
    q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any, *,
    ROUNDS: int, BM: int, BN: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """As `two_stages`, with several blocks to a program: fewer programs, of equal length where it is causal."""
    heads, queries, D = q.shape
    blocks_in_turn[triton.cdiv(heads * triton.cdiv(queries, BM), ROUNDS),](
        out, lse, q, k, v, heads, queries, k.shape[1], heads // len(k), LOG2_E * D**-0.5, D, causal, BM, BN,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def split_keys(
    q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any, *,
    PARTS: int, BM: int, BN: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Several programs to a block of queries, and a kernel that brings together what they found: for few queries."""
    heads, queries, D = q.shape
    if (size := 4 * PARTS * q.numel()) > MOST_PARTIAL_BYTES:
        raise InvalidInputError(f"{PARTS} parts take {size} bytes for {heads * queries} queries: fewer of them will do")
    outs = torch.empty(heads, queries, PARTS, D, dtype=torch.float32, device=q.device)
    totals, highs = (torch.empty(heads, queries, PARTS, dtype=torch.float32, device=q.device) for _ in range(2))
    parts_of_keys[triton.cdiv(queries, BM), PARTS, heads](
        outs, totals, highs, q, k, v, queries, k.shape[1], heads // len(k), LOG2_E * D**-0.5, D, causal, PARTS, BM, BN,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    together[heads * queries,](out, lse, outs, totals, highs, D, PARTS, num_warps=4)


ROLES = {"BM": "tile", "BN": "tile", "num_warps": "threads", "num_stages": "stages"}
# All of them for heads of 128, the widest in use. Scores and outputs are in registers, 128 of a thread's at most; fewer
# than 16 leave threads without work.
IN_REGISTERS = lambda BM, BN, num_warps: 16 <= BM * (BN + 128) // (32 * num_warps) <= 128  # noqa: E731
# Queries, and keys and values of each stage: 227 KB of shared memory, of which reductions need some too.
IN_SHARED = lambda BM, BN, num_stages: 2 * 128 * (BM + 2 * BN * num_stages) <= 212 * 1024  # noqa: E731

BLOCKS = Space.grid(
    {
        "BM": [32, 64, 128, 256],
        "BN": [32, 64, 128],
        "LAST_FIRST": [False, True],
        "num_warps": [4, 8, 16],
        "num_stages": [1, 2, 3, 4],
    },
    constraints=[IN_REGISTERS, IN_SHARED, lambda BM, num_warps: 8 * num_warps <= BM],  # 16 rows to two warps
    default={"BM": 128, "BN": 64, "LAST_FIRST": False, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "LAST_FIRST": "order"},
)
IN_TURN = Space.grid(
    {
        "ROUNDS": [2, 4, 8, 16],
        "BM": [64, 128],
        "BN": [32, 64, 128],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    constraints=[IN_REGISTERS, IN_SHARED],
    default={"ROUNDS": 2, "BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "ROUNDS": "tile"},
)
SPLIT = Space.grid(
    {
        "PARTS": [2, 4, 8, 16, 32],
        "BM": [16, 32, 64, 128],
        "BN": [32, 64, 128],
        "num_warps": [2, 4, 8],
        "num_stages": [2, 3],
    },
    # With 16 queries, warps side by side share out the keys: no use of more than one to 16 of them.
    constraints=[IN_REGISTERS, IN_SHARED, lambda BM, BN, num_warps: max(BM, BN) >= 16 * num_warps],
    default={"PARTS": 8, "BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
    roles={**ROLES, "PARTS": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal queries, keys and values, whether it is causal, and both outputs."""
    heads, kv_heads, queries, keys, D = (case.sizes[name] for name in ("heads", "kv_heads", "queries", "keys", "D"))
    random = torch.Generator(device).manual_seed(seed)
    q, k, v = (
        torch.randn(*shape, D, generator=random, device=device, dtype=torch.float16)
        for shape in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    )
    lse = torch.full((heads, queries), torch.nan, device=device)
    return q, k, v, bool(case.sizes.get("causal")), torch.full_like(q, torch.nan), lse


def reference(q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in float32, for the heads that share keys at a time."""
    heads, queries, D = q.shape
    keys, outs, lses = k.shape[1], [], []
    unseen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1)
    for some, key, value in zip(q.float().mul(D**-0.5).split(heads // len(k)), k.float(), v.float(), strict=True):
        scores = some @ key.T
        if causal:
            scores.masked_fill_(unseen, -torch.inf)
        outs.append(scores.softmax(2) @ value)
        lses.append(scores.logsumexp(2))
    return torch.cat(outs).to(out.dtype), torch.cat(lses).to(lse.dtype)


def work(q: Any, k: Any, v: Any, causal: bool, out: Any, lse: Any) -> Work:
    """Two products for each pair of a query and a key it sees; each tensor is moved once."""
    heads, queries, D = q.shape
    keys = k.shape[1]
    seen = queries * keys - queries * (queries - 1) / 2 if causal else queries * keys
    return Work(
        flops=4.0 * heads * seen * D,
        bytes=float(sum(t.numel() * t.element_size() for t in (q, k, v, out, lse))),
    )


VARIANTS = SuiteKernel(
    name="attention",
    variants=(
        Variant(name="flash", launch=flash, space=BLOCKS, functions=(each_block,)),
        Variant(name="two_stages", launch=two_stages, space=BLOCKS, functions=(each_block,)),
        Variant(name="balanced", launch=balanced, space=IN_TURN, functions=(blocks_in_turn,)),
        Variant(name="split_keys", launch=split_keys, space=SPLIT, functions=(parts_of_keys, together)),
    ),
    # Queries, once scaled, and powers are rounded to float16 before they are multiplied, 2**-11 each, and scores reach 6 or
    # so: results of the size of 1 are off by a few thousandths at most.
    outputs=(Output(name="out", rtol=5e-3, atol=5e-3), Output(name="lse", rtol=1e-3, atol=3e-3)),
    cases=(
        Case(
            name="causal",
            sizes={"heads": 64, "kv_heads": 16, "queries": 4096, "keys": 4096, "D": 128, "causal": 1},
        ),
        Case(name="full", sizes={"heads": 64, "kv_heads": 64, "queries": 4096, "keys": 4096, "D": 64}),
        Case(
            name="chunk_of_prompt",
            sizes={"heads": 32, "kv_heads": 8, "queries": 512, "keys": 16384, "D": 128, "causal": 1},
        ),
        Case(name="one_query", sizes={"heads": 32, "kv_heads": 8, "queries": 1, "keys": 65536, "D": 128, "causal": 1}),
        Case(name="odd", sizes={"heads": 12, "kv_heads": 3, "queries": 1111, "keys": 1777, "D": 64, "causal": 1}),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "kv_heads": 1, "queries": 1, "keys": 1, "D": 16}),
        Case(name="below_a_block", sizes={"heads": 2, "kv_heads": 1, "queries": 5, "keys": 7, "D": 16}),
        Case(name="over_blocks", sizes={"heads": 2, "kv_heads": 1, "queries": 150, "keys": 197, "D": 16}),
        Case(
            name="causal_over_blocks",
            sizes={"heads": 2, "kv_heads": 2, "queries": 201, "keys": 201, "D": 32, "causal": 1},
        ),
        Case(name="more_keys", sizes={"heads": 2, "kv_heads": 1, "queries": 70, "keys": 300, "D": 16, "causal": 1}),
        Case(name="one_of_many", sizes={"heads": 4, "kv_heads": 2, "queries": 1, "keys": 515, "D": 32, "causal": 1}),
        Case(
            name="whole_blocks", sizes={"heads": 2, "kv_heads": 1, "queries": 128, "keys": 256, "D": 128, "causal": 1}
        ),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
