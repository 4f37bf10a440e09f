"""Whether a candidate computed what the default did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError

if TYPE_CHECKING:
    import torch

Check = str | Callable[[Any, Any], object] | None
"""`"allclose"`, `"bitexact"`, None, or a callable of (outputs, the default's outputs), both lists of tensors, that raises
or returns False where they disagree."""

NAMES = ("allclose", "bitexact")

# Relative to each element and to the root mean square of its tensor: reordering a sum of n terms moves it by about
# sqrt(n) roundings of the largest of them, whatever the element itself is.
_TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 3e-2,
    "complex64": 1e-4,
    "complex128": 1e-9,
}


def validate(check: Check) -> None:
    """Raises:
    InvalidInputError: it is no check.
    """
    if check is not None and not callable(check) and check not in NAMES:
        raise InvalidInputError(f"check={check!r}: accepted are {', '.join(map(repr, NAMES))}, a callable, None")


def check_name(check: Check) -> str:
    """What outcomes obtained under a check are kept apart by: its name, that of a callable with its module, or nothing."""
    if check is None or isinstance(check, str):
        return check or ""
    kind = type(check)
    return f"{getattr(check, '__module__', kind.__module__)}.{getattr(check, '__qualname__', kind.__qualname__)}"


def disagreement(check: Check, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """How a candidate's outputs differ from the default's, in words; None if the check lets them pass."""
    if check is None:
        return None
    if callable(check):
        try:
            verdict = check(list(got), list(expected))
        except Exception as err:
            return f"the check said: {type(err).__name__}: {err}"
        return "the check said no" if verdict is False else None
    if len(got) != len(expected):
        return f"produced {len(got)} outputs, the default {len(expected)}"
    for i, (mine, its) in enumerate(zip(got, expected, strict=True)):
        if mine.shape != its.shape or mine.dtype != its.dtype:
            return f"output {i} is {_name(mine)}, the default's {_name(its)}"
        if found := (_not_equal if check == "bitexact" else _not_close)(mine, its):
            return f"output {i} ({_name(mine)}): {found}"
    return None


def _not_equal(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    wrong = int((bits(mine) != bits(its)).sum())
    return f"{wrong} bytes differ" if wrong else None


def _not_close(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    import torch

    dtype = str(its.dtype).removeprefix("torch.")
    if not (its.is_floating_point() or its.is_complex()):
        return _not_equal(mine, its)
    tolerance = _TOLERANCE.get(dtype, 0.1)  # 8-bit floats: one step is an eighth of the value
    wide = torch.complex128 if its.is_complex() else torch.float64
    a, b = mine.to(wide).reshape(-1), its.to(wide).reshape(-1)
    finite = b.abs()[torch.isfinite(b.abs())]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    same = torch.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    wrong = int((~same).sum())
    if not wrong:
        return None
    error = (a - b).abs()[~same]
    return f"{wrong} of {b.numel()} elements differ, by up to {float(error.max()):.3g} where {scale:.3g} is usual"


def _name(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{'x'.join(map(str, tensor.shape))}]"
