"""2-D convolution of one image in float32 on one thread of the CPU, directly, without a matrix library.

One thread, because times of one thread repeat best. What is fast depends on the shape more than elsewhere: many
channels reward many features per tile, a large filter on one plane has only one, and a narrow image has rows shorter
than a tile.
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
        "ALGORITHM": ["TILE", "PATCHES", "SWEEP"],
        "ORDER": ["FEATURES_OUTER", "PIXELS_OUTER"],
        "BLOCK_C": [16, 64, 256],
        "FEATURES": [1, 2, 4, 8],
        "VECTORS": [1, 2, 4, 8],
        "VECTOR": [8, 16],
        "TAPS": [1, 2, 4, 8],
    },
    constraints=[
        # Sums, one row of pixels and one weight have to fit in 32 registers; past that, sums go through memory.
        lambda FEATURES, VECTORS: FEATURES * VECTORS + VECTORS + 1 <= 32,
        # Copied patches serve all features at once, so the kernel has one order for them.
        lambda ALGORITHM, ORDER: ALGORITHM != "PATCHES" or ORDER == "PIXELS_OUTER",
        # Knobs that an algorithm does not read stay at their first value.
        lambda ALGORITHM, FEATURES, VECTORS: ALGORITHM != "SWEEP" or FEATURES == VECTORS == 1,
        lambda ALGORITHM, TAPS: ALGORITHM == "SWEEP" or TAPS == 1,
    ],
    # The largest powers of two that fit the 16 registers of AVX2, the safe choice before anything has been measured.
    default={
        "ALGORITHM": "TILE",
        "ORDER": "FEATURES_OUTER",
        "BLOCK_C": 64,
        "FEATURES": 4,
        "VECTORS": 2,
        "VECTOR": 8,
        "TAPS": 1,
    },
    roles={
        "ALGORITHM": "algorithm",
        "ORDER": "order",
        "BLOCK_C": "tile",
        "FEATURES": "unroll",
        "VECTORS": "unroll",
        "VECTOR": "vector",
        "TAPS": "unroll",
    },
)


def make_inputs(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """`image` [channels, height, width] and `weight` [features, channels, taps_y, taps_x] uniform in -1 to 1, `out`."""
    import torch

    s = case.sizes
    random = torch.Generator().manual_seed(seed)
    image = torch.rand(s["channels"], s["height"], s["width"], generator=random) * 2 - 1
    weight = torch.rand(s["features"], s["channels"], s["taps_y"], s["taps_x"], generator=random) * 2 - 1
    out = torch.full((s["features"], s["height"] - s["taps_y"] + 1, s["width"] - s["taps_x"] + 1), torch.nan)
    return image, weight, out


def reference(image: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """What `torch.nn.functional.conv2d` does without padding, summed in float64."""
    import torch

    return torch.nn.functional.conv2d(image.double(), weight.double()).to(out.dtype)


def work(image: Tensor, weight: Tensor, out: Tensor) -> Work:
    _, channels, taps_y, taps_x = weight.shape
    return Work(
        flops=2.0 * out.numel() * channels * taps_y * taps_x,
        bytes=4.0 * (image.numel() + weight.numel() + out.numel()),
    )


def load(**options: Any) -> Any:
    """The module whose function `conv2d(image, weight, out)` tunes itself; `options` go to `load_inline`."""
    import forecast_autotune as fa

    arguments: dict[str, Any] = {
        "name": "kernel_suite_conv2d",
        "cpp_sources": SOURCES["binding"].read_text(),
        "kernel_sources": SOURCES["kernel"].read_text(),
        "functions": ["conv2d"],
        "signature": "image, weight, out",
        "extra_cflags": CFLAGS,
        "space": SPACE,
        "work": work,
    }
    return fa.load_inline(**{**arguments, **options})


def _case(name: str, channels: int, height: int, width: int, features: int, taps_y: int, taps_x: int) -> Case:
    sizes = {"channels": channels, "height": height, "width": width}
    return Case(name=name, sizes={**sizes, "features": features, "taps_y": taps_y, "taps_x": taps_x})


KERNEL = Kernel(
    name="conv2d",
    space=SPACE,
    cases=(
        _case("first_layer", 3, 118, 118, 64, 7, 7),
        _case("middle_layer", 64, 58, 58, 64, 3, 3),
        _case("last_layer", 256, 16, 16, 256, 3, 3),
        _case("one_by_one", 256, 56, 56, 64, 1, 1),
        _case("plane", 1, 512, 512, 1, 15, 15),  # image processing: one large filter
        _case("odd", 29, 67, 43, 37, 5, 3),
    ),
    corners=(
        _case("one", 1, 1, 1, 1, 1, 1),
        _case("no_larger_than_the_filter", 2, 5, 3, 3, 5, 3),
        _case("narrow", 19, 9, 6, 5, 2, 3),
        _case("just_over_a_tile", 3, 5, 131, 9, 2, 3),
        _case("over_a_block", 17, 7, 35, 11, 3, 1),
        _case("deep", 259, 4, 20, 3, 1, 2),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # Float32 sums of up to 2304 products below 1 were off by at most 4e-5, whatever their order; one product that is
    # lost is off by 0.3 or so.
    rtol=1e-4,
    atol=1e-3,
    sources=SOURCES,
)
