"""Roofline: what the work, the hardware sheet and the roles of knobs say, before anything was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention
from ..core.hardware import REGISTERS_PER_THREAD, WARP_SIZE, Hardware
from ..core.job import Job, log2_speedups
from ..core.outcome import Outcome
from ..features.forecast_columns import ForecastTable, normal_cdf
from ..features.hardware_sheets import tensor_peak_gflops
from ..protocols import SurrogateSession
from .base import BaseSurrogate, Forecasts, OutcomeSession, default_us
from .feature_columns import estimated_us, feature_column
from .gaussian_process import most_telling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SIGMA = 0.9  # rules of thumb explain little: on kernels they were not written beside, they did harm (replays, 2026-11)
TRUST_IN_RULES = 0.5  # of what the rules of thumb say, so much is believed
FLOAT_BYTES = 4  # of an element, which no role tells
SOURCE_SIGMA = 0.7  # what is read from a Triton kernel's source explains more than a knob's role, still not much
TRUST_IN_SOURCE = 0.7  # of what the source says, so much is believed
# Of a unit, counting each further pipeline stage once more: enough to hide most of a load's latency
RESIDENT_THREADS = 768
DOT_SIDE = 64  # a shorter side of a product leaves tensor cores idle
# Shared memory counted from the source was the compiler's own figure in all cases checked (4 matmuls)
SURE_FAILURE = 0.95
LIKELY_FAILURE = 0.6  # chance of failing beyond a limit of the device, estimated from roles alone


class Roofline(BaseSurrogate):
    """Forecast from the work to be done, the hardware sheet and the knobs' roles.

    No config can be faster than the roofline allows, so a default near it leaves little to gain. A Triton kernel's source
    says what each config moves and computes; where there is none, roles say, gently, which configs suit the device better
    than the default. Always unsure. Abstains where it has neither source nor roles, nor work together with a time of the
    default.
    """

    name = "roofline"

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that reads the job once, when it is first asked."""
        return _Session(context)


