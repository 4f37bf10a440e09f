"""How far a config is timed."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingLimits:
    """Where timing a config further is of no use.

    Attributes:
        early_stop_us: once its first runs have taken longer; the first alone only beyond twice that: it may be a warm-up.
        best_us: what the fastest so far took: once all samples show that it is slower.
        share: of the usual samples, in no less time: slow configs get few as it is.
    """

    early_stop_us: float = math.inf
    best_us: float = math.inf
    share: float = 1.0


IN_FULL = TimingLimits()
"""To the end, whatever the samples show."""
