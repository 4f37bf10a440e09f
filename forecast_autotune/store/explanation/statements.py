"""Who said what: the parts of a forecast by the surrogate that each comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.figures import as_times
from ...core.forecast import Abstention, Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one surrogate forecast of a config, in log2 speed-up, and how much it counted."""

    said_by: str
    mean: float
    sigma: float
    weight: float

    def __str__(self) -> str:
        return f"{self.said_by} {as_times(self.mean)} ±{self.sigma:.1f} ({self.weight:.0%})"


def statements_of(forecast: Forecast | Abstention | None) -> list[Statement]:
    """What each surrogate forecast, the one that counts most first; empty where one forecast alone."""
    if not isinstance(forecast, Forecast) or not all(bell.source for bell in forecast.components):
        return []
    statements = []
    for name in dict.fromkeys(bell.source for bell in forecast.components):
        bells = [bell for bell in forecast.components if bell.source == name]
        weight = sum(bell.weight for bell in bells)
        own = Forecast(tuple(replace(b, weight=b.weight / weight if weight else 1 / len(bells)) for b in bells), name)
        statements.append(Statement(said_by=name, mean=own.mean, sigma=own.sigma, weight=weight))
    return sorted(statements, key=lambda each: -each.weight)
