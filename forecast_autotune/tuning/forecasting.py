"""Asking the surrogate; tuning goes on without forecasts where it fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention, Forecast, LazyForecasts
from ..core.job import Job, Recording
from ..core.outcome import Evidence, Outcome
from ..core.signal_handlers import raised_by_signal_handler
from ..errors import InvalidInputError
from ..protocols import Surrogate, SurrogateSession

log = logging.getLogger(__name__)

_reported: set[str] = set()  # surrogates of which this process has said that they fail


class Forecaster:
    """Holds the newest forecasts of one run, and the first ones: the only code of a run that talks to the surrogate."""

    def __init__(self, job: Job, surrogate: Surrogate) -> None:
        self.job = job
        self.surrogate = surrogate
        self._context = ForecastContext(job=job)
        self._session: SurrogateSession | None = None  # started by the first forecast
        self.forecasts: Sequence[Forecast | Abstention] = ()  # in the order of the space; empty before the first
        self.initial: Sequence[Forecast | Abstention] = ()  # made before this run measured anything

    def start(
        self,
        recordings: Sequence[Recording],
        outcomes: Mapping[Config, Outcome],
        evidence: Mapping[Config, Evidence],
    ) -> None:
        """Make the first forecasts, with these recordings of related keys as the background of all later ones too."""
        self._context = ForecastContext(job=self.job, recordings=recordings)
        self.update(outcomes, evidence)
        self.initial = self.forecasts

    def update(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> None:
        """Forecast every config again from what is known by now; a surrogate that fails abstains for all of them."""
        try:
            self.forecasts = self._ask(outcomes, evidence)
        except Exception as err:  # a surrogate may be anything, a server included; tuning goes on without it
            if raised_by_signal_handler(err):
                raise
            name = self.surrogate.name
            level = logging.DEBUG if name in _reported else logging.WARNING  # it may fail at every pick of every key
            _reported.add(name)
            log.log(level, "surrogate %s failed (%r): tuning goes on without forecasts", name, err)
            self.forecasts = [Abstention(name, repr(err))] * len(self.job.space)

    @property
    def model_version(self) -> str:
        """The version of the fitted model; empty where no config was forecast before this run measured anything."""
        return self.surrogate.model_version if any(isinstance(f, Forecast) for f in self.initial) else ""

    def of(self, config: Config) -> Forecast | Abstention | None:
        """The newest forecast of a config of the space; None before the first."""
        return self.forecasts[self.job.space.index(config)] if self.forecasts else None

    def _ask(
        self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]
    ) -> Sequence[Forecast | Abstention]:
        space = self.job.space
        if self._session is None:
            self._session = self.surrogate.start(self._context)
        answer = self._session.predict(MappingProxyType(outcomes), MappingProxyType(evidence))
        if len(answer) != len(space):
            raise InvalidInputError(f"it answered for {len(answer)} of {len(space)} configs")
        if isinstance(answer, LazyForecasts):
            return answer
        return [_checked(forecast) for forecast in answer]


def _checked(answer: Forecast | Abstention) -> Forecast | Abstention:
    if isinstance(answer, Forecast):
        return answer.checked()
    if isinstance(answer, Abstention):
        return answer
    raise InvalidInputError(f"it answered {answer!r}, which is neither a Forecast nor an Abstention")
