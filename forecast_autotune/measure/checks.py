"""Whether a candidate computed what the default did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.module_names import module_name
from ..core.signal_handlers import raised_by_signal_handler
from ..errors import InvalidInputError
from .buffers import CHUNK_BYTES, bits
from .outputs import Outputs

if TYPE_CHECKING:
    import torch

Check = str | Callable[[Any, Any], object] | None
"""`"allclose"`, `"bitexact"`, None, or a callable of (outputs, the default's outputs), both lists of tensors, that raises
or returns False, alone or anywhere in a tensor, where they disagree."""

NAMES = ("allclose", "bitexact")

# Relative to each element and to what is usual in its row: reordering a sum of n terms moves it by about sqrt(n)
# roundings of the largest of them, whatever the element itself is.
_TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 3e-2,
    "complex64": 1e-4,
    "complex128": 1e-9,
}
_MIN_ROW = 16  # elements: fewer tell little of what is usual
_MAX_OF_A_ROW = 1 << 16  # elements from which its scale is taken
_OUTLIER = 100.0  # times the median: such elements say nothing of the others
_FILL = 1000.0  # times the root mean square of the rest: an extreme that repeats is no result but a mask
_BAND = 0.05  # of an extreme: a mask that was added to the values spreads as they do
_FLOOR = 0.01  # of the tensor's scale: no row is taken to be more exact


def validate(check: Check) -> None:
    """Refuse what is no check.

    Raises:
        InvalidInputError: it is none; names what is accepted.
    """
    if check is not None and not callable(check) and check not in NAMES:
        raise InvalidInputError(f"check={check!r}: accepted are {', '.join(map(repr, NAMES))}, a callable, None")


def check_name(check: Check) -> str:
    """What outcomes obtained under a check are kept apart by: its name, that of a callable with its module, or nothing."""
    if check is None or isinstance(check, str):
        return check or ""
    kind = type(check)
    return f"{module_name(check)}.{getattr(check, '__qualname__', kind.__qualname__)}"


def compare(check: Check, mine: Outputs, its: Outputs) -> str | None:
    """How what a candidate produced differs from the default's, in words; None if the check lets it pass.

    A callable decides about values, their types, their strides and whose memory they lie in; what is nested how, what is
    written, whether results stay and what gradients reach must agree in any case.
    """
    if check is None:
        return None
    if unlike := _nested_unlike(mine.form, its.form, "the result"):
        return unlike
    if more := [name for name in mine.written if name not in its.written]:
        return f"wrote to {', '.join(more)}, which the default leaves as it was"
    if fewer := [name for name in its.written if name not in mine.written]:
        return f"left {', '.join(fewer)} as it was, which the default writes"
    if mine.reuses_memory and not its.reuses_memory:
        return "its next call returns the memory of an earlier result, which may change"
    if wrong := disagreement(check, mine.tensors, its.tensors):
        return wrong
    if not callable(check) and (unlike := _placed_unlike(mine.form, its.form)):
        return unlike
    return _gradients_unlike(check, mine, its)


def disagreement(check: Check, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """How a candidate's tensors differ from the default's, in words; None if the check lets them pass."""
    if check is None:
        return None
    if callable(check):
        try:
            verdict = check(list(got), list(expected))
            no = verdict is False or (_is_truth(verdict) and not bool(verdict.all()))  # type: ignore[attr-defined]
        except (Exception, SystemExit) as err:
            if raised_by_signal_handler(err):
                raise
            return f"the check said: {type(err).__name__}: {err}"
        return "the check said no" if no else None
    if len(got) != len(expected):
        return f"produced {len(got)} outputs, the default {len(expected)}"
    for i, (mine, its) in enumerate(zip(got, expected, strict=True)):
        if mine.shape != its.shape or mine.dtype != its.dtype or mine.device != its.device:
            return f"output {i} is {_name(mine)}, the default's {_name(its)}"
        if wrong := (_not_equal if check == "bitexact" else close)(mine, its):
            return f"output {i} ({_name(mine)}): {wrong}"
    return None


def _nested_unlike(mine: Any, its: Any, where: str) -> str | None:
    """How two forms differ in what is nested how, and in what is neither a tensor nor a number."""
    kinds = [form.get("kind", "Tensor") for form in (mine, its)]
    if kinds[0] != kinds[1] or mine.get("value") != its.get("value"):
        words = [form.get("value", kind) for form, kind in zip((mine, its), kinds, strict=True)]
        return f"{where} is {words[0]}, the default's {words[1]}"
    if (keys := mine.get("keys", {}).keys()) != its.get("keys", {}).keys():
        return f"{where} has the keys {', '.join(keys)}, the default's {', '.join(its.get('keys', {}))}"
    parts = [form.get("items", ()) for form in (mine, its)]
    if len(parts[0]) != len(parts[1]):
        return f"{where} has {len(parts[0])} parts, the default's {len(parts[1])}"
    inner = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(*parts, strict=True))]
    inner += [(f"{where}[{key}]", mine["keys"][key], its["keys"][key]) for key in keys]
    return next((unlike for name, a, b in inner if (unlike := _nested_unlike(a, b, name))), None)


def _placed_unlike(mine: Any, its: Any) -> str | None:
    """How the tensors in two forms that are nested alike differ in how they lie in memory, and whether they are followed."""
    for key, words in (
        ("class", "is a {}, the default's a {}"),
        ("layout", "is {}, the default's {}"),
        ("stride", "has the strides {}, the default's {}"),
        ("within", "lies in the memory of {}, the default's of {}"),
        ("shares", "shares memory with output {}, the default's with {}"),
        ("followed", "is followed by autograd: {}, the default's: {}"),
        ("inference", "is of inference mode: {}, the default's: {}"),
    ):
        if mine.get(key) != its.get(key):
            values = [", ".join(map(str, v)) if isinstance(v, list) else v for v in (mine.get(key), its.get(key))]
            return f"output {mine['tensor']} " + words.format(*("none" if v in ("", None) else v for v in values))
    pairs = [*zip(mine.get("items", ()), its.get("items", ()), strict=True)]
    pairs += [(form, its["keys"][key]) for key, form in mine.get("keys", {}).items()]
    return next((unlike for a, b in pairs if (unlike := _placed_unlike(a, b))), None)


_REFUSALS = ("donated buffers", "use_reentrant=False")
"""Words of torch's where a backward pass works, but not with a graph that is retained, or for gradients alone."""


def _gradients_unlike(check: Check, mine: Outputs, its: Outputs) -> str | None:
    if isinstance(its.gradients, str):
        if callable(check) or not any(words in its.gradients for words in _REFUSALS):
            return None  # of a default without a backward pass, nothing follows
        return f"its gradients cannot be compared, for the default's backward pass raised {its.gradients}"
    if isinstance(mine.gradients, str):
        return f"its backward pass raised {mine.gradients}"
    reached = [set(outputs.gradients) for outputs in (mine, its)]
    if reached[0] != reached[1]:
        words = [", ".join(sorted(names)) or "nothing" for names in reached]
        return f"gradients reach {words[0]}, the default's {words[1]}"
    for name, gradient in mine.gradients.items():
        if not callable(check) and (wrong := close(gradient, its.gradients[name])):
            return f"the gradient of {name}: {wrong}"
    return None


def _not_equal(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    wrong = int((bits(mine) != bits(its)).sum())
    return f"{wrong} bytes differ" if wrong else None


def close(mine: torch.Tensor, its: torch.Tensor) -> str | None:
    """How a tensor differs from another beyond the rounding of sums done in another order; None if it does not."""
    import torch

    dtype = str(its.dtype).removeprefix("torch.")
    if not (its.is_floating_point() or its.is_complex()):
        return _not_equal(mine, its)
    if not its.numel():
        return None
    tolerance = _TOLERANCE.get(dtype, 0.1)  # 8-bit floats: one step is an eighth of the value
    wide = torch.complex128 if its.is_complex() else torch.float64
    row = its.shape[-1] if its.ndim > 1 and its.shape[-1] >= _MIN_ROW else its.numel()
    flat = mine.reshape(-1), its.reshape(-1)
    fills = _fills(flat[1])
    rows = flat[1].view(-1, row)
    scale = _scale(flat[1].view(1, -1), fills)
    count = max(1, CHUNK_BYTES // its.itemsize)
    wrong, masked, worst, usual = 0, 0, 0.0, float(scale)
    for first in range(0, len(rows), max(1, count // row)):
        scales = torch.maximum(_scale(rows[first : first + max(1, count // row)], fills), _FLOOR * scale)
        end = min(its.numel(), (first + len(scales)) * row)
        for start in range(first * row, end, count):
            a, b = (t[start : min(start + count, end)].to(wide) for t in flat)
            scale_of = scales[torch.arange(start - first * row, start - first * row + len(a), device=a.device) // row]
            for fill in fills:
                scale_of = torch.where(_near(b, fill), 0.0, scale_of)
            error = (a - b).abs()
            finite = torch.isfinite(a) & torch.isfinite(b)
            alike = (finite & (error <= tolerance * (b.abs() + scale_of))) | (a == b) | (a.isnan() & b.isnan())
            if more := int((~alike).sum()):
                wrong += more
                masked += int((~alike & ~finite).sum())
                worst = max(worst, float(torch.where(finite, error, 0.0).max()))
                usual = float(scale_of[~alike].max())
    if not wrong:
        return None
    of_them = f", {masked} in being infinite or no number" if masked else ""
    return f"{wrong} of {its.numel()} elements differ{of_them}, by up to {worst:.3g} where {usual:.3g} is usual"


def _fills(values: torch.Tensor) -> list[float]:
    """Extremes that stand in a tensor several times, or nearly so, and dwarf the rest, such as the -1e9 of a mask."""
    import torch

    if values.is_complex():
        return []
    sample = _thinned(values.view(1, -1))[0].double()
    sample = sample[torch.isfinite(sample)]
    fills: list[float] = []
    for _ in range(2):
        if not len(sample):
            break
        extreme = sample[sample.abs().argmax()]
        rest = sample[~_near(sample, extreme)]
        if len(sample) - len(rest) < 2 or not len(rest) or extreme.abs() < _FILL * rest.square().mean().sqrt():
            break
        fills.append(float(extreme))
        sample = rest
    return fills


def _near(values: torch.Tensor, fill: Any) -> torch.Tensor:
    """Which values are a fill, or one with something added."""
    return (values - fill).abs() <= _BAND * abs(fill)


def _scale(rows: torch.Tensor, fills: Sequence[float]) -> torch.Tensor:
    """What is usual in each row: the root mean square, fills and outliers aside."""
    import torch

    sample = _thinned(rows).to(torch.complex128 if rows.is_complex() else torch.float64)
    sizes = sample.abs()
    counts = torch.isfinite(sizes) & (sizes > 0)
    for fill in fills:
        counts &= ~_near(sample, fill)
    sizes = torch.where(counts, sizes, math.nan)
    sizes = torch.where(sizes <= _OUTLIER * sizes.nanmedian(dim=1, keepdim=True).values, sizes, math.nan)
    zeros = (sample == 0).sum(dim=1)
    known = sizes.isfinite().sum(dim=1)
    return torch.sqrt(sizes.square().nansum(dim=1) / (known + zeros).clamp(min=1))


def _thinned(rows: torch.Tensor) -> torch.Tensor:
    """Rows with no more elements than it takes to tell what is usual in them."""
    return rows[:, :: -(-rows.shape[1] // _MAX_OF_A_ROW)]


def _is_truth(value: object) -> bool:
    """Whether it is a tensor or an array of truth values, such as `(a == b).all()` is."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.") == "bool"


def _name(tensor: torch.Tensor) -> str:
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}[{'x'.join(map(str, tensor.shape))}]{place}"
