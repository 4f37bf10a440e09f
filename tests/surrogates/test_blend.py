from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import Question, ask, ask_with_density
from contracts.surrogate_contract import SurrogateContract
from recorded import ROLES, question, recording

from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.space import Space
from forecast_autotune.features.forecast_columns import ForecastTable, columns_of
from forecast_autotune.protocols import Surrogate, SurrogateSession
from forecast_autotune.surrogates.base import BaseSession, BaseSurrogate, StatelessSurrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.roofline import Roofline


class Says(StatelessSurrogate):
    """Always the same forecast."""

    def __init__(self, name: str, forecast: Forecast | Abstention) -> None:
        self.name = name
        self.said = forecast

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        return [self.said] * len(context.job.space)


class Raises(StatelessSurrogate):
    name = "raises"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        raise RuntimeError("no server")


class SaysTooLittle(StatelessSurrogate):
    name = "terse"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        return []


class TestBlend(SurrogateContract):
    def make(self) -> Blend:
        return Blend([History(), Roofline()])

    def answerable(self) -> Question:
        return question(recording(), known=9, roles=ROLES)


class TestBlendOfAll(TestBlend):
    def make(self) -> Blend:
        return Blend([History(), Learned(), Roofline()])

    def unanswerable(self) -> Question:
        asked = question(recording())
        nameless = Space([{"p": c["block"], "q": c["tile"]} for c in asked.job.space if c["padded"]])
        return Question(job=replace(asked.job, space=nameless))


ASKED = question(recording())
UNSURE = Says("unsure", Forecast.normal(1.0, 0.9, source="unsure"))
SURE = Says("sure", Forecast.normal(0.0, 0.1, source="sure", default_us=50.0))
SILENT = Says("silent", Abstention("silent", "no idea"))


def blended(*members: Surrogate) -> Forecast:
    forecast = ask(Blend(members), ASKED)[0]
    assert isinstance(forecast, Forecast)
    return forecast


def test_a_blend_is_no_surer_than_its_members_and_less_sure_if_they_differ() -> None:
    assert blended(SURE, SURE).sigma == pytest.approx(0.1)
    far = Says("far", Forecast.normal(2.0, 0.1, source="far"))
    assert blended(SURE, far).sigma > 0.9


def test_the_source_of_a_blend_names_its_members() -> None:
    assert blended(UNSURE, SURE).source == "unsure and sure"
    assert blended(UNSURE, SILENT).source == "unsure"


def test_an_absolute_time_is_kept() -> None:
    assert blended(UNSURE, SURE).default_us == 50.0


def test_members_that_abstain_raise_or_say_too_little_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    blend = Blend([Raises(), SaysTooLittle(), SILENT, SURE])
    for _ in range(3):
        assert ask(blend, ASKED)[0] == SURE.said
    assert [r.getMessage().split()[1] for r in caplog.records] == ["raises", "terse"]


def test_where_nobody_knows_it_abstains_with_their_reasons(caplog: pytest.LogCaptureFixture) -> None:
    answer = ask(Blend([SILENT, Raises()]), ASKED)[0]
    assert isinstance(answer, Abstention)
    assert "no idea" in answer.reason
    assert "no server" in answer.reason
    assert isinstance(ask(Blend([]), ASKED)[0], Abstention)


def test_members_may_answer_for_different_configs() -> None:
    class Half(StatelessSurrogate):
        name = "half"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            return [SURE.said if i % 2 else SILENT.said for i in range(len(context.job.space))]

    answer = ask(Blend([Half(), UNSURE]), ASKED)
    for one in answer[:2]:
        assert isinstance(one, Forecast)
        assert one.source == "sure and unsure"
    assert [b.source for b in answer[0].components] == ["unsure"]
    assert [b.source for b in answer[1].components] == ["half", "unsure"]
    assert (answer[0].mean, answer[0].sigma, answer[0].fail_probability) == (1.0, pytest.approx(0.9), 0.0)


