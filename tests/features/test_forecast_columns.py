from __future__ import annotations

import math

import numpy as np
import pytest

from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.features.forecast_columns import Component, ForecastTable, columns_of, median


def component(name: str, means: list[float], sigmas: list[float], weights: list[float]) -> Component:
    return Component(name, np.array(means), np.array(sigmas), np.array(weights))


def table() -> ForecastTable:
    """Two components over four configs: both are heard of the first, one of each of the next two, none of the last."""
    return ForecastTable(
        [
            component("one", [0.0, 1.0, 9.0, 9.0], [0.1, 0.2, 9.0, 9.0], [0.25, 1.0, 0.0, 0.0]),
            component("other", [2.0, 9.0, -1.0, 9.0], [0.5, 9.0, 0.4, 9.0], [0.75, 0.0, 1.0, 0.0]),
        ],
        np.array([0.0, 0.1, 0.2, 0.9]),
        source="one and other",
        default_us=7.0,
        silent="nobody speaks of it",
    )


FIRST = Forecast((Normal(0.0, 0.1, 0.25, "one"), Normal(2.0, 0.5, 0.75, "other")), "one and other", 0.0, 7.0)
SECOND = Forecast((Normal(1.0, 0.2, 1.0, "one"),), "one and other", 0.1, 7.0)
THIRD = Forecast((Normal(-1.0, 0.4, 1.0, "other"),), "one and other", 0.2, 7.0)
LAST = Abstention("one and other", "nobody speaks of it")
ALL = [FIRST, SECOND, THIRD, LAST]


def test_a_table_holds_a_forecast_for_each_config_and_its_sources() -> None:
    assert len(table()) == 4
    assert [table()[i] for i in range(4)] == ALL
    assert list(table()) == ALL
    assert SECOND in table()
    assert table().index(THIRD) == 2


def test_it_is_indexed_as_a_list_is() -> None:
    assert table()[-1] == LAST
    assert table()[-4] == FIRST
    for slice_ in (slice(1, 3), slice(None, None, -1), slice(2, None), slice(9, 12), slice(None, None, 2)):
        assert table()[slice_] == ALL[slice_]
    for beyond in (4, -5):
        with pytest.raises(IndexError, match=f"forecast {beyond} of 4"):
            table()[beyond]


def test_its_columns_are_the_moments_of_what_it_holds() -> None:
    ours, theirs = columns_of(table()), columns_of(ALL)
    for name in ("mean", "sigma", "fail"):
        assert getattr(ours, name)[:3] == pytest.approx(getattr(theirs, name)[:3])
        assert math.isnan(getattr(ours, name)[3])
    assert ours.mean[0] == 1.5
    assert ours.sigma[0] == pytest.approx(math.sqrt(0.25 * 0.01 + 0.75 * 0.25 + 0.75))
    assert ours.known.tolist() == [True, True, True, False]
    assert columns_of(table()).sigma[0] == pytest.approx(FIRST.sigma)


def test_some_positions_make_a_table_in_their_order_and_minus_one_abstains() -> None:
    some = table().at([2, -1, 0, 0])
    assert list(some) == [THIRD, LAST, FIRST, FIRST]
    assert columns_of(some).known.tolist() == [True, False, True, True]
    assert some.default_us == 7.0
    assert list(table().at([])) == []
    assert columns_of(table().at([])).mean.size == 0


def test_scaling_multiplies_every_sigma_and_records_it() -> None:
    wide = table().stretched(2.0).stretched(1.5)
    first = wide[0]
    assert isinstance(first, Forecast)
    assert [(b.mean, pytest.approx(b.sigma), b.weight, b.source) for b in first.components] == [
        (0.0, 0.3, 0.25, "one"),
        (2.0, 1.5, 0.75, "other"),
    ]
    assert first.sigma_scale == wide.at([0])[0].sigma_scale == 3.0  # type: ignore[union-attr]
    assert wide[3] == LAST
    assert wide.fail.tolist() == table().fail.tolist()
    assert list(table()) == ALL  # the table it came from is as it was


def test_what_other_hardware_says_goes_where_the_forecasts_go() -> None:
    told = ForecastTable.of_one(
        "h", np.zeros(3), np.ones(3), np.zeros(3), source="h", by_other_hardware=np.array([0.0, 1.0, 2.0])
    )
    for table_, expected in (
        (told, [0.0, 1.0, 2.0]),
        (told.stretched(2.0), [0.0, 1.0, 2.0]),
        (told.at([2, 0]), [2.0, 0.0]),
    ):
        assert columns_of(table_).by_other_hardware is not None
        assert columns_of(table_).by_other_hardware.tolist() == expected  # type: ignore[union-attr]
    assert columns_of(table()).by_other_hardware is None
    assert columns_of(ALL).by_other_hardware is None


def test_a_single_component_is_not_named() -> None:
    one = ForecastTable.of_one("h", np.array([0.5]), np.array([0.2]), np.array([0.1]), source="h (3 outcomes)")
    assert list(one) == [Forecast.normal(0.5, 0.2, source="h (3 outcomes)", fail_probability=0.1)]


def test_tables_and_lists_of_equal_forecasts_are_equal() -> None:
    assert table() == table()
    assert table() == ALL
    assert table() != ALL[:3]
    assert table() != [FIRST, SECOND, LAST, THIRD]
    assert table() != 3
    with pytest.raises(TypeError):
        hash(table())


def test_a_table_of_nothing_is_empty() -> None:
    none = ForecastTable.of_one("h", np.zeros(0), np.zeros(0), np.zeros(0), source="h")
    assert list(none) == []
    assert none == []
    assert columns_of(none).mean.size == 0


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_median_is_as_numpys_own(n: int) -> None:
    values = np.random.default_rng(n).normal(size=(3, n))
    assert (median(values) == np.median(values, axis=1)).all()
    assert float(median(values[0])) == np.median(values[0])
    values[1, -1] = math.nan
    assert np.isnan(median(values)).tolist() == [False, True, False]


def test_a_median_of_nothing_is_nan() -> None:
    assert np.isnan(float(median(np.zeros(0))))
    assert np.isnan(median(np.zeros((3, 0)))).tolist() == [True] * 3
