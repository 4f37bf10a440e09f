"""Every worker of a run is kept compiling, and what is compiled is timed at once: on recordings, with a simulated clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from recorded import job_of, measurement
from small_runs import Fixed, Memory, recorded_as

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Compile, Measure, Progress, Recording, Stop, View
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import Listener, Policy, Surrogate
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive, Selective

HOUR_S = 3600.0


class Clocked(Replay):
    """A recording that notes when each config's compile was begun and when it was timed, on a clock of recorded seconds."""

    def __init__(self, of: Recording, workers: int) -> None:
        super().__init__(of, workers=workers, now=lambda: 0.0)
        self.begun: list[tuple[float, int]] = []
        self.timed: list[tuple[float, int]] = []

    def compile(self, configs: Iterable[Config], **how: Any) -> Any:
        return super().compile(self._noted(configs), **how)

    def _noted(self, configs: Iterable[Config]) -> Iterator[Config]:
        for config in configs:
            self.begun.append((self.charged_s, int(str(config["i"]))))
            yield config

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        self.timed.append((self.charged_s, int(str(config["i"]))))
        return super().measure(config, limits)


def compiled_in(seconds: Sequence[float], times_us: Sequence[float] | None = None) -> Recording:
    """Configs i=0, 1, … that compile in so many seconds and are timed in a tenth of a second."""
    times_us = times_us or [100.0 + i for i in range(len(seconds))]
    return recorded_as(
        [replace(measurement(t), compile_s=s, run_s=0.1) for s, t in zip(seconds, times_us, strict=True)]
    )


