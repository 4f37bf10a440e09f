"""Matrix product in float32 on one thread of the CPU, blocked for cache and registers.

One thread, because a library call inside a program that already runs one worker per core looks like this, and because
times of one thread repeat best.
"""

# ruff: noqa: N803 -- a constraint names the knobs it is about, and knobs are macros, in capitals
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case, Kernel

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).parent
SOURCES = {"kernel": HERE / "kernel.cpp", "binding": HERE / "binding.cpp"}

# Native: the kernel is built on the machine that runs it. No -ffast-math: the order of the sums is written out by hand,
# so there is nothing left for it to win.
CFLAGS = ["-O3", "-march=native"]

SPACE = Space.grid(
    {
        "ALGORITHM": ["PACK_B", "IN_PLACE"],
        "ORDER": ["B_STAYS", "A_STAYS"],
        "BLOCK_N": [64, 512],
        "BLOCK_K": [64, 256, 1024],
        "ROWS": [2, 4, 6, 8],
        "VECTORS": [1, 2, 4],
        "VECTOR": [8, 16],
    },
    constraints=[
        # Sums, one row of b and one element of a have to fit in 32 registers; past that, sums go through memory.
        lambda ROWS, VECTORS: ROWS * VECTORS + VECTORS + 1 <= 32,
        # Fewer than four sums wait for each other, whatever the rest does: a multiply-add takes four cycles.
        lambda ROWS, VECTORS: ROWS * VECTORS >= 4,
        # A block of b should leave half of a 1 MiB second-level cache to everything else.
        lambda BLOCK_N, BLOCK_K: BLOCK_N * BLOCK_K * 4 <= 2**19,
    ],
    # What fills the 16 registers of AVX2, the safe choice before anything has been measured.
    default={
        "ALGORITHM": "PACK_B",
        "ORDER": "B_STAYS",
        "BLOCK_N": 512,
        "BLOCK_K": 256,
        "ROWS": 6,
        "VECTORS": 2,
        "VECTOR": 8,
    },
    roles={
        "ALGORITHM": "algorithm",
        "ORDER": "order",
        "BLOCK_N": "tile",
        "BLOCK_K": "tile",
        "ROWS": "unroll",
        "VECTORS": "unroll",
        "VECTOR": "vector",
    },
)


def make_inputs(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """`a` [m, k] and `b` [k, n] uniform in -1 to 1, and `out` [m, n]."""
    import torch

    m, n, k = case.sizes["m"], case.sizes["n"], case.sizes["k"]
    random = torch.Generator().manual_seed(seed)
    a = torch.rand(m, k, generator=random) * 2 - 1
    b = torch.rand(k, n, generator=random) * 2 - 1
    return a, b, torch.full((m, n), torch.nan)


def reference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product, summed in float64."""
    return (a.double() @ b.double()).to(out.dtype)


def work(a: Tensor, b: Tensor, out: Tensor) -> Work:
    return Work(flops=2.0 * out.numel() * a.shape[1], bytes=4.0 * (a.numel() + b.numel() + out.numel()))


def load(**options: Any) -> Any:
    """The module whose function `gemm(a, b, out)` tunes itself; `options` go to `load_inline`."""
    import forecast_autotune as fa

    arguments: dict[str, Any] = {
        "name": "kernel_suite_gemm",
        "cpp_sources": SOURCES["binding"].read_text(),
        "kernel_sources": SOURCES["kernel"].read_text(),
        "functions": ["gemm"],
        "signature": "a, b, out",
        "extra_cflags": CFLAGS,
        "space": SPACE,
        "work": work,
    }
    return fa.load_inline(**{**arguments, **options})


KERNEL = Kernel(
    name="gemm",
    space=SPACE,
    cases=(
        Case(name="square", sizes={"m": 512, "n": 512, "k": 512}),
        Case(name="tall", sizes={"m": 2048, "n": 64, "k": 512}),
        Case(name="few_rows", sizes={"m": 16, "n": 2048, "k": 1024}),  # a linear layer on a small batch
        Case(name="projection", sizes={"m": 128, "n": 4096, "k": 1024}),  # rows of b lie a power of two apart
        Case(name="long_sum", sizes={"m": 128, "n": 128, "k": 4096}),
        Case(name="odd", sizes={"m": 500, "n": 333, "k": 777}),
    ),
    corners=(
        Case(name="one", sizes={"m": 1, "n": 1, "k": 1}),
        Case(name="nothing_to_sum", sizes={"m": 3, "n": 5, "k": 0}),
        Case(name="below_a_tile", sizes={"m": 3, "n": 7, "k": 5}),
        Case(name="just_over_a_tile", sizes={"m": 9, "n": 65, "k": 66}),
        Case(name="over_a_block", sizes={"m": 13, "n": 531, "k": 263}),
        Case(name="deep", sizes={"m": 5, "n": 33, "k": 1031}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # Float32 sums of up to 4096 products below 1 were off by at most 4e-5, whatever their order; one product that is
    # lost is off by 0.3 or so.
    rtol=1e-4,
    atol=1e-3,
    sources=SOURCES,
)
