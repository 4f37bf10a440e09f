"""`NO_MEASURER`: stands in for a measurer where nothing may be measured."""

from __future__ import annotations

from ..core.config import Config
from ..core.outcome import Outcome
from ..core.timing_limits import IN_FULL, TimingLimits


class _NoMeasurer:
    """Stands in where nothing may be measured."""

    repeatable = False
    explored_s = saved_s = 0.0

    def prepare(self) -> None:
        """Nothing is prepared here."""

    def skip_default(self) -> None:
        pass

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:  # noqa: ARG002  # the protocol's
        raise AssertionError(f"{config} was to be measured where nothing may be")


NO_MEASURER = _NoMeasurer()
