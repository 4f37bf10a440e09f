"""Launch features: what a Triton kernel's source says of each config before anything is compiled.

Bytes, flops, tiles, waves, shared memory, in 20 us a config. What source, arguments and hardware sheet do not say is missing
from the answer: it is never guessed, and nothing is raised.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..core.hardware import (
    BLOCKS_PER_UNIT,
    REGISTERS_PER_BLOCK,
    REGISTERS_PER_THREAD,
    THREADS_PER_UNIT,
    WARP_SIZE,
    Hardware,
)
from ..core.workload import Work
from .kernel_model import KernelModel, kernel_model
from .knob_roles import roles_by_name

log = logging.getLogger(__name__)

RESIDENT_SHARED_BYTES = 1024  # what the driver takes of each block's shared memory (CUDA programming guide, since 8.0)
BASE_REGISTERS = 40  # addresses, loop counters: what a matmul's threads hold beside its tiles (16 configs, sm_90)
L2_FACTOR = 2.5  # L2 gives about so many times the memory's bandwidth (A100: 5.1 against 2.0 TB/s)


def _cdiv(a: float, b: float) -> float:
    return -(-a // b)


def _trips(start: float, stop: float, step: float) -> float:
    return max(0.0, math.ceil((stop - start) / step))


Grid = Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None
"""As at a launch: numbers, or a function of the arguments and the config's knobs."""

_FUNCTIONS: dict[str, Any] = {"__builtins__": {}, "cdiv": _cdiv, "trips": _trips, "min": min, "max": max}


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
        sizes[name] = float(memory.numel())
        for i, extent in enumerate(getattr(plain, "block_shape", ())):
            numbers[f"{name}__block{i}"] = int(extent)
    except Exception:  # no tensor, or one of a kind that does not say
        log.debug("argument %s, a %s, is not described", name, type(plain).__name__)


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
    `traffic_bytes` (all that is asked for, padding included), `unique_bytes` (each tensor once), `atomic_bytes`,
    `overshoot` (elements stored against elements there), `us_flops`, `us_memory`, `us_bound` (the larger, by the last wave).
    Per program: `threads`, `num_stages`, `trips`, `tile_m`, `tile_n`, `tile_k`, `tile_elements`, `per_thread` (elements
    of the largest tile for each thread), `loaded_bytes`, `stored_bytes`, `flops_per_byte`, `shared_bytes`, `shared_share`
    (of what a block may have), `registers`, `blocks_per_unit`, `waste` (elements walked against elements there).

    Args:
        kernel: a JITFunction, or a function with a kernel's body.
        call: from `describe_call`; or, where a config's hook changes the arguments, a config to its own.
        configs: knobs by name, `num_warps` and `num_stages` among them if they are set.
        grid: as at the launch; a callable is asked with arguments and config.
        hardware: the device, for waves, occupancy and times.
    """
    model = kernel_model(kernel)
    return [_features_of(model, call, knobs, grid, hardware) for knobs in configs]


_SUMMED = ("us_bound", "us_flops", "us_memory", "flops", "elementwise", "traffic_bytes", "atomic_bytes")


def combine_launches(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The features of a config that launches several kernels one after the other, in the names of `launch_features`.

    Times, operations and bytes are summed; all else is of the kernel that takes longest by its bound. Two names are added:
    `launches`, how many there are, and `least_programs` of any of them. Empty where nothing is launched.
    """
    if not launches:
        return {}
    longest = max(launches, key=lambda d: (d.get("us_bound", 0.0), d.get("traffic_bytes", 0.0)))
    combined = dict(longest)
    for name in _SUMMED:
        if any(name in d for d in launches):
            combined[name] = sum(d.get(name, 0.0) for d in launches)
    combined["launches"] = float(len(launches))
    if programs := [d["programs"] for d in launches if "programs" in d]:
        combined["least_programs"] = min(programs)
    return combined


def work_of(configs: Sequence[Mapping[str, float]]) -> Work | None:
    """What a call has to do whatever the config, by the features of its configs: the least of what they do, tensors once.

    None if that is unknown.
    """
    moved = [features["unique_bytes"] for features in configs if features.get("unique_bytes")]
    flops = [features.get("flops") or features.get("elementwise", 0.0) for features in configs]
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


