"""Attention, forward, in float16 in Triton: one pass over the keys with a running maximum, causal or not."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel

LOG2_E = 1.4426950408889634


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    out, total, high, q, k, v, query, first, last, keys,
    D: tl.constexpr, CAUSAL: tl.constexpr, BN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Take in the keys from `first` to before `last`; at an EDGE some of them are not there, or not to be seen."""
    inner = tl.arange(0, D)
    for start in range(first, last, BN):
        key = start + tl.arange(0, BN)
        k_tile = k + key[None, :] * D + inner[:, None]
        v_tile = v + key[:, None] * D + inner[None, :]
        if EDGE:
            scores = tl.dot(q, tl.load(k_tile, mask=key[None, :] < keys, other=0.0))
            seen = (key[None, :] < keys) & ((query[:, None] >= key[None, :]) if CAUSAL else True)
            scores = tl.where(seen, scores, -1e30)  # finite: a row that sees nothing here must not become NaN
        else:
            scores = tl.dot(q, tl.load(k_tile))
        higher = tl.maximum(high, tl.max(scores, 1))
        shrink = tl.exp2(high - higher)
        power = tl.exp2(scores - higher[:, None])
        value = tl.load(v_tile, mask=key[:, None] < keys, other=0.0) if EDGE else tl.load(v_tile)
        out = tl.dot(power.to(tl.float16), value, out * shrink[:, None])
        total = total * shrink + tl.sum(power, 1)
        high = higher
    return out, total, high


@triton.jit  # type: ignore[untyped-decorator]
def attention(  # type: ignore[no-untyped-def]
    out_ptr, q_ptr, k_ptr, v_ptr, queries, keys, scale, D: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """softmax(q k^T scale) v for BM queries of one head. `scale` holds log2(e) too: powers are of two."""
    head = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(0) * BM
    query, inner = first_query + tl.arange(0, BM), tl.arange(0, D)
    rows = head * queries * D + query[:, None] * D + inner[None, :]
    q = tl.load(q_ptr + rows, mask=query[:, None] < queries, other=0.0)
    q = (q * scale).to(tl.float16)
    k, v = k_ptr + head * keys * D, v_ptr + head * keys * D
    out = tl.zeros((BM, D), tl.float32)
    total, high = tl.zeros((BM,), tl.float32), tl.full((BM,), -1e30, tl.float32)
    last = tl.minimum(keys, first_query + BM) if CAUSAL else keys
    whole = tl.minimum(last, first_query) // BN * BN if CAUSAL else last // BN * BN
    out, total, high = attend(out, total, high, q, k, v, query, 0, whole, keys, D, CAUSAL, BN, False)
    out, total, high = attend(out, total, high, q, k, v, query, whole, last, keys, D, CAUSAL, BN, True)
    tl.store(out_ptr + rows, (out / total[:, None]).to(tl.float16), mask=query[:, None] < queries)


SPACE = Space.grid(
    {"BM": [64, 128], "BN": [32, 64, 128], "num_warps": [4, 8], "num_stages": [2, 3, 4]},
    constraints=[
        lambda BM, BN, num_warps: num_warps == 4 or BM * BN >= 64 * 64,
        # Four stages of 128 keys and values are more than Hopper's 227 KB.
        lambda BN, num_stages: BN * num_stages <= 384,
    ],
    default={"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3},
    roles={"BM": "tile", "BN": "tile", "num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Normal queries, keys and values: [heads, length, D], the batch among the heads."""
    sizes = case.sizes
    heads, queries, keys, width = sizes["heads"], sizes["queries"], sizes["keys"], sizes["D"]
    random = torch.Generator(device).manual_seed(seed)
    q, k, v = (
        torch.randn(heads, length, width, generator=random, device=device).half() for length in (queries, keys, keys)
    )
    out = torch.full_like(q, torch.nan)

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(queries, knobs["BM"]), heads)

    args = (out, q, k, v, queries, keys, LOG2_E / width**0.5, width, bool(sizes.get("causal")))
    return Call(args=args, grid=grid, outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """As torch defines it: under `causal`, query i sees the keys up to i."""
    out, q, k, v, *_, causal = call.args
    attended = torch.nn.functional.scaled_dot_product_attention(*(t.float()[None] for t in (q, k, v)), is_causal=causal)
    return (attended[0].to(out.dtype),)


def work(call: Call) -> Work:
    """Two products for each pair of a query and a key it sees; each tensor is moved once."""
    out, q, k, v, queries, keys, _, width, causal = call.args
    reach = min(queries, keys)
    seen = reach * (reach + 1) / 2 + (queries - reach) * keys if causal else queries * keys
    return Work(flops=4.0 * len(q) * seen * width, bytes=2.0 * sum(t.numel() for t in (out, q, k, v)))


KERNEL = TritonKernel(
    name="attention",
    function=attention,
    space=SPACE,
    key=("queries", "keys", "D", "CAUSAL"),
    cases=(
        Case(name="causal", sizes={"heads": 64, "queries": 4096, "keys": 4096, "D": 128, "causal": 1}),
        Case(name="full", sizes={"heads": 64, "queries": 4096, "keys": 4096, "D": 64}),
        Case(name="odd", sizes={"heads": 12, "queries": 1111, "keys": 1777, "D": 64}),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "queries": 1, "keys": 1, "D": 64}),
        Case(name="below_a_block", sizes={"heads": 2, "queries": 5, "keys": 7, "D": 64}),
        Case(name="causal_in_a_block", sizes={"heads": 2, "queries": 33, "keys": 33, "D": 64, "causal": 1}),
        Case(name="over_blocks", sizes={"heads": 1, "queries": 131, "keys": 197, "D": 64}),
        Case(name="causal_few_keys", sizes={"heads": 1, "queries": 150, "keys": 70, "D": 64, "causal": 1}),
        Case(name="causal_many_keys", sizes={"heads": 1, "queries": 70, "keys": 300, "D": 64, "causal": 1}),
        Case(name="causal_over_blocks", sizes={"heads": 2, "queries": 201, "keys": 201, "D": 128, "causal": 1}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Queries, once scaled, and powers are rounded to float16 before they are multiplied, 2**-11 each, and scores reach 6 or
    # so: results of the size of 1 are off by a few thousandths at most.
    rtol=5e-3,
    atol=5e-3,
)
