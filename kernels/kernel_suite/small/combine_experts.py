"""What each token's experts found, weighted and summed, in Triton: rows gathered from where each expert left them."""

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
def combine_experts(  # type: ignore[no-untyped-def]
    found_ptr, place_ptr, weight_ptr, out_ptr, dim, TOPK: tl.constexpr, BLOCK: tl.constexpr
):
    """One token. A place of -1 is an expert that had no room for it."""
    token = tl.program_id(0).to(tl.int64)
    for start in range(0, dim, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for choice in tl.static_range(TOPK):
            place = tl.load(place_ptr + token * TOPK + choice).to(tl.int64)
            weight = tl.load(weight_ptr + token * TOPK + choice)
            end = tl.where(place >= 0, dim, 0)
            total += weight * tl.load(found_ptr + place * dim + column, mask=column < end, other=0.0)
        tl.store(out_ptr + token * dim + column, total.to(out_ptr.dtype.element_ty), mask=column < dim)


SPACE = Space.grid(
    {"BLOCK": [256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BLOCK, num_warps: 4 <= BLOCK // (32 * num_warps) <= 32],
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Places are a permutation, one in nine of them none."""
    tokens, topk, dim = (case.sizes[name] for name in ("tokens", "topk", "dim"))
    inputs = Inputs(case, seed, device, "bfloat16")
    place = inputs.uniform(tokens * topk, dtype=torch.float32).argsort().int().view(tokens, topk)
    place[place % 9 == 5] = -1
    weight = inputs.uniform(tokens, topk, dtype=torch.float32)
    found, out = inputs.normal(tokens * topk, dim), inputs.unwritten(tokens, dim)
    return Call(args=(found, place, weight, out, dim, topk), grid=lambda _: (tokens,), outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    found, place, weight, out = call.args[:4]
    total = torch.zeros(out.shape, device=out.device)
    for choice in range(place.shape[1]):
        rows = found[place[:, choice].clamp_min(0).long()].float()
        total += torch.where(place[:, choice] >= 0, weight[:, choice], 0.0)[:, None] * rows
    return (total.to(out.dtype),)


def work(call: Call) -> Work:
    found, place, weight, out = call.args[:4]
    return Work(flops=2.0 * found.numel(), bytes=moved(found, place, weight, out))


KERNEL = TritonKernel(
    name="combine_experts",
    function=combine_experts,
    space=SPACE,
    key=("dim", "TOPK"),
    cases=(
        Case(name="prefill", sizes={"tokens": 8192, "topk": 8, "dim": 7168}),
        Case(name="two_experts", sizes={"tokens": 16384, "topk": 2, "dim": 4096}),
        Case(name="decode", sizes={"tokens": 64, "topk": 8, "dim": 2048}),
        Case(name="odd", sizes={"tokens": 5001, "topk": 6, "dim": 2222}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "topk": 1, "dim": 1}),
        Case(name="below_a_block", sizes={"tokens": 9, "topk": 3, "dim": 77}, dtype="float16"),
        Case(name="over_blocks", sizes={"tokens": 3, "topk": 4, "dim": 2051}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-4,
)
