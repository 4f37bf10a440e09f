"""Launch features: what a Triton kernel's source says of each config before anything is compiled.

Bytes, flops, tiles, waves, shared memory, in 20 us a config. What source, arguments and hardware sheet do not say is missing
from the answer: it is never guessed, and nothing is raised.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeAlias

from ..core.hardware import (
    BLOCKS_PER_UNIT,
    REGISTERS_PER_BLOCK,
    REGISTERS_PER_THREAD,
    THREADS_PER_UNIT,
    WARP_SIZE,
    Hardware,
)
from ..core.workload import Work
from .hardware_sheets import tensor_peak_gflops
from .kernel_counts import CountedAccess, Counts, count
from .kernel_model import KernelModel, kernel_model
from .knob_roles import roles_by_name

log = logging.getLogger(__name__)

RESIDENT_SHARED_BYTES = 1024  # what the driver takes of each block's shared memory (CUDA programming guide, since 8.0)
REGISTER_BYTES = 4
WIDEST_ACCESS_BYTES = 16  # by one thread at once (PTX ISA, vector loads)
MIN_ASYNC_BYTES = 4  # what a copy past the registers takes at least (PTX ISA, cp.async)
# Of an access by a thread that goes through registers: what it moves, in one, and its address. A fused MoE of odd sizes was
# compiled to 290 and 740 registers, spills counted, where so many are told: 273 and 515 (sm_90).
ACCESS_REGISTERS = 3
BASE_REGISTERS = 40  # addresses, loop counters: what a matmul's threads hold beside its tiles (16 configs, sm_90)
# 64 bytes a cycle from L2 to each unit are so many times the memory's bandwidth (H200: 16.7 of 4.8 TB/s)
L2_FACTOR = 3.5


Grid = Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None
"""As at a launch: numbers, or a function of the arguments and the config's knobs."""


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call's arguments as its features need them; see `describe_call`."""

    numbers: Mapping[str, Any]  # scalars by name, and NAME__bytes for the element of what points
    sizes: Mapping[str, float]  # elements of each tensor
    arguments: Mapping[str, Any]


def describe_call(arguments: Mapping[str, Any]) -> Call:
    """Sort a call's arguments by name into numbers and memory; anything that is neither is left out.

    What a tuple holds has names of its own: `sizes__0` is the first of `sizes`.
    """
    numbers: dict[str, Any] = {}
    sizes: dict[str, float] = {}
    for name, value in arguments.items():
        _describe_argument(name, value, numbers, sizes)
    return Call(numbers, sizes, arguments)


def _describe_argument(name: str, value: Any, numbers: dict[str, Any], sizes: dict[str, float]) -> None:
    plain = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if plain is None or isinstance(plain, (bool, int, float, str)):
        numbers[name] = plain
        return
    numbers[name] = True  # so that `if X is not None` holds
    if isinstance(plain, tuple):
        for i, item in enumerate(plain):
            _describe_argument(f"{name}__{i}", item, numbers, sizes)
        return
    memory = getattr(plain, "base", plain) if hasattr(plain, "block_shape") else plain  # a tensor descriptor
    try:
        numbers[f"{name}__bytes"] = int(memory.element_size())
        sizes[name] = float(distinct_elements(memory))
        for i, extent in enumerate(getattr(plain, "block_shape", ())):
            numbers[f"{name}__block{i}"] = int(extent)
    except Exception:  # no tensor, or one of a kind that does not say
        log.debug("argument %s, a %s, is not described", name, type(plain).__name__)


