"""Matrix product in float16 in Triton: a list of configs as one finds it in kernels, and a grid of some 400 more."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel, triton_configs

__all__ = ["KERNEL", "KEY", "KNOBS", "RECORDING", "SIZE", "arguments", "matmul", "space", "triton_configs"]

RECORDING = Path(__file__).parent / "recorded_H200.jsonl.gz"
"""Every config's time at 4096 x 4096 x 4096, on an NVIDIA H200 (by `python tests/benchmarks/tuning_speed.py --record`)."""

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


def _is_deep(config: Config) -> bool:
    large = {config["BM"], config["BN"]} <= {64, 128, 256}
    return large and config["BK"] == 64 and (config["GROUP"], config["num_stages"]) in ((8, 3), (8, 4), (1, 3))


def arguments(size: int = SIZE) -> tuple[tuple[Any, ...], Any]:
    """Positional arguments of a call, three square matrices and their strides, and its grid."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.randn(size, size, device=device).to(torch.float16) for _ in range(3))
    strides = [s for t in (a, b, c) for s in t.stride()]

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(size, meta["BM"]) * triton.cdiv(size, meta["BN"]),)

    return (a, b, c, size, size, size, *strides), grid


def make_call(case: Case, seed: int, device: str) -> Call:
    m, n, k = (case.sizes[name] for name in "mnk")
    random = torch.Generator(device).manual_seed(seed)
    a = torch.randn(m, k, generator=random, device=device).half()
    b = torch.randn(k, n, generator=random, device=device).half()
    c = torch.full((m, n), torch.nan, dtype=torch.float16, device=device)

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(m, knobs["BM"]) * triton.cdiv(n, knobs["BN"]),)

    return Call(args=(a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()), grid=grid, outs=(c,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """The product, summed in float64."""
    a, b = call.args[:2]
    return ((a.double() @ b.double()).to(call.outs[0].dtype),)


def work(call: Call) -> Work:
    a, b, c = call.args[:3]
    return Work(flops=2.0 * c.numel() * a.shape[1], bytes=2.0 * (a.numel() + b.numel() + c.numel()))


KERNEL = TritonKernel(
    name="matmul",
    function=matmul,
    # Of the grid, what a person would still try: blocks of 64 and up, deep ones, most of them in groups.
    space=Space(
        [c for i, c in enumerate(space()) if i < len(TYPICAL) or _is_deep(c)],
        roles={
            **dict.fromkeys(("BM", "BN", "BK"), "tile"),
            "GROUP": "order",
            "num_warps": "threads",
            "num_stages": "stages",
        },
    ),
    key=tuple(KEY),
    cases=(
        Case(name="square", sizes={"m": SIZE, "n": SIZE, "k": SIZE}),
        Case(name="few_rows", sizes={"m": 64, "n": 8192, "k": 8192}),
        Case(name="odd", sizes={"m": 1111, "n": 999, "k": 1777}),
    ),
    corners=(
        Case(name="one", sizes={"m": 1, "n": 1, "k": 1}),
        Case(name="below_a_block", sizes={"m": 5, "n": 7, "k": 3}),
        Case(name="over_blocks", sizes={"m": 131, "n": 67, "k": 97}),
        Case(name="over_a_group", sizes={"m": 321, "n": 70, "k": 33}),
        Case(name="whole_blocks", sizes={"m": 256, "n": 256, "k": 128}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # Sums are in float32 and the result is rounded to float16 once: 2**-11 of it. Terms of a sum of thousands that nearly
    # cancel leave what float32 lost of them, under 0.01; a product that is lost is off by 1 or so.
    rtol=2**-10,
    atol=1e-2,
)
