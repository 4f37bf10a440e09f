"""States of gated linear attention in Triton: chunk after chunk, what keys and values add to a state that decays.

The gate is a decay of its own for each channel of the keys; its logarithms come summed up from each chunk's beginning.
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
def linear_attention_state(  # type: ignore[no-untyped-def]
    k_ptr, v_ptr, g_ptr, h_ptr, T, H, K, V, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):
    """BK by BV of one head's state, kept in registers over all chunks; each chunk's state before it is stored."""
    key = tl.program_id(0) * BK + tl.arange(0, BK)
    value = tl.program_id(1) * BV + tl.arange(0, BV)
    batch, head = tl.program_id(2) // H, tl.program_id(2) % H
    chunks = tl.cdiv(T, CHUNK)
    state = tl.zeros((BK, BV), tl.float32)
    for chunk in range(chunks):
        h_at = ((batch.to(tl.int64) * chunks + chunk) * H + head) * K * V + key[:, None] * V + value[None, :]
        tl.store(h_ptr + h_at, state.to(h_ptr.dtype.element_ty), mask=(key < K)[:, None] & (value < V)[None, :])
        time = chunk * CHUNK + tl.arange(0, CHUNK)
        row = (batch.to(tl.int64) * T + time) * H + head
        keys = (time < T)[:, None] & (key < K)[None, :]
        k = tl.load(k_ptr + row[:, None] * K + key[None, :], mask=keys, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + row[:, None] * K + key[None, :], mask=keys, other=0.0)
        v = tl.load(
            v_ptr + row[:, None] * V + value[None, :], mask=(time < T)[:, None] & (value < V)[None, :], other=0.0
        )
        last = (batch.to(tl.int64) * T + tl.minimum(chunk * CHUNK + CHUNK, T) - 1) * H + head
        end = tl.load(g_ptr + last * K + key, mask=key < K, other=0.0)
        decayed = (k * tl.exp(end[None, :] - g)).to(v.dtype)
        state = state * tl.exp(end)[:, None] + tl.dot(tl.trans(decayed), v)


SPACE = Space.grid(
    {"BK": [32, 64], "BV": [32, 64], "num_warps": [2, 4, 8], "num_stages": [2, 3]},
    constraints=[lambda BK, BV, num_warps: BK * BV // num_warps >= 256],
    default={"BK": 64, "BV": 64, "num_warps": 4, "num_stages": 2},
    roles={"BK": "tile", "BV": "tile", "num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, heads, keys, values, chunk = (case.sizes[name] for name in ("B", "T", "H", "K", "V", "chunk"))
    inputs = Inputs(case, seed, device, "bfloat16")
    k, v = inputs.normal(batch, length, heads, keys), inputs.normal(batch, length, heads, values)
    g = inputs.uniform(batch, length, heads, keys, dtype=torch.float32).mul_(-0.1)
    for start in range(0, length, chunk):
        g[:, start : start + chunk] = g[:, start : start + chunk].cumsum(1)
    h = inputs.unwritten(batch, triton.cdiv(length, chunk), heads, keys, values)
    return Call(
        args=(k, v, g, h, length, heads, keys, values, chunk),
        grid=lambda knobs: (triton.cdiv(keys, knobs["BK"]), triton.cdiv(values, knobs["BV"]), batch * heads),
        outs=(h,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    k, v, g, h, length, *_, chunk = call.args
    state, states = torch.zeros_like(h[:, 0], dtype=torch.float32), []
    for start in range(0, length, chunk):
        states.append(state)
        keys, values, gates = (t[:, start : start + chunk].float() for t in (k, v, g))
        end = gates[:, -1]
        decayed = (keys * (end[:, None] - gates).exp()).to(k.dtype).float()
        state = state * end.exp()[..., None] + torch.einsum("bthk,bthv->bhkv", decayed, values)
    return (torch.stack(states, 1).to(h.dtype),)


def work(call: Call) -> Work:
    k, v, g, h, length, heads, keys, values, _ = call.args
    flops = 2.0 * len(k) * length * heads * keys * values
    return Work(flops=flops, bytes=moved(k, v, g, h))


KERNEL = TritonKernel(
    name="linear_attention_state",
    function=linear_attention_state,
    space=SPACE,
    key=("T", "H", "K", "V"),
    cases=(
        Case(name="layer", sizes={"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128, "chunk": 64}),
        Case(name="long", sizes={"B": 1, "T": 32768, "H": 8, "K": 128, "V": 256, "chunk": 64}),
        Case(name="many_heads", sizes={"B": 8, "T": 2048, "H": 32, "K": 64, "V": 64, "chunk": 32}),
        Case(name="odd", sizes={"B": 3, "T": 3001, "H": 5, "K": 96, "V": 160, "chunk": 64}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "H": 1, "K": 16, "V": 16, "chunk": 16}, dtype="float16"),
        Case(name="over_chunks", sizes={"B": 2, "T": 37, "H": 2, "K": 40, "V": 24, "chunk": 16}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "T": 32, "H": 1, "K": 80, "V": 96, "chunk": 16}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # A unit in bfloat16's last place for the state, and some of them for the keys, whose rounding may turn.
    rtol=2**-6,
    atol=0.1,
)
