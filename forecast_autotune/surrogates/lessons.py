"""Lessons of a store's own pairs of forecast and outcome: how wide forecasts should be, and which surrogate to weigh.

The pairs are of configs that a policy chose to measure, so they are no fair sample of a space. Replayed on the 89 recorded
spaces of the kernel suite (H200; each tuned once with a budget of 16, all into one store, in two orders), and judged on all
configs that were not measured:

  sigma   Made after the default was timed (1248 pairs): the stretch that suits all configs best is 2.5 to 2.7. The pairs
          give a root mean square error of 2.1 to 2.3 sigmas. That is too low: the policy picks configs close to those
          already measured. Cut at 6 sigmas, so that no single error decides, it is 1.8 to 1.9. A Student-t scale (4
          degrees of freedom) gives 1.2, and without the worst 5 % it is 1.4. Both leave the tails out, and the tails are
          what is wrong with the forecasts. So: maximum likelihood of the forecasts as they are. Learned from 200 pairs of
          half the kernels it takes forecasts of the other half from 33 and 65 % inside the central 50 and 90 % to 56 and
          86, their NLL from 2.12 to 1.62 and their calibration error from 0.19 to 0.14. Made before (67 pairs): 1.0 to 1.2
          suits best, the pairs say 1.0 to 1.4, and coverage (61 and 88 %), NLL (2.01) and calibration error (0.21) stay
          within 0.03.
  mean    The pairs say that forecasts promise too much (by 0.2 to 0.4 sigma on average: the winner's curse), all other
          configs anything from that to as much too little: a shift would go the wrong way as often as not.
  failing The pairs failed more often than forecast (63 for 59, and 6 for 1 before the default was timed), all others less
          than half as often (1.9 % for 4.3 %), as picks go to the edge of what runs. A shift fitted to the pairs makes the
          log loss of all others worse (0.098 for 0.095, and 0.23 for 0.10): the chance of failing stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.forecast import Forecast
from ..core.sigma_scale import SigmaScale
from ..features.forecast_mixtures import NARROWEST, Mixtures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PRIOR_PAIRS = 20  # pairs that would have shown forecasts to be right as they are count beside those there are
LEAST, MOST = 0.5, 4.0  # of a stretch
LARGEST_ERROR = 6.0  # sigmas; an error beyond counts as that: one forecast of no width must not decide alone
SMALLEST = 1e-6  # of a density in the log score, per octave: one outcome held impossible must not hide all the others
FARTHEST = 100.0  # octaves: no forecast of a run time goes there
HEARD = 0.5  # share of the pairs of whoever was heard most that a member must have spoken of to be compared


@dataclass(frozen=True, slots=True)
class Lessons:
    """What past forecasts and outcomes teach: how wide to make forecasts, and each member's mean log density."""

    sigma_scale: SigmaScale
    past_log_density: Mapping[str, float]


def lessons_of(pairs: Sequence[tuple[Forecast, float]]) -> Lessons:
    """What forecasts teach, each with the log2 speed-up then measured; see `recalibration` and `member_scores`."""
    return Lessons(recalibration(pairs), member_scores(pairs))


def recalibration(pairs: Sequence[tuple[Forecast, float]]) -> SigmaScale:
    """The factors for sigmas that make forecasts most likely in the light of what was measured.

    A temperature on sigma: the factor k, the same for every bell, that maximises the likelihood of the measured log2
    speed-ups, drawn towards 1 by `PRIOR_PAIRS` and held within 0.5 to 4. For forecasts of one bell k^2 is the mean of
    ((measured - mean) / sigma)^2, a 1 counted in for each pair of the prior. By how much a forecast had been
    stretched when it was made is taken out first, so that the factors do not feed on themselves.

    Args:
        pairs: forecasts, and the log2 speed-ups then measured; failures, at minus infinity, say nothing of sigma.
    """
    import numpy as np

    ran = [(f, m) for f, m in pairs if math.isfinite(m) and _is_sane(f)]
    mixtures, truth = _raw(Mixtures.of([f for f, _ in ran])), np.array([m for _, m in ran])
    after = mixtures.knows_default
    return SigmaScale(
        cold=_stretch(mixtures.at(~after), truth[~after]),
        warm=_stretch(mixtures.at(after), truth[after]),
        cold_pairs=int((~after).sum()),
        warm_pairs=int(after.sum()),
    )


