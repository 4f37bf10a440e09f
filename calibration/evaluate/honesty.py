"""How honest our forecasts of a recorded space are: skill, calibration, and whether error falls as confidence grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forecast_autotune.core.forecast import BIN_EDGES_LOG2, Abstention, Forecast
from forecast_autotune.evaluation.replay_runner import forecast_space
from forecast_autotune.evaluation.scores import (
    ForecastScores,
    bin_probabilities,
    discovery,
    risk_coverage,
    score_forecasts,
    score_trust,
)
from forecast_autotune.features.forecast_mixtures import Mixtures
from forecast_autotune.features.kernel_kinds import kernel_kind

from .benchmark import Entry, Row, case
from .trials import Array, Case

FIFTHS = 5
CLASSES = 10  # of confidence
RESAMPLES = 200
INTERVAL = (2.5, 97.5)  # percentiles
MEANS = ("accuracy", "off_by_one", "half_brier", "brier_skill", "crps7", "nll", "ece")
TRUST_MEANS = ("aurc", "coverage_50", "coverage_90", "rank_correlation", "regret_10", "regret_30")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForecastsOfASpace:
    """Our forecasts of all configs of a space, once for each draw.

    The surrogate is given `known` outcomes beforehand: the default's, and others drawn at random.
    """

    entry: Entry
    known: int
    draws: int

    @property
    def own(self) -> bool:
        return True

    def each_draw(self) -> range:
        """The draws; one where nothing is drawn."""
        return range(self.draws if self.known else 1)


class Honesty(_ForecastsOfASpace):
    """Forecasts of all configs of a space, scored in eight bins against its median config; the mean over draws."""

    def do(self) -> list[Row]:
        recorded = case(self.entry)
        scored = [score(recorded, self.known, draw) for draw in self.each_draw()]
        wrong, confidence = np.array([w for _, w, _ in scored]), np.array([c for _, _, c in scored])
        return [
            {
                **self.entry.named,
                "known": self.known,
                "draws": len(scored),
                **{name: _mean([getattr(scores, name) for scores, _, _ in scored]) for name in MEANS},
                "kind": kernel_kind(recorded.job.static_features),
                "gaps": gaps(wrong, confidence),
                **fifths(wrong, confidence),
            }
        ]


class PageForecasts(_ForecastsOfASpace):
    """Everything the report's page shows of forecasts of a space: every score, and forecasts beside measurements.

    `known` and the bins as in `Honesty`. A row has each score over all configs, and again as `rest_…` over those whose
    outcomes were not given; all lists are over the latter. `confidence` and `wrong` hold a list for each draw; `risk` is
    the error of the surest 1, 2, … 100 %, the mean over draws; the others are of the first draw, over configs that ran.
    """

    def do(self) -> list[Row]:
        recorded = case(self.entry)
        draws = [drawn_forecasts(recorded, self.known, draw) for draw in self.each_draw()]
        rests = [d.rest() for d in draws]
        curves = [risk_coverage(d.forecasts, d.measured, reference=d.reference) for d in rests]
        marks = [d.wrong_and_confidence() for d in rests]
        wrong, confidence = np.array([w for w, _ in marks]), np.array([c for _, c in marks])
        steps = [discovery(recorded.space, d.forecasts, d.measured) for d in draws]
        return [
            {
                **self.entry.named,
                "known": self.known,
                "draws": len(draws),
                "configs": len(recorded.space),
                "fitted_on": list(recorded.surrogate().fitted_on),
                **all_scores(draws),
                **{f"rest_{name}": value for name, value in all_scores(rests).items()},
                "events": sum(each.events for each in steps),
                "called": sum(each.called for each in steps),
                "spotted": sum(round(each.called * (each.precision or 0.0)) for each in steps),
                **fifths(wrong, confidence),
                "confidence": confidence.tolist(),
                "wrong": wrong.tolist(),
                "risk": np.mean([[c.error_at(p / 100) for p in range(1, 101)] for c in curves], axis=0).tolist(),
                **rests[0].beside(),
            }
        ]


def all_scores(draws: Sequence[SpaceForecasts]) -> dict[str, float | None]:
    """The mean over draws of each score."""
    scores = [score_forecasts(d.forecasts, d.measured, reference=d.reference) for d in draws]
    trust = [score_trust(d.forecasts, d.measured, reference=d.reference) for d in draws]
    return {
        **{name: _mean([getattr(each, name) for each in scores]) for name in MEANS},
        **{name: _mean([getattr(each, name) for each in trust]) for name in TRUST_MEANS},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceForecasts:
    """Forecasts of all configs of a space, and the log2 speed-ups measured: over the default, minus infinity for a failure.

    `reference` is the speed-up of the median config, which the bins relate to.
    """

    forecasts: Sequence[Forecast | Abstention]
    speedups: Array
    reference: float
    given: frozenset[int]  # positions of the configs whose outcomes the surrogate was given

    def rest(self) -> SpaceForecasts:
        """The same without the configs whose outcomes were given."""
        if not self.given:
            return self
        left = [i for i in range(self.speedups.size) if i not in self.given]
        forecasts = [self.forecasts[i] for i in left]
        return replace(self, forecasts=forecasts, speedups=self.speedups[left], given=frozenset())

    @property
    def measured(self) -> list[float]:
        return self.speedups.tolist()  # type: ignore[no-any-return]  # numbers, of an array of numbers

    def wrong_and_confidence(self) -> tuple[NDArray[np.bool_], Array]:
        """For each config whether its most probable bin was wrong, and how probable it was."""
        probabilities = bin_probabilities(self.forecasts, reference=self.reference)
        truth = np.searchsorted(np.asarray(BIN_EDGES_LOG2), self.speedups - self.reference, side="left")
        return probabilities.argmax(axis=1) != truth, probabilities.max(axis=1)

    def beside(self) -> Row:
        """Of configs that ran and were forecast: what was expected, what came, whether inside the central 90 %."""
        mixtures = Mixtures.of(self.forecasts)
        shown = np.isfinite(self.speedups) & ~mixtures.abstained
        inside = abs(mixtures.at(shown).cdf(self.speedups[shown]) - 0.5) <= 0.45
        return {
            "expected": mixtures.expected()[shown].tolist(),
            "measured": self.speedups[shown].tolist(),
            "inside_90": inside.tolist(),
        }


def drawn_forecasts(recorded: Case, known: int, draw: int) -> SpaceForecasts:
    """Forecast a space, given so many of its outcomes."""
    result = forecast_space(
        recorded, surrogate=recorded.surrogate(), known=known, draw=draw, history=recorded.recordings
    )
    return SpaceForecasts(
        forecasts=result.forecasts,
        speedups=np.array(result.speedups),
        reference=result.reference,
        given=frozenset(map(recorded.space.index, result.known)),
    )


def score(recorded: Case, known: int, draw: int) -> tuple[ForecastScores, NDArray[np.bool_], Array]:
    """The scores, and for each config whether its most probable bin was wrong and how probable it was."""
    drawn = drawn_forecasts(recorded, known, draw)
    return score_forecasts(drawn.forecasts, drawn.measured, reference=drawn.reference), *drawn.wrong_and_confidence()


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def gaps(wrong: NDArray[np.bool_], confidence: Array) -> list[float]:
    """In each of ten equal classes of confidence, how much more often forecasts are right than they say; shares of all."""
    classes = np.minimum((confidence * CLASSES).astype(int), CLASSES - 1)
    over = ~wrong - confidence
    return [float(over[classes == number].sum() / over.size) for number in range(CLASSES)]


def fifths(wrong: NDArray[np.bool_], confidence: Array) -> Row:
    """Errors from the least confident fifth to the most, with intervals, configs being drawn again; a row for each draw.

    `rises` are the fifths (1 to 4) whose error is above that of the one before by more than the interval; `falls` says that
    there are none, and that the last one's error is below the first's.
    """
    n = wrong.shape[1]
    if n < FIFTHS:
        return {"error_by_fifth": [], "error_low": [], "error_high": [], "rises": [], "falls": None}
    errors = _errors(wrong, confidence)
    generator = np.random.default_rng(0)
    again = (generator.integers(n, size=n) for _ in range(RESAMPLES))
    resampled = np.array([_errors(wrong[:, at], confidence[:, at]) for at in again])
    low, high = np.percentile(resampled, INTERVAL, axis=0)
    least_step = np.percentile(np.diff(resampled, axis=1), INTERVAL[0], axis=0)
    rises = [int(i) + 1 for i in np.flatnonzero(least_step > 0)]
    return {
        "error_by_fifth": errors.tolist(),
        "error_low": low.tolist(),
        "error_high": high.tolist(),
        "rises": rises,
        "falls": bool(not rises and errors[-1] < errors[0]),
    }


def _errors(wrong: NDArray[np.bool_], confidence: Array) -> Array:
    """The share of wrong bins in each fifth by confidence, the mean over draws."""
    order = np.argsort(confidence, axis=1, kind="stable")
    ordered = np.take_along_axis(wrong, order, axis=1).mean(axis=0)
    return np.array([part.mean() for part in np.array_split(ordered, FIFTHS)])
