"""Counts: a kernel's model evaluated for one config, as what an average program of the launch does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kernel_model import KernelModel
from .kernel_walk.notes import Access

SAMPLED = (0.29, 0.71)  # programs looked at, as places along each axis of the grid: their mean is that of the diagonal


@dataclass(frozen=True, slots=True)
class CountedAccess:
    """An access of the model with its numbers.

    Attributes:
        each: elements at a time.
        times: how often an average program makes it.
        reach: different elements that all programs together can reach by it; infinite where that is unknown.
    """

    access: Access
    each: float
    times: float
    reach: float


@dataclass(frozen=True, slots=True)
class CountedDot:
    """A product of the model with its numbers; `element_bytes` is 0 where it is unknown."""

    m: float
    n: float
    k: float
    element_bytes: float
    times: float


@dataclass(slots=True)
class Counts:
    """What an average program of a launch does."""

    accesses: list[CountedAccess] = field(default_factory=list)
    dots: list[CountedDot] = field(default_factory=list)
    operations: float = 0.0  # by elements, products aside
    even: bool = True  # whether the programs looked at do the same
    sure: bool = True  # whether it depends on no data

    @property
    def flops(self) -> float:
        """Of all products."""
        return sum(2 * d.m * d.n * d.k * d.times for d in self.dots)


def count(
    model: KernelModel, numbers: Mapping[str, Any], grid: Sequence[float] | None, sizes: Mapping[str, float]
) -> tuple[Counts, Counts]:
    """What is done, as far as it can be told, and the least of it.

    They differ where loops or branches depend on data: these are taken to run as often as it takes all programs together to
    reach each element of what they touch once, and at the least never.

    Args:
        numbers: arguments and knobs by name.
        grid: extents; None where they are unknown.
        sizes: elements of each tensor.
    """
    unsure = _Unsure()
    found = _counted(model, numbers, grid, unsure)
    if not unsure.asked:
        return found, found
    if grid is not None:
        programs = math.prod(grid)
        for name in [r for r in model.repeats if r in unsure.asked]:
            unsure.told[name] = _needed_repeats(name, found, programs, sizes)
            found = _counted(model, numbers, grid, unsure)
    least = _counted(model, numbers, grid, _Unsure(default=0.0))
    found.sure = least.sure = False
    return found, least


@dataclass(slots=True)
class _Unsure:
    """What a model asks for the repeats of loops and branches that depend on data."""

    default: float = 1.0
    told: dict[str, float] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def __call__(self, name: str) -> float:
        self.asked.add(name)
        return self.told.get(name, self.default)


def _needed_repeats(name: str, counts: Counts, programs: float, sizes: Mapping[str, float]) -> float:
    """How often a loop or branch has to run for each tensor in it to be reached in full; 1 where it touches none."""
    needed = [
        size / (programs * a.each * a.times)
        for a in counts.accesses
        if name in a.access.repeats and a.each * a.times > 0 and (size := sizes.get(a.access.base or ""))
    ]
    whole = max(needed, default=1.0)
    return min(whole, 1.0) if name.startswith("_if") else whole


def _counted(model: KernelModel, numbers: Mapping[str, Any], grid: Sequence[float] | None, unsure: _Unsure) -> Counts:
    places = SAMPLED if grid is not None and model.by_program else SAMPLED[:1]
    samples = [_evaluated(model, {**numbers, "late": i}, grid, place, unsure) for i, place in enumerate(places)]
    share = 1.0 / len(samples)
    counts = Counts()
    for access in model.accesses:
        each = _mean(samples, access.elements)
        if each is None:
            continue
        times = sum(_times(values, access.repeats) for values in samples) * share
        counts.accesses.append(CountedAccess(access, each, times, each * _spread(access, samples, grid)))
    for dot in model.dots:
        m, n, k = (_mean(samples, side) for side in (dot.m, dot.n, dot.k))
        if m is None or n is None or k is None:
            continue
        each_times = [_times(values, dot.repeats) for values in samples]
        counts.even = counts.even and len(set(each_times)) == 1
        element = _mean(samples, dot.element) if dot.element else None
        counts.dots.append(CountedDot(m, n, k, element or 0.0, sum(each_times) * share))
    for (elements, repeats), operations in model.arithmetic.items():
        each = _mean(samples, elements)
        if each is not None:
            counts.operations += each * operations * share * sum(_times(values, repeats) for values in samples)
    return counts


def _evaluated(
    model: KernelModel, numbers: Mapping[str, Any], grid: Sequence[float] | None, place: float, unsure: _Unsure
) -> dict[str, Any]:
    """All numbers of one program, by name."""
    values = {**numbers, "unsure": unsure}
    for axis, extent in enumerate(grid or ()):
        values[f"grid{axis}"], values[f"pid{axis}"] = int(extent), int(extent * place)
    if model.code is not None:
        exec(model.code, _FUNCTIONS, values)  # noqa: S102  # our own expressions
    return values


def _times(values: Mapping[str, Any], repeats: Sequence[str]) -> float:
    times = 1.0
    for name in repeats:
        times *= values.get(name, 1.0)
    return times


def _mean(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    total = 0.0
    for values in samples:
        value = values.get(name) if name[0] not in _DIGITS else int(name)
        if not isinstance(value, (int, float)):
            return None
        total += value
    return total / len(samples)


def _spread(access: Access, samples: Sequence[Mapping[str, Any]], grid: Sequence[float] | None) -> float:
    """At how many places an access is made, by all programs together."""
    spread = 1.0
    for repeat in access.repeats:
        if repeat in access.varies or not repeat.startswith("_for"):
            spread *= sum(values.get(repeat, 1.0) for values in samples) / len(samples)
    for axis in access.varies:
        if axis.startswith("grid"):
            at = int(axis[4:])
            spread *= grid[at] if grid is not None and at < len(grid) else math.inf
    return spread


def _cdiv(a: float, b: float) -> float:
    return -(-a // b)


def _trips(start: float, stop: float, step: float) -> float:
    return max(0.0, math.ceil((stop - start) / step))


def _middle(start: int, trips: float, step: int, late: int) -> int:
    """The counter of a loop in the middle of its way: before it for one program, behind it for the other."""
    return start + step * ((int(trips) - 1 + late) // 2)


_DIGITS = "0123456789"
_FUNCTIONS: dict[str, Any] = {
    "__builtins__": {"Exception": Exception},
    "cdiv": _cdiv,
    "trips": _trips,
    "middle": _middle,
    "min": min,
    "max": max,
}
