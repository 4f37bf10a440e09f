"""States of the gated delta rule, chunk by chunk, in float16 in Triton: the state before each chunk, what each token writes.

For each head a state S, [K, V], is carried over chunks of 64 tokens. Of one chunk, with k, w [64, K], u [64, V] and g, the
sum of the logarithms of its gates so far: h = S; v_new = u - w S; S <- exp(g_last) S + (exp(g_last - g) k)^T v_new.
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant

CHUNK = 64  # tokens; part of the task, since h has a state for each chunk


@triton.jit  # type: ignore[untyped-decorator]
def carry(  # type: ignore[no-untyped-def]
    k_ptr, w_ptr, u_ptr, g_ptr, first_ptr, h_ptr, new_ptr, last_ptr, T, H, K, V,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """BV columns of one head's state, in registers as [K, BV], over all chunks."""
    head = tl.program_id(1).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)  # of the head's first token, in tokens of all heads
    key, value = tl.arange(0, WIDTH), tl.program_id(0) * BV + tl.arange(0, BV)
    whole = (key < K)[:, None] & (value < V)[None, :]
    place = key[:, None] * V + value[None, :]
    state = tl.load(first_ptr + head * K * V + place, mask=whole, other=0.0)
    for chunk in range(chunks):
        held = state.to(tl.float16)
        tl.store(h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V + place, held, mask=whole)
        t = chunk * CHUNK + tl.arange(0, CHUNK)
        token = start + t.to(tl.int64) * H
        w = tl.load(w_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
        at, inside = (token * V)[:, None] + value[None, :], (t < T)[:, None] & (value < V)[None, :]
        new = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32) - tl.dot(w, held)
        tl.store(new_ptr + at, new.to(tl.float16), mask=inside)
        end = tl.load(g_ptr + start + (tl.minimum(chunk * CHUNK + CHUNK, T) - 1).to(tl.int64) * H)
        gate = tl.exp(end - tl.load(g_ptr + token, mask=t < T, other=0.0))
        k = tl.load(k_ptr + (token * K)[None, :] + key[:, None], mask=(key < K)[:, None] & (t < T)[None, :], other=0.0)
        new = tl.where((t < T)[:, None], new * gate[:, None], 0.0).to(tl.float16)
        state = tl.dot(k, new, state * tl.exp(end))
    tl.store(last_ptr + head * K * V + place, state, mask=whole)


@triton.jit  # type: ignore[untyped-decorator]
def carry_transposed(  # type: ignore[no-untyped-def]
    k_ptr, w_ptr, u_ptr, g_ptr, first_ptr, h_ptr, new_ptr, last_ptr, T, H, K, V,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """As `carry`, with the state as [BV, K] on the left of the first product, so that k and w are read as they lie."""
    head = tl.program_id(1).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    key, value = tl.arange(0, WIDTH), tl.program_id(0) * BV + tl.arange(0, BV)
    whole = (value < V)[:, None] & (key < K)[None, :]
    place = key[None, :] * V + value[:, None]
    state = tl.load(first_ptr + head * K * V + place, mask=whole, other=0.0)
    for chunk in range(chunks):
        held = state.to(tl.float16)
        tl.store(h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V + place, held, mask=whole)
        t = chunk * CHUNK + tl.arange(0, CHUNK)
        token = start + t.to(tl.int64) * H
        wide = (token * K)[:, None] + key[None, :]
        seen = (t < T)[:, None] & (key < K)[None, :]
        w = tl.load(w_ptr + wide, mask=seen, other=0.0)
        at, inside = (token * V)[None, :] + value[:, None], (value < V)[:, None] & (t < T)[None, :]
        new = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32) - tl.dot(held, tl.trans(w))
        tl.store(new_ptr + at, new.to(tl.float16), mask=inside)
        end = tl.load(g_ptr + start + (tl.minimum(chunk * CHUNK + CHUNK, T) - 1).to(tl.int64) * H)
        gate = tl.exp(end - tl.load(g_ptr + token, mask=t < T, other=0.0))
        k = tl.load(k_ptr + wide, mask=seen, other=0.0)
        new = tl.where((t < T)[None, :], new * gate[None, :], 0.0).to(tl.float16)
        state = tl.dot(new, k, state * tl.exp(end))
    tl.store(last_ptr + head * K * V + place, state, mask=whole)


