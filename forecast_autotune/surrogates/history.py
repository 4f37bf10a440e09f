"""History: what was measured for this job, what was measured of the same program elsewhere, and what lies between."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention
from ..core.outcome import Outcome
from ..features.forecast_columns import ForecastTable
from ..features.knob_matrix import knob_matrix
from ..protocols import SurrogateSession
from . import transfer
from .base import BaseSurrogate, Forecasts, OutcomeSession, basis_text, default_us, outcomes_in
from .gp_residual import GPPrior, GPResidual


class History(BaseSurrogate):
    """Forecast from outcomes: this job's own, those of its like elsewhere, and a Gaussian process between them.

    Recordings give a mean and a spread per config, weighted by likeness of hardware and key. Outcomes of this job correct
    them, for the configs themselves and for those with similar knobs. Abstains while there is neither.
    """

    name = "history"

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that reads the context's recordings once, when it is first asked."""
        return _Session(context)


class _Session(OutcomeSession):
    def __init__(self, context: ForecastContext) -> None:
        super().__init__(context)
        self._residual = GPResidual(context.job.space)

    @cached_property
    def _sources(self) -> list[transfer.SourcePrediction]:
        """What the recordings predict; how much each counts is for the outcomes to say."""
        job, recordings = self.context.job, self.context.recordings
        read = (transfer.read(recording, job, weight) for weight, recording in transfer.most_alike(job, recordings))
        return [source for source in read if source is not None]

    def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
        job = self.context.job
        own = outcomes_in(job.space, outcomes)
        if not own and not self._sources:
            like_it = ", and nothing like it elsewhere" if self.context.recordings else " or elsewhere"
            return [Abstention(History.name, f"nothing was measured here{like_it}")] * len(job.space), None
        combined = transfer.combine(self._sources, job, outcomes) if self._sources else None
        posterior = self._residual.apply(self._prior(combined), outcomes)
        source = f"{History.name} ({', '.join(basis_text(outcomes=own, recordings=len(self._sources)))})"
        table = ForecastTable.of_one(
            History.name,
            posterior.mean,
            posterior.sigma,
            posterior.fail,
            source=source,
            default_us=default_us(self.context, outcomes),
            by_other_hardware=transfer.by_other_hardware(combined, self.context),
        )
        return table, posterior.loo_log_density

    def _prior(self, combined: transfer.CombinedPrediction | None) -> GPPrior:
        import numpy as np

        job = self.context.job
        x = knob_matrix(job.space).values
        if combined is None:
            n = len(job.space)
            return GPPrior(np.zeros(n), np.full(n, transfer.GUESS), None, np.zeros((n, 0)), x)
        return GPPrior(combined.mean, combined.sigma, combined.fail, combined.basis, x)
