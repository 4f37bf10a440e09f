from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from contracts.surrogate_contract import SurrogateContract
from recorded import ROLES, question, recording

from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.job import Question
from forecast_autotune.core.space import Space
from forecast_autotune.features.arrays import ForecastTable, columns_of
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.roofline import Roofline


class Says:
    """Always the same forecast."""

    def __init__(self, name: str, forecast: Forecast | Abstention) -> None:
        self.name = name
        self.said = forecast

    def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
        return [self.said] * len(asked.configs)


class Raises:
    name = "raises"

    def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
        raise RuntimeError("no server")


class SaysTooLittle:
    name = "terse"

    def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
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
        nameless = Space([{"p": c["block"], "q": c["tile"]} for c in asked.configs if c["padded"]])
        return Question(job=replace(asked.job, space=nameless), configs=nameless)


ASKED = question(recording())
UNSURE = Says("unsure", Forecast.normal(1.0, 0.9, source="unsure"))
SURE = Says("sure", Forecast.normal(0.0, 0.1, source="sure", default_us=50.0))
SILENT = Says("silent", Abstention("silent", "no idea"))


def blended(*members: Surrogate) -> Forecast:
    forecast = Blend(members).forecast(ASKED)[0]
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
        assert blend.forecast(ASKED)[0] == SURE.said
    assert [r.getMessage().split()[1] for r in caplog.records] == ["raises", "terse"]


def test_where_nobody_knows_it_abstains_with_their_reasons(caplog: pytest.LogCaptureFixture) -> None:
    answer = Blend([SILENT, Raises()]).forecast(ASKED)[0]
    assert isinstance(answer, Abstention)
    assert "no idea" in answer.reason
    assert "no server" in answer.reason
    assert isinstance(Blend([]).forecast(ASKED)[0], Abstention)


def test_members_may_answer_for_different_configs() -> None:
    class Half:
        name = "half"

        def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
            return [SURE.said if i % 2 else SILENT.said for i in range(len(asked.configs))]

    answer = Blend([Half(), UNSURE]).forecast(ASKED)
    for one in answer[:2]:
        assert isinstance(one, Forecast)
        assert one.source == "sure and unsure"
    assert [b.said_by for b in answer[0].components] == ["unsure"]
    assert [b.said_by for b in answer[1].components] == ["half", "unsure"]
    assert (answer[0].mean, answer[0].sigma, answer[0].fail_probability) == (1.0, pytest.approx(0.9), 0.0)


def test_where_no_member_speaks_of_a_config_the_blend_abstains_there() -> None:
    class First:
        def __init__(self, name: str) -> None:
            self.name = name

        def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
            return [SURE.said, *[SILENT.said] * (len(asked.configs) - 1)]

    answer = Blend([First("a"), First("b")]).forecast(ASKED)
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


class Told:
    """Always the same bell, in a table that says how likely the outcomes here were."""

    def __init__(self, name: str, mean: float, sigma: float = 0.3, foretold: float | None = None) -> None:
        self.name = name
        self.said = (mean, sigma, foretold)

    def forecast(self, asked: Question) -> ForecastTable:
        mean, sigma, foretold = self.said
        n = len(asked.configs)
        table = np.full(n, mean), np.full(n, sigma), np.zeros(n)
        return ForecastTable.of_one(self.name, *table, source=self.name, foretold=foretold)


def weights(
    *members: Surrogate, past: Mapping[str, float] | None = None, known: int = 0, first: int = 0
) -> dict[str, float]:
    """How much each member counts of one config, by its name."""
    asked = question(recording(), known=known)
    forecast = Blend(members, past=lambda: past or {}).forecast(asked)[first]
    assert isinstance(forecast, Forecast)
    return {bell.said_by: bell.weight for bell in forecast.components}


def test_being_sure_does_not_make_a_member_count_for_more() -> None:
    found = weights(Told("a", 0.0, 0.2), Told("b", 1.0, 0.4))
    assert found == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_a_members_limit_counts_less_where_another_forecast_better() -> None:
    class Wary(Told):
        def forecast(self, asked: Question) -> ForecastTable:
            table = super().forecast(asked)
            return ForecastTable(table.voices, table.fail + 0.6, source=self.name, foretold=table.foretold)

    alike, worse = (
        Blend([Wary("wary", 0.0, foretold=told), Told("b", 1.0, foretold=-1.0)]).forecast(ASKED)[0]
        for told in (-1.0, -6.0)
    )
    assert isinstance(alike, Forecast)
    assert isinstance(worse, Forecast)
    assert alike.fail_probability > 5 * worse.fail_probability > 0.0


