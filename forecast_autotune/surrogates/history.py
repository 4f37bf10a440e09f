"""History: what was measured here, what was measured elsewhere, and what lies between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arrays import KnobMatrix, forecasts_from, knob_matrix
from ..core.config import Config
from ..core.forecast import Abstention, Forecast
from ..core.hardware import Hardware
from ..core.job import Job, Question, Recording, log2_speedups
from ..core.outcome import Failure, Measurement
from ..core.space import Space
from .gaussian_process import FITTED_ON, Known, Shape, choose_shape, predict, total_similarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

GUESS = 0.8  # deviation of log2 speed-ups over a space nothing is known of: the eight recorded spaces have 0.12 to 2.1
OFFSET = 1.5  # variance of the unknown mean over a space, as a multiple of that around it
DOUBT = (
    0.1  # what is told from elsewhere holds by a factor of 1, give or take this; at 0.7, 20 tries ended 3 to 7 % slower
)
OWN_SIGMA = 0.03  # a config measured again differs by 3 % (FAIR benchmark hub, A4000, median)
OWN_FAILURE = 0.99  # chance that a config that failed here fails again
FAILURE_NEARNESS = 0.4  # length over which failing spreads, as a share of that of times
FAILURE_PRIOR = 0.5  # what is known at large counts like so many outcomes next door
DATA = 200  # outcomes the process is built on: best half, the rest at random; 11,130 configs then take 20 ms
REFIT_GROWTH = 1.15  # lengths are chosen anew when outcomes have grown by so much (each time below 20)
SOURCES = 8  # recordings read, the most alike first

SAME_PRODUCT, SAME_VENDOR, OTHER = 1.0, 0.2, 0.02  # weights of recordings by hardware
FLOORS = ((SAME_PRODUCT, 0.12), (SAME_VENDOR, 0.25), (OTHER, 0.45))  # deviation left however well recordings agree
BLUR = 0.25  # added to a recording's own uncertainty before it is weighted by it
RESULT_COUNT = 6  # outcomes here after which recordings are weighted by how well they foretold them, at most squared


class History:
    """Forecast from outcomes: this job's own, those of its like elsewhere, and a Gaussian process between them.

    Other recordings give a mean and a spread per config, weighted by likeness of hardware and key; what was measured here
    corrects it, for the configs themselves and for those with similar knobs. Abstains while there is neither.
    """

    name = "history"

    def __init__(self) -> None:
        # Each is replaced as a whole, so that threads that share this object at worst compute an answer twice.
        self._last: tuple[Question, list[Forecast | Abstention]] | None = None
        self._told: tuple[Job, tuple[Recording, ...], list[Told]] | None = None
        self._shape: tuple[tuple[object, ...], frozenset[int], Shape] | None = None

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        last = self._last
        if last is not None and _is_same(last[0], question):
            return last[1]
        answer = self._forecast(question)
        # The loop hands in its own dict and goes on filling it: keep what it held now.
        asked = Question(
            job=question.job,
            configs=question.configs,
            outcomes=dict(question.outcomes),
            recordings=tuple(question.recordings),
        )
        self._last = (asked, answer)
        return answer

    def _forecast(self, question: Question) -> list[Forecast | Abstention]:
        import numpy as np

        space = question.job.space
        elsewhere = self._read_elsewhere(question)
        speedups = {c: s for c, s in log2_speedups(question.outcomes, space.default).items() if c in space}
        failed = [c for c, o in question.outcomes.items() if isinstance(o, Failure) and c in space]
        if elsewhere is None and not speedups and not failed:
            return [Abstention(self.name, "nothing was measured here or elsewhere")] * len(question.configs)
        knobs = knob_matrix(space)
        at = np.array([space.index(c) for c in speedups], dtype=np.intp)
        y = np.array(list(speedups.values()))
        broken = np.array([space.index(c) for c in failed], dtype=np.intp)
        told = elsewhere or _nothing_told(len(space))
        unit = told.sigma
        # Outcomes follow two trends: a common offset, and more or less of what is told from elsewhere.
        trend = np.stack([np.full(len(space), math.sqrt(OFFSET)), DOUBT * told.mean / unit], axis=1)
        known = Known(knobs.values[at], trend[at], (y - told.mean[at]) / unit[at])
        shape = self._choose_shape(question.job, known, at, y)
        used = _most_telling(y)
        shift, sigma = predict(known.at(used), knobs.values, trend, shape, 1.0)
        mean, sigma = told.mean + shift * unit, sigma * unit
        fail = _fail_probability(knobs, shape, at[used], broken, None if elsewhere is None else elsewhere.fail)
        mean[at], fail[at], fail[broken] = y, 0.0, OWN_FAILURE
        sigma[at] = [math.hypot(OWN_SIGMA, _log2_error(question.outcomes[c])) for c in speedups]
        return self._worded(question, mean, sigma, fail, elsewhere, len(y) + len(broken))

    def _worded(
        self, question: Question, mean: Array, sigma: Array, fail: Array, elsewhere: Elsewhere | None, here: int
    ) -> list[Forecast | Abstention]:
        space = question.job.space
        told = [f"{here} outcomes here"] if here else []
        if elsewhere is not None:
            told.append(f"{elsewhere.count} recording{'s' if elsewhere.count > 1 else ''} from elsewhere")
        source = f"{self.name} ({', '.join(told)})"
        default = question.outcomes.get(space.default)
        default_us = default.median_us if isinstance(default, Measurement) else None
        of_space = forecasts_from(mean, sigma, fail, source=source, default_us=default_us)
        if question.configs is space:
            return of_space
        unknown = Abstention(self.name, "not a config of the space")
        return [of_space[space.index(c)] if c in space else unknown for c in question.configs]

    def _choose_shape(self, job: Job, known: Known, at: NDArray[np.intp], y: Array) -> Shape:
        """Lengths for these outcomes; below a growth of 15 % those chosen before."""
        n = at.size
        if n >= 20:
            n = int(20 * REFIT_GROWTH ** int(math.log(n / 20) / math.log(REFIT_GROWTH)))
        key = (job.workload.digest, job.hardware.digest, job.space.digest, n)
        before = self._shape
        if before is not None and before[0] == key and before[1] <= set(at.tolist()):
            return before[2]
        shape = choose_shape(known.at(_most_telling(y, FITTED_ON)), 1.0)
        self._shape = (key, frozenset(at.tolist()), shape)
        return shape

    def _read_elsewhere(self, question: Question) -> Elsewhere | None:
        """What the recordings say, weighted by what is known of this job; read once, weighted at every question."""
        job = question.job
        if not question.recordings:
            return None
        recordings = tuple(question.recordings)
        known = self._told
        if known is None or known[0] is not job or known[1] != recordings:
            likeness = sorted(((_likeness(job, r), i) for i, r in enumerate(recordings)), reverse=True)
            told = [_read(recordings[i], job.space, weight) for weight, i in likeness[:SOURCES]]
            known = self._told = (job, recordings, [t for t in told if t is not None])
        told_by = known[2]
        return _together(told_by, log2_speedups(question.outcomes, job.space.default), job.space) if told_by else None


def _is_same(asked: Question, question: Question) -> bool:
    """Whether a question was asked before, as the loop does after a step that only compiled."""
    return (
        asked.job is question.job
        and asked.configs is question.configs
        and asked.recordings == tuple(question.recordings)
        and asked.outcomes == question.outcomes
    )


@dataclass(frozen=True, slots=True)
class Told:
    """What one recording says of each config of a space: log2 speed-up over the space's default, how sure, failed or not."""

    mean: Array
    sigma: Array
    fail: Array
    likeness: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the recordings say together, in the same terms."""

    mean: Array
    sigma: Array
    fail: Array
    count: int


def _nothing_told(size: int) -> Elsewhere:
    import numpy as np

    return Elsewhere(np.zeros(size), np.full(size, GUESS), np.zeros(size), 0)


def _read(recording: Recording, space: Space, likeness: float) -> Told | None:
    """One recording, carried to configs it lacks by their neighbours; None if it shares nothing with the space."""
    import numpy as np

    speedups = {c: s for c, s in recording.log2_speedups().items() if c in space}
    failed = [space.index(c) for c, o in recording.outcomes.items() if isinstance(o, Failure) and c in space]
    if not speedups:
        return None
    at = np.array([space.index(c) for c in speedups], dtype=np.intp)
    y = np.array(list(speedups.values()))
    broken = np.array(failed, dtype=np.intp)
    mean, sigma = np.full(len(space), float(y.mean())), np.zeros(len(space))
    knobs = knob_matrix(space)
    used = _most_telling(y)
    if at.size + broken.size < len(space):
        trend = np.full((len(space), 1), math.sqrt(OFFSET))
        known = Known(knobs.values[at], trend[at], y)
        shape = choose_shape(known.at(_most_telling(y, FITTED_ON)), GUESS)
        mean, sigma = predict(known.at(used), knobs.values, trend, shape, GUESS)
        fail = _fail_probability(knobs, shape, at[used], broken, None)
    else:
        fail = np.zeros(len(space))
        mean[broken] = y.min()
    mean[at], sigma[at], fail[at], fail[broken] = y, OWN_SIGMA, 0.0, 1.0
    return Told(mean - mean[0], sigma, fail, likeness)


def _together(told_by: Sequence[Told], speedups: dict[Config, float], space: Space) -> Elsewhere:
    """The recordings' weighted mean; their disagreement, and never less than a floor, is its spread."""
    import numpy as np

    here = [(space.index(c), s) for c, s in speedups.items() if c in space]
    at, y = np.array([i for i, _ in here], dtype=np.intp), np.array([s for _, s in here])
    weights = np.array([t.likeness for t in told_by])
    if y.size > 1:
        # A recording that foretells the outcomes here counts for more, whatever its hardware. The common offset is not
        # its fault: it may stem from the default alone.
        misses = np.array([np.var(y - t.mean[at]) for t in told_by])
        power = 0.5 * min(y.size, RESULT_COUNT)
        weights = weights * (BLUR**2 + misses) ** -power
    weights = weights / weights.sum()
    means, sigmas = np.array([t.mean for t in told_by]), np.array([t.sigma for t in told_by])
    by_config = weights[:, None] / (BLUR**2 + sigmas**2)
    by_config /= by_config.sum(axis=0)
    mean = (by_config * means).sum(axis=0)
    apart = (by_config * ((means - mean) ** 2 + sigmas**2)).sum(axis=0)
    closest = max(t.likeness for t in told_by)
    floor = next((floor for weight, floor in FLOORS if closest >= weight), FLOORS[-1][1])
    fail = (weights[:, None] * np.array([t.fail for t in told_by])).sum(axis=0)
    return Elsewhere(mean, np.sqrt(apart + floor**2), fail, len(told_by))


