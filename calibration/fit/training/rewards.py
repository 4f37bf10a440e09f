"""What a written forecast earns once the bin is measured: the three rewards of GPU Forecasters (arXiv 2605.31464).

Each takes the text a model wrote and the measured bin, 0 to 7, and gives 0 to a text that is no answer. A written answer is
right or wrong as a whole: correctness beside a proper score leaves the truth the best thing to say, which it does not where
both are taken of a distribution read from logits (`objectives.OBJECTIVES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

from forecast_autotune.language.answers import Bins, from_text


def correct(text: str, measured: int) -> float:
    """1 if the likeliest bin, of equals the slowest, is the measured one.

    That an answer is unsure costs nothing, nor that it is too sure: this reward teaches no calibration.
    """
    answer = from_text(text)
    return _correct(answer.probabilities, measured) if isinstance(answer, Bins) else 0.0


def correct_and_brier(text: str, measured: int) -> float:
    """`correct`, and 1 less half the Brier score (Brier 1950): from 0 to 2."""
    answer = from_text(text)
    if not isinstance(answer, Bins):
        return 0.0
    half_brier = 0.5 * sum((p - (b == measured)) ** 2 for b, p in enumerate(answer.probabilities))
    return _correct(answer.probabilities, measured) + 1.0 - half_brier


def correct_and_crps(text: str, measured: int) -> float:
    """`correct`, and 1 less the ranked probability score (Epstein 1969) over the seven edges, divided by 7: from 0 to 2."""
    answer = from_text(text)
    if not isinstance(answer, Bins):
        return 0.0
    below = list(accumulate(answer.probabilities))[:-1]
    crps = sum((p - (edge >= measured)) ** 2 for edge, p in enumerate(below))
    return _correct(answer.probabilities, measured) + 1.0 - crps / len(below)


def _correct(probabilities: tuple[float, ...], measured: int) -> float:
    return float(probabilities.index(max(probabilities)) == measured)


REWARDS: Mapping[str, Callable[[str, int], float]] = {
    "correct": correct,
    "brier": correct_and_brier,
    "crps": correct_and_crps,
}
