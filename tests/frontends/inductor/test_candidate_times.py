"""Inductor's candidates are timed by our clock, only where that is wanted, and by Inductor's own again afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from rehearsed_inductor import Timed
from torch._inductor import select_algorithm
from torch._inductor.runtime.benchmarking import benchmarker

import forecast_autotune as fa
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.frontends.inductor import candidate_times
from forecast_autotune.frontends.inductor.candidate_times import by_our_clock


class Clock:
    """Tells of every call that it takes 5 us."""

    def __init__(self) -> None:
        self.timed: list[Any] = []

    def synchronize(self) -> None:
        pass

    def measure(self, launch: Any, *, first_us: float) -> Measurement:
        self.timed.append(launch.call)
        return Measurement(samples_us=(4.0, 5.0, 6.0))


class Choice:
    def __init__(self, *, device: str = "cuda", fails: bool = False) -> None:
        self.layout = SimpleNamespace(device=SimpleNamespace(type=device))
        self.fails, self.runs = fails, 0

    def run(self) -> None:
        self.runs += 1
        if self.fails:
            raise RuntimeError("out of resource")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ours = Clock()
    monkeypatch.setattr(candidate_times, "clock_of", lambda _: ours)
    return ours


def benchmark_choices(choices: list[Choice], _: Any, is_collective: bool = False) -> dict[Choice, Any]:
    return {choice: benchmarker.benchmark_gpu(choice.run) for choice in choices}


def test_each_candidate_is_run_once_and_then_timed(clock: Clock) -> None:
    listed = [Choice(), Choice()]
    assert by_our_clock(benchmark_choices, lambda: True)(listed, None, is_collective=False) == dict.fromkeys(
        listed, 0.005
    )
    assert clock.timed == [choice.run for choice in listed]
    assert [choice.runs for choice in listed] == [1, 1]
    assert "benchmark_gpu" not in vars(benchmarker)


def test_what_a_candidate_raises_is_inductors_to_catch(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="out of resource"):
        by_our_clock(benchmark_choices, lambda: True)([Choice(fails=True)], None)
    assert clock.timed == []
    assert "benchmark_gpu" not in vars(benchmarker)


@pytest.mark.parametrize("why", ["not wanted", "a CPU", "no candidates"])
def test_otherwise_inductors_own_clock_stays(clock: Clock, monkeypatch: Any, why: str) -> None:
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_: "Inductor's")
    listed = [] if why == "no candidates" else [Choice(device="cpu" if why == "a CPU" else "cuda")]
    told = by_our_clock(benchmark_choices, lambda: why != "not wanted")(listed, None)
    assert told == dict.fromkeys(listed, "Inductor's")
    assert clock.timed == []


def test_what_our_clock_does_not_tell_is_left_to_inductors(clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_, **__: [0.1, 0.2])

    def every_time(choices: list[Choice], _: Any) -> dict[Choice, Any]:
        return {choice: benchmarker.benchmark_gpu(choice.run, return_mode="all") for choice in choices}

    assert list(by_our_clock(every_time, lambda: True)([Choice()], None).values()) == [[0.1, 0.2]]
    assert clock.timed == []


def test_inductor_times_through_it_while_it_is_installed(timed: Timed, clock: Clock, monkeypatch: Any) -> None:
    assert timed.lists == []
    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_: 0.1)
    monkeypatch.setattr(cache, "benchmark_choice", lambda choice, _: benchmarker.benchmark_gpu(choice.run))
    assert list(cache.benchmark_choices([Choice()], None).values()) == [0.005]
    fa.uninstall()
    assert list(cache.benchmark_choices([Choice()], None).values()) == [0.1]
    assert len(clock.timed) == 1
