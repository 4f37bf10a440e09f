"""Stores of an older schema beside, and after, this one."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement
from faults.older import ROWS, insert, of_schema_4, runs

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store import schema
from forecast_autotune.store.manage import StoreFile
from forecast_autotune.store.opening import connect, is_broken
from forecast_autotune.store.rows import Place
from forecast_autotune.store.sqlite import SqliteStore

SAMPLES = Path(__file__).parents[1] / "stores"


def migrated(directory: Path) -> SqliteStore:
    store = SqliteStore(directory)
    store.decision(a_job())
    return store


def test_what_an_older_version_asks_of_a_newer_store_finds_nothing_and_is_not_taken_for_a_broken_one(
    tmp_path: Path,
) -> None:
    path = of_schema_4(tmp_path, runs(3))
    place = Place.of(a_job()).digests
    with migrated(tmp_path), closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("PRAGMA foreign_keys = ON")
        for table, columns in ROWS.items():
            assert len(older.execute(f"SELECT {columns.strip('()')} FROM {table}").fetchall()) < 4  # noqa: S608  # ours
        of_a_place = "WHERE workload = ? AND hardware = ? AND toolchain = ?"
        assert older.execute(f"SELECT config, described FROM outcome {of_a_place}", place).fetchall() == []  # noqa: S608
        assert older.execute("SELECT 1 FROM outcome JOIN workload ON workload = workload.digest").fetchall() == []
        for values in (
            ("outcome", *place, SPACE[0].text, "older", SPACE[0].text, "{}", 1.0),
            ("decision", "name", *place, "space", "{}", 1.0),
        ):
            with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY") as refused:
                insert(older, *values)
            assert not is_broken(refused.value)


def test_what_names_rows_that_are_gone_is_left_out_and_what_has_a_wrong_type_does_no_harm(tmp_path: Path) -> None:
    path = of_schema_4(tmp_path, runs(6))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE outcome SET workload = 'gone' WHERE id = 1")
        connection.execute("UPDATE outcome SET config = x'ff00' WHERE id = 2")
        connection.execute("UPDATE outcome SET run = 7, recorded_at = 'never' WHERE id = 3")
        connection.execute("UPDATE outcome SET value = x'00' WHERE id = 4")
        connection.execute("INSERT INTO forecast VALUES (99, 'of no outcome')")
        insert(connection, "decision", "another", "gone", HARDWARE.digest, TOOLCHAIN.digest, "space", "{}", 1.0)
    with SqliteStore(tmp_path) as store:
        assert store.decision(a_job()) == a_decision(a_job())
        with pytest.warns(StoreWarning, match="passes over"):
            assert set(store.outcomes(a_job())) == {SPACE[2], SPACE[4], SPACE[5]}
    assert list(tmp_path.glob("*.corrupt*")) == []
    file = StoreFile(tmp_path)
    assert [stored.decision for stored in file.decisions()] == [a_decision(a_job())]
    assert file.unreadable == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_an_export_of_an_older_store_brings_nothing_new_to_it(tmp_path: Path) -> None:
    of_schema_4(tmp_path / "store", runs(6))
    file = StoreFile(tmp_path / "store")
    assert file.export(tmp_path / "pack") == 7
    migrated(tmp_path / "store").close()
    assert file.import_lines([tmp_path / "pack"]) == (0, 0)


@pytest.mark.parametrize("older", range(1, schema.VERSION))
def test_an_older_store_becomes_what_a_new_one_is(tmp_path: Path, older: int) -> None:
    shutil.copy(SAMPLES / f"schema_{older}.sqlite3", tmp_path / "store.sqlite3")
    migrated(tmp_path).close()
    with closing(connect(str(tmp_path / "store.sqlite3"))) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert schema.version_of(connection) == schema.VERSION
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {*schema.TABLES, "sqlite_sequence"}


def test_configs_and_runs_that_no_outcome_names_go_with_a_prune(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record(a_job(), "run-1", SPACE[1], a_measurement(), None)
        store.record(a_job(name="softmax"), "run-2", SPACE[2], a_measurement(), None)
    StoreFile(tmp_path).clear(kernel="softmax")
    with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection:
        kept = {value for (value,) in connection.execute("SELECT value FROM text")}
    assert kept == {SPACE[0].text, SPACE[1].text, "run-1"}
