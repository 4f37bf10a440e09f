"""How far timings can be trusted: what the samples that a store kept vary by."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.figures import as_percent, counted
from ..core.outcome import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Medians over configs: the spread of a config's samples, and the standard error of its median, as shares of it."""

    spread: float
    error: float
    configs: int

    def __str__(self) -> str:
        return (
            f"samples of one config vary by {as_percent(self.spread)}, its median is sure to {as_percent(self.error)} "
            f"({counted(self.configs, 'config')})"
        )


def noise_of(measurements: Iterable[Measurement]) -> Noise | None:
    """The noise of some measurements; None where each is a single sample, which tells nothing of it."""
    some = [(m.relative_spread, m.relative_error) for m in measurements]
    pairs = [(spread, error) for spread, error in some if spread is not None]
    if not pairs:
        return None
    spreads, errors = zip(*pairs, strict=True)
    return Noise(spread=statistics.median(spreads), error=statistics.median(errors), configs=len(pairs))
