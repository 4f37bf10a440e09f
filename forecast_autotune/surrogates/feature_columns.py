"""A config in terms that hold for any kernel: threads, work per thread, programs, waves, bytes, times by the sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.hardware import REGISTERS_PER_BLOCK, THREADS_PER_UNIT, WARP_SIZE, Hardware
from ..core.job import Job
from ..core.space import Space
from ..features.knob_matrix import number_of
from ..features.knob_roles import is_depth, roles_by_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

GROUP_ROWS, GROUP_COLUMNS, GROUP_WARPS = 64, 256, 4  # of a product by a warp group, at most so many columns (PTX ISA)
MOST = 1e30  # of bytes, operations, microseconds: products of several are numbers still
UNKNOWN = -5.0  # stands for what is not known, below anything that is: trees then keep it apart

_OF_A_LAUNCH = (
    "launches", "bound", "memory", "traffic", "flops", "programs", "least_programs", "waves", "tail", "threads",
    "per_thread", "stages", "tile", "tile_m", "tile_n", "tile_k", "shorter_side", "shared", "registers", "blocks",
    "occupancy", "in_flight", "loaded", "loaded_per_thread", "intensity", "trips", "waste", "overshoot", "atomics",
    "bound_over_least", "memory_over_least", "traffic_over_least", "flops_over_least", "programs_under_most",
    "in_flight_under_most", "bytes_ahead", "warp_group", "product_per_warp", "instruction", "registers_taken", "warps",
    "stages_used", "stored", "arithmetic_per_thread", "access",
)  # fmt: skip
LAUNCH_FEATURES = (*_OF_A_LAUNCH, *(f"{name}_over_default" for name in _OF_A_LAUNCH))
"""What `launch_columns` gives, in this order; sizes, counts and times as log2."""


def launch_columns(static_features: Sequence[Mapping[str, float]], hardware: Hardware) -> Array:
    """What is known of each config's launches without compiling, as numbers that compare across kernels.

    The first config is the default, and people mostly write one down that does well: half the columns say how far others
    are from it, or where it is not described, from the first config that is.

    Args:
        static_features: of each config, as `Job.static_features`.
        hardware: whose sheet counts.
    Returns:
        shape `(configs, len(LAUNCH_FEATURES))`; `UNKNOWN` where nothing is known.
    """
    import numpy as np

    def column(name: str) -> Array:
        return feature_column(static_features, name)

    def log2(values: Array, least: float = 0.0) -> Array:
        return np.log2(np.where(values + least > 0, values + least, np.nan))

    units = max(1, hardware.units)
    threads, programs, blocks = column("threads"), column("programs"), column("blocks_per_unit")
    tile_m, tile_n = log2(column("tile_m")), log2(column("tile_n"))
    bound, memory, flops = (
        log2(estimated_us(static_features), 0.5),
        log2(column("us_memory"), 0.5),
        log2(column("us_flops"), 0.5),
    )
    traffic, in_flight = log2(column("traffic_bytes"), 1.0), log2(threads * programs / (units * THREADS_PER_UNIT))
    over_units = log2(programs / units)
    least_programs = column("least_programs")
    columns = [
        np.nan_to_num(column("launches"), nan=1.0),
        bound, memory, traffic, flops,
        over_units, log2(np.where(np.isnan(least_programs), programs, least_programs) / units),
        log2(column("waves")), column("wave_tail"), log2(threads), log2(column("per_thread")), column("num_stages"),
        log2(column("tile_elements")), tile_m, tile_n, log2(column("tile_k")), np.minimum(tile_m, tile_n),
        column("shared_share"), column("registers"), blocks, threads * blocks / THREADS_PER_UNIT, in_flight,
        log2(column("loaded_bytes")), log2(column("loaded_bytes") / threads), log2(column("flops_per_byte")),
        log2(column("trips")), log2(column("waste")), log2(column("overshoot")),
        (~np.isnan(column("atomic_bytes"))).astype(float),
        *(c - _or_nan(np.nanmin, c) for c in (bound, memory, traffic, flops)),
        *(c - _or_nan(np.nanmax, c) for c in (over_units, in_flight)),
        *_of_a_unit(column),
    ]  # fmt: skip
    features = np.nan_to_num(np.stack(columns, axis=1), nan=UNKNOWN, posinf=UNKNOWN, neginf=UNKNOWN)
    default = next((i for i, d in enumerate(static_features) if d), 0)
    return np.hstack([features, features - features[default]])


def unknown_features(features: Array) -> NDArray[np.bool_]:
    """Which of the numbers of `launch_columns` stand for what is unknown, of a config or of the one it is compared with."""
    import numpy as np

    own, over = np.hsplit(features, 2)
    unknown = own == UNKNOWN
    return np.hstack([unknown, unknown | (own - over == UNKNOWN)])


def _of_a_unit(column: Callable[[str], Array]) -> list[Array]:
    """What one unit of the device holds and has on its way, and how products fit its instructions.

    Bytes that its blocks have asked for ahead of their use; whether products are those of warp groups, which take 64 rows
    and 4 warps (PTX ISA, wgmma); elements of a product for each warp, and of one instruction; registers and warps in use;
    stages that the loop is long enough for; bytes stored by a program, and operations of a thread; bytes that a thread
    moves at once.
    """
    import numpy as np

    threads, stages, blocks = column("threads"), column("num_stages"), column("blocks_per_unit")
    tile_m, tile_n, warps = column("tile_m"), column("tile_n"), threads / WARP_SIZE
    trips = np.fmax(1.0, column("trips"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return [
            _log2_or_nan(column("loaded_bytes") / trips * np.maximum(1.0, stages - 1.0) * blocks),
            np.where(np.isnan(tile_m), np.nan, (tile_m >= GROUP_ROWS) & (warps % GROUP_WARPS == 0)),
            _log2_or_nan(tile_m * tile_n / warps),
            _log2_or_nan(np.minimum(tile_m, GROUP_ROWS) * np.minimum(tile_n, GROUP_COLUMNS)),
            _log2_or_nan(threads * blocks * column("registers") / REGISTERS_PER_BLOCK),
            _log2_or_nan(np.maximum(1.0, warps * blocks)),
            np.minimum(stages, trips),
            _log2_or_nan(column("stored_bytes") + 1.0),
            _log2_or_nan(column("elementwise") / column("programs") / threads + 1.0),
            _log2_or_nan(column("access_bytes")),
        ]


def feature_column(static_features: Sequence[Mapping[str, float]], name: str, missing: float = math.nan) -> Array:
    """A number of each config; where it is not told, or none that a launch can have (negative, beyond `MOST`), `missing`."""
    import numpy as np

    values = np.array([d.get(name, math.nan) for d in static_features], dtype=float)
    with np.errstate(invalid="ignore"):
        return np.where((values >= 0) & (values <= MOST), values, missing)


def _log2_or_nan(values: Array) -> Array:
    import numpy as np

    return np.log2(np.where(values > 0, values, np.nan))


def estimated_us(static_features: Sequence[Mapping[str, float]]) -> Array:
    """The longer of moving and computing, of each config in microseconds; where neither is told, the bound; else nan."""
    import numpy as np

    estimate = np.fmax(feature_column(static_features, "us_memory"), feature_column(static_features, "us_flops"))
    return np.where(np.isnan(estimate), feature_column(static_features, "us_bound"), estimate)


def _or_nan(reduce: Callable[[Array], float], values: Array) -> float:
    return math.nan if bool((values != values).all()) else float(reduce(values))


@dataclass(frozen=True, slots=True)
class RoleFeatures:
    """What knobs that have a role say of each config, as log2, shape `(configs,)`; None where no knob says it.

    Attributes:
        threads: of a block.
        across: threads along the first axis, along which neighbours lie in memory.
        work: elements for each thread.
        vector: elements of one load.
        ragged: whether the threads are no whole number of warps.
    """

    threads: Array | None
    across: Array | None
    work: Array | None
    vector: Array | None
    ragged: Array | None


BLOCK_TILE = 16  # a tile knob that goes beyond counts a block's elements, else a thread's: nobody has blocks that small


def role_features(job: Job) -> RoleFeatures:
    """Read knobs by their role: as tagged, else as their names tell."""
    import numpy as np

    space = job.space
    roles = {**roles_by_name(space.knobs), **space.roles}
    warp = job.hardware.warp_size if job.hardware.warp_size > 1 else WARP_SIZE
    sizes = {k: (v, r) for k, r in roles.items() if (v := _sizes(space, k)) is not None}
    threads = {k: v * (warp if "warps" in k.lower() else 1) for k, (v, r) in sizes.items() if r == "threads"}
    tiles = [v for k, (v, r) in sizes.items() if r == "tile" and not is_depth(k)]
    elements = _product([v for v in tiles if v.max() > BLOCK_TILE])
    work = _product([v for v in tiles if v.max() <= BLOCK_TILE])
    total = _product(list(threads.values()))
    if elements is not None and total is not None:
        work = elements / total
    elif elements is not None and work is not None:
        total = np.maximum(1.0, elements / work)
    across = next((v for k, v in threads.items() if k.lower().endswith("x")), None)
    vector = _product([v for v, r in sizes.values() if r == "vector"])
    return RoleFeatures(
        threads=_log2(total),
        across=_log2(across),
        work=_log2(work),
        vector=_log2(vector),
        ragged=None if total is None else (total % warp != 0).astype(float),
    )


def _sizes(space: Space, knob: str) -> Array | None:
    """A knob's values where they are numbers or spell them, at least 1; None if none is."""
    import numpy as np

    values = [number_of(config.knobs[knob]) for config in space]
    if all(v is None for v in values):
        return None
    return np.array([1.0 if v is None else max(1.0, v) for v in values])


def _product(columns: Sequence[Array]) -> Array | None:
    import numpy as np

    return np.prod(np.stack(columns), axis=0) if columns else None


def _log2(values: Array | None) -> Array | None:
    import numpy as np

    return None if values is None else np.log2(np.maximum(values, 2.0**-6))
