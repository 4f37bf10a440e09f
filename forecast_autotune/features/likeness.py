"""How much times at one tuning key say of another: by hardware above all, then key, program text and toolchain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ..core.hardware import Hardware, Toolchain
from ..core.workload import Workload

SOURCES = 8  # recordings that a forecast reads, the most alike first

SAME_PRODUCT, SAME_VENDOR, OTHER = 1.0, 0.2, 0.02  # weights of recordings by hardware
KEY_HALVES_PER = 2.0  # octaves between two sizes over which a recording's weight halves (suite, sizes left out)


class Keyed(Protocol):
    """What belongs to a workload on some hardware under a toolchain: a job, a recording, a store's tuning key."""

    @property
    def workload(self) -> Workload: ...

    @property
    def hardware(self) -> Hardware: ...

    @property
    def toolchain(self) -> Toolchain: ...


def ranked(job: Keyed, known: Sequence[Keyed]) -> list[tuple[float, int]]:
    """How much each of some recordings, or of their tuning keys, counts for a job, and its place among them.

    What counts most comes first; of what counts alike, what stands first.
    """
    return sorted(((likeness(job, each), place) for place, each in enumerate(known)), key=lambda each: -each[0])


def likeness(job: Keyed, other: Keyed) -> float:
    """How much a recording counts for a job: hardware above all, then key, program text and toolchain."""
    return likeness_at_any_size(job, other) * _key_likeness(job.workload.key, other.workload.key)


def likeness_at_any_size(job: Keyed, other: Keyed) -> float:
    """How much a recording would count for a job if both had the same key."""
    return (
        hardware_likeness(job.hardware, other.hardware)
        * (1.0 if job.workload.program.digest == other.workload.program.digest else 0.5)
        * (1.0 if job.toolchain.digest == other.toolchain.digest else 0.8)
    )


def hardware_likeness(a: Hardware, b: Hardware) -> float:
    """`SAME_PRODUCT`, `SAME_VENDOR` or `OTHER`."""
    if a.name == b.name and a.capability == b.capability:
        return SAME_PRODUCT
    return SAME_VENDOR if a.kind == b.kind else OTHER


def _key_likeness(a: Mapping[str, object], b: Mapping[str, object]) -> float:
    """Halved for every two octaves between the numbers of two keys, and for each other difference; at least 1/64."""
    mine, theirs = dict(_numbers(a)), dict(_numbers(b))
    octaves = 0.0
    for name in mine.keys() | theirs.keys():
        x, y = mine.get(name), theirs.get(name)
        if x == y:
            continue
        if isinstance(x, (int, float)) and isinstance(y, (int, float)) and x > 0 and y > 0:
            octaves += abs(math.log2(x) - math.log2(y))
        else:
            octaves += KEY_HALVES_PER
    return float(0.5 ** min(octaves / KEY_HALVES_PER, 6.0))


def _numbers(key: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The entries of a key; of a tensor its type and extents, for strides mostly follow from these."""
    for name, value in key.items():
        if isinstance(value, Mapping) and isinstance(shape := value.get("shape"), Sequence):
            yield f"{name} dtype", value.get("dtype")
            yield from ((f"{name} {i}", extent) for i, extent in enumerate(shape))
        elif name == "given constexprs" and isinstance(value, Mapping):
            yield from value.items()
        else:
            yield name, value
