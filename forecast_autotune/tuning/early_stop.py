"""When the first run of a config shows that timing it further is useless."""

from __future__ import annotations

import math

from ..core.forecast import Abstention, Forecast

ONE_RUN_SIGMA = 0.5  # octaves: how far a single run may be off
MIN_SIGMA = 0.5  # octaves: no forecast counts as surer than this where it could end a measurement
SURE_SIGMAS = 3.0


def early_stop_us(best_us: float, reference_us: float, forecast: Forecast | Abstention | None) -> float:
    """The time in microseconds beyond which a config's first run leaves it no chance to be the fastest.

    Before that run, log2(time / best time) is normal, as forecast. The run updates it, read with an error of
    `ONE_RUN_SIGMA` octaves. The limit is the run after which the config lies `SURE_SIGMAS` deviations above the best. It
    is at least twice the best time.

    Args:
        best_us: the fastest median so far.
        reference_us: the time that forecasts of speed-up relate to.
        forecast: the config's; without one, the run alone counts.
    """
    expected, precision = 0.0, 0.0
    if isinstance(forecast, Forecast):
        expected = math.log2(reference_us / best_us) - forecast.mean
        precision = 1 / max(forecast.sigma, MIN_SIGMA) ** 2
    octaves = ONE_RUN_SIGMA**2 * (SURE_SIGMAS * math.sqrt(precision + ONE_RUN_SIGMA**-2) - expected * precision)
    return best_us * float(2 ** max(octaves, 1.0))
