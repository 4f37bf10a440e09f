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
from forecast_autotune.store import lock
from forecast_autotune.store.sqlite import SqliteStore

spawn = multiprocessing.get_context("spawn")


def hold(directory: Path, holding: Event) -> None:
    store = SqliteStore(directory)
    with store.single_flight(a_job()):
        holding.set()
        time.sleep(60)


def tune(directory: Path, tuned: Path) -> None:
    """What the loop does on a miss."""
    with SqliteStore(directory, wait_s=30) as store, store.single_flight(a_job()) as alone:
        assert alone
        if store.decision(a_job()) is None:
            (tuned / str(os.getpid())).touch()
            time.sleep(0.2)
            store.decide(a_job(), a_decision(a_job()))


def test_of_many_processes_that_miss_one_key_one_tunes(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    workers = [spawn.Process(target=tune, args=(tmp_path / "store", tmp_path / "tuned")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert len(list((tmp_path / "tuned").iterdir())) == 1


def test_a_waiting_process_goes_on_without_and_a_killed_holder_frees_its_lock(tmp_path: Path) -> None:
    holding = spawn.Event()
    holder = spawn.Process(target=hold, args=(tmp_path, holding))
    holder.start()
    assert holding.wait(30)
    with SqliteStore(tmp_path, wait_s=0.2) as store, store.single_flight(a_job()) as alone:
        assert not alone
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    with SqliteStore(tmp_path, wait_s=5) as store:
        began = time.monotonic()
        with store.single_flight(a_job()) as alone:
            assert alone
        assert time.monotonic() - began < 2


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with SqliteStore(tmp_path, wait_s=1) as store:
        with pytest.raises(KeyError), store.single_flight(a_job()):
            raise KeyError
        with SqliteStore(tmp_path, wait_s=0.2) as other, other.single_flight(a_job()) as alone:
            assert alone


def test_there_is_a_bound_on_the_lock_files(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        for number in range(50):
            with store.single_flight(a_job(key={"n": number})):
                pass
    assert all(re.fullmatch(r"[0-9a-f]{3}\.lock", p.name) for p in (tmp_path / "locks").iterdir())


def test_a_run_inside_another_waits_only_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "NESTED_WAIT_S", 0.1)
    inner, outer = a_job(key={"n": 1}), a_job(key={"n": 2})
    with SqliteStore(tmp_path) as mine, SqliteStore(tmp_path) as other, other.single_flight(inner):
        began = time.monotonic()
        with mine.single_flight(outer) as first, mine.single_flight(inner) as second:
            assert (first, second) == (True, False)
        assert time.monotonic() - began < 5


def test_a_folder_without_locks_is_told_of_once_and_does_not_stop_tuning(tmp_path: Path) -> None:
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
