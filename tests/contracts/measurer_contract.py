"""What every measurer promises; subclass it and say how to make one and which configs run and which do not."""

from __future__ import annotations

from abc import ABC, abstractmethod

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.protocols import Measurer


class MeasurerContract(ABC):
    repeatable = True
    """Whether measuring a config again tells anything: not where the times are recorded."""

    @abstractmethod
    def make_measurer(self) -> Measurer:
        """One for which `good` and `bad` are compiled; a subclass annotates what it returns with its own class."""

    @abstractmethod
    def good(self) -> list[Config]:
        """At least two configs that run, the default first."""

    @abstractmethod
    def bad(self) -> Config:
        """A config that builds and does not run."""

    def test_each_good_config_is_timed(self) -> None:
        measurer = self.make_measurer()
        for config in self.good():
            outcome = measurer.measure(config)
            assert isinstance(outcome, Measurement)
            assert outcome.median_us > 0
            assert outcome.run_s >= 0

    def test_a_config_is_timed_though_the_default_was_not_before_it(self) -> None:
        assert isinstance(self.make_measurer().measure(self.good()[1]), Measurement)

    def test_a_bad_config_is_a_failure_and_no_exception(self) -> None:
        measurer = self.make_measurer()
        outcome = measurer.measure(self.bad())
        assert isinstance(outcome, Failure)
        assert outcome.message
        assert outcome.cost_s >= 0
        assert isinstance(measurer.measure(self.good()[0]), Measurement)

    def test_it_may_be_prepared(self) -> None:
        measurer = self.make_measurer()
        measurer.prepare()
        assert isinstance(measurer.measure(self.good()[0]), Measurement)

    def test_it_says_whether_measuring_again_tells_anything(self) -> None:
        assert self.make_measurer().repeatable is self.repeatable