def distinct_elements(tensor: Any) -> int:
    """Elements that lie in memory: those along a stride of 0 are one and the same."""
    if not hasattr(tensor, "stride"):
        return int(tensor.numel())
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def launch_features(
    kernel: Any,
    call: Call | Callable[[Mapping[str, Any]], Call],
    configs: Sequence[Mapping[str, Any]],
    *,
    grid: Grid = None,
    hardware: Hardware | None = None,
) -> list[dict[str, float]]:
    """The features of each config of a call, before anything is compiled. Never raises: what is unknown is missing.

    Per launch: `programs`, `waves`, `wave_tail` (share of the last wave left idle), `flops` (of dots), `elementwise`,
    `traffic_bytes` (all that is asked for, in whole memory sectors, padding included), `unique_bytes` (each tensor once
    where it is read and once where it is written, as far as it is reached), `atomic_bytes`, `overshoot` (elements stored
    against elements there); `least_flops` and `least_bytes`, where nothing runs that data may skip; microseconds:
    `us_flops` and `us_memory`, which are estimates, and `us_bound`, which no launch on this hardware falls below.
    Per program: `threads`, `num_stages`, `trips` (of the loop with most work), `serial_trips` (of a loop whose product waits
    for the one before), `tile_m`, `tile_n`, `tile_k`, `tile_elements`, `per_thread` (elements of the largest tile for each
    thread), `loaded_bytes`, `stored_bytes`, `access_bytes` (that a thread moves at once, on average), `flops_per_byte`,
    `shared_bytes`, `shared_share` (of what a block may have), `registers` (by what is needed at one time),
    `register_share` (of what a block may have, where `maxnreg` lets each thread have so many), `blocks_per_unit`,
    `in_flight_bytes` (asked for ahead by the blocks of a unit), `waste` (elements walked against elements there).

    Args:
        kernel: a JITFunction, or a function with a kernel's body.
        call: from `describe_call`; or, where a config's hook changes the arguments, a config to its own.
        configs: knobs by name, `num_warps`, `num_stages` and `maxnreg` among them if they are set.
        grid: as at the launch; a callable is asked with arguments and config.
        hardware: the device, for waves, occupancy and times.
    """
    model = kernel_model(kernel)
    if isinstance(call, Call):
        counted = _ProgramCounts(model, call, hardware)
        return [_features_of(lambda _: counted, knobs, grid) for knobs in configs]
    return [_features_of(lambda knobs: _ProgramCounts(model, call(knobs), hardware), knobs, grid) for knobs in configs]


_SUMMED = (
    "us_bound", "us_flops", "us_memory", "flops", "elementwise", "traffic_bytes", "unique_bytes", "atomic_bytes",
    "least_flops", "least_bytes",
)  # fmt: skip


