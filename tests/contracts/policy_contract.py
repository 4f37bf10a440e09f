"""What every policy promises; subclass it and say how to make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest
from recorded import recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Compile, Recording, Stop, View
from forecast_autotune.core.outcome import Evidence, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.protocols import Policy


def view(
    of: Recording,
    *,
    known: int = 0,
    forecasts: str = "none",
    evidence: dict[Config, Evidence] | None = None,
    configs_left: float = 20,
    workers: int = 1,
    outcomes: dict[Config, Outcome] | None = None,
    under_way: Sequence[Config] = (),
) -> View:
    """A view of a recorded space after `known` outcomes; forecasts are `none`, or `true` with a little doubt."""
    space = Space(of.outcomes, default=of.default)
    told = of.log2_speedups()
    return View(
        space=space,
        forecasts=[
            Forecast.normal(told[c], 0.1, source="oracle")
            if forecasts == "true" and c in told
            else Abstention("nobody", "asked nobody")
            if forecasts == "none"
            else Forecast.normal(-1.0, 0.3, source="oracle", fail_probability=0.9)
            for c in space
        ],
        outcomes={c: of.outcomes[c] for c in list(space)[:known]} if outcomes is None else outcomes,
        evidence=evidence or {},
        configs_left=configs_left,
        seconds_left=100.0,
        workers=workers,
        under_way=under_way,
    )


class PolicyContract(ABC):
    @abstractmethod
    def make(self) -> Policy: ...

    @pytest.mark.parametrize("forecasts", ["none", "true"])
    @pytest.mark.parametrize("known", [0, 1, 7, 60])
    def test_it_asks_only_for_configs_of_the_space_that_are_untried(self, known: int, forecasts: str) -> None:
        seen = view(recording(), known=known, forecasts=forecasts)
        step = self.make().step(seen)
        if not isinstance(step, Stop):
            assert step.configs
            assert len(set(step.configs)) == len(step.configs)
            for config in step.configs:
                assert config in seen.space
                assert config not in seen.outcomes

    @pytest.mark.parametrize("forecasts", ["none", "true"])
    @pytest.mark.parametrize("known", [0, 1, 7])
    def test_it_asks_for_nothing_that_is_under_way(self, known: int, forecasts: str) -> None:
        whole = recording()
        under_way = list(whole.outcomes)[known : known + 9]
        built = {under_way[0]: Evidence(compile_s=0.1)}  # and waits for the default's time
        step = self.make().step(view(whole, known=known, forecasts=forecasts, under_way=under_way, evidence=built))
        if not isinstance(step, Stop):
            assert step.configs
            assert not set(step.configs) & set(under_way)

    @pytest.mark.parametrize("forecasts", ["none", "true"])
    def test_the_same_view_gives_the_same_step(self, forecasts: str) -> None:
        seen = view(recording(), known=9, forecasts=forecasts, workers=3)
        assert self.make().step(seen) == self.make().step(seen)
        policy = self.make()
        assert policy.step(seen) == policy.step(seen)

    def test_it_stops_with_a_reason_when_every_config_was_tried(self) -> None:
        step = self.make().step(view(recording(), known=10_000))
        assert isinstance(step, Stop)
        assert step.reason

    @pytest.mark.parametrize("forecasts", ["none", "true"])
    def test_doing_what_it_says_comes_to_an_end(self, forecasts: str) -> None:
        whole = recording()
        policy = self.make()
        outcomes: dict[Config, Outcome] = {}
        evidence: dict[Config, Evidence] = {}
        for _ in range(3 * len(whole.outcomes)):
            step = policy.step(view(whole, forecasts=forecasts, outcomes=outcomes, evidence=evidence))
            if isinstance(step, Stop):
                return
            for config in step.configs:
                outcome = whole.outcomes[config]
                if isinstance(step, Compile) and isinstance(outcome, Measurement):
                    evidence[config] = Evidence(compile_s=0.1)
                else:
                    outcomes[config] = outcome
        pytest.fail("it never stopped")
