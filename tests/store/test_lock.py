from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from contracts.store_contract import a_decision, a_job

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store.sqlite import SqliteStore

spawn = multiprocessing.get_context("spawn")


def hold(directory: Path, holding: Event) -> None:
    store = SqliteStore(directory)
    with store.single_flight(a_job()):
        holding.set()
        time.sleep(300)


def tune(directory: Path, tuned: Path) -> None:
    """What a process does that meets a key again and again."""
    with SqliteStore(directory) as store:
        while store.decision(a_job()) is None:
            with store.single_flight(a_job()) as alone:
                if alone and store.decision(a_job()) is None:
                    (tuned / str(os.getpid())).touch()
                    time.sleep(0.2)
                    store.record_decision(a_job(), a_decision(a_job()))
            time.sleep(0.01)


def test_of_many_processes_that_miss_one_key_one_tunes(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    workers = [spawn.Process(target=tune, args=(tmp_path / "store", tmp_path / "tuned")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert len(list((tmp_path / "tuned").iterdir())) == 1


def test_a_held_key_is_reported_at_once_and_a_killed_holder_frees_it(tmp_path: Path) -> None:
    holding = spawn.Event()
    holder = spawn.Process(target=hold, args=(tmp_path, holding))
    holder.start()
    assert holding.wait(120)
    with SqliteStore(tmp_path) as store, store.single_flight(a_job()) as alone:
        assert not alone
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    with SqliteStore(tmp_path) as store, store.single_flight(a_job()) as alone:
        assert alone


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        with pytest.raises(KeyError), store.single_flight(a_job()):
            raise KeyError
        with SqliteStore(tmp_path) as other, other.single_flight(a_job()) as alone:
            assert alone


def test_there_is_a_bound_on_the_lock_files(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        for number in range(50):
            with store.single_flight(a_job(key={"n": number})):
                pass
    assert all(re.fullmatch(r"[0-9a-f]{3}\.lock", p.name) for p in (tmp_path / "locks").iterdir())


def test_two_runs_that_nest_in_opposite_orders_do_not_hold_each_other_up(tmp_path: Path) -> None:
    inner, outer = a_job(key={"n": 1}), a_job(key={"n": 2})
    with (
        SqliteStore(tmp_path) as mine,
        SqliteStore(tmp_path) as other,
        other.single_flight(inner),
        mine.single_flight(outer) as first,
        mine.single_flight(inner) as second,
    ):
        assert (first, second) == (True, False)


def test_a_folder_without_locks_is_reported_once_and_stops_no_tuning(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("in the way")
    with SqliteStore(tmp_path) as store:
        with pytest.warns(StoreWarning, match="no lock can be had") as told, store.single_flight(a_job()) as alone:
            assert alone
        assert len(told) == 1
        with store.single_flight(a_job()) as alone:
            assert alone


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "a") as store, store.single_flight(a_job()):
        (name,) = (p.name for p in (tmp_path / "a" / "locks").iterdir())
    (tmp_path / "b" / "locks").mkdir(parents=True)
    (tmp_path / "b" / "locks" / name).symlink_to(tmp_path / "victim")
    with SqliteStore(tmp_path / "b") as store, pytest.warns(StoreWarning), store.single_flight(a_job()):
        pass
    assert not (tmp_path / "victim").exists()
