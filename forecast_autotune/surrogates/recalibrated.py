"""Recalibrated: another surrogate's forecasts, as wide as its record says they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention, Forecast
from ..core.outcome import Evidence, Outcome
from ..core.sigma_scale import SigmaScale
from ..features.forecast_columns import ForecastTable
from ..protocols import Surrogate, SurrogateSession
from .base import BaseSession, Forecasts, WrappedSurrogate


class Recalibrated(WrappedSurrogate):
    """Multiply every sigma of a surrogate's forecasts by a factor learned from earlier ones.

    A forecast says by how much (`Forecast.sigma_scale`), so that learning from it can undo it. Means and chances of failing
    stay as they are.

    Args:
        inner: who forecasts.
        scale: the factors; called when a session starts, so that a decision which needs no forecast costs nothing.
    """

    def __init__(self, inner: Surrogate, scale: Callable[[], SigmaScale]) -> None:
        super().__init__(inner)
        self.scale = scale

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that scales what the inner surrogate's session forecasts."""
        return _Session(context, self.inner.start(context), self.scale())


class _Session(BaseSession):
    def __init__(self, context: ForecastContext, inner: SurrogateSession, scale: SigmaScale) -> None:
        super().__init__(context)
        self._inner = inner
        self._scale = scale

    def predict(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> Forecasts:
        answer = self._inner.predict(outcomes, evidence)
        scale = self._scale
        if scale.cold == 1.0 == scale.warm:
            return answer
        if isinstance(answer, ForecastTable):
            return answer.stretched(scale.factor(knows_default=answer.default_us is not None))
        return [
            f if isinstance(f, Abstention) else _stretched(f, scale.factor(knows_default=f.default_us is not None))
            for f in answer
        ]


def _stretched(forecast: Forecast, factor: float) -> Forecast:
    return replace(
        forecast,
        components=tuple(replace(bell, sigma=bell.sigma * factor) for bell in forecast.components),
        sigma_scale=forecast.sigma_scale * factor,
    )
