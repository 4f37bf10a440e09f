"""What a benchmark's answers and errors become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.measure.benchmarker import Benchmarker, thinned

CONFIG = Config({"BLOCK": 64})


def measured(do_bench: Callable[..., Any], **arguments: Any) -> tuple[Any, Benchmarker]:
    benchmarker = Benchmarker(lambda config: lambda: None, lambda: do_bench, **arguments)
    return benchmarker.measure(CONFIG), benchmarker


def raising(err: Exception) -> Callable[..., Any]:
    def do_bench(*_: Any, **__: Any) -> Any:
        raise err

    return do_bench


class OutOfResources(Exception):  # noqa: N818  # Triton's own name
    pass


class CompilationError(Exception):
    pass


class CompileTimeAssertionFailure(CompilationError):  # noqa: N818
    pass


class PTXASError(Exception):
    pass


@pytest.mark.parametrize("kind", [OutOfResources, CompilationError, CompileTimeAssertionFailure, PTXASError])
def test_what_is_the_configs_own_doing_is_kept(kind: type[Exception]) -> None:
    outcome, _ = measured(raising(kind("too large")))
    assert isinstance(outcome, Failure)
    assert not outcome.transient
    assert outcome.stage == ("resources" if kind is OutOfResources else "launch")


@pytest.mark.parametrize("err", [KeyError("BM"), RuntimeError("CUDA error: an illegal memory access"), MemoryError()])
def test_what_may_be_anybodys_doing_holds_for_this_run_only(err: Exception) -> None:
    outcome, _ = measured(raising(err))
    assert isinstance(outcome, Failure)
    assert outcome.transient


def test_a_failed_check_is_kept() -> None:
    outcome, _ = measured(raising(KeyError()), inspect=lambda config: "3 elements differ")
    assert (outcome.stage, outcome.transient) == ("check", False)


def test_every_time_is_kept_of_a_benchmark_that_says_them() -> None:
    def do_bench(call: Any, quantiles: Any = None, return_mode: str = "mean") -> Any:
        assert quantiles is None
        return [1.0, 3.0, 2.0] if return_mode == "all" else 2.0

    outcome, benchmarker = measured(do_bench)
    assert outcome.samples_us == (1000.0, 3000.0, 2000.0)
    assert not benchmarker.quantiles_ms


@pytest.mark.parametrize("repeatable", [True, False])
def test_quantiles_are_one_sample(repeatable: bool) -> None:
    outcome, benchmarker = measured(lambda call, quantiles: [2.0, 1.0, 4.0], repeatable=repeatable)
    assert isinstance(outcome, Measurement)
    assert outcome.samples_us == (2000.0,)
    assert benchmarker.quantiles_ms == {CONFIG: [2.0, 1.0, 4.0]}


def test_a_users_benchmark_is_asked_for_quantiles_whatever_else_it_takes() -> None:
    def do_bench(call: Any, quantiles: Any = None, return_mode: str = "mean") -> Any:
        assert return_mode == "mean"
        return [2.0, 1.0, 4.0]

    outcome, _ = measured(do_bench, repeatable=False)
    assert outcome.samples_us == (2000.0,)


def test_many_times_are_thinned_evenly_and_stay_in_their_order() -> None:
    times = [float((i * 37) % 1000) for i in range(1000)]
    few = thinned(times)
    assert len(few) == 50
    assert sorted(few) == [10.0 + 20 * k for k in range(50)]
    assert few == [t for t in times if t in set(few)]
    assert thinned(times[:50]) == times[:50]
