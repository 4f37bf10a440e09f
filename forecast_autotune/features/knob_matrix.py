"""A space's knobs as numbers, for what surrogates and policies compute on arrays."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.digest import Value
from ..core.space import Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MAX_LEVELS = 24  # a text knob with more values than this is read by its position: a column each would drown the others
KEPT_SPACES = 8  # 10,000 configs of 8 knobs are 0.7 MB


@dataclass(frozen=True, slots=True)
class KnobMatrix:
    """A space's knobs as numbers: one row per config, in the space's order, and one column per thing that varies.

    Numbers stand on a log2 scale where all are positive and more than two, else as they are, scaled so that a knob's
    distinct values have mean 0 and standard deviation 1. Two values that are no numbers stand 2 apart; of more, each
    has a column of its own. `levels` holds, per knob that varies, the value of each config as a whole number from 0.
    """

    values: Array
    levels: dict[str, NDArray[np.intp]]


_kept: OrderedDict[str, tuple[Space, KnobMatrix]] = OrderedDict()


def knob_matrix(space: Space) -> KnobMatrix:
    """The space's knobs as numbers; the last few spaces asked for are kept."""
    kept = _kept.get(space.digest)
    # A digest does not fix the order of the configs behind the default, and rows stand in that order.
    if kept is not None and (kept[0] is space or list(kept[0]) == list(space)):
        with contextlib.suppress(KeyError):  # another thread has just dropped it
            _kept.move_to_end(space.digest)
        return kept[1]
    matrix = _encode(space)
    _kept[space.digest] = (space, matrix)
    while len(_kept) > KEPT_SPACES:
        _kept.popitem(last=False)
    return matrix


def _encode(space: Space) -> KnobMatrix:
    import numpy as np

    columns: list[Array] = []
    levels: dict[str, NDArray[np.intp]] = {}
    for knob in space.knobs:
        values = [config.knobs[knob] for config in space]
        # Keyed by type as well: True == 1 == 1.0 in Python, but they are three values of a knob.
        distinct = sorted({(type(v).__name__, v) for v in values}, key=_order)
        if len(distinct) < 2:
            continue
        position = {key: i for i, key in enumerate(distinct)}
        level = np.array([position[type(v).__name__, v] for v in values], dtype=np.intp)
        levels[knob] = level
        columns += [per_level[level] for per_level in _columns([v for _, v in distinct])]
    values_of_all = np.stack(columns, axis=1) if columns else np.zeros((len(space), 0))
    return KnobMatrix(values_of_all, levels)


def _order(key: tuple[str, Value]) -> tuple[bool, float, str, str]:
    number = number_of(key[1])
    return (number is None, 0.0 if number is None else number, key[0], str(key[1]))


def number_of(value: Value) -> float | None:
    """The number a value is or, as flags and defines are text, spells; None of what is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _columns(values: Sequence[Value]) -> list[Array]:
    """The columns for one knob's distinct values, each an array over those values."""
    import numpy as np

    numbers = [number_of(v) for v in values]
    known = np.array([n for n in numbers if n is not None])
    others = [i for i, n in enumerate(numbers) if n is None]
    columns: list[Array] = []
    if known.size >= 2:
        scaled = np.log2(known) if known.size > 2 and known.min() > 0 else known.astype(float)
        spread = float(scaled.std()) or 1.0
        column = np.zeros(len(values))
        column[[i for i, n in enumerate(numbers) if n is not None]] = (scaled - scaled.mean()) / spread
        columns.append(column)
    if len(values) == 2 and others:
        return [np.array([-1.0, 1.0])]
    if len(others) > MAX_LEVELS:
        column = np.zeros(len(values))
        column[others] = np.linspace(-1.7, 1.7, len(others))  # mean 0, standard deviation 1
        return [*columns, column]
    for i in others:
        column = np.zeros(len(values))
        column[i] = math.sqrt(2.0)  # so that any two values stand 2 apart, like the two of a boolean
        columns.append(column)
    return columns
