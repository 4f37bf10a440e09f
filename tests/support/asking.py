"""Asking a surrogate once: what it is asked, and the answer of a session that was started for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.outcome import Evidence, Outcome
from forecast_autotune.protocols import Surrogate


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job to forecast, with what is known of it from elsewhere and from its own run so far."""

    job: Job
    recordings: Sequence[Recording] = ()
    outcomes: Mapping[Config, Outcome] = field(default_factory=dict)
    evidence: Mapping[Config, Evidence] = field(default_factory=dict)

    @property
    def configs(self) -> Sequence[Config]:
        return self.job.space

    @property
    def context(self) -> ForecastContext:
        return ForecastContext(job=self.job, recordings=self.recordings)


def ask(surrogate: Surrogate, question: Question) -> Sequence[Forecast | Abstention]:
    """What a session answers that was started for this question."""
    return surrogate.start(question.context).predict(question.outcomes, question.evidence)


def ask_with_density(surrogate: Surrogate, question: Question) -> tuple[Sequence[Forecast | Abstention], float | None]:
    """The same, and how well it says that it forecast the outcomes."""
    session = surrogate.start(question.context)
    return session.predict(question.outcomes, question.evidence), session.loo_log_density