@dataclass
class InOrder:
    """Asks for the first config that nobody tries; notes how many outcomes and how many under way it was shown."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def step(self, view: View) -> Compile | Measure | Stop:
        self.seen.append((len(view.outcomes), len(view.under_way)))
        busy = {*view.outcomes, *view.under_way}
        left = [c for c in view.space if c not in busy]
        return Compile((left[0],)) if left else Stop("all was tried")


def run(
    of: Recording,
    workers: int,
    *,
    budget: str = "100",
    policy: Policy | None = None,
    surrogate: Surrogate | None = None,
    store: Memory | None = None,
    device: Clocked | None = None,
    patient: bool = False,
    listener: Listener | None = None,
) -> tuple[Clocked, Decision]:
    device = device or Clocked(of, workers)
    resolution = tune(
        job_of(of),
        compiler=device,
        surrogate=surrogate or Fixed(),
        policy=policy or InOrder(),
        measurer=device,
        store=store or Memory(),
        budget=Budget(budget, clock=device.clock),
        patient=patient,
        listener=listener,
    )
    return device, resolution.decision


def test_one_slow_compile_holds_up_none_of_the_others() -> None:
    device, decision = run(compiled_in([0.05, 0.48, 0.05, 0.05]), workers=2)
    assert decision.tried == 4
    assert [i for _, i in device.timed] == [0, 2, 3, 1]
    assert device.charged_s == pytest.approx(0.58)
    idle_s = [later - begun for (begun, _), (later, _) in zip(device.timed[1:], device.begun[3:], strict=False)]
    assert max(idle_s) == pytest.approx(0.1), "a worker stands still only while what it has built is timed"


def test_what_is_built_is_timed_while_the_rest_is_built() -> None:
    device, decision = run(compiled_in([1, 2, 3, 4]), workers=4)
    assert [t for t, _ in device.timed] == pytest.approx([1, 2, 3, 4])
    assert (decision.waiting_s, decision.timing_s) == pytest.approx((3.7, 0.4))
    assert decision.compiling_s == pytest.approx(10)
    assert decision.spent_s == pytest.approx(decision.waiting_s + decision.timing_s + decision.ours_s)


def test_a_measurer_prepares_itself_while_the_first_are_being_built() -> None:
    seen: list[str] = []

    class Preparing(Clocked):
        def prepare(self) -> None:
            seen.append("prepared")
            assert self.begun, "compilers have something to do meanwhile"

        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            seen.append("timed")
            return super().measure(config, limits)

    of = compiled_in([1, 2, 3, 4])
    device = Preparing(of, workers=4)
    run(of, workers=4, device=device)
    assert seen == ["prepared", *["timed"] * 4]


def test_each_choice_is_made_on_all_that_is_known_and_on_what_is_under_way() -> None:
    policy = InOrder()
    run(compiled_in([1] * 6), workers=3, policy=policy)
    assert policy.seen == [(0, 1), (0, 2), (1, 2), (2, 2), (3, 2), (4, 2), (6, 0)]


def test_no_more_are_begun_than_the_budget_allows() -> None:
    for budget in ("1", "3", "5"):
        device, decision = run(compiled_in([1] * 9), workers=4, budget=budget)
        assert len(device.begun) == decision.tried == int(budget)


def test_the_default_is_begun_before_any_forecast_and_timed_first() -> None:
    asked: list[int] = []

    class Noting(Fixed):
        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
            asked.append(len(outcomes))
            assert [i for _, i in begun()] == [0] or len(asked) > 1
            return super().forecast(context, outcomes, evidence)

    of = compiled_in([5, 1, 1, 1])
    device = Clocked(of, workers=4)
    begun: Callable[[], list[tuple[float, int]]] = lambda: device.begun  # noqa: E731
    store = Memory()
    tune(
        job_of(of),
        compiler=device,
        surrogate=Noting(),
        policy=InOrder(),
        measurer=device,
        store=store,
        budget=Budget("all", clock=device.clock),
    )
    assert asked[0] == 0, "the first forecasts precede every outcome"
    assert all(forecast is not None for _, _, forecast in store.recorded)
    assert [i for _, i in device.timed] == [0, 1, 2, 3]
    assert device.charged_s == pytest.approx(5.4)


def test_a_straggler_is_left_behind_and_no_failure_is_held_against_it() -> None:
    store = Memory()
    device, decision = run(compiled_in([1, 2, 1, HOUR_S, 1]), workers=2, budget="5", store=store)
    assert device.charged_s < 20
    assert (decision.tried, decision.failed) == (4, 0)
    assert "1 left behind" in decision.reason
    assert Config({"i": 3}) not in {c for c, _, _ in store.recorded}
    assert len(device.begun) == 5, "it was begun: no other is tried in its place"


def test_a_worker_with_a_straggler_goes_on_with_others() -> None:
    device, decision = run(compiled_in([1, 2, 1, 1, HOUR_S, 1, 1, 1]), workers=1)
    assert [i for _, i in device.timed] == [0, 1, 2, 3, 5, 6, 7]
    assert device.charged_s < 30
    assert decision.tried == 7


def test_stragglers_one_after_the_other_do_not_end_a_run() -> None:
    """Nothing is built between the two; of recordings of another vendor's GPU such pairs ended runs at 6 of 436 configs."""
    device, decision = run(compiled_in([1, 2, 1, 1, HOUR_S, HOUR_S, 1, 1]), workers=1)
    assert [i for _, i in device.timed] == [0, 1, 2, 3, 6, 7]
    assert "2 left behind" in decision.reason
    _, decision = run(compiled_in([1, 2, 1, 1, HOUR_S, HOUR_S, 1, 1]), workers=1, budget="6")
    assert "the budget of 6 is spent" in decision.reason


def test_the_default_is_waited_for_however_long_it_takes() -> None:
    device, decision = run(compiled_in([60, 1, 1, 1, 1]), workers=5)
    assert decision.tried == 5
    assert device.timed[0] == (60, 0)


def test_where_the_time_ends_in_the_first_build_none_counts_as_left_behind() -> None:
    device, decision = run(compiled_in([60, 90, 90]), workers=3, budget="8s")
    assert (decision.tried, decision.config, device.timed) == (0, Config({"i": 0}), [])
    assert decision.reason == "the budget of 8s is spent"


def test_few_builds_leave_nothing_behind() -> None:
    _, decision = run(compiled_in([1, 1, 1, 100]), workers=4)
    assert decision.tried == 4


