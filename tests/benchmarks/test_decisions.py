"""What a decision costs once it is made: looking it up in the process, and in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Toy

import forecast_autotune as fa
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.frontends.load_inline.tuned_module import TunedModule
from forecast_autotune.store.sqlite import SqliteStore

pytestmark = pytest.mark.thorough  # speed itself is for `make bench`

SPACE = Space.grid({"BLOCK": [16, 32, 64, 128], "UNROLL": [1, 2, 4, 8], "STAGES": [1, 2, 3, 4, 5, 6]})


def job(n: int = 0) -> Job:
    return Job(
        workload=Workload(program=Program(name="bench", language="c++", source="void f();"), key={"n": n}),
        space=SPACE,
        hardware=Hardware(kind="cpu", name="bench"),
        toolchain=Toolchain(versions={"compiler": "bench"}),
    )


def decision() -> Decision:
    return Decision(
        config=SPACE[1], basis="measured", reason="bench", space_digest=SPACE.digest, space_size=len(SPACE), budget="8"
    )


@pytest.fixture(scope="module")
def functions(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The extension's own function, and the tuned one with the key of the aim: one tensor's shape and dtype."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path_factory.mktemp("store")))
    patch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    arguments = {**toy.arguments(), "space": toy.space(["plain"])}
    module: TunedModule = fa.load_inline(**{**arguments, "key": {"same": lambda x: (x.shape, x.dtype)}})
    every = fa.load_inline(**arguments)
    x = torch.ones(8)
    tuned, default_key = module.same, every.same
    tuned(x), default_key(x)
    patch.undo()
    return {
        "direct": toy.compiler().extension(toy.config("plain")).function("same"),
        "shape": tuned,
        "all": default_key,
    }


@pytest.mark.benchmark(group="hit through load_inline")
@pytest.mark.parametrize("call", ["direct", "shape", "all"])
def test_a_hit(benchmark: Any, functions: dict[str, Any], call: str) -> None:
    """`shape` is to cost at most 2 us more than `direct`."""
    x = torch.ones(8)
    function = functions[call]
    benchmark.pedantic(function, args=(x,), rounds=2000, iterations=100, warmup_rounds=10)


@pytest.mark.benchmark(group="store")
def test_recall(benchmark: Any, tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        for n in range(200):
            store.record_outcome(job(n), "run", SPACE[1], Measurement(samples_us=(5.0,)), None)
            store.record_decision(job(n), decision())
        assert benchmark(store.decision, job(100)) is not None


@pytest.mark.benchmark(group="store")
def test_open_and_first_recall(benchmark: Any, tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(job(), decision())

    def open_and_recall() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.decision(job()) is not None

    benchmark(open_and_recall)


@pytest.mark.benchmark(group="store")
@pytest.mark.parametrize("told", [0, 28])
def test_related_recordings(benchmark: Any, tmp_path: Path, told: int) -> None:
    """96 outcomes of another key, of each of which so many numbers were told."""
    with SqliteStore(tmp_path) as store:
        for config in SPACE:
            store.record_outcome(describing(job(1), told), "run", config, Measurement(samples_us=(5.0, 5.1, 4.9)), None)
        (found,) = benchmark(store.related_recordings, job())
    assert len(found.static_features) == (len(SPACE) if told else 0)


def describing(job: Job, told: int) -> Job:
    return replace(job, static_features=[{f"name_{i}": i / 3 for i in range(told)}] * len(SPACE))


@pytest.mark.benchmark(group="store")
@pytest.mark.parametrize("told", [0, 28])
def test_write_one_outcome(benchmark: Any, tmp_path: Path, told: int) -> None:
    forecast = Forecast.normal(0.1, 0.5, source="bench")
    numbers, of = iter(range(10**9)), describing(job(), told)
    with SqliteStore(tmp_path) as store:

        def write() -> None:
            config: Config = SPACE[next(numbers) % len(SPACE)]
            store.record_outcome(of, "run", config, Measurement(samples_us=(5.0, 5.1, 4.9)), forecast)

        benchmark(write)
