"""Keys noted as pending: once in a process, without waiting, until a decision strikes them out."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from contracts.store_contract import HARDWARE, SPACE, a_decision, a_job

from forecast_autotune.settings import Settings
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore, open_local_store


def test_a_store_that_is_busy_is_not_waited_for_and_hears_of_it_in_the_end(own_settings: Path) -> None:
    store = open_local_store(Settings.from_environment())
    assert store.decision(a_job()) is None
    other = sqlite3.connect(own_settings / "store.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    store.note_pending(a_job(), "mode cached")
    assert time.monotonic() - began < 10.0  # half of what a store in use is waited for otherwise
    other.execute("ROLLBACK")
    other.close()
    assert StoreFile(own_settings).pending() == []
    store.close()
    assert [p.why for p in StoreFile(own_settings).pending()] == ["mode cached"]


def test_processes_count_and_prune_and_clear_reach_pending_keys(tmp_path: Path) -> None:
    for why in ("mode cached", "budget 0"):
        with SqliteStore(tmp_path) as store:
            store.note_pending(a_job(), why)
            store.note_pending(a_job(), why)
    store_file = StoreFile(tmp_path)
    (pending,) = store_file.pending()
    assert (pending.why, pending.met, pending.space_size) == ("budget 0", 2, len(SPACE))
    assert pending.space == SPACE.digest
    assert pending.noted_at <= pending.met_at
    assert store_file.stats().pending == 1
    assert store_file.prune().pending == 0
    assert store_file.prune(unseen_days=0).pending == 1
    with SqliteStore(tmp_path) as store:
        store.note_pending(a_job(), "mode cached")
        store.note_pending(a_job(name="softmax"), "mode cached")
    assert store_file.clear(kernel="rmsnorm").pending == 1
    removed = store_file.clear()
    assert (removed.pending, removed.programs) == (1, 1)


def test_a_decision_strikes_out_no_key_met_under_another_power_limit(tmp_path: Path) -> None:
    capped = a_job(hardware=replace(HARDWARE, power_limit_w=400))
    with SqliteStore(tmp_path) as store:
        store.note_pending(capped, "mode cached")
        store.record_decision(a_job(), a_decision(a_job()))
        assert len(StoreFile(tmp_path).pending()) == 1
        store.record_decision(capped, a_decision(capped))
    assert StoreFile(tmp_path).pending() == []


def test_a_decision_strikes_out_no_key_of_other_constexprs(tmp_path: Path) -> None:
    small, large, larger = (a_job(key={"n": 1, "given constexprs": {"D": size}}) for size in (64, 512, 1024))
    with SqliteStore(tmp_path) as store:
        for job in (small, large):
            store.note_pending(job, "mode cached")
        store.record_decision(small, a_decision(small))
        store.note_pending(larger, "mode cached")
        assert {p.tuning_key.workload.constexprs["D"] for p in StoreFile(tmp_path).pending()} == {512, 1024}


def test_only_a_decision_that_measuring_had_a_say_in_strikes_a_key_out(tmp_path: Path) -> None:
    job = a_job()
    unmeasured = a_decision(job, basis="forecast", tried=0, config_us=None)
    with SqliteStore(tmp_path) as store:
        store.note_pending(job, "mode cached")
        store.record_decision(job, unmeasured)
        assert len(StoreFile(tmp_path).pending()) == 1
        store.record_decision(job, a_decision(job))
        assert StoreFile(tmp_path).pending() == []
        store.note_pending(job, "mode cached")  # by a process that had decided before
        assert StoreFile(tmp_path).pending() == []
    assert unmeasured.awaits_measuring
    assert a_decision(job, budget="0").awaits_measuring
    assert not a_decision(job, budget="of another kind").awaits_measuring


def test_mode_forecast_reads_nothing_and_notes_into_its_folders_store(own_settings: Path) -> None:
    with SqliteStore(own_settings) as store:
        store.record_decision(a_job(), a_decision(a_job()))
    forecasting = open_local_store(
        Settings.from_environment({"FORECAST_AUTOTUNE_DIR": str(own_settings)}, mode="forecast")
    )
    assert forecasting.decision(a_job()) is None
    forecasting.note_pending(a_job(key={"n": 7}), "mode forecast")
    forecasting.note_pending(a_job(), "mode forecast")  # it is measured, though this mode may not know
    assert [p.tuning_key.workload.key for p in StoreFile(own_settings).pending()] == [{"n": 7}]


def test_a_key_that_cannot_be_written_spoils_nothing_else(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.note_pending(a_job(features={"grid": float("inf")}), "mode cached")
        store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job()) == a_decision(a_job())
    assert StoreFile(tmp_path).pending() == []


def test_the_child_of_a_fork_notes_for_itself(tmp_path: Path) -> None:
    import os

    store = SqliteStore(tmp_path)
    store.note_pending(a_job(), "mode cached")
    child = os.fork()
    if not child:
        store.note_pending(a_job(), "mode cached")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.close()
    assert [p.met for p in StoreFile(tmp_path).pending()] == [2]
