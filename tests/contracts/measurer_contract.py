"""What every measurer and compiler promises; subclass and say how to make one and which configs are good and bad."""

from __future__ import annotations

from abc import ABC, abstractmethod

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure, Measurement
from forecast_autotune.protocols import Compiler, Measurer


class CompilerContract(ABC):
    @abstractmethod
    def make_compiler(self) -> Compiler: ...

    @abstractmethod
    def good(self) -> list[Config]:
        """At least two configs that build and run."""

    @abstractmethod
    def unbuildable(self) -> Config: ...

    def test_it_says_how_many_it_builds_side_by_side(self) -> None:
        assert self.make_compiler().workers >= 1

    def test_each_config_is_yielded_once_with_evidence_or_a_failure(self) -> None:
        wanted = [*self.good(), self.unbuildable()]
        built = dict(self.make_compiler().compile(wanted))
        assert built.keys() == set(wanted)
        for config in self.good():
            evidence = built[config]
            assert isinstance(evidence, Evidence)
            assert evidence.compile_s >= 0
        failure = built[self.unbuildable()]
        assert isinstance(failure, Failure)
        assert failure.message
        assert failure.cost_s >= 0

    def test_the_rest_can_be_abandoned(self) -> None:
        building = self.make_compiler().compile(self.good())
        assert next(iter(building))[0] in self.good()
        if close := getattr(building, "close", None):
            close()

    def test_nothing_to_build_is_no_work(self) -> None:
        assert list(self.make_compiler().compile([])) == []


class MeasurerContract(ABC):
    @abstractmethod
    def make_measurer(self) -> Measurer:
        """One that can measure `good` and `bad`, compiled."""

    @abstractmethod
    def good(self) -> list[Config]: ...

    @abstractmethod
    def bad(self) -> Config:
        """A config that builds and does not run."""

    def test_a_good_config_is_timed(self) -> None:
        outcome = self.make_measurer().measure(self.good()[0])
        assert isinstance(outcome, Measurement)
        assert outcome.run_s >= 0

    def test_a_bad_config_is_a_failure_and_no_exception(self) -> None:
        measurer = self.make_measurer()
        outcome = measurer.measure(self.bad())
        assert isinstance(outcome, Failure)
        assert outcome.message
        assert isinstance(measurer.measure(self.good()[0]), Measurement)

    def test_it_says_whether_measuring_again_tells_anything(self) -> None:
        assert self.make_measurer().repeatable in (True, False)
