"""How long forecasting takes, and what a whole decision costs beside compiling and timing.

The aims: 10,000 configs in 100 ms once the space has been seen, however many outcomes are known; lengths chosen anew at 50
outcomes in 100 ms; half a second of our own for tuning 100 configs with a budget of 16.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import Question, ask
from recorded import HERE, measurement, recording

from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.job import Job, Recording, View
from forecast_autotune.core.outcome import Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.frontends.deciding import decide
from forecast_autotune.frontends.request import make_request
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import SurrogateSession
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.by_name import make_surrogate
from forecast_autotune.surrogates.history import History
from forecast_autotune.tuning.policies import Selective

pytestmark = pytest.mark.thorough  # speed itself is for `make bench`

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


def fresh_outcomes(job: Job, known: int, session: SurrogateSession) -> Any:
    """For each round outcomes not seen before; the space, and what was known one outcome ago, are warm."""
    seeds = iter(range(1000))

    def setup() -> Any:
        told = outcomes(job, known, next(seeds))
        session.predict(dict(list(told.items())[: max(1, known - 1)]), {})
        told[job.space.default] = measurement(900.0)
        return (told, {}), {}

    return setup


@pytest.mark.parametrize("known", [1, 16, 200, 1100])
def test_history_forecasts_ten_thousand_configs(benchmark: Any, job: Job, known: int) -> None:
    session = History().start(ForecastContext(job=job))
    setup = fresh_outcomes(job, known, session)
    answer = benchmark.pedantic(session.predict, setup=setup, rounds=5, warmup_rounds=1)
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
        known = outcomes(job, 16, random.randrange(10**6))
        return (surrogate, Question(job=job, outcomes=known, recordings=recordings)), {}

    assert len(benchmark.pedantic(ask, setup=setup, rounds=5, warmup_rounds=1)) == CONFIGS


def describing(job: Job) -> Job:
    """The same with launches told of, as a Triton kernel's are."""
    told = [
        {
            "us_bound": float(c["tile_m"]) * float(c["tile_n"]),  # type: ignore[arg-type]
            "us_memory": float(c["tile_m"]),  # type: ignore[arg-type]
            "threads": float(c["block"]),  # type: ignore[arg-type]
            "programs": 1e6 / float(c["tile_m"]),  # type: ignore[arg-type]
            "traffic_bytes": 1e6 * float(c["tile_n"]),  # type: ignore[arg-type]
        }
        for c in job.space
    ]
    return replace(job, static_features=told)


@pytest.mark.benchmark(group="setting auto, 10,000 configs")
@pytest.mark.parametrize("known", [0, 16, 50, 200])
@pytest.mark.parametrize("by", ["roles", "launches"])
def test_auto_forecasts_ten_thousand_configs(benchmark: Any, job: Job, by: str, known: int) -> None:
    asked_of = describing(job) if by == "launches" else job
    session = make_surrogate("auto").start(ForecastContext(job=asked_of))
    session.predict({}, {})
    setup = fresh_outcomes(asked_of, max(1, known), session)
    answer = benchmark.pedantic(session.predict, setup=setup, rounds=5, warmup_rounds=1)
    assert not any(isinstance(a, Abstention) for a in answer)


@pytest.mark.benchmark(group="setting auto, 10,000 configs")
@pytest.mark.parametrize("by", ["roles", "launches"])
def test_auto_meets_ten_thousand_configs(benchmark: Any, job: Job, by: str) -> None:
    """The first forecast of a job: roles or launches are read, rules or trees asked."""
    asked_of = describing(job) if by == "launches" else job
    surrogate = make_surrogate("auto")

    def setup() -> Any:
        return (surrogate, Question(job=asked_of)), {}

    assert len(benchmark.pedantic(ask, setup=setup, rounds=5, warmup_rounds=1)) == CONFIGS


@pytest.mark.benchmark(group="setting auto, 10,000 configs")
@pytest.mark.parametrize("by", ["roles", "launches"])
def test_auto_chooses_length_scales_again_at_50_outcomes(benchmark: Any, job: Job, by: str) -> None:
    asked_of = describing(job) if by == "launches" else job
    session, seeds = make_surrogate("auto").start(ForecastContext(job=asked_of)), iter(range(1000))

    def setup() -> Any:
        told = outcomes(asked_of, 50, next(seeds))
        session.predict(dict(list(told.items())[:30]), {})
        return (told, {}), {}

    assert len(benchmark.pedantic(session.predict, setup=setup, rounds=5, warmup_rounds=1)) == CONFIGS


