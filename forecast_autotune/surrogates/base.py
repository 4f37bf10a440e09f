"""What surrogates and their sessions have in common: defaults, and the same outcomes forecast once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention, Forecast
from ..core.outcome import Evidence, Measurement, Outcome
from ..core.space import Space
from ..protocols import Surrogate, SurrogateSession

Forecasts = Sequence[Forecast | Abstention]
"""One for each config of a space, in its order."""


class BaseSurrogate(ABC):
    """A surrogate that was fitted on nothing and asks no model; derive from it, and give a name and `start`."""

    name: str

    @property
    def recalibrate(self) -> bool:
        """Whether its sigmas may be corrected by what the store knows of its earlier forecasts."""
        return True

    @property
    def asks_model(self) -> bool:
        """Whether it asks a language model, so that a forecast may take seconds."""
        return False

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Names of the kernels whose measurements it was fitted on beforehand."""
        return ()

    @property
    def model_version(self) -> str:
        """The version of the fitted model that it forecasts by; empty where it has none."""
        return ""

    @abstractmethod
    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that forecasts for the context's job."""


class BaseSession(ABC):
    """A session that does not know how well it forecast the outcomes; derive from it, and write `predict`."""

    def __init__(self, context: ForecastContext) -> None:
        self.context = context

    @property
    def loo_log_density(self) -> float | None:
        """The sum of log densities, nats, that the outcomes had, each forecast from all the others; None: not known."""
        return None

    @abstractmethod
    def predict(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> Forecasts:
        """One answer for each config of the job's space, in its order; abstains where it knows nothing."""


class StatelessSurrogate(BaseSurrogate):
    """A surrogate that keeps nothing from one forecast to the next; derive from it, and give a name and `forecast`."""

    @abstractmethod
    def forecast(
        self, context: ForecastContext, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence], /
    ) -> Forecasts:
        """One answer for each config of the context's job, in the order of its space; arguments as in `predict`."""

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that calls `forecast`."""
        return _StatelessSession(context, self)


class _StatelessSession(BaseSession):
    def __init__(self, context: ForecastContext, surrogate: StatelessSurrogate) -> None:
        super().__init__(context)
        self._surrogate = surrogate

    def predict(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> Forecasts:
        return self._surrogate.forecast(self.context, outcomes, evidence)


class OutcomeSession(BaseSession):
    """A session whose forecasts rest on outcomes, not on evidence: the same outcomes again get the same answer.

    The loop asks again after a step that only compiled.
    """

    def __init__(self, context: ForecastContext) -> None:
        super().__init__(context)
        self._last: tuple[dict[Config, Outcome], Forecasts, float | None] | None = None

    @property
    def loo_log_density(self) -> float | None:
        """What `predict_from` returned with the last answer."""
        return None if self._last is None else self._last[2]

    def predict(
        self,
        outcomes: Mapping[Config, Outcome],
        evidence: Mapping[Config, Evidence],  # noqa: ARG002  # the protocol's
    ) -> Forecasts:
        """The last answer if the outcomes are as they were, else that of `predict_from`."""
        if self._last is None or self._last[0] != outcomes:
            # The loop hands in its own dictionary and goes on filling it.
            self._last = (dict(outcomes), *self.predict_from(outcomes))
        return self._last[1]

    @abstractmethod
    def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
        """The answer, and the log density of the outcomes, each forecast from all the others, where it is known."""


class WrappedSurrogate(BaseSurrogate):
    """Another surrogate, and all that it says of itself; what `start` returns is for a subclass to change."""

    def __init__(self, inner: Surrogate) -> None:
        self.inner = inner
        self.name = inner.name

    @property
    def recalibrate(self) -> bool:
        """Whether the inner surrogate's sigmas may be corrected."""
        return self.inner.recalibrate

    @property
    def asks_model(self) -> bool:
        """Whether the inner surrogate asks a language model."""
        return self.inner.asks_model

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The kernels that the inner surrogate was fitted on."""
        return self.inner.fitted_on

    @property
    def model_version(self) -> str:
        """The version of the inner surrogate's fitted model."""
        return self.inner.model_version

    def start(self, context: ForecastContext) -> SurrogateSession:
        """The inner surrogate's own session."""
        return self.inner.start(context)


class WithContext(WrappedSurrogate):
    """A surrogate whose sessions are given more context than the tuning loop knows.

    Args:
        inner: who forecasts.
        add: the context with that in it; called once for each session, so a decision that needs no forecast pays nothing.
    """

    def __init__(self, inner: Surrogate, add: Callable[[ForecastContext], ForecastContext]) -> None:
        super().__init__(inner)
        self.add = add

    def start(self, context: ForecastContext) -> SurrogateSession:
        """The inner surrogate's session, with what `add` puts into the context."""
        return self.inner.start(self.add(context))


def default_us(context: ForecastContext, outcomes: Mapping[Config, Outcome]) -> float | None:
    """The default's time in microseconds, where it was measured for this job."""
    default = outcomes.get(context.job.space.default)
    return default.median_us if isinstance(default, Measurement) else None


def outcomes_in(space: Space, outcomes: Mapping[Config, Outcome]) -> int:
    """How many of the outcomes are of configs of the space."""
    return sum(config in space for config in outcomes)


def basis_text(*, outcomes: int, recordings: int) -> list[str]:
    """What a forecast rests on, for people."""
    texts = [f"{outcomes} outcomes here"] if outcomes else []
    if recordings:
        texts.append(f"{recordings} recording{'s' if recordings > 1 else ''} from elsewhere")
    return texts
