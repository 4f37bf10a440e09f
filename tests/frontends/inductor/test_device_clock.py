"""The device is busy for a while before Inductor times candidates, and only where that is wanted and helps."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from rehearsed_inductor import Timed
from torch._inductor import select_algorithm

import forecast_autotune as fa
from forecast_autotune.frontends.inductor import device_clock
from forecast_autotune.frontends.inductor.device_clock import at_full_clock


class Device:
    """Takes ten times as long until it has been busy for a while; the time is its own."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now_s = 0.0
        self.runs: list[str] = []
        monkeypatch.setattr(device_clock, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def benchmark(self, choices: list[Any], _: Any, is_collective: bool = False) -> dict[Any, float]:
        told = {}
        for choice in choices:
            self.runs.append(choice.name)
            told[choice] = choice.ms * (10 if self.now_s < 0.1 else 1)
            self.now_s += 0.03
        return told


class Choice:
    def __init__(self, name: str, ms: float, device: str = "cuda") -> None:
        self.name, self.ms, self.layout = name, ms, SimpleNamespace(device=SimpleNamespace(type=device))


def test_the_first_candidate_is_not_timed_at_a_low_clock(monkeypatch: Any) -> None:
    device = Device(monkeypatch)
    library, template = Choice("mm", 1.0), Choice("triton_mm", 1.5)
    told = at_full_clock(device.benchmark, lambda: True)([library, template], None)
    assert list(told.values()) == [1.0, 1.5]
    assert device.now_s < 2 * device_clock.BUSY_S


@pytest.mark.parametrize("why", ["not wanted", "ranks together", "a CPU", "does not run", "no candidates"])
def test_otherwise_nothing_more_is_run_than_inductor_does(monkeypatch: Any, why: str) -> None:
    device = Device(monkeypatch)
    listed = [Choice("mm", math.inf if why == "does not run" else 1.0, "cpu" if why == "a CPU" else "cuda")]
    benchmark = at_full_clock(device.benchmark, lambda: why != "not wanted")
    benchmark([] if why == "no candidates" else listed, None, is_collective=why == "ranks together")
    assert len(device.runs) == {"no candidates": 0, "does not run": 2}.get(why, 1)


def test_inductor_times_through_it_while_it_is_installed(timed: Timed, monkeypatch: Any) -> None:
    assert timed.lists == []
    runs: list[str] = []
    monkeypatch.setattr(device_clock, "_keep_busy", lambda _: runs.append("busy"))
    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(cache, "benchmark_choice", lambda *_: 0.1)
    cache.benchmark_choices([Choice("mm", 1.0)], None)
    assert runs == ["busy"]
    fa.uninstall()
    cache.benchmark_choices([Choice("mm", 1.0)], None)
    assert runs == ["busy"]