def _features_of(
    model: KernelModel,
    call: Call | Callable[[Mapping[str, Any]], Call],
    knobs: Mapping[str, Any],
    grid: Grid,
    hardware: Hardware | None,
) -> dict[str, float]:
    features: dict[str, float] = {}
    try:
        _fill(features, model, call if isinstance(call, Call) else call(knobs), knobs, grid, hardware)
    except Exception as err:  # what was filled in before stays
        log.debug("features of %s end early: %r", dict(knobs), err)
    return {name: value for name, value in features.items() if math.isfinite(value)}


def _fill(
    features: dict[str, float],
    model: KernelModel,
    call: Call,
    knobs: Mapping[str, Any],
    grid: Grid,
    hardware: Hardware | None,
) -> None:
    """Fill in all that can be said of a config, in the order in which one thing follows from another."""
    numbers: dict[str, Any] = {**model.constants, **call.numbers, **knobs}
    stages = float(knobs.get("num_stages") or 3)
    warps = float(knobs.get("num_warps") or 4)
    warp_size = hardware.warp_size if hardware is not None and hardware.warp_size > 1 else WARP_SIZE
    threads = features["threads"] = warps * warp_size
    features["num_stages"] = stages
    programs = _programs(grid, call, knobs, numbers)
    if programs is not None:
        features["programs"] = programs
    memory = _memory(model, call, numbers)
    features["loaded_bytes"], features["stored_bytes"] = memory.loaded, memory.stored
    if memory.atomic:
        features["atomic_bytes"] = memory.atomic * (programs or 1.0)
    if memory.touched:
        features["unique_bytes"] = memory.touched
    work = _work(features, model, numbers)
    if work.tile:
        features["tile_elements"], features["per_thread"] = work.tile, work.tile / threads
    if memory.moved:
        features["flops_per_byte"] = (work.flops or work.elementwise) / memory.moved
    if model.covers:
        features["waste"] = _waste(model, numbers)
    shared = _shared_bytes(model, memory, stages, hardware)
    if model.dots or model.accesses:
        features["shared_bytes"] = shared
    features["registers"] = BASE_REGISTERS + work.held / threads
    if programs is None:
        return
    features["flops"], features["elementwise"] = work.flops * programs, work.elementwise * programs
    features["traffic_bytes"] = memory.moved * programs
    stored = memory.stored_elements.items()
    over = [elements * programs / call.sizes[base] for base, elements in stored if call.sizes.get(base)]
    if over:
        features["overshoot"] = max(over)
    if hardware is not None and hardware.units > 0:
        _occupancy(features, hardware, shared)
        _times(features, hardware, memory.touched)


def _programs(grid: Grid, call: Call, knobs: Mapping[str, Any], numbers: dict[str, Any]) -> float | None:
    """How many programs a launch starts; sets `gridN` and `pidN` (that of the program in the middle) among the numbers."""
    if grid is None:
        return None
    try:
        sizes = grid({**call.arguments, **knobs}) if callable(grid) else grid
        extents = [float(n) for n in (*sizes, 1, 1)[:3]]
    except Exception:  # the user's own function, asked with less than it may want
        return None
    for axis, extent in enumerate(extents):
        numbers[f"grid{axis}"], numbers[f"pid{axis}"] = extent, (extent - 1) / 2
    return extents[0] * extents[1] * extents[2]


@dataclass(slots=True)
class _Memory:
    """What one program moves, in bytes."""

    loaded: float = 0.0
    stored: float = 0.0
    atomic: float = 0.0
    touched: float = 0.0  # the tensors that are accessed, each once and as a whole
    pipelined: float = 0.0  # operands of dots that are loaded in a loop
    largest_store: float = 0.0  # of those outside of loops
    stored_elements: dict[str, float] = field(default_factory=dict)  # by argument

    @property
    def moved(self) -> float:
        return self.loaded + self.stored + self.atomic


