"""Arrays of numbers as text: base64 of their bytes, as the fitted model's file has them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packed(values: NDArray[Any], kind: str) -> str:
    """Numbers as base64, each stored as a numpy type (`<f4`, `u1`)."""
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def unpacked(text: str, kind: str, count: int) -> NDArray[Any]:
    """Numbers from base64.

    Raises:
        ValueError, TypeError: it is none, or there are not so many, or one is not finite.
    """
    import numpy as np

    values = np.frombuffer(base64.b64decode(text, validate=True), dtype=kind)
    if values.size != count or not np.isfinite(values).all():
        raise ValueError(f"{values.size} numbers in the place of {count}, or not all finite")
    return values
