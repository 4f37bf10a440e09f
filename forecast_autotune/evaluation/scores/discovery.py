"""Discovery: does a forecast spot the config that is much faster than its neighbour?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.forecast import Abstention, Forecast
from ...core.space import Space
from ...errors import InvalidInputError
from ...features.forecast_columns import normal_cdf
from ...features.forecast_mixtures import NARROWEST, Mixtures
from ...features.knob_matrix import knob_matrix
from .checks import checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How well forecasts call the large steps of a space.

    Attributes:
        pairs: of a config and one of its one-knob neighbours that were judged.
        events: of them, the config was faster than the neighbour by the factor asked for.
        called: the forecasts said so.
        precision: share of the called that were events; None if none was called.
        recall: share of the events that were called; None if there was no event.
    """

    pairs: int
    events: int
    called: int
    precision: float | None
    recall: float | None


def discovery(
    space: Space, forecasts: Sequence[Forecast | Abstention], measured: Sequence[float], *, factor: float = 1.5
) -> Discovery:
    """Judge forecasts by pairs: is a config at least `factor` times as fast as its neighbour, and did they say so?

    Neighbours differ in one knob, whatever its values; each pair is judged in both directions. The forecasts call it when
    the chance of such a ratio, the two taken as independent, is above one half. Left out are pairs of which one failed or
    was not forecast. After the parent-child pairs of GPU Forecasters (arXiv 2605.31464).

    Args:
        forecasts: in the order of the space, and likewise the measured log2 speed-ups; minus infinity: failed.
        factor: ratio of the two times from which it is an event, above 1.
    Raises:
        InvalidInputError: the factor is not above 1, or there is not one forecast and outcome for each config.
    """
    import numpy as np

    truth = checked(forecasts, measured)
    if truth.size != len(space):
        raise InvalidInputError(f"{truth.size} forecasts for a space of {len(space)} configs: give one for each")
    if not (math.isfinite(factor) and factor > 1):
        raise InvalidInputError(f"factor {factor}: give a ratio of times above 1")
    mixtures = Mixtures.of(forecasts)
    usable = np.isfinite(truth) & ~mixtures.abstained
    step = math.log2(factor)
    pairs = events = called = right = 0
    for one, other in _neighbours(space):
        both = usable[one] & usable[other]
        for config, neighbour in ((one[both], other[both]), (other[both], one[both])):
            # A ratio of exactly the factor is an event, however its logarithms were rounded.
            happened = truth[config] - truth[neighbour] >= step - 1e-9
            predicted = _chance_of_step(mixtures.at(config), mixtures.at(neighbour), step) > 0.5
            pairs += config.size
            events += int(happened.sum())
            called += int(predicted.sum())
            right += int((happened & predicted).sum())
    return Discovery(
        pairs=pairs,
        events=events,
        called=called,
        precision=right / called if called else None,
        recall=right / events if events else None,
    )


def _neighbours(space: Space) -> list[tuple[Positions, Positions]]:
    """Positions of the configs that differ in one knob, each pair once, in pieces."""
    import numpy as np

    levels = knob_matrix(space).levels
    neighbours: list[tuple[Positions, Positions]] = []
    for knob in levels:
        alike = np.zeros(len(space), dtype=np.intp)  # equal where all other knobs are
        for other, level in levels.items():
            if other != knob:
                alike = np.unique(alike * (int(level.max()) + 1) + level, return_inverse=True)[1].reshape(-1)
        order = np.argsort(alike, kind="stable")
        most = int(np.bincount(alike).max())
        for apart in range(1, most):
            near = np.flatnonzero(alike[order[apart:]] == alike[order[:-apart]])
            neighbours.append((order[near], order[near + apart]))
    return neighbours


def _chance_of_step(one: Mixtures, other: Mixtures, step: float) -> Array:
    """Chance that a draw from each forecast of `one` is at least a step above one of `other`."""
    import numpy as np

    chance = np.zeros(one.fail.size)
    for mean, sigma, weight in zip(one.mean, one.sigma, one.weight, strict=True):
        for its_mean, its_sigma, its_weight in zip(other.mean, other.sigma, other.weight, strict=True):
            both = weight * its_weight
            heard = np.flatnonzero(both > 0)
            apart = np.hypot(sigma[heard], its_sigma[heard])
            z = (mean[heard] - its_mean[heard] - step) / np.maximum(apart, NARROWEST)
            chance[heard] += both[heard] * normal_cdf(z)
    return chance
