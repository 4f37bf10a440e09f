"""The threads in which keys are learned, and what they hand to the tuning loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import pytest
from contracts.compiler_contract import CompilerContract
from contracts.policy_contract import PolicyContract
from simulated_calls import Device

from forecast_autotune.compilers.no_compile import NoCompiler
from forecast_autotune.core.allowance import Allowance
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.frontends.online.at_work import at_work
from forecast_autotune.frontends.online.unhurried import InBackground, RememberingPolicy
from forecast_autotune.measure.real_calls import LearningEndedError, RealCalls
from forecast_autotune.tuning.policies import Selective

CONFIGS = [Config({"BLOCK": block}) for block in (64, 128, 256)]


def make_calls() -> RealCalls:
    return RealCalls(
        incumbent=CONFIGS[0], default=CONFIGS[0], allowance=Allowance(), share=1.0, new_event=Device().event
    )


class TestRememberingPolicy(PolicyContract):
    def make(self) -> RememberingPolicy:
        observed = RememberingPolicy()
        observed.policy = Selective()
        return observed


class TestInBackground(CompilerContract):
    @pytest.fixture(autouse=True)
    def _not_at_work(self) -> Any:
        yield
        at_work.leave()

    def make_compiler(self) -> InBackground:
        return InBackground(NoCompiler(), CONFIGS[0], make_calls())

    def good(self) -> list[Config]:
        return CONFIGS

    def unbuildable(self) -> None:
        return None


class Spilling(NoCompiler):
    def compile(self, configs: Iterable[Config], **_: Any) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        for config in configs:
            yield config, Evidence(compile_s=0.1, spill_bytes=config["BLOCK"] - 64)  # type: ignore[operator]


def test_what_spills_more_than_the_default_is_not_tried_in_a_real_call() -> None:
    try:
        built = dict(InBackground(Spilling(), CONFIGS[1], make_calls()).compile([CONFIGS[1], CONFIGS[0], CONFIGS[2]]))
    finally:
        at_work.leave()
    assert [isinstance(built[config], Failure) for config in CONFIGS] == [False, False, True]
    failure = built[CONFIGS[2]]
    assert isinstance(failure, Failure)
    assert failure.transient  # mode tune may still try it
    assert "spills 192 bytes" in failure.message


def test_what_is_built_after_the_end_is_no_result() -> None:
    calls = make_calls()
    building = InBackground(NoCompiler(), CONFIGS[0], calls).compile(CONFIGS)
    try:
        next(building)
        calls.end()
        with pytest.raises(LearningEndedError):
            next(building)
    finally:
        at_work.leave()
