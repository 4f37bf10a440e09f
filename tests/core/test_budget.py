from __future__ import annotations

import math
import os
import threading

import pytest

from forecast_autotune.core.budget import PROCESS_TOTAL, Budget, BudgetLimits, TotalSpent
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
    assert budget.limits.seconds == seconds


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
        "total",
        "total=120",
        "total=16,30s",
        "total=10%",
        "total=all",
        "total=1s,total=2s",
        "16 total=1s",
    ],
)
def test_what_does_not_parse_names_the_value_and_what_is_accepted(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Budget(text)
    assert repr(text) in str(caught.value)
    assert "16,30s" in str(caught.value)
    assert "total=120s" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("16,32", "the limit on configs"),
        ("10%,20%", "the share of configs"),
        ("1s,2s", "the time of a key"),
        ("total=1s,total=2s", "the time of the process"),
        ("all,all", "all"),
    ],
)
def test_a_limit_that_is_named_twice_is_named_in_the_error(text: str, twice: str) -> None:
    with pytest.raises(InvalidInputError, match=f"budget '{text}' names {twice} twice"):
        Budget(text)


@pytest.mark.parametrize("text", ["0", "0%", "0s", "0,30s", "total=0s", "16,30s,total=0s"])
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


@pytest.mark.parametrize(
    ("text", "total_s"),
    [("total=120s", 120.0), ("16,30s,total=2min", 120.0), ("TOTAL = 500ms, all", 0.5), ("10%,total=0s", 0.0)],
)
def test_a_total_is_read_beside_the_limits_of_a_key(text: str, total_s: float) -> None:
    assert BudgetLimits.parse(text).total_seconds == total_s


def test_limits_are_read_once_into_a_value_that_nothing_changes() -> None:
    limits = BudgetLimits.parse("16,30s,total=120s")
    expected = BudgetLimits(text="16,30s,total=120s", configs=16, seconds=30.0, total_seconds=120.0)
    assert limits == expected
    with pytest.raises(AttributeError):
        limits.configs = 3  # type: ignore[misc]
    budget = Budget(limits)
    budget.start(10)
    assert (budget.limits, budget.configs_left) == (limits, 16)


def test_a_total_alone_leaves_the_limits_of_a_key_as_they_are() -> None:
    total = BudgetLimits.parse("total=120s")
    assert str(total.with_key_limits_of(BudgetLimits.parse("16,30s"))) == "16,30s,total=120s"
    assert str(total.with_key_limits_of(BudgetLimits.parse("8,total=60s"))) == "8,total=120s"
    assert str(total.with_key_limits_of(BudgetLimits.parse("total=60s"))) == "total=120s"
    assert str(BudgetLimits.parse("8").with_key_limits_of(BudgetLimits.parse("16,total=60s"))) == "8"


def test_runs_share_a_total_and_each_has_its_own_seconds() -> None:
    clock = Clock()
    total = TotalSpent(clock)
    first, second = (Budget("30s,total=40s", clock=clock, total=total) for _ in range(2))
    first.start(10)
    with total.running():
        clock.now += 25
        assert (first.seconds_left, first.total_left_s) == (5.0, 15.0)
    clock.now += 100  # nothing is tuned meanwhile
    second.start(10)
    with total.running():
        assert second.seconds_left == 15.0
        clock.now += 15
        assert second.exhausted
    assert total.seconds == 40.0


def test_runs_of_several_threads_and_one_inside_another_count_once() -> None:
    clock = Clock()
    total = TotalSpent(clock)
    inside, leave = threading.Barrier(3), threading.Event()

    def run() -> None:
        with total.running(), total.running():
            inside.wait(60)
            assert leave.wait(60)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    clock.now += 7
    assert total.seconds == 7.0
    leave.set()
    for thread in threads:
        thread.join(60)
    clock.now += 7
    assert total.seconds == 7.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_spent_nothing_of_its_total() -> None:
    with PROCESS_TOTAL.running():
        threading.Event().wait(0.001)
        assert PROCESS_TOTAL.seconds > 0
        child = os.fork()
        if child == 0:
            os._exit(0 if PROCESS_TOTAL.seconds == 0.0 else 1)
        assert os.waitpid(child, 0)[1] == 0
