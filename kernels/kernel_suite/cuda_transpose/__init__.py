"""Transpose of a float32 matrix on an NVIDIA GPU, through registers or through shared memory.

Nothing is computed: what is fast is what reads and writes whole lines of memory, and neither order does both.
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
SOURCES = {"tile": HERE / "tile.cu", "direct": HERE / "direct.cu", "binding": HERE / "binding.cpp"}

SPACE = Space.grid(
    {
        "source": ["tile", "direct"],
        "THREADS": [64, 128, 256, 512],
        "TILE": [16, 32, 64],
        "PADDING": [0, 1],
        "WIDTH": [2, 4, 8, 16, 32],
        "VECTOR": [1, 2, 4],
        "ORDER": ["ACROSS", "DOWN"],
    },
    constraints=[
        # Every thread has at least one vector of the tile to move.
        lambda source, THREADS, TILE, VECTOR: source != "tile" or THREADS * VECTOR <= TILE * TILE,
        # Knobs that a source does not read stay at their first value.
        lambda source, TILE, PADDING: source == "tile" or (TILE == 16 and PADDING == 0),
        lambda source, WIDTH: source == "direct" or WIDTH == 2,
    ],
    # A warp reads a line of 32 floats and writes one: the form that textbooks give.
    default={
        "source": "tile",
        "THREADS": 256,
        "TILE": 32,
        "PADDING": 1,
        "WIDTH": 2,
        "VECTOR": 1,
        "ORDER": "ACROSS",
    },
    roles={
        "source": "algorithm",
        "THREADS": "threads",
        "TILE": "tile",
        "PADDING": "order",
        "WIDTH": "order",
        "VECTOR": "vector",
        "ORDER": "order",
    },
)


def make_inputs(case: Case, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """`x` [rows, columns] uniform in 0 to 1, and `out` [columns, rows]."""
    import torch

    rows, columns = case.sizes["rows"], case.sizes["columns"]
    random = torch.Generator(device).manual_seed(seed)
    x = torch.rand(rows, columns, generator=random, device=device)
    return x, torch.full((columns, rows), torch.nan, device=device)


def reference(x: Tensor, out: Tensor) -> Tensor:
    return x.t().to(out.dtype).contiguous()


def work(x: Tensor, out: Tensor) -> Work:
    return Work(flops=0.0, bytes=4.0 * (x.numel() + out.numel()))


def load(**options: Any) -> Any:
    """The module whose function `cuda_transpose(x, out)` tunes itself; `options` go to `load_inline`."""
    return load_cuda("cuda_transpose", SOURCES, **{"signature": "x, out", "space": SPACE, "work": work, **options})


KERNEL = Kernel(
    name="cuda_transpose",
    space=SPACE,
    cases=(
        Case(name="square", sizes={"rows": 8192, "columns": 8192}),
        Case(name="tall", sizes={"rows": 2**20, "columns": 64}),
        Case(name="wide", sizes={"rows": 64, "columns": 2**20}),
        Case(name="small", sizes={"rows": 1024, "columns": 1024}),
        Case(name="odd", sizes={"rows": 3001, "columns": 2003}),
    ),
    corners=(
        Case(name="nothing", sizes={"rows": 0, "columns": 3}),
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="one_row", sizes={"rows": 1, "columns": 129}),
        Case(name="one_column", sizes={"rows": 131, "columns": 1}),
        Case(name="below_a_vector", sizes={"rows": 3, "columns": 2}),
        Case(name="whole_vectors_one_way", sizes={"rows": 36, "columns": 33}),
        Case(name="just_over_a_tile", sizes={"rows": 68, "columns": 132}),
        Case(name="over_a_tile", sizes={"rows": 129, "columns": 67}),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # Numbers are moved, not computed with.
    rtol=0.0,
    atol=0.0,
    sources=SOURCES,
)
