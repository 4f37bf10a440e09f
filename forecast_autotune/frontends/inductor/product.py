"""A product of matrices, and what can be told of a template's tiles for it without compiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.hardware import Hardware
from ...features.launch_features import buffers, describe_call, launch_features

LIBRARIES = "aten::"
"""Before the name of a library's function, what its candidate is called."""

# Of tf32 and of sums of few the library is slower than forecast, up to half as fast (H200).
FORESEEN_ITEMSIZE, LONG_ROW = 2, 130  # bytes of an element; bytes that are multiplied for one of the results
WIDEST = 16  # bytes of one access
SMALL_SIDE, MANY_WAVES = 64, 32  # of a tile, two sides of which make a small one; programs for each unit of the device
MIN_SIDE = 16  # of a tile
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
SCALED_IN_LOOP = "TILE_SIZE_A"  # a parameter of the template that scales block by block: nothing that is described


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A batch of products, (m, k) by (k, n), each operand by rows or by columns; sizes of elements in bytes.

    Attributes:
        fp8: whether it is one of fp8 as was recorded: e4m3, each operand with one scale, no bias, a result of two bytes. Who
            scales by rows calls another function of the library's.
    """

    batch: int
    m: int
    n: int
    k: int
    a_by_rows: bool
    b_by_rows: bool
    itemsize: int
    out_itemsize: int
    tf32: bool = False
    fp8: bool = False
    fast_accum: bool = False


def library_is_foreseen(product: Product) -> bool:
    """Whether forecasts are to be believed where they say that nothing beats the library."""
    is_known = product.fp8 or product.itemsize == FORESEEN_ITEMSIZE
    return is_known and product.k * product.itemsize >= LONG_ROW


def product_features(
    product: Product, configs: Sequence[Mapping[str, Any]], hardware: Hardware
) -> tuple[Mapping[str, float], ...]:
    """The features of configs of a product, in the names of `launch_features`.

    Args:
        configs: knobs; one without tiles is a function of a library, or a template that nothing is known of.
    """
    from .template_kernels import GROUP_M
    from .template_kernels import product as kernel

    p = product
    a = ((p.k, 1) if p.a_by_rows else (1, p.m), (p.m, p.k), p.itemsize)
    b = ((p.n, 1) if p.b_by_rows else (1, p.k), (p.k, p.n), p.itemsize)
    c = ((p.n, 1), (p.m, p.n), p.out_itemsize)
    a_ptr, b_ptr, c_ptr = (
        Sized((p.batch, *shape), (math.prod(shape), *strides), size) for strides, shape, size in (a, b, c)
    )
    arguments = {
        "a_ptr": a_ptr, "b_ptr": b_ptr, "c_ptr": c_ptr, "m": p.m, "n": p.n, "k": p.k,
        "a_row": a[0][0], "a_column": a[0][1], "b_row": b[0][0], "b_column": b[0][1],
        "a_batch": p.m * p.k, "b_batch": p.k * p.n,
        "A_BY_ROWS": p.a_by_rows, "B_BY_ROWS": p.b_by_rows, "ALLOW_TF32": p.tf32, "FAST_ACCUM": p.fast_accum,
    }  # fmt: skip

    def grid(meta: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p.m // meta["BLOCK_M"]) * -(-p.n // meta["BLOCK_N"]), p.batch

    with_tiles = [
        all(isinstance(knobs.get(name), int) for name in TILES) and knobs.get(SCALED_IN_LOOP) is None
        for knobs in configs
    ]
    tiles = [
        {"GROUP_M": GROUP_M, **_stated(knobs), "EVEN_K": p.k % int(knobs["BLOCK_K"]) == 0}
        for knobs, has in zip(configs, with_tiles, strict=True)
        if has
    ]
    features = launch_features(kernel, describe_call(arguments), tiles, grid=grid, hardware=hardware)
    if p.itemsize == 4 and not p.tf32 and hardware.peak_gflops:  # products in full float32 use no matrix units
        slower = tensor_share(hardware)
        features = [{**f, "us_flops": f["us_flops"] * slower} if "us_flops" in f else f for f in features]
    of_tiles = iter(features)
    library = _library(features, p)
    return tuple(
        next(of_tiles) if has else library if str(knobs.get("template", "")).startswith(LIBRARIES) else {}
        for knobs, has in zip(configs, with_tiles, strict=True)
    )


def fits(product: Product, knobs: Mapping[str, Any], hardware: Hardware) -> bool:
    """Whether a template's tiles fit in what memory a block may share; true where that is not known.

    With elements of two bytes each stage holds a tile of both operands: 256 x 128 x 64 in five stages asks for 245,760 bytes
    (H100, Triton 3.6). Before sm_90 the last stage holds none.
    """
    m, n, k, stages = (knobs.get(name) for name in (*TILES, "num_stages"))
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(stages, int)):
        return True
    is_pipelined = -(-product.k // k) >= stages
    is_known = hardware.warp_size > 1 and hardware.shared_bytes > 0 and product.itemsize == 2
    if not is_known or not is_pipelined:
        return True
    return buffers(stages, hardware) * (m + n) * k * product.itemsize <= hardware.shared_bytes


def is_too_small(product: Product, knobs: Mapping[str, Any], hardware: Hardware) -> bool:
    """Whether a template's tiles are so small that the device would run through many waves of them for nothing.

    Not where the result itself is as narrow. By none of 471 recorded products is such a tile the best. Of the exhaustive
    list for a large product it is half, and each candidate costs 0.2 ms to look at.
    """
    m, n = (knobs.get(name) for name in TILES[:2])
    if not (isinstance(m, int) and isinstance(n, int) and hardware.units):
        return False
    small_m, small_n = (min(SMALL_SIDE, max(MIN_SIDE, 1 << (size - 1).bit_length())) for size in (product.m, product.n))
    programs = product.batch * -(-product.m // m) * -(-product.n // n)
    return m * n < small_m * small_n and programs > MANY_WAVES * hardware.units


def tensor_share(hardware: Hardware) -> float:
    """How many times longer products of float32 take on the units for single numbers than on those for matrices."""
    return max(1.0, 0.5 * hardware.peak_tensor_gflops / hardware.peak_gflops)


def _stated(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if value is not None}


_LEAST = ("us_flops", "us_memory", "us_bound", "unique_bytes", "least_flops", "least_bytes")


def _library(of_tiles: Sequence[Mapping[str, float]], product: Product) -> dict[str, float]:
    """A library's function: it moves and computes at least what any config must.

    Its `waste` is how much narrower its accesses are than 16 bytes, by where rows begin: 3 to 6 times the time is seen where
    they begin at odd places (cuBLAS 13, H200, the output of a vocabulary of 50,257).
    """
    least = {name: min(values) for name in _LEAST if (values := [f[name] for f in of_tiles if name in f])}
    if "unique_bytes" in least:
        least["traffic_bytes"] = least["unique_bytes"]
    if "least_flops" in least:
        least["flops"] = least["least_flops"]
    p = product
    pitches = (p.k if p.a_by_rows else p.m, p.n if p.b_by_rows else p.k)
    bytes_apart = [pitch * p.itemsize for pitch in pitches] + [p.n * p.out_itemsize]
    return {**least, "waste": WIDEST / math.gcd(WIDEST, *bytes_apart)}


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor as `describe_call` asks of one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def element_size(self) -> int:
        return self.itemsize
