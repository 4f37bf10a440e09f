"""Work shared through a store's file; `faults/test_ranks.py` has real processes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_job

from forecast_autotune.distributed import work_sharing
from forecast_autotune.distributed.work_sharing import SqliteWorkSharing
from forecast_autotune.store.sqlite import SqliteStore


class Process:
    """A store and the sharing of one job, as a process has them; its device is held as while it works."""

    def __init__(self, folder: Path, device: str) -> None:
        self.store = SqliteStore(folder)
        self.store.decision(a_job())  # as whoever tunes has done before
        self.sharing = SqliteWorkSharing(self.store, a_job(), device=device)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Process]:
    """It leads a run of four configs and has claimed the default."""
    process = Process(tmp_path, "device 0")
    with (
        process.store.single_flight(a_job()),
        process.sharing.device(),
        process.sharing.lead("run", 4, SPACE.default),
    ):
        yield process


@pytest.fixture
def helper(tmp_path: Path, leader: Process) -> Iterator[Process]:
    process = Process(tmp_path, "device 1")
    with process.sharing.device() as mine:
        assert mine
        yield process


def test_nothing_is_wanted_where_nobody_leads(tmp_path: Path) -> None:
    alone = Process(tmp_path, "device 0")
    assert not alone.sharing.wanted()
    assert not alone.sharing.claim(SPACE[1])
    with alone.store.single_flight(a_job()):
        assert not alone.sharing.wanted()  # it tunes, and does not share


def test_a_config_is_claimed_once(leader: Process, helper: Process) -> None:
    assert helper.sharing.wanted()
    assert not helper.sharing.claim(SPACE.default)
    assert helper.sharing.claim(SPACE[1])
    assert helper.sharing.claim(SPACE[1])  # it is its own
    assert not leader.sharing.claim(SPACE[1])
    assert leader.sharing.claimed_by_others() == {SPACE[1]}
    assert helper.sharing.claimed_by_others() == {SPACE.default}


def test_a_config_that_was_tried_is_neither_claimed_nor_free(leader: Process, helper: Process) -> None:
    helper.sharing.claim(SPACE[1])
    helper.sharing.tried(SPACE[1])
    assert leader.sharing.claimed_by_others() == frozenset()
    assert not leader.sharing.claim(SPACE[1])


def test_a_config_that_was_released_is_free_and_counts_for_nothing(leader: Process, helper: Process) -> None:
    for config in SPACE[1:4]:
        assert helper.sharing.claim(config)
    assert not leader.sharing.wanted()
    helper.sharing.release(SPACE[1])
    assert leader.sharing.claimed_by_others() == set(SPACE[2:4])
    assert leader.sharing.claim(SPACE[1])


def test_who_released_a_config_is_asked_for_no_more_at_later_calls(leader: Process, helper: Process) -> None:
    assert helper.sharing.claim(SPACE[1])
    helper.sharing.release(SPACE[1])
    assert not helper.sharing.wanted()
    assert not SqliteWorkSharing(helper.store, a_job(), device="device 1").wanted()
    assert leader.sharing.wanted()


def test_no_more_configs_are_claimed_than_the_budget_allows_all_together(leader: Process, helper: Process) -> None:
    claimed = [(leader if i % 2 else helper).sharing.claim(SPACE[i]) for i in range(1, 6)]
    assert claimed == [True, True, True, False, False]
    assert not helper.sharing.wanted()


def test_without_a_limit_every_config_may_be_claimed(tmp_path: Path) -> None:
    process = Process(tmp_path, "device 0")
    with process.store.single_flight(a_job()), process.sharing.lead("run", math.inf, None):
        assert all(process.sharing.claim(c) for c in SPACE)


def test_a_config_claimed_by_a_process_that_is_gone_is_free_again(tmp_path: Path, leader: Process) -> None:
    helper = Process(tmp_path, "device 1")
    with helper.sharing.device():
        helper.sharing.claim(SPACE[1])
        assert leader.sharing.claimed_by_others() == {SPACE[1]}
    assert leader.sharing.claimed_by_others() == frozenset()  # its device's lock is free, as a killed one's is
    assert leader.sharing.claim(SPACE[1])


def test_a_config_left_by_an_earlier_owner_of_ones_device_is_free_again(tmp_path: Path, leader: Process) -> None:
    first, second = (Process(tmp_path, "device 1") for _ in range(2))
    with first.sharing.device():
        first.sharing.claim(SPACE[1])
    with second.sharing.device() as mine:
        assert mine
        assert second.sharing.claimed_by_others() == {SPACE.default}


@pytest.mark.parametrize("minutes", [1, 9])
def test_a_config_is_claimed_for_as_long_as_its_process_works_on_it(
    leader: Process, helper: Process, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    helper.sharing.claim(SPACE[1])
    monkeypatch.setattr(work_sharing, "now", lambda: time.time() + 60 * minutes)
    assert leader.sharing.claimed_by_others() == {SPACE[1]}
    assert not leader.sharing.claim(SPACE[1])


def test_a_config_claimed_for_too_long_is_free_again(
    leader: Process, helper: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_sharing, "LEASE_S", -1.0)
    helper.sharing.claim(SPACE[1])
    assert leader.sharing.claimed_by_others() == frozenset()
    assert leader.sharing.claim(SPACE[1])


def test_two_processes_never_have_one_device(tmp_path: Path, leader: Process) -> None:
    answers: list[bool] = []

    def ask() -> None:
        for device in ("device 0", "device 1"):
            with Process(tmp_path, device).sharing.device() as mine:
                answers.append(mine)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False, True]


def test_the_leader_works_on_where_the_file_cannot_be_had(tmp_path: Path) -> None:
    for store in (SqliteStore.in_memory(), SqliteStore(tmp_path)):
        work = SqliteWorkSharing(store, a_job(), device="device 0")
        with store.single_flight(a_job()), work.lead("run", 4, SPACE.default):
            (tmp_path / "store.sqlite3").unlink(missing_ok=True)
            assert all(work.claim(c) for c in SPACE[:4])
        assert not work.claim(SPACE[5])


def test_a_finished_run_takes_no_more_help_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first, second = Process(tmp_path, "device 0"), Process(tmp_path, "device 1")
    with first.store.single_flight(a_job()):
        with first.sharing.lead("run", 4, SPACE.default):
            pass
        assert not second.sharing.claim(SPACE[1])
    with ExitStack() as held:
        held.enter_context(second.store.single_flight(a_job()))
        held.enter_context(second.sharing.lead("run-2", 2, None))
        assert second.sharing.claim(SPACE.default)  # what the first run claimed is forgotten
        assert second.sharing.claim(SPACE[1])
        assert not second.sharing.claim(SPACE[2])
