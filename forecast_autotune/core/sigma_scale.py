"""SigmaScale: how much wider, or narrower, forecasts should have been, as what was measured afterwards showed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaScale:
    """Factors for the sigmas of forecasts, with the number of (forecast, outcome) pairs that each rests on.

    Attributes:
        cold: for forecasts made before the default's time was known.
        warm: for forecasts made knowing it: in the midst of a run, or after an earlier one.
        cold_pairs, warm_pairs: what each rests on.
    """

    cold: float = 1.0
    warm: float = 1.0
    cold_pairs: int = 0
    warm_pairs: int = 0

    def factor(self, *, knows_default: bool) -> float:
        """The factor by which to multiply the sigmas of a forecast."""
        return self.warm if knows_default else self.cold
