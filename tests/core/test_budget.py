from __future__ import annotations

import math

import pytest

from forecast_autotune.core.budget import Budget
from forecast_autotune.errors import InvalidInputError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("text", "space", "limit", "seconds"),
    [
        ("16", 1000, 16, None),
        (16, 1000, 16, None),
        ("10%", 1000, 100, None),
        ("1%", 30, 1, None),
        ("0%", 30, 0, None),
        ("0.5 %", 1000, 5, None),
        ("2s", 1000, None, 2.0),
        ("500ms", 1000, None, 0.5),
        ("2min", 1000, None, 120.0),
        ("1.5s", 1000, None, 1.5),
        ("16,30s", 1000, 16, 30.0),
        ("30s , 16", 1000, 16, 30.0),
        ("50,1%", 1000, 10, None),
        ("all", 1000, None, None),
        ("ALL,10s", 1000, None, 10.0),
        ("0", 1000, 0, None),
    ],
)
def test_it_reads_counts_shares_and_times(
    text: str | int, space: int, limit: int | None, seconds: float | None
) -> None:
    budget = Budget(text)
    budget.start(space)
    assert budget.limit == limit
    assert budget.seconds == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ten",
        "-1",
        "1.5",
        "10%%",
        "101%",
        "5h",
        "2s,3s",
        "1,2",
        "10%,20%",
        "all,all",
        "16 30s",
        "nan",
        "1e3",
        ",",
        "16,",
    ],
)
def test_what_does_not_parse_names_the_value_and_what_is_accepted(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Budget(text)
    assert repr(text) in str(caught.value)
    assert "16,30s" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "0%", "0s", "0,30s"])
def test_nothing_may_be_measured_on_a_budget_of_nothing(text: str) -> None:
    budget = Budget(text)
    budget.start(100)
    assert not budget.measures
    assert budget.exhausted


def test_configs_and_seconds_run_out() -> None:
    clock = Clock()
    budget = Budget("2,10s", clock=clock)
    assert budget.spent_s == 0.0
    budget.start(100)
    budget.tried = 1
    clock.now += 4
    assert (budget.configs_left, budget.seconds_left, budget.spent_s) == (1, 6.0, 4.0)
    assert not budget.exhausted
    clock.now += 6
    assert budget.exhausted
    clock.now -= 6
    budget.tried = 2
    assert budget.exhausted


def test_without_a_count_configs_never_run_out() -> None:
    budget = Budget("5s")
    budget.start(10)
    assert budget.configs_left == math.inf
    assert Budget("all").measures


def test_it_prints_as_typed() -> None:
    assert str(Budget("16,30s")) == "16,30s"
