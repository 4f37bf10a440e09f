"""Attention of one new token per sequence to keys and values that lie in pages, in float16 in Triton.

Of q [sequences, heads, D] and k, v [pages, PAGE, kv_heads, D], of which heads // kv_heads heads share one: the keys of a
sequence are the first `length` of those in the pages that its row of the table names; out = softmax(q k^T D^-1/2) v. What
lies past a sequence's end, in its last page or in its row of the table, is nobody's, and may be anything.
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

LOG2_E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)  # finite: a part without keys must not become NaN


@triton.jit  # type: ignore[untyped-decorator]
def slots(table_ptr, token, last, kv_head, kv_heads, D: tl.constexpr, PAGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the keys and values of some tokens of a sequence begin."""
    page = tl.load(table_ptr + token // PAGE, mask=token < last, other=0).to(tl.int64)
    return ((page * PAGE + token % PAGE) * kv_heads + kv_head) * D


@triton.jit  # type: ignore[untyped-decorator]
def attended(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, table_ptr, kv_head, first, last, kv_heads, group, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What all heads of a group find among the tokens from `first` to before `last` of their sequence.

    Returns sums of values, sums of powers and highest scores; `scale` holds log2(e), since powers are of two.
    """
    row, inner = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    q = tl.load(
        q_ptr + row[:, None] * D + inner[None, :], mask=(row < group)[:, None] & (inner < D)[None, :], other=0.0
    )
    q = (q * scale).to(tl.float16)
    high, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        at, here = slots(table_ptr, token, last, kv_head, kv_heads, D, PAGE), token < last
        k = tl.load(k_ptr + at[None, :] + inner[:, None], mask=here[None, :] & (inner < D)[:, None], other=0.0)
        scores = tl.where(here[None, :], tl.dot(q, k), LOWEST)
        higher = tl.maximum(high, tl.max(scores, 1))
        shrink, power = tl.exp2(high - higher), tl.exp2(scores - higher[:, None])
        v = tl.load(v_ptr + at[:, None] + inner[None, :], mask=here[:, None] & (inner < D)[None, :], other=0.0)
        out = tl.dot(power.to(tl.float16), v, out * shrink[:, None])
        total = total * shrink + tl.sum(power, 1)
        high = higher
    return out, total, high


@triton.jit  # type: ignore[untyped-decorator]
def each_group(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, most, kv_heads, group, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All heads of one group of one sequence, as rows of one product: keys are read once for all of them."""
    kv_head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    base = (sequence * kv_heads + kv_head) * group * D
    out, total, _ = attended(
        q_ptr + base, k_ptr, v_ptr, table_ptr + sequence * most, kv_head, 0, tl.load(lengths_ptr + sequence),
        kv_heads, group, scale, D, WIDTH, PAGE, ROWS, BLOCK,
    )  # fmt: skip
    row, inner = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    to = out_ptr + base + row * D + inner
    tl.store(to, (out / total[:, None]).to(tl.float16), mask=(row < group) & (inner < D))


@triton.jit  # type: ignore[untyped-decorator]
def each_head(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, most, heads, kv_heads, group, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One head of one sequence, without matrix products.

    Where it is LATE, lanes keep sums of values of their own, to be brought together at the end.
    """
    head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    inner, length = tl.arange(0, WIDTH), tl.load(lengths_ptr + sequence)
    base = (sequence * heads + head) * D
    q = tl.load(q_ptr + base + inner, mask=inner < D, other=0.0).to(tl.float32) * scale
    high, total = tl.full((1,), LOWEST, tl.float32), tl.zeros((1,), tl.float32)
    out = tl.zeros((BLOCK if LATE else 1, WIDTH), tl.float32)
    for start in tl.range(
        0, length, BLOCK, num_stages=STAGES
    ):  # said here: loads that no product waits for stay unstaged
        token = start + tl.arange(0, BLOCK)
        at = (
            slots(table_ptr + sequence * most, token, length, head // group, kv_heads, D, PAGE)[:, None]
            + inner[None, :]
        )
        here = (token < length)[:, None] & (inner < D)[None, :]
        scores = tl.sum(tl.load(k_ptr + at, mask=here, other=0.0).to(tl.float32) * q[None, :], 1)
        scores = tl.where(token < length, scores, LOWEST)
        higher = tl.maximum(high, tl.max(scores, 0))
        shrink, power = tl.exp2(high - higher), tl.exp2(scores - higher)
        weighed = power[:, None] * tl.load(v_ptr + at, mask=here, other=0.0).to(tl.float32)
        out = out * shrink[:, None] + (weighed if LATE else tl.sum(weighed, 0)[None, :])
        total = total * shrink + tl.sum(power, 0)
        high = higher
    tl.store(out_ptr + base + inner, (tl.sum(out, 0) / total).to(tl.float16), mask=inner < D)


@triton.jit  # type: ignore[untyped-decorator]
def each_part(  # type: ignore[no-untyped-def]
    outs_ptr, totals_ptr, highs_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, most, kv_heads, group, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `each_group`, of one part of a sequence; a part without tokens has sums of 0."""
    part, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(lengths_ptr + sequence)
    reach = tl.cdiv(tl.cdiv(length, PARTS), BLOCK) * BLOCK
    first_head = (sequence * kv_heads + kv_head) * group
    out, total, high = attended(
        q_ptr + first_head * D, k_ptr, v_ptr, table_ptr + sequence * most, kv_head,
        part * reach, tl.minimum(length, (part + 1) * reach), kv_heads, group, scale, D, WIDTH, PAGE, ROWS, BLOCK,
    )  # fmt: skip
    row, inner = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = (first_head + row) * PARTS + part
    to, wanted = outs_ptr + at[:, None] * D + inner[None, :], (row < group)[:, None] & (inner < D)[None, :]
    tl.store(to, out, mask=wanted)
    tl.store(totals_ptr + at, total, mask=row < group)
    tl.store(highs_ptr + at, high, mask=row < group)


@triton.jit  # type: ignore[untyped-decorator]
def together(  # type: ignore[no-untyped-def]
    out_ptr, outs_ptr, totals_ptr, highs_ptr, D: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr
):
    """The result of one head of one sequence out of those of its parts."""
    head = tl.program_id(0).to(tl.int64)
    at, inner = head * PARTS + tl.arange(0, PARTS), tl.arange(0, WIDTH)
    highs = tl.load(highs_ptr + at)
    share = tl.exp2(highs - tl.max(highs, 0))
    total = tl.sum(share * tl.load(totals_ptr + at), 0)
    outs = tl.load(outs_ptr + at[:, None] * D + inner[None, :], mask=(inner < D)[None, :], other=0.0)
    tl.store(out_ptr + head * D + inner, (tl.sum(outs * share[:, None], 0) / total).to(tl.float16), mask=inner < D)


def width(D: int) -> int:
    """A power of two that holds a head, and that a matrix product takes."""
    return max(16, int(triton.next_power_of_2(D)))


def one_pass(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, *, BLOCK: int, num_warps: int, num_stages: int
) -> None:
    """A program to each group of heads of each sequence."""
    (sequences, heads, D), (_, PAGE, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    each_group[kv_heads, sequences](
        out, q, k, v, table, lengths, table.shape[1], kv_heads, group, LOG2_E * D**-0.5, D=D, WIDTH=width(D), PAGE=PAGE,
        ROWS=width(group), BLOCK=BLOCK, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def per_head(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, *,
    BLOCK: int, LATE: bool, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """A program to each head: keys are read, from the cache mostly, for each head of a group, but none is padding."""
    (sequences, heads, D), (_, PAGE, kv_heads, _) = q.shape, k.shape
    each_head[heads, sequences](
        out, q, k, v, table, lengths, table.shape[1], heads, kv_heads, heads // kv_heads, LOG2_E * D**-0.5,
        D=D, WIDTH=width(D), PAGE=PAGE, BLOCK=BLOCK, LATE=LATE, STAGES=num_stages,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def split_pages(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, *,
    PARTS: int, BLOCK: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Several programs to each group of heads, each a part of the sequence, and a kernel that brings them together."""
    (sequences, heads, D), (_, PAGE, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    outs = torch.empty(sequences, heads, PARTS, D, dtype=torch.float32, device=q.device)
    totals, highs = (torch.empty(sequences, heads, PARTS, dtype=torch.float32, device=q.device) for _ in range(2))
    each_part[PARTS, kv_heads, sequences](
        outs, totals, highs, q, k, v, table, lengths, table.shape[1], kv_heads, group, LOG2_E * D**-0.5,
        D=D, WIDTH=width(D), PAGE=PAGE, ROWS=width(group), PARTS=PARTS, BLOCK=BLOCK,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    together[sequences * heads,](out, outs, totals, highs, D=D, WIDTH=width(D), PARTS=PARTS, num_warps=4)


ROLES = {"BLOCK": "tile", "num_warps": "threads", "num_stages": "stages"}
# All of them for heads of 128, the widest in use. Rows are 16, so that warps side by side share out the tokens; and keys
# and values of all stages are in 227 KB of shared memory, of which reductions need some too.
SHARED_OUT = lambda BLOCK, num_warps: 8 * num_warps <= BLOCK <= 64 * num_warps  # noqa: E731
IN_SHARED = lambda BLOCK, num_stages: 2 * 128 * 2 * BLOCK * num_stages <= 208 * 1024  # noqa: E731

ONE_PASS = Space.grid(
    {"BLOCK": [16, 32, 64, 128, 256], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4, 5]},
    constraints=[SHARED_OUT, IN_SHARED],
    default={"BLOCK": 64, "num_warps": 4, "num_stages": 3},
    roles=ROLES,
)
PER_HEAD = Space.grid(
    {"BLOCK": [16, 32, 64, 128], "LATE": [False, True], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4]},
    # Of keys, of values and, where it is LATE, of sums a thread holds so many: 8 are a load of 16 bytes.
    constraints=[
        lambda BLOCK, LATE, num_warps: 8 <= BLOCK * 128 // (32 * num_warps) <= (32 if LATE else 64),
        IN_SHARED,
    ],
    default={"BLOCK": 32, "LATE": False, "num_warps": 4, "num_stages": 3},
    roles={**ROLES, "LATE": "algorithm"},
)
SPLIT = Space.grid(
    {"PARTS": [2, 4, 8, 16, 32, 64], "BLOCK": [16, 32, 64, 128], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4]},
    constraints=[SHARED_OUT, IN_SHARED],
    default={"PARTS": 8, "BLOCK": 64, "num_warps": 4, "num_stages": 3},
    roles={**ROLES, "PARTS": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Sequences of any length up to the longest, which is the first, in pages in any order; NaN where nobody's."""
    sequences, heads, kv_heads, D, PAGE, longest = (
        case.sizes[name] for name in ("sequences", "heads", "kv_heads", "D", "page", "longest")
    )
    random, order = torch.Generator(device).manual_seed(seed), torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (sequences,), generator=order)
    lengths[0] = longest
    used = (lengths + PAGE - 1) // PAGE
    pages = int(used.sum())
    table = torch.zeros(sequences, int(used[0]), dtype=torch.int32)  # page 0 is nobody's
    table[torch.arange(int(used[0])) < used[:, None]] = torch.randperm(pages, generator=order, dtype=torch.int32) + 1
    q = torch.randn(sequences, heads, D, generator=random, device=device, dtype=torch.float16)
    shape = (pages + 1, PAGE, kv_heads, D)
    k, v = (torch.randn(shape, generator=random, device=device, dtype=torch.float16) for _ in range(2))
    for tensor in (k, v):
        tensor[0] = torch.nan
        for row, length, count in zip(table.tolist(), lengths.tolist(), used.tolist(), strict=True):
            tensor[row[count - 1], length - (count - 1) * PAGE :] = torch.nan
    return q, k, v, table.to(device), lengths.to(torch.int32).to(device), torch.full_like(q, torch.nan)


def reference(q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any) -> tuple[torch.Tensor]:
    """The definition, sequence by sequence, in float32."""
    (_, heads, D), kv_heads = q.shape, k.shape[2]
    outs = []
    for query, pages, length in zip(q.float(), table, lengths.tolist(), strict=True):
        taken = pages[: -(-length // k.shape[1])]
        keys, values = (t[taken].flatten(0, 1)[:length].float() for t in (k, v))  # [length, kv_heads, D]
        scores = torch.einsum("hgd,nhd->hgn", query.view(kv_heads, heads // kv_heads, D), keys) * D**-0.5
        outs.append(torch.einsum("hgn,nhd->hgd", scores.softmax(2), values).reshape(heads, D))
    return (torch.stack(outs).to(out.dtype),)


def work(q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any) -> Work:
    """Two products for each head and each token of its sequence; every page but the first, which is nobody's, is read once.

    Last pages count in full: what lengths there are is known on the device alone.
    """
    (_, heads, D), (pages, PAGE, _, _) = q.shape, k.shape
    return Work(
        flops=4.0 * (pages - 1) * PAGE * heads * D,
        bytes=float(sum(t.numel() * t.element_size() for t in (q, k[1:], v[1:], table, lengths, out))),
    )


VARIANTS = SuiteKernel(
    name="paged_attention",
    variants=(
        Variant(name="one_pass", launch=one_pass, space=ONE_PASS, functions=(each_group,)),
        Variant(name="per_head", launch=per_head, space=PER_HEAD, functions=(each_head,)),
        Variant(name="split_pages", launch=split_pages, space=SPLIT, functions=(each_part, together)),
    ),
    # Queries, once scaled, and powers are rounded to float16 before they are multiplied, 2**-11 each, and scores reach 6 or
    # so: results of the size of 1 are off by a few thousandths at most.
    outputs=(Output(name="out", rtol=5e-3, atol=5e-3),),
    cases=(
        Case(
            name="batch", sizes={"sequences": 64, "heads": 64, "kv_heads": 8, "D": 128, "page": 16, "longest": 8192}
        ),
        Case(
            name="long", sizes={"sequences": 4, "heads": 32, "kv_heads": 8, "D": 128, "page": 16, "longest": 65536}
        ),
        Case(
            name="one_sequence",
            sizes={"sequences": 1, "heads": 32, "kv_heads": 8, "D": 128, "page": 16, "longest": 16384},
        ),
        Case(
            name="own_keys", sizes={"sequences": 64, "heads": 32, "kv_heads": 32, "D": 128, "page": 32, "longest": 2048}
        ),
        Case(name="odd", sizes={"sequences": 37, "heads": 28, "kv_heads": 4, "D": 80, "page": 16, "longest": 3333}),
    ),
    corners=(
        Case(name="one", sizes={"sequences": 1, "heads": 1, "kv_heads": 1, "D": 16, "page": 16, "longest": 1}),
        Case(
            name="within_a_page", sizes={"sequences": 3, "heads": 3, "kv_heads": 1, "D": 20, "page": 16, "longest": 21}
        ),
        Case(
            name="over_blocks", sizes={"sequences": 3, "heads": 6, "kv_heads": 2, "D": 32, "page": 16, "longest": 301}
        ),
        Case(
            name="many_heads", sizes={"sequences": 2, "heads": 17, "kv_heads": 1, "D": 16, "page": 8, "longest": 150}
        ),
        Case(
            name="whole_blocks", sizes={"sequences": 1, "heads": 8, "kv_heads": 2, "D": 128, "page": 16, "longest": 256}
        ),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)  # fmt: skip
