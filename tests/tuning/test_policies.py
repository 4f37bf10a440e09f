from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from contracts.policy_contract import PolicyContract, view
from recorded import recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Compile, Measure, Stop, View
from forecast_autotune.core.outcome import Evidence, Failure, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.features.forecast_columns import ForecastTable
from forecast_autotune.features.knob_matrix import knob_matrix
from forecast_autotune.tuning.policies import Exhaustive, First, Selective, StoredOnly, SuggestedFirst

WHOLE = recording()
TRUE = WHOLE.log2_speedups()


class TestExhaustive(PolicyContract):
    def make(self) -> Exhaustive:
        return Exhaustive()


class TestSelective(PolicyContract):
    def make(self) -> Selective:
        return Selective()


class TestStoredOnly(PolicyContract):
    def make(self) -> StoredOnly:
        return StoredOnly()


class TestFirst(PolicyContract):
    def make(self) -> First:
        return First()


class TestSuggestedFirst(PolicyContract):
    def make(self) -> SuggestedFirst:
        return SuggestedFirst(Selective(), lambda: list(WHOLE.outcomes)[40:42])


def test_what_is_suggested_is_tried_first_then_another_policy_chooses() -> None:
    suggested = list(WHOLE.outcomes)[40:43]
    policy = SuggestedFirst(Exhaustive(), lambda: [*suggested, suggested[0]])
    assert policy.step(view(WHOLE)) == Compile(tuple(suggested))
    assert policy.step(replace(view(WHOLE), configs_left=2)) == Compile(tuple(suggested[:2]))
    known = {config: WHOLE.outcomes[config] for config in suggested}
    assert policy.step(replace(view(WHOLE), outcomes=known)) == Exhaustive().step(replace(view(WHOLE), outcomes=known))


def test_exhaustive_goes_through_the_space_in_order() -> None:
    step = Exhaustive().step(view(WHOLE, known=3))
    assert isinstance(step, Compile)
    assert step.configs == tuple(WHOLE.outcomes)[3 : 3 + len(step.configs)]


@pytest.mark.parametrize("policy", [Exhaustive(), Selective()])
def test_what_is_compiled_is_measured_next(policy: Exhaustive | Selective) -> None:
    waiting = list(WHOLE.outcomes)[5:7]
    step = policy.step(view(WHOLE, known=2, evidence={c: Evidence(compile_s=0.1) for c in waiting}))
    assert step == Measure(tuple(waiting))


def test_first_decides_for_the_default() -> None:
    step = First().step(view(WHOLE))
    assert isinstance(step, Stop)
    assert step.config == WHOLE.default


def test_stored_only_says_how_much_was_known() -> None:
    step = StoredOnly().step(view(WHOLE, known=5))
    assert isinstance(step, Stop)
    assert f"5 of {len(WHOLE.outcomes)}" in step.reason
    assert step.config is None


def test_selective_follows_a_forecast_to_the_best() -> None:
    step = Selective().step(view(WHOLE, known=3, forecasts="true"))
    assert isinstance(step, Compile)
    assert TRUE[step.configs[0]] == max(TRUE.values())


def test_selective_looks_outside_the_favourites_now_and_then() -> None:
    best = max(TRUE.values())
    picks = []
    for known in range(3, 15):
        step = Selective().step(view(WHOLE, known=known, forecasts="true"))
        assert isinstance(step, Compile)
        picks += [TRUE.get(c, -9.0) for c in step.configs]
    assert any(p < best - 0.5 for p in picks)
    assert sum(p > best - 0.5 for p in picks) >= len(picks) / 2


def test_selective_spreads_over_the_space_when_nothing_is_known() -> None:
    step = Selective().step(view(WHOLE, known=1, workers=8))
    assert isinstance(step, Compile)
    assert len(step.configs) == 8
    assert len({c["block"] for c in step.configs}) >= 3
    assert len({c["tile"] for c in step.configs}) >= 3
    assert len({c["padded"] for c in step.configs}) == 2
    assert step != Compile(tuple(WHOLE.outcomes)[1:9])


def test_another_seed_spreads_otherwise() -> None:
    seen = view(WHOLE, known=1, workers=4)
    assert len({Selective(seed).step(seen) for seed in range(8)}) > 1


