"""Attention scores with a mask filled in, one mask for all heads: -inf where it is set."""

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

VALUE = -torch.inf


@triton.jit  # type: ignore[untyped-decorator]
def masked_fill(scores_ptr, mask_ptr, out_ptr, area, value, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A part of one head's scores."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1).to(tl.int64)
    inside = offs < area
    hidden = tl.load(mask_ptr + offs, mask=inside, other=0)
    scores = tl.load(scores_ptr + head * area + offs, mask=inside)
    tl.store(out_ptr + head * area + offs, tl.where(hidden != 0, value, scores), mask=inside)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    heads, queries, keys = (case.sizes[name] for name in ("heads", "queries", "keys"))
    scores, out = inputs.normal(heads, queries, keys), inputs.unwritten(heads, queries, keys)
    hidden = inputs.integers(2, queries, keys, dtype=torch.int8)
    area = queries * keys
    return Call(
        args=(scores, hidden, out, area, VALUE),
        grid=lambda meta: (triton.cdiv(area, meta["BLOCK"]), heads),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    scores, hidden, *_, value = call.args
    return (scores.masked_fill(hidden.bool(), value),)


def work(call: Call) -> Work:
    """The mask is read once, as far as the cache holds it."""
    return Work(flops=0.0, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="masked_fill",
    function=masked_fill,
    space=Space.grid(
        {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("area",),
    cases=(
        Case(name="scores", sizes={"heads": 32, "queries": 2048, "keys": 2048}),
        Case(name="batch", sizes={"heads": 1024, "queries": 256, "keys": 256}),
        Case(name="one_query", sizes={"heads": 512, "queries": 1, "keys": 8192}),
        Case(name="odd", sizes={"heads": 12, "queries": 1011, "keys": 1333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "queries": 1, "keys": 1}),
        Case(name="below_a_block", sizes={"heads": 2, "queries": 5, "keys": 7}, dtype="float32"),
        Case(name="over_a_block", sizes={"heads": 2, "queries": 45, "keys": 99}, dtype="bfloat16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
