"""History: what was measured here, what was measured elsewhere, and what lies between."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Question, Recording, log2_speedups
from ..features.forecast_columns import ForecastTable
from ..features.knob_matrix import knob_matrix
from . import transfer as elsewhere
from .answers import LastAnswer, answered, default_us, words
from .corrector import Corrector, Expected


class History:
    """Forecast from outcomes: this job's own, those of its like elsewhere, and a Gaussian process between them.

    Other recordings give a mean and a spread per config, weighted by likeness of hardware and key; what was measured here
    corrects it, for the configs themselves and for those with similar knobs. Abstains while there is neither.
    """

    name = "history"

    def __init__(self) -> None:
        self._last = LastAnswer()
        # Replaced as a whole, so that threads that share this object at worst read recordings twice.
        self._told: tuple[Job, tuple[Recording, ...], list[elsewhere.Told]] | None = None
        self._correction = Corrector()

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        space = question.job.space
        if not question.recordings and not any(c in space for c in question.outcomes):
            return [Abstention(self.name, "nothing was measured here or elsewhere")] * len(question.configs)
        table = self._last.of(question)
        if table is None:
            table = self._forecast(question)
            if table is None:
                reason = "nothing was measured here, and nothing like it elsewhere"
                return [Abstention(self.name, reason)] * len(question.configs)
            self._last.keep(question, table)
        return answered(table, space, question.configs)

    def _forecast(self, question: Question) -> ForecastTable | None:
        import numpy as np

        space = question.job.space
        told = self._read_elsewhere(question)
        here = sum(c in space for c in question.outcomes)
        if told is None and not here:
            return None
        if told is None:
            n = len(space)
            expected = Expected(
                np.zeros(n), np.full(n, elsewhere.GUESS), None, np.zeros((n, 0)), knob_matrix(space).values
            )
        else:
            trends = (elsewhere.DOUBT * told.mean / told.sigma)[:, None]
            expected = Expected(told.mean, told.sigma, told.fail, trends, knob_matrix(space).values)
        found = self._correction.apply(question.job, expected, question.outcomes)
        source = f"{self.name} ({', '.join(words(here=here, recordings=told.count if told else 0))})"
        return ForecastTable.of_one(
            self.name,
            found.mean,
            found.sigma,
            found.fail,
            source=source,
            default_us=default_us(question),
            foretold=found.foretold,
        )

    def _read_elsewhere(self, question: Question) -> elsewhere.Elsewhere | None:
        """What the recordings say, weighted by what is known of this job; read once, weighted at every question."""
        job = question.job
        if not question.recordings:
            return None
        recordings = tuple(question.recordings)
        known = self._told
        if known is None or known[0] is not job or known[1] != recordings:
            told = [elsewhere.read(r, job.space, weight) for weight, r in elsewhere.most_alike(job, recordings)]
            known = self._told = (job, recordings, [t for t in told if t is not None])
        if not known[2]:
            return None
        speedups = log2_speedups(question.outcomes, job.space.default)
        return elsewhere.together(known[2], {job.space.index(c): s for c, s in speedups.items() if c in job.space})
