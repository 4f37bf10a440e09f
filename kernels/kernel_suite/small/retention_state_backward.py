"""Backward pass of retention's states in Triton: from the last chunk to the first, the gradient of each chunk's state.

Each head decays at a rate of its own, 1 - 2**(-5 - head). What the states give of the values' gradient comes along.
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
def retention_state_backward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, do_ptr, dh_ptr, dv_ptr, T, H, V, scale, K: tl.constexpr, CHUNK: tl.constexpr, BV: tl.constexpr
):
    """BV columns of one head's gradient, all its K rows in registers. dh is that of the state at the end of each chunk."""
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    batch, head = tl.program_id(1) // H, tl.program_id(1) % H
    rate = tl.log2(1.0 - tl.exp2(-5.0 - head))
    key, step = tl.arange(0, K), tl.arange(0, CHUNK)
    chunks = tl.cdiv(T, CHUNK)
    gradient = tl.zeros((K, BV), tl.float32)
    for back in range(chunks):
        chunk = chunks - 1 - back
        length = tl.minimum(CHUNK, T - chunk * CHUNK)
        time = chunk * CHUNK + step
        row = ((batch.to(tl.int64) * T + time) * H + head)[:, None]
        inside = (time < T)[:, None]
        values = inside & (value < V)[None, :]
        dh_at = ((batch.to(tl.int64) * chunks + chunk) * H + head) * K * V + key[:, None] * V + value[None, :]
        tl.store(dh_ptr + dh_at, gradient.to(dh_ptr.dtype.element_ty), mask=(value < V)[None, :])
        k = tl.load(k_ptr + row * K + key[None, :], mask=inside, other=0.0)
        left = tl.exp2(rate * (length - 1 - step))
        dv = tl.dot(k, gradient.to(k.dtype)) * left[:, None]
        tl.store(dv_ptr + row * V + value[None, :], dv.to(dv_ptr.dtype.element_ty), mask=values)
        q = tl.load(q_ptr + row * K + key[None, :], mask=inside, other=0.0)
        do = tl.load(do_ptr + row * V + value[None, :], mask=values, other=0.0).to(tl.float32)
        do = (do * (scale * tl.exp2(rate * (step + 1)))[:, None]).to(q.dtype)
        gradient = gradient * tl.exp2(rate * length) + tl.dot(tl.trans(q), do)


SPACE = Space.grid(
    {"BV": [16, 32, 64], "num_warps": [2, 4, 8], "num_stages": [1, 2]},
    default={"BV": 32, "num_warps": 4, "num_stages": 2},
    roles={"BV": "tile", "num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    batch, length, heads, keys, values, chunk = (case.sizes[name] for name in ("B", "T", "H", "K", "V", "chunk"))
    inputs = Inputs(case, seed, device, "bfloat16")
    q, k = inputs.normal(batch, length, heads, keys), inputs.normal(batch, length, heads, keys).mul_(keys**-0.5)
    do, dv = inputs.normal(batch, length, heads, values), inputs.unwritten(batch, length, heads, values)
    dh = inputs.unwritten(batch, triton.cdiv(length, chunk), heads, keys, values)
    return Call(
        args=(q, k, do, dh, dv, length, heads, values, keys**-0.5, keys, chunk),
        grid=lambda knobs: (triton.cdiv(values, knobs["BV"]), batch * heads),
        outs=(dh, dv),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    q, k, do, dh, dv, length, heads, _, scale, _, chunk = call.args
    rate = (1 - torch.exp2(-5 - torch.arange(heads, device=q.device).float())).log()
    gradient, states, values = torch.zeros_like(dh[:, 0], dtype=torch.float32), [], []
    for start in reversed(range(0, length, chunk)):
        queries, keys, outs = (t[:, start : start + chunk].float() for t in (q, k, do))
        steps = torch.arange(queries.shape[1], device=q.device)
        states.append(gradient)
        left = (rate * (len(steps) - 1 - steps)[:, None]).exp()[..., None]
        values.append(torch.einsum("bthk,bhkv->bthv", keys, gradient.to(k.dtype).float()) * left)
        seen = (outs * scale * (rate * (steps + 1)[:, None]).exp()[..., None]).to(q.dtype).float()
        gradient = gradient * (rate * len(steps)).exp()[:, None, None] + torch.einsum("bthk,bthv->bhkv", queries, seen)
    return torch.stack(states[::-1], 1).to(dh.dtype), torch.cat(values[::-1], 1).to(dv.dtype)


def work(call: Call) -> Work:
    do, keys = call.args[2], call.args[-2]
    return Work(flops=4.0 * do.numel() * keys, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="retention_state_backward",
    function=retention_state_backward,
    space=SPACE,
    key=("T", "H", "V", "K"),
    cases=(
        Case(name="layer", sizes={"B": 4, "T": 4096, "H": 16, "K": 128, "V": 256, "chunk": 64}),
        Case(name="narrow", sizes={"B": 8, "T": 2048, "H": 32, "K": 64, "V": 64, "chunk": 64}),
        Case(name="long", sizes={"B": 1, "T": 32768, "H": 8, "K": 128, "V": 128, "chunk": 64}, dtype="float16"),
        Case(name="odd", sizes={"B": 3, "T": 3001, "H": 5, "K": 64, "V": 200, "chunk": 32}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "H": 1, "K": 16, "V": 16, "chunk": 16}, dtype="float16"),
        Case(name="over_chunks", sizes={"B": 2, "T": 37, "H": 2, "K": 32, "V": 24, "chunk": 16}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 1, "T": 48, "H": 3, "K": 16, "V": 80, "chunk": 16}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-6,
    atol=0.05,  # sums of many products, of which some were rounded the other way in bfloat16
)
