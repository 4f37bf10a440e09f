"""The store on bytes that no store of ours wrote, and on those of its older versions."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.stores import (
    filled,
    runs_kept,
    told_by,
)

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store import schema
from forecast_autotune.store.manage import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

SAMPLES = Path(__file__).parents[1] / "stores"


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_in_the_first_page(path: Path) -> None:
    os.truncate(path, 1000)


def overwrite_with_noise(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def overwrite_the_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


def drop_a_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE decision")
    connection.close()


def replace_with_another_programs_database(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()


@pytest.mark.parametrize(
    "harm",
    [
        cut_in_half,
        cut_in_the_first_page,
        overwrite_with_noise,
        overwrite_the_middle,
        drop_a_table,
        replace_with_another_programs_database,
    ],
)
def test_a_broken_store_is_set_aside_with_one_warning_and_a_fresh_one_begun(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = filled(tmp_path, 40)
    harm(path)
    broken = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.decision(a_job())
            store.decide(a_job(key={"n": -1}), a_decision(a_job()))
            store.outcomes(a_job())
            store.recollect(a_job())
            store.record(a_job(), "run", SPACE[1], a_measurement(), None)
            assert store.decision(a_job(key={"n": -1})) == a_decision(a_job())

    _, told = told_by(use)
    assert len(told) == 1
    assert "is broken" in told[0]
    (aside,) = (p for p in tmp_path.glob("store.sqlite3.corrupt-*") if not p.name.endswith(("-wal", "-shm")))
    assert aside.name in told[0]
    assert aside.stat().st_size >= len(broken)
    assert runs_kept(tmp_path) == ["run"]


def test_an_empty_file_is_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").touch()
    filled(tmp_path)
    assert runs_kept(tmp_path) == ["run"]


def test_a_row_that_does_not_decode_is_passed_over_and_the_rest_is_read(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with SqliteStore(tmp_path) as store:
        store.record(a_job(key={"n": 0}), "run", SPACE[1], a_measurement(), None)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE outcome SET value = '{\"samples_us\": [NaN]}' WHERE id = 1")
    connection.execute("UPDATE decision SET value = substr(value, 1, 30)")
    connection.close()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.outcomes(a_job(key={"n": 0})) == {SPACE[1]: a_measurement()}
            assert store.decision(a_job()) is None
            store.decide(a_job(), a_decision(a_job()))
            assert store.decision(a_job()) == a_decision(a_job())

    assert len(told_by(use)[1]) == 1
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_a_newer_schema_is_left_untouched_and_the_process_goes_on_in_memory(tmp_path: Path) -> None:
    path = filled(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.decide(a_job(), a_decision(a_job(), SPACE[3]))
            assert store.decision(a_job()) == a_decision(a_job(), SPACE[3])

    _, told = told_by(use)
    assert len(told) == 1
    assert "schema 99" in told[0]
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_there_is_a_sample_of_every_schema() -> None:
    assert {p.name for p in SAMPLES.glob("*.sqlite3")} == {
        f"schema_{version}.sqlite3" for version in range(1, schema.VERSION + 1)
    }


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite3")), ids=lambda p: p.stem)
def test_a_store_of_an_older_schema_is_read_and_goes_on(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / "store.sqlite3")
    assert [s.decision.run for s in StoreFile(tmp_path).decisions(superseded=True)] == ["run-2", "run-1"]
    assert (tmp_path / "store.sqlite3").read_bytes() == sample.read_bytes()
    with SqliteStore(tmp_path) as store:
        assert store.decision(a_job()) == a_decision(a_job(), SPACE[1], run="run-2")
        assert set(store.outcomes(a_job())) == set(SPACE[:3])
        store.record(a_job(), "run-3", SPACE[3], a_measurement(), None)
        assert set(store.outcomes(a_job())) == set(SPACE[:4])
    connection = sqlite3.connect(tmp_path / "store.sqlite3")
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    connection.close()


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite3")), ids=lambda p: p.stem)
def test_rows_of_an_older_schema_tell_nothing_of_their_configs_and_new_ones_beside_them_do(
    tmp_path: Path, sample: Path
) -> None:
    shutil.copy(sample, tmp_path / "store.sqlite3")
    older = int(sample.stem.rpartition("_")[2]) < 3
    before = {} if older else {SPACE[1]: {"programs": 64.0, "waves": 0.484848}}
    only_read = StoreFile(tmp_path)
    detail = only_read.detail(only_read.decisions()[0])
    assert {t.config: t.described for t in detail.touched if t.described} == before
    assert only_read.unreadable == []
    assert (tmp_path / "store.sqlite3").read_bytes() == sample.read_bytes()
    with SqliteStore(tmp_path) as store:
        elsewhere = a_job(key={"n": 2})
        (recording,) = store.recollect(elsewhere)
        assert (set(recording.outcomes), recording.described) == (set(SPACE[:3]), before)
        job = replace(a_job(), described=[{"programs": float(i)} for i in range(len(SPACE))])
        store.record(job, "run-3", SPACE[3], a_measurement(), None)
        (recording,) = store.recollect(elsewhere)
        assert set(recording.outcomes) == set(SPACE[:4])
        assert recording.described == {**before, SPACE[3]: {"programs": 3.0}}


def test_a_description_that_is_damaged_is_told_and_its_outcome_stays(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record(a_job(key={"n": 1}), "run", SPACE[0], a_measurement(), None)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute('UPDATE outcome SET described = \'{"programs": "many"}\'')
    connection.close()
    with SqliteStore(tmp_path) as store, pytest.warns(StoreWarning, match="programs 'many': it must be a number"):
        (recording,) = store.recollect(a_job())
    assert (recording.outcomes, recording.described) == ({SPACE[0]: a_measurement()}, {})
