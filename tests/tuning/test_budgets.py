"""What more measurements change: on recorded kernels, with the shipped forecasts and the real loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

import pytest

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.outcome import SWITCH_MARGIN, Measurement, Outcome
from forecast_autotune.evaluation.recorded_space import RecordedSpace, read_space
from forecast_autotune.evaluation.replay_runner import HistoryStore
from forecast_autotune.measure.replay import Replay
from forecast_autotune.surrogates.by_name import make_surrogate
from forecast_autotune.tuning.decision_rule import noise
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Selective

TRACES = Path(__file__).parents[2] / "calibration" / "traces"
BUDGETS = (1, 2, 4, 7, 12, 23, 40)
FEW = ("matmul.few_rows", "softmax.vocabulary", "cuda_softmax.vocabulary")
ONE_OF_EACH = sorted(
    {path.name.partition(".")[0]: path.name.partition(".NVIDIA")[0] for path in sorted(TRACES.glob("*.gz"))}.values()
)


class Recorded(Replay):
    """A recorded space on a machine that compiles so many configs at once; remembers in which order they were begun."""

    def __init__(self, space: RecordedSpace, workers: int) -> None:
        super().__init__(space.recording, workers=workers, now=lambda: 0.0)
        self.asked: list[Config] = []

    def compile(self, configs, **how):  # type: ignore[no-untyped-def]
        return super().compile(self.noted(configs), **how)

    def noted(self, configs: Iterable[Config]) -> Iterator[Config]:
        for config in configs:
            self.asked.append(config)
            yield config


def tuned(space: RecordedSpace, budget: int, workers: int, seed: int) -> tuple[list[Config], Decision]:
    device = Recorded(space, workers)
    resolution = tune(
        space.job,
        compiler=device,
        surrogate=make_surrogate("auto"),
        policy=Selective(seed),
        measurer=device,
        store=HistoryStore(),
        budget=Budget(str(budget), clock=device.clock),
    )
    return device.asked, resolution.decision


def goes_on_and_ends_no_worse(name: str, workers: int, seed: int) -> None:
    space = read_space(next(TRACES.glob(f"{name}.*.jsonl.gz")))
    outcomes = space.recording.outcomes
    shorter: list[Config] = []
    before: Outcome | None = None
    for budget in BUDGETS:
        order, decision = tuned(space, budget, workers, seed)
        assert order[: len(shorter)] == shorter, f"{budget} configs begin otherwise than fewer"
        now = outcomes[decision.config]
        if isinstance(before, Measurement):
            assert isinstance(now, Measurement)
            assert now.median_us <= before.median_us * (1 + noise(now, before, SWITCH_MARGIN)), f"{budget} ended worse"
        shorter, before = order, now


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("name", FEW)
def test_a_larger_budget_goes_on_where_a_smaller_one_ends(name: str, workers: int) -> None:
    goes_on_and_ends_no_worse(name, workers, seed=0)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_it_does_on_every_recorded_kernel(name: str, workers: int) -> None:
    goes_on_and_ends_no_worse(name, workers, seed=1)


def by_the_top_of_the_forecasts(space: RecordedSpace, budget: int) -> float:
    """The time over the best's that measuring whatever is forecast fastest, forecast anew each time, comes to."""
    session = make_surrogate("auto").start(ForecastContext(job=space.job))
    configs, outcomes = list(space.space), space.recording.outcomes
    tried = {space.space.default: outcomes[space.space.default]}
    while len(tried) < min(budget, len(configs)):
        forecasts = zip(configs, session.predict(tried, {}), strict=True)
        expected = {
            c: f.mean + math.log2(1 - f.fail_probability) if isinstance(f, Forecast) else -math.inf
            for c, f in forecasts
            if c not in tried
        }
        top = max(expected, key=expected.__getitem__)
        tried[top] = outcomes[top]
    return min(o.median_us for o in tried.values() if isinstance(o, Measurement)) / space.best_us


@pytest.mark.thorough
def test_it_is_not_behind_the_top_of_its_own_forecasts() -> None:
    spaces = [read_space(next(TRACES.glob(f"{name}.*.jsonl.gz"))) for name in ONE_OF_EACH]
    for budget in (4, 8, 16, 32):
        behind = []
        for space in spaces:
            decided = space.recording.outcomes[tuned(space, budget, workers=1, seed=0)[1].config]
            assert isinstance(decided, Measurement)
            behind.append(
                math.log(decided.median_us / space.best_us) - math.log(by_the_top_of_the_forecasts(space, budget))
            )
        assert fmean(behind) <= SWITCH_MARGIN / 2, f"{budget} measured"
