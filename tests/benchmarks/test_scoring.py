"""How long scoring forecasts takes; the aim is 10,000 in 100 ms, all scores together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contracts.store_contract import SPACE, a_job, a_measurement

from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.space import Space
from forecast_autotune.evaluation.scores import discovery, score_forecasts, score_trust
from forecast_autotune.features.forecast_columns import Component, ForecastTable
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.lessons import member_scores, recalibration

pytestmark = pytest.mark.thorough  # speed itself is for `make bench`

COUNT = 10_000


@pytest.fixture(scope="module")
def table() -> ForecastTable:
    draw = np.random.default_rng(0)
    weight = draw.uniform(0.2, 0.8, COUNT)
    components = [
        Component(n, draw.normal(0, 1, COUNT), draw.uniform(0.1, 1, COUNT), w)
        for n, w in (("a", weight), ("b", 1 - weight))
    ]
    return ForecastTable(components, draw.uniform(0, 0.2, COUNT), source="s", default_us=5.0)


@pytest.fixture(scope="module")
def truth() -> list[float]:
    return np.random.default_rng(1).normal(0, 1, COUNT).tolist()  # type: ignore[no-any-return]


@pytest.mark.benchmark(group="scoring")
@pytest.mark.parametrize("held", ["table", "objects"])
@pytest.mark.parametrize("score", [score_forecasts, score_trust], ids=lambda score: score.__name__)
def test_scoring_10_000_forecasts_of_two_normals(
    benchmark: Any, table: ForecastTable, truth: list[float], score: Any, held: str
) -> None:
    assert benchmark(score, table if held == "table" else list(table), truth)


@pytest.mark.benchmark(group="scoring")
def test_discovery_in_a_grid_of_10_000(benchmark: Any, table: ForecastTable, truth: list[float]) -> None:
    space = Space.grid({"a": list(range(10)), "b": list(range(10)), "c": list(range(10)), "d": list(range(10))})
    assert benchmark(discovery, space, table, truth).pairs == COUNT * 36


@pytest.mark.benchmark(group="recalibration")
@pytest.mark.parametrize("what", ["read", "correct", "compare"])
def test_what_a_stores_pairs_cost(benchmark: Any, what: str) -> None:
    space = Space.grid({"X": list(range(17))})
    bells = Forecast.normal(0.1, 0.2, source="s", default_us=5.0)
    with SqliteStore.in_memory() as store:
        for n in range(70):
            job = a_job(key={"n": n}, space=space)
            for config in space:
                store.record_outcome(job, "run", config, a_measurement(10.0), bells)
        pairs = store.calibration_pairs("cuda")
        assert len(pairs) == 200
        assert SPACE[0] not in space
        tried = {
            "read": lambda: store.calibration_pairs("cuda"),
            "correct": lambda: recalibration(pairs),
            "compare": lambda: member_scores(pairs),
        }
        benchmark(tried[what])
