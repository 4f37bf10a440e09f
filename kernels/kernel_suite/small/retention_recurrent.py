"""Retention token by token in Triton, as a model decodes: a state that decays, to which each key and value is added."""

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
def retention_recurrent(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, state_ptr, o_ptr, T, H, V, scale, K: tl.constexpr, BV: tl.constexpr
):
    """BV columns of one head's state. It begins with the state given and leaves its last there."""
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    batch, head = tl.program_id(1) // H, tl.program_id(1) % H
    decay = 1.0 - tl.exp2(-5.0 - head)
    key = tl.arange(0, K)
    state_at = state_ptr + tl.program_id(1).to(tl.int64) * K * V + key[:, None] * V + value[None, :]
    state = tl.load(state_at, mask=(value < V)[None, :], other=0.0)
    row = batch.to(tl.int64) * T * H + head
    for _ in range(T):
        q = tl.load(q_ptr + row * K + key).to(tl.float32) * scale
        k = tl.load(k_ptr + row * K + key).to(tl.float32)
        v = tl.load(v_ptr + row * V + value, mask=value < V, other=0.0).to(tl.float32)
        state = state * decay + k[:, None] * v[None, :]
        tl.store(o_ptr + row * V + value, tl.sum(state * q[:, None], 0).to(o_ptr.dtype.element_ty), mask=value < V)
        row += H
    tl.store(state_at, state, mask=(value < V)[None, :])


SPACE = Space.grid(
    {"BV": [8, 16, 32, 64], "num_warps": [1, 2, 4]},
    default={"BV": 32, "num_warps": 1},
    roles={"BV": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, heads, keys, values = (case.sizes[name] for name in ("B", "T", "H", "K", "V"))
    inputs = Inputs(case, seed, device, "bfloat16")
    q, k = (inputs.normal(batch, length, heads, keys) for _ in range(2))
    v, out = inputs.normal(batch, length, heads, values), inputs.unwritten(batch, length, heads, values)
    state = inputs.normal(batch, heads, keys, values, dtype=torch.float32)
    return Call(
        args=(q, k, v, state, out, length, heads, values, keys**-0.5, keys),
        grid=lambda knobs: (triton.cdiv(values, knobs["BV"]), batch * heads),
        outs=(out, state),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    q, k, v, state, out, length, heads, _, scale, _ = call.args
    decay = (1 - torch.exp2(-5 - torch.arange(heads, device=q.device).float()))[:, None, None]
    state, outs = state.clone(), []
    for time in range(length):
        queries, keys, values = (t[:, time].float() for t in (q, k, v))
        state = state * decay + keys[..., None] * values[..., None, :]
        outs.append(torch.einsum("bhk,bhkv->bhv", queries * scale, state).to(out.dtype))
    return torch.stack(outs, 1), state


def work(call: Call) -> Work:
    """Two products and two sums for each element of the state and token, and the state once in and once out."""
    v, state, keys = call.args[2], call.args[3], call.args[-1]
    return Work(flops=4.0 * v.numel() * keys, bytes=moved(*call.args, state))


KERNEL = TritonKernel(
    name="retention_recurrent",
    function=retention_recurrent,
    space=SPACE,
    key=("T", "H", "V", "K"),
    cases=(
        Case(name="sequence", sizes={"B": 4, "T": 1024, "H": 16, "K": 128, "V": 128}),
        Case(name="decode", sizes={"B": 128, "T": 1, "H": 32, "K": 128, "V": 256}),
        Case(name="draft", sizes={"B": 64, "T": 8, "H": 16, "K": 64, "V": 64}, dtype="float16"),
        Case(name="wide_values", sizes={"B": 2, "T": 500, "H": 8, "K": 64, "V": 500}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "H": 1, "K": 16, "V": 1}),
        Case(name="odd", sizes={"B": 2, "T": 5, "H": 3, "K": 16, "V": 21}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "T": 3, "H": 2, "K": 32, "V": 67}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-3,
    restore_value=("state_ptr",),
)
