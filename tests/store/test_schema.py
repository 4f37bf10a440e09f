"""Stores of an older schema beside, and after, this one."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.store_contract import HARDWARE, SPACE, a_decision, a_job, a_measurement
from faults.older import PLACE, ROWS, insert, of_schema_4, runs

from forecast_autotune.core.digest import canonical_json, digest
from forecast_autotune.errors import StoreWarning
from forecast_autotune.store import schema
from forecast_autotune.store.database import connect, is_broken
from forecast_autotune.store.encoding import encode_decision, encode_hardware, encode_program, encode_workload, to_text
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

SAMPLES = Path(__file__).parents[1] / "stores"


def migrated(directory: Path) -> SqliteStore:
    store = SqliteStore(directory)
    store.decision(a_job())
    return store


@pytest.mark.parametrize("version", range(1, schema.VERSION + 1))
def test_a_new_store_is_made_as_one_that_went_through_all_versions(version: int) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        schema._functions(connection)
        for statements in schema.MIGRATIONS[:version]:
            connection.executescript(statements)
        assert schema._made(connection) == schema._made_by(version)


def test_an_older_version_finds_a_newer_store_empty_and_not_broken(
    tmp_path: Path,
) -> None:
    path = of_schema_4(tmp_path, runs(3))
    with migrated(tmp_path), closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("PRAGMA foreign_keys = ON")
        for table, columns in ROWS.items():
            assert len(older.execute(f"SELECT {columns.strip('()')} FROM {table}").fetchall()) < 4  # noqa: S608  # ours
        of_a_place = "WHERE workload = ? AND hardware = ? AND toolchain = ?"
        assert older.execute(f"SELECT config, described FROM outcome {of_a_place}", PLACE).fetchall() == []  # noqa: S608
        assert older.execute("SELECT 1 FROM outcome JOIN workload ON workload = workload.digest").fetchall() == []
        for values in (
            ("outcome", *PLACE, SPACE[0].text, "older", SPACE[0].text, "{}", 1.0),
            ("decision", "name", *PLACE, "space", "{}", 1.0),
        ):
            with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY") as refused:
                insert(older, *values)
            assert not is_broken(refused.value)


def test_rows_naming_missing_rows_are_skipped_and_wrong_types_do_no_harm(tmp_path: Path) -> None:
    path = of_schema_4(tmp_path, runs(6))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE outcome SET workload = 'gone' WHERE id = 1")
        connection.execute("UPDATE outcome SET config = x'ff00' WHERE id = 2")
        connection.execute("UPDATE outcome SET run = 7, recorded_at = 'never' WHERE id = 3")
        connection.execute("UPDATE outcome SET value = x'00' WHERE id = 4")
        connection.execute("INSERT INTO forecast VALUES (99, 'of no outcome')")
        insert(connection, "decision", "another", "gone", *PLACE[1:], "space", "{}", 1.0)
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
    assert file.import_files([tmp_path / "pack"]) == (0, 0)


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
        store.record_outcome(a_job(), "run-1", SPACE[1], a_measurement(), None)
        store.record_outcome(a_job(name="softmax"), "run-2", SPACE[2], a_measurement(), None)
    StoreFile(tmp_path).clear(kernel="softmax")
    with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as connection:
        kept = {value for (value,) in connection.execute("SELECT value FROM text")}
    assert kept == {SPACE[0].text, SPACE[1].text, "run-1"}


def with_description(directory: Path, features: dict[str, int], described: dict[str, float], language: str) -> None:
    """A store of schema 4 whose outcomes hold this description, of a call with these features."""
    path = of_schema_4(directory, runs(2))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table, value in (
            ("workload", encode_workload(a_job(features=features).workload)),
            ("program", {**encode_program(a_job().workload.program), "language": language}),
        ):
            connection.execute(f"UPDATE {table} SET value = ?", (to_text(value),))  # noqa: S608  # ours
        connection.execute("UPDATE outcome SET described = ?", (to_text(described),))


@pytest.mark.parametrize(
    ("features", "described", "language", "kept"),
    [
        ({"x_0": 4096, "n": 4096}, {"programs": 64.0, "flops": 0.0}, "triton", False),
        ({"x_0": 4096, "n": 4096}, {"programs": 64.0, "unique_bytes": 32768.0}, "triton", True),
        ({"n": 4096}, {"programs": 64.0}, "triton", True),
        ({"x_0": 4096}, {"programs": 64.0}, "cuda", True),
    ],
)
def test_descriptions_made_without_a_calls_tensors_are_dropped(
    tmp_path: Path, features: dict[str, int], described: dict[str, float], language: str, kept: bool
) -> None:
    with_description(tmp_path / "store", features, described, language)
    found = StoreFile(tmp_path / "store").recordings()
    assert [set(map(str, r.static_features.values())) for r in found] == [{str(described)} if kept else set()]


def test_hardware_that_differs_in_its_power_limit_alone_becomes_one(tmp_path: Path) -> None:
    path = of_schema_4(tmp_path, runs(1))
    others = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for limit in (600, 0):  # another cap, and a probe that gave no answer
            hardware = replace(HARDWARE, power_limit_w=limit)
            others[limit] = digest(canonical_json({**hardware.identity, "power_limit_w": limit}))
            insert(connection, "hardware", others[limit], to_text(encode_hardware(hardware)))
            place = (PLACE[0], others[limit], PLACE[2])
            decided = a_decision(a_job(), SPACE[3], decided_at=1.7e9 + limit)
            value = to_text(encode_decision(decided))
            insert(
                connection, "decision", digest(*place, SPACE.digest), *place, SPACE.digest, value, decided.decided_at
            )
    with SqliteStore(tmp_path) as store:
        found = {
            limit: store.decision(a_job(hardware=replace(HARDWARE, power_limit_w=limit))) for limit in (700, 600, 0)
        }
    assert {limit: decision and decision.config for limit, decision in found.items()} == {
        700: SPACE[1],
        600: SPACE[3],
        0: SPACE[1],  # the newest
    }


def test_keys_of_an_older_store_are_found_for_other_constexprs(tmp_path: Path) -> None:
    known, asked, other = (
        a_job(key={"n": n, "given constexprs": {"D": size}}) for n, size in ((1, 64), (1, 512), (2, 64))
    )
    with SqliteStore(tmp_path) as store:
        store.record_decision(known, a_decision(known, SPACE[2]))
    with closing(sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)) as older:
        older.execute("DROP INDEX workload_by_shared")
        older.execute("ALTER TABLE workload DROP COLUMN shared")
        older.execute("PRAGMA user_version = 6")
        assert schema.version_of(older) == 6
    with SqliteStore(tmp_path) as store:
        found = store.decision_for_any_constexprs(asked)
        assert found is not None
        assert found.config == SPACE[2]
        assert store.decision_for_any_constexprs(other) is None