def _likeness(job: Job, recording: Recording) -> float:
    """How much a recording counts for a job: hardware above all, then key, program text and toolchain."""
    return (
        _hardware_likeness(job.hardware, recording.hardware)
        * _key_likeness(job.workload.key, recording.workload.key)
        * (1.0 if job.workload.program.digest == recording.workload.program.digest else 0.5)
        * (1.0 if job.toolchain.digest == recording.toolchain.digest else 0.8)
    )


def _hardware_likeness(a: Hardware, b: Hardware) -> float:
    if a.name == b.name and a.capability == b.capability:
        return SAME_PRODUCT
    return SAME_VENDOR if a.kind == b.kind else OTHER


def _key_likeness(a: Mapping[str, object], b: Mapping[str, object]) -> float:
    """Halved for each doubling of a number between two keys, and twice for each other difference; at least 1/64."""
    apart = 0.0
    for name in a.keys() | b.keys():
        mine, theirs = a.get(name), b.get(name)
        if mine == theirs:
            continue
        if isinstance(mine, (int, float)) and isinstance(theirs, (int, float)) and mine > 0 and theirs > 0:
            apart += abs(math.log2(mine / theirs))
        else:
            apart += 2.0
    return float(0.5 ** min(apart, 6.0))


def _most_telling(y: Array, limit: int = DATA) -> NDArray[np.intp]:
    """Positions of the best half of the limit, and of as many others drawn at random."""
    import numpy as np

    if y.size <= limit:
        return np.arange(y.size)
    order = np.argsort(-y, kind="stable")
    half = limit // 2
    # A fixed seed: equal outcomes give equal forecasts.
    others = np.random.default_rng(0).choice(order[half:], limit - half, replace=False)
    return np.concatenate([order[:half], others])


def _fail_probability(
    knobs: KnobMatrix, shape: Shape, ran: NDArray[np.intp], broken: NDArray[np.intp], prior: Array | None
) -> Array:
    """Chance of failing: the share of failures among the neighbours, drawn towards what holds at large."""
    import numpy as np

    x = knobs.values
    at_large = np.full(len(x), broken.size / max(1, broken.size + ran.size)) if prior is None else prior
    if not broken.size and prior is None:
        return at_large
    # What fails does so beyond an edge that times do not show: look nearer than the lengths that times call for.
    near = Shape(shape.lengths * FAILURE_NEARNESS, shape.nugget)
    bad, good = total_similarity(x[broken], x, near), total_similarity(x[ran], x, near)
    chance: Array = (bad + FAILURE_PRIOR * at_large) / (bad + good + FAILURE_PRIOR)
    return chance


def _log2_error(outcome: object) -> float:
    return outcome.relative_error / math.log(2.0) if isinstance(outcome, Measurement) else 0.0
