"""Learned: what many kernels taught, corrected by what this one shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Question, Recording, log2_speedups
from ..errors import InvalidInputError
from ..features.forecast_columns import ForecastTable
from ..features.knob_matrix import knob_matrix
from . import transfer as elsewhere
from .answers import LastAnswer, answered, default_us, words
from .corrector import Corrector, Expected
from .prior import Prior, rules, shipped_prior
from .static_features import role_traits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

UNTOLD_SIGMA = 0.8  # deviation of log2 speed-ups that rules of thumb leave unexplained
UNSEEN = 2.0  # as much wider are rules of thumb alone: of a large space, the best by them is where they are most wrong
TREES_DOUBT = 0.4  # what trees say holds by a factor of 1, give or take this
OWN_WEIGHT = 0.03  # of the model among recordings: like one of another size, 10 octaves away


class Learned:
    """Forecast from what kernels at large teach, and correct it by outcomes.

    Where a job says what each config's launch does, trees fitted on other kernels tell times from that; elsewhere, rules of
    thumb over knobs' roles, each by a factor that is known roughly. Recordings of the same program say what the trees miss;
    where only rules are known, they stand in for these. Outcomes here then correct the factors, and a Gaussian process what
    is left. Abstains where the job tells nothing that the model knows, and nothing was measured.

    Args:
        prior: the model; the shipped one if not given.
    """

    name = "learned"

    def __init__(self, prior: Prior | None = None) -> None:
        self._given = prior
        self._last = LastAnswer()
        # Each is replaced as a whole, so that threads that share this object at worst compute an answer twice.
        self._model: tuple[Job, _Model] | None = None
        self._told: tuple[Job, tuple[Recording, ...], list[elsewhere.Told]] | None = None
        self._correction = Corrector()

    @property
    def prior(self) -> Prior:
        return shipped_prior() if self._given is None else self._given

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The kernels whose measurements the model was fitted on; none if it cannot be read."""
        try:
            return self.prior.fitted_on
        except (OSError, InvalidInputError):
            return ()

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        space = question.job.space
        table = self._last.of(question)
        if table is None:
            model = self._model_of(question.job)
            told = self._read_elsewhere(question, model)
            if not model.says and not told and not any(c in space for c in question.outcomes):
                reason = "no knob's role is known, no launch is described, and nothing was measured"
                return [Abstention(self.name, reason)] * len(question.configs)
            table = self._last.keep(question, self._forecast(question, model, told))
        return answered(table, space, question.configs)

    def _forecast(self, question: Question, model: _Model, told: Sequence[elsewhere.Told]) -> ForecastTable:
        job = question.job
        expected = model.expected
        if told:
            speedups = log2_speedups(question.outcomes, job.space.default)
            found = elsewhere.together(told, {job.space.index(c): s for c, s in speedups.items() if c in job.space})
            trends = (elsewhere.DOUBT * found.mean / found.sigma)[:, None]
            expected = Expected(found.mean, found.sigma, found.fail, trends, expected.x)
        corrected = self._correction.apply(job, expected, question.outcomes)
        here = sum(c in job.space for c in question.outcomes)
        recordings = len(told) - bool(told and model.by_launches)
        source = f"{self.name} ({', '.join([*model.says, *words(here=here, recordings=recordings)])})"
        return ForecastTable.of_one(
            self.name,
            corrected.mean,
            corrected.sigma * (1.0 if here or told or model.by_launches else UNSEEN),
            corrected.fail,
            source=source,
            default_us=default_us(question),
            foretold=corrected.foretold,
        )

    def _model_of(self, job: Job) -> _Model:
        known = self._model
        if known is None or known[0] is not job:
            known = self._model = (job, _Model(job, self.prior))
        return known[1]

    def _read_elsewhere(self, question: Question, model: _Model) -> list[elsewhere.Told]:
        """What recordings say, and last the model beside them if it goes by launches; empty without any. Read once."""
        import numpy as np

        job = question.job
        recordings = tuple(question.recordings)
        if not recordings:
            return []
        known = self._told
        if known is None or known[0] is not job or known[1] != recordings:
            here = model.expected
            read = (
                elsewhere.read(recording, job.space, weight, model.at(recording), here.mean)
                for weight, recording in elsewhere.most_alike(job, recordings)
            )
            told = [one for one in read if one is not None]
            if told and model.by_launches:
                fail = np.mean([t.fail for t in told], axis=0) if here.fail is None else here.fail
                told.append(elsewhere.Told(here.mean, here.sigma, fail, OWN_WEIGHT))
            known = self._told = (job, recordings, told)
        return known[2]


class _Model:
    """What the prior expects of a job's configs.

    Attributes:
        says: what it goes by, for people; nothing where it knows nothing of them.
        by_launches: whether that is what launches do, told by the trees.
        mean, sigma: of log2 speed-up against the default.
        fail: chance of failing; None where nothing is known of that.
        trends: columns, in octaves, that outcomes may follow beyond the mean, each by an unknown factor.
    """

    def __init__(self, job: Job, prior: Prior) -> None:
        import numpy as np

        self.job, self.prior = job, prior
        self.says: list[str] = []
        n = len(job.space)
        mean, self.sigma, self.trends = np.zeros(n), np.full(n, UNTOLD_SIGMA), np.zeros((n, 0))
        self.fail: Array | None = None
        from_launches = prior.of_launches(job.described, job)
        self.by_launches = from_launches is not None
        if from_launches is not None:
            mean, self.sigma, self.fail = from_launches
            self.trends = (TREES_DOUBT * (mean - np.median(mean)))[:, None]
            self.says.append(f"launches described, {len(prior.fitted_on)} kernels known")
        elif broken := {name: column for name, column in rules(job).items() if name in prior.factors}:
            for name, column in broken.items():
                mean = mean - prior.factors[name].mean * column
            self.trends = np.stack([prior.factors[name].sigma * c for name, c in broken.items()], axis=1)
            self.says.append("knob roles")
        self.mean = mean - mean[0]

    @cached_property
    def expected(self) -> Expected:
        return Expected(self.mean, self.sigma, self.fail, self.trends / self.sigma[:, None], _columns(self.job))

    def at(self, recording: Recording) -> Array | None:
        """What the trees expect of the same configs where a recording was made; None where they cannot, there or here."""
        if not self.by_launches:
            return None
        space = self.job.space
        described = [recording.described.get(c, {}) for c in space]
        there = _Model(
            Job(
                workload=recording.workload,
                space=space,
                hardware=recording.hardware,
                toolchain=recording.toolchain,
                described=described,
            ),
            self.prior,
        )
        if not there.by_launches:
            return None
        missing = [i for i, d in enumerate(described) if not d]
        # Of a config that is not described there, what is expected here says more than nothing.
        mean: Array = there.mean.copy()
        mean[missing] = self.mean[missing]
        return mean


def _columns(job: Job) -> Array:
    """The knobs, and of what several knobs make together what is not a knob already; each with deviation 1."""
    import numpy as np

    knobs = knob_matrix(job.space).values
    columns = [knobs]
    traits = role_traits(job)
    both = None if traits.threads is None or traits.work is None else traits.threads + traits.work
    for trait in (traits.threads, traits.work, both):
        if trait is None or np.ptp(trait) == 0:
            continue
        column = (trait - trait.mean()) / trait.std()
        if not any(abs(float(column @ k)) > 0.999 * len(column) for k in knobs.T):
            columns.append(column[:, None])
    return np.hstack(columns)
