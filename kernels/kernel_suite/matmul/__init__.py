"""Matrix product in float16 in Triton: a list of configs as one finds it in kernels, and a grid of some 400 more."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space

RECORDING = Path(__file__).parent / "recorded_H200.jsonl.gz"
"""Every config's time at 4096 x 4096 x 4096, measured on an NVIDIA H200 (`python -m calibration.tuning_speed --record`)."""

SIZE = 4096
KNOBS = ("BM", "BN", "BK", "GROUP", "num_warps", "num_stages")
KEY = ["M", "N", "K"]
TYPICAL = [
    (128, 256, 64, 8, 8, 3),
    (128, 128, 64, 8, 4, 4),
    (128, 128, 64, 8, 8, 3),
    (64, 256, 32, 8, 4, 4),
    (128, 128, 32, 8, 4, 4),
    (128, 64, 32, 8, 4, 4),
    (64, 128, 32, 8, 4, 4),
    (256, 64, 64, 8, 4, 3),
    (64, 256, 64, 8, 4, 3),
    (128, 32, 32, 8, 4, 4),
    (64, 32, 32, 8, 2, 5),
    (32, 64, 32, 8, 2, 5),
]


@triton.jit  # type: ignore[untyped-decorator]
def matmul(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C = A B. Programs that run together take neighbouring rows of blocks, so that what they read of B is shared."""
    place = tl.program_id(0)
    across, down = tl.cdiv(N, BN), tl.cdiv(M, BM)
    first = place // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    row = first + place % (GROUP * across) % height
    column = place % (GROUP * across) // height
    rows = (row * BM + tl.arange(0, BM)) % M
    columns = (column * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * a_row + inner[None, :] * a_column
    b = b_ptr + inner[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = inner < K - k * BK
        total = tl.dot(tl.load(a, mask=left[None, :], other=0.0), tl.load(b, mask=left[:, None], other=0.0), total)
        a += BK * a_column
        b += BK * b_row
    out_rows, out_columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    c = c_ptr + out_rows[:, None] * c_row + out_columns[None, :] * c_column
    tl.store(c, total.to(tl.float16), mask=(out_rows[:, None] < M) & (out_columns[None, :] < N))


def space() -> list[Config]:
    """The typical list first, as a kernel's author would write it, and then the grid."""
    grid = Space.grid(
        {
            "BM": [32, 64, 128, 256],
            "BN": [32, 64, 128, 256],
            "BK": [32, 64],
            "GROUP": [1, 8],
            "num_warps": [4, 8],
            "num_stages": [2, 3, 4, 5],
        },
        constraints=[
            lambda BM, BN: BM * BN <= 128 * 256,
            lambda BM, BN, num_warps: num_warps == 4 or BM * BN >= 64 * 64,
        ],
    )
    return list(dict.fromkeys([*(Config(dict(zip(KNOBS, c, strict=True))) for c in TYPICAL), *grid]))


def triton_configs(configs: list[Config]) -> list[Any]:
    """Configs as `triton.autotune` takes them."""
    return [
        triton.Config({n: c[n] for n in KNOBS[:4]}, num_warps=c["num_warps"], num_stages=c["num_stages"])
        for c in configs
    ]


def arguments(size: int = SIZE) -> tuple[tuple[Any, ...], Any]:
    """Positional arguments of a call, three square matrices and their strides, and its grid."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.randn(size, size, device=device).to(torch.float16) for _ in range(3))
    strides = [s for t in (a, b, c) for s in t.stride()]

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(size, meta["BM"]) * triton.cdiv(size, meta["BN"]),)

    return (a, b, c, size, size, size, *strides), grid
