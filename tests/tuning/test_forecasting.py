"""A run asks its surrogate, and goes on without one that fails."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from small_runs import Fixed, Memory, decide, recorded_as

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.base import StatelessSurrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.tuning.policies import Selective


def test_the_forecast_before_an_outcome_is_kept_with_it() -> None:
    forecast = Forecast.normal(0.5, 0.2, source="fixed")
    store = Memory()
    decide(recorded_as([100, 60]), surrogate=Fixed({Config({"i": 1}): forecast}), store=store)
    assert {c: f for c, _, f in store.recorded}[Config({"i": 1})] == forecast


def test_a_surrogate_that_answers_for_the_wrong_configs_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Terse(StatelessSurrogate):
        name = "terse"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Forecast | Abstention]:
            return [Forecast.normal(0.0, 1.0, source=self.name)]

    assert decide(recorded_as([100, 60]), policy=Selective(), surrogate=Terse()).config == Config({"i": 1})
    assert "it answered for 1 of 2 configs" in caplog.text


def test_a_surrogate_that_raises_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(StatelessSurrogate):
        name = "raises"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            raise RuntimeError("no server")

    caplog.set_level(logging.WARNING)
    assert decide(recorded_as([100, 60]), surrogate=Raises()).config == Config({"i": 1})
    assert any("no server" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    "make", [lambda surrogate: surrogate, lambda surrogate: Blend([surrogate])], ids=["alone", "blend"]
)
def test_an_error_of_a_signal_handler_is_not_the_surrogates(make: Callable[[Surrogate], Surrogate]) -> None:
    class Slow(StatelessSurrogate):
        name = "slow"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            signal.raise_signal(signal.SIGALRM)
            return []

    def late(*_: object) -> None:
        raise TimeoutError("the request took too long")

    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            decide(recorded_as([100, 60]), surrogate=make(Slow()))
    finally:
        signal.signal(signal.SIGALRM, before)
