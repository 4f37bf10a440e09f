"""What all scores ask of forecasts and of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.forecast import Abstention, Forecast
from ...errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def checked(forecasts: Sequence[Forecast | Abstention], measured: Sequence[float]) -> Array:
    """The measured log2 speed-ups as an array.

    Raises:
        InvalidInputError: not one for each forecast, none at all, or one that is NaN or plus infinity.
    """
    import numpy as np

    truth = np.asarray(measured, dtype=float)
    if len(forecasts) != truth.size or truth.size == 0:
        raise InvalidInputError(
            f"{len(forecasts)} forecasts for {truth.size} outcomes: give as many of each, at least one"
        )
    if np.isnan(truth).any() or np.isposinf(truth).any():
        raise InvalidInputError("a measured log2 speed-up is NaN or infinite: give a number, or -inf for a failure")
    return truth