def _memory(model: KernelModel, call: Call, numbers: Mapping[str, Any]) -> _Memory:
    memory, seen = _Memory(), set()
    for access, code, each in model.accesses:
        elements = _number(code, numbers)
        if elements is None:
            continue
        base = access.base or ""
        size = float(numbers.get(f"{base}__bytes", 4))
        if access.kind == "load":
            memory.loaded += elements * size
        elif access.kind == "store":
            memory.stored += elements * size
            memory.stored_elements[base] = memory.stored_elements.get(base, 0.0) + elements
        else:
            memory.atomic += elements * size
        if elements and base in call.sizes and base not in seen:
            seen.add(base)
            memory.touched += call.sizes[base] * size
        if access.feeds_dot and access.looped:
            memory.pipelined += (_number(each, numbers) or 0.0) * size
        if access.kind == "store" and not access.looped:
            memory.largest_store = max(memory.largest_store, elements * size)
    return memory


@dataclass(slots=True)
class _Work:
    """What one program computes."""

    flops: float = 0.0  # of dots
    elementwise: float = 0.0
    tile: float = 0.0  # elements of the largest tile
    held: float = 0.0  # elements that lie in registers


def _work(features: dict[str, float], model: KernelModel, numbers: Mapping[str, Any]) -> _Work:
    """Count operations; fills in the sides of the largest product."""
    work = _Work()
    for codes in model.dots:
        m, n, k, trips = (_number(code, numbers) for code in codes)
        if m is None or n is None or k is None:
            continue
        work.flops += 2 * m * n * k * (1.0 if trips is None else trips)
        work.held += m * n
        if m * n >= work.tile:
            work.tile = m * n
            features["tile_m"], features["tile_n"], features["tile_k"] = m, n, k
            if trips is not None:
                features["trips"] = trips
    if not work.tile:
        work.tile = max((_number(each, numbers) or 0.0 for _, _, each in model.accesses), default=0.0)
        work.held = work.tile
    work.elementwise = sum(_number(code, numbers) or 0.0 for code in model.arithmetic)
    work.elementwise += 4 * sum(_number(code, numbers) or 0.0 for code in model.costly)
    return work


def _waste(model: KernelModel, numbers: Mapping[str, Any]) -> float:
    """Elements walked against elements there, where steps do not divide lengths."""
    waste = 1.0
    for knob, length in model.covers.items():
        step, whole = numbers.get(knob), numbers.get(length)
        if isinstance(step, int) and isinstance(whole, int) and step > 0 and whole > 0:
            waste *= _cdiv(whole, step) * step / whole
    return waste


def _shared_bytes(model: KernelModel, memory: _Memory, stages: float, hardware: Hardware | None) -> float:
    """Shared memory of a block: what dots read lies there once for each stage; before sm_90 the last waits in registers."""
    deep = hardware is None or (hardware.kind != "hip" and not hardware.capability.startswith(("7.", "8.")))
    pipelined = memory.pipelined * max(1.0, stages if deep else stages - 1)
    return max(pipelined, memory.largest_store if model.dots else 0.0)


def _occupancy(features: dict[str, float], hardware: Hardware, shared: float) -> None:
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


def _times(features: dict[str, float], hardware: Hardware, touched: float) -> None:
    """Lower bounds in microseconds by the hardware's sheet."""
    flops, programs = features["flops"], features["programs"]
    if hardware.peak_gflops:
        peak = (hardware.peak_tensor_gflops or hardware.peak_gflops) if flops else hardware.peak_gflops
        features["us_flops"] = (flops or features["elementwise"]) / peak * 1e-3
    if hardware.bandwidth_gb_per_s:
        bandwidth = hardware.bandwidth_gb_per_s * 1e3  # bytes per microsecond
        features["us_memory"] = max(touched / bandwidth, features["traffic_bytes"] / (bandwidth * L2_FACTOR))
    if "us_flops" in features and "us_memory" in features:
        rounds = programs / hardware.units
        idle = math.ceil(rounds) / rounds if rounds > 0 else 1.0
        features["us_bound"] = max(features["us_flops"] * idle, features["us_memory"])


def _number(code: CodeType | None, numbers: Mapping[str, Any]) -> float | None:
    if code is None:
        return None
    try:
        return float(eval(code, _FUNCTIONS, numbers))  # noqa: S307  # our own expressions
    except Exception:  # an argument that is not there, or no number: unknown
        return None
