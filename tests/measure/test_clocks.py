from __future__ import annotations

from forecast_autotune.measure.clocks import CpuClock, Launch, _rounded


def test_a_sample_has_no_digits_that_no_clock_tells() -> None:
    measured = CpuClock(timed_s=0.01).measure(Launch(call=lambda: sum(range(100))), first_us=1.0)
    assert all(float(f"{t:.4f}") == t for t in measured.samples_us)


def test_what_takes_no_time_at_all_takes_some() -> None:
    assert _rounded([1e-9, 0.00004, 1.23456]) == (1e-4, 1e-4, 1.2346)
