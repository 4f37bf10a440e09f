"""The loop on small recordings; what a decision rests on is the recording, so every expectation is computed from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from recorded import best_us, job_of, measurement, recording
from small_runs import FAILED, Fixed, Memory, decide, recorded_as, resolve

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision, Resolution
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Compile, Job, Measure, Progress, Stop, View
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import Policy
from forecast_autotune.surrogates.history import History
from forecast_autotune.tuning.policies import Exhaustive, Selective, StoredOnly


def test_everything_measured_decides_for_the_best() -> None:
    decision = decide(recorded_as([100, 90, 50, 70]))
    assert decision.config == Config({"i": 2})
    assert decision.basis == "measured"
    assert (decision.tried, decision.compiled, decision.failed) == (4, 4, 0)
    assert decision.speedup == pytest.approx(2.0)
    assert decision.reason.startswith("2.00x the default's speed")


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_no_more_configs_are_tried_than_the_budget_allows(budget: int) -> None:
    whole = recording()
    for policy in (Exhaustive(), Selective()):
        store = Memory()
        decision = decide(whole, budget, policy=policy, surrogate=History(), store=store)
        assert decision.tried == len({c for c, _, _ in store.recorded}) == budget
        assert decision.compiled <= budget


def test_a_share_of_the_space_is_so_many_configs() -> None:
    assert decide(recording(), "10%").tried == 8


def test_a_time_budget_ends_between_configs() -> None:
    decision = decide(recorded_as([100] * 50), "2s")
    # Compiling one takes 0.5 s and measuring it 0.1 s as recorded; four are compiled before the time is gone.
    assert decision.compiled <= 5
    assert decision.spent_s < 3.0


def test_the_default_is_tried_first() -> None:
    store = Memory()
    decide(recording(), 5, policy=Selective(3), surrogate=History(), store=store)
    launched = [c for c, o, _ in store.recorded if isinstance(o, Measurement) or o.stage == "launch"]
    assert launched[0] == recording().default


def test_a_config_that_does_not_compile_counts_like_one_that_was_timed() -> None:
    broken = Failure(stage="compile", message="no", cost_s=0.2)
    decision = decide(recorded_as([100, broken, broken, 50]), 3)
    assert decision.tried == 3
    assert decision.failed == 2
    assert decision.config == Config({"i": 0})


def test_an_interrupted_run_goes_on_without_trying_again_what_it_knows() -> None:
    class Interrupted(Exhaustive):
        steps = 0

        def step(self, view: View) -> Compile | Measure | Stop:
            self.steps += 1
            if self.steps == 2:
                raise KeyboardInterrupt
            return super().step(view)

    store = Memory()
    with pytest.raises(KeyboardInterrupt):
        decide(recorded_as([100, FAILED, 70, 60]), 2, policy=Interrupted(), store=store)
    assert store.decided is None
    assert [c for c, _, _ in store.recorded] == [Config({"i": 0}), Config({"i": 1})]
    store.known = {c: o for c, o, _ in store.recorded}
    store.recorded = []
    decision = decide(recorded_as([100, FAILED, 70, 60]), store=store)
    assert [c for c, _, _ in store.recorded] == [Config({"i": 2}), Config({"i": 3})]
    assert decision.config == Config({"i": 3})
    assert decision.speedup == pytest.approx(100 / 60)


def test_outcomes_of_configs_that_left_the_space_are_no_part_of_the_run() -> None:
    store = Memory(known={Config({"i": 9}): measurement(1.0)})
    assert decide(recorded_as([100, 60]), store=store).config == Config({"i": 1})


def test_a_measured_decision_is_returned_at_once() -> None:
    store = Memory()
    first = decide(recorded_as([100, 60]), store=store, budget="2")
    again = decide(recorded_as([100, 60, 30]), store=store, budget="2")
    assert again is first


def test_a_stored_decision_for_a_config_outside_the_space_is_no_hit() -> None:
    store = Memory()
    first = decide(recorded_as([100, 60]), store=store, budget="2")
    store.decided = replace(first, config=Config({"i": 7}))
    assert decide(recorded_as([100, 60]), store=store, budget="2").config == Config({"i": 1})


def test_a_budget_of_all_goes_on_until_every_config_was_tried() -> None:
    store = Memory()
    decide(recorded_as([100, 60]), store=store, budget="2")
    assert decide(recorded_as([100, 60, 30]), store=store, budget="all").config == Config({"i": 2})


def test_a_forecast_decision_does_not_block_measuring_later() -> None:
    store = Memory()
    job = job_of(recorded_as([100, 60]))
    store.decided = Decision(
        config=Config({"i": 0}), basis="forecast", reason="", space_digest=job.space.digest, space_size=2, budget="0"
    )
    assert decide(recorded_as([100, 60]), "0", store=store).basis == "forecast"
    assert decide(recorded_as([100, 60]), store=store).basis == "measured"


def test_nothing_is_measured_or_stored_on_a_budget_of_nothing() -> None:
    store = Memory()
    decision = decide(recorded_as([100, 60]), "0", policy=StoredOnly(), store=store)
    assert (decision.config, decision.basis, decision.tried) == (Config({"i": 0}), "default", 0)
    assert store.recorded == []
    assert store.decided is None


def test_a_policy_that_asks_for_nothing_new_ends_the_run() -> None:
    class Stuck:
        def step(self, view: View) -> Compile | Measure | Stop:
            return Measure((view.space.default,))

    decision = decide(recorded_as([100, 60]), policy=Stuck())
    assert decision.tried == 1
    assert "nothing new" in decision.reason


def test_while_another_process_tunes_the_best_known_is_run_at_once() -> None:
    of = recorded_as([100, 60, 40])
    sure = {Config({"i": 2}): Forecast.normal(1.0, 0.1, source="fixed")}
    known = replace(decide(of), config=Config({"i": 1}), basis="forecast", tried=0)
    for decided, surrogate, expected in (
        (None, Fixed(), (0, "default")),
        (None, Fixed(sure), (2, "forecast")),
        (known, Fixed(sure), (1, "forecast")),
    ):
        store = Memory(alone=False, decided=decided)
        resolution = resolve(of, store=store, surrogate=surrogate)
        assert resolution.retry_after_s is not None
        assert (resolution.decision.config["i"], resolution.decision.basis) == expected
        assert not resolution.decision.run or resolution.decision == known
        assert (store.recorded, store.given, store.pending) == ([], [], [])
        assert store.decided == decided


def test_later_looks_forecast_nothing_and_take_the_decision_once_stored() -> None:
    class Counting(Fixed):
        asked = 0

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            self.asked += 1
            return super().forecast(context, outcomes, evidence)

    of, store, surrogate = recorded_as([100, 60]), Memory(alone=False), Counting()
    first = resolve(of, store=store, surrogate=surrogate)
    for _ in range(3):
        assert resolve(of, store=store, surrogate=surrogate, previous_decision=first.decision) == first
    assert surrogate.asked == 1
    store.decided = decide(of)
    store.known = dict(of.outcomes)
    assert resolve(of, store=store, previous_decision=first.decision) == Resolution(store.decided)


def test_who_knows_nothing_that_is_safe_to_run_tunes_beside_the_other() -> None:
    crash = Failure(stage="launch", message="illegal address", crashed=True)
    store = Memory(alone=False, known={Config({"i": 0}): crash})
    resolution = resolve(recorded_as([crash, 80]), store=store)
    assert resolution == Resolution(resolution.decision)
    assert resolution.decision.config == Config({"i": 1})


def test_the_listener_hears_how_far_it_has_come() -> None:
    heard: list[Progress] = []
    decide(recorded_as([100, 60]), listener=heard)
    assert [p.doing for p in heard][-1] == "decided"
    assert heard[-1].best == Config({"i": 1})
    assert heard[-1].best_speedup == pytest.approx(100 / 60)
    assert max(p.tried for p in heard) == 2


def test_a_config_counts_as_tried_as_soon_as_it_is_timed() -> None:
    heard: list[Progress] = []
    decide(recorded_as([100, 60]), listener=heard)
    later = [(after.doing, after.tried) for before, after in pairwise(heard) if before.doing == "timing"]
    assert later == [("choosing", 1), ("choosing", 2)]


def test_the_listener_hears_of_building_while_configs_build(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Progress] = []
    doing = []
    build = Replay._compiled

    def watched(replay: Replay, config: Config) -> Any:
        doing.append(heard[-1].doing)
        return build(replay, config)

    monkeypatch.setattr(Replay, "_compiled", watched)
    decide(recording(), 20, policy=Selective(), surrogate=History(), listener=heard)
    assert set(doing) == {"building"}


def test_selective_with_history_nears_the_best_on_a_quarter_of_the_space() -> None:
    whole = recording()
    slowdowns = []
    for seed in range(5):
        outcome = whole.outcomes[decide(whole, 20, policy=Selective(seed), surrogate=History()).config]
        assert isinstance(outcome, Measurement)
        slowdowns.append(outcome.median_us / best_us(whole))
    assert sorted(slowdowns)[2] < 1.05
    assert math.isclose(min(slowdowns), 1.0, abs_tol=0.05)


def test_the_ranks_shared_decision_is_taken_whatever_its_basis_unmeasured() -> None:
    held = replace(decide(recorded_as([100, 50, 70])), basis="forecast", tried=0)
    for store in (Memory(held=held), Memory(held_later=held), Memory(held_later=held, alone=False)):
        assert decide(recorded_as([100, 50, 70]), store=store) == held
        assert not store.recorded


@pytest.mark.parametrize("budget", ["all", "0"])
def test_a_decision_is_published_to_other_ranks_unless_theirs_came_first(budget: str) -> None:
    theirs = replace(decide(recorded_as([100, 50, 70])), config=Config({"i": 2}))

    class Late(Memory):
        def publish_decision(self, job: Job, decision: Decision) -> Decision:
            super().publish_decision(job, decision)
            return theirs

    store = Late()
    assert decide(recorded_as([100, 50, 70]), budget, store=store) == theirs
    assert len(store.given) == 1


def test_a_stored_decision_is_given_to_the_other_ranks() -> None:
    first = decide(recorded_as([100, 50, 70]))
    store = Memory(decided=first, known=dict(recorded_as([100, 50, 70]).outcomes))
    assert decide(recorded_as([100, 50, 70]), store=store) == first
    assert store.given == [first]


@pytest.mark.parametrize("policy", [Exhaustive(), Selective()])
def test_whoever_tunes_stops_as_soon_as_the_ranks_hold_to_a_decision(policy: Policy) -> None:
    held = replace(decide(recorded_as([100, 50, 70])), basis="default", tried=0)

    class Overtaken(Memory):
        def shared_decision(self, job: Job) -> Decision | None:
            return held if len(self.recorded) >= 2 else None

    store = Overtaken()
    assert decide(recorded_as([100, 50, 70, 80, 90, 60]), 5, policy=policy, store=store) == held
    assert len(store.recorded) == 2
    assert store.decided is None, "what was measured so far is no decision"
