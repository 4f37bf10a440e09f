"""Timers that take contenders in turns: what they leave out, what they refuse, and how their table reads."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kernel_suite import add_inplace  # noqa: E402

from calibration.evaluate.side_by_side import cold_times_us, device, durations_us, in_turns, rehearsing  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Failure, Measurement  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402

CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU


pytestmark = pytest.mark.usefixtures("own_cache")


def event(name: str, start: float, length: float, where: Any = CUDA) -> Any:
    return SimpleNamespace(
        name=name, device_type=where, time_range=SimpleNamespace(start=start, elapsed_us=lambda: length)
    )


def test_runs_of_the_kernel_alone_are_taken_in_the_order_they_began() -> None:
    seen = [event("scale", 30, 3.5), event("memset", 5, 9), event("scale", 10, 1.5), event("scale", 11, 80, CPU)]
    assert durations_us(seen, "scale") == [1.5, 3.5]


def test_each_contender_gets_its_own_runs_without_the_first_round() -> None:
    assert in_turns([90, 91, 1, 2, 3, 4], contenders=2, rounds=3) == [[1, 3], [2, 4]]


def test_a_launch_missed_by_the_profiler_is_an_error_not_a_wrong_time() -> None:
    with pytest.raises(RuntimeError, match="6 launches, but the profiler saw 5"):
        in_turns([1, 2, 3, 4, 5], contenders=2, rounds=3)


def test_launches_are_timed_in_turns_and_one_that_does_not_run_has_no_time() -> None:
    kernel = add_inplace.KERNEL
    call = kernel.make_call(kernel.corners[0], 0, "cpu")
    blocks = (128, 512, 1024)
    outcomes: list[Any] = [
        Measurement(samples_us=(1e4, 1.0, 3.0)),  # the first launch and the first round are for warming up
        Failure(stage="launch", message="too large"),
        Measurement(samples_us=(7.0,)),
    ]
    times = {Config({"BLOCK": b}): outcome for b, outcome in zip(blocks, outcomes, strict=True)}
    with rehearsal("H200", {"add_inplace": times}):
        found = cold_times_us([partial(call.launch, kernel.function, BLOCK=b) for b in blocks], rounds=2)
    assert found == [[pytest.approx(3.0), pytest.approx(1e4)], None, [pytest.approx(7.0)] * 2]


def test_a_rehearsal_declares_its_times_made_up_and_gives_each_config_one() -> None:
    from calibration.evaluate.side_by_side import surroundings

    kernel = add_inplace.KERNEL
    call = kernel.make_call(kernel.corners[0], 0, "cpu")
    with rehearsing([kernel]):
        assert device() == "cpu"
        assert "made-up" in surroundings()["gpu"]
        launches = [partial(call.launch, kernel.function, **dict(c.knobs)) for c in kernel.space[:3]]
        found = cold_times_us(launches, rounds=1)
    assert len({samples[0] for samples in found if samples}) == 3
