"""A router's choice of experts in Triton: softmax of the logits, and the largest few, one maximum after the other."""

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
def router_topk(  # type: ignore[no-untyped-def]
    logits_ptr, weights_ptr, ids_ptr, tokens, experts,
    TOPK: tl.constexpr, WIDTH: tl.constexpr, NORMALISE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens. Of equal logits the first expert is taken."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, WIDTH)[None, :]
    inside = (token < tokens)[:, None] & (expert < experts)
    logits = tl.load(logits_ptr + token[:, None] * experts + expert, mask=inside, other=float("-inf")).to(tl.float32)
    logits = tl.where((token < tokens)[:, None], logits, 0.0)
    power = tl.exp(logits - tl.max(logits, 1)[:, None])
    chance = tl.where(expert < experts, power / tl.sum(power, 1)[:, None], -1.0)
    taken = tl.zeros((ROWS,), tl.float32)
    for choice in tl.static_range(TOPK):
        best, which = tl.max(chance, 1, return_indices=True)
        tl.store(weights_ptr + token * TOPK + choice, best, mask=token < tokens)
        tl.store(ids_ptr + token * TOPK + choice, which, mask=token < tokens)
        chance = tl.where(expert == which[:, None], -1.0, chance)
        taken += best
    if NORMALISE:
        tl.debug_barrier()
        for choice in tl.static_range(TOPK):
            best = tl.load(weights_ptr + token * TOPK + choice, mask=token < tokens, other=0.0)
            tl.store(weights_ptr + token * TOPK + choice, best / taken, mask=token < tokens)


SPACE = Space.grid(
    {"ROWS": [1, 2, 4, 8, 16], "num_warps": [1, 2, 4]},
    default={"ROWS": 4, "num_warps": 4},
    roles={"ROWS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Weights add up to 1 for each token where `normalise`."""
    tokens, experts, topk = (case.sizes[name] for name in ("tokens", "experts", "topk"))
    inputs = Inputs(case, seed, device, "float32")
    # A permutation of equidistant numbers: no two are equal, in bfloat16 either with up to 256 experts.
    logits = inputs.uniform(tokens, experts, dtype=torch.float32).argsort(1).float().div_(32).to(inputs.dtype)
    weights = inputs.unwritten(tokens, topk, dtype=torch.float32)
    ids = inputs.unwritten(tokens, topk, dtype=torch.int32)
    width, normalise = triton.next_power_of_2(experts), bool(case.sizes.get("normalise"))
    return Call(
        args=(logits, weights, ids, tokens, experts, topk, width, normalise),
        grid=lambda knobs: (triton.cdiv(tokens, knobs["ROWS"]),),
        outs=(weights, ids),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    logits, *_, topk, _, normalise = call.args
    weights, ids = logits.float().softmax(1).topk(topk)
    return weights / weights.sum(1, keepdim=True) if normalise else weights, ids.int()


def work(call: Call) -> Work:
    """An exponential, a difference, a sum and a division, and a comparison for each choice."""
    logits, weights, ids, *_, topk, _, _ = call.args
    return Work(flops=(4.0 + topk) * logits.numel(), bytes=moved(logits, weights, ids))


KERNEL = TritonKernel(
    name="router_topk",
    function=router_topk,
    space=SPACE,
    key=("tokens", "experts", "TOPK"),
    cases=(
        Case(name="prefill", sizes={"tokens": 16384, "experts": 128, "topk": 8, "normalise": 1}),
        Case(name="two_of_eight", sizes={"tokens": 131072, "experts": 8, "topk": 2, "normalise": 1}, dtype="bfloat16"),
        Case(name="decode", sizes={"tokens": 64, "experts": 256, "topk": 8}, dtype="bfloat16"),
        Case(name="odd", sizes={"tokens": 30001, "experts": 60, "topk": 4}),
        Case(name="many_tokens", sizes={"tokens": 1 << 18, "experts": 64, "topk": 6}),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "experts": 1, "topk": 1}),
        Case(name="below_a_block", sizes={"tokens": 5, "experts": 11, "topk": 3}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"tokens": 35, "experts": 40, "topk": 4, "normalise": 1}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-7,
)