# A whole decision -------------------------------------------------------------------------------------------------------

TRACES = Path(__file__).parents[2] / "calibration" / "traces"
RECORDED = {"launches": "matmul.square.NVIDIA_H200.jsonl.gz", "roles": "cuda_softmax.square.NVIDIA_H200.jsonl.gz"}


def hundred_configs(by: str) -> Recording:
    """So many of a recorded space, as if they had been compiled at once."""
    found = read_trace(TRACES / RECORDED[by])
    kept = {c: found.outcomes[c] for c in list(dict.fromkeys([found.default, *found.outcomes]))[:100]}
    return replace(
        found, outcomes={c: replace(o, compile_s=0.0) if isinstance(o, Measurement) else o for c, o in kept.items()}
    )


@pytest.mark.benchmark(group="tuning 100 configs, budget 16")
@pytest.mark.parametrize("by", RECORDED)
def test_our_own_time_in_tuning(benchmark: Any, tmp_path: Path, by: str) -> None:
    """Compiling and timing take no time here; forecasting, choosing and keeping do."""
    recorded = hundred_configs(by)
    request, numbers = make_request("16", default_budget="16", environment={}), iter(range(1000))

    def setup() -> Any:
        return (RecordedSpace(recording=recorded).job, Replay(recorded), tmp_path / str(next(numbers))), {}

    def tuned(job: Job, replay: Replay, folder: Path) -> int:
        with SqliteStore(folder) as store:
            return decide(job, request, compiler=replay, measurer=replay, store=store).decision.tried

    assert benchmark.pedantic(tuned, setup=setup, rounds=5, warmup_rounds=1) == 16


@pytest.mark.benchmark(group="tuning 100 configs, budget 16")
@pytest.mark.parametrize("by", RECORDED)
def test_tuning_in_a_new_process(benchmark: Any, tmp_path: Path, by: str) -> None:
    """A whole process, pytest and reading the trace included; of which the decision, told beside it, is our own."""
    tests = Path(__file__).parents[1]
    paths = [str(folder) for folder in (tests / "benchmarks", tests / "support", tests, tests.parent)]
    code = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        "from test_forecasting import *\n"
        f"recorded = hundred_configs({by!r}); replay = Replay(recorded)\n"
        "request = make_request('16', default_budget='16', environment={})\n"
        f"store = SqliteStore(Path({str(tmp_path)!r}) / sys.argv[1])\n"
        "import time; began = time.perf_counter()\n"
        "decide(RecordedSpace(recording=recorded).job, request, compiler=replay, measurer=replay, store=store)\n"
        "print(time.perf_counter() - began)"
    )
    numbers = iter(range(1000))
    spent: list[float] = []

    def run() -> None:
        command = [sys.executable, "-c", code, str(next(numbers))]
        spent.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    benchmark.pedantic(run, rounds=3)
    benchmark.extra_info["decision_s"] = statistics.median(spent)


def test_selective_chooses_among_ten_thousand_configs(benchmark: Any, job: Job) -> None:
    told = outcomes(job, 16)
    forecasts = ask(History(), Question(job=job, outcomes=told))
    view = View(
        space=job.space, forecasts=forecasts, outcomes=told, evidence={}, configs_left=100, seconds_left=100, workers=8
    )
    benchmark.pedantic(Selective().step, args=(view,), rounds=5, warmup_rounds=1)


def test_features_of_all_configs_of_a_matmul_before_compiling(benchmark: Any) -> None:
    """The 434 configs of the demo's product: 7 ms on a core of an EPYC, shared with other work."""
    pytest.importorskip("triton")
    import torch
    from kernel_suite.matmul import matmul, space

    from forecast_autotune.features.hardware_sheets import sheet_for
    from forecast_autotune.features.launch_features import describe_call, launch_features

    a, b, c = (torch.empty(1024, 1024, dtype=torch.float16) for _ in range(3))
    call = describe_call(dict(zip(matmul.arg_names, (a, b, c, 1024, 1024, 1024, *(1024, 1) * 3), strict=False)))
    configs = [config.knobs for config in space()]

    def grid(given: Any) -> tuple[int]:
        return (-(-1024 // given["BM"]) * -(-1024 // given["BN"]),)

    features = benchmark(launch_features, matmul, call, configs, grid=grid, hardware=sheet_for("H100"))
    assert all(each["programs"] > 0 for each in features)