def combine_launches(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The features of a config that launches several kernels one after the other, in the names of `launch_features`.

    Times, operations and bytes are summed, and `register_share` is the largest; all else is of the kernel that is expected
    to take longest. Two names are added: `launches`, how many there are, and `least_programs` of any of them. Empty where
    nothing is launched.
    """
    if not launches:
        return {}
    longest = max(launches, key=_longest)
    combined = dict(longest)
    for name in _SUMMED:
        if any(name in d for d in launches):
            combined[name] = sum(d.get(name, 0.0) for d in launches)
    if shares := [d["register_share"] for d in launches if "register_share" in d]:
        combined["register_share"] = max(shares)
    combined["launches"] = float(len(launches))
    if programs := [d["programs"] for d in launches if "programs" in d]:
        combined["least_programs"] = min(programs)
    return combined


def _longest(features: Mapping[str, float]) -> tuple[float, float]:
    """What tells which of several kernels takes longest."""
    return max(features.get("us_memory", 0.0), features.get("us_flops", 0.0)), features.get("traffic_bytes", 0.0)


def work_of(configs: Sequence[Mapping[str, float]]) -> Work | None:
    """What a call has to do whatever the config, by the features of its configs: the least of what they do, tensors once.

    None if that is unknown.
    """
    moved = [features["least_bytes"] for features in configs if features.get("least_bytes")]
    flops = [features.get("least_flops", 0.0) for features in configs]
    least = min((f for f in flops if f > 0), default=0.0)
    return Work(flops=least, bytes=min(moved)) if moved else None


def knob_roles(kernel: Any, knobs: Mapping[str, Any]) -> dict[str, str]:
    """What each knob stands for, out of `core.space.ROLES`, by its use in the kernel, else by its name.

    Args:
        knobs: names with one of their values each. Knobs of which nothing can be told are missing.
    """
    used, named = kernel_model(kernel).roles, roles_by_name(knobs)
    roles = {}
    for name, value in knobs.items():
        role = _ROLE_OF_OPTION.get(name) or used.get(name)
        if role is None and isinstance(value, bool):
            role = "flag"
        if role is None and isinstance(value, str):
            role = "algorithm"
        if role is None:
            role = named.get(name)
        if role is not None:
            roles[name] = role
    return roles


_ROLE_OF_OPTION = {"num_warps": "threads", "num_stages": "stages", "maxnreg": "flag", "waves_per_eu": "flag"}


@dataclass(frozen=True, slots=True)
class _ProgramWork:
    """What the programs of a launch do and move, and the least of both where nothing runs that data may skip."""

    counts: Counts
    least: Counts
    memory: _Memory
    at_least: _Memory


class _ProgramCounts:
    """What the programs of a call do. Configs that agree in every knob that the kernel reads share one count."""

    def __init__(self, model: KernelModel, call: Call, hardware: Hardware | None) -> None:
        self.model, self.call, self.hardware = model, call, hardware
        self._read = _names_in(model.code) if model.code is not None else frozenset()
        self._counts: dict[Hashable, tuple[Counts, Counts]] = {}
        self._done: dict[Hashable, _ProgramWork] = {}
        self._peaks: dict[float, float] = {}  # of matrix units, by the bytes of an element

    def done(self, knobs: Mapping[str, Any], extents: tuple[float, ...] | None, threads: float) -> _ProgramWork:
        """What is done, and the least of it; see `kernel_counts.count`."""
        key = self._key(knobs, extents)
        done = self._done.get((key, threads))
        if done is None:
            numbers, programs = {**self.call.numbers, **knobs}, math.prod(extents or (math.inf,)) or math.inf
            if key not in self._counts:
                self._counts[key] = count(self.model, numbers, extents, self.call.sizes)
            counts, least = self._counts[key]
            memory = _memory(counts, self.call, numbers, programs, threads)
            at_least = memory if least is counts else _memory(least, self.call, numbers, programs, threads)
            done = self._done[key, threads] = _ProgramWork(counts, least, memory, at_least)
        return done

    def tensor_peak_gflops(self, element_bytes: float) -> float:
        """See `hardware_sheets.tensor_peak_gflops`."""
        if element_bytes not in self._peaks and self.hardware is not None:
            self._peaks[element_bytes] = tensor_peak_gflops(self.hardware, element_bytes)
        return self._peaks.get(element_bytes, 0.0)

    def _key(self, knobs: Mapping[str, Any], extents: tuple[float, ...] | None) -> Hashable:
        read = {name: value for name, value in knobs.items() if name in self._read}
        return extents, tuple((name, type(value), _hashable(value)) for name, value in read.items())


def _hashable(value: Any) -> Hashable:
    """What tells a knob's value from others of its type; of values within others the type counts too."""
    return value if isinstance(value, (bool, int, float, str)) else repr(value)


def _names_in(code: CodeType) -> frozenset[str]:
    inner = (_names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*inner)


def _features_of(
    counted: Callable[[Mapping[str, Any]], _ProgramCounts],
    knobs: Mapping[str, Any],
    grid: Grid,
) -> dict[str, float]:
    features: dict[str, float] = {}
    try:
        _fill(features, counted(knobs), knobs, grid)
    except Exception as err:  # what was filled in before stays
        log.debug("features of %s end early: %r", dict(knobs), err)
    return {name: value for name, value in features.items() if math.isfinite(value)}


def _fill(features: dict[str, float], counted: _ProgramCounts, knobs: Mapping[str, Any], grid: Grid) -> None:
    """Fill in all that can be said of a config, in the order in which one thing follows from another."""
    model, call, hardware = counted.model, counted.call, counted.hardware
    numbers: dict[str, Any] = {**call.numbers, **knobs}
    stages = float(knobs.get("num_stages") or 3)
    warps = float(knobs.get("num_warps") or 4)
    warp_size = hardware.warp_size if hardware is not None and hardware.warp_size > 1 else WARP_SIZE
    threads = features["threads"] = warps * warp_size
    features["num_stages"] = stages
    if most := knobs.get("maxnreg"):
        features["register_share"] = float(most) * threads / REGISTERS_PER_BLOCK
    extents = _extents(grid, call, knobs)
    programs = math.prod(extents) if extents is not None else None
    if programs is not None:
        features["programs"] = programs
    done = counted.done(knobs, extents, threads)
    counts, least, memory, at_least = done.counts, done.least, done.memory, done.at_least
    features["loaded_bytes"], features["stored_bytes"] = memory.loaded, memory.stored
    if memory.atomic:
        features["atomic_bytes"] = memory.atomic * (programs or 1.0)
    if memory.touched:
        features["unique_bytes"] = memory.touched
    tile = _largest_tile(features, counts)
    if memory.trips:
        features.setdefault("trips", memory.trips)
    if tile:
        features["tile_elements"], features["per_thread"] = tile, tile / threads
    if memory.moved:
        features["access_bytes"] = memory.moved / memory.accesses
        features["flops_per_byte"] = (counts.flops or counts.operations) / memory.moved
    if model.covers:
        features["waste"] = _waste(model, numbers)
    shared = _shared_bytes(model, memory, stages, hardware)
    if model.dots or model.accesses:
        features["shared_bytes"] = shared
    held = counts.held_bytes / REGISTER_BYTES + memory.narrow_accesses * ACCESS_REGISTERS
    features["registers"] = BASE_REGISTERS + held / threads
    if programs is None:
        return
    features["flops"], features["elementwise"] = counts.flops * programs, counts.operations * programs
    features["traffic_bytes"] = memory.sectors * programs
    features["least_flops"] = (least.flops or least.operations) * programs
    features["least_bytes"] = at_least.read_surely + at_least.written_surely
    stored = memory.stored_elements.items()
    over = [elements * programs / call.sizes[base] for base, elements in stored if call.sizes.get(base)]
    if over:
        features["overshoot"] = max(over)
    if hardware is not None and hardware.units > 0:
        occupancy(features, hardware, shared)
        ahead = memory.per_trip * (stages if memory.pipelined else 1.0)
        features["in_flight_bytes"] = max(ahead, memory.outside) * features["blocks_per_unit"]
        _times(features, hardware, done, counted.tensor_peak_gflops)


def _extents(grid: Grid, call: Call, knobs: Mapping[str, Any]) -> tuple[float, ...] | None:
    """How many programs a launch starts along each axis."""
    if grid is None:
        return None
    try:
        sizes = grid({**call.arguments, **knobs}) if callable(grid) else grid
        return tuple(float(n) for n in (*sizes, 1, 1)[:3])
    except Exception:  # the user's own function, asked with less than it may want
        log.debug("how many programs a launch starts is not known", exc_info=True)
        return None


@dataclass(slots=True)
class _Memory:
    """What one program moves, in bytes; what is touched, all programs do together."""

    loaded: float = 0.0
    stored: float = 0.0
    atomic: float = 0.0
    touched: float = 0.0  # each tensor once where it is read, and once where it is written, as far as it is reached
    read_surely: float = 0.0  # the same of what is read at places that no data tells
    written_surely: float = 0.0
    pipelined: float = 0.0  # operands of dots that are loaded in a loop, of the loop with most
    per_trip: float = 0.0  # loaded in one trip of a loop, of the loop with most
    outside: float = 0.0  # loaded outside of loops
    largest_store: float = 0.0  # of those outside of loops
    trips: float = 0.0  # of the access that moves most, in a loop
    narrow: float = 0.0  # operands of dots that are loaded in a loop, too narrow to go past the registers
    narrow_accesses: float = 0.0  # by which these are loaded in one trip
    accesses: float = 0.0  # by single threads
    sectors: float = 0.0  # of memory, whole ones
    stored_elements: dict[str, float] = field(default_factory=dict)  # by argument

    @property
    def moved(self) -> float:
        return self.loaded + self.stored + self.atomic


def _memory(counts: Counts, call: Call, numbers: Mapping[str, Any], programs: float, threads: float) -> _Memory:
    memory, made = _Memory(), list(_made(counts, numbers, threads))
    _add_traffic(memory, made)
    _add_loops(memory, made)
    _add_reach(memory, made, call, numbers, programs)
    return memory


_Made: TypeAlias = tuple[CountedAccess, float, float, float]
"""An access that is made: its elements, and the bytes of one of them and of what a thread moves at a time."""


def _made(counts: Counts, numbers: Mapping[str, Any], threads: float) -> Iterator[_Made]:
    for counted in counts.accesses:
        elements = counted.each * counted.times
        if elements:
            size = numbers.get(f"{counted.access.base or ''}__bytes", 4)
            width = max(1.0, min(counted.width, counted.each / threads))
            yield counted, elements, size, min(WIDEST_ACCESS_BYTES, width * size)


def _add_traffic(memory: _Memory, made: Sequence[_Made]) -> None:
    """Add what is moved, by the kind of access."""
    stored_elements: defaultdict[str, float] = defaultdict(float)
    most = 0.0
    for counted, elements, size, access_bytes in made:
        access, moved = counted.access, elements * size
        memory.accesses += moved / access_bytes
        memory.sectors += moved * counted.sector_factor(size)
        if access.kind == "load":
            memory.loaded += moved
            if not access.loop:
                memory.outside += moved
        elif access.kind == "store":
            memory.stored += moved
            stored_elements[access.base or ""] += elements
            if not access.loop:
                memory.largest_store = max(memory.largest_store, moved)
        else:
            memory.atomic += moved
        if access.loop and moved > most:
            most, memory.trips = moved, counted.times
    memory.stored_elements = dict(stored_elements)


def _add_loops(memory: _Memory, made: Sequence[_Made]) -> None:
    """Add what is loaded in one trip of a loop, of the loop with most."""
    per_trip: defaultdict[str, float] = defaultdict(float)  # by loop, and so on
    pipelined: defaultdict[str, float] = defaultdict(float)
    narrow: defaultdict[str, float] = defaultdict(float)
    narrow_accesses: defaultdict[str, float] = defaultdict(float)
    for counted, _, size, access_bytes in made:
        access, loaded = counted.access, counted.each * size * counted.unrolled
        if access.kind != "load" or not access.loop:
            continue
        per_trip[access.loop] += loaded
        if access.feeds_dot and access_bytes >= MIN_ASYNC_BYTES:
            pipelined[access.loop] += loaded
        elif access.feeds_dot:
            narrow[access.loop] += loaded
            narrow_accesses[access.loop] += loaded / access_bytes
    memory.per_trip = max(per_trip.values(), default=0.0)
    memory.pipelined = max(pipelined.values(), default=0.0)
    memory.narrow = max(narrow.values(), default=0.0)
    memory.narrow_accesses = max(narrow_accesses.values(), default=0.0)


def _add_reach(memory: _Memory, made: Sequence[_Made], call: Call, numbers: Mapping[str, Any], programs: float) -> None:
    """Add what of each tensor all programs together read and write."""
    read: defaultdict[str, float] = defaultdict(float)  # elements by argument, and so on
    written: defaultdict[str, float] = defaultdict(float)
    read_surely: defaultdict[str, float] = defaultdict(float)
    written_surely: defaultdict[str, float] = defaultdict(float)
    for counted, elements, _, _ in made:
        access, base = counted.access, counted.access.base or ""
        if base not in call.sizes:
            continue
        reach = elements * programs if access.indirect else counted.reach
        if access.kind != "store" and base not in written:  # else it is still in L2
            read[base] += reach
            if not access.indirect and access.kind == "load":
                read_surely[base] += reach
        if access.kind != "load":
            written[base] += reach
            if not access.indirect:
                written_surely[base] += reach
    memory.touched = _bytes_of(read, call, numbers) + _bytes_of(written, call, numbers)
    memory.read_surely = _bytes_of(read_surely, call, numbers)
    memory.written_surely = _bytes_of(written_surely, call, numbers)


def _bytes_of(elements: Mapping[str, float], call: Call, numbers: Mapping[str, Any]) -> float:
    """Bytes of so many elements of each tensor, of each at most what there is."""
    total = 0.0
    for base, n in elements.items():
        total += min(call.sizes[base], n) * numbers.get(f"{base}__bytes", 4)
    return total


def _largest_tile(features: dict[str, float], counts: Counts) -> float:
    """Elements of the largest tile; fills in the sides of the product with most work."""
    dots = [dot for dot in counts.dots if dot.times > 0]
    if dots:
        main = max(dots, key=lambda d: d.m * d.n * d.k * d.times)
        features["tile_m"], features["tile_n"], features["tile_k"] = main.m, main.n, main.k
        features["trips"] = main.times
        if serial := max(dot.serial for dot in dots):
            features["serial_trips"] = serial
        return max(d.m * d.n for d in dots)
    return max((a.each for a in counts.accesses if a.times > 0), default=0.0)


def _waste(model: KernelModel, numbers: Mapping[str, Any]) -> float:
    """Elements walked against elements there, where steps do not divide lengths."""
    waste = 1.0
    for knob, length in model.covers.items():
        step, whole = numbers.get(knob), numbers.get(length)
        if isinstance(step, int) and isinstance(whole, int) and step > 0 and whole > 0:
            waste *= -(-whole // step) * step / whole
    return waste


def _shared_bytes(model: KernelModel, memory: _Memory, stages: float, hardware: Hardware | None) -> float:
    """Shared memory of a block: what dots read lies there once for each buffer."""
    pipelined = memory.pipelined * buffers(stages, hardware)
    return max(pipelined + memory.narrow, memory.largest_store if model.dots else 0.0)


def buffers(stages: float, hardware: Hardware | None) -> float:
    """Stages of a loop whose operands lie in shared memory at once; before sm_90 the last waits in registers."""
    deep = hardware is None or (hardware.kind != "hip" and not hardware.capability.startswith(("7.", "8.")))
    return max(1.0, stages if deep else stages - 1)


def occupancy(features: dict[str, float], hardware: Hardware, shared: float) -> None:
    """How many blocks a unit holds at once, and so in how many waves the launch runs."""
    if hardware.shared_bytes:
        features["shared_share"] = shared / hardware.shared_bytes
    threads, registers = features["threads"], min(features["registers"], float(REGISTERS_PER_THREAD))
    resident = min(THREADS_PER_UNIT // threads, BLOCKS_PER_UNIT, REGISTERS_PER_BLOCK // (registers * threads))
    if hardware.shared_bytes and shared:
        resident = min(resident, (hardware.shared_bytes + RESIDENT_SHARED_BYTES) // (shared + RESIDENT_SHARED_BYTES))
    resident = max(1.0, resident)
    waves = features["programs"] / (hardware.units * resident)
    features["blocks_per_unit"], features["waves"] = resident, waves
    features["wave_tail"] = 1.0 - waves / math.ceil(waves) if waves > 0 else 0.0


def _times(features: dict[str, float], hardware: Hardware, done: _ProgramWork, peak: Callable[[float], float]) -> None:
    """Times in microseconds by the hardware's sheet: estimates of computing and of moving, and a bound from below."""
    counts, least, memory, at_least = done.counts, done.least, done.memory, done.at_least
    programs = features["programs"]
    rounds = programs / hardware.units
    if rounds <= 0:
        return
    idle = math.ceil(rounds) / rounds
    if hardware.peak_gflops:
        by_elements = counts.operations * programs / hardware.peak_gflops * 1e-3
        features["us_flops"] = max(_us_of_dots(counts, peak) * programs * idle, by_elements)
    if hardware.bandwidth_gb_per_s:
        bandwidth = hardware.bandwidth_gb_per_s * 1e3  # bytes per microsecond
        through_l2 = features["traffic_bytes"] / (bandwidth * L2_FACTOR * min(1.0, rounds))
        features["us_memory"] = max(memory.touched / bandwidth, through_l2)
        # What is written may stay in L2.
        fetched = at_least.read_surely + max(0.0, at_least.written_surely - hardware.l2_bytes)
        computing = _us_of_dots(least, peak) * programs * (idle if least.even else 1.0) if least.dots else 0.0
        features["us_bound"] = max(fetched / bandwidth, computing)


def _us_of_dots(counts: Counts, peak: Callable[[float], float]) -> float:
    """What the products of one program take when all units share them, at their operands' peak rate in GFLOP/s."""
    time_us = 0.0
    for dot in counts.dots:
        if gflops := peak(dot.element_bytes or 2):
            time_us += 2 * dot.m * dot.n * dot.k * dot.times / gflops * 1e-3
    return time_us