def test_a_budget_of_all_leaves_nothing_behind() -> None:
    _, decision = run(compiled_in([1, 1, 1, 1, 100, 1]), workers=6, budget="all")
    assert decision.tried == 6


def test_where_nobody_waits_nothing_is_left_behind() -> None:
    _, decision = run(compiled_in([1, 1, 1, 1, 100, 1]), workers=6, budget="6", patient=True)
    assert decision.tried == 6


def test_builds_that_came_from_a_cache_leave_nothing_behind() -> None:
    _, decision = run(compiled_in([0.01, 0.01, 0.01, 9, 0.01, 0.01]), workers=2)
    assert decision.tried == 6


def test_a_straggler_is_waited_for_at_least_half_a_second() -> None:
    for longest_s, measured in ((0.45, 6), (0.9, 5)):
        _, decision = run(compiled_in([0.1, 0.1, 0.1, longest_s, 0.1, 0.1]), workers=6)
        assert decision.tried == measured, longest_s


@pytest.mark.parametrize(("octaves", "waited_s"), [(1.0, 3.0), (-1.0, 1.5)])
def test_what_promises_nothing_is_waited_for_half_as_long(octaves: float, waited_s: float) -> None:
    of = compiled_in([1, 1, 1, 1, HOUR_S])
    forecasts = {Config({"i": i}): Forecast.normal(mean=0.0, sigma=0.01, source="fixed") for i in range(4)}
    forecasts[Config({"i": 4})] = Forecast.normal(mean=octaves, sigma=0.1, source="fixed")
    device, decision = run(of, workers=5, surrogate=Fixed(forecasts))
    assert device.charged_s == pytest.approx(waited_s)
    assert "1 left behind" in decision.reason


class Repeating(Clocked):
    """One whose configs may be timed again."""

    repeatable = True


def test_finalists_have_their_turns_while_the_last_build_is_waited_for() -> None:
    of = compiled_in([1, 1, 1, 1, 2.4], [100, 100.1, 150, 160, 190])
    device, decision = run(of, workers=5, budget="5", device=Repeating(of, workers=5))
    assert [i for _, i in device.timed] == [0, 1, 2, 3, 0, 1, 1, 0, 4]
    assert device.charged_s == pytest.approx(2.4 + 0.1), "they cost nothing"
    assert (decision.config, decision.tried) == (Config({"i": 0}), 5)


def test_a_last_build_that_comes_near_has_turns_beside_the_others() -> None:
    of = compiled_in([1, 1, 1, 1, 2.4], [100, 90, 150, 160, 80])
    device, decision = run(of, workers=5, budget="5", device=Repeating(of, workers=5))
    assert [i for _, i in device.timed] == [0, 1, 2, 3, *[1, 0, 0, 1], 4, *[4, 0, 0, 4]]
    assert (decision.config, decision.config_us) == (Config({"i": 4}), pytest.approx(80))


@pytest.mark.parametrize("budget", ["2.6s", "2.75s", "2.9s"])
def test_a_late_build_wins_though_its_turns_are_cut_off(budget: str) -> None:
    of = compiled_in([1, 1, 1, 1, 2.4, HOUR_S], [100, 90, 150, 160, 45, 300])
    _, decision = run(of, workers=6, budget=budget, device=Repeating(of, workers=6))
    assert (decision.config, decision.config_us) == (Config({"i": 4}), pytest.approx(45))


def test_turns_that_take_longer_than_a_build_hold_up_nothing() -> None:
    of = recorded_as(
        [
            replace(measurement(t), compile_s=s, run_s=0.35)
            for s, t in ((1, 100), (1, 101), (1, 102), (1, 103), (2.9, 33))
        ]
    )
    device, decision = run(of, workers=5, budget="5", device=Repeating(of, workers=5))
    assert [i for _, i in device.timed][:5] == [0, 1, 2, 3, 4]
    assert decision.config == Config({"i": 4})