@pytest.mark.parametrize("forecasts", ["none", "true"])
def test_a_smaller_budget_begins_like_a_larger_one(forecasts: str) -> None:
    steps = [
        Selective().step(view(WHOLE, known=1, forecasts=forecasts, workers=8, configs_left=left)) for left in (3, 50)
    ]
    few, many = (step.configs for step in steps if isinstance(step, Compile))
    assert few == many[:3]


def test_selective_avoids_what_is_forecast_to_fail() -> None:
    seen = view(WHOLE, known=3, forecasts="true")
    favourite = max(TRUE, key=TRUE.__getitem__)
    at = seen.space.index(favourite)
    forecasts = list(seen.forecasts)
    forecasts[at] = Forecast.normal(TRUE[favourite], 0.1, source="oracle", fail_probability=0.999)
    step = Selective().step(replace(seen, forecasts=forecasts))
    assert isinstance(step, Compile)
    assert favourite not in step.configs


def test_a_batch_is_as_large_as_the_workers_and_grows() -> None:
    def size(known: int, workers: int = 1, left: float = 1000) -> int:
        step = Selective().step(view(WHOLE, known=known, forecasts="true", workers=workers, configs_left=left))
        assert isinstance(step, Compile)
        return len(step.configs)

    assert [size(1), size(19), size(20), size(49)] == [1, 1, 2, 2]
    assert size(1, workers=6) == 6
    assert size(1, workers=6, left=4) == 4


def test_a_batch_is_not_one_config_and_its_twins() -> None:
    step = Selective().step(view(WHOLE, known=3, forecasts="true", workers=6))
    assert isinstance(step, Compile)
    values = knob_matrix(view(WHOLE).space).values
    rows = [values[view(WHOLE).space.index(c)] for c in step.configs]
    apart = [float(((a - b) ** 2).sum()) for i, a in enumerate(rows) for b in rows[:i]]
    assert min(apart) > 0.1


def test_selective_stops_when_the_first_outcomes_all_fail_alike() -> None:
    configs = list(WHOLE.outcomes)[:4]
    alike = {c: Failure(stage="launch", message="device lost", cost_s=0.1) for c in configs}
    step = Selective().step(view(WHOLE, outcomes=dict(alike)))
    assert isinstance(step, Stop)
    assert "device lost" in step.reason
    for other in (
        alike | {configs[0]: Failure(stage="launch", message="another", cost_s=0.1)},
        alike | {configs[0]: WHOLE.outcomes[configs[0]]},
        {c: Failure(stage="compile", message="device lost", cost_s=0.1) for c in configs},
        dict(list(alike.items())[:3]),
    ):
        assert not isinstance(Selective().step(view(WHOLE, outcomes=other)), Stop)


def test_selective_goes_on_while_there_is_an_algorithm_that_was_not_tried() -> None:
    space = Space([{"variant": v, "n": n} for v in "ab" for n in range(8)], roles={"variant": "algorithm"})
    failed = Failure(stage="launch", message="no such instruction", cost_s=0.1)
    seen = replace(view(WHOLE), space=space, forecasts=[Abstention("none", "")] * len(space), evidence={})
    of_one = dict.fromkeys(space[:4], failed)
    assert isinstance(Selective().step(replace(seen, outcomes=of_one)), Compile)
    assert isinstance(Selective().step(replace(seen, outcomes=of_one | {space[8]: failed})), Stop)


def test_selective_stops_by_itself_only_when_nothing_is_worth_trying() -> None:
    seen = view(WHOLE, known=60, forecasts="true")
    poor = [Forecast.normal(max(TRUE.values()) - 1.0, 0.1, source="oracle") for _ in seen.space]
    best_known = {c: WHOLE.outcomes[c] for c in sorted(TRUE, key=TRUE.__getitem__, reverse=True)[:60]}
    step = Selective().step(replace(seen, forecasts=poor, outcomes=best_known))
    assert isinstance(step, Stop)
    assert "1 %" in step.reason
    assert "; 20 configs of the budget are saved, some 12 s" in step.reason
    unsure = [Forecast.normal(max(TRUE.values()) - 0.2, 0.3, source="oracle") for _ in seen.space]
    assert not isinstance(Selective().step(replace(seen, forecasts=unsure, outcomes=best_known)), Stop)
    few = dict(list(best_known.items())[:20])
    assert not isinstance(Selective().step(replace(seen, forecasts=poor, outcomes=few)), Stop)


