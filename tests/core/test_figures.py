from __future__ import annotations

import math

import pytest

from forecast_autotune.core.figures import as_percent, as_time, as_times
from forecast_autotune.core.outcome import Measurement


@pytest.mark.parametrize(
    ("us", "spread", "shown"),
    [
        (None, None, ""),
        (5.3672, None, "5.367 us"),
        (5.3672, 0.4 / 5.3672, "5.367 ±0.4 us"),
        (1247.0, 0.13, "1.247 ±0.16 ms"),
        (900.0, 0.5, "900 ±450 us"),
        (2e6, 0.0, "2 ±0 s"),
    ],
)
def test_a_time_has_its_spread_beside_it_in_the_same_unit(us: float | None, spread: float | None, shown: str) -> None:
    assert as_time(us, spread) == shown


@pytest.mark.parametrize(
    ("factor", "shown"), [(1.0, "1.00x"), (18.512, "18.51x"), (20013.2, "20013x"), (0.0003, "0.0003x")]
)
def test_large_and_tiny_factors_are_not_rounded_to_nothing(factor: float, shown: str) -> None:
    assert as_times(math.log2(factor)) == shown


def test_a_share_has_two_digits() -> None:
    assert [as_percent(share) for share in (0.00096, 0.15, 1.234)] == ["0.096 %", "15 %", "123 %"]


def test_the_spread_of_samples_is_their_deviation_and_unknown_for_one() -> None:
    assert Measurement(samples_us=(9.0, 10.0, 11.0)).relative_spread == pytest.approx(0.14826)
    assert Measurement(samples_us=(10.0,)).relative_spread is None
