"""The kind of a kernel, by what is told of its launches: forecasts are better of some kinds than of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

KINDS = ("matmul-like", "attention-like", "accumulating", "looping", "one tile each", "not described")
"""By what a program does: products and little else (matmul, mixture of experts); products with arithmetic between
(attention, chunked recurrences); atomic additions; one tile after the other without products (long rows, scans); one tile
(elementwise, gather, short rows, quantisation)."""

ARITHMETIC_BETWEEN = 0.004  # operations by elements for each of products: attention has 0.014 to 0.024, swiglu 0.001
SEVERAL_TILES = 8.0  # bytes loaded for each element of the largest tile: layer_norm in one go has 6


def kernel_kind(static_features: Iterable[Mapping[str, float]]) -> str:
    """One of `KINDS`, by the first config that is described.

    Args:
        static_features: of each config, as `Job.static_features`.
    """
    features = next((each for each in static_features if each), None)
    if features is None:
        return "not described"
    flops, tile = features.get("flops", 0.0), features.get("tile_elements", 0.0)
    if flops > 0:
        between = features.get("elementwise", 0.0) / flops
        return "matmul-like" if between < ARITHMETIC_BETWEEN else "attention-like"
    if features.get("atomic_bytes", 0.0) > 0:
        return "accumulating"
    return "looping" if tile > 0 and features.get("loaded_bytes", 0.0) > SEVERAL_TILES * tile else "one tile each"
