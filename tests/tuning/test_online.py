"""What real calls teach is what tuning would have decided, at a cost that keeps its bound: on recorded spaces."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from simulated_calls import Learned, Life, learn_from_calls

from forecast_autotune.core.outcome import SWITCH_MARGIN, Failure
from forecast_autotune.evaluation.recorded_space import RecordedSpace, read_space
from forecast_autotune.evaluation.replay_runner import replay
from forecast_autotune.surrogates.roofline import Roofline
from forecast_autotune.tuning.policies import Exhaustive, Selective

TRACES = Path(__file__).parents[2] / "calibration" / "traces"
SHARE = 0.05
LIVES = {
    "quiet": Life(),
    "noise": Life(noise=0.05, seed=1),
    "drift": Life(drift=0.3, noise=0.02, seed=2),
    "spikes": Life(spikes=0.02, noise=0.02, seed=3),
    "three streams": Life(streams=3, noise=0.02, seed=4),
    "a stream for each call": Life(streams=1_000_000, seed=5),
    "the host far ahead": Life(ahead=200, seed=6),
    "loading takes long": Life(load_us=3000.0, seed=7),
}


def spaces(count: int) -> list[RecordedSpace]:
    """So many recorded spaces of the suite, drawn at random, whose default runs."""
    paths = sorted(TRACES.glob("*.jsonl.gz"))
    random.Random(0).shuffle(paths)
    read = (read_space(path) for path in paths)
    usable = (space for space in read if len(space.space) >= 8 and math.isfinite(space.times_us[0]))
    return [space for space, _ in zip(usable, range(count), strict=False)]


def learn(space: RecordedSpace, **options: Any) -> Learned:
    policy = Exhaustive() if options.get("budget") == "all" else Selective()
    return learn_from_calls(space, surrogate=Roofline(), policy=policy, **options)


def keeps_its_bound(learned: Learned) -> bool:
    """Whether no candidate began while exploring was ahead of its share by more than one launch."""
    return learned.most_over_us <= learned.costliest_us


def compare(some: list[RecordedSpace], life: Life) -> list[float]:
    """What learning decided over what tuning decided, in time, for each space."""
    ratios = []
    for space in some:
        tuned = replay(space, surrogate=Roofline(), policy=Selective(), budget="8")
        learned = learn(space, budget="8", life=life, share=SHARE)
        assert learned.decision is not None, f"{space.name} is not decided after {learned.calls} calls"
        assert keeps_its_bound(learned), f"{space.name}: {learned}"
        ratios.append(space.slowdown(space.space.index(learned.decision.config)) / tuned.slowdown)
    return ratios


@pytest.mark.parametrize("life", LIVES)
def test_calls_come_to_what_tuning_decides(life: str) -> None:
    ratios = compare(spaces(6), LIVES[life])
    assert max(ratios) <= 1 + SWITCH_MARGIN, ratios


@pytest.mark.thorough
@pytest.mark.parametrize("life", ["quiet", "drift"])
def test_sixty_workloads_are_decided_as_tuning_decides_them(life: str) -> None:
    ratios = compare(spaces(60), LIVES[life])
    assert len(ratios) == 60
    assert math.prod(ratios) ** (1 / len(ratios)) <= 1.01
    # Within the noise, where two are nearly equal.
    assert sum(ratio > 1.01 for ratio in ratios) <= 3, sorted(ratios)[-5:]


def test_a_slow_candidate_gets_one_call() -> None:
    space = next(space for space in spaces(60) if sum(t > 20 * space.times_us[0] for t in space.times_us) >= 5)
    slow = {c for c, t in zip(space.space, space.times_us, strict=True) if 20 * space.times_us[0] < t < math.inf}
    learned = learn(space, budget="all", share=1.0, life=Life(load_us=0.0))
    launched = [config for config in learned.launched if config in slow]
    assert set(launched) == slow
    assert len(launched) == len(slow)


def test_failing_candidates_are_left_out() -> None:
    space = next(
        space
        for space in spaces(60)
        if any(isinstance(o, Failure) and o.stage == "launch" for o in space.recording.outcomes.values())
    )
    learned = learn(space, budget="all", share=1.0)
    assert learned.decision is not None
    assert learned.decision.failed
    assert space.slowdown(space.space.index(learned.decision.config)) <= 1 + SWITCH_MARGIN


def test_nothing_is_tried_where_exploring_may_cost_nothing() -> None:
    learned = learn(spaces(1)[0], share=0.0, most_calls=2000)
    assert learned.decision is None
    assert set(learned.launched) == set()


def test_a_forecast_start_is_compared_with_the_default_first() -> None:
    space = spaces(1)[0]
    slow = max((c for c in space.space if c != space.space.default), key=lambda c: _finite(space, c))
    learned = learn(space, incumbent=slow, budget="4")
    assert learned.launched[0] == space.space.default
    assert learned.decision is not None
    assert learned.decision.default_us is not None
    assert learned.decision.config != slow


def _finite(space: RecordedSpace, config: object) -> float:
    us = space.times_us[space.space.index(config)]  # type: ignore[arg-type]
    return us if us < math.inf else 0.0


def test_ending_leaves_the_best_known_and_raises_nothing() -> None:
    learned = learn(spaces(1)[0], end_after=150)
    assert learned.decision is None