def test_a_listener_hears_of_builds_waited_for_once_the_turns_are_over() -> None:
    of = compiled_in([1, 1, 1, 1, 2.9], [100, 100.1, 150, 160, 190])
    device = Repeating(of, workers=5)
    said: list[tuple[float, str, bool]] = []

    def listen(progress: Progress) -> None:
        said.append((device.charged_s, progress.doing, progress.timing))

    run(of, workers=5, budget="5", device=device, listener=listen)
    before_the_last = [each for each in said if each[0] < 2.9]
    assert "timing the best in turns" in {doing for _, doing, _ in before_the_last}
    assert before_the_last[-1][1:] == ("building", False)


def test_a_last_build_wins_though_no_time_is_left_for_turns() -> None:
    of = compiled_in([1, 1, 1, 1, 2.4], [100, 90, 150, 160, 80])
    device, decision = run(of, workers=5, budget="2.45s", device=Repeating(of, workers=5))
    assert [i for _, i in device.timed][-1] == 4
    assert decision.config == Config({"i": 4})


def test_nothing_is_timed_again_while_more_may_begin_or_builds_share_cores() -> None:
    of = compiled_in([1, 1, 1, 1, 2.4, 1], [100, 90, 150, 160, 190, 95])
    device, _ = run(of, workers=1, budget="6", device=Repeating(of, workers=1))
    assert [i for _, i in device.timed][:6] == [0, 1, 2, 3, 4, 5]
    alike = Repeating(of, workers=6)
    alike.overlaps_timing = False
    device, _ = run(of, workers=6, budget="6", device=alike)
    assert {i for _, i in device.timed[:6]} == set(range(6))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_budget_in_seconds_ends_while_something_is_compiled(workers: int) -> None:
    device, decision = run(compiled_in([1, HOUR_S, HOUR_S, HOUR_S]), workers, budget="4s")
    assert device.charged_s == pytest.approx(4.0)
    assert (decision.config, decision.tried) == (Config({"i": 0}), 1)


def test_what_is_interrupted_while_others_compile_is_kept() -> None:
    class Interrupted(Clocked):
        def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            if len(self.timed) == 2:
                raise KeyboardInterrupt
            return super().measure(config, limits)

    of, store = compiled_in([1, 2, 3, 4, 5]), Memory()
    device = Interrupted(of, workers=4)
    arguments: Any = {"surrogate": Fixed(), "policy": Exhaustive(), "store": store}
    with pytest.raises(KeyboardInterrupt):
        tune(
            job_of(of),
            compiler=device,
            measurer=device,
            budget=Budget("all", clock=device.clock),
            **arguments,
        )
    assert [c["i"] for c, _, _ in store.recorded] == [0, 1]
    store.known = {c: o for c, o, _ in store.recorded}
    again, decision = run(of, workers=4, store=store)
    assert sorted(i for _, i in again.timed) == [2, 3, 4]
    assert decision.config == Config({"i": 0})


def test_a_failed_build_frees_its_worker_and_counts() -> None:
    broken: Outcome = Failure(stage="compile", message="no", cost_s=0.5)
    of = recorded_as([100.0, broken, broken, 90.0, 80.0])
    device, decision = run(of, workers=2, budget="4")
    assert (decision.tried, decision.failed) == (4, 2)
    assert [i for _, i in device.timed] == [0, 3]
    assert decision.config == Config({"i": 3})


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_the_same_run_decides_the_same_whatever_the_real_clock_says(workers: int) -> None:
    times = [100.0 + 7 * ((5 * i) % 11) for i in range(24)]
    of = compiled_in([0.5 + 0.1 * (i % 7) for i in range(24)], times)
    orders = []
    for tick_s in (0.0, 0.3):
        ticks = iter(range(10**9))
        device = Clocked(of, workers)
        device._now = lambda ticks=ticks, tick_s=tick_s: tick_s * next(ticks)  # type: ignore[misc]
        tune(
            job_of(of),
            compiler=device,
            surrogate=Fixed(),
            policy=Selective(1),
            measurer=device,
            store=Memory(),
            budget=Budget("12", clock=device.clock),
        )
        orders.append([i for _, i in device.begun])
    assert orders[0] == orders[1]
    assert math.isfinite(device.charged_s)
    assert all(isinstance(of.outcomes[Config({"i": i})], Measurement) for i in orders[0])
