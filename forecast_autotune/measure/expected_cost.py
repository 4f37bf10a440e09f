"""What the next call of a candidate is expected to cost beyond what would have run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from ..core.config import Config
from .call_trial import CallTrial
from .known_times import KnownTimes

LOAD_US = 3000.0  # what loading a candidate takes that is not ready to launch, before any was loaded
COMPARE_US, COMPARE_FACTOR = 20_000.0, 8.0  # and times a call's: what comparing takes, before any was compared
UNFORECAST_SLOWDOWN = 0.25  # by which share a candidate nobody has forecast is expected to take longer


class ExpectedCost:
    """Learns what loading and comparing candidates takes, and expects the same of the next one.

    Args:
        times: what is known of the key's configs.
        expected: a candidate's expected time as a multiple of the default's; None where nobody says.
    """

    def __init__(self, times: KnownTimes, expected: Callable[[Config], float | None]) -> None:
        self._times, self._expected = times, expected
        self._loads_us: dict[bool, list[float]] = {True: [], False: []}  # by whether the config was ready
        self._compares_us: list[float] = []

    def note_load(self, us: float, *, was_ready: bool) -> None:
        """Take in what loading a candidate has held up its first call for."""
        self._loads_us[was_ready].append(us)

    def note_comparison(self, us: float) -> None:
        """Take in what comparing a candidate with the default has taken."""
        self._compares_us.append(us)

    def of(self, trial: CallTrial, *, is_compared: bool) -> float:
        """Microseconds that a candidate's next call costs, where it `is_compared` with the default before."""
        times, level_us = self._times, self._times.incumbent_us
        if trial.samples_us:
            return max(0.0, statistics.median(trial.samples_us) - level_us)
        if trial.config in times:
            return max(0.0, times[trial.config] - level_us)
        if not math.isnan(trial.first_us):
            return max(0.0, trial.first_us - times.last_us)
        seen_us = self._loads_us[trial.is_ready]
        first_us = statistics.median(seen_us) if seen_us else 0.0 if trial.is_ready else LOAD_US
        if is_compared:
            seen_us = self._compares_us
            first_us += statistics.median(seen_us) if seen_us else COMPARE_US + COMPARE_FACTOR * level_us
        multiple, default_us = self._expected(trial.config), times.default_us
        if multiple is None or default_us is None:
            return first_us + UNFORECAST_SLOWDOWN * level_us
        return first_us + max(0.0, multiple * default_us - level_us)
