"""Transfer: what recordings of the same program predict for this job, weighted by likeness and by how well they do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.job import Job, Recording, log2_speedups
from ..core.outcome import Failure, Outcome
from ..features.forecast_columns import median
from ..features.knob_matrix import knob_matrix
from ..features.likeness import (
    OTHER,
    SAME_PRODUCT,
    SAME_VENDOR,
    SOURCES,
    hardware_likeness,
    likeness_at_any_size,
    ranked,
)
from .gaussian_process import FITTED_ON, KnownOutcomes, choose_shape, most_telling, predict, share_of_failures
from .gp_residual import OFFSET, OWN_SIGMA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

GUESS = 0.8  # deviation of log2 speed-ups over a space nothing is known of: the eight recorded spaces have 0.12 to 2.1
FAILED_BELOW = 0.5  # octaves under the slowest that ran: where a config that failed in a recording stands

FLOORS = ((SAME_PRODUCT, 0.12), (SAME_VENDOR, 0.25), (OTHER, 0.45))  # deviation left however well recordings agree
DOUBT = 0.1  # a prediction holds by a factor of 1, give or take this; at 0.7, 20 tries ended 3 to 7 % slower
USUAL_SPREAD = 0.6  # deviation of log2 speed-ups over a space for which floors hold
MIN_SPREAD = 0.2  # share of a floor that is left
BLUR = 0.25  # added to a recording's own uncertainty before it is weighted by it
RESULT_COUNT = 6  # outcomes after which recordings are weighted by how well they predicted them, at most squared


@dataclass(frozen=True, slots=True)
class SourcePrediction:
    """What one source, mostly a recording, predicts of each config of a space.

    Attributes:
        mean, sigma: of log2 speed-up over the space's default; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`.
        likeness: how much the source counts for the job.
        at_any_size: how much it would count whatever its key; 0 where it is no recording.
    """

    mean: Array
    sigma: Array
    fail: Array
    likeness: float
    at_any_size: float = 0.0


@dataclass(frozen=True, slots=True)
class CombinedPrediction:
    """What several sources predict together, in the terms of `SourcePrediction`.

    Attributes:
        apart: how far each source is from the mean, beyond its median distance, times the root of its weight; shape
            `(sources, configs)`.
    """

    mean: Array
    sigma: Array
    fail: Array
    apart: Array

    @property
    def basis(self) -> Array:
        """By what outcomes may differ from the mean: the mean times an unknown factor, in units of sigma. `(configs, 1)`."""
        return (DOUBT * self.mean / self.sigma)[:, None]


def most_alike(job: Job, recordings: Sequence[Recording]) -> list[tuple[float, Recording]]:
    """The recordings that count most for a job, with what they count."""
    return [(weight, recordings[place]) for weight, place in ranked(job, recordings)[:SOURCES]]


def read(
    recording: Recording,
    job: Job,
    weight: float,
    model_of_recording: Array | None = None,
    model_of_job: Array | None = None,
    *,
    ignored_failures: NDArray[np.bool_] | None = None,
) -> SourcePrediction | None:
    """What a recording predicts of a job's configs; those it lacks are predicted by their neighbours.

    With what a model expects, only what the model missed is carried over.

    Args:
        recording, job: of the same program.
        weight: how much the recording counts for the job.
        model_of_recording, model_of_job: log2 speed-ups that a model expects where the recording was made, and of the job;
            shape `(configs,)`.
        ignored_failures: configs that count as lacking where they failed in the recording; shape `(configs,)`.
    Returns:
        None if the recording shares no config that ran with the job's space.
    """
    import numpy as np

    space = job.space
    speedups = {c: s for c, s in recording.log2_speedups().items() if c in space}
    if not speedups:
        return None
    at = np.array([space.index(c) for c in speedups], dtype=np.intp)
    y = np.array(list(speedups.values()))
    failed = np.array(
        [space.index(c) for c, o in recording.outcomes.items() if isinstance(o, Failure) and c in space], dtype=np.intp
    )
    if ignored_failures is not None:
        failed = failed[~ignored_failures[failed]]
    expected, expected_of_job = model_of_recording, model_of_job
    if expected is None or expected_of_job is None:
        expected = expected_of_job = np.zeros(len(space))
    missed = y - expected[at]
    level = float(median(missed))
    mean, sigma = np.full(len(space), level), np.zeros(len(space))
    knobs = knob_matrix(space)
    if at.size + failed.size < len(space):
        basis = np.full((len(space), 1), math.sqrt(OFFSET))
        known = KnownOutcomes(knobs.values[at], basis[at], missed - level)
        shape = choose_shape(known.at(most_telling(y, FITTED_ON)), GUESS)
        used = most_telling(y)
        mean, sigma = predict(known.at(used), knobs.values, basis, shape, GUESS)
        mean += level
        fail = share_of_failures(knobs.values, shape, at, failed, None)
    else:
        fail = np.zeros(len(space))
        mean[failed] = y.min() - FAILED_BELOW - expected[failed]
    mean[at], sigma[at], fail[at], fail[failed] = missed, OWN_SIGMA, 0.0, 1.0
    mean = mean + expected_of_job
    return SourcePrediction(mean - mean[0], sigma, fail, weight, likeness_at_any_size(job, recording))


def combine(sources: Sequence[SourcePrediction], job: Job, outcomes: Mapping[Config, Outcome]) -> CombinedPrediction:
    """The sources' weighted mean; their disagreement, and never less than a floor, is its spread.

    Args:
        sources: at least one.
        job: whose space they predict.
        outcomes: of this job; a source that predicts them well counts for more.
    """
    import numpy as np

    space = job.space
    speedups = {space.index(c): s for c, s in log2_speedups(outcomes, space.default).items() if c in space}
    at, y = np.array(list(speedups), dtype=np.intp), np.array(list(speedups.values()))
    weights = np.array([s.likeness for s in sources])
    if y.size > 1:
        # Whatever its hardware. The common offset is not a recording's fault: it may stem from the default alone.
        misses = np.array([np.var(y - s.mean[at]) for s in sources])
        power = 0.5 * min(y.size, RESULT_COUNT)
        weights = weights * (BLUR**2 + misses) ** -power
    weights = weights / weights.sum()
    means, sigmas = np.array([s.mean for s in sources]), np.array([s.sigma for s in sources])
    by_config = weights[:, None] / (BLUR**2 + sigmas**2)
    by_config /= by_config.sum(axis=0)
    mean = (by_config * means).sum(axis=0)
    off = means - mean
    spread = (by_config * (off**2 + sigmas**2)).sum(axis=0)
    # Before anything is measured, a miss was half of the sigma told where the floor went by how alike sizes are. Outcomes
    # correct a wider forecast better: with the narrower one, a CUDA space's 16 ended at 2.8 times the best.
    closest = max(s.likeness if speedups else s.at_any_size for s in sources)
    floor = next((floor for weight, floor in FLOORS if closest >= weight), FLOORS[-1][1])
    # Where all configs do nearly alike in the recordings, they will for this job, and be off by less.
    floor *= min(1.0, max(MIN_SPREAD, float(mean.std()) / USUAL_SPREAD))
    fail = (weights[:, None] * np.array([s.fail for s in sources])).sum(axis=0)
    # Around each one's median: how the default did in a recording moves all configs alike, and so tells none from another.
    apart = np.sqrt(weights)[:, None] * (off - median(off)[:, None])
    return CombinedPrediction(mean, np.sqrt(spread + floor**2), fail, apart)


def by_other_hardware(combined: CombinedPrediction | None, context: ForecastContext) -> Array | None:
    """The log2 speed-up that recordings expect of each config; shape `(configs,)`.

    None where there are none, or one of them was made on the job's own hardware.
    """
    job = context.job
    if combined is None or any(hardware_likeness(job.hardware, r.hardware) == SAME_PRODUCT for r in context.recordings):
        return None
    return combined.mean
