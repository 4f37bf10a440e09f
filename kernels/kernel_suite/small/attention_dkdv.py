"""The gradients of attention's keys and values: a block of them against all queries that see it."""

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
from .attention_dq import forward, gradients


@triton.jit  # type: ignore[untyped-decorator]
def attention_dkdv(  # type: ignore[no-untyped-def]
    dk_ptr, q_ptr, k_ptr, v_ptr, do_ptr, dv_ptr, lse_ptr, delta_ptr, length, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Some keys of one head; scores lie transposed, keys by queries, and `lse` is of scores in base 2."""
    start_n = tl.program_id(0) * BLOCK_N
    head = tl.program_id(1).to(tl.int64)
    keys = start_n + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    base = head * length * D
    mine = base + keys[:, None] * D + dims[None, :]
    k = tl.load(k_ptr + mine, mask=keys[:, None] < length, other=0.0)
    v = tl.load(v_ptr + mine, mask=keys[:, None] < length, other=0.0)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    begin = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start_m in range(begin, length, BLOCK_M):
        rows = start_m + tl.arange(0, BLOCK_M)
        other = base + rows[:, None] * D + dims[None, :]
        q = tl.load(q_ptr + other, mask=rows[:, None] < length, other=0.0)
        do = tl.load(do_ptr + other, mask=rows[:, None] < length, other=0.0)
        lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * 1.4426950408889634) - lse[None, :])
        seen = (rows[None, :] < length) & (keys[:, None] < length)
        if CAUSAL:
            seen = seen & (rows[None, :] >= keys[:, None])
        p = tl.where(seen, p, 0.0)
        dv += tl.dot(p.to(do.dtype), do)
        ds = p * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk += tl.dot(ds.to(q.dtype), q)
    tl.store(dk_ptr + mine, dk * scale, mask=keys[:, None] < length)
    tl.store(dv_ptr + mine, dv, mask=keys[:, None] < length)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    heads, length, width = (case.sizes[name] for name in ("heads", "length", "width"))
    q, k, v, do = (inputs.normal(heads, length, width) for _ in range(4))
    dk, dv = (inputs.unwritten(heads, length, width) for _ in range(2))
    causal = bool(case.sizes.get("causal"))
    lse, delta = forward(q, k, v, do, causal)
    return Call(
        args=(dk, q, k, v, do, dv, lse, delta, length, width**-0.5, width, causal),
        grid=lambda meta: (triton.cdiv(length, meta["BLOCK_N"]), heads),
        outs=(dk, dv),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return gradients(call)[1:]


def work(call: Call) -> Work:
    """Four products for each pair of a query and a key that it sees."""
    heads, length, width = call.outs[0].shape
    pairs = length * (length + 1) / 2 if call.args[-1] else length**2
    return Work(flops=8.0 * heads * pairs * width, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="attention_dkdv",
    function=attention_dkdv,
    space=Space.grid(
        {"BLOCK_M": [32, 64], "BLOCK_N": [64, 128], "num_warps": [4, 8], "num_stages": [1, 2, 3]},
        default={"BLOCK_M": 32, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads", "num_stages": "stages"},
    ),
    key=("length", "D", "CAUSAL"),
    cases=(
        Case(name="causal", sizes={"heads": 32, "length": 2048, "width": 64, "causal": 1}),
        Case(name="full", sizes={"heads": 16, "length": 4096, "width": 64}, dtype="bfloat16"),
        Case(name="wide", sizes={"heads": 16, "length": 2048, "width": 128, "causal": 1}),
        Case(name="vision", sizes={"heads": 384, "length": 197, "width": 32}),
        Case(name="odd", sizes={"heads": 6, "length": 1111, "width": 64}),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "length": 1, "width": 32}),
        Case(name="below_a_block", sizes={"heads": 2, "length": 29, "width": 32, "causal": 1}),
        Case(name="over_blocks", sizes={"heads": 1, "length": 131, "width": 32}),
        Case(name="causal_over_blocks", sizes={"heads": 1, "length": 150, "width": 64, "causal": 1}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Weights and their gradients are rounded to the type of the inputs before they are multiplied, and so are the results.
    rtol=2e-2,
    atol=1e-2,
)
