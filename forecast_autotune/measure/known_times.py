"""What is known of the times of configs in real calls, and which of them is the best."""

from __future__ import annotations

import math
import statistics

from ..core.config import Config
from ..core.outcome import SWITCH_MARGIN, Measurement

LEVEL_SAMPLES = 4  # of what runs anyhow, before anything is compared with it


class KnownTimes:
    """How long a call of one key takes under each config, in microseconds on the scale of the run.

    A machine drifts while a program runs. Candidates are timed as multiples of the incumbent, the best that is known, whose
    level is taken once: that is the scale.

    Args:
        incumbent: what runs at first.
        default: the default config.

    Attributes:
        last_us: the incumbent's newest time, as it is now.
    """

    def __init__(self, incumbent: Config, default: Config) -> None:
        self.incumbent = incumbent
        self.last_us = math.nan
        self._default = default
        self._levels_us: dict[Config, float] = {}
        self._first_us: list[float] = []  # of the first incumbent, until its level is known

    def __contains__(self, config: Config) -> bool:
        return config in self._levels_us

    def __getitem__(self, config: Config) -> float:
        return self._levels_us[config]

    @property
    def has_begun(self) -> bool:
        """Whether the incumbent's level is known."""
        return self.incumbent in self._levels_us

    @property
    def incumbent_us(self) -> float:
        """The incumbent's level, once it is known."""
        return self._levels_us[self.incumbent]

    @property
    def default_us(self) -> float | None:
        """The default's level; None where it is not known."""
        return self._levels_us.get(self._default)

    @property
    def scale(self) -> float:
        """From a time now to one on the scale of the run."""
        return self.incumbent_us / self.last_us if self.last_us > 0 else 1.0

    def note_first(self, us: float) -> float:
        """Take in a call of the first incumbent; returns what all of these have taken once they tell its level, else 0."""
        self._first_us.append(us)
        if len(self._first_us) < LEVEL_SAMPLES:
            return 0.0
        level_us = self._levels_us[self.incumbent] = statistics.median(self._first_us)
        return sum(min(each, level_us) for each in self._first_us)

    def note(self, config: Config, measurement: Measurement) -> bool:
        """Keep how long a candidate takes; whether it is faster beyond the noise, and takes the incumbent's place."""
        level_us = self.incumbent_us
        self._levels_us[config] = measurement.median_us
        gain = level_us / measurement.median_us - 1
        if len(measurement.samples_us) < 2 or gain <= max(SWITCH_MARGIN, 2 * measurement.relative_error):
            return False
        self.incumbent = config
        self.last_us *= measurement.median_us / level_us
        return True

    def saved_us(self, us: float) -> float:
        """By how much a call of the incumbent that took so long was shorter than one of the default, where that is known."""
        if not self.has_begun or (default_us := self.default_us) is None:
            return 0.0
        return us * (default_us / self.incumbent_us - 1)
