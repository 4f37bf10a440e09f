"""The loop on small recordings; what a decision rests on is the recording, so every expectation is computed from it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from recorded import best_us, job_of, measurement, recording

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision, Resolution
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Compile, Job, Measure, Progress, Question, Recording, Stop, View
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.errors import NoWorkingConfigError
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import Policy, Surrogate
from forecast_autotune.surrogates.history import History
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive, First, Selective, StoredOnly


@dataclass
class Memory:
    """A store in a few dicts that notes the order of what it is told."""

    known: dict[Config, Outcome] = field(default_factory=dict)
    decided: Decision | None = None
    recordings: Sequence[Recording] = ()
    alone: bool = True
    recorded: list[tuple[Config, Outcome, Forecast | Abstention | None]] = field(default_factory=list)
    held: Decision | None = None  # by all ranks
    held_later: Decision | None = None  # once this one has waited
    given: list[Decision] = field(default_factory=list)  # to the other ranks
    pending: list[str] = field(default_factory=list)  # why it is

    def decision(self, job: Job) -> Decision | None:
        return self.decided

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        return self.known

    def recollect(self, job: Job) -> Sequence[Recording]:
        return self.recordings

    def record(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        self.recorded.append((config, outcome, forecast))

    def decide(self, job: Job, decision: Decision) -> None:
        self.decided = decision

    def note_pending(self, job: Job, why: str) -> None:
        self.pending.append(why)

    def agreed(self, job: Job) -> Decision | None:
        return self.held

    def agree(self, job: Job, decision: Decision) -> Decision:
        self.given.append(decision)
        return self.held or decision

    def single_flight(self, job: Job) -> contextlib.AbstractContextManager[bool]:
        if self.held_later is not None:
            self.held = self.held_later
        return contextlib.nullcontext(self.alone)


class Fixed:
    """Forecasts what it is given."""

    name = "fixed"

    def __init__(self, forecasts: Mapping[Config, Forecast] | None = None) -> None:
        self.forecasts = forecasts or {}

    def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
        return [self.forecasts.get(c, Abstention("fixed", "not said")) for c in asked.configs]


def recorded_as(times_us: Sequence[float | Outcome]) -> Recording:
    """A recording of configs i=0, 1, … with these times."""
    outcomes = {Config({"i": i}): measurement(t) if isinstance(t, (int, float)) else t for i, t in enumerate(times_us)}
    return replace(recording(), default=Config({"i": 0}), outcomes=outcomes)


def decide(of: Recording, budget: str | int = "all", **more: Any) -> Decision:
    """What is run now, whether it holds or not."""
    return resolve(of, budget, **more).decision


def resolve(
    of: Recording,
    budget: str | int = "all",
    *,
    policy: Policy | None = None,
    surrogate: Surrogate | None = None,
    store: Memory | None = None,
    listener: list[Progress] | None = None,
    earlier: Decision | None = None,
) -> Resolution:
    replay = Replay(of)
    return tune(
        job_of(of),
        compiler=replay,
        surrogate=surrogate or Fixed(),
        policy=policy or Exhaustive(),
        measurer=replay,
        store=store if store is not None else Memory(),
        budget=Budget(budget, clock=replay.clock),
        listener=None if listener is None else listener.append,
        earlier=earlier,
    )


FAILED = Failure(stage="launch", message="too many resources requested", cost_s=0.1)


def test_everything_measured_decides_for_the_best() -> None:
    decision = decide(recorded_as([100, 90, 50, 70]))
    assert decision.config == Config({"i": 2})
    assert decision.basis == "measured"
    assert (decision.measured, decision.compiled, decision.failed) == (4, 4, 0)
    assert decision.speedup == pytest.approx(2.0)
    assert decision.reason.startswith("2.00x the default's speed")


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_no_more_configs_are_tried_than_the_budget_allows(budget: int) -> None:
    whole = recording()
    for policy in (Exhaustive(), Selective()):
        store = Memory()
        decision = decide(whole, budget, policy=policy, surrogate=History(), store=store)
        assert decision.measured == len({c for c, _, _ in store.recorded}) == budget
        assert decision.compiled <= budget


def test_a_share_of_the_space_is_so_many_configs() -> None:
    assert decide(recording(), "10%").measured == 8


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


def test_equal_times_are_decided_alike_and_the_others_are_named() -> None:
    times = [100, 50.1, 50.0, 50.05, 80]
    decision = decide(recorded_as(times))
    assert decision.config == Config({"i": 1})
    assert set(decision.equivalents) == {Config({"i": 2}), Config({"i": 3})}
    assert decide(recorded_as(times)).config == decision.config


def test_a_winner_must_beat_the_default_beyond_the_noise() -> None:
    decision = decide(recorded_as([100, 99]))
    assert decision.config == Config({"i": 0})
    assert "noise" in decision.reason
    noisy = recorded_as([measurement(100, spread=0.5), measurement(90, spread=0.5)])
    assert decide(noisy).config == Config({"i": 0})
    assert decide(recorded_as([100, 90])).config == Config({"i": 1})


def test_a_failure_is_remembered_and_never_wins() -> None:
    store = Memory()
    decision = decide(recorded_as([100, FAILED, 80]), store=store)
    assert decision.config == Config({"i": 2})
    assert decision.failed == 1
    assert (Config({"i": 1}), FAILED) in [(c, o) for c, o, _ in store.recorded]


def test_a_config_that_does_not_compile_counts_like_one_that_was_timed() -> None:
    broken = Failure(stage="compile", message="no", cost_s=0.2)
    decision = decide(recorded_as([100, broken, broken, 50]), 3)
    assert decision.measured == 3
    assert decision.failed == 2
    assert decision.config == Config({"i": 0})


def test_the_forecast_before_an_outcome_is_kept_with_it() -> None:
    said = Forecast.normal(0.5, 0.2, source="fixed")
    store = Memory()
    decide(recorded_as([100, 60]), surrogate=Fixed({Config({"i": 1}): said}), store=store)
    assert {c: f for c, _, f in store.recorded}[Config({"i": 1})] == said


WRONG = Failure(stage="check", message="out: 3 of 4096 elements differ", cost_s=0.1)
TOO_LARGE = Failure(stage="launch", message="OutOfResources: shared memory, Required: 300000", cost_s=0.1)
ODD = Failure(stage="compile", message="CompilationError: at 4:21:\ndef f(x):\n    ^\nNameError('y')", cost_s=0.1)


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(("failure", "reason"), [(WRONG, "check: out: 3 of"), (ODD, "at 4:21: … NameError('y')")])
def test_configs_that_fail_oddly_are_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, failure: Failure, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    of = recorded_as([100, failure, TOO_LARGE, TOO_LARGE, 80, failure])
    decide(of)
    (told,) = loud(caplog)
    assert "4 of 6 configs tried failed, 2 of them like i=1 at" in told
    assert reason in told
    assert "\n" not in told
    assert f"forecast-autotune show {job_of(of).digest[:10]}" in told


def test_configs_that_are_only_too_large_are_logged_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assertion = Failure(stage="compile", message="CompileTimeAssertionFailure: at 2:4:\nno 128")
    not_for_these = Failure(stage="launch", message="InvalidInputError: rows of at most 4096")
    decide(recorded_as([100, TOO_LARGE, 80, TOO_LARGE, assertion, not_for_these]))
    assert loud(caplog) == []
    assert any("4 of 6 configs tried failed, 2 of them like i=1 at launch" in r.getMessage() for r in caplog.records)


def test_failures_of_an_earlier_run_are_not_reported_again(caplog: pytest.LogCaptureFixture) -> None:
    decide(recorded_as([100, WRONG, 80]), store=Memory(known={Config({"i": 1}): WRONG}))
    assert loud(caplog) == []


def test_an_interrupted_run_goes_on_without_trying_again_what_it_knows() -> None:
    class Interrupted(Exhaustive):
        steps = 0

        def step(self, view: View) -> Compile | Measure | Stop:
            self.steps += 1
            if self.steps == 3:
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
    assert (decision.config, decision.basis, decision.measured) == (Config({"i": 0}), "default", 0)
    assert store.recorded == []
    assert store.decided is None


def test_a_trusted_forecast_decides_on_a_budget_of_nothing() -> None:
    said = {
        Config({"i": 1}): Forecast.normal(0.5, 0.2, source="fixed"),
        Config({"i": 2}): Forecast.normal(0.9, 2.0, source="fixed"),  # better, but far from sure
        Config({"i": 3}): Forecast.normal(0.9, 0.2, source="fixed", fail_probability=0.5),
    }
    decision = decide(recorded_as([100, 60, 60, 60]), "0", policy=StoredOnly(), surrogate=Fixed(said))
    assert (decision.config, decision.basis) == (Config({"i": 1}), "forecast")
    assert "fixed" in decision.reason


def test_what_is_stored_decides_on_a_budget_of_nothing() -> None:
    store = Memory(known={Config({"i": 0}): measurement(100), Config({"i": 1}): measurement(60)})
    decision = decide(recorded_as([100, 60]), "0", policy=StoredOnly(), store=store)
    assert (decision.config, decision.basis) == (Config({"i": 1}), "measured")


def test_the_first_config_may_be_asked_for() -> None:
    decision = decide(recorded_as([100, 60]), "0", policy=First())
    assert (decision.config, decision.basis) == (Config({"i": 0}), "default")


def test_a_default_that_kills_the_process_is_an_error_if_nothing_else_runs() -> None:
    crash = Failure(stage="launch", message="segmentation fault", cost_s=0.1, crashed=True)
    with pytest.raises(NoWorkingConfigError, match="segmentation fault"):
        decide(recorded_as([crash, FAILED]))
    assert decide(recorded_as([crash, 80])).config == Config({"i": 1})
    # One that merely fails is the caller's to launch, as if there had been no tuning.
    assert decide(recorded_as([FAILED, FAILED])).config == Config({"i": 0})


def test_without_a_working_default_the_fastest_is_taken() -> None:
    decision = decide(recorded_as([FAILED, 90, 80]))
    assert decision.config == Config({"i": 2})
    assert decision.default_us is None
    assert "default does not run" in decision.reason


def test_a_surrogate_that_answers_for_the_wrong_configs_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    class Terse:
        name = "terse"

        def forecast(self, question: Question) -> list[Forecast | Abstention]:
            return [Forecast.normal(0.0, 1.0, source=self.name)]

    assert decide(recorded_as([100, 60]), policy=Selective(), surrogate=Terse()).config == Config({"i": 1})
    assert "it answered for 1 of 2 configs" in caplog.text


def test_a_surrogate_that_raises_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    class Raises:
        name = "raises"

        def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
            raise RuntimeError("no server")

    caplog.set_level(logging.WARNING)
    assert decide(recorded_as([100, 60]), surrogate=Raises()).config == Config({"i": 1})
    assert any("no server" in r.getMessage() for r in caplog.records)


def test_a_policy_that_asks_for_nothing_new_ends_the_run() -> None:
    class Stuck:
        def step(self, view: View) -> Compile | Measure | Stop:
            return Measure((view.space.default,))

    decision = decide(recorded_as([100, 60]), policy=Stuck())
    assert decision.measured == 1
    assert "nothing new" in decision.reason


def test_while_another_process_tunes_the_best_known_is_run_at_once() -> None:
    of = recorded_as([100, 60, 40])
    sure = {Config({"i": 2}): Forecast.normal(1.0, 0.1, source="fixed")}
    known = replace(decide(of), config=Config({"i": 1}), basis="forecast", measured=0)
    for decided, surrogate, expected in (
        (None, Fixed(), (0, "default")),
        (None, Fixed(sure), (2, "forecast")),
        (known, Fixed(sure), (1, "forecast")),
    ):
        store = Memory(alone=False, decided=decided)
        found = resolve(of, store=store, surrogate=surrogate)
        assert found.retry_after_s is not None
        assert (found.decision.config["i"], found.decision.basis) == expected
        assert not found.decision.run or found.decision == known
        assert (store.recorded, store.given, store.pending) == ([], [], [])
        assert store.decided == decided


def test_later_looks_forecast_nothing_and_take_the_decision_once_stored() -> None:
    class Counting(Fixed):
        asked = 0

        def forecast(self, asked: Question) -> Sequence[Forecast | Abstention]:
            self.asked += 1
            return super().forecast(asked)

    of, store, surrogate = recorded_as([100, 60]), Memory(alone=False), Counting()
    first = resolve(of, store=store, surrogate=surrogate)
    for _ in range(3):
        assert resolve(of, store=store, surrogate=surrogate, earlier=first.decision) == first
    assert surrogate.asked == 1
    store.decided = decide(of)
    store.known = dict(of.outcomes)
    assert resolve(of, store=store, earlier=first.decision) == Resolution(store.decided)


def test_who_knows_nothing_that_is_safe_to_run_tunes_beside_the_other() -> None:
    crash = Failure(stage="launch", message="illegal address", crashed=True)
    store = Memory(alone=False, known={Config({"i": 0}): crash})
    found = resolve(recorded_as([crash, 80]), store=store)
    assert found == Resolution(found.decision)
    assert found.decision.config == Config({"i": 1})


def test_the_listener_hears_how_far_it_has_come() -> None:
    heard: list[Progress] = []
    decide(recorded_as([100, 60]), listener=heard)
    assert [p.doing for p in heard][-1] == "decided"
    assert heard[-1].best == Config({"i": 1})
    assert heard[-1].best_speedup == pytest.approx(100 / 60)
    assert max(p.measured for p in heard) == 2


def test_finalists_are_timed_again_in_turns() -> None:
    class Repeatable(Replay):
        repeatable = True
        asked: list[Config]

        def measure(self, config: Config, *, hopeless_us: float = math.inf) -> Outcome:
            self.__dict__.setdefault("asked", []).append(config)
            return super().measure(config)

    of = recorded_as([100, 50, 51, 90])
    replay = Repeatable(of)
    store = Memory()
    decision = tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=Exhaustive(),
        measurer=replay,
        store=store,
        budget=Budget(4, clock=replay.clock),
    ).decision
    assert decision.config == Config({"i": 1})
    assert decision.measured == 4
    turns = [c["i"] for c in replay.asked[4:]]
    assert turns == [1, 2, 0] * (len(turns) // 3)
    last = [o for c, o, _ in store.recorded if c == Config({"i": 1})][-1]
    assert isinstance(last, Measurement)
    assert len(last.samples_us) == 8 * (len(turns) // 3)


class Noisy(Replay):
    """Answers with so many samples, a spread around the recorded time, and notes what it was asked."""

    repeatable = True

    def __init__(self, of: Recording, spread: float) -> None:
        super().__init__(of)
        self.spread = spread
        self.asked: list[tuple[Config, float]] = []

    def measure(self, config: Config, *, hopeless_us: float = math.inf) -> Outcome:
        self.asked.append((config, hopeless_us))
        outcome = super().measure(config)
        assert isinstance(outcome, Measurement)
        shares = (1 - self.spread, 1.0, 1 + self.spread)
        return Measurement(samples_us=tuple(outcome.median_us * share for share in shares))


def tuned_by(
    of: Recording, measurer: Noisy, surrogate: Surrogate | None = None, store: Memory | None = None
) -> Decision:
    return tune(
        job_of(of),
        compiler=measurer,
        surrogate=surrogate or Fixed(),
        policy=Exhaustive(),
        measurer=measurer,
        store=store or Memory(),
        budget=Budget("all", clock=measurer.clock),
    ).decision


@pytest.mark.parametrize(("spread", "rounds"), [(0.0001, 3), (0.2, 8)])
def test_finalists_are_timed_until_they_differ_or_a_limit_is_reached(spread: float, rounds: int) -> None:
    of = recorded_as([100, 50, 51, 90])
    measurer = Noisy(of, spread)
    tuned_by(of, measurer)
    assert len(measurer.asked[4:]) == 3 * rounds


class Warming(Noisy):
    """Slows down by a factor from the timing of this number on."""

    def __init__(self, of: Recording, *, factor: float, after: int) -> None:
        super().__init__(of, spread=0.0001)
        self.factor = factor
        self.after = after

    def measure(self, config: Config, *, hopeless_us: float = math.inf) -> Outcome:
        outcome = super().measure(config, hopeless_us=hopeless_us)
        assert isinstance(outcome, Measurement)
        slow = self.factor if len(self.asked) > self.after else 1.0
        return replace(outcome, samples_us=tuple(t * slow for t in outcome.samples_us))


@pytest.mark.parametrize("factor", [0.8, 0.97, 1.03, 1.14, 1.3])
def test_a_drift_before_the_finals_lets_none_win_that_was_not_in_them(factor: float) -> None:
    of = recorded_as([150, 100, 100.7, 101.4, 102.1, 99])
    decision = tuned_by(of, Warming(of, factor=factor, after=6))
    assert decision.config == Config({"i": 5})
    assert decision.speedup == pytest.approx(150 / 99, rel=1e-3)
    assert decision.config_us == pytest.approx(99, rel=1e-3), "on one scale with what is stored of the others"


def test_what_is_stored_of_a_run_is_on_one_scale_whatever_drifted() -> None:
    of = recorded_as([150, 100, 120, 130])
    store = Memory()
    tuned_by(of, Warming(of, factor=1.2, after=4), store=store)
    times = {c: o.median_us for c, o, _ in store.recorded if isinstance(o, Measurement)}
    assert times == {
        c: pytest.approx(o.median_us, rel=1e-3) for c, o in of.outcomes.items() if isinstance(o, Measurement)
    }


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_times_of_an_earlier_run_are_brought_to_this_one_by_its_default(factor: float) -> None:
    of = recorded_as([150, 100, 90, 110, 95])
    earlier = {Config({"i": i}): measurement(t * factor) for i, t in enumerate([150, 100, 90])}
    measurer = Noisy(of, 0.0001)
    decision = tuned_by(of, measurer, store=Memory(known=dict(earlier)))
    assert decision.config == Config({"i": 2})
    assert decision.measured == 2, "timing the default again takes none of the budget"
    assert [c["i"] for c, _ in measurer.asked[:3]] == [0, 3, 4]


def test_without_a_working_default_the_fastest_scales_earlier_times() -> None:
    of = recorded_as([150, 100, 90, 110, 95])
    known: dict[Config, Outcome] = {Config({"i": 0}): FAILED}
    known |= {Config({"i": i}): measurement(t * 2) for i, t in ((1, 100), (2, 90))}
    assert tuned_by(of, Noisy(of, 0.0001), store=Memory(known=known)).config == Config({"i": 2})


def test_a_run_that_finds_everything_timed_still_decides_by_turns() -> None:
    of = recorded_as([150, 100, 90])
    known: dict[Config, Outcome] = {Config({"i": 0}): measurement(150), Config({"i": 1}): measurement(89)}
    decision = tuned_by(of, Noisy(of, 0.0001), store=Memory(known={**known, Config({"i": 2}): measurement(90)}))
    assert (decision.config, decision.measured) == (Config({"i": 2}), 0)


def test_of_many_equally_fast_the_first_in_the_space_is_a_finalist() -> None:
    of = recorded_as([150, *(100 + 0.01 * i for i in range(9, 0, -1))])
    assert tuned_by(of, Noisy(of, 0.0001)).config == Config({"i": 1})


def test_a_win_that_a_neighbour_may_have_made_does_not_count() -> None:
    disturbed = replace(measurement(90), disturbance=0.2)
    assert decide(recorded_as([100, disturbed])).config == Config({"i": 0})
    assert decide(recorded_as([disturbed, 80])).config == Config({"i": 0})
    assert decide(recorded_as([100, 90])).config == Config({"i": 1})


def test_who_looked_slow_beside_a_neighbour_is_timed_again_in_the_finals() -> None:
    class Neighboured(Noisy):
        def measure(self, config: Config, *, hopeless_us: float = math.inf) -> Outcome:
            outcome = super().measure(config, hopeless_us=hopeless_us)
            assert isinstance(outcome, Measurement)
            beside = config == Config({"i": 2}) and len(self.asked) <= 4
            return replace(outcome.scaled(1.5), disturbance=1 / 3) if beside else outcome

    of = recorded_as([150, 100, 90, 110])
    assert tuned_by(of, Neighboured(of, 0.0001)).config == Config({"i": 2})


def test_the_early_stop_allows_for_the_best_the_forecast_and_the_noise() -> None:
    of = recorded_as([100, 50, 60, 70])
    blind, sure_slow, sure_fast = Noisy(of, 0.001), Noisy(of, 0.001), Noisy(of, 0.001)
    tuned_by(of, blind)
    tuned_by(of, sure_slow, Fixed({Config({"i": 3}): Forecast.normal(-1.0, 0.1, source="test")}))
    tuned_by(of, sure_fast, Fixed({Config({"i": 3}): Forecast.normal(3.0, 0.1, source="test")}))
    named = {"blind": blind, "slow": sure_slow, "fast": sure_fast}
    bounds = {name: dict(measurer.asked[:4])[Config({"i": 3})] for name, measurer in named.items()}
    assert blind.asked[0] == (Config({"i": 0}), math.inf), "nothing to compare the default with"
    assert bounds["blind"] == pytest.approx(50 * 2**1.5), "three errors of half an octave"
    assert bounds["slow"] == pytest.approx(100.0), "never below twice the best: one run says too little"
    assert bounds["fast"] > 2 * bounds["blind"]
    assert not math.isfinite(sure_fast.asked[-1][1]), "finalists are timed in full"


def test_selective_with_history_nears_the_best_on_a_quarter_of_the_space() -> None:
    whole = recording()
    slowdowns = []
    for seed in range(5):
        found = whole.outcomes[decide(whole, 20, policy=Selective(seed), surrogate=History()).config]
        assert isinstance(found, Measurement)
        slowdowns.append(found.median_us / best_us(whole))
    assert sorted(slowdowns)[2] < 1.05
    assert math.isclose(min(slowdowns), 1.0, abs_tol=0.05)


# Ranks ------------------------------------------------------------------------------------------------------------------


def test_the_ranks_shared_decision_is_taken_whatever_its_basis_unmeasured() -> None:
    held = replace(decide(recorded_as([100, 50, 70])), basis="forecast", measured=0)
    for store in (Memory(held=held), Memory(held_later=held), Memory(held_later=held, alone=False)):
        assert decide(recorded_as([100, 50, 70]), store=store) == held
        assert not store.recorded


@pytest.mark.parametrize("budget", ["all", "0"])
def test_a_decision_is_published_to_other_ranks_unless_theirs_came_first(budget: str) -> None:
    theirs = replace(decide(recorded_as([100, 50, 70])), config=Config({"i": 2}))

    class Late(Memory):
        def agree(self, job: Job, decision: Decision) -> Decision:
            super().agree(job, decision)
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
    held = replace(decide(recorded_as([100, 50, 70])), basis="default", measured=0)

    class Overtaken(Memory):
        def agreed(self, job: Job) -> Decision | None:
            return held if len(self.recorded) >= 2 else None

    store = Overtaken()
    assert decide(recorded_as([100, 50, 70, 80, 90, 60]), 5, policy=policy, store=store) == held
    assert len(store.recorded) == 2
    assert store.decided is None, "what was measured so far is no decision"


# Sharing ----------------------------------------------------------------------------------------------------------------


class Together:
    """Shares that any number of threads hold, as processes do; what they keep is one dict."""

    processes = 2

    def __init__(self, taken: dict[Config, str], name: str) -> None:
        self.all = taken  # by whom; "" once it was tried
        self.name = name
        self.declined = False

    @contextlib.contextmanager
    def lead(self, run: str, most: float, first: Config | None) -> Iterator[None]:
        yield

    def wanted(self) -> bool:
        return not self.declined

    def take(self, config: Config) -> bool:
        return self.all.setdefault(config, self.name) == self.name

    def tried(self, config: Config) -> None:
        self.all[config] = ""

    def give_back(self, config: Config) -> None:
        del self.all[config]
        self.declined = True

    def taken(self) -> frozenset[Config]:
        return frozenset(c for c, by in self.all.items() if by not in ("", self.name))

    def device(self) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


FULL = Failure(stage="launch", message="out of memory", transient=True)


class InOrder:
    """Asks for one config, the first not tried, as a policy that ranks them would."""

    def step(self, view: View) -> Compile | Measure | Stop:
        left = [c for c in view.space if c not in view.outcomes]
        return Measure((left[0],)) if left else Stop("all was tried")


def tune_shared(of: Recording, taken: dict[Config, str], store: Memory) -> Decision:
    replay = Replay(of)
    return tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=InOrder(),
        measurer=replay,
        store=store,
        budget=Budget("all", clock=replay.clock),
        shares=Together(taken, "this one"),
    ).decision


def test_a_config_another_process_never_finishes_is_skipped() -> None:
    store = Memory()
    decision = tune_shared(recorded_as([100, 90, 80, 50]), {Config({"i": 1}): ""}, store)
    assert [c["i"] for c, _, _ in store.recorded] == [0, 2, 3]
    assert decision.config == Config({"i": 3})


def test_a_helper_releases_what_failed_through_no_fault_and_helps_no_more() -> None:
    taken: dict[Config, str] = {Config({"i": 0}): "the leader"}
    store = Memory(alone=False)
    tune_shared(recorded_as([100, 90, FULL, 50]), taken, store)
    assert [c["i"] for c, _, _ in store.recorded] == [1, 2]
    assert taken == {Config({"i": 0}): "the leader", Config({"i": 1}): ""}


def test_a_helper_passes_over_what_the_leader_tried_to_no_visible_end() -> None:
    taken: dict[Config, str] = {Config({"i": 0}): "", Config({"i": 1}): ""}
    store = Memory(alone=False)
    tune_shared(recorded_as([100, 90, 80, 50]), taken, store)
    assert [c["i"] for c, _, _ in store.recorded] == [2, 3]


def test_a_config_released_while_the_leader_waits_is_tried_by_the_leader() -> None:
    late = Config({"i": 2})

    class GivenBack(Together):
        asked = 0

        def taken(self) -> frozenset[Config]:
            self.asked += 1
            if self.asked > 8:
                self.all.pop(late, None) if self.all.get(late) == "a helper" else None
            return super().taken()

    of = recorded_as([100, 90, 50])
    replay, store = Replay(of), Memory()
    decision = tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=InOrder(),
        measurer=replay,
        store=store,
        budget=Budget("all", clock=replay.clock),
        shares=GivenBack({late: "a helper"}, "the leader"),
    ).decision
    assert decision.config == late
