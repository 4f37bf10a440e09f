"""Recalibrated: another surrogate's forecasts, as wide as its record says they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.correction import Correction
from ..core.forecast import Abstention, Forecast
from ..core.job import Question
from ..features.forecast_columns import ForecastTable
from ..protocols import Surrogate


class Recalibrated:
    """Stretch every sigma of a surrogate's forecasts by a factor learned from earlier ones.

    What was stretched says so (`Forecast.widened`), so that learning from it can undo it. Means and chances of failing stay
    as they are.

    Args:
        inner: who forecasts.
        correction: asked for at each forecast, so that a decision which needs none costs nothing.
    """

    def __init__(self, inner: Surrogate, correction: Callable[[], Correction]) -> None:
        self.inner = inner
        self.correction = correction
        self.name = inner.name

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        answer = self.inner.forecast(question)
        correction = self.correction()
        if correction.ahead == 1.0 == correction.after:
            return answer
        if isinstance(answer, ForecastTable):
            return answer.stretched(correction.factor(knows_default=answer.default_us is not None))
        return [
            f if isinstance(f, Abstention) else _stretched(f, correction.factor(knows_default=f.default_us is not None))
            for f in answer
        ]


def _stretched(forecast: Forecast, factor: float) -> Forecast:
    return replace(
        forecast,
        components=tuple(replace(bell, sigma=bell.sigma * factor) for bell in forecast.components),
        widened=forecast.widened * factor,
    )