def test_selective_stops_early_only_where_launches_had_initial_forecasts() -> None:
    seen = view(WHOLE, known=20)
    fastest = sorted(TRUE, key=TRUE.__getitem__, reverse=True)[:20]
    best_known = {c: WHOLE.outcomes[c] for c in (WHOLE.default, *fastest)}
    poor = [Forecast.normal(max(TRUE.values()) - 1.0, 0.1, source="oracle") for _ in seen.space]
    guessed = [replace(forecast, grounded=False) for forecast in poor]
    silent = [Abstention("oracle", "no idea")] * len(poor)
    stops = [
        isinstance(
            Selective().step(replace(seen, forecasts=poor, outcomes=best_known, initial_forecasts=initial)), Stop
        )
        for initial in (poor, guessed, silent, [*poor[:-1], *guessed[-1:]])
    ]
    assert stops == [True, False, False, False]


def test_failures_and_other_hardware_count_nothing_towards_stopping_early() -> None:
    space = Space([{"BLOCK": b} for b in range(1, 101)])
    failed: Outcome = Failure(stage="compile", message="too large", cost_s=0.1)

    def stops(ran: int, failures: int, *, by_other_hardware: bool = False) -> bool:
        outcomes: dict[Config, Outcome] = {c: Measurement(samples_us=(10.0,)) for c in space[:ran]}
        outcomes |= dict.fromkeys(space[ran : ran + failures], failed)
        said = np.linspace(1.0, 0.0, 100) if by_other_hardware else None
        poor = ForecastTable.of_one(
            "s", np.full(100, -3.0), np.full(100, 0.1), np.zeros(100), source="s", by_other_hardware=said
        )
        seen = view_of(space, outcomes, poor)
        return isinstance(Selective().step(replace(seen, initial_forecasts=[poor[i] for i in range(100)])), Stop)

    assert stops(ran=16, failures=0)
    assert not stops(ran=15, failures=20)
    assert not stops(ran=30, failures=0, by_other_hardware=True)
    assert stops(ran=50, failures=0, by_other_hardware=True)


def test_selective_stops_when_the_later_outcomes_have_gained_nothing() -> None:
    space = Space([{"BLOCK": b} for b in range(1, 401)])
    small_chances = [Forecast.normal(-0.3, 0.3, source="s") for _ in space]

    def step(best_at: int, known: int = 160) -> Compile | Measure | Stop:
        outcomes: dict[Config, Outcome] = {
            c: Measurement(samples_us=(9.0 if i == best_at else 10.0,)) for i, c in enumerate(space[:known])
        }
        return Selective().step(view_of(space, outcomes, small_chances))

    stopped = step(best_at=5)
    assert isinstance(stopped, Stop)
    assert "the last 136 of 160 configs gained 0.0% together" in stopped.reason
    assert not isinstance(step(best_at=150), Stop), "still gaining"
    assert not isinstance(step(best_at=5, known=100), Stop), "too early to tell"


def test_selective_tries_an_untried_algorithm_before_other_rare_values() -> None:
    space = Space([{"variant": v, "BLOCK": b} for v in ("a", "b", "c") for b in (1, 2, 4, 8, 16, 32)])
    known = [c for c in space if c["variant"] != "c"]
    forecasts = [Forecast.normal(-3.0 if c["variant"] == "c" else 0.0, 0.1, source="s") for c in space]
    picked = set()
    for count in range(6, 12):
        outcomes: dict[Config, Outcome] = {c: Measurement(samples_us=(10.0,)) for c in known[:count]}
        step = Selective().step(view_of(space, outcomes, forecasts))
        assert isinstance(step, Compile)
        picked |= {c["variant"] for c in step.configs}
    assert "c" in picked


