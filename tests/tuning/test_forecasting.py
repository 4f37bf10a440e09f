"""A run asks its surrogate, and goes on without one that fails."""

from __future__ import annotations

import json
import logging
import math
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from small_runs import Fixed, Memory, decide, recorded_as

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.protocols import Surrogate
from forecast_autotune.store.encoding import encode_forecast
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


class Answers(StatelessSurrogate):
    """Answers the same for every config."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name, self.answer = name, answer

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        return [self.answer] * len(context.job.space)


def test_forecasts_in_numpys_numbers_are_kept_as_pythons() -> None:
    answer = Forecast.normal(
        np.float32(0.5),  # type: ignore[arg-type]
        np.float16(0.25),  # type: ignore[arg-type]
        source="floats",
        fail_probability=np.float32(0.5),  # type: ignore[arg-type]
    )
    store = Memory()
    decide(recorded_as([100, 60]), surrogate=Answers("floats", answer), store=store)
    kept = [forecast for _, _, forecast in store.recorded]
    assert kept == [Forecast.normal(0.5, 0.25, source="floats", fail_probability=0.5)] * 2
    assert json.dumps([encode_forecast(forecast) for forecast in kept])


def test_a_chance_that_is_off_by_rounding_is_one() -> None:
    answer = Forecast.normal(0.5, 0.25, source="rounded", fail_probability=1.0000001)
    store = Memory()
    decide(recorded_as([100, 60]), surrogate=Answers("rounded", answer), store=store)
    assert [forecast.fail_probability for _, _, forecast in store.recorded if isinstance(forecast, Forecast)] == [
        1.0
    ] * 2


@pytest.mark.parametrize(
    "answer",
    [
        Forecast.normal(math.nan, 1.0, source=""),
        Forecast.normal(5000.0, 1.0, source=""),
        Forecast.normal(0.0, -1.0, source=""),
        Forecast.normal(0.0, 1e200, source=""),
        Forecast.normal("0.5", 1.0, source=""),  # type: ignore[arg-type]
        Forecast.normal(0.0, 1.0, source="", fail_probability=1.1),
        Forecast.normal(0.0, 1.0, source="", default_us=math.inf),
        Forecast((), ""),
        Forecast(None, ""),  # type: ignore[arg-type]
        Forecast(((0.0, 1.0),), ""),  # type: ignore[arg-type]
    ],
    ids=repr,
)
@pytest.mark.parametrize("budget", ["all", 0])
def test_forecasts_of_no_meaning_are_done_without(
    budget: str | int, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name, store = f"means nothing {budget} {answer}", Memory()
    chosen = decide(recorded_as([100, 60]), budget, surrogate=Answers(name, answer), store=store)
    assert chosen.config == Config({"i": 1 if budget else 0})
    assert all(isinstance(forecast, Abstention) for _, _, forecast in store.recorded)
    assert len([r for r in caplog.records if "means nothing" in r.getMessage()]) == 1, "one warning, though asked often"


def test_a_surrogate_cannot_change_what_is_known() -> None:
    class Empties(Answers):
        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            outcomes.clear()
            return super().forecast(context, outcomes, evidence)

    answer = Forecast.normal(0.0, 1.0, source="empties")
    assert decide(recorded_as([100, 60]), surrogate=Empties("empties", answer)).tried == 2


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
