from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
from recorded import measurement
from small_runs import Noisy, decide, recorded_as, tuned_by

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.tuning import noise
from forecast_autotune.tuning.failures import recordings_unreported
from forecast_autotune.tuning.noise import NOISY, spread_of


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(noise, "_warned_of", [])
    caplog.set_level(logging.INFO, "forecast_autotune.tuner.noise")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "forecast_autotune.tuner.noise"]


def test_a_default_whose_samples_vary_is_told_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    decide(recorded_as([Measurement(samples_us=(80, 80, 90, 100, 110, 120, 120)), 70.0]))
    (line,) = told(caplog)
    assert "times of the default vary by 30 % on this machine (half of 7 samples lie between 85.0 and 115.0 us)" in line
    assert "choices below that are luck" in line


def test_it_is_told_once_in_a_process(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        decide(recorded_as([Measurement(samples_us=(50, 60, 90, 150, 190)), 70.0]))
    assert len(told(caplog)) == 1


def test_a_long_key_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    of = recorded_as([Measurement(samples_us=(80, 80, 90, 100, 110, 120, 120)), 70.0])
    decide(replace(of, workload=replace(of.workload, key={"xs": list(range(10_000))})))
    (line,) = told(caplog)
    assert line.startswith(f"{of.workload.program.name}(xs=[0, 1, 2, ")
    assert len(line) < 400


@pytest.mark.parametrize(
    "default",
    [
        measurement(100.0, spread=0.001),
        measurement(100.0, spread=0.25),  # its middle half spans an eighth
        Measurement(samples_us=(50, 100, 190)),  # too few to say
        Measurement(samples_us=(100,) * 8 + (400, 900)),  # a stumble or two leave the median where it was
    ],
    ids=["quiet", "usual", "few", "outliers"],
)
def test_quiet_samples_are_not_told_of(caplog: pytest.LogCaptureFixture, default: Measurement) -> None:
    decide(recorded_as([default, 70.0, 80.0]))
    assert told(caplog) == []


def test_another_config_that_varies_is_not_the_default(caplog: pytest.LogCaptureFixture) -> None:
    decide(recorded_as([100.0, Measurement(samples_us=(50, 60, 90, 150, 190))]))
    assert told(caplog) == []


class Drifting(Noisy):
    """Each config takes longer from the second measurement on."""

    def __init__(self, of: object, share: float) -> None:
        super().__init__(of, 0.0)  # type: ignore[arg-type]
        self.share, self.seen = share, set[object]()

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        outcome = super().measure(config, limits)
        assert isinstance(outcome, Measurement)
        again = config in self.seen
        self.seen.add(config)
        return outcome.scaled(self.share) if again else outcome


@pytest.mark.parametrize(("share", "said"), [(1.4, r"+40%"), (0.6, r"-40%"), (1.1, "")])
def test_a_default_that_takes_another_time_in_the_finals_is_told(
    caplog: pytest.LogCaptureFixture, share: float, said: str
) -> None:
    of = recorded_as([100.0, 99.0, 98.0])
    tuned_by(of, Drifting(of, share))
    lines = told(caplog)
    assert len(lines) == bool(said)
    assert all(f"vary by 40 % on this machine (timed again at the end it took {said})" in line for line in lines)


def test_a_recording_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with recordings_unreported():
        decide(recorded_as([Measurement(samples_us=(50, 60, 90, 150, 190)), 70.0]))
    assert told(caplog) == []


def test_the_spread_of_a_quiet_device_stays_far_below_the_bar() -> None:
    draw = random.Random(7)
    spreads = [spread_of(tuple(draw.gauss(100, 5) for _ in range(50))) for _ in range(2_000)]
    assert max(spreads) < NOISY / 1.5, "a deviation of 5 %, which nine in ten on an idle H200 stay below"
