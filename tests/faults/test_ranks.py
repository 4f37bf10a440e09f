"""Eight real ranks with a gloo process group: whatever befalls them, one decision, or the local one that is stated.

`make ranks` runs a thousand of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibration.ranks import BUDGET, SCENARIOS

RUNS = 25
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs() -> dict[str, list[dict[str, Any]]]:
    """Each scenario's runs, made by a process of its own: forking this one would take its threads' locks along."""
    command = [sys.executable, "-m", "calibration.ranks", "--each", "--runs", str(RUNS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    printed = done.stdout.splitlines()
    assert len(printed) == RUNS + 1, done.stderr
    *lines, whole = map(json.loads, printed)
    assert whole["runs"] == RUNS
    made: dict[str, list[dict[str, Any]]] = {name: [] for name in SCENARIOS}
    for line in lines:
        made[line["scenario"]].append(line)
    return made


def told_in(runs: dict[str, list[dict[str, Any]]], scenario: str) -> list[list[dict[str, Any]]]:
    found = [run["told"] for run in runs[scenario]]
    assert found
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_rank_is_stuck_and_all_decide_alike_or_by_themselves_where_that_is_stated(
    runs: dict[str, list[dict[str, Any]]], scenario: str
) -> None:
    for run in runs[scenario]:
        assert run["ranks"] == 8 - len(SCENARIOS[scenario].absent) - len(run["died"])
        assert run.get("local" if SCENARIOS[scenario].local else "agreed") == run["ranks"], run
        assert not run.get("stuck")
        assert not run.get("wrong")


def test_each_for_itself_they_would_not_agree(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "each for itself"):
        assert len({t["config"] for t in told}) > 1


def test_one_rank_measures_and_rank_0_if_it_is_there(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "all cold"):
        assert sum(bool(t["tried"]) for t in told) == 1
        assert max(len(t["tried"]) for t in told) <= BUDGET
    for told in told_in(runs, "rank 0 never calls"):
        assert sum(bool(t["tried"]) for t in told) == 1


def test_ranks_that_know_an_answer_measure_nothing(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "all warm"):
        assert not any(t["tried"] for t in told)


def test_a_rank_dies_where_one_is_to_die(runs: dict[str, list[dict[str, Any]]]) -> None:
    for name, scenario in SCENARIOS.items():
        for run in runs[name]:
            assert len(run["died"]) == bool(scenario.dies)


def test_another_rank_measures_when_the_one_that_tunes_is_killed(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "the one that tunes dies"):
        assert any(t["tried"] for t in told)


def test_a_rank_with_another_gpu_measures_for_itself(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "one has another GPU"):
        assert [t["rank"] for t in told if t["tried"] and t["rank"] == 6] == [6]


def test_who_waits_in_vain_decides_unmeasured_and_the_one_that_measured_joins_in(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    for told in told_in(runs, "tuning outlasts patience"):
        assert {t["basis"] for t in told} == {"default"}
        assert any(t["tried"] for t in told)


@pytest.mark.parametrize("scenario", ["the key-value store dies", "the key-value store stands still"])
def test_ranks_that_cannot_reach_each_other_say_so_once(runs: dict[str, list[dict[str, Any]]], scenario: str) -> None:
    for told in told_in(runs, scenario):
        for rank in told:
            (warning,) = rank["warnings"]
            assert "the other ranks cannot be reached" in warning


def test_a_world_size_that_does_not_match_is_told_once(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "the environment says another world size"):
        for rank in told:
            assert rank["warnings"] == ["WORLD_SIZE='4', but the process group says 8: the process group's is taken"]


def test_devices_share_one_budget_and_all_but_one_measure_at_different_configs(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    for told in told_in(runs, "shared, a device each"):
        assert sum(bool(t["tried"]) for t in told) > 1
        tried = [c for t in told for c in t["tried"]]
        assert len(tried) == len(set(tried)) == BUDGET
