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
from faults.ledger import Ledger
from faults.ranks import BUDGET, SCENARIOS

ROOT = Path(__file__).parents[2]
LIMIT_S = 280  # for the runs of one row

# The limit is for those of all rows, which whichever test is first waits for.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800), pytest.mark.xdist_group("ranks")]

AGREE = "one decision, the same on every rank"
ALONE = "one warning per rank; each decides by its own store"
FAULTS = {
    "8 ranks: warm, cold or mixed, late, absent": (
        AGREE,
        ["all cold", "all warm", "one warm", "one never calls", "rank 0 never calls", "rank 0 is late", "one is late"],
    ),
    "8 ranks: one with another GPU, space or key": (
        "one decision for all that are alike",
        ["one has another GPU", "one has another space", "one has another key"],
    ),
    "8 ranks: kill -9 of one, while it tunes or at any moment": (
        f"{AGREE} that is left",
        ["the one that tunes dies", "one is killed at any moment"],
    ),
    "8 ranks: one stopped for seconds (SIGSTOP)": (AGREE, ["one is stopped for seconds"]),
    "8 ranks: all killed, and started again": (
        f"{AGREE}, as before",
        ["all start again", "all are killed at any moment and start again"],
    ),
    "8 ranks: the job's key-value store killed or stopped": (
        ALONE,
        ["the key-value store dies", "the key-value store stands still"],
    ),
    "8 ranks: tuning takes long, nothing may be measured, a wrong WORLD_SIZE, no agreement wanted": (
        f"{AGREE}, but where none is wanted",
        [
            "tuning takes long",
            "nothing may be measured",
            "the environment says another world size",
            "each for itself",
        ],
    ),
    "8 ranks online, one of which learns: late, absent, kill -9, stopped": (
        AGREE,
        [
            "online",
            "online, one never calls",
            "online, rank 0 never calls",
            "online, one is late",
            "online, one is killed at any moment",
            "online, one is stopped for seconds",
        ],
    ),
    "8 ranks that share the work: one killed": (
        f"{AGREE}, within one budget",
        [
            "shared, a device each",
            "shared, two on each device",
            "shared, the one that leads dies",
            "shared, one that helps dies",
        ],
    ),
}


@pytest.fixture(scope="module")
def runs(faults: Ledger, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Each scenario's runs, made by processes of their own: forking this one would take its threads' locks along."""
    assert sorted(name for _, names in FAULTS.values() for name in names) == sorted(SCENARIOS)
    made: dict[str, list[dict[str, Any]]] = {name: [] for name in SCENARIOS}
    for fault, (seen, names) in FAULTS.items():
        with faults.case(fault, tmp_path_factory.mktemp("ranks"), seen=seen) as case:
            count = len(names) * case.many(short=1, whole=6)
            chosen = [word for name in names for word in ("--scenario", name)]
            command = [sys.executable, "-m", "faults.ranks", "--each", "--runs", str(count), *chosen]
            with case.attempt():
                done = subprocess.run(
                    command, cwd=ROOT, env=case.environment, capture_output=True, text=True, timeout=LIMIT_S
                )
            case.row.attempts -= 1  # each run of it is one
            printed = done.stdout.splitlines()
            assert len(printed) == count + 1, done.stderr
            for line in map(json.loads, printed[:-1]):
                with case.attempt():
                    if line.get("stuck"):
                        raise TimeoutError(f"{line['scenario']}: {line['stuck']} ranks")
                made[line["scenario"]].append(line)
    return made


def told_in(runs: dict[str, list[dict[str, Any]]], scenario: str) -> list[list[dict[str, Any]]]:
    found = [run["told"] for run in runs[scenario]]
    assert found
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_rank_hangs_and_all_decide_alike_or_alone_where_that_is_stated(
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
    for scenario in ("all warm", "all start again"):
        for told in told_in(runs, scenario):
            assert not any(t["tried"] for t in told)


def test_a_rank_dies_where_one_is_to_die(runs: dict[str, list[dict[str, Any]]]) -> None:
    for name, scenario in SCENARIOS.items():
        for run in runs[name]:
            if not scenario.killed_within_s:  # which may be after it has decided
                assert len(run["died"]) == bool(scenario.dies)


def test_another_rank_measures_when_the_one_that_tunes_is_killed(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "the one that tunes dies"):
        assert any(t["tried"] for t in told)


@pytest.mark.parametrize(("what", "rank"), [("GPU", 6), ("space", 2), ("key", 0)])
def test_a_rank_of_another_kind_measures_for_itself(
    runs: dict[str, list[dict[str, Any]]], what: str, rank: int
) -> None:
    for told in told_in(runs, f"one has another {what}"):
        assert [t["rank"] for t in told if t["tried"] and t["rank"] == rank] == [rank]


def test_ranks_that_do_not_tune_launch_the_default_and_later_the_decision(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    for told in told_in(runs, "tuning takes long"):
        assert {t["basis"] for t in told} == {"measured"}
        assert {t["first"] for t in told if t["calls"] > 1 and not t["tried"]} == {"default"}


@pytest.mark.parametrize("scenario", ["the key-value store dies", "the key-value store stands still"])
def test_ranks_that_cannot_reach_each_other_say_so_once(runs: dict[str, list[dict[str, Any]]], scenario: str) -> None:
    for told in told_in(runs, scenario):
        for rank in told:
            (warning,) = rank["warnings"]
            assert "the other ranks cannot be reached" in warning


def test_a_world_size_that_does_not_match_is_reported_once(runs: dict[str, list[dict[str, Any]]]) -> None:
    for told in told_in(runs, "the environment says another world size"):
        for rank in told:
            assert rank["warnings"] == ["WORLD_SIZE='4', but the process group says 8: the process group's is taken"]


def test_devices_share_one_budget_and_measure_different_configs(
    runs: dict[str, list[dict[str, Any]]],
) -> None:
    for told in told_in(runs, "shared, a device each"):
        assert sum(bool(t["tried"]) for t in told) > 1
        tried = [c for t in told for c in t["tried"]]
        assert len(tried) == len(set(tried)) == BUDGET
