"""The gradient of attention's queries: a block of them against all keys, whose weights are computed once more."""

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

LOG2_E = 1.4426950408889634


@triton.jit  # type: ignore[untyped-decorator]
def attention_dq(  # type: ignore[no-untyped-def]
    dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, length, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Some queries of one head; `lse` is of scores in base 2."""
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64)
    rows = start_m + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    base = head * length * D
    mine = base + rows[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + mine, mask=rows[:, None] < length, other=0.0)
    do = tl.load(do_ptr + mine, mask=rows[:, None] < length, other=0.0)
    lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
    delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
    dq = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    end = tl.minimum(start_m + BLOCK_M, length) if CAUSAL else length
    for start_n in range(0, end, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        other = base + keys[:, None] * D + dims[None, :]
        k = tl.load(k_ptr + other, mask=keys[:, None] < length, other=0.0)
        v = tl.load(v_ptr + other, mask=keys[:, None] < length, other=0.0)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634) - lse[:, None])
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (rows[:, None] >= keys[None, :])
        p = tl.where(seen, p, 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(dq_ptr + mine, dq * scale, mask=rows[:, None] < length)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each query's log2 of the sum of powers, and its sum of output times gradient."""
    scores = (q.float() @ k.float().mT) * q.shape[2] ** -0.5
    if causal:
        length = q.shape[1]
        scores.masked_fill_(torch.ones(length, length, device=q.device).triu(1).bool(), -torch.inf)
    lse = scores.logsumexp(2)
    out = torch.softmax(scores, dim=2) @ v.float()
    return lse * LOG2_E, (out * do.float()).sum(2)


def gradients(call: Call) -> tuple[torch.Tensor, ...]:
    """By torch, of queries, keys and values."""
    _, q, k, v, do, *_, causal = call.args
    given = [t.float().requires_grad_() for t in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*(t[None] for t in given), is_causal=causal)
    out.backward(do.float()[None])
    return tuple(torch.as_tensor(t.grad).to(q.dtype) for t in given)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    heads, length, width = (case.sizes[name] for name in ("heads", "length", "width"))
    q, k, v, do = (inputs.normal(heads, length, width) for _ in range(4))
    dq, causal = inputs.unwritten(heads, length, width), bool(case.sizes.get("causal"))
    lse, delta = forward(q, k, v, do, causal)
    return Call(
        args=(dq, q, k, v, do, lse, delta, length, width**-0.5, width, causal),
        grid=lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), heads),
        outs=(dq,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return gradients(call)[:1]


def work(call: Call) -> Work:
    """Three products for each pair of a query and a key that it sees."""
    heads, length, width = call.outs[0].shape
    pairs = length * (length + 1) / 2 if call.args[-1] else length**2
    return Work(flops=6.0 * heads * pairs * width, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="attention_dq",
    function=attention_dq,
    space=Space.grid(
        {"BLOCK_M": [64, 128], "BLOCK_N": [32, 64], "num_warps": [4, 8], "num_stages": [2, 3]},
        default={"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
        roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads", "num_stages": "stages"},
    ),
    key=("length", "D", "CAUSAL"),
    cases=(
        Case(name="causal", sizes={"heads": 32, "length": 2048, "width": 64, "causal": 1}),
        Case(name="full", sizes={"heads": 16, "length": 4096, "width": 64}),
        Case(name="wide", sizes={"heads": 16, "length": 2048, "width": 128, "causal": 1}, dtype="bfloat16"),
        Case(name="vision", sizes={"heads": 384, "length": 197, "width": 32}),
        Case(name="odd", sizes={"heads": 6, "length": 1111, "width": 64, "causal": 1}),
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
    # Weights' gradients are rounded to the type of the inputs before they are multiplied, and so is the result.
    rtol=2e-2,
    atol=4e-3,
)