def test_where_no_member_speaks_of_a_config_the_blend_abstains_there() -> None:
    class First(StatelessSurrogate):
        def __init__(self, name: str) -> None:
            self.name = name

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            return [SURE.said, *[SILENT.said] * (len(context.job.space) - 1)]

    answer = ask(Blend([First("a"), First("b")]), ASKED)
    assert isinstance(answer[0], Forecast)
    assert answer[1] == Abstention("sure and sure", "nobody speaks of it")


def test_a_limit_known_to_one_member_counts() -> None:
    wary = Says("wary", Forecast.normal(0.0, 0.9, source="wary", fail_probability=0.6))
    vague = Says("vague", Forecast.normal(0.0, 0.9, source="vague"))
    assert 0.2 < blended(wary, vague).fail_probability < 0.6


def test_mixtures_are_heard_by_their_moments() -> None:
    mixed = Says("mixed", Forecast((Normal(-1.0, 0.1, 0.5), Normal(1.0, 0.1, 0.5)), "mixed"))
    assert blended(mixed, replace_source(SURE, "sure")).mean == pytest.approx(0.0, abs=1e-9)


def replace_source(member: Says, source: str) -> Says:
    assert isinstance(member.said, Forecast)
    return Says(member.name, replace(member.said, source=source))


# How much each member counts --------------------------------------------------------------------------------------------


class Steady(BaseSurrogate):
    """Always the same bell and chance of failing, and the same density of the outcomes."""

    def __init__(
        self, name: str, mean: float, sigma: float = 0.3, density: float | None = None, fail: float = 0.0
    ) -> None:
        self.name = name
        self.bell = (mean, sigma, fail)
        self.density = density

    def start(self, context: ForecastContext) -> SurrogateSession:
        return SteadySession(context, self)


class SteadySession(BaseSession):
    def __init__(self, context: ForecastContext, of: Steady) -> None:
        super().__init__(context)
        self.of = of

    @property
    def loo_log_density(self) -> float | None:
        return self.of.density

    def predict(self, outcomes: Any, evidence: Any) -> ForecastTable:
        n = len(self.context.job.space)
        columns = [np.full(n, value) for value in self.of.bell]
        return ForecastTable.of_one(self.of.name, *columns, source=self.of.name)


def weights(
    *members: Surrogate, past_log_density: Mapping[str, float] | None = None, known: int = 0, first: int = 0
) -> dict[str, float]:
    """How much each member counts of one config, by its name."""
    asked = question(recording(), known=known)
    session = Blend(members).start(replace(asked.context, past_log_density=past_log_density or {}))
    forecast = session.predict(asked.outcomes, {})[first]
    assert isinstance(forecast, Forecast)
    return {bell.source: bell.weight for bell in forecast.components}


def test_being_sure_does_not_make_a_member_count_for_more() -> None:
    found = weights(Steady("a", 0.0, 0.2), Steady("b", 1.0, 0.4))
    assert found == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_a_members_limit_counts_less_where_another_forecast_better() -> None:
    alike, worse = (
        ask(Blend([Steady("wary", 0.0, density=density, fail=0.6), Steady("b", 1.0, density=-1.0)]), ASKED)[0]
        for density in (-1.0, -6.0)
    )
    assert isinstance(alike, Forecast)
    assert isinstance(worse, Forecast)
    assert alike.fail_probability > 5 * worse.fail_probability > 0.0


def test_each_members_normal_stays_in_the_mixture() -> None:
    (forecast, *_) = ask(Blend([Steady("a", 0.0, 0.2), Steady("b", 1.0, 0.4)]), ASKED)
    assert isinstance(forecast, Forecast)
    assert [(b.source, b.mean, b.sigma) for b in forecast.components] == [("a", 0.0, 0.2), ("b", 1.0, 0.4)]


def test_the_member_that_forecast_these_outcomes_better_counts_more() -> None:
    better = weights(Steady("a", 0.0, density=-1.0), Steady("b", 1.0, density=-4.0))
    much_better = weights(Steady("a", 0.0, density=-1.0), Steady("b", 1.0, density=-40.0))
    assert better["a"] > 0.6
    assert better["b"] > much_better["b"] > 0.0  # never unheard: it may be right yet


