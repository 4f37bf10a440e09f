"""Softmax of attention scores in Triton, each query over the keys up to its own; what lies beyond becomes zero."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved


@triton.jit  # type: ignore[untyped-decorator]
def causal_softmax(  # type: ignore[no-untyped-def]
    scores_ptr, out_ptr, queries, keys, scale, stride_head, stride_query, BLOCK: tl.constexpr
):
    """One query of one head. Only the blocks that it sees are read; the last query sees every key."""
    query = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * stride_head + query * stride_query
    seen = query + 1 + keys - queries
    lane = tl.arange(0, BLOCK)
    high, total = -1e30, 0.0
    for start in range(0, seen, BLOCK):
        value = tl.load(scores_ptr + base + start + lane, mask=start + lane < seen, other=-1e30).to(tl.float32) * scale
        higher = tl.maximum(high, tl.max(value, 0))
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(value - higher), 0)
        high = higher
    for start in range(0, keys, BLOCK):
        column = start + lane
        value = tl.load(scores_ptr + base + column, mask=column < seen, other=-1e30).to(tl.float32) * scale
        power = tl.where(column < seen, tl.exp(value - high) / total, 0.0)
        tl.store(out_ptr + base + column, power.to(out_ptr.dtype.element_ty), mask=column < keys)


SPACE = Space.grid(
    {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [2, 4, 8]},
    constraints=[lambda BLOCK, num_warps: 2 <= BLOCK // (32 * num_warps) <= 32],
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    heads, queries, keys = (case.sizes[name] for name in ("heads", "queries", "keys"))
    inputs = Inputs(case, seed, device, "bfloat16")
    scores, out = inputs.normal(heads, queries, keys).mul_(8), inputs.unwritten(heads, queries, keys)
    return Call(
        args=(scores, out, queries, keys, 0.25, *scores.stride()[:2]),
        grid=lambda _: (queries, heads),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    scores, out, queries, keys, scale = call.args[:5]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
    return ((scores.float() * scale).masked_fill(~seen, -torch.inf).softmax(2).to(out.dtype),)


def work(call: Call) -> Work:
    """A scaling, an exponential, a difference, a comparison, a sum and a division for each pair that is seen."""
    scores, out, queries, keys = call.args[:4]
    pairs = len(scores) * queries * (2 * keys - queries + 1) // 2
    return Work(flops=6.0 * pairs, bytes=float(pairs * scores.element_size()) + moved(out))


KERNEL = TritonKernel(
    name="causal_softmax",
    function=causal_softmax,
    space=SPACE,
    key=("queries", "keys"),
    cases=(
        Case(name="layer", sizes={"heads": 32, "queries": 2048, "keys": 2048}),
        Case(name="long", sizes={"heads": 4, "queries": 8192, "keys": 8192}, dtype="float16"),
        Case(name="short", sizes={"heads": 1024, "queries": 128, "keys": 128}),
        Case(name="odd", sizes={"heads": 11, "queries": 1001, "keys": 3333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "queries": 1, "keys": 1}),
        Case(name="below_a_block", sizes={"heads": 2, "queries": 5, "keys": 37}, dtype="float16"),
        Case(name="over_blocks", sizes={"heads": 1, "queries": 3, "keys": 1030}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-6,
)