@pytest.mark.parametrize(("known", "sigma", "expected"), [(1, 3.2, True), (1, 0.5, False), (4, 3.2, False)])
def test_some_first_picks_go_where_vague_forecasts_promise_nothing(known: int, sigma: float, expected: bool) -> None:
    space = Space([{"BLOCK": 2**b, "num_warps": w} for w in (4, 8, 2, 1) for b in range(24)])
    forecasts = [
        Forecast.normal((0.0 if c["num_warps"] in (4, 8) else -6.0) + i / 100, sigma, source="s")
        for i, c in enumerate(space)
    ]
    outcomes: dict[Config, Outcome] = {c: Measurement(samples_us=(10.0,)) for c in list(space)[:known]}
    seen = replace(view_of(space, outcomes, forecasts), initial_forecasts=forecasts, workers=8 - known)
    step = Selective().step(seen)
    assert isinstance(step, Compile)
    assert len(step.configs) == 8 - known
    beside_the_default = {c["num_warps"] for c in step.configs if c["BLOCK"] == 1}
    assert bool(beside_the_default & {1, 2}) == expected


def test_selective_goes_on_with_the_forecasts_made_before_any_measurement() -> None:
    space = Space([{"BLOCK": b} for b in range(1, 101)])
    outcomes: dict[Config, Outcome] = {c: Measurement(samples_us=(10.0,)) for c in space[:11]}
    bent = [Forecast.normal(-0.01 * c["BLOCK"], 0.1, source="s") for c in space]
    initial = [Forecast.normal(1.0 if c["BLOCK"] == 77 else 0.0, 0.1, source="s") for c in space]
    without = Selective().step(view_of(space, outcomes, bent))
    step = Selective().step(replace(view_of(space, outcomes, bent), initial_forecasts=initial))
    assert isinstance(without, Compile)
    assert isinstance(step, Compile)
    assert step.configs == (space[76],)
    assert step.configs != without.configs
    all_equal = [Forecast.normal(0.0, 0.5, source="s") for _ in space]
    assert Selective().step(replace(view_of(space, outcomes, bent), initial_forecasts=all_equal)) == without


def test_selective_follows_what_other_hardware_says_in_every_second_pick() -> None:
    space = Space([{"BLOCK": b} for b in range(1, 101)])
    slope, far = [-0.01 * c["BLOCK"] for c in space], space[76]

    def picked(after: int, by_other_hardware: Sequence[float] | None) -> Config:
        outcomes: dict[Config, Outcome] = {c: Measurement(samples_us=(10.0,)) for c in space[:after]}
        bent = ForecastTable.of_one(
            "s",
            np.array(slope),
            np.full(100, 0.1),
            np.zeros(100),
            source="s",
            by_other_hardware=None if by_other_hardware is None else np.array(by_other_hardware),
        )
        step = Selective().step(replace(view_of(space, outcomes, bent), initial_forecasts=bent))
        assert isinstance(step, Compile)
        (config,) = step.configs
        return config

    recorded = [1.0 if c == far else 0.0 for c in space]
    assert [after for after in range(10, 20) if picked(after, recorded) == far] == [11, 13, 15, 17]
    assert picked(9, recorded) != far, "the first ten follow the forecasts"
    assert picked(11, [0.0] * 100) == picked(11, None), "recordings that tell no config from another"


def test_where_time_is_scarce_a_gain_counts_by_what_it_costs() -> None:
    space = Space([{"UNROLL": u, "SLOW": s} for s in (False, True) for u in (1, 2, 4, 8)])
    outcomes: dict[Config, Outcome] = {
        c: Measurement(samples_us=(10.0,), compile_s=100.0 if c["SLOW"] else 0.1)
        for c in space
        if c["UNROLL"] in (1, 2)
    }
    forecasts = [Forecast.normal(0.2 if c["SLOW"] else 0.1, 0.1, source="s") for c in space]
    plenty = Selective().step(view_of(space, outcomes, forecasts))
    scarce = Selective().step(replace(view_of(space, outcomes, forecasts), configs_left=4, seconds_left=1.0))
    assert isinstance(plenty, Compile)
    assert isinstance(scarce, Compile)
    assert plenty.configs[0]["SLOW"] is True
    assert scarce.configs[0]["SLOW"] is False


def view_of(space: Space, outcomes: dict[Config, Outcome], forecasts: list[Forecast]) -> View:
    return View(
        space=space,
        forecasts=forecasts,
        outcomes=outcomes,
        evidence={c: Evidence(compile_s=0.1) for c in outcomes},
        configs_left=1000,
        seconds_left=math.inf,
    )
