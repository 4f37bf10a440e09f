"""What a surrogate of one's own takes: a class, and what is said of one that lacks something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from asking import Question, ask
from contracts.surrogate_contract import SurrogateContract
from recorded import job_of, question, recording

from forecast_autotune.core.budget import BudgetLimits
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.frontends import deciding
from forecast_autotune.frontends.request import Request, make_request
from forecast_autotune.measure.replay import Replay
from forecast_autotune.settings import SURROGATES, Settings
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.base import (
    BaseSurrogate,
    Forecasts,
    OutcomeSession,
    StatelessSurrogate,
    WithContext,
    WrappedSurrogate,
)
from forecast_autotune.surrogates.by_name import SINGLE, make_surrogate


class TwiceAsFast(StatelessSurrogate):
    """Says of every config that it is twice as fast as the default."""

    name = "twice"

    def forecast(self, context: ForecastContext, *_: object) -> list[Forecast]:
        return [Forecast.normal(1.0, 0.5, source=self.name)] * len(context.job.space)


class TestTwiceAsFast(SurrogateContract):
    def make(self) -> TwiceAsFast:
        return TwiceAsFast()

    def answerable(self) -> Question:
        return question(recording(), known=5)

    def unanswerable(self) -> None:
        """It always forecasts."""


class TestWrapped(TestTwiceAsFast):
    def make(self) -> WrappedSurrogate:  # type: ignore[override]
        return WrappedSurrogate(TwiceAsFast())


class TestWithContext(TestTwiceAsFast):
    def make(self) -> WithContext:  # type: ignore[override]
        return WithContext(TwiceAsFast(), lambda context: context)


def test_a_surrogate_of_ones_own_is_used_in_tuning_and_named_in_the_store() -> None:
    whole = recording()
    replay, store = Replay(whole), SqliteStore.in_memory()
    request = Request(settings=Settings(), budget=BudgetLimits.parse("4"), surrogate=TwiceAsFast())
    decision = deciding.decide(job_of(whole), request, compiler=replay, measurer=replay, store=store).decision
    assert decision.tried == 4
    assert {f.source for f, _ in store.calibration_pairs("cuda")} == {"twice"}


def test_an_incomplete_surrogate_is_refused_when_the_kernel_is_made() -> None:
    class Old:
        name = "old"

        def forecast(self, question: Any) -> list[Forecast]:
            return []

    with pytest.raises(
        InvalidInputError,
        match=r"has no recalibrate, asks_model, fitted_on, model_version, start: derive it from .*BaseSurrogate",
    ):
        make_request(None, default_budget="16", surrogate=Old(), environment={})  # type: ignore[arg-type]


def test_the_settings_name_all_surrogates_that_there_are() -> None:
    assert ("auto", *SINGLE) == SURROGATES


@pytest.mark.parametrize("name", SURROGATES)
def test_each_name_of_the_settings_makes_a_surrogate(name: str) -> None:
    assert make_surrogate(name).name == ("blend" if name == "auto" else name)


def test_a_session_computes_once_for_the_same_outcomes_and_again_for_more() -> None:
    asked = question(recording(), known=3)
    calls: list[int] = []

    class Counting(BaseSurrogate):
        name = "counting"

        def start(self, context: ForecastContext) -> CountingSession:
            return CountingSession(context)

    class CountingSession(OutcomeSession):
        def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
            calls.append(len(outcomes))
            return ask(TwiceAsFast(), asked), -1.0

    session = Counting().start(asked.context)
    assert session.loo_log_density is None
    growing = dict(list(asked.outcomes.items())[:1])
    for _ in range(2):
        session.predict(growing, {})
    growing.update(asked.outcomes)
    session.predict(growing, {})
    assert calls == [1, 3]
    assert session.loo_log_density == -1.0


def test_added_context_reaches_the_session_and_the_rest_stays() -> None:
    seen: list[ForecastContext] = []

    class Listening(TwiceAsFast):
        recalibrate = False

        def forecast(self, context: ForecastContext, *_: object) -> list[Forecast]:
            seen.append(context)
            return super().forecast(context)

    asked = replace(question(recording()), recordings=[recording(n=8192)])
    twice = WithContext(
        WithContext(Listening(), lambda context: replace(context, ask_limit_s=3.0)),
        lambda context: replace(context, past_log_density={"a": 1.0}),
    )
    ask(twice, asked)
    (context,) = seen
    assert context == replace(asked.context, ask_limit_s=3.0, past_log_density={"a": 1.0})
    assert (twice.name, twice.recalibrate, twice.asks_model, twice.fitted_on) == ("twice", False, False, ())
