"""Sum of all elements of a float32 tensor on an NVIDIA GPU: in two passes with a tree, or in one with atomic additions.

What is fast depends on the size: a small tensor wants one launch, a large one many loads under way.
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
    "two_pass": HERE / "two_pass.cu",
    "warp_atomics": HERE / "warp_atomics.cu",
    "binding": HERE / "binding.cpp",
}

SPACE = Space.grid(
    {
        "source": ["two_pass", "warp_atomics"],
        "THREADS": [64, 128, 256, 512, 1024],
        "TILE": [4096, 16384, 65536, 262144],
        "VECTOR": [1, 2, 4],
        "UNROLL": [1, 2, 4, 8],
    },
    constraints=[
        # Threads that find nothing left in their block's tile are there for nothing.
        lambda THREADS, TILE, VECTOR, UNROLL: THREADS * VECTOR * UNROLL <= TILE,
    ],
    # Whole 16-byte loads, four under way in each of 256 threads, which do four rounds of them.
    default={"source": "two_pass", "THREADS": 256, "TILE": 16384, "VECTOR": 4, "UNROLL": 4},
    roles={"source": "algorithm", "THREADS": "threads", "TILE": "tile", "VECTOR": "vector", "UNROLL": "unroll"},
)


def make_inputs(case: Case, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """`x` [n] uniform in 0.5 to 1.5, so that an element which is lost or added twice shows, and `out` [1]."""
    import torch

    random = torch.Generator(device).manual_seed(seed)
    x = torch.rand(case.sizes["n"], generator=random, device=device) + 0.5
    return x, torch.full((1,), torch.nan, device=device)


def reference(x: Tensor, out: Tensor) -> Tensor:
    """The sum, in float64."""
    return x.double().sum().reshape(1).to(out.dtype)


def work(x: Tensor, out: Tensor) -> Work:
    return Work(flops=float(x.numel()), bytes=4.0 * (x.numel() + out.numel()))


def load(**options: Any) -> Any:
    """The module whose function `cuda_reduction(x, out)` tunes itself; `options` go to `load_inline`."""
    return load_cuda("cuda_reduction", SOURCES, **{"signature": "x, out", "space": SPACE, "work": work, **options})


KERNEL = Kernel(
    name="cuda_reduction",
    space=SPACE,
    cases=(
        Case(name="large", sizes={"n": 2**26}),
        Case(name="gradient", sizes={"n": 2**22}),
        Case(name="vector", sizes={"n": 2**16}),
        Case(name="odd", sizes={"n": 1_234_567}),
    ),
    corners=(
        Case(name="nothing", sizes={"n": 0}),
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_vector", sizes={"n": 3}),
        Case(name="below_a_warp", sizes={"n": 31}),
        Case(name="just_over_a_tile", sizes={"n": 4097}),
        Case(name="several_tiles", sizes={"n": 16_001}),
        Case(name="several_larger_tiles", sizes={"n": 40_003}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # Roundings, each up to 6e-8 of a partial sum, go either way: even along 16,384 atomic additions they are expected to
    # come to less than 1e-5. An element that is lost in a sum of up to 16,001 is off by 3.1e-5 of it or more.
    rtol=3e-5,
    atol=0.0,
    sources=SOURCES,
)
