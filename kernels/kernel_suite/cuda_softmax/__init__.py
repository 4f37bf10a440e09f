"""Softmax of each row of a float32 matrix on an NVIDIA GPU: a block to a row, a warp to a row, or in one pass less.

What is fast depends on the length of a row: short ones want a warp each, long ones a block and few passes.
"""

# ruff: noqa: N803 -- a constraint names the knobs it is about, and knobs are macros, in capitals
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case, Kernel, load_cuda

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).parent
SOURCES = {
    "block_per_row": HERE / "block_per_row.cu",
    "warp_per_row": HERE / "warp_per_row.cu",
    "online": HERE / "online.cu",
    "binding": HERE / "binding.cpp",
}

SPACE = Space.grid(
    {
        "source": ["block_per_row", "warp_per_row", "online"],
        "THREADS": [32, 64, 128, 256, 512, 1024],
        "VECTOR": [1, 2, 4],
        "UNROLL": [1, 2, 4],
        "MATH": ["", "-use_fast_math"],
    },
    constraints=[
        # A block that takes in more than this at once would leave most of its threads idle in rows as they usually are.
        lambda source, THREADS, VECTOR, UNROLL: source == "warp_per_row" or THREADS * VECTOR * UNROLL <= 4096,
    ],
    # Whole 16-byte loads, and 2048 numbers of a row at once.
    default={"source": "block_per_row", "THREADS": 256, "VECTOR": 4, "UNROLL": 2, "MATH": ""},
    roles={"source": "algorithm", "THREADS": "threads", "VECTOR": "vector", "UNROLL": "unroll", "MATH": "flag"},
)


def make_inputs(case: Case, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """`x` [rows, n] around 100, where an exponential is infinite unless the largest number is taken off, and `out`."""
    import torch

    rows, n = case.sizes["rows"], case.sizes["n"]
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, n, generator=random, device=device) * 4 + 100
    return x, torch.full((rows, n), torch.nan, device=device)


def reference(x: Tensor, out: Tensor) -> Tensor:
    """The softmax, in float64."""
    return x.double().softmax(1).to(out.dtype)


def work(x: Tensor, out: Tensor) -> Work:
    """Five operations an element: a comparison, a difference, an exponential, an addition and a product."""
    return Work(flops=5.0 * x.numel(), bytes=4.0 * (x.numel() + out.numel()))


def load(**options: Any) -> Any:
    """The module whose function `cuda_softmax(x, out)` tunes itself; `options` go to `load_inline`."""
    return load_cuda("cuda_softmax", SOURCES, **{"signature": "x, out", "space": SPACE, "work": work, **options})


KERNEL = Kernel(
    name="cuda_softmax",
    space=SPACE,
    cases=(
        Case(name="attention", sizes={"rows": 32768, "n": 2048}),
        Case(name="vocabulary", sizes={"rows": 512, "n": 128256}),
        Case(name="short", sizes={"rows": 2**20, "n": 64}),
        Case(name="square", sizes={"rows": 4096, "n": 4096}),
        Case(name="odd", sizes={"rows": 1001, "n": 3003}),
    ),
    corners=(
        Case(name="nothing", sizes={"rows": 0, "n": 5}),
        Case(name="one", sizes={"rows": 1, "n": 1}),
        Case(name="below_a_vector", sizes={"rows": 5, "n": 3}),
        Case(name="below_a_warp", sizes={"rows": 33, "n": 20}),
        Case(name="just_over_a_step", sizes={"rows": 3, "n": 2052}),
        Case(name="several_steps", sizes={"rows": 2, "n": 10_001}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # A difference of two numbers near 100 is off by up to 2e-6 before it is raised, the fast exponential by as much again;
    # a number that is left out of a row of 10,001 moves every other one, and stays NaN itself.
    rtol=2e-5,
    atol=0.0,
    sources=SOURCES,
)
