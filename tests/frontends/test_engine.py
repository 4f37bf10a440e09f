"""What the front doors share, with nothing behind them that compiles or measures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from recorded import job_of, recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Question
from forecast_autotune.errors import CacheMissError
from forecast_autotune.frontends import engine
from forecast_autotune.frontends.engine import Request, decide
from forecast_autotune.measure.replay import Replay
from forecast_autotune.settings import Settings
from forecast_autotune.store.manage import StoreFile
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates import prior
from forecast_autotune.surrogates.history import History

STRICT = Request(settings=Settings(mode="strict"), budget="16", surrogate=History())


def test_mode_strict_takes_a_stored_decision_only_if_it_is_one_of_the_space() -> None:
    job, idle = a_job(), object()
    acting: Any = {"compiler": idle, "measurer": idle}
    store = SqliteStore.in_memory()
    store.decide(job, a_decision(job, Config({"BLOCK": 99})))
    with pytest.raises(CacheMissError, match="no decision for"):
        decide(job, STRICT, store=store, **acting)
    store.decide(job, a_decision(job, job.space[1]))
    assert decide(job, STRICT, store=store, **acting).config == job.space[1]


def test_where_the_shipped_model_is_broken_tuning_goes_on_without_it_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "prior.json"
    broken.write_text('{"schema": "forecast_autotune.prior", "version": 0}')
    monkeypatch.setattr(prior, "SHIPPED", broken)
    prior._shipped.cache_clear()
    recorded = recording()
    how = Request(settings=Settings(), budget="6", surrogate=engine.make_surrogate("auto"))
    try:
        with SqliteStore(tmp_path / "store") as store:
            for n in (1, 2, 3):
                replay = Replay(recorded)
                job = replace(job_of(recorded), workload=replace(recorded.workload, key={"n": n}))
                assert decide(job, how, compiler=replay, measurer=replay, store=store).measured == 6
    finally:
        prior._shipped.cache_clear()
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "surrogate learned" in warnings[0]
    assert str(broken) in warnings[0]
    assert "make fit" in warnings[0]


# Recalibration ----------------------------------------------------------------------------------------------------------


class TooSure:
    """Forecasts the same of every config, with a sigma far too small."""

    name = "too sure"

    def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
        return [Forecast.normal(0.0, 0.02, source=self.name)] * len(asked.configs)


class Stubborn(TooSure):
    recalibrate = False


def with_a_record(directory: Path) -> SqliteStore:
    """A store in which forecasts were wrong by ten sigmas, a hundred times."""
    store = SqliteStore(directory)
    for n in range(25):
        job = a_job(key={"n": n})
        store.record(job, "run", SPACE[0], a_measurement(10.0), None)
        for config in SPACE[1:5]:
            store.record(job, "run", config, a_measurement(20.0), Forecast.normal(0.0, 0.1, source="s"))
    return store


def stretches(store: SqliteStore, surrogate: TooSure, mode: str = "tune", budget: str = "4") -> set[float]:
    """By how much the forecasts were stretched that a decision was based on."""
    recorded = recording()
    replay = Replay(recorded)
    how = Request(settings=Settings(mode=mode), budget=budget, surrogate=surrogate)
    seen: set[float] = set()
    wrapped = engine.tune

    def watching(*arguments: Any, surrogate: Any, **rest: Any) -> Any:
        class Watched:
            name = surrogate.name

            def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
                answer: Sequence[Forecast | Abstention] = surrogate.forecast(asked)
                seen.update(f.widened for f in answer if isinstance(f, Forecast))
                return answer

        return wrapped(*arguments, surrogate=Watched(), **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "tune", watching)
        decide(job_of(recorded), how, compiler=replay, measurer=replay, store=store)
    return seen


def test_live_forecasts_are_as_wide_as_the_stores_record_says(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        (factor,) = stretches(store, TooSure())
        assert factor == 4.0
        recorded = {f.widened for f, _ in store.pairs("cuda") if f.source == "too sure"}
        assert recorded == {4.0}, "what was done to a forecast is kept with it"
        assert stretches(SqliteStore.in_memory(), TooSure()) == {1.0}


@pytest.mark.parametrize(("mode", "factor"), [("tune", 4.0), ("cached", 4.0), ("forecast", 1.0)])
def test_mode_forecast_is_the_only_one_whose_forecasts_no_log_changes(tmp_path: Path, mode: str, factor: float) -> None:
    with with_a_record(tmp_path) as store:
        assert stretches(store, TooSure(), mode, "0") == {factor}


def test_a_surrogate_that_says_so_is_left_alone(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        assert stretches(store, Stubborn()) == {1.0}


def test_the_record_of_other_hardware_says_nothing(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        how = Request(settings=Settings(), budget="4", surrogate=TooSure())
        asked = Question(job=a_job(), configs=SPACE)
        for kind, factor in (("cuda", 4.0), ("cpu", 1.0), ("stub", 1.0)):
            (said, *_) = engine._recalibrated(how, store, kind).forecast(asked)
            assert isinstance(said, Forecast)
            assert said.widened == factor


def test_pairs_are_read_once_in_many_decisions_and_never_for_a_recall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    pairs = SqliteStore.pairs

    def counted(self: SqliteStore, kind: str) -> Any:
        reads.append(kind)
        return pairs(self, kind)

    monkeypatch.setattr(SqliteStore, "pairs", counted)
    monkeypatch.setattr(engine, "RECALIBRATE_EVERY", 3)
    recorded = recording()
    how = Request(settings=Settings(), budget="4", surrogate=TooSure())
    with with_a_record(tmp_path) as store:
        for n in range(4):
            job = job_of(recorded)
            job = replace(job, workload=replace(job.workload, key={"n": n}))
            for _ in range(2):  # the second time it is recalled
                replay = Replay(recorded)
                decide(job, how, compiler=replay, measurer=replay, store=store)
            assert reads == ["cuda"] * (1 + n // 3)
    assert len(StoreFile(tmp_path).decisions()) == 4
