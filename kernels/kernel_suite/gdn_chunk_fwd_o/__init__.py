"""Outputs of the gated delta rule, all chunks at once, in float16 in Triton: from the state before and from the chunk.

For each head and each chunk of 64 tokens, with q, k [64, K], v [64, V], the state h [K, V] before the chunk and g, the sum
of the logarithms of its gates so far: o = scale (exp(g) q h + (exp(g_i - g_j) q k^T where i >= j) v), scale = K^-1/2.
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..gdn_chunk_fwd_h import CHUNK, gates, unit, width
from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant


@triton.jit
def weighed(scores, g, t, T):  # type: ignore[no-untyped-def]
    """Scores of a chunk times the gates between query and key, for keys that are not past their query."""
    i, j = t[:, None], t[None, :]
    seen = (i >= j) & (i < T)
    gate = tl.exp(tl.where(seen, g[:, None] - g[None, :], 0.0))  # not above 1 where seen; elsewhere it might overflow
    return tl.where(seen, scores * gate, 0.0).to(tl.float16)


@triton.jit  # type: ignore[untyped-decorator]
def output_block(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, scale, T, H, K, V,
    CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """BV columns of one chunk of one head; the scores are computed beside them, from the same tiles of q."""
    chunk, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)  # of the head's first token, in tokens of all heads
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    token = start + t.to(tl.int64) * H
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    h = h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V
    out, scores = tl.zeros((CHUNK, BV), tl.float32), tl.zeros((CHUNK, CHUNK), tl.float32)
    for first in range(0, K, BK):
        key = first + tl.arange(0, BK)
        q = tl.load(q_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
        k = tl.load(k_ptr + (token * K)[None, :] + key[:, None], mask=(key < K)[:, None] & (t < T)[None, :], other=0.0)
        state = h + key[:, None] * V + value[None, :]
        out = tl.dot(q, tl.load(state, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0), out)
        scores = tl.dot(q, k, scores)
    g = tl.load(g_ptr + token, mask=t < T, other=0.0)
    at, inside = (token * V)[:, None] + value[None, :], (t < T)[:, None] & (value < V)[None, :]
    out = tl.dot(weighed(scores, g, t, T), tl.load(v_ptr + at, mask=inside, other=0.0), out * tl.exp(g)[:, None])
    tl.store(out_ptr + at, (out * scale).to(tl.float16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def score(  # type: ignore[no-untyped-def]
    scores_ptr, q_ptr, k_ptr, g_ptr, T, H, K, CHUNK: tl.constexpr, BK: tl.constexpr
):
    """The weighed scores of one chunk of one head, 64 to a token."""
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = head // H * T * H + head % H
    inner = tl.arange(0, CHUNK)
    t = chunk * CHUNK + inner
    token = start + t.to(tl.int64) * H
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    for first in range(0, K, BK):
        key = first + tl.arange(0, BK)
        q = tl.load(q_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
        k = tl.load(k_ptr + (token * K)[None, :] + key[:, None], mask=(key < K)[:, None] & (t < T)[None, :], other=0.0)
        scores = tl.dot(q, k, scores)
    g = tl.load(g_ptr + token, mask=t < T, other=0.0)
    to = scores_ptr + (token * CHUNK)[:, None] + inner[None, :]
    tl.store(to, weighed(scores, g, t, T), mask=(t < T)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def output_of_scores(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, scores_ptr, v_ptr, h_ptr, g_ptr, scale, T, H, K, V,
    CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """BV columns of one chunk of one head, its scores being known."""
    chunk, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    inner = tl.arange(0, CHUNK)
    t = chunk * CHUNK + inner
    token = start + t.to(tl.int64) * H
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    h = h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V
    out = tl.zeros((CHUNK, BV), tl.float32)
    for first in range(0, K, BK):
        key = first + tl.arange(0, BK)
        q = tl.load(q_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
        state = h + key[:, None] * V + value[None, :]
        out = tl.dot(q, tl.load(state, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0), out)
    scores = tl.load(scores_ptr + (token * CHUNK)[:, None] + inner[None, :], mask=(t < T)[:, None], other=0.0)
    at, inside = (token * V)[:, None] + value[None, :], (t < T)[:, None] & (value < V)[None, :]
    gate = tl.exp(tl.load(g_ptr + token, mask=t < T, other=0.0))
    out = tl.dot(scores, tl.load(v_ptr + at, mask=inside, other=0.0), out * gate[:, None])
    tl.store(out_ptr + at, (out * scale).to(tl.float16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def output_chunk(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, scale, T, H, K, V,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One chunk of one head: q stays where it is, scores are computed once, and blocks of values follow each other."""
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    t, key = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    token = start + t.to(tl.int64) * H
    h = h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V
    q = tl.load(q_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
    k = tl.load(k_ptr + (token * K)[None, :] + key[:, None], mask=(key < K)[:, None] & (t < T)[None, :], other=0.0)
    g = tl.load(g_ptr + token, mask=t < T, other=0.0)
    scores = weighed(tl.dot(q, k), g, t, T)
    gate = tl.exp(g)[:, None]
    for first in range(0, V, BV):
        value = first + tl.arange(0, BV)
        state = h + key[:, None] * V + value[None, :]
        out = tl.dot(q, tl.load(state, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0)) * gate
        at, inside = (token * V)[:, None] + value[None, :], (t < T)[:, None] & (value < V)[None, :]
        out = tl.dot(scores, tl.load(v_ptr + at, mask=inside, other=0.0), out)
        tl.store(out_ptr + at, (out * scale).to(tl.float16), mask=inside)


def value_blocks(
    q: Any, k: Any, v: Any, h: Any, g: Any, out: Any, *, BK: int, BV: int, num_warps: int, num_stages: int
) -> None:
    """Blocks of values side by side, each with scores of its own: more products, no waiting."""
    batch, T, H, K = q.shape
    V, chunks = v.shape[3], h.shape[1]
    output_block[triton.cdiv(V, BV), chunks, batch * H](
        out, q, k, v, h, g, K**-0.5, T, H, K, V, CHUNK=CHUNK, BK=BK, BV=BV, num_warps=num_warps, num_stages=num_stages
    )


def scores_first(
    q: Any, k: Any, v: Any, h: Any, g: Any, out: Any, *, BK: int, BV: int, num_warps: int, num_stages: int
) -> None:
    """Scores in a kernel before, 64 to a token, to be written and read again: no product is computed twice."""
    batch, T, H, K = q.shape
    V, chunks = v.shape[3], h.shape[1]
    scores = q.new_empty(batch, T, H, CHUNK)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    score[chunks, batch * H](scores, q, k, g, T, H, K, CHUNK=CHUNK, BK=BK, num_warps=4, num_stages=num_stages)
    output_of_scores[triton.cdiv(V, BV), chunks, batch * H](
        out, q, scores, v, h, g, K**-0.5, T, H, K, V, CHUNK=CHUNK, BK=BK, BV=BV, **options
    )


def values_in_turn(
    q: Any, k: Any, v: Any, h: Any, g: Any, out: Any, *, BV: int, num_warps: int, num_stages: int
) -> None:
    """A program to each chunk of each head: q and k are read once, blocks of values one after the other."""
    batch, T, H, K = q.shape
    V, chunks = v.shape[3], h.shape[1]
    output_chunk[chunks, batch * H](
        out, q, k, v, h, g, K**-0.5, T, H, K, V,
        CHUNK=CHUNK, WIDTH=width(K), BV=BV, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


ROLES = {"BK": "tile", "BV": "tile", "num_warps": "threads", "num_stages": "stages"}

BLOCKS = Space.grid(
    {"BK": [16, 32, 64, 128], "BV": [16, 32, 64, 128], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3, 4]},
    constraints=[
        # Two sums, of 64 x BV and of 64 x 64, in registers.
        lambda BV, num_warps: 64 * (BV + 64) // (32 * num_warps) <= 128,
        lambda BK, num_stages: BK * num_stages <= 256,  # stages that 128 keys have no use for
    ],
    default={"BK": 64, "BV": 128, "num_warps": 4, "num_stages": 2},
    roles=ROLES,
)
IN_TURN = Space.grid(
    {"BV": [16, 32, 64, 128], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3, 4]},
    constraints=[
        lambda BV, num_warps: 64 * BV // (32 * num_warps) <= 64,
        # Below 64 columns, what Triton 3.6 makes for Hopper's products of 4 warps was wrong, or read where it must not,
        # unless the loop is pipelined: with one stage, and at unaligned sizes (H200, 2026-11). 2 warps have other products.
        lambda BV, num_warps: BV >= 64 or num_warps == 2,
    ],
    default={"BV": 64, "num_warps": 4, "num_stages": 2},
    roles={name: role for name, role in ROLES.items() if name != "BK"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Queries and keys of length 1, values and states of a spread of 1; the output last."""
    batch, T, H, K, V = (case.sizes[name] for name in ("batch", "T", "H", "K", "V"))
    random = torch.Generator(device).manual_seed(seed)
    q, k = unit(random, batch, T, H, K).mul_(K**0.5).half(), unit(random, batch, T, H, K).half()
    v = torch.randn(batch, T, H, V, generator=random, device=device).half()
    h = torch.randn(batch, triton.cdiv(T, CHUNK), H, K, V, generator=random, device=device).half()
    return q, k, v, h, gates(random, batch, T, H), torch.full_like(v, torch.nan)


def reference(q: Any, k: Any, v: Any, h: Any, g: Any, out: Any) -> tuple[torch.Tensor]:
    """The definition, chunk by chunk, in float32."""
    queries, keys, values, gs = (t.float().transpose(1, 2) for t in (q, k, v, g[..., None]))  # [batch, H, T, width]
    outs = []
    for chunk, start in enumerate(range(0, q.shape[1], CHUNK)):
        query, key, value, gate = (t[:, :, start : start + CHUNK] for t in (queries, keys, values, gs))
        scores = (query @ key.transpose(2, 3) * (gate - gate.transpose(2, 3)).exp()).tril()
        outs.append(gate.exp() * (query @ h[:, chunk].float()) + scores @ value)
    return ((torch.cat(outs, 2).transpose(1, 2) * q.shape[3] ** -0.5).to(out.dtype),)


def work(q: Any, k: Any, v: Any, h: Any, g: Any, out: Any) -> Work:
    """For each token a product with the state, and two with each token of its chunk up to itself."""
    batch, T, H, K = q.shape
    V, (whole, rest) = v.shape[3], divmod(T, CHUNK)
    pairs = whole * CHUNK * (CHUNK + 1) / 2 + rest * (rest + 1) / 2
    return Work(
        flops=2.0 * batch * H * (T * K * V + pairs * (K + V)),
        bytes=float(sum(t.numel() * t.element_size() for t in (q, k, v, h, g, out))),
    )


VARIANTS = SuiteKernel(
    name="gdn_chunk_fwd_o",
    variants=(
        Variant(name="value_blocks", launch=value_blocks, space=BLOCKS, functions=(output_block,)),
        Variant(name="scores_first", launch=scores_first, space=BLOCKS, functions=(score, output_of_scores)),
        Variant(name="values_in_turn", launch=values_in_turn, space=IN_TURN, functions=(output_chunk,)),
    ),
    # Sums are in float32; scores are rounded to float16 before they are multiplied, and results, 2**-11 each of numbers of
    # the size of 1 to 4.
    outputs=(Output(name="o", rtol=5e-3, atol=5e-3),),
    cases=(
        Case(name="prefill", sizes={"batch": 1, "T": 8192, "H": 32, "K": 128, "V": 128}),
        Case(name="training", sizes={"batch": 8, "T": 2048, "H": 16, "K": 128, "V": 128}),
        Case(name="long", sizes={"batch": 1, "T": 32768, "H": 8, "K": 128, "V": 128}),
        Case(name="wide_values", sizes={"batch": 2, "T": 4096, "H": 8, "K": 128, "V": 256}),
        Case(name="odd", sizes={"batch": 3, "T": 1111, "H": 5, "K": 100, "V": 72}),
    ),
    corners=(
        Case(name="one", sizes={"batch": 1, "T": 1, "H": 1, "K": 16, "V": 16}),
        Case(name="below_a_chunk", sizes={"batch": 2, "T": 37, "H": 2, "K": 20, "V": 12}),
        Case(name="over_chunks", sizes={"batch": 1, "T": 150, "H": 3, "K": 40, "V": 70}),
        Case(name="whole_chunks", sizes={"batch": 1, "T": 128, "H": 2, "K": 32, "V": 64}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
