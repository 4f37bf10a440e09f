"""Counts: a kernel's model evaluated for one config, as what an average program of the launch does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kernel_model import KernelModel
from .kernel_walk.notes import Access
from .kernel_walk.symbols import WHOLE

SECTOR_BYTES = 32  # what a GPU fetches at least (CUDA best practices guide, coalesced access)

# Programs looked at, as places along the axes of the grid: in pairs about the middle, so that what grows evenly is counted
# right, and at odd places, since a program's number may hold several coordinates.
MAX_BITS = 64  # of a shift, and the largest whole exponent: what a kernel computes with has no more

# Programs looked at beside them where these pass a loop over, as that over a row that ends within its first part: the first
# along the first axis.
FIRST = 32
SAMPLED = (
    (0.29, 0.71, 0.41),
    (0.71, 0.29, 0.59),
    (0.06, 0.41, 0.94),
    (0.94, 0.59, 0.06),
    (0.41, 0.94, 0.71),
    (0.59, 0.06, 0.29),
)


@dataclass(frozen=True, slots=True)
class CountedAccess:
    """An access of the model with its numbers.

    Attributes:
        each: elements at a time.
        times: how often an average program makes it.
        reach: different elements that all programs together can reach by it; infinite where that is unknown.
        width: elements that follow one another where a compiler knows it.
        axes: elements along each axis of the block, and from one to the next; None where that is unknown.
        unrolled: trips of its loop that are made one.
    """

    access: Access
    each: float
    times: float
    reach: float
    width: float
    axes: Sequence[tuple[float, float]] | None
    unrolled: float

    def sector_factor(self, element_bytes: float) -> float:
        """Bytes of the memory sectors that hold the block against the block's own; 1 where that is unknown.

        Neighbours nearer than a sector share it, and what lies between them is taken to be used by the program's next
        access. Where in its sector the first one lies is not asked.
        """
        if self.axes is None:
            return 1.0
        sector = SECTOR_BYTES / element_bytes  # in elements
        return max(1.0, sector / (1.0 + sum((n - 1.0) * max(1.0, step) for n, step in self.axes if step < sector)))


@dataclass(frozen=True, slots=True)
class CountedDot:
    """A product of the model with its numbers; `element_bytes` is 0 where it is unknown.

    `serial` is how many of an average program's wait for the one before; 0 where none does.
    """

    m: float
    n: float
    k: float
    element_bytes: float
    times: float
    serial: float


@dataclass(slots=True)
class Counts:
    """What an average program of a launch does."""

    accesses: list[CountedAccess] = field(default_factory=list)
    dots: list[CountedDot] = field(default_factory=list)
    operations: float = 0.0  # by elements, products aside
    held_bytes: float = 0.0  # that lie in registers at one time, the most there are
    flops: float = 0.0  # of all products
    even: bool = True  # whether the programs looked at do the same


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
    places: Sequence[Sequence[float]] = SAMPLED if grid is not None and model.by_program else SAMPLED[:1]
    samples = [_evaluated(model, {**numbers, "late": i % 2}, grid, place, unsure) for i, place in enumerate(places)]
    values = samples[0] if len(samples) == 1 else _Mean(samples)
    if grid and any(not any(each.get(name) for each in samples) for name in model.uneven):
        firsts = [((i + 0.5) / grid[0], *SAMPLED[0][1:]) for i in range(min(FIRST, int(grid[0])))]
        values = _Mean(samples, [_evaluated(model, {**numbers, "late": 0}, grid, place, unsure) for place in firsts])
    counts = Counts()
    for access in model.accesses:
        each, times = values.get(access.elements), values.get(access.times)
        if each is not None and times is not None:
            reach, width = values.get(access.reach, math.inf), samples[0].get(access.width, 1.0)
            unrolled = values.get(model.unrolled.get(access.loop, ""), 1.0)
            axes = _axes(access, samples[0])
            counts.accesses.append(CountedAccess(access, each, times, reach, width, axes, unrolled))
    for dot in model.dots:
        m, n, k, times = values.get(dot.m), values.get(dot.n), values.get(dot.k), values.get(dot.times)
        if m is None or n is None or k is None or times is None:
            continue
        element = values.get(dot.element, 0.0) if dot.element else 0.0
        counts.dots.append(CountedDot(m, n, k, element, times, times if dot.loop in model.serial else 0.0))
        counts.flops += 2 * m * n * k * times
        counts.even = counts.even and len({each.get(dot.times) for each in samples}) == 1
    for (elements, often), operations in model.arithmetic.items():
        each, times = values.get(elements), values.get(often)
        if each is not None and times is not None:
            counts.operations += each * times * operations
    for held, often in model.held:
        if values.get(often):
            counts.held_bytes = max(counts.held_bytes, values.get(held, 0.0))
    return counts


def _axes(access: Access, values: Mapping[str, Any]) -> list[tuple[float, float]] | None:
    """`CountedAccess.axes`; an axis of one element has no step."""
    if access.axes is None:
        return None
    axes = [(n, values.get(step)) for extent, step in access.axes if (n := values.get(extent, math.inf)) > 1]
    return [(n, abs(step)) for n, step in axes if step is not None] if all(s is not None for _, s in axes) else None


@dataclass(frozen=True, slots=True)
class _Mean:
    """Of the numbers of several programs; one that any of them does not know is unknown, where all are 0 others count."""

    samples: Sequence[Mapping[str, float]]
    others: Sequence[Mapping[str, float]] = ()

    def get(self, name: str, missing: float | None = None) -> Any:
        total = 0.0
        for values in self.samples:
            value = values.get(name)
            if value is None:
                return missing
            total += value
        if not total and self.others:
            return _Mean(self.others).get(name, missing)
        return total / len(self.samples)


def _evaluated(
    model: KernelModel,
    numbers: Mapping[str, Any],
    grid: Sequence[float] | None,
    places: Sequence[float],
    unsure: _Unsure,
) -> dict[str, Any]:
    """All numbers of one program, by name."""
    values = {**numbers, "unsure": unsure}
    for axis, (extent, place) in enumerate(zip(grid or (), places, strict=False)):
        values[f"grid{axis}"], values[f"pid{axis}"] = int(extent), int(extent * place)
    if model.code is not None:
        exec(model.code, _FUNCTIONS, values)  # noqa: S102  # our own expressions
    return values


def _cdiv(a: float, b: float) -> float:
    return -(-a // b)


def _power(base: float, exponent: float) -> float:
    power: float = base**exponent if abs(exponent) <= MAX_BITS else float(base) ** exponent
    return power


def _shifted(value: int, bits: int) -> int:
    if bits > MAX_BITS:
        raise OverflowError(f"a shift by {bits} bits")
    return value << bits


def _trips(start: float, stop: float, step: float) -> float:
    return max(0.0, math.ceil((stop - start) / step))


def _multiple(number: int) -> int:
    """The greatest power of two, up to `WHOLE`, that divides a number."""
    return min(WHOLE, number & -number) if number else WHOLE


def _told_multiple(value: Any) -> int:
    """What Triton tells its compiler of an argument: that 16 divides it, or nothing; of memory that it does."""
    return WHOLE if value is True or (type(value) is int and value % WHOLE == 0) else 1


def _middle(start: int, trips: float, step: int, late: int) -> int:
    """The counter of a loop in the middle of its way: before it for one program, behind it for the other."""
    return start + step * ((int(trips) - 1 + late) // 2)


_FUNCTIONS: dict[str, Any] = {
    "__builtins__": {"Exception": Exception},
    "cdiv": _cdiv,
    "trips": _trips,
    "power": _power,
    "shifted": _shifted,
    "middle": _middle,
    "multiple": _multiple,
    "told_multiple": _told_multiple,
    "min": min,
    "max": max,
}
