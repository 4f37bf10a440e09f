"""What a Triton kernel's source says of each config before anything is compiled: bytes, flops, tiles, waves, shared memory.

A config takes 20 us. What cannot be told from source, arguments and hardware sheet is missing from the answer, never
guessed and never raised.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ..core.hardware import Hardware
from ..core.workload import Work
from .kernel_model import KernelModel, kernel_model
from .knob_roles import roles_by_name

log = logging.getLogger(__name__)

THREADS_OF_A_UNIT = 2048  # that one SM or CU holds at once, on most; 1536 on capability 8.6 and 8.9
BLOCKS_OF_A_UNIT = 32
RESIDENT_SHARED_BYTES = 1024  # what the driver takes of each block's shared memory (CUDA programming guide, since 8.0)
BASE_REGISTERS = 40  # addresses, loop counters: what a matmul's threads hold beside its tiles (16 configs, sm_90)
L2_FACTOR = 2.5  # L2 gives about so many times the memory's bandwidth (A100: 5.1 against 2.0 TB/s)


def _cdiv(a: float, b: float) -> float:
    return -(-a // b)


def _trips(start: float, stop: float, step: float) -> float:
    return max(0.0, math.ceil((stop - start) / step))


_FUNCTIONS: dict[str, Any] = {"__builtins__": {}, "cdiv": _cdiv, "trips": _trips, "min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call's arguments as the description needs them; see `describe_call`."""

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


def features(
    kernel: Any,
    call: Call | Callable[[Mapping[str, Any]], Call],
    configs: Sequence[Mapping[str, Any]],
    *,
    grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None = None,
    hardware: Hardware | None = None,
) -> list[dict[str, float]]:
    """Describe each config of a call in numbers, before anything is compiled. Never raises: what is unknown is missing.

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


def together(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The description of a config that launches several kernels one after the other, in the names of `features`.

    Times, operations and bytes are summed; all else is of the kernel that takes longest by its bound. Two names are added:
    `launches`, how many there are, and `least_programs` of any of them. Empty where nothing is launched.
    """
    if not launches:
        return {}
    longest = max(launches, key=lambda d: (d.get("us_bound", 0.0), d.get("traffic_bytes", 0.0)))
    found = dict(longest)
    for name in _SUMMED:
        if any(name in d for d in launches):
            found[name] = sum(d.get(name, 0.0) for d in launches)
    found["launches"] = float(len(launches))
    if programs := [d["programs"] for d in launches if "programs" in d]:
        found["least_programs"] = min(programs)
    return found


def work_of(described: Sequence[Mapping[str, float]]) -> Work | None:
    """What the call has to do whatever the config: the least of what the configs do, tensors once; None if unknown."""
    moved = [d["unique_bytes"] for d in described if d.get("unique_bytes")]
    flops = [d.get("flops") or d.get("elementwise", 0.0) for d in described]
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
    grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None,
    hardware: Hardware | None,
) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        _fill(found, model, call if isinstance(call, Call) else call(knobs), knobs, grid, hardware)
    except Exception as err:  # what was filled in before stays
        log.debug("features of %s end early: %r", dict(knobs), err)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _number(code: CodeType | None, numbers: Mapping[str, Any]) -> float | None:
    if code is None:
        return None
    try:
        return float(eval(code, _FUNCTIONS, numbers))  # noqa: S307  # our own expressions
    except Exception:  # an argument that is not there, or no number: unknown
        return None