@triton.jit  # type: ignore[untyped-decorator]
def outer(  # type: ignore[no-untyped-def]
    out_ptr, k_ptr, x_ptr, g_ptr, T, H, K, N, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr
):
    """(exp(g_last - g) k)^T x of one chunk of one head: what the chunk adds to a state, or takes from it."""
    chunk, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    key, column = tl.arange(0, WIDTH), tl.program_id(0) * BN + tl.arange(0, BN)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    token = start + t.to(tl.int64) * H
    end = tl.load(g_ptr + start + (tl.minimum(chunk * CHUNK + CHUNK, T) - 1).to(tl.int64) * H)
    gate = tl.exp(end - tl.load(g_ptr + token, mask=t < T, other=0.0))
    k = tl.load(k_ptr + (token * K)[None, :] + key[:, None], mask=(key < K)[:, None] & (t < T)[None, :], other=0.0)
    x = tl.load(
        x_ptr + (token * N)[:, None] + column[None, :], mask=(t < T)[:, None] & (column < N)[None, :], other=0.0
    )
    added = tl.dot((k.to(tl.float32) * gate[None, :]).to(tl.float16), x)
    to = out_ptr + ((head // H * chunks + chunk) * H + head % H) * K * N + key[:, None] * N + column[None, :]
    tl.store(to, added.to(tl.float16), mask=(key < K)[:, None] & (column < N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def chain(  # type: ignore[no-untyped-def]
    added_ptr, taken_ptr, g_ptr, first_ptr, h_ptr, last_ptr, T, H, K, V,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The states alone, S <- exp(g_last) S + added - taken S: one product for each chunk that waits for the one before."""
    head = tl.program_id(1).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    key, value = tl.arange(0, WIDTH), tl.program_id(0) * BV + tl.arange(0, BV)
    whole, square = (key < K)[:, None] & (value < V)[None, :], (key < K)[:, None] & (key < K)[None, :]
    place = key[:, None] * V + value[None, :]
    state = tl.load(first_ptr + head * K * V + place, mask=whole, other=0.0)
    for chunk in range(chunks):
        index = (head // H * chunks + chunk) * H + head % H
        taken = tl.load(taken_ptr + index * K * K + key[:, None] * K + key[None, :], mask=square, other=0.0)
        added = tl.load(added_ptr + index * K * V + place, mask=whole, other=0.0).to(tl.float32)
        end = tl.load(g_ptr + start + (tl.minimum(chunk * CHUNK + CHUNK, T) - 1).to(tl.int64) * H)
        held = state.to(tl.float16)
        tl.store(h_ptr + index * K * V + place, held, mask=whole)
        state = state * tl.exp(end) + added - tl.dot(taken, held)
    tl.store(last_ptr + head * K * V + place, state, mask=whole)


@triton.jit  # type: ignore[untyped-decorator]
def remain(  # type: ignore[no-untyped-def]
    new_ptr, u_ptr, w_ptr, h_ptr, T, H, K, V, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr
):
    """u - w h of one chunk of one head."""
    chunk, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, chunks = head // H * T * H + head % H, tl.cdiv(T, CHUNK)
    key, value = tl.arange(0, WIDTH), tl.program_id(0) * BN + tl.arange(0, BN)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    token = start + t.to(tl.int64) * H
    h = h_ptr + ((head // H * chunks + chunk) * H + head % H) * K * V + key[:, None] * V + value[None, :]
    h = tl.load(h, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0)
    w = tl.load(w_ptr + (token * K)[:, None] + key[None, :], mask=(t < T)[:, None] & (key < K)[None, :], other=0.0)
    at, inside = (token * V)[:, None] + value[None, :], (t < T)[:, None] & (value < V)[None, :]
    new = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32) - tl.dot(w, h)
    tl.store(new_ptr + at, new.to(tl.float16), mask=inside)


def width(size: int) -> int:
    """Of a tile that holds a head's dimension in full: a power of two, and what tensor cores take at least."""
    return max(16, int(triton.next_power_of_2(size)))


def _carried(
    function: Any, k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any, **knobs: int
) -> None:
    batch, T, H, K = k.shape
    V = u.shape[3]
    function[triton.cdiv(V, knobs["BV"]), batch * H](
        k, w, u, g, first, h, new, last, T, H, K, V, CHUNK=CHUNK, WIDTH=width(K), **knobs
    )


def sequential(
    k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any, *, BV: int, num_warps: int, num_stages: int
) -> None:
    """One kernel: columns of the state side by side, chunks one after the other, two products in each."""
    _carried(carry, k, w, u, g, first, h, new, last, BV=BV, num_warps=num_warps, num_stages=num_stages)


def transposed(
    k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any, *, BV: int, num_warps: int, num_stages: int
) -> None:
    """As `sequential`, with the state lying the other way."""
    _carried(carry_transposed, k, w, u, g, first, h, new, last, BV=BV, num_warps=num_warps, num_stages=num_stages)


def transition(
    k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any, *,
    BV: int, BN: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Each chunk as a map of states first, all chunks at once; then the chain of the maps; then what tokens write.

    More work, and matrices of K x K to be written and read, for a chain that is half as long.
    """
    batch, T, H, K = k.shape
    V, chunks = u.shape[3], h.shape[1]
    added, taken = torch.empty_like(h), k.new_empty(batch, chunks, H, K, K)
    sizes, shape = (T, H, K), {"CHUNK": CHUNK, "WIDTH": width(K)}
    outer[triton.cdiv(V, BN), chunks, batch * H](added, k, u, g, *sizes, V, **shape, BN=BN, num_warps=4)
    outer[triton.cdiv(K, BN), chunks, batch * H](taken, k, w, g, *sizes, K, **shape, BN=BN, num_warps=4)
    chain[triton.cdiv(V, BV), batch * H](
        added, taken, g, first, h, last, *sizes, V, **shape, BV=BV, num_warps=num_warps, num_stages=num_stages
    )
    remain[triton.cdiv(V, BN), chunks, batch * H](new, u, w, h, *sizes, V, **shape, BN=BN, num_warps=4)


ROLES = {"BV": "tile", "num_warps": "threads", "num_stages": "stages"}
# Elements that a thread holds in registers, of a state of 128 keys.
FITS = [lambda BV, num_warps: 8 <= 128 * BV // (32 * num_warps) <= 128]

SEQUENTIAL = Space.grid(
    {"BV": [16, 32, 64, 128], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4]},
    constraints=FITS,
    default={"BV": 64, "num_warps": 4, "num_stages": 2},
    roles=ROLES,
)
TRANSITION = Space.grid(
    {"BV": [16, 32, 64, 128], "BN": [32, 64, 128], "num_warps": [4, 8, 16], "num_stages": [1, 2, 3]},
    # At 2 warps the K x K of a chunk spills, 2 KB of each thread (sm_90, 128 keys).
    constraints=[lambda BV, num_warps: 4 <= 128 * BV // (32 * num_warps) <= 128],
    default={"BV": 32, "BN": 64, "num_warps": 4, "num_stages": 2},
    roles={**ROLES, "BN": "tile"},
)


def unit(random: torch.Generator, *shape: int) -> torch.Tensor:
    """Vectors of length 1, as keys and queries are."""
    return torch.nn.functional.normalize(torch.randn(*shape, generator=random, device=random.device), dim=-1)


def gates(random: torch.Generator, batch: int, T: int, H: int) -> torch.Tensor:
    """Logarithms of gates, a fiftieth or so below 0 each, summed within each chunk."""
    chunks = triton.cdiv(T, CHUNK)
    each = torch.rand(batch, chunks * CHUNK, H, generator=random, device=random.device).mul_(-0.04)
    return each.view(batch, chunks, CHUNK, H).cumsum(2).view(batch, -1, H)[:, :T].contiguous()


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Keys of length 1; w so short that states neither grow nor vanish; the outputs last."""
    batch, T, H, K, V = (case.sizes[name] for name in ("batch", "T", "H", "K", "V"))
    random = torch.Generator(device).manual_seed(seed)
    k, w = unit(random, batch, T, H, K).half(), unit(random, batch, T, H, K).mul_(0.25 * min(1, K / 64)).half()
    u = torch.randn(batch, T, H, V, generator=random, device=device).half()
    first = torch.randn(batch, H, K, V, generator=random, device=device)
    h = torch.full((batch, triton.cdiv(T, CHUNK), H, K, V), torch.nan, dtype=torch.float16, device=device)
    return (
        k,
        w,
        u,
        gates(random, batch, T, H),
        first,
        h,
        torch.full_like(u, torch.nan),
        torch.full_like(first, torch.nan),
    )


def reference(
    k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The definition, chunk by chunk, in float32."""
    keys, ws, us, gs = (t.float().transpose(1, 2) for t in (k, w, u, g[..., None]))  # [batch, H, T, width]
    state, states, news = first.float(), [], []
    for start in range(0, k.shape[1], CHUNK):
        key, take, value, gate = (t[:, :, start : start + CHUNK] for t in (keys, ws, us, gs))
        states.append(state)
        news.append(value - take @ state)
        end = gate[:, :, -1:]
        state = state * end.exp() + (key * (end - gate).exp()).transpose(2, 3) @ news[-1]
    return torch.stack(states, 1).to(h.dtype), torch.cat(news, 2).transpose(1, 2).to(new.dtype), state.to(last.dtype)


def work(k: Any, w: Any, u: Any, g: Any, first: Any, h: Any, new: Any, last: Any) -> Work:
    """Two products of a token and a state for each token; every tensor is moved once."""
    tensors = (k, w, u, g, first, h, new, last)
    return Work(flops=4.0 * k.numel() * u.shape[3], bytes=float(sum(t.numel() * t.element_size() for t in tensors)))


# States and what tokens write are rounded to float16 before each product, 2**-11 of numbers of the size of 1 to 4, and what
# is off in a state is carried on, less by each chunk's gates.
CLOSE = {"rtol": 1e-2, "atol": 1e-2}

VARIANTS = SuiteKernel(
    name="gdn_chunk_fwd_h",
    variants=(
        Variant(name="sequential", launch=sequential, space=SEQUENTIAL, functions=(carry,)),
        Variant(name="transposed", launch=transposed, space=SEQUENTIAL, functions=(carry_transposed,)),
        Variant(name="transition", launch=transition, space=TRANSITION, functions=(outer, chain, remain)),
    ),
    outputs=(Output(name="h", **CLOSE), Output(name="v_new", **CLOSE), Output(name="last", **CLOSE)),
    cases=(
        Case(name="prefill", sizes={"batch": 1, "T": 8192, "H": 32, "K": 128, "V": 128}),
        Case(name="training", sizes={"batch": 8, "T": 2048, "H": 16, "K": 128, "V": 128}),
        Case(name="long", sizes={"batch": 1, "T": 32768, "H": 8, "K": 128, "V": 128}),
        Case(name="wide_values", sizes={"batch": 2, "T": 4096, "H": 8, "K": 128, "V": 256}),
        Case(name="odd", sizes={"batch": 3, "T": 1111, "H": 5, "K": 100, "V": 72}),
    ),
    corners=(
        Case(name="one", sizes={"batch": 1, "T": 1, "H": 1, "K": 16, "V": 16}),
        Case(name="below_a_chunk", sizes={"batch": 2, "T": 37, "H": 2, "K": 20, "V": 12}),
        Case(name="over_chunks", sizes={"batch": 1, "T": 150, "H": 3, "K": 24, "V": 70}),
        Case(name="whole_chunks", sizes={"batch": 1, "T": 192, "H": 2, "K": 32, "V": 64}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
