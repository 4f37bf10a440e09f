"""Whether a candidate computed what the default did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError
from .cells import chunks
from .surroundings import ends_the_program

if TYPE_CHECKING:
    import torch

Check = str | Callable[[Any, Any], object] | None
"""`"allclose"`, `"bitexact"`, None, or a callable of (outputs, the default's outputs), both lists of tensors, that raises
or returns False, alone or anywhere in a tensor, where they disagree."""

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
            no = verdict is False or (_is_truth(verdict) and not bool(verdict.all()))  # type: ignore[attr-defined]
        except (Exception, SystemExit) as err:
            if ends_the_program(err):
                raise
            return f"the check said: {type(err).__name__}: {err}"
        return "the check said no" if no else None
    if len(got) != len(expected):
        return f"produced {len(got)} outputs, the default {len(expected)}"
    for i, (mine, its) in enumerate(zip(got, expected, strict=True)):
        if mine.shape != its.shape or mine.dtype != its.dtype:
            return f"output {i} is {_name(mine)}, the default's {_name(its)}"
        if found := (_not_equal if check == "bitexact" else close)(mine, its):
            return f"output {i} ({_name(mine)}): {found}"
    return None


def _not_equal(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    wrong = int((bits(mine) != bits(its)).sum())
    return f"{wrong} bytes differ" if wrong else None


def close(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    """How a tensor differs from another beyond the rounding of sums done in another order; None if it does not."""
    import torch

    dtype = str(its.dtype).removeprefix("torch.")
    if not (its.is_floating_point() or its.is_complex()):
        return _not_equal(mine, its)
    tolerance = _TOLERANCE.get(dtype, 0.1)  # 8-bit floats: one step is an eighth of the value
    wide = torch.complex128 if its.is_complex() else torch.float64
    flat = mine.reshape(-1), its.reshape(-1)
    squares, count = 0.0, 0
    for (b,) in chunks(flat[1]):
        sizes = b.to(wide).abs()
        sizes = sizes[torch.isfinite(sizes)]
        squares, count = squares + float(sizes.square().sum()), count + sizes.numel()
    scale = math.sqrt(squares / count) if count else 0.0
    wrong, worst = 0, 0.0
    for a, b in ((x.to(wide), y.to(wide)) for x, y in chunks(*flat)):
        different = ~torch.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if found := int(different.sum()):
            error = float((a - b).abs()[different].max())
            wrong, worst = wrong + found, error if math.isnan(error) else max(worst, error)
    if not wrong:
        return None
    return f"{wrong} of {its.numel()} elements differ, by up to {worst:.3g} where {scale:.3g} is usual"


def _is_truth(value: object) -> bool:
    """Whether it is a tensor or an array of truth values, such as `(a == b).all()` is."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.") == "bool"


def _name(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{'x'.join(map(str, tensor.shape))}]"
