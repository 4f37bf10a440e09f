"""What every compiler promises; subclass it and say how to make one and which configs it can and cannot build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.protocols import Compiler


class CompilerContract(ABC):
    @abstractmethod
    def make_compiler(self) -> Compiler:
        """A subclass annotates what it returns with its own class: that is how its coverage is found."""

    @abstractmethod
    def good(self) -> list[Config]:
        """At least two configs that build."""

    @abstractmethod
    def unbuildable(self) -> Config | None:
        """A config that does not build; None where the compiler accepts every config."""

    def test_it_builds_at_least_one_config_at_a_time(self) -> None:
        assert self.make_compiler().workers >= 1

    def test_each_good_config_is_yielded_once_with_its_evidence(self) -> None:
        results = list(self.make_compiler().compile(self.good()))
        assert len(results) == len(self.good())
        for evidence in _of_each(results, self.good()):
            assert isinstance(evidence, Evidence)
            assert evidence.compile_s >= 0

    def test_a_config_that_does_not_build_is_a_failure_among_the_others(self) -> None:
        bad = self.unbuildable()
        if bad is None:
            pytest.skip("it accepts every config")
        first, *others = self.good()
        failure, *built = _of_each(self.make_compiler().compile([first, bad, *others]), [bad, first, *others])
        assert isinstance(failure, Failure)
        assert failure.stage in ("compile", "resources", "timeout")
        assert failure.message
        assert failure.cost_s >= 0
        assert all(isinstance(evidence, Evidence) for evidence in built)

    def test_the_rest_can_be_abandoned_and_built_later(self) -> None:
        compiler = self.make_compiler()
        building = compiler.compile(self.good())
        assert next(building)[0] in self.good()
        building.close()
        assert dict(compiler.compile(self.good())).keys() == set(self.good())

    def test_a_config_is_taken_only_when_it_can_be_begun(self) -> None:
        taken = []
        compiler = self.make_compiler()

        def choose() -> Iterator[Config]:
            for config in self.good():
                taken.append(config)
                yield config

        building = compiler.compile(choose(), workers=1)
        for done in range(1, len(self.good()) + 1):
            next(building)
            assert len(taken) == done
        assert next(building, None) is None

    def test_who_has_no_patience_gets_no_more_and_may_ask_again(self) -> None:
        compiler = self.make_compiler()
        assert dict(compiler.compile(self.good(), on_wait=lambda _waited_s: 0.0)).keys() <= set(self.good())
        assert dict(compiler.compile(self.good())).keys() == set(self.good())

    def test_nothing_to_build_is_no_work(self) -> None:
        assert list(self.make_compiler().compile([])) == []

    def test_compiling_goes_on_after_a_pause(self) -> None:
        compiler = self.make_compiler()
        with compiler.paused():
            pass
        assert dict(compiler.compile(self.good())).keys() == set(self.good())


def _of_each(results: Iterable[tuple[Config, Evidence | Failure]], configs: list[Config]) -> list[Evidence | Failure]:
    """The results in the order of the configs, which must be the ones that were built."""
    found = dict(results)
    assert found.keys() == set(configs)
    return [found[config] for config in configs]
