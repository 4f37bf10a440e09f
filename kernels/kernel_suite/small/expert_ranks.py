"""Which of its expert's tokens each token is, and how many each expert has, in Triton: for chunks of tokens on their own.

Offsets of the chunks and these ranks together say where a token goes when tokens are sorted by expert.
"""

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
def expert_ranks(  # type: ignore[no-untyped-def]
    ids_ptr, ranks_ptr, counts_ptr, n, experts, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """One chunk, BLOCK choices at a time, each a row of ones and zeros over all experts."""
    chunk = tl.program_id(0)
    expert = tl.arange(0, WIDTH)
    counts = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, CHUNK, BLOCK):
        at = chunk * CHUNK + start + tl.arange(0, BLOCK)
        chosen = tl.load(ids_ptr + at, mask=at < n, other=-1)
        hot = (chosen[:, None] == expert[None, :]).to(tl.int32)
        before = tl.cumsum(hot, 0) - hot + counts[None, :]
        tl.store(ranks_ptr + at, tl.sum(before * hot, 1), mask=at < n)
        counts += tl.sum(hot, 0)
    tl.store(counts_ptr + chunk * experts + expert, counts, mask=expert < experts)


SPACE = Space.grid(
    {"BLOCK": [16, 32, 64, 128], "num_warps": [1, 2, 4, 8]},
    default={"BLOCK": 32, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """As many choices as tokens times the experts of each, in chunks of a power of two."""
    n, experts, chunk = (case.sizes[name] for name in ("n", "experts", "chunk"))
    inputs = Inputs(case, seed, device, "int32")
    ids = inputs.integers(experts, n, dtype=inputs.dtype)
    ranks, counts = inputs.unwritten(n), inputs.unwritten(triton.cdiv(n, chunk), experts)
    return Call(
        args=(ids, ranks, counts, n, experts, chunk, triton.next_power_of_2(experts)),
        grid=lambda _: (triton.cdiv(n, chunk),),
        outs=(ranks, counts),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    ids, ranks, counts, n, experts, chunk, _ = call.args
    padded = torch.nn.functional.pad(ids.long(), (0, -n % chunk), value=experts).view(-1, chunk)
    hot = torch.nn.functional.one_hot(padded, experts + 1)[..., :experts]
    before = (hot.cumsum(1) - hot).mul_(hot).sum(2)
    return before.flatten()[:n].to(ranks.dtype), hot.sum(1).to(counts.dtype)


def work(call: Call) -> Work:
    """A comparison, four sums and a product for each choice and expert."""
    ids, ranks, counts, n, experts = call.args[:5]
    return Work(flops=6.0 * n * experts, bytes=moved(ids, ranks, counts))


KERNEL = TritonKernel(
    name="expert_ranks",
    function=expert_ranks,
    space=SPACE,
    key=("n", "experts", "CHUNK"),
    cases=(
        Case(name="prefill", sizes={"n": 16384 * 8, "experts": 128, "chunk": 512}),
        Case(name="few_experts", sizes={"n": 65536 * 2, "experts": 8, "chunk": 1024}),
        Case(name="decode", sizes={"n": 128 * 8, "experts": 256, "chunk": 256}),
        Case(name="odd", sizes={"n": 50001, "experts": 60, "chunk": 512}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1, "experts": 2, "chunk": 128}),
        Case(name="below_a_chunk", sizes={"n": 77, "experts": 5, "chunk": 128}),
        Case(name="over_chunks", sizes={"n": 700, "experts": 17, "chunk": 256}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
