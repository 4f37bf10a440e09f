"""Output of retention in chunks, in Triton: each head decays at a rate of its own, 1 - 2**(-5 - head).

A query sees the state before its chunk and the keys of its chunk up to itself.
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
def retention_output(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, h_ptr, o_ptr, T, H, K, V, scale, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):
    """BV values of one chunk and head: scores and what the state gives, both summed over blocks of the keys."""
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    chunk = tl.program_id(1)
    batch, head = tl.program_id(2) // H, tl.program_id(2) % H
    rate = tl.log2(1.0 - tl.exp2(-5.0 - head))
    step = tl.arange(0, CHUNK)
    time = chunk * CHUNK + step
    row = ((batch.to(tl.int64) * T + time) * H + head)[:, None]
    state = ((batch.to(tl.int64) * tl.num_programs(1) + chunk) * H + head) * K * V
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    out = tl.zeros((CHUNK, BV), tl.float32)
    for start in range(0, K, BK):
        key = start + tl.arange(0, BK)
        inside = (time < T)[:, None] & (key < K)[None, :]
        q = tl.load(q_ptr + row * K + key[None, :], mask=inside, other=0.0)
        k = tl.load(k_ptr + row * K + key[None, :], mask=inside, other=0.0)
        stored = (key < K)[:, None] & (value < V)[None, :]
        h = tl.load(h_ptr + state + key[:, None] * V + value[None, :], mask=stored, other=0.0)
        scores += tl.dot(q, tl.trans(k))
        out += tl.dot(q, h)
    apart = step[:, None] - step[None, :]
    scores = tl.where(apart >= 0, scores * tl.exp2(rate * apart), 0.0)
    inside = (time < T)[:, None] & (value < V)[None, :]
    v = tl.load(v_ptr + row * V + value[None, :], mask=inside, other=0.0)
    out = out * tl.exp2(rate * (step + 1))[:, None] + tl.dot(scores.to(v.dtype), v)
    tl.store(o_ptr + row * V + value[None, :], (out * scale).to(o_ptr.dtype.element_ty), mask=inside)


SPACE = Space.grid(
    {"BK": [32, 64, 128], "BV": [64, 128], "num_warps": [4, 8], "num_stages": [2, 3]},
    default={"BK": 64, "BV": 64, "num_warps": 4, "num_stages": 2},
    roles={"BK": "tile", "BV": "tile", "num_warps": "threads", "num_stages": "stages"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """The states are about as large as values."""
    batch, length, heads, keys, values, chunk = (case.sizes[name] for name in ("B", "T", "H", "K", "V", "chunk"))
    inputs = Inputs(case, seed, device, "float16")
    shapes: list[tuple[int, ...]] = [(batch, length, heads, width) for width in (keys, keys, values)]
    shapes.append((batch, triton.cdiv(length, chunk), heads, keys, values))
    q, k, v, h = (inputs.normal(*shape) for shape in shapes)
    out = inputs.unwritten(*v.shape)
    return Call(
        args=(q, k, v, h, out, length, heads, keys, values, keys**-0.5, chunk),
        grid=lambda knobs: (triton.cdiv(values, knobs["BV"]), triton.cdiv(length, chunk), batch * heads),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    q, k, v, h, out, length, heads, _, _, scale, chunk = call.args
    rate = (1 - torch.exp2(-5 - torch.arange(heads, device=q.device).float())).log()
    pad = (0, 0, 0, 0, 0, -length % chunk)
    q, k, v = (torch.nn.functional.pad(t.float(), pad).unflatten(1, (-1, chunk)) for t in (q, k, v))
    step = torch.arange(chunk, device=q.device)
    apart = step[:, None] - step
    decay = torch.where(apart >= 0, (rate[:, None, None] * apart).exp(), 0.0)
    scores = (torch.einsum("bnihk,bnjhk->bnhij", q, k) * decay).to(out.dtype).float()
    seen = torch.einsum("bnihk,bnhkv->bnihv", q, h.float()) * (rate * (step[:, None] + 1)).exp()[..., None]
    result = seen + torch.einsum("bnhij,bnjhv->bnihv", scores, v)
    return ((result * scale).flatten(1, 2)[:, :length].to(out.dtype),)


def work(call: Call) -> Work:
    q, k, v, h, out, length, heads, keys, values, _, chunk = call.args
    flops = 2.0 * len(q) * length * heads * (keys * values + chunk * (keys + values))
    return Work(flops=flops, bytes=moved(q, k, v, h, out))


KERNEL = TritonKernel(
    name="retention_output",
    function=retention_output,
    space=SPACE,
    key=("T", "H", "K", "V"),
    cases=(
        Case(name="layer", sizes={"B": 4, "T": 4096, "H": 16, "K": 128, "V": 256, "chunk": 64}, dtype="bfloat16"),
        Case(name="narrow", sizes={"B": 8, "T": 2048, "H": 16, "K": 64, "V": 64, "chunk": 64}),
        Case(name="wide_chunks", sizes={"B": 2, "T": 8192, "H": 8, "K": 256, "V": 256, "chunk": 128}, dtype="bfloat16"),
        Case(name="odd", sizes={"B": 1, "T": 5003, "H": 7, "K": 80, "V": 160, "chunk": 64}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "H": 1, "K": 16, "V": 16, "chunk": 16}),
        Case(name="over_chunks", sizes={"B": 2, "T": 37, "H": 2, "K": 40, "V": 24, "chunk": 16}),
        Case(name="over_a_block", sizes={"B": 1, "T": 16, "H": 3, "K": 136, "V": 144, "chunk": 16}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-6,
    atol=0.06,
)
