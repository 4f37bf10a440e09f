"""What a recorded product is made of: its elements, and the tiles that max-autotune tries: blocks, num_stages, num_warps."""

from __future__ import annotations

Tile = tuple[int, int, int, int, int]

# How a recorded product's elements are called. fp8 is e4m3, its result bf16; of `fp8-fast` sums may be held in fewer bits.
FP8, FP8_FAST = "fp8", "fp8-fast"
_BYTES = {"fp32": 4, "tf32": 4, FP8: 1, FP8_FAST: 1}


def itemsize(dtype: str) -> int:
    """Bytes of an element of the operands."""
    return _BYTES.get(dtype, 2)


def is_fp8(dtype: str) -> bool:
    """Whether a product is one of fp8."""
    return dtype in (FP8, FP8_FAST)


def short_list(dtype: str) -> tuple[Tile, ...]:
    """The tiles that max-autotune tries of a product."""
    return _OF_FP8 if is_fp8(dtype) else _OF_OTHERS


# torch 2.13; 2.11 has one fewer.
_OF_OTHERS: tuple[Tile, ...] = (
    (32, 32, 16, 1, 2), (32, 32, 128, 2, 4), (32, 64, 32, 5, 8), (64, 32, 32, 5, 8), (64, 32, 128, 5, 4),
    (64, 64, 16, 2, 4), (64, 64, 32, 2, 4), (64, 64, 64, 3, 8), (64, 64, 128, 5, 4), (64, 128, 32, 3, 4),
    (64, 128, 32, 4, 8), (64, 128, 64, 3, 4), (64, 128, 128, 4, 4), (128, 64, 32, 3, 4), (128, 64, 32, 4, 8),
    (128, 128, 32, 2, 8), (128, 128, 32, 3, 4), (128, 128, 64, 3, 4), (128, 128, 64, 5, 8), (128, 128, 128, 4, 8),
    (128, 256, 64, 4, 8),
)  # fmt: skip

_OF_FP8: tuple[Tile, ...] = (  # torch 2.13
    (128, 256, 32, 3, 8), (256, 128, 32, 3, 8), (256, 64, 32, 4, 4), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4), (64, 256, 128, 4, 4), (128, 128, 128, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4), (64, 32, 64, 5, 2),
    *(
        (m, n, k, stages, 2 if n <= 64 else 4)
        for stages in (2, 3, 4, 5, 6) for m in (16, 32) for k in (32, 64) for n in (32, 64, 128, 256)
    ),
    (64, 16, 256, 5, 4), (64, 32, 256, 5, 4), (64, 128, 128, 2, 4), (64, 128, 128, 3, 4), (128, 128, 128, 2, 4),
    (128, 256, 128, 4, 8), (256, 128, 128, 2, 4), (256, 128, 128, 2, 8),
)  # fmt: skip
