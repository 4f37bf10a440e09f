"""Correction: how much wider, or narrower, forecasts should have been, as what was measured afterwards showed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors for the sigmas of forecasts, with the number of (forecast, outcome) pairs that each rests on.

    `ahead` is for forecasts made without the default's time, out of what is known from elsewhere; `after` is for those
    made knowing it, which is to say in the midst of a run or after an earlier one.
    """

    ahead: float = 1.0
    after: float = 1.0
    ahead_pairs: int = 0
    after_pairs: int = 0

    def factor(self, *, knows_default: bool) -> float:
        """By how much to stretch the sigmas of a forecast."""
        return self.after if knows_default else self.ahead


UNCORRECTED = Correction()
