from __future__ import annotations

import math
import random

import pytest

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.scores import discovery

FAILED = -math.inf
STEP = math.log2(1.5)


def sure(mean: float, sigma: float = 0.01) -> Forecast:
    return Forecast.normal(mean, sigma, source="s")


def test_a_square_has_four_pairs_judged_in_both_directions() -> None:
    space = Space.grid({"a": [1, 2], "b": [1, 2]})
    measured = [0.0, 1.0, 0.1, 0.2]  # (1,1) (1,2) (2,1) (2,2)
    # Steps of log2(1.5) = 0.585 or more: (1,2) over (1,1) and (1,2) over (2,2); the diagonal is no pair.
    found = discovery(space, [sure(m) for m in (0.0, 1.0, 0.1, 0.9)], measured)
    # Called are (1,2) over (1,1), which happened, and (2,2) over (2,1), which did not.
    assert (found.pairs, found.events, found.called) == (8, 2, 2)
    assert (found.precision, found.recall) == (0.5, 0.5)


def test_a_step_of_exactly_the_factor_is_an_event() -> None:
    space = Space.grid({"a": [1, 2]})
    assert discovery(space, [sure(0)] * 2, [0.3, 0.3 + STEP]).events == 1
    assert discovery(space, [sure(0)] * 2, [0.3, 0.3 + STEP - 1e-6]).events == 0
    assert discovery(space, [sure(0)] * 2, [0.0, 1.0], factor=2.0).events == 1


def test_it_is_called_when_more_likely_than_not() -> None:
    space = Space.grid({"a": [1, 2]})
    for mean, called in ((STEP + 0.01, 1), (STEP - 0.01, 0)):
        assert discovery(space, [sure(0.0, 1.0), sure(mean, 1.0)], [0.0, 1.0]).called == called
    # Two bells, most of the weight at a step of 1: likely though the mean falls short of the step.
    torn = Forecast(tuple(type(b)(m, 0.01, w) for b in sure(0).components for m, w in ((1.0, 0.6), (-3.0, 0.4))), "s")
    assert torn.mean < STEP
    assert discovery(space, [sure(0.0), torn], [0.0, 1.0]).called == 1


def test_neighbours_differ_in_one_knob_whatever_its_values() -> None:
    space = Space([{"a": a, "b": b} for a in (1, 2, 4) for b in ("x", "y") if (a, b) != (4, "y")])
    # Per row of b: x has 3 configs (3 pairs), y 2 (1 pair); per column of a: 2 pairs.
    assert discovery(space, [sure(0)] * 5, [0.0] * 5).pairs == 2 * (3 + 1 + 2)


def test_as_many_neighbours_as_counting_them_one_by_one() -> None:
    draw = random.Random(6)
    grid = list(Space.grid({"a": [1, 2, 3, 4], "b": [1, 2, 4], "c": [True, False], "d": ["x", "y", "z"], "e": [7]}))
    configs = draw.sample(grid, 50)
    space = Space(configs)
    measured = [draw.gauss(0, 1) for _ in configs]
    said = [m + draw.gauss(0, 0.5) for m in measured]
    apart = {(i, j): sum(a[k] != b[k] for k in space.knobs) for i, a in enumerate(space) for j, b in enumerate(space)}
    pairs = [pair for pair, changes in apart.items() if changes == 1]
    events = {(i, j) for i, j in pairs if measured[i] - measured[j] >= STEP}
    called = {(i, j) for i, j in pairs if said[i] - said[j] > STEP}
    found = discovery(space, [sure(m, 0.001) for m in said], measured)
    assert (found.pairs, found.events, found.called) == (len(pairs), len(events), len(called))
    assert found.precision == pytest.approx(len(events & called) / len(called))
    assert found.recall == pytest.approx(len(events & called) / len(events))
    perfect = discovery(space, [sure(m, 1e-6) for m in measured], measured)
    assert (perfect.precision, perfect.recall) == (1.0, 1.0)


def test_what_failed_or_was_not_forecast_is_in_no_pair() -> None:
    space = Space.grid({"a": [1, 2, 3, 4]})
    found = discovery(space, [sure(0), sure(1), Abstention("s", "no idea"), sure(2)], [0.0, 1.0, 2.0, FAILED])
    assert (found.pairs, found.events, found.precision, found.recall) == (2, 1, 1.0, 1.0)
    nothing = discovery(space, [sure(0)] * 4, [FAILED] * 4)
    assert (nothing.pairs, nothing.events, nothing.precision, nothing.recall) == (0, 0, None, None)
    assert discovery(Space([{"a": 1}]), [sure(0)], [0.0]).pairs == 0


def test_what_cannot_be_judged_is_refused() -> None:
    space = Space.grid({"a": [1, 2]})
    with pytest.raises(InvalidInputError, match="1 forecasts for a space of 2"):
        discovery(space, [sure(0)], [0.0])
    for factor in (1.0, 0.5, math.nan, math.inf):
        with pytest.raises(InvalidInputError, match="factor"):
            discovery(space, [sure(0)] * 2, [0.0, 0.0], factor=factor)
