"""Triangle multiplicative update, outgoing edges, in float16 in Triton: project and gate, one product per channel, project.

Of x [batch, n, n, C] with layer norm x': left = mask (x' W0) sigmoid(x' W2), right = mask (x' W1) sigmoid(x' W3), both
[batch, n, n, H]; product[i, j] = sum over k of left[i, k] right[j, k], channel by channel; and the result is
(norm(product) sigmoid(x' W4)) W_out, [batch, n, n, C].
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

EPSILON = 1e-5


@triton.jit
def normed(value, inside, width, norm_ptr, column, epsilon):  # type: ignore[no-untyped-def]
    """Layer norm of each row of a tile that holds the row in full; `norm_ptr` has the weights and then the biases."""
    mean = tl.sum(value, 1) / width
    centred = tl.where(inside, value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / width + epsilon)
    weight = tl.load(norm_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    bias = tl.load(norm_ptr + width + column, mask=column < width, other=0.0).to(tl.float32)
    return centred * scale[:, None] * weight[None, :] + bias[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def project(  # type: ignore[no-untyped-def]
    left_ptr, right_ptr, gate_ptr, x_ptr, mask_ptr, norm_ptr, w_ptr, rows, pairs, C, H, epsilon, channel, pair,
    PM: tl.constexpr, PN: tl.constexpr, PK: tl.constexpr,
):  # fmt: skip
    """Norm, five projections, gates and mask of PM rows, PN channels of them; `channel` and `pair` say where they go.

    The row is read once for its mean, once for its deviation and once for the product, from the cache but for the first.
    """
    row = tl.program_id(0).to(tl.int64) * PM + tl.arange(0, PM)
    out = tl.program_id(1) * PN + tl.arange(0, PN)
    inner = tl.arange(0, PK)
    x = x_ptr + (row * C)[:, None] + inner[None, :]
    here = (row < rows)[:, None]
    total = tl.zeros((PM, PK), tl.float32)
    for k in range(0, C, PK):
        total += tl.load(x + k, mask=here & (inner < C - k)[None, :], other=0.0).to(tl.float32)
    mean = (tl.sum(total, 1) / C)[:, None]
    squares = tl.zeros((PM, PK), tl.float32)
    for k in range(0, C, PK):
        inside = here & (inner < C - k)[None, :]
        centred = tl.where(inside, tl.load(x + k, mask=inside, other=0.0).to(tl.float32) - mean, 0.0)
        squares += centred * centred
    scale = tl.rsqrt(tl.sum(squares, 1) / C + epsilon)[:, None]
    left, right, gate = (tl.zeros((PM, PN), tl.float32), tl.zeros((PM, PN), tl.float32), tl.zeros((PM, PN), tl.float32))
    left_gate, right_gate = tl.zeros((PM, PN), tl.float32), tl.zeros((PM, PN), tl.float32)
    step = C.to(tl.int64) * H
    for k in range(0, C, PK):
        deep = inner < C - k
        weight = tl.load(norm_ptr + k + inner, mask=deep, other=0.0).to(tl.float32)
        bias = tl.load(norm_ptr + C + k + inner, mask=deep, other=0.0).to(tl.float32)
        value = tl.load(x + k, mask=here & deep[None, :], other=0.0).to(tl.float32)
        value = ((value - mean) * scale * weight[None, :] + bias[None, :]).to(tl.float16)
        w = w_ptr + (k + inner)[:, None] * H + out[None, :]
        wanted = deep[:, None] & (out < H)[None, :]
        left = tl.dot(value, tl.load(w, mask=wanted, other=0.0), left)
        right = tl.dot(value, tl.load(w + step, mask=wanted, other=0.0), right)
        left_gate = tl.dot(value, tl.load(w + 2 * step, mask=wanted, other=0.0), left_gate)
        right_gate = tl.dot(value, tl.load(w + 3 * step, mask=wanted, other=0.0), right_gate)
        gate = tl.dot(value, tl.load(w + 4 * step, mask=wanted, other=0.0), gate)
    kept = tl.load(mask_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    left, right = left * tl.sigmoid(left_gate) * kept, right * tl.sigmoid(right_gate) * kept
    wanted = here & (out < H)[None, :]
    to = (row // pairs * pairs * H + row % pairs * pair)[:, None] + out.to(tl.int64)[None, :] * channel
    tl.store(left_ptr + to, left.to(tl.float16), mask=wanted)
    tl.store(right_ptr + to, right.to(tl.float16), mask=wanted)
    tl.store(gate_ptr + (row * H)[:, None] + out[None, :], gate.to(tl.float16), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    product_ptr, left_ptr, right_ptr, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """left right^T of one channel of one batch, which lie apart from the other channels."""
    base = tl.program_id(1).to(tl.int64) * n * n
    across = tl.cdiv(n, BN)
    i = tl.program_id(0) // across * BM + tl.arange(0, BM)
    j = tl.program_id(0) % across * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = left_ptr + base + i[:, None] * n + inner[None, :]
    right = right_ptr + base + j[None, :] * n + inner[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, n, BK):
        deep = inner < n - k
        a = tl.load(left + k, mask=(i < n)[:, None] & deep[None, :], other=0.0)
        b = tl.load(right + k, mask=deep[:, None] & (j < n)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    to = product_ptr + base + i[:, None] * n + j[None, :]
    tl.store(to, total.to(tl.float16), mask=(i < n)[:, None] & (j < n)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def multiply_channels(  # type: ignore[no-untyped-def]
    product_ptr, left_ptr, right_ptr, n, H, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BH: tl.constexpr
):
    """left right^T of BH neighbouring channels at once, which lie side by side for each pair."""
    base = tl.program_id(2).to(tl.int64) * n * n * H
    across = tl.cdiv(n, BN)
    i = (tl.program_id(1) // across * BM + tl.arange(0, BM))[None, :, None]
    j = (tl.program_id(1) % across * BN + tl.arange(0, BN))[None, :, None]
    inner = tl.arange(0, BK)[None, None, :]
    h = (tl.program_id(0) * BH + tl.arange(0, BH))[:, None, None]
    left, right = left_ptr + base + (i * n + inner) * H + h, right_ptr + base + (j * n + inner) * H + h
    total = tl.zeros((BH, BM, BN), tl.float32)
    for k in range(0, n, BK):
        a = tl.load(left + k * H, mask=(h < H) & (i < n) & (inner < n - k), other=0.0)
        b = tl.load(right + k * H, mask=(h < H) & (j < n) & (inner < n - k), other=0.0)
        total = tl.dot(a, tl.permute(b, (0, 2, 1)), total)
    j = tl.permute(j, (0, 2, 1))
    tl.store(product_ptr + base + (i * n + j) * H + h, total.to(tl.float16), mask=(h < H) & (i < n) & (j < n))


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    out_ptr, product_ptr, gate_ptr, norm_ptr, w_ptr, rows, pairs, C, H, epsilon, channel, pair,
    FM: tl.constexpr, FN: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Norm, gate and last projection of FM rows, whose WIDTH channels stay in registers."""
    row = tl.program_id(0).to(tl.int64) * FM + tl.arange(0, FM)
    h = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (h < H)[None, :]
    product = product_ptr + (row // pairs * pairs * H + row % pairs * pair)[:, None] + h.to(tl.int64)[None, :] * channel
    value = normed(tl.load(product, mask=inside, other=0.0).to(tl.float32), inside, H, norm_ptr, h, epsilon)
    gate = tl.load(gate_ptr + (row * H)[:, None] + h[None, :], mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, value * tl.sigmoid(gate), 0.0).to(tl.float16)
    for first in range(0, C, FN):
        column = first + tl.arange(0, FN)
        w = tl.load(w_ptr + h[:, None] * C + column[None, :], mask=(h < H)[:, None] & (column < C)[None, :], other=0.0)
        to = out_ptr + (row * C)[:, None] + column[None, :]
        tl.store(to, tl.dot(value, w).to(tl.float16), mask=(row < rows)[:, None] & (column < C)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def normalise(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, gate_ptr, norm_ptr, rows, pairs, width, gate_row, epsilon, channel, pair,
    GATED: tl.constexpr, RM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Layer norm of RM rows, times the sigmoid of their gates where they are GATED."""
    row = tl.program_id(0).to(tl.int64) * RM + tl.arange(0, RM)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    x = x_ptr + (row // pairs * pairs * width + row % pairs * pair)[:, None] + column.to(tl.int64)[None, :] * channel
    value = normed(tl.load(x, mask=inside, other=0.0).to(tl.float32), inside, width, norm_ptr, column, epsilon)
    if GATED:
        gate = tl.load(gate_ptr + (row * gate_row)[:, None] + column[None, :], mask=inside, other=0.0)
        value *= tl.sigmoid(gate.to(tl.float32))
    tl.store(out_ptr + (row * width)[:, None] + column[None, :], value.to(tl.float16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def matrix_product(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, w_ptr, rows, K, columns, PM: tl.constexpr, PN: tl.constexpr, PK: tl.constexpr
):
    """x w, of matrices without gaps. Programs that run together share what they read of x."""
    across = tl.cdiv(columns, PN)
    row = (tl.program_id(0) // across).to(tl.int64) * PM + tl.arange(0, PM)
    column = tl.program_id(0) % across * PN + tl.arange(0, PN)
    inner = tl.arange(0, PK)
    x, w = x_ptr + (row * K)[:, None] + inner[None, :], w_ptr + inner[:, None] * columns + column[None, :]
    total = tl.zeros((PM, PN), tl.float32)
    for k in range(0, K, PK):
        deep = inner < K - k
        a = tl.load(x + k, mask=(row < rows)[:, None] & deep[None, :], other=0.0)
        b = tl.load(w + k * columns, mask=deep[:, None] & (column < columns)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    to = out_ptr + (row * columns)[:, None] + column[None, :]
    tl.store(to, total.to(tl.float16), mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def gate(  # type: ignore[no-untyped-def]
    left_ptr, right_ptr, projected_ptr, mask_ptr, rows, pairs, H, RM: tl.constexpr, RN: tl.constexpr
):
    """Gate and mask RM rows of what was projected, RN channels of them, and lay each channel apart."""
    row = tl.program_id(0).to(tl.int64) * RM + tl.arange(0, RM)
    h = tl.program_id(1) * RN + tl.arange(0, RN)
    inside = (row < rows)[:, None] & (h < H)[None, :]
    at = projected_ptr + (row * 5 * H)[:, None] + h[None, :]
    kept = tl.load(mask_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    to = (row // pairs * pairs * H + row % pairs)[:, None] + h.to(tl.int64)[None, :] * pairs
    for side in tl.static_range(2):
        value = tl.load(at + side * H, mask=inside, other=0.0).to(tl.float32)
        value *= tl.sigmoid(tl.load(at + (2 + side) * H, mask=inside, other=0.0).to(tl.float32)) * kept
        tl.store((left_ptr if side == 0 else right_ptr) + to, value.to(tl.float16), mask=inside)


def fused(
    x: Any, mask: Any, norm: Any, w_in: Any, norm_out: Any, w_out: Any, out: Any, *,
    PM: int, PN: int, BM: int, BN: int, BK: int, FM: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Three kernels: norm, projections and gates; a product for each channel; norm, gate and projection."""
    batch, n, _, C = x.shape
    H, rows, pairs = w_in.shape[2], batch * n * n, n * n
    left, right, product = (x.new_empty(batch, H, n, n) for _ in range(3))
    gates = x.new_empty(rows, H)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    project[triton.cdiv(rows, PM), triton.cdiv(H, PN)](
        left, right, gates, x, mask, norm, w_in, rows, pairs, C, H, EPSILON, pairs, 1, PM=PM, PN=PN, PK=32, **options
    )
    tiles = triton.cdiv(n, BM) * triton.cdiv(n, BN)
    multiply[tiles, batch * H](product, left, right, n, BM=BM, BN=BN, BK=BK, **options)
    finish[triton.cdiv(rows, FM),](
        out, product, gates, norm_out, w_out, rows, pairs, C, H, EPSILON, pairs, 1,
        FM=FM, FN=32, WIDTH=max(16, triton.next_power_of_2(H)), num_warps=4,
    )  # fmt: skip


def channels_last(
    x: Any, mask: Any, norm: Any, w_in: Any, norm_out: Any, w_out: Any, out: Any, *,
    PM: int, PN: int, BM: int, BK: int, BH: int, FM: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """As `fused`, but channels stay side by side, as the projections leave them: several are multiplied at once."""
    batch, n, _, C = x.shape
    H, rows, pairs = w_in.shape[2], batch * n * n, n * n
    left, right, product = (x.new_empty(batch, n, n, H) for _ in range(3))
    gates = x.new_empty(rows, H)
    project[triton.cdiv(rows, PM), triton.cdiv(H, PN)](
        left, right, gates, x, mask, norm, w_in, rows, pairs, C, H, EPSILON, 1, H,
        PM=PM, PN=PN, PK=32, num_warps=4, num_stages=num_stages,
    )  # fmt: skip
    grid = (triton.cdiv(H, BH), triton.cdiv(n, BM) ** 2, batch)
    multiply_channels[grid](
        product, left, right, n, H, BM=BM, BN=BM, BK=BK, BH=BH, num_warps=num_warps, num_stages=num_stages
    )
    finish[triton.cdiv(rows, FM),](
        out, product, gates, norm_out, w_out, rows, pairs, C, H, EPSILON, 1, H,
        FM=FM, FN=32, WIDTH=max(16, triton.next_power_of_2(H)), num_warps=4,
    )  # fmt: skip


def split(
    x: Any, mask: Any, norm: Any, w_in: Any, norm_out: Any, w_out: Any, out: Any, *,
    PM: int, PN: int, PK: int, BM: int, BN: int, BK: int, RM: int, num_warps: int, num_stages: int,
) -> None:  # fmt: skip
    """Six kernels, each simple: norm, one projection for all five, gates, products, norm with gate, last projection."""
    batch, n, _, C = x.shape
    H, rows, pairs = w_in.shape[2], batch * n * n, n * n
    options = {"num_warps": num_warps, "num_stages": num_stages}
    tiles = {"PM": PM, "PN": PN, "PK": PK}
    normal, projected = x.new_empty(rows, C), x.new_empty(rows, 5 * H)
    strips = triton.cdiv(rows, RM)
    normalise[strips,](
        normal, x, x, norm, rows, pairs, C, 0, EPSILON, 1, C,
        GATED=False, RM=RM, WIDTH=triton.next_power_of_2(C), num_warps=4,
    )  # fmt: skip
    joined = w_in.transpose(0, 1).reshape(C, 5 * H)  # the five side by side: one product reads x once for all
    grid = (triton.cdiv(rows, PM) * triton.cdiv(5 * H, PN),)
    matrix_product[grid](projected, normal, joined, rows, C, 5 * H, **tiles, **options)
    left, right, product = (x.new_empty(batch, H, n, n) for _ in range(3))
    gate[strips, triton.cdiv(H, 32)](left, right, projected, mask, rows, pairs, H, RM=RM, RN=32, num_warps=4)
    tiles_of_pairs = triton.cdiv(n, BM) * triton.cdiv(n, BN)
    multiply[tiles_of_pairs, batch * H](product, left, right, n, BM=BM, BN=BN, BK=BK, **options)
    gated = x.new_empty(rows, H)
    normalise[strips,](
        gated, product, projected[:, 4 * H :], norm_out, rows, pairs, H, 5 * H, EPSILON, pairs, 1,
        GATED=True, RM=RM, WIDTH=triton.next_power_of_2(H), num_warps=4,
    )  # fmt: skip
    grid = (triton.cdiv(rows, PM) * triton.cdiv(C, PN),)
    matrix_product[grid](out, gated, w_out, rows, H, C, **tiles, **options)


ROLES = {**dict.fromkeys(("PM", "PN", "BM", "BN", "BK"), "tile"), "num_warps": "threads", "num_stages": "stages"}

FUSED = Space.grid(
    {
        "PM": [32, 64, 128],
        "PN": [16, 32, 64],
        "BM": [32, 64, 128],
        "BN": [32, 64, 128],
        "BK": [32, 64],
        "FM": [32, 64],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    constraints=[
        # Five sums of PM x PN in float32: 128 registers of a thread at most.
        lambda PM, PN, num_warps: 5 * PM * PN // (32 * num_warps) <= 128,
        lambda BM, BN, num_warps: 8 <= BM * BN // (32 * num_warps) <= 128,
        lambda BM, BN: max(BM, BN) <= 2 * min(BM, BN),
    ],
    default={"PM": 64, "PN": 32, "BM": 128, "BN": 128, "BK": 32, "FM": 64, "num_warps": 8, "num_stages": 3},
    roles={**ROLES, "FM": "tile"},
)
CHANNELS_LAST = Space.grid(
    {
        "PM": [32, 64],
        "PN": [16, 32, 64],
        "BM": [16, 32, 64],
        "BK": [16, 32],
        "BH": [4, 8, 16],
        "FM": [32, 64],
        "num_warps": [4, 8],
        "num_stages": [2, 3],
    },
    constraints=[
        lambda PM, PN: 5 * PM * PN <= 128 * 32 * 4,
        # Sums: 64 registers of a thread at most, since both tiles pass through registers too (254 of 255 in use for sm_90).
        lambda BM, BH, num_warps: 16 * 32 * num_warps <= BM * BM * BH <= 64 * 32 * num_warps,
        # Two tiles for each stage, in what shared memory holds of float16.
        lambda BM, BK, BH, num_stages: 2 * BM * BK * BH * num_stages <= 96 * 1024,
    ],
    default={"PM": 64, "PN": 32, "BM": 32, "BK": 32, "BH": 8, "FM": 64, "num_warps": 4, "num_stages": 2},
    roles={k: v for k, v in ROLES.items() if k != "BN"} | {"BH": "tile", "FM": "tile"},
)
SPLIT = Space.grid(
    {
        "PM": [64, 128],
        "PN": [64, 128],
        "PK": [32, 64],
        "BM": [64, 128],
        "BN": [64, 128],
        "BK": [32, 64],
        "RM": [8, 16, 32],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    constraints=[
        lambda BM, BN, num_warps: BM * BN // (32 * num_warps) <= 128,
        lambda PM, PN, num_warps: PM * PN // (32 * num_warps) <= 128,
        lambda PM, PN, BM, BN: PM * PN == BM * BN,  # both products want about as many threads
    ],
    default={
        "PM": 128,
        "PN": 128,
        "PK": 32,
        "BM": 128,
        "BN": 128,
        "BK": 32,
        "RM": 16,
        "num_warps": 8,
        "num_stages": 3,
    },
    roles={**ROLES, "PK": "tile", "RM": "tile"},
)


def make_inputs(case: Case, seed: int, device: str) -> tuple[Any, ...]:
    """Normal x, one pair in `drop` masked out, weights that keep a variance of 1; the output last."""
    batch, n, C, H = (case.sizes[name] for name in ("batch", "n", "C", "H"))
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device).mul_(scale).half()

    def norm(width: int) -> torch.Tensor:
        return normal(2, width, scale=0.1).add_(torch.tensor([[1.0], [0.0]], device=device))

    x = normal(batch, n, n, C)
    drop = case.sizes.get("drop", 0)
    mask = torch.ones(batch, n, n, dtype=torch.float16, device=device)
    if drop:
        mask = (torch.randint(drop, (batch, n, n), generator=random, device=device) > 0).half()
    w_in, w_out = normal(5, C, H, scale=C**-0.5), normal(H, C, scale=H**-0.5)
    return x, mask, norm(C), w_in, norm(H), w_out, torch.full_like(x, torch.nan)


def reference(x: Any, mask: Any, norm: Any, w_in: Any, norm_out: Any, w_out: Any, out: Any) -> tuple[torch.Tensor]:
    """The definition, in float32."""
    normal = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], *norm.float(), EPSILON)
    left, right, left_gate, right_gate, gates = (normal @ w for w in w_in.float())
    kept = mask.float()[..., None]
    left, right = left * left_gate.sigmoid() * kept, right * right_gate.sigmoid() * kept
    product = torch.einsum("bikh,bjkh->bijh", left, right)
    product = torch.nn.functional.layer_norm(product, product.shape[-1:], *norm_out.float(), EPSILON)
    return (((product * gates.sigmoid()) @ w_out.float()).to(out.dtype),)


def work(x: Any, mask: Any, norm: Any, w_in: Any, norm_out: Any, w_out: Any, out: Any) -> Work:
    """The six projections and a product for each channel; every tensor is moved once."""
    pairs, n, C, H = mask.numel(), x.shape[1], x.shape[3], w_in.shape[2]
    tensors = (x, mask, norm, w_in, norm_out, w_out, out)
    return Work(
        flops=2.0 * pairs * H * (6 * C + n),
        bytes=float(sum(t.numel() * t.element_size() for t in tensors)),
    )


VARIANTS = SuiteKernel(
    name="trimul",
    variants=(
        Variant(name="fused", launch=fused, space=FUSED, functions=(project, multiply, finish)),
        Variant(
            name="channels_last",
            launch=channels_last,
            space=CHANNELS_LAST,
            functions=(project, multiply_channels, finish),
        ),
        Variant(
            name="split", launch=split, space=SPLIT, functions=(normalise, matrix_product, gate, multiply)
        ),
    ),
    # Projected values, gates, products and normed values are rounded to float16 on their way, 2**-11 each, before sums of
    # hundreds of terms of either sign; results of the size of 1 are off by a few thousandths.
    outputs=(Output(name="out", rtol=1e-2, atol=1e-2),),
    cases=(
        Case(name="protein", sizes={"batch": 1, "n": 512, "C": 128, "H": 128, "drop": 8}),
        Case(name="long", sizes={"batch": 1, "n": 1024, "C": 128, "H": 128}),
        Case(name="batch", sizes={"batch": 2, "n": 256, "C": 384, "H": 128, "drop": 8}),
        Case(name="odd", sizes={"batch": 1, "n": 333, "C": 100, "H": 72, "drop": 8}),
    ),
    corners=(
        Case(name="one", sizes={"batch": 1, "n": 1, "C": 16, "H": 16}),
        Case(name="below_a_block", sizes={"batch": 2, "n": 5, "C": 12, "H": 10, "drop": 4}),
        Case(name="over_a_block", sizes={"batch": 1, "n": 35, "C": 40, "H": 9}),
        Case(name="whole_blocks", sizes={"batch": 2, "n": 16, "C": 32, "H": 16, "drop": 3}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
)  # fmt: skip