def test_a_member_without_a_log_density_counts_like_the_mean_of_the_others() -> None:
    found = weights(Steady("a", 0.0, density=-1.0), Steady("b", 1.0, density=-3.0), Steady("c", 2.0))
    assert found["a"] > found["c"] > found["b"]
    assert found["c"] / found["b"] == pytest.approx(found["a"] / found["c"])


def test_who_did_better_in_the_past_counts_for_more_and_the_past_fades() -> None:
    past = {"a": -0.5, "b": -1.5}
    ahead, later = (weights(Steady("a", 0.0), Steady("b", 1.0), past_log_density=past, known=n) for n in (0, 60))
    assert ahead["a"] > later["a"] > 0.5
    assert weights(Steady("a", 0.0), Steady("b", 1.0)) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_who_has_no_past_counts_like_the_mean_of_those_who_have() -> None:
    found = weights(Steady("a", 0.0), Steady("b", 1.0), Steady("new", 2.0), past_log_density={"a": -0.5, "b": -1.0})
    assert found["a"] > found["new"] > found["b"]


def test_outcomes_decide_between_history_and_what_was_learned() -> None:
    whole = recording()
    asked = question(whole, known=40, roles=ROLES)
    history, learned = History(), Learned()
    answers = [ask_with_density(m, asked) for m in (history, learned)]
    assert all(isinstance(t, ForecastTable) and density is not None for t, density in answers)
    tables = [table for table, _ in answers]
    true = whole.log2_speedups()
    places = [asked.job.space.index(c) for c in true if c not in asked.outcomes]
    truth = np.array([true[asked.job.space[i]] for i in places])
    errors = [float(abs(columns_of(t).mean[places] - truth).mean()) for t in tables]
    both = columns_of(ask(Blend([history, learned]), asked)).mean[places]
    assert float(abs(both - truth).mean()) < max(errors)


def test_two_sessions_of_one_blend_have_their_own_skill_and_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    blend = Blend([Raises(), Steady("a", 0.0), Steady("b", 1.0)])
    first, second = (
        blend.start(replace(ASKED.context, past_log_density=past_log_density)).predict({}, {})[0]
        for past_log_density in ({}, {"a": -0.5, "b": -5.0})
    )
    assert isinstance(first, Forecast)
    assert isinstance(second, Forecast)
    assert second.components[0].weight > first.components[0].weight
    assert len(caplog.records) == 1


def test_a_member_that_cannot_start_has_abstained(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(BaseSurrogate):
        name = "broken"

        def start(self, context: ForecastContext) -> SurrogateSession:
            raise OSError("no model")

    caplog.set_level(logging.WARNING)
    session = Blend([Broken(), SURE]).start(ASKED.context)
    for _ in range(2):
        assert session.predict({}, {})[0] == SURE.said
    assert ["no model" in r.getMessage() for r in caplog.records] == [True]


def test_a_blend_asks_a_model_and_was_fitted_on_kernels_as_its_members() -> None:
    class Model(Steady):
        asks_model = True
        fitted_on = ("matmul", "softmax")

    assert not Blend([SURE]).asks_model
    blend = Blend([SURE, Blend([Model("m", 0.0)]), Model("n", 0.0)])
    assert blend.asks_model
    assert blend.fitted_on == ("matmul", "softmax")


@pytest.mark.parametrize("nonsense", [(math.inf, 0.3, 0.0), (0.5, math.nan, 0.0), (0.5, 0.3, math.nan)])
def test_a_member_whose_forecast_is_no_number_is_not_heard(nonsense: tuple[float, float, float]) -> None:
    mean, sigma, fail = nonsense
    mad = Says("mad", Forecast.normal(mean, sigma, source="mad", fail_probability=fail))
    found = columns_of(ask(Blend([mad, Steady("sane", 0.25)]), ASKED))
    assert (found.mean.tolist(), found.fail.tolist()) == ([0.25] * found.mean.size, [0.0] * found.mean.size)
    assert found.sigma == pytest.approx(0.3)