def member_scores(pairs: Sequence[tuple[Forecast, float]]) -> dict[str, float]:
    """How well each member of a blend did: its mean log density, in nats, at the measured log2 speed-up.

    All are judged on the same pairs, those of which every one of them spoke; a member that spoke of less than half as many
    as the one heard most is left out. A density counts as at least 1e-6 per octave, and a member is heard as it
    was before recalibration. Empty where no pair has several members.
    """
    import numpy as np

    spoken: list[tuple[dict[str, Forecast], float]] = []
    heard: dict[str, int] = {}
    for forecast, measured in pairs:
        members = _members(forecast) if math.isfinite(measured) and _is_sane(forecast) else {}
        if len(members) > 1:
            spoken.append((members, measured))
            for name in members:
                heard[name] = heard.get(name, 0) + 1
    most = max(heard.values(), default=0)
    names = sorted(name for name, count in heard.items() if count >= HEARD * most)
    common = [(members, measured) for members, measured in spoken if all(name in members for name in names)]
    if not common:
        return {}
    truth = np.array([measured for _, measured in common])
    scores: dict[str, float] = {}
    for name in names:
        alone = _raw(Mixtures.of([members[name] for members, _ in common]))
        scores[name] = float(np.maximum(_log_density(alone, truth), math.log(SMALLEST)).mean())
    return scores


def _members(forecast: Forecast) -> dict[str, Forecast]:
    """What each member of a blend says alone; bells without a name belong to nobody."""
    from dataclasses import replace

    members: dict[str, Forecast] = {}
    for name in dict.fromkeys(bell.source for bell in forecast.components if bell.source):
        bells = [bell for bell in forecast.components if bell.source == name and bell.weight > 0]
        total = sum(bell.weight for bell in bells)
        if total > 0:
            members[name] = replace(
                forecast, components=tuple(replace(bell, weight=bell.weight / total) for bell in bells)
            )
    return members


def _is_sane(forecast: Forecast) -> bool:
    """Whether a forecast says anything, and in numbers that can be computed with: a store's may come from anywhere."""
    return sum(b.weight for b in forecast.components) > 0 and all(
        abs(b.mean) < FARTHEST and b.sigma < FARTHEST for b in forecast.components
    )


def _raw(mixtures: Mixtures) -> Mixtures:
    """Forecasts as they were before they were stretched."""
    from dataclasses import replace

    return replace(mixtures, sigma=mixtures.sigma / mixtures.sigma_scale)


def _stretch(mixtures: Mixtures, truth: Array) -> float:
    """The most likely factor, by a grid on a log scale, a finer one around its best, and a parabola through that."""
    import numpy as np

    if truth.size == 0:
        return 1.0
    reach = LARGEST_ERROR * np.maximum(mixtures.spread(), NARROWEST)
    mean = mixtures.expected()
    near = np.clip(truth, mean - reach, mean + reach)
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(2):
        grid = np.linspace(low, high, 25)
        likely = np.array([_likelihood(mixtures, near, math.exp(k)) for k in grid])
        best = int(likely.argmax())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
    at = float(grid[best])
    if 0 < best < grid.size - 1:
        before, middle, behind = likely[best - 1 : best + 2]
        bend = before - 2 * middle + behind
        if bend < 0:
            at += 0.5 * float(before - behind) / float(bend) * float(grid[1] - grid[0])
    return float(min(MOST, max(LEAST, math.exp(at))))


def _likelihood(mixtures: Mixtures, truth: Array, factor: float) -> float:
    from dataclasses import replace

    stretched = replace(mixtures, sigma=mixtures.sigma * factor)
    prior = -PRIOR_PAIRS * (math.log(factor) + 0.5 / factor**2)
    return float(_log_density(stretched, truth).sum()) + prior


def _log_density(mixtures: Mixtures, truth: Array) -> Array:
    """Log of each forecast's density at a place, per octave."""
    import numpy as np

    sigma = np.maximum(mixtures.sigma, NARROWEST)
    with np.errstate(divide="ignore"):  # the log of a weight of 0
        logs = np.log(mixtures.weight) - 0.5 * ((truth - mixtures.mean) / sigma) ** 2 - np.log(sigma)
    highest = logs.max(axis=0)
    density: Array = highest + np.log(np.exp(logs - highest).sum(axis=0)) - 0.5 * math.log(2.0 * math.pi)
    return density