def test_each_members_normal_stays_in_the_mixture() -> None:
    (forecast, *_) = Blend([Told("a", 0.0, 0.2), Told("b", 1.0, 0.4)]).forecast(ASKED)
    assert isinstance(forecast, Forecast)
    assert [(b.said_by, b.mean, b.sigma) for b in forecast.components] == [("a", 0.0, 0.2), ("b", 1.0, 0.4)]


def test_the_member_that_forecast_these_outcomes_better_counts_more() -> None:
    better = weights(Told("a", 0.0, foretold=-1.0), Told("b", 1.0, foretold=-4.0))
    much_better = weights(Told("a", 0.0, foretold=-1.0), Told("b", 1.0, foretold=-40.0))
    assert better["a"] > 0.6
    assert better["b"] > much_better["b"] > 0.0  # never unheard: it may be right yet


def test_a_member_without_a_skill_score_counts_like_the_mean_of_the_others() -> None:
    found = weights(Told("a", 0.0, foretold=-1.0), Told("b", 1.0, foretold=-3.0), Told("c", 2.0))
    assert found["a"] > found["c"] > found["b"]
    assert found["c"] / found["b"] == pytest.approx(found["a"] / found["c"])


def test_who_did_better_in_the_past_counts_for_more_and_the_past_fades() -> None:
    past = {"a": -0.5, "b": -1.5}
    ahead, later = (weights(Told("a", 0.0), Told("b", 1.0), past=past, known=n) for n in (0, 60))
    assert ahead["a"] > later["a"] > 0.5
    assert weights(Told("a", 0.0), Told("b", 1.0)) == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}


def test_who_has_no_past_counts_like_the_mean_of_those_who_have() -> None:
    found = weights(Told("a", 0.0), Told("b", 1.0), Told("new", 2.0), past={"a": -0.5, "b": -1.0})
    assert found["a"] > found["new"] > found["b"]


def test_outcomes_decide_between_history_and_what_was_learned() -> None:
    whole = recording()
    asked = question(whole, known=40, roles=ROLES)
    history, learned = History(), Learned()
    tables = [m.forecast(asked) for m in (history, learned)]
    assert all(isinstance(t, ForecastTable) and t.foretold is not None for t in tables)
    true = whole.log2_speedups()
    places = [asked.job.space.index(c) for c in true if c not in asked.outcomes]
    truth = np.array([true[asked.job.space[i]] for i in places])
    errors = [float(abs(columns_of(t).mean[places] - truth).mean()) for t in tables]
    both = columns_of(Blend([history, learned]).forecast(asked)).mean[places]
    assert float(abs(both - truth).mean()) < max(errors)


def test_how_a_question_is_asked_does_not_change_who_is_heard() -> None:
    asked = question(recording(), known=12, roles=ROLES)
    blend = Blend([History(), Learned(), Roofline()])
    whole, some = blend.forecast(asked), blend.forecast(replace(asked, configs=list(asked.configs)[10:20]))
    for one, other in zip(whole[10:20], some, strict=True):
        assert isinstance(one, Forecast)
        assert isinstance(other, Forecast)
        assert [(b.said_by, b.weight) for b in one.components] == [
            (b.said_by, pytest.approx(b.weight)) for b in other.components
        ]
        assert math.isclose(one.mean, other.mean, abs_tol=1e-9)


def test_another_past_shares_the_members_and_what_was_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    blend = Blend([Raises(), Told("a", 0.0), Told("b", 1.0)])
    other = blend.with_past(lambda: {"a": -0.5, "b": -5.0})
    assert other.members == blend.members
    first, second = (b.forecast(ASKED)[0] for b in (blend, other))
    assert isinstance(first, Forecast)
    assert isinstance(second, Forecast)
    assert second.components[0].weight > first.components[0].weight
    assert len(caplog.records) == 1


def test_a_subclass_heard_by_another_past_is_still_one() -> None:
    class Louder(Blend):
        name = "louder"

    assert isinstance(Louder([History()]).with_past(dict), Louder)


@pytest.mark.parametrize("nonsense", [(math.inf, 0.3, 0.0), (0.5, math.nan, 0.0), (0.5, 0.3, math.nan)])
def test_a_member_whose_forecast_is_no_number_is_not_heard(nonsense: tuple[float, float, float]) -> None:
    mean, sigma, fail = nonsense
    mad = Says("mad", Forecast.normal(mean, sigma, source="mad", fail_probability=fail))
    found = columns_of(Blend([mad, Told("sane", 0.25)]).forecast(ASKED))
    assert (found.mean.tolist(), found.fail.tolist()) == ([0.25] * found.mean.size, [0.0] * found.mean.size)
    assert found.sigma == pytest.approx(0.3)
