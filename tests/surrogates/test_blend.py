from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from contracts.surrogate_contract import SurrogateContract
from recorded import ROLES, question, recording

from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.job import Question
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
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


ASKED = question(recording())
UNSURE = Says("unsure", Forecast.normal(1.0, 0.9, source="unsure"))
SURE = Says("sure", Forecast.normal(0.0, 0.1, source="sure", default_us=50.0))
SILENT = Says("silent", Abstention("silent", "no idea"))


def blended(*members: Surrogate) -> Forecast:
    forecast = Blend(members).forecast(ASKED)[0]
    assert isinstance(forecast, Forecast)
    return forecast


def test_the_surer_member_carries_more_weight() -> None:
    forecast = blended(UNSURE, SURE)
    assert 0.0 < forecast.mean < 0.05


def test_it_is_no_surer_than_its_surest_member_and_less_sure_where_they_disagree() -> None:
    assert blended(SURE, SURE).sigma == pytest.approx(0.1)
    far = Says("far", Forecast.normal(2.0, 0.1, source="far"))
    assert blended(SURE, far).sigma > 0.9


def test_its_source_says_who_said_what() -> None:
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
    assert answer[0] == UNSURE.said
    assert isinstance(answer[1], Forecast)
    assert answer[1].source == "sure and unsure"


def test_a_limit_known_to_one_member_counts_unless_another_saw_the_config_run() -> None:
    wary = Says("wary", Forecast.normal(0.0, 0.9, source="wary", fail_probability=0.6))
    vague = Says("vague", Forecast.normal(0.0, 0.9, source="vague"))
    assert 0.2 < blended(wary, vague).fail_probability < 0.6
    assert blended(wary, SURE).fail_probability < 0.05


def test_mixtures_are_heard_by_their_moments() -> None:
    mixed = Says("mixed", Forecast((Normal(-1.0, 0.1, 0.5), Normal(1.0, 0.1, 0.5)), "mixed"))
    assert blended(mixed, replace_source(SURE, "sure")).mean == pytest.approx(0.0, abs=1e-9)


def replace_source(member: Says, source: str) -> Says:
    assert isinstance(member.said, Forecast)
    return Says(member.name, replace(member.said, source=source))
