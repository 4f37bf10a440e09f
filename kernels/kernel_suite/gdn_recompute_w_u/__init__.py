"""What the gated delta rule takes from a state and adds to it, token by token, in float16 in Triton: w and u of each chunk.

For each head and each chunk of 64 tokens, with A [64, 64], lower triangular, k [64, K], v [64, V], the strengths beta and
g, the sum of the logarithms of the gates so far: w = A (beta exp(g) k) and u = A (beta v).
"""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..gdn_chunk_fwd_h import CHUNK, gates, unit
from ..suite import Case
from ..triton_kernel import Output, SuiteKernel, Variant


@triton.jit  # type: ignore[untyped-decorator]
def mixed(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, a, factor, token, inside, column, N, FOLD: tl.constexpr
):
    """A (factor x) of some columns of a chunk. Where FOLD, A has the factor already, and x is multiplied as it was read."""
    at, wanted = (token * N)[:, None] + column[None, :], inside[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + at, mask=wanted, other=0.0)
    if not FOLD:
        x = (x.to(tl.float32) * factor[:, None]).to(tl.float16)
    tl.store(out_ptr + at, tl.dot(a, x).to(tl.float16), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def whole_chunk(  # type: ignore[no-untyped-def]
    w_ptr, u_ptr, k_ptr, v_ptr, beta_ptr, g_ptr, a_ptr, T, H, K, V,
    CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """All of u and then all of w of one chunk of one head; A is read once."""
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    inner = tl.arange(0, CHUNK)
    t = chunk * CHUNK + inner
    token, inside = head // H * T * H + head % H + t.to(tl.int64) * H, t < T
    a = tl.load(a_ptr + (token * CHUNK)[:, None] + inner[None, :], mask=inside[:, None], other=0.0)
    beta = tl.load(beta_ptr + token, mask=inside, other=0.0)
    gated = beta * tl.exp(tl.load(g_ptr + token, mask=inside, other=0.0))
    of_u, of_w = a, a
    if FOLD:
        of_u = (a.to(tl.float32) * beta[None, :]).to(tl.float16)
        of_w = (a.to(tl.float32) * gated[None, :]).to(tl.float16)
    for first in range(0, V, BV):
        mixed(u_ptr, v_ptr, of_u, beta, token, inside, first + tl.arange(0, BV), V, FOLD)
    for first in range(0, K, BK):
        mixed(w_ptr, k_ptr, of_w, gated, token, inside, first + tl.arange(0, BK), K, FOLD)


@triton.jit  # type: ignore[untyped-decorator]
def part_of_a_chunk(  # type: ignore[no-untyped-def]
    w_ptr, u_ptr, k_ptr, v_ptr, beta_ptr, g_ptr, a_ptr, T, H, K, V,
    CHUNK: tl.constexpr, BN: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """BN columns of u or, in the programs after those, of w; A is read by each of them."""
    place, chunk, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    inner = tl.arange(0, CHUNK)
    t = chunk * CHUNK + inner
    token, inside = head // H * T * H + head % H + t.to(tl.int64) * H, t < T
    a = tl.load(a_ptr + (token * CHUNK)[:, None] + inner[None, :], mask=inside[:, None], other=0.0)
    factor = tl.load(beta_ptr + token, mask=inside, other=0.0)
    of_values = tl.cdiv(V, BN)
    if place >= of_values:
        factor *= tl.exp(tl.load(g_ptr + token, mask=inside, other=0.0))
    if FOLD:
        a = (a.to(tl.float32) * factor[None, :]).to(tl.float16)
    if place < of_values:
        mixed(u_ptr, v_ptr, a, factor, token, inside, place * BN + tl.arange(0, BN), V, FOLD)
    else:
        mixed(w_ptr, k_ptr, a, factor, token, inside, (place - of_values) * BN + tl.arange(0, BN), K, FOLD)


def _whole(fold: bool, k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any, **knobs: int) -> None:
    batch, T, H, K = k.shape
    whole_chunk[triton.cdiv(T, CHUNK), batch * H](
        w, u, k, v, beta, g, a, T, H, K, v.shape[3], CHUNK=CHUNK, FOLD=fold, **knobs
    )


def factors_on_rows(
    k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any, *, BK: int, BV: int, num_warps: int, num_stages: int
) -> None:
    """A program to each chunk of each head: every tile of k and v is multiplied by its factors before it meets A."""
    _whole(False, k, v, beta, g, a, w, u, BK=BK, BV=BV, num_warps=num_warps, num_stages=num_stages)


def factors_in_a(
    k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any, *, BK: int, BV: int, num_warps: int, num_stages: int
) -> None:
    """As `factors_on_rows`, with the factors in A's columns, twice: tiles go from memory to tensor cores as they are."""
    _whole(True, k, v, beta, g, a, w, u, BK=BK, BV=BV, num_warps=num_warps, num_stages=num_stages)


def column_blocks(
    k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any, *, BN: int, FOLD: bool, num_warps: int
) -> None:
    """A program to each block of columns, of u and of w: nothing waits, and A is read once for each block."""
    batch, T, H, K = k.shape
    V = v.shape[3]
    part_of_a_chunk[triton.cdiv(V, BN) + triton.cdiv(K, BN), triton.cdiv(T, CHUNK), batch * H](
        w, u, k, v, beta, g, a, T, H, K, V, CHUNK=CHUNK, BN=BN, FOLD=FOLD, num_warps=num_warps
    )


WHOLE = Space.grid(
    {"BK": [16, 32, 64, 128], "BV": [16, 32, 64, 128], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3, 4]},
    # A sum of 64 x BV or BK, and that tile itself twice; with the factors in A, A twice.
    constraints=[
        lambda BK, BV, num_warps: 64 * max(BK, BV) // (32 * num_warps) <= 64,
        lambda BK, BV: max(BK, BV) <= 2 * min(BK, BV),
    ],
    default={"BK": 64, "BV": 64, "num_warps": 4, "num_stages": 2},
    roles={"BK": "tile", "BV": "tile", "num_warps": "threads", "num_stages": "stages"},
)
COLUMNS = Space.grid(
    {"BN": [16, 32, 64, 128], "FOLD": [False, True], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BN, num_warps: 64 * BN // (32 * num_warps) <= 64],
    default={"BN": 64, "FOLD": False, "num_warps": 4},
    roles={"BN": "tile", "FOLD": "algorithm", "num_warps": "threads"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Keys of length 1, strengths between 0 and 1, A with a diagonal of ones; the outputs last."""
    batch, T, H, K, V = (case.sizes[name] for name in ("batch", "T", "H", "K", "V"))
    random = torch.Generator(device).manual_seed(seed)
    k = unit(random, batch, T, H, K).half()
    v = torch.randn(batch, T, H, V, generator=random, device=device).half()
    beta = torch.rand(batch, T, H, generator=random, device=device)
    row, column = torch.arange(T, device=device)[:, None, None] % CHUNK, torch.arange(CHUNK, device=device)
    a = torch.randn(batch, T, H, CHUNK, generator=random, device=device).mul_(0.25).mul_(column < row)
    a = a.add_(column == row).half()
    return k, v, beta, gates(random, batch, T, H), a, torch.full_like(k, torch.nan), torch.full_like(v, torch.nan)


def reference(k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, chunk by chunk, in float32."""
    taken, added = beta[..., None] * g[..., None].exp() * k.float(), beta[..., None] * v.float()
    ws, us = [], []
    for start in range(0, k.shape[1], CHUNK):
        chunk = slice(start, start + CHUNK)
        mix = a[:, chunk].float().transpose(1, 2)
        mix = mix[..., : mix.shape[2]]  # [batch, H, tokens, tokens]
        ws.append((mix @ taken[:, chunk].transpose(1, 2)).transpose(1, 2))
        us.append((mix @ added[:, chunk].transpose(1, 2)).transpose(1, 2))
    return torch.cat(ws, 1).to(w.dtype), torch.cat(us, 1).to(u.dtype)


def work(k: Any, v: Any, beta: Any, g: Any, a: Any, w: Any, u: Any) -> Work:
    """A product with each token of the chunk up to itself, for each number of w and u."""
    batch, T, H, K = k.shape
    V, (whole, rest) = v.shape[3], divmod(T, CHUNK)
    pairs = whole * CHUNK * (CHUNK + 1) / 2 + rest * (rest + 1) / 2
    return Work(
        flops=2.0 * batch * H * pairs * (K + V),
        bytes=float(sum(t.numel() * t.element_size() for t in (k, v, beta, g, a, w, u))),
    )


VARIANTS = SuiteKernel(
    name="gdn_recompute_w_u",
    variants=(
        Variant(name="factors_on_rows", launch=factors_on_rows, space=WHOLE, functions=(whole_chunk,)),
        Variant(name="factors_in_a", launch=factors_in_a, space=WHOLE, functions=(whole_chunk,)),
        Variant(name="column_blocks", launch=column_blocks, space=COLUMNS, functions=(part_of_a_chunk,)),
    ),
    # Sums are in float32; what is multiplied by its factors, a tile or A, is rounded to float16 again, and so are results:
    # 2**-11 each. Numbers of w are of the size of 0.1, of u of 1 to 4.
    outputs=(Output(name="w", rtol=5e-3, atol=1e-3), Output(name="u", rtol=5e-3, atol=5e-3)),
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
        Case(name="over_chunks", sizes={"batch": 1, "T": 150, "H": 3, "K": 40, "V": 70}),
        Case(name="whole_chunks", sizes={"batch": 1, "T": 128, "H": 2, "K": 32, "V": 64}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)
