from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from forecast_autotune.core.space import Space
from forecast_autotune.features import knob_matrix as module
from forecast_autotune.features.knob_matrix import KEPT_SPACES, knob_matrix


def column(values: list[Any]) -> Any:
    return knob_matrix(Space([{"a": v} for v in values])).values


def test_powers_of_two_stand_in_equal_steps() -> None:
    steps = np.diff(column([1, 2, 4, 8])[:, 0])
    assert steps == pytest.approx([steps[0]] * 3)
    assert column([1, 2, 4, 8])[:, 0].std() == pytest.approx(1.0)


def test_numbers_with_a_zero_stand_as_they_are() -> None:
    steps = np.diff(column([0, 1, 2, 3])[:, 0])
    assert steps == pytest.approx([steps[0]] * 3)


def test_numbers_written_as_text_are_numbers() -> None:
    assert column(["16", "32", "64"]).shape == (3, 1)


def test_two_values_of_any_kind_stand_two_apart() -> None:
    for values in ([False, True], ["row", "column"], [None, 64], [0, 1], [3, 17]):
        assert abs(float(np.diff(column(values)[:, 0])[0])) == pytest.approx(2.0)


def test_any_two_of_several_texts_stand_equally_far_apart() -> None:
    x = column(["a", "b", "c"])
    apart = [float(((x[i] - x[j]) ** 2).sum()) for i in range(3) for j in range(i)]
    assert apart == pytest.approx([4.0] * 3)


def test_a_number_that_may_be_missing_keeps_its_scale_and_gets_a_flag() -> None:
    matrix = knob_matrix(Space([{"a": v} for v in (None, 32, 64, 128)]))
    assert matrix.values.shape[1] == 2
    assert matrix.values[1:, 1] == pytest.approx([0.0] * 3)


def test_many_texts_share_one_column() -> None:
    assert column([f"t{i}" for i in range(40)]).shape == (40, 1)


def test_a_knob_that_never_varies_has_no_column() -> None:
    matrix = knob_matrix(Space([{"a": 1, "b": 1}, {"a": 1, "b": 2}]))
    assert set(matrix.levels) == {"b"}
    assert knob_matrix(Space([{"a": 1}])).values.shape == (1, 0)


def test_true_and_one_are_two_levels() -> None:
    assert knob_matrix(Space([{"a": 1}, {"a": True}])).levels["a"].tolist() in ([0, 1], [1, 0])


def test_rows_stand_in_the_order_of_the_space_that_is_asked_for() -> None:
    one = Space([{"a": 1}, {"a": 2}, {"a": 4}])
    other = Space([{"a": 1}, {"a": 4}, {"a": 2}])
    assert one.digest == other.digest
    assert knob_matrix(one).values[[0, 2, 1]].tolist() == knob_matrix(other).values.tolist()
    assert knob_matrix(other) is knob_matrix(other)


def test_threads_that_ask_for_more_spaces_than_are_kept_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [Space.grid({"a": [1, 2, i + 3]}) for i in range(KEPT_SPACES)]
    for space in spaces:
        knob_matrix(space)

    class Dropping(OrderedDict[str, Any]):
        def move_to_end(self, key: str, last: bool = True) -> None:  # as the standard library's
            self.pop(key)  # as another thread may, just before
            super().move_to_end(key, last)

    monkeypatch.setattr(module, "_kept", Dropping(module._kept))
    assert knob_matrix(spaces[0]).values.shape == (3, 1)