def _fill(
    found: dict[str, float],
    model: KernelModel,
    call: Call,
    knobs: Mapping[str, Any],
    grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None,
    hardware: Hardware | None,
) -> None:
    numbers: dict[str, Any] = {**model.constants, **call.numbers, **knobs}
    stages = float(knobs.get("num_stages") or 3)
    warps = float(knobs.get("num_warps") or 4)
    warp_size = hardware.warp_size if hardware is not None and hardware.warp_size > 1 else 32
    threads = found["threads"] = warps * warp_size
    found["num_stages"] = stages
    programs = _programs(grid, call, knobs, numbers)
    if programs is not None:
        found["programs"] = programs

    loaded = stored = atomic = 0.0
    touched = 0.0
    stored_into: dict[str, float] = {}
    seen: set[str] = set()
    buffers = largest = 0.0
    for access, code, each in model.accesses:
        elements = _number(code, numbers)
        if elements is None:
            continue
        base = access.base or ""
        size = float(numbers.get(f"{base}__bytes", 4))
        if access.kind == "load":
            loaded += elements * size
        elif access.kind == "store":
            stored += elements * size
            stored_into[base] = stored_into.get(base, 0.0) + elements
        else:
            atomic += elements * size
        if elements and base in call.sizes and base not in seen:
            seen.add(base)
            touched += call.sizes[base] * size
        if access.feeds_dot and access.looped:
            buffers += (_number(each, numbers) or 0.0) * size
        if access.kind == "store" and not access.looped:
            largest = max(largest, elements * size)
    found["loaded_bytes"], found["stored_bytes"] = loaded, stored
    if atomic:
        found["atomic_bytes"] = atomic * (programs or 1.0)
    if touched:
        found["unique_bytes"] = touched

    flops, tile, held = 0.0, 0.0, 0.0
    for m_code, n_code, k_code, trips_code, _element in model.dots:
        m, n, k = _number(m_code, numbers), _number(n_code, numbers), _number(k_code, numbers)
        trips = _number(trips_code, numbers)
        if m is None or n is None or k is None:
            continue
        flops += 2 * m * n * k * (1.0 if trips is None else trips)
        held += m * n
        if m * n >= tile:
            tile = m * n
            found["tile_m"], found["tile_n"], found["tile_k"] = m, n, k
            if trips is not None:
                found["trips"] = trips
    if not tile:
        tile = held = max((_number(each, numbers) or 0.0 for _, _, each in model.accesses), default=0.0)
    elementwise = sum(_number(code, numbers) or 0.0 for code in model.arithmetic)
    elementwise += 4 * sum(_number(code, numbers) or 0.0 for code in model.costly)
    moved = loaded + stored + atomic
    if tile:
        found["tile_elements"], found["per_thread"] = tile, tile / threads
    if moved:
        found["flops_per_byte"] = (flops or elementwise) / moved
    waste = 1.0
    for knob, length in model.covers.items():
        step, whole = numbers.get(knob), numbers.get(length)
        if isinstance(step, int) and isinstance(whole, int) and step > 0 and whole > 0:
            waste *= _cdiv(whole, step) * step / whole
    if model.covers:
        found["waste"] = waste

    # Pipelined operands of dots lie in shared memory once for each stage; before sm_90 the last one waits in registers.
    deep = hardware is None or (hardware.kind != "hip" and not hardware.capability.startswith(("7.", "8.")))
    shared = max(buffers * max(1.0, stages if deep else stages - 1), largest if model.dots else 0.0)
    if model.dots or model.accesses:
        found["shared_bytes"] = shared
    registers = found["registers"] = BASE_REGISTERS + held / threads
    if programs is None:
        return
    found["flops"], found["elementwise"] = flops * programs, elementwise * programs
    found["traffic_bytes"] = moved * programs
    over = [elements * programs / call.sizes[base] for base, elements in stored_into.items() if call.sizes.get(base)]
    if over:
        found["overshoot"] = max(over)
    if hardware is None or hardware.units <= 0:
        return
    if hardware.shared_bytes:
        found["shared_share"] = shared / hardware.shared_bytes
    resident = min(THREADS_OF_A_UNIT // threads, BLOCKS_OF_A_UNIT, 65536 // (min(registers, 255.0) * threads))
    if hardware.shared_bytes and shared:
        resident = min(resident, (hardware.shared_bytes + RESIDENT_SHARED_BYTES) // (shared + RESIDENT_SHARED_BYTES))
    resident = max(1.0, resident)
    waves = programs / (hardware.units * resident)
    found["blocks_per_unit"], found["waves"] = resident, waves
    found["wave_tail"] = 1.0 - waves / math.ceil(waves) if waves > 0 else 0.0
    _times(found, hardware, flops * programs, elementwise * programs, touched, moved * programs, programs)


def _times(
    found: dict[str, float],
    hardware: Hardware,
    flops: float,
    elementwise: float,
    touched: float,
    traffic: float,
    programs: float,
) -> None:
    """Lower bounds in microseconds by the hardware's sheet."""
    if hardware.peak_gflops:
        peak = (hardware.peak_tensor_gflops or hardware.peak_gflops) if flops else hardware.peak_gflops
        found["us_flops"] = (flops or elementwise) / peak * 1e-3
    if hardware.bandwidth_gb_per_s:
        bandwidth = hardware.bandwidth_gb_per_s * 1e3  # bytes per microsecond
        found["us_memory"] = max(touched / bandwidth, traffic / (bandwidth * L2_FACTOR))
    if "us_flops" in found and "us_memory" in found:
        rounds = programs / hardware.units
        idle = math.ceil(rounds) / rounds if rounds > 0 else 1.0
        found["us_bound"] = max(found["us_flops"] * idle, found["us_memory"])


def _programs(
    grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None,
    call: Call,
    knobs: Mapping[str, Any],
    numbers: dict[str, Any],
) -> float | None:
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