class _Session(OutcomeSession):
    @cached_property
    def _rules(self) -> _Rules:
        return _read_job(self.context.job)

    def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
        import numpy as np

        job = self.context.job
        known_us, bound_us, rules = default_us(self.context, outcomes), least_us(job), self._rules
        if not rules.says and (bound_us is None or known_us is None):
            reason = "no bound by the source, no roles of knobs, and no work with a time of the default"
            return [Abstention(Roofline.name, reason)] * len(job.space), None
        mean, sigma, says = rules.mean, rules.sigma, rules.says
        if bound_us is not None and known_us is not None:
            headroom = max(0.0, math.log2(known_us / bound_us))
            mean, sigma = _below(mean, sigma, headroom)
            says = (*says, f"at most {2**headroom:.2f}x the default's speed")
        table = ForecastTable.of_one(
            Roofline.name,
            mean,
            sigma,
            rules.fail,
            source=f"{Roofline.name} ({', '.join(says)})",
            default_us=known_us,
            grounded=np.full(len(job.space), rules.by_source),
        )
        return table, _log_density(job, outcomes, mean, sigma)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is known of each config of a job before anything is measured, and what it rests on.

    Attributes:
        mean, sigma: of log2 speed-up against the default; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`.
        says: what it rests on, for people.
        by_source: whether that is what a kernel's source says of its launches, not rules of thumb.
    """

    mean: Array
    sigma: Array
    fail: Array
    says: tuple[str, ...]
    by_source: bool


def _read_job(job: Job) -> _Rules:
    import numpy as np

    from_source = read_from_source(job.static_features, job.hardware) if job.static_features else None
    if from_source is not None:
        (cost, fail), trust, unsure, says = from_source, TRUST_IN_SOURCE, SOURCE_SIGMA, ["kernel source"]
    else:
        cost, fail = rules_of_thumb(job.space, job.space.roles, job.hardware)
        trust, unsure, says = TRUST_IN_RULES, SIGMA, ["knob roles"] if job.space.roles else []
    return _Rules(trust * (cost[0] - cost), np.full(cost.size, unsure), fail, tuple(says), from_source is not None)


def _log_density(job: Job, outcomes: Mapping[Config, Outcome], mean: Array, sigma: Array) -> float:
    """Log density of what was measured, the default aside; the forecasts rest on none of it.

    Of very many outcomes, of those that a Gaussian process would be built on: a sum over more compares with none of its.
    """
    import numpy as np

    space = job.space
    measured = {space.index(c): s for c, s in log2_speedups(outcomes, space.default).items() if c in space}
    at, y = np.array(list(measured), dtype=np.intp), np.array(list(measured.values()))
    kept = most_telling(y)
    at, y = at[kept], y[kept]
    densities = -0.5 * ((y - mean[at]) / sigma[at]) ** 2 - np.log(sigma[at] * math.sqrt(2 * math.pi))
    return float(densities[at > 0].sum())


def least_us(job: Job) -> float | None:
    """Time the work takes at the hardware's peak rates, in microseconds; None where work or rates are unknown.

    The longer of computing at the peak rate and moving the bytes at the full bandwidth (Williams, Waterman and Patterson,
    Roofline, CACM 2009).
    """
    if job.work is None:
        return None
    times_us = []
    # Which units a program computes on, and on what, is not known: a bound takes the fastest.
    peak_gflops = max(job.hardware.peak_gflops, tensor_peak_gflops(job.hardware, element_bytes=1))
    if peak_gflops > 0:
        times_us.append(job.work.flops / peak_gflops * 1e-3)
    if job.hardware.bandwidth_gb_per_s > 0:
        times_us.append(job.work.bytes / job.hardware.bandwidth_gb_per_s * 1e-3)
    return max(times_us, default=0.0) or None


def rules_of_thumb(configs: Sequence[Config], roles: dict[str, str], hardware: Hardware) -> tuple[Array, Array]:
    """What each config's knobs cost by their roles, log2 of time, and its chance of exceeding a limit of the device.

    Both have the shape `(configs,)`.
    """
    import numpy as np

    penalty, fails = np.zeros(len(configs)), np.zeros(len(configs))
    sizes = {role: _sizes(configs, roles, role, hardware) for role in ("threads", "tile", "unroll", "stages", "vector")}
    threads, tile, stages = sizes["threads"], sizes["tile"], sizes["stages"]
    on_cpu = hardware.kind == "cpu"
    if threads is not None and on_cpu:
        total = threads.prod(axis=0)
        penalty += 0.5 * np.log2(np.maximum(1.0, max(1, hardware.units) / total))
        penalty += 0.2 * np.log2(np.maximum(1.0, total / max(1, hardware.units)))
    elif threads is not None:
        total = threads.prod(axis=0)
        warp = hardware.warp_size if hardware.warp_size > 1 else WARP_SIZE
        penalty += 0.35 * np.log2(np.maximum(1.0, 2 * warp / total)) + 0.15 * (total % warp != 0)
        penalty += 0.2 * np.log2(np.maximum(1.0, total / 512))
        if hardware.max_threads:
            fails = np.maximum(fails, LIKELY_FAILURE * (total > hardware.max_threads))
    if tile is not None:
        elements = np.sort(tile, axis=0)[-2:].prod(axis=0)
        if on_cpu:
            cached = max(hardware.l2_bytes, 256 * 1024)
            penalty += 0.15 * np.log2(np.maximum(1.0, elements * FLOAT_BYTES / cached))
            penalty += 0.1 * np.log2(np.maximum(1.0, 64 / elements))
        else:
            side_by_side = threads.prod(axis=0) if threads is not None else 4.0 * WARP_SIZE
            each = elements / side_by_side
            penalty += 0.12 * np.maximum(0.0, np.abs(np.log2(each / 8)) - 2) + 0.2 * np.log2(
                np.maximum(1.0, each / 128)
            )
            if hardware.shared_bytes and tile.shape[0] > 2:
                # Of three sides, the two larger make the result, kept in registers; the shortest meets both in shared
                # memory, once per stage.
                ordered = np.sort(tile, axis=0)
                deep = stages.prod(axis=0) if stages is not None else 1.0
                staged = ordered[0] * (ordered[-1] + ordered[-2]) * deep * FLOAT_BYTES / 2
                fails = np.maximum(fails, LIKELY_FAILURE * (staged > hardware.shared_bytes))
    if stages is not None:
        deep = stages.prod(axis=0)
        penalty += 0.1 * (deep < 2) + 0.05 * np.maximum(0.0, deep - 5)
    if sizes["vector"] is not None:
        penalty += 0.1 * (2 - np.minimum(2.0, np.log2(sizes["vector"].prod(axis=0))))
    if sizes["unroll"] is not None:
        copies = np.log2(sizes["unroll"].prod(axis=0))
        penalty += 0.05 * (3 - np.minimum(3.0, copies)) + 0.1 * np.maximum(0.0, copies - 4)
    return penalty, fails


def read_from_source(static_features: Sequence[Mapping[str, float]], hardware: Hardware) -> tuple[Array, Array] | None:
    """What a Triton kernel's source says each config costs, and its chance of not fitting the device.

    The time of its traffic or arithmetic (as the config's tiles make them), and what keeps a launch from reaching it: too
    few threads in flight, threads without work, products too narrow for tensor cores, registers that spill.

    Args:
        static_features: of each config, as `Job.static_features`.
        hardware: whose limits count.
    Returns:
        cost in log2 of time, and chance of failing, two arrays of shape `(configs,)`; None where the source does not give
        a time for every config.
    """
    import numpy as np

    def column(name: str, missing: float) -> Array:
        return feature_column(static_features, name, missing)

    expected_us = estimated_us(static_features)
    if not np.all(expected_us > 0):
        return None
    cost = np.log2(expected_us)
    pipelined = np.where(column("tile_k", 0) > 0, np.maximum(1.0, column("num_stages", 1) - 1), 1.0)
    in_flight = column("threads", 128) * np.maximum(1.0, column("blocks_per_unit", 4)) * pipelined
    cost += 0.3 * np.log2(np.maximum(1.0, RESIDENT_THREADS / in_flight))
    cost += 0.2 * np.log2(np.maximum(1.0, 1.0 / np.maximum(column("per_thread", 1), 1e-3)))
    side = np.minimum(column("tile_m", DOT_SIDE), column("tile_n", DOT_SIDE))
    cost += 0.3 * np.log2(np.maximum(1.0, DOT_SIDE / np.maximum(side, 1.0)))
    cost += 2.0 * np.log2(np.maximum(1.0, column("registers", 0) / REGISTERS_PER_THREAD))
    threads = column("threads", 0)
    too_large = (column("shared_share", 0) > 1) | (threads > (hardware.max_threads or np.inf))
    return cost, np.where(too_large, SURE_FAILURE, 0.02)


def _sizes(configs: Sequence[Config], roles: dict[str, str], role: str, hardware: Hardware) -> Array | None:
    """The values of the knobs with this role, one row per knob, at least 1; None if there is no such knob."""
    import numpy as np

    rows = []
    for knob in (k for k, r in roles.items() if r == role):
        values = [c.knobs[knob] for c in configs]
        if all(issubclass(kind, (int, float)) for kind in set(map(type, values))):
            # Triton counts threads in warps.
            each = max(WARP_SIZE, hardware.warp_size) if role == "threads" and knob.endswith("warps") else 1
            rows.append(np.maximum(1.0, np.array(values, dtype=float) * each))
    return np.array(rows) if rows else None


def _below(mean: Array, sigma: Array, limit: float) -> tuple[Array, Array]:
    """Mean and deviation of bells cut off above a limit (Johnson, Kotz and Balakrishnan, 1994, section 10.1)."""
    import numpy as np

    at = (limit - mean) / sigma
    inside = np.maximum(normal_cdf(at), 1e-12)
    ratio = np.exp(-0.5 * at * at) / math.sqrt(2 * math.pi) / inside
    return mean - sigma * ratio, sigma * np.sqrt(np.maximum(1.0 - at * ratio - ratio * ratio, 0.05))
