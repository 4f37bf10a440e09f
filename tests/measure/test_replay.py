from __future__ import annotations

from contracts.compiler_contract import CompilerContract
from contracts.measurer_contract import MeasurerContract
from recorded import recording

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure, Measurement
from forecast_autotune.measure.replay import Replay

WHOLE = recording()
GOOD = [c for c, o in WHOLE.outcomes.items() if isinstance(o, Measurement)][:3]


def failing_at(stage: str) -> Config:
    return next(c for c, o in WHOLE.outcomes.items() if isinstance(o, Failure) and o.stage == stage)


class TestReplayCompiles(CompilerContract):
    def make_compiler(self) -> Replay:
        return Replay(WHOLE)

    def good(self) -> list[Config]:
        return GOOD

    def unbuildable(self) -> Config:
        return failing_at("compile")


class TestReplayMeasures(MeasurerContract):
    repeatable = False

    def make_measurer(self) -> Replay:
        return Replay(WHOLE)

    def good(self) -> list[Config]:
        return GOOD

    def bad(self) -> Config:
        return failing_at("launch")


def test_it_answers_as_recorded() -> None:
    assert Replay(WHOLE).measure(GOOD[0]) == WHOLE.outcomes[GOOD[0]]


def test_the_recorded_cost_is_charged_to_the_clock() -> None:
    replay = Replay(WHOLE, now=lambda: 1000.0)
    budget = Budget("all", clock=replay.clock)
    budget.start(len(WHOLE.outcomes))
    assert isinstance(dict(replay.compile(GOOD[:1]))[GOOD[0]], Evidence)
    assert budget.spent_s == 0.5
    replay.measure(GOOD[0])
    assert round(budget.spent_s, 6) == 0.6
    replay.measure(failing_at("launch"))
    assert round(budget.spent_s, 6) == 1.2
    list(replay.compile([failing_at("compile")]))
    assert round(budget.spent_s, 6) == 1.5


def test_a_failure_is_charged_once_and_where_it_was_met() -> None:
    replay = Replay(WHOLE, now=lambda: 0.0)
    built = dict(replay.compile([failing_at("launch")]))
    assert isinstance(built[failing_at("launch")], Evidence)
    assert replay.charged_s == 0.0


def test_a_config_that_was_not_recorded_is_a_failure() -> None:
    assert isinstance(Replay(WHOLE).measure(Config({"block": 1})), Failure)


def test_measuring_again_tells_nothing() -> None:
    assert Replay(WHOLE).repeatable is False
