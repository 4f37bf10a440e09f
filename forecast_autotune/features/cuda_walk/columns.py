"""A CUDA launch in the names of `launch_features`: what was counted for a sample of threads, as bytes, flops and times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.hardware import REGISTERS_PER_BLOCK, WARP_SIZE, Hardware
from ..launch_features import L2_FACTOR, occupancy
from .machine import Access
from .sampled_threads import LOOPS, OCTAVES, WARP, SampledThreads
from .world import Cleared, Launch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SECTOR, LINE, WORD, BANKS = (
    32,
    128,
    4,
    32,
)  # bytes of a piece of memory, of a line of L1, of a bank; banks of shared memory
LANES = 128  # of a unit, each of which multiplies and adds once a cycle (CUDA programming guide, sm_80 to sm_90)
SCHEDULERS = 4  # of a unit, each of which issues an instruction for a warp every cycle
BASE_REGISTERS = 24  # addresses and counters of a thread, beside its arrays
# From asking for something to having it: 0.3 to 1.4 and 0 to 0.06 rank configs about alike (H200, 20 spaces).
MEMORY_US, L1_US = 0.5, 0.03
BLOCK_US = 0.04  # of a unit, to begin a block and to end it (the same: 0.04 and 0.08 are alike)
MANY_WAVES = 4  # beyond, blocks are no longer in step
L1_BYTES = 192 * 1024  # of a unit, of what lies beside shared memory


@dataclass(slots=True)
class _Site:
    """An access of the text, by what it takes of a block."""

    access: Access
    each: float  # executions by a thread, on average
    warp_each: float  # by a warp that has any thread there
    sectors: float  # of a block, each time anew
    cycles: float  # of a unit's path to L1 and shared memory, for a block
    reach: float  # sectors of a block, each once
    in_trip: float  # executions by a thread in a trip of the innermost loop that is not unrolled
    trips: float  # of the loops around that are not unrolled
    active: float  # share of the threads around that are there

    @property
    def is_load(self) -> bool:
        return self.access.kind == "load"


def columns_of(launch: Launch | Cleared, hardware: Hardware | None) -> dict[str, float]:
    """The features of one launch; see `launch_features` for the names."""
    bandwidth = hardware.bandwidth_gb_per_s * 1e3 if hardware is not None else 0.0  # bytes per microsecond
    if isinstance(launch, Cleared):
        cleared = {"traffic_bytes": launch.size, "unique_bytes": launch.size}
        return {**cleared, "us_memory": launch.size / bandwidth, "us_bound": 0.0} if bandwidth else cleared
    counts, threads = launch.counts, float(launch.threads.threads)
    programs = float(launch.threads.blocks)
    sites = _sites(launch)
    memory = [site for site in sites if site.access.memory.space == "global"]
    features: dict[str, float] = {"threads": threads, "programs": programs, "num_stages": float(counts.stages)}
    shared = sum(counts.shared.values()) + launch.dynamic_bytes
    features["shared_bytes"] = shared
    held = BASE_REGISTERS + counts.local_bytes / WORD
    features["registers"] = min(held, REGISTERS_PER_BLOCK / threads)
    features["flops"], features["elementwise"] = 0.0, counts.operations * threads * programs
    if hardware is not None and hardware.units > 0:
        occupancy(features, hardware, shared)
    resident = features.get("blocks_per_unit", 1.0)
    loads = _loads_of_block(memory, resident)
    moved = [site for site in memory if not site.is_load]
    features["loaded_bytes"] = sum(loads.values())
    features["stored_bytes"] = sum(s.each * threads * s.access.width for s in moved)
    traffic = features["loaded_bytes"] + SECTOR * sum(s.sectors for s in moved)
    features["traffic_bytes"] = traffic * programs
    if any(s.access.kind == "atomic" for s in moved):
        atomic = [s for s in moved if s.access.kind == "atomic"]
        features["atomic_bytes"] = sum(s.each * s.access.width for s in atomic) * threads * programs
    _add_tiles(features, memory, counts.stages, resident)
    touched = _touched(memory, threads, programs, is_sure=False)
    sure = _touched(memory, threads, programs, is_sure=True)
    features["unique_bytes"] = sum(touched)
    features["least_bytes"] = sum(sure)
    features["least_flops"] = 0.0
    if features["loaded_bytes"] + features["stored_bytes"]:
        everything = (features["loaded_bytes"] + features["stored_bytes"]) * programs
        features["flops_per_byte"] = features["elementwise"] / everything
    if hardware is not None and hardware.units > 0 and hardware.peak_gflops and bandwidth:
        _add_times(features, hardware, sites, touched, sure)
    return features


def _loads_of_block(memory: Sequence[_Site], resident: float) -> dict[Any, float]:
    """Bytes that a block fetches past L1, by memory and way to walk through it.

    What several places of the text read in the same way is read once where L1 holds it.
    """
    found: dict[Any, float] = {}
    fits = SECTOR * sum(s.reach for s in memory if s.is_load) * resident <= L1_BYTES
    for number, site in enumerate(s for s in memory if s.is_load):
        fetched = SECTOR * (min(site.reach, site.sectors) if fits else site.sectors)
        offset = site.access.offset
        same = (id(site.access.memory), float(offset[-1]) if hasattr(offset, "shape") else offset) if fits else number
        found[same] = max(found.get(same, 0.0), fetched)
    return found


def _add_tiles(features: dict[str, float], memory: Sequence[_Site], stages: int, resident: float) -> None:
    """Add what a thread has at once, and what is on its way."""
    threads = features["threads"]
    if not memory:
        return
    most = max(s.in_trip * s.access.width / WORD for s in memory)
    features["per_thread"], features["tile_elements"] = most, most * threads
    features["trips"] = max(memory, key=lambda s: s.each * s.access.width).trips
    asked = sum(s.each * s.access.width for s in memory)
    features["access_bytes"] = asked / max(1e-9, sum(s.each for s in memory))
    ahead: defaultdict[int, float] = defaultdict(float)
    for site in memory:
        if site.is_load:
            around = [loop for loop in site.access.loops if not loop.is_unrolled]
            depth = stages - 1 if site.access.is_async else 1
            ahead[id(around[-1]) if around else 0] += site.in_trip * site.active * site.access.width * max(1, depth)
    features["in_flight_bytes"] = max(ahead.values(), default=0.0) * threads * resident


def _touched(memory: Sequence[_Site], threads: float, programs: float, *, is_sure: bool) -> tuple[float, float]:
    """Bytes of all memory that is read, and that is written, each once; those alone that no data tells."""
    read: defaultdict[int, float] = defaultdict(float)
    written: defaultdict[int, float] = defaultdict(float)
    sizes: dict[int, float] = {}
    for site in memory:
        access = site.access
        if is_sure and (not access.is_sure or access.offset is None):
            continue
        reach = min(site.reach * SECTOR, site.each * access.width * threads) * programs
        if is_sure:
            reach = min(reach, _span(site))
        key = id(access.memory)
        sizes[key] = access.memory.size or math.inf
        if access.kind != "load":
            written[key] = max(written[key], reach)
        elif key not in written:  # else it is still in L2
            read[key] = max(read[key], reach)

    def total(by: Mapping[int, float]) -> float:
        return sum(min(sizes[k], n) for k, n in by.items())

    return total(read), total(written)


def _add_times(
    features: dict[str, float],
    hardware: Hardware,
    sites: Sequence[_Site],
    touched: tuple[float, float],
    sure: tuple[float, float],
) -> None:
    """Times in microseconds: estimates of computing and of moving, and a bound from below."""
    programs, threads = features["programs"], features["threads"]
    rounds = programs / hardware.units
    idle = math.ceil(rounds) / rounds
    bandwidth = hardware.bandwidth_gb_per_s * 1e3
    cycles_per_us = hardware.peak_gflops * 1e3 / (hardware.units * LANES * 2)
    warps = math.ceil(threads / WARP_SIZE)
    operations = features["elementwise"] / programs
    issued = (operations / 2 / WARP_SIZE + sum(s.warp_each for s in sites) * warps) / SCHEDULERS
    by_lanes = operations / 2 / LANES
    waits = _waits_us(features, sites) + BLOCK_US * rounds
    features["us_flops"] = max(issued, by_lanes) * rounds * idle / cycles_per_us + waits
    near = sum(s.cycles for s in sites) * rounds * idle / cycles_per_us
    through_l2 = features["traffic_bytes"] / (bandwidth * L2_FACTOR * min(1.0, rounds))
    features["us_memory"] = max(sum(touched) / bandwidth, through_l2, near) + waits
    fetched = sure[0] + max(0.0, sure[1] - hardware.l2_bytes)  # what is written may stay in L2
    features["us_bound"] = fetched / bandwidth


def _waits_us(features: dict[str, float], sites: Sequence[_Site]) -> float:
    """What blocks one after the other wait for what they load: all loads of a trip of a loop together."""
    past_l1: defaultdict[int, float] = defaultdict(float)
    near: defaultdict[int, float] = defaultdict(float)
    for site in sites:
        if site.is_load and site.access.memory.space == "global":
            around = [loop for loop in site.access.loops if not loop.is_unrolled]
            loop = id(around[-1]) if around else 0
            ahead = max(1.0, features["num_stages"] - 1) if site.access.is_async else 1.0
            turns = site.each / max(1.0, site.in_trip)
            missed = min(1.0, site.reach / max(1e-9, site.sectors))
            past_l1[loop] = max(past_l1[loop], turns * missed / ahead)
            near[loop] = max(near[loop], turns)
    waves = features["waves"] if features["waves"] > MANY_WAVES else math.ceil(features["waves"])
    return waves * (MEMORY_US * sum(past_l1.values()) + L1_US * sum(near.values()))


# Sites ------------------------------------------------------------------------------------------------------------------


def _sites(launch: Launch) -> list[_Site]:
    """The accesses of a launch, with what each takes."""
    import numpy as np

    threads, accesses = launch.threads, launch.counts.accesses
    if not accesses:
        return []
    count, sampled = len(accesses), threads.reference
    times, offset, step = np.empty((count, threads.count)), np.empty((count, threads.count), dtype=np.int64), 7 * SECTOR
    unknown = np.arange(threads.count) * step  # each thread somewhere else
    for row, access in enumerate(accesses):
        times[row] = access.times
        offset[row] = unknown if access.offset is None else access.offset
    each = times @ threads.weight
    by_warp = times[:, :sampled].reshape(count, threads.warps, WARP)
    of_warp = by_warp.max(axis=2)
    weight = threads.weight[:sampled:WARP] * WARP * threads.warps_of_block
    places = np.where(by_warp > 0, offset[:, :sampled].reshape(count, threads.warps, WARP), -1)
    width = np.array([a.width for a in accesses], dtype=float)
    is_shared = np.array([a.memory.space == "shared" for a in accesses])
    sectors = _distinct(places, SECTOR) * np.maximum(1.0, width / SECTOR)[:, None]
    lines = np.where(
        is_shared[:, None],
        _conflicts(places) * np.maximum(1.0, width / WORD)[:, None],
        np.maximum(_distinct(places, LINE), (width / WORD)[:, None] * (places >= 0).sum(axis=2) / WARP),
    )
    found = []
    for row, access in enumerate(accesses):
        trips = [_mean(loop.trips, threads.weight) for loop in access.loops]
        inner = around = 1.0
        for number, loop in zip(trips, access.loops, strict=True):
            at_once = number if loop.is_unrolled else min(loop.unroll, max(1.0, number))
            inner, around = inner * at_once, around * (1.0 if loop.is_unrolled else number / at_once)
        active = min(1.0, float(each[row]) / max(1e-12, around * inner))
        of_block = float(sectors[row] @ (weight * of_warp[row]))
        found.append(
            _Site(
                access=access,
                each=float(each[row]),
                warp_each=float(of_warp[row] @ weight) / threads.warps_of_block,
                sectors=of_block,
                cycles=float(lines[row] @ (weight * of_warp[row])),
                reach=min(of_block, _reach(access, threads, trips, active)),
                in_trip=inner,
                trips=max(1.0, around),
                active=active,
            )
        )
    return found


def _mean(trips: Any, weight: Array) -> float:
    return float(trips @ weight) if hasattr(trips, "shape") else float(trips)


def _distinct(places: Any, size: int) -> Array:
    """How many pieces of a size the threads of a warp reach; -1 stands for a thread that is not there."""
    import numpy as np

    pieces = np.sort(np.where(places >= 0, places // size, -1), axis=2)
    distinct: Array = (np.diff(pieces, axis=2) > 0).sum(axis=2) + (pieces[:, :, 0] >= 0.0)
    return distinct


def _conflicts(places: Any) -> Array:
    """How many words of one bank of shared memory the threads of a warp want at most."""
    import numpy as np

    count, warps, _ = places.shape
    words = np.sort(np.where(places >= 0, places // WORD, -1), axis=2)
    new = np.ones(words.shape, dtype=bool)
    new[:, :, 1:] = np.diff(words, axis=2) > 0
    new &= words >= 0
    banks = np.arange(count * warps).reshape(count, warps, 1) * BANKS + words % BANKS
    most = np.bincount(banks[new], minlength=count * warps * BANKS).reshape(count, warps, BANKS)
    conflicts: Array = most.max(axis=2).astype(float)
    return conflicts


def _reach(access: Access, threads: SampledThreads, trips: Sequence[float], active: float) -> float:
    """Sectors that a block reaches at all, by how far a step to other threads and to a trip of each loop leads."""
    if access.offset is None:
        return math.inf
    steps = threads.steps(access.offset)
    octaves = range(min(OCTAVES, (threads.threads - 1).bit_length()))
    ways = [(abs(steps[octave]), min(2.0, threads.threads / 2**octave)) for octave in octaves]
    ways += [(abs(steps[OCTAVES + depth]), t) for depth, t in enumerate(trips[:LOOPS])]
    extent, number = float(access.width), 1.0
    last, last_count = 0.0, 1.0
    for step, count in sorted(ways):
        if step == 0 or count <= 1:
            continue
        if step <= extent:
            extent += step * (count - 1)
        elif last and step <= last * last_count and step % last == 0:
            more = step / last * (count - 1)
            number, last_count = number / last_count * (last_count + more), last_count + more
        else:
            number, last, last_count = number * count, step, count
    return max(1.0, extent / SECTOR) * number * active


def _span(site: _Site) -> float:
    """Bytes between the first and the last place that sampled threads reach."""
    import numpy as np

    offset = site.access.offset
    if not isinstance(offset, np.ndarray):
        return float(site.access.width)
    there = offset[np.broadcast_to(np.asarray(site.access.times) > 0, offset.shape)]
    return float(there.max() - there.min()) + site.access.width if there.size else 0.0
