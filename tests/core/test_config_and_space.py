from __future__ import annotations

import pickle

import pytest

from forecast_autotune.core.config import Config, split_common
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError


def test_configs_are_equal_whatever_the_order_of_their_knobs() -> None:
    one, other = Config({"a": 1, "b": "x"}), Config({"b": "x", "a": 1})
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest


def test_one_and_true_and_one_point_zero_are_three_values() -> None:
    assert len({Config({"a": 1}), Config({"a": True}), Config({"a": 1.0})}) == 3


def test_a_config_survives_pickling_and_later_changes_of_its_mapping() -> None:
    knobs = {"a": 1}
    config = Config(knobs)
    knobs["a"] = 2
    assert config["a"] == 1
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


@pytest.mark.parametrize("knobs", [{"a": [1]}, {"a": float("nan")}, {1: 2}, {"a": object()}])
def test_a_knob_of_no_value_type_is_refused_by_name(knobs: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="knob"):
        Config(knobs)  # type: ignore[arg-type]


def test_what_all_configs_set_alike_is_split_off() -> None:
    configs = [Config({"stages": 2, "tile": 64, "fast": 1}), Config({"fast": True, "stages": 2, "tile": 32, "more": 1})]
    common, own = split_common(configs)
    assert common == Config({"stages": 2})
    assert [str(c) for c in own] == ["tile=64 fast=1", "fast=True tile=32 more=1"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_one_config_alone_nothing_is_split_off(count: int) -> None:
    configs = [Config({"stages": 2})] * count
    assert split_common(configs) == (Config({}), configs)


def test_a_space_keeps_order_and_drops_duplicates() -> None:
    space = Space([{"a": 2}, {"a": 1}, {"a": 2}])
    assert [c["a"] for c in space] == [2, 1]
    assert space.default == Config({"a": 2})
    assert space.index(Config({"a": 1})) == 1
    assert Config({"a": 3}) not in space


def test_the_default_moves_to_the_front() -> None:
    space = Space([{"a": 2}, {"a": 1}, {"a": 3}], default={"a": 3})
    assert [c["a"] for c in space] == [3, 2, 1]


def test_order_behind_the_default_is_no_part_of_the_digest() -> None:
    one, other = Space([{"a": 1}, {"a": 2}, {"a": 3}]), Space([{"a": 1}, {"a": 3}, {"a": 2}])
    assert one.digest == other.digest
    assert one.digest != Space([{"a": 2}, {"a": 1}, {"a": 3}]).digest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"configs": []}, "at least one"),
        ({"configs": [{"a": 1}, {"b": 1}]}, "same knobs"),
        ({"configs": [{"a": 1}], "default": {"a": 2}}, "not in the space"),
        ({"configs": [{"a": 1}], "roles": {"b": "tile"}}, "'b'"),
        ({"configs": [{"a": 1}], "roles": {"a": "magic"}}, "magic"),
        ({"configs": [3]}, "3 is no config: give a Config or a mapping"),
        ({"configs": 3}, "3 is no list of configs"),
        ({"configs": {"LANES": [1, 2]}}, r"{'LANES': \[1, 2\]} is no list of configs: .* Space.grid"),
        ({"configs": Config({"a": 1})}, "is no list of configs"),
    ],
)
def test_a_space_that_makes_no_sense_says_what_to_do(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Space(**arguments)  # type: ignore[arg-type]


def test_a_grid_is_every_combination_its_constraints_allow() -> None:
    space = Space.grid({"a": [1, 2, 4], "b": [1, 2]}, constraints=[lambda a, b: a * b <= 4, lambda a: a != 2])
    assert [(c["a"], c["b"]) for c in space] == [(1, 1), (1, 2), (4, 1)]


def test_a_grid_asks_a_constraint_as_soon_as_it_can() -> None:
    asked = []

    def few(a: int) -> bool:
        asked.append(a)
        return a == 1

    space = Space.grid({"a": list(range(50)), "b": list(range(50)), "c": list(range(50))}, constraints=[few])
    assert len(asked) == 50
    assert len(space) == 2500


@pytest.mark.parametrize(
    ("knobs", "constraints", "said"),
    [
        ({"a": []}, [], "non-empty"),
        ({"a": "xy"}, [], "non-empty"),
        ({"a": [1]}, [lambda z: z], "z"),
        ({"a": [1]}, [lambda a: a > 1], "at least one"),
        ({"a": list(range(500)), "b": list(range(500))}, [], "200000"),
    ],
)
def test_a_grid_that_makes_no_sense_says_what_to_do(knobs: dict, constraints: list, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Space.grid(knobs, constraints=constraints)
