"""How long forecasting takes; the aim is 10,000 configs in 100 ms, once the space has been seen."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from recorded import HERE, measurement, recording

from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.job import Job, Question, Recording, View
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.policies import Selective
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.roofline import Roofline

CONFIGS = 10_000


@pytest.fixture(scope="module")
def job() -> Job:
    space = Space.grid(
        {
            "block": [2**i for i in range(10)],
            "tile_m": list(range(1, 11)),
            "tile_n": list(range(1, 11)),
            "unroll": [1, 2, 4, 8, 16],
            "padded": [False, True],
        },
        roles={"block": "threads", "tile_m": "tile", "tile_n": "tile", "unroll": "unroll"},
    )
    assert len(space) == CONFIGS
    base = recording()
    return Job(
        workload=base.workload,
        space=space,
        hardware=HERE,
        toolchain=base.toolchain,
        work=Work(flops=1e9, bytes=1e8),
    )


def outcomes(job: Job, known: int, seed: int = 0) -> dict[Any, Outcome]:
    draw = random.Random(seed)
    chosen = [job.space.default, *draw.sample(list(job.space)[1:], known - 1)]
    return {c: measurement(1000 * draw.uniform(0.3, 3.0)) for c in chosen}


def fresh_questions(job: Job, known: int, surrogate: Surrogate) -> Any:
    """For each round a question not heard before; the space, and what was known one outcome ago, are warm."""
    seeds = iter(range(1000))

    def setup() -> tuple[tuple[Question], dict[str, Any]]:
        told = outcomes(job, known, next(seeds))
        surrogate.forecast(Question(job=job, configs=job.space, outcomes=dict(list(told.items())[: max(1, known - 1)])))
        told[job.space.default] = measurement(900.0)
        return (Question(job=job, configs=job.space, outcomes=told),), {}

    return setup


@pytest.mark.parametrize("known", [1, 16, 200, 1100])
def test_history_forecasts_ten_thousand_configs(benchmark: Any, job: Job, known: int) -> None:
    surrogate = History()
    setup = fresh_questions(job, known, surrogate)
    answer = benchmark.pedantic(surrogate.forecast, setup=setup, rounds=5, warmup_rounds=1)
    assert len(answer) == CONFIGS


def test_history_reads_three_recordings_of_ten_thousand_configs(benchmark: Any, job: Job) -> None:
    base = recording()
    recordings = [
        Recording(
            workload=base.workload,
            hardware=replace(HERE, name=f"H{i}"),
            toolchain=base.toolchain,
            default=job.space.default,
            outcomes=outcomes(job, CONFIGS, i),
        )
        for i in range(3)
    ]
    surrogate = History()

    def setup() -> Any:
        asked = Question(job=job, configs=job.space, outcomes=outcomes(job, 16, random.randrange(10**6)))
        return (replace(asked, recordings=recordings),), {}

    assert len(benchmark.pedantic(surrogate.forecast, setup=setup, rounds=5, warmup_rounds=1)) == CONFIGS


def test_the_blend_forecasts_ten_thousand_configs(benchmark: Any, job: Job) -> None:
    surrogate = Blend([History(), Roofline()])
    answer = benchmark.pedantic(
        surrogate.forecast, setup=fresh_questions(job, 16, surrogate), rounds=5, warmup_rounds=1
    )
    assert not any(isinstance(a, Abstention) for a in answer)


def test_selective_chooses_among_ten_thousand_configs(benchmark: Any, job: Job) -> None:
    told = outcomes(job, 16)
    forecasts = History().forecast(Question(job=job, configs=job.space, outcomes=told))
    view = View(
        space=job.space, forecasts=forecasts, outcomes=told, evidence={}, configs_left=100, seconds_left=100, workers=8
    )
    benchmark.pedantic(Selective().step, args=(view,), rounds=5, warmup_rounds=1)
