"""2-D convolution of several images in float32 on an NVIDIA GPU: read through the cache, or through shared memory.

What is fast depends on the shape more than elsewhere: many features reward reading a pixel once for several of them, a
large filter on one plane rewards a tile that many threads share, and a narrow image leaves a wide block idle.
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
        "THREADS_X": [8, 16, 32, 64],
        "THREADS_Y": [2, 4, 8, 16],
        "PIXELS": [1, 2, 4],
        "FEATURES": [1, 2, 4, 8],
        "CHANNELS": [1, 2, 4, 8],
    },
    constraints=[
        # Two warps at the least; of more than 512 threads, few have the registers for their sums.
        lambda THREADS_X, THREADS_Y: 64 <= THREADS_X * THREADS_Y <= 512,
        # What a source does not read stays at its first value.
        lambda source, CHANNELS: source == "tile" or CHANNELS == 1,
    ],
    # A warp to a row of 32 pixels, eight sums a thread, and a tile of some 12 KiB with filters of 3 x 3.
    default={"source": "tile", "THREADS_X": 32, "THREADS_Y": 8, "PIXELS": 2, "FEATURES": 4, "CHANNELS": 4},
    roles={
        "source": "algorithm",
        "THREADS_X": "threads",
        "THREADS_Y": "threads",
        "PIXELS": "unroll",
        "FEATURES": "unroll",
        "CHANNELS": "tile",
    },
)


def make_inputs(case: Case, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """`image` [images, channels, height, width], `weight` [features, channels, taps_y, taps_x], in -1 to 1, and `out`."""
    import torch

    s = case.sizes
    random = torch.Generator(device).manual_seed(seed)
    image = torch.rand(s["images"], s["channels"], s["height"], s["width"], generator=random, device=device) * 2 - 1
    weight = torch.rand(s["features"], s["channels"], s["taps_y"], s["taps_x"], generator=random, device=device) * 2 - 1
    rows, columns = s["height"] - s["taps_y"] + 1, s["width"] - s["taps_x"] + 1
    return image, weight, torch.full((s["images"], s["features"], rows, columns), torch.nan, device=device)


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
    """The module whose function `cuda_conv2d(image, weight, out)` tunes itself; `options` go to `load_inline`."""
    own = {"signature": "image, weight, out", "space": SPACE, "work": work}
    return load_cuda("cuda_conv2d", SOURCES, **{**own, **options})


def _case(name: str, images: int, channels: int, height: int, width: int, features: int, y: int, x: int) -> Case:
    sizes = {"images": images, "channels": channels, "height": height, "width": width}
    return Case(name=name, sizes={**sizes, "features": features, "taps_y": y, "taps_x": x})


KERNEL = Kernel(
    name="cuda_conv2d",
    space=SPACE,
    cases=(
        _case("first_layer", 32, 3, 230, 230, 64, 7, 7),
        _case("middle_layer", 32, 64, 58, 58, 64, 3, 3),
        _case("last_layer", 32, 512, 9, 9, 512, 3, 3),
        _case("one_by_one", 32, 256, 56, 56, 64, 1, 1),
        _case("plane", 1, 1, 4096, 4096, 1, 15, 15),  # image processing: one large filter
        _case("odd", 3, 29, 67, 43, 37, 5, 3),
    ),
    corners=(
        _case("one", 1, 1, 1, 1, 1, 1, 1),
        _case("nothing_to_write", 0, 2, 4, 4, 3, 2, 2),
        _case("no_larger_than_the_filter", 2, 2, 5, 3, 3, 5, 3),
        _case("narrow", 2, 5, 9, 6, 5, 2, 3),
        _case("just_over_a_block", 1, 3, 18, 68, 9, 2, 3),
        _case("more_channels_than_fit", 1, 7, 30, 27, 3, 25, 21),
    ),
    make_inputs=make_inputs,
    reference=reference,
    work=work,
    load=load,
    # Sums of up to 4608 products below 1 wander some 20 away from zero and are off by 4e-5 or so; one product that is
    # lost is off by 0.3 or so.
    rtol=1e-4,
    atol=1e-3,
    sources=SOURCES,
)
