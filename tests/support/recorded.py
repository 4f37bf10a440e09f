"""Small recorded spaces of a known shape: one best region, a poor default, configs that fail at each stage.

For tests of surrogates, policies, the loop and replays, which need times but no kernel.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from asking import Question

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Work, Workload

BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
TILES = (1, 2, 3, 4, 6, 8)
ROLES = {"block": "threads", "tile": "tile"}
HERE = Hardware(kind="cuda", name="A", units=80, shared_bytes=48 * 1024, bandwidth_gb_per_s=1000, peak_gflops=20_000)


def measurement(median_us: float, spread: float = 0.001, n: int = 8) -> Measurement:
    """Samples around a median, evenly over a relative `spread`."""
    samples = tuple(median_us * (1 + spread * (i - (n - 1) / 2) / n) for i in range(n))
    return Measurement(samples_us=samples, compile_s=0.5, run_s=0.1)


def workload(n: int = 4096, name: str = "bowl") -> Workload:
    """A CUDA program of a given name, at the key `n`."""
    return Workload(program=Program(name=name, language="cuda", source=f"void {name}();"), key={"n": n})


def recording(
    *, hardware: Hardware = HERE, n: int = 4096, best_block: float = 7.0, best_tile: float = 2.0, failures: bool = True
) -> Recording:
    """84 configs; log2 of time is a bowl around `best_block` (log2) and `best_tile`, with ripples of 2 %."""
    outcomes: dict[Config, Outcome] = {}
    for block in BLOCKS:
        for tile in TILES:
            for padded in (False, True):
                config = Config({"block": block, "tile": tile, "padded": padded})
                ripple = 0.03 * math.sin(block * 1.7 + tile * 2.3 + padded)
                log2 = 0.15 * (math.log2(block) - best_block) ** 2 + 0.06 * (tile - best_tile) ** 2 + 0.2 * (not padded)
                outcome: Outcome = measurement(100 * 2 ** (log2 + ripple))
                if failures and block * tile > 4096:
                    outcome = Failure(stage="compile", message="too much shared memory", cost_s=0.3)
                elif failures and block == 1024 and padded:
                    outcome = Failure(stage="launch", message="too many resources requested", cost_s=0.6)
                outcomes[config] = outcome
    return Recording(
        workload=workload(n),
        hardware=hardware,
        toolchain=Toolchain(versions={"nvcc": "13.0"}),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def best_us(recording: Recording) -> float:
    """The shortest time in a recording, microseconds."""
    return min(o.median_us for o in recording.outcomes.values() if isinstance(o, Measurement))


def job_of(recording: Recording, *, roles: Mapping[str, str] | None = None, work: Work | None = None) -> Job:
    """The job that a recording is of, with its whole space."""
    return Job(
        workload=recording.workload,
        space=Space(recording.outcomes, default=recording.default, roles=roles),
        hardware=recording.hardware,
        toolchain=recording.toolchain,
        work=work,
    )


def question(recording: Recording, known: int = 0, **more: object) -> Question:
    """A question about every config of a recording; it holds `known` outcomes, the default's first."""
    job = job_of(recording, **more)  # type: ignore[arg-type]
    measured = [job.space.default, *random.Random(7).sample(list(job.space)[1:], max(0, known - 1))][:known]
    return Question(job=job, outcomes={c: recording.outcomes[c] for c in measured})
