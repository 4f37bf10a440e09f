"""Matrix product in float32 on an NVIDIA GPU: one sum a thread, many sums in registers, or those fed by a pipeline.

Without tensor cores, which do not sum in float32. What is fast depends on the shape: large blocks read least, and leave
most of the GPU idle where `out` is small.
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
    "registers": HERE / "registers.cu",
    "pipeline": HERE / "pipeline.cu",
    "one_sum": HERE / "one_sum.cu",
    "binding": HERE / "binding.cpp",
}


def _shared_bytes(block_m: int, block_n: int, block_k: int, stages: int) -> int:
    return 4 * stages * block_k * (block_m + 1 + block_n)


SPACE = Space.grid(
    {
        "source": ["registers", "pipeline", "one_sum"],
        "BLOCK_M": [16, 32, 64, 128],
        "BLOCK_N": [16, 32, 64, 128],
        "BLOCK_K": [8, 16, 32],
        "THREAD_M": [1, 2, 4, 8],
        "THREAD_N": [1, 2, 4, 8],
        "STAGES": [1, 2, 3, 4],
    },
    constraints=[
        # Knobs that a source does not read stay at their first value; a pipeline has two stages or more.
        lambda source, THREAD_M, THREAD_N: source != "one_sum" or THREAD_M == THREAD_N == 1,
        lambda source, STAGES: (STAGES > 1) == (source == "pipeline"),
        # With fewer than eight sums, most of what a thread does is to read.
        lambda source, THREAD_M, THREAD_N: source == "one_sum" or THREAD_M * THREAD_N >= 8,
        # Two warps at the least; of more than 512 threads, few have the registers for their sums.
        lambda source, BLOCK_M, BLOCK_N, THREAD_M, THREAD_N: (
            64 <= BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N) <= (1024 if source == "one_sum" else 512)
        ),
        # What a block has without asking for more.
        lambda BLOCK_M, BLOCK_N, BLOCK_K, STAGES: _shared_bytes(BLOCK_M, BLOCK_N, BLOCK_K, STAGES) <= 48 * 1024,
    ],
    # 64 sums in each of 256 threads: the most that fit their registers.
    default={
        "source": "registers",
        "BLOCK_M": 128,
        "BLOCK_N": 128,
        "BLOCK_K": 8,
        "THREAD_M": 8,
        "THREAD_N": 8,
        "STAGES": 1,
    },
    roles={
        "source": "algorithm",
        "BLOCK_M": "tile",
        "BLOCK_N": "tile",
        "BLOCK_K": "tile",
        "THREAD_M": "unroll",
        "THREAD_N": "unroll",
        "STAGES": "stages",
    },
)


def make_inputs(case: Case, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """`a` [m, k] and `b` [k, n] uniform in -1 to 1, and `out` [m, n]."""
    import torch

    m, n, k = case.sizes["m"], case.sizes["n"], case.sizes["k"]
    random = torch.Generator(device).manual_seed(seed)
    a = torch.rand(m, k, generator=random, device=device) * 2 - 1
    b = torch.rand(k, n, generator=random, device=device) * 2 - 1
    return a, b, torch.full((m, n), torch.nan, device=device)


def reference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product, summed in float64."""
    return (a.double() @ b.double()).to(out.dtype)


def work(a: Tensor, b: Tensor, out: Tensor) -> Work:
    return Work(flops=2.0 * out.numel() * a.shape[1], bytes=4.0 * (a.numel() + b.numel() + out.numel()))


def load(**options: Any) -> Any:
    """The module whose function `cuda_gemm(a, b, out)` tunes itself; `options` go to `load_inline`."""
    return load_cuda("cuda_gemm", SOURCES, **{"signature": "a, b, out", "space": SPACE, "work": work, **options})


KERNEL = Kernel(
    name="cuda_gemm",
    space=SPACE,
    cases=(
        Case(name="square", sizes={"m": 4096, "n": 4096, "k": 4096}),
        Case(name="tall", sizes={"m": 65536, "n": 128, "k": 512}),
        Case(name="few_rows", sizes={"m": 16, "n": 8192, "k": 4096}),  # a linear layer on a small batch
        Case(name="projection", sizes={"m": 2048, "n": 8192, "k": 1024}),
        Case(name="long_sum", sizes={"m": 256, "n": 256, "k": 16384}),
        Case(name="odd", sizes={"m": 999, "n": 1111, "k": 777}),
    ),
    corners=(
        Case(name="one", sizes={"m": 1, "n": 1, "k": 1}),
        Case(name="nothing_to_sum", sizes={"m": 3, "n": 5, "k": 0}),
        Case(name="nothing_to_write", sizes={"m": 0, "n": 5, "k": 3}),
        Case(name="below_a_tile", sizes={"m": 3, "n": 7, "k": 5}),
        Case(name="just_over_a_tile", sizes={"m": 17, "n": 65, "k": 33}),
        Case(name="over_a_tile", sizes={"m": 133, "n": 150, "k": 70}),
        Case(name="deep", sizes={"m": 5, "n": 19, "k": 517}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # A sum of k such products wanders about sqrt(k) / 3 away from zero and is rounded k times: of 16,384 it is off by some
    # 1e-4, and the worst of many such sums by several times that. One product that is lost is off by 0.3 or so.
    rtol=1e-4,
    atol=1e-3,
    sources=SOURCES,
)
