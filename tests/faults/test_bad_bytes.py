"""The store on bytes that no store of ours wrote, and on those of its older versions."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults import whole_use
from faults.fuzz import (
    DEEP,
    HOSTILE_TEXTS,
    JSON_VALUES,
    NUMBERS,
    SEED,
    columns_of,
    damaged,
    fuzz,
    harms,
    in_time,
    refused_by,
)
from faults.ledger import Ledger
from faults.stores import filled, runs_kept, told_by
from hypothesis import strategies as st
from recorded import recording
from toy_prior import following

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import BASES, Decision
from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.outcome import STAGES, Failure, Measurement
from forecast_autotune.errors import InvalidInputError, StoreWarning
from forecast_autotune.evaluation.traces import read_trace, write_trace
from forecast_autotune.features.hardware_sheets import hardware_named
from forecast_autotune.language.answers import Bins, from_log_probabilities, from_text
from forecast_autotune.language.folders import adapter_in
from forecast_autotune.language.labels import as_json, of_labels
from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.settings import PREFIX, Settings
from forecast_autotune.store import encoding, schema
from forecast_autotune.store.jsonl import read_entries
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.prior import prior_text, read_prior

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


def garble_a_name_in_the_schema(path: Path) -> None:
    """SQLite complains of it by that name, which is no text."""
    garbled = (
        path.read_bytes().replace(b"decision", b"d\xbacision").replace(b"CREATE TABLE d\xba", b"CREATE TABXE d\xba")
    )
    path.write_bytes(garbled)


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
        garble_a_name_in_the_schema,
        replace_with_another_programs_database,
    ],
)
def test_a_broken_store_is_set_aside_with_one_warning_and_a_fresh_one_used(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = filled(tmp_path, 40)
    harm(path)
    broken = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.decision(a_job())
            store.record_decision(a_job(key={"n": -1}), a_decision(a_job()))
            store.outcomes(a_job())
            store.related_recordings(a_job())
            store.record_outcome(a_job(), "run", SPACE[1], a_measurement(), None)
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
        store.record_outcome(a_job(key={"n": 0}), "run", SPACE[1], a_measurement(), None)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE outcome SET value = '{\"samples_us\": [NaN]}' WHERE id = 1")
    connection.execute("UPDATE decision SET value = substr(value, 1, 30)")
    connection.close()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.outcomes(a_job(key={"n": 0})) == {SPACE[1]: a_measurement()}
            assert store.decision(a_job()) is None
            store.record_decision(a_job(), a_decision(a_job()))
            assert store.decision(a_job()) == a_decision(a_job())

    assert len(told_by(use)[1]) == 1
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_a_newer_schema_is_left_untouched_and_the_process_uses_memory(tmp_path: Path) -> None:
    path = filled(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.record_decision(a_job(), a_decision(a_job(), SPACE[3]))
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
        assert store.decision(a_job()) == a_decision(a_job(), SPACE[1], run="run-2", model="")
        assert set(store.outcomes(a_job())) == set(SPACE[:3])
        store.record_outcome(a_job(), "run-3", SPACE[3], a_measurement(), None)
        assert set(store.outcomes(a_job())) == set(SPACE[:4])
    connection = sqlite3.connect(tmp_path / "store.sqlite3")
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    connection.close()


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite3")), ids=lambda p: p.stem)
def test_rows_of_an_older_schema_lack_features_and_newer_rows_have_them(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / "store.sqlite3")
    older = int(sample.stem.rpartition("_")[2]) < 3
    before = {} if older else {SPACE[1]: {"programs": 64.0, "waves": 0.484848}}
    only_read = StoreFile(tmp_path)
    detail = only_read.detail(only_read.decisions()[0])
    assert {t.config: t.static_features for t in detail.touched if t.static_features} == before
    assert only_read.unreadable == []
    assert (tmp_path / "store.sqlite3").read_bytes() == sample.read_bytes()
    with SqliteStore(tmp_path) as store:
        elsewhere = a_job(key={"n": 2})
        (recording,) = store.related_recordings(elsewhere)
        assert (set(recording.outcomes), recording.static_features) == (set(SPACE[:3]), before)
        job = replace(a_job(), static_features=[{"programs": float(i)} for i in range(len(SPACE))])
        store.record_outcome(job, "run-3", SPACE[3], a_measurement(), None)
        (recording,) = store.related_recordings(elsewhere)
        assert set(recording.outcomes) == set(SPACE[:4])
        assert recording.static_features == {**before, SPACE[3]: {"programs": 3.0}}


def test_damaged_features_are_reported_and_their_outcome_stays(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(key={"n": 1}), "run", SPACE[0], a_measurement(), None)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute('UPDATE outcome SET described = \'{"programs": "many"}\'')
    connection.close()
    with SqliteStore(tmp_path) as store, pytest.warns(StoreWarning, match="programs 'many': it must be a number"):
        (recording,) = store.related_recordings(a_job())
    assert (recording.outcomes, recording.static_features) == ({SPACE[0]: a_measurement()}, {})


# Whole stores, damaged at random -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something in each of its tables, and the log that it had while it was open."""
    folder = tmp_path_factory.mktemp("good")
    store = whole_use.fill(folder)
    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("UPDATE decision SET hits = hits + 1")
    for ending in ("-wal", "-shm"):
        shutil.copy(f"{store}{ending}", folder / f"kept{ending}")
    connection.close()
    return store


def used(folder: Path) -> list[str]:
    """Look at a store, tune with it, look again; the warnings that tuning gave, which are few and of one line."""
    whole_use.look(folder)
    told = whole_use.tune(folder)
    whole_use.look(folder)
    assert len(told) <= 2, told
    assert all(text.isprintable() and len(text) <= 2_000 for text in told), told
    return told


def used_and_kept(folder: Path) -> None:
    """And what was recorded meanwhile is on disk, but where the file's header forbids that or names a newer version."""
    told = used(folder)
    store = folder / "store.sqlite3"
    header = store.read_bytes()[:100]
    if header[18] > 2 or int.from_bytes(header[60:64], signed=True) > schema.VERSION:
        assert "is kept in memory alone" in told[-1]
        return
    connection = sqlite3.connect(store)
    kept = connection.execute("SELECT count(*) FROM outcome JOIN text ON text.id = run WHERE text.value = 'run-2'")
    assert kept.fetchone() == (1,), "what was recorded afterwards is not on disk"
    connection.close()


def fresh(folder: Path, good: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Path(shutil.copy(good, folder / "store.sqlite3"))


def test_a_store_damaged_anywhere_is_set_aside_or_passed_over(tmp_path: Path, faults: Ledger, good: Path) -> None:
    with faults.case(
        "random bytes, cuts, zeroed and swapped pages in a store and its log",
        tmp_path,
        seen="one warning; the file set aside or its damaged rows passed over, and tuning goes on",
    ) as case:

        def attack(harm: Callable[[bytes], bytes], log: Callable[[bytes], bytes] | None, journal: bytes) -> None:
            store = fresh(case.store, good)
            store.write_bytes(harm(store.read_bytes()))
            if log is not None:
                wal = good.with_name("kept-wal").read_bytes()
                store.with_name(f"{store.name}-wal").write_bytes(log(wal))
                store.with_name(f"{store.name}-shm").write_bytes(log(good.with_name("kept-shm").read_bytes()))
            if journal:
                store.with_name(f"{store.name}-journal").write_bytes(journal)
            used_and_kept(case.store)

        fuzz(case, attack, harms(), st.none() | harms(), st.just(b"") | st.binary(max_size=2_000), short=25, whole=600)


@pytest.mark.thorough
def test_one_bit_flipped_anywhere_is_set_aside_mended_or_passed_over(
    tmp_path: Path, faults: Ledger, good: Path
) -> None:
    with faults.case(
        "one flipped bit, in all that a store's pages hold",
        tmp_path,
        seen="nothing, for indexes are made anew; or one warning: a row passed over, or the file set aside",
    ) as case:
        whole = good.read_bytes()
        held = [place for place, byte in enumerate(whole) if byte]

        def attack(place: int, bit: int) -> None:
            store = fresh(case.store, good)
            harmed = bytearray(whole)
            harmed[place] ^= 1 << bit
            store.write_bytes(harmed)
            used_and_kept(case.store)

        fuzz(case, attack, st.sampled_from(held), st.integers(0, 7), short=25, whole=1_000)


@pytest.mark.parametrize(
    ("name", "at", "bits"),
    [
        pytest.param("text", 10, 1, id="where a row stands in its page"),
        pytest.param("outcome", 4, 4, id="how many rows a page has"),
        pytest.param("workload", 11, 64, id="where the other row of two stands"),
        pytest.param("sqlite_autoindex_outcome_1", -29, 8, id="a key of an index"),
        pytest.param("sqlite_autoindex_outcome_1", -18, 2, id="another key of it"),
    ],
)
def test_what_is_recorded_beside_a_flipped_bit_is_found_again(
    tmp_path: Path, good: Path, name: str, at: int, bits: int
) -> None:
    """SQLite reads on over such bits: what was added then was lost without a word, or came back as another's."""
    store = fresh(tmp_path / "store", good)
    begin, end = page_of(store, name)
    found = bytearray(store.read_bytes())
    found[(begin if at >= 0 else end) + at] ^= bits
    store.write_bytes(found)
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() != ("ok",)
    connection.close()
    used_and_kept(store.parent)
    assert StoreFile(store.parent).check() == []


@pytest.mark.parametrize("bit", [0, 2, 7])
def test_an_unwritable_header_is_reported_and_new_outcomes_stay_in_memory(tmp_path: Path, good: Path, bit: int) -> None:
    store = fresh(tmp_path / "store", good)
    found = bytearray(store.read_bytes())
    found[18] ^= 1 << bit
    store.write_bytes(found)
    (warning,) = used(store.parent)
    assert "readonly" in warning
    assert store.read_bytes() == found
    assert StoreFile(store.parent).check() == ["its header forbids writing to it"]


def test_a_flipped_bit_in_a_text_costs_the_rows_that_name_it_alone(tmp_path: Path, good: Path) -> None:
    store = fresh(tmp_path / "store", good)
    before = outcomes_in(store)
    for name in ("text", "sqlite_autoindex_text_1"):
        store = fresh(tmp_path / "store", good)
        found = bytearray(store.read_bytes())
        found[found.index(SPACE[3].text.encode(), *page_of(store, name))] ^= 1
        store.write_bytes(found)
        assert StoreFile(store.parent).check()
        used(store.parent)
        assert StoreFile(store.parent).check() == []
        assert list(store.parent.glob("*.corrupt*")) == []
        kept = outcomes_in(store)
        assert {config: outcome for config, outcome in before.items() if config != SPACE[3]}.items() <= kept.items()


def page_of(store: Path, name: str) -> tuple[int, int]:
    """Where the first page of a table or an index begins and ends."""
    connection = sqlite3.connect(store)
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    connection.close()
    return (page - 1) * size, page * size


def outcomes_in(store: Path) -> dict[Config, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with SqliteStore(store.parent) as opened:
            return dict(opened.outcomes(whole_use.JOB))


HOSTILE_VALUES: st.SearchStrategy[Any] = (
    st.none() | HOSTILE_TEXTS.filter(str.isascii) | NUMBERS | st.binary(max_size=9) | JSON_VALUES.map(json.dumps)
)


@pytest.mark.thorough
def test_any_value_in_any_column_is_passed_over(tmp_path: Path, faults: Ledger, good: Path) -> None:
    with faults.case(
        "hostile values in each column of a healthy store",
        tmp_path,
        seen="one warning that names the row and the value; the rest is used",
    ) as case:
        columns = [place for place in columns_of(good) if place[0] != "sqlite_sequence"]  # SQLite's own; see SCHEMAS

        def attack(place: tuple[str, str], value: Any, all_rows: bool) -> None:
            table, column = place
            connection = sqlite3.connect(fresh(case.store, good), isolation_level=None)
            some = "1" if all_rows else f"{column} = (SELECT min({column}) FROM {table})"  # noqa: S608
            try:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {some}", (value,))  # noqa: S608
            except sqlite3.IntegrityError:
                return  # the schema itself keeps such a value out
            finally:
                connection.close()
            used(case.store)
            assert not list(case.store.glob("*.corrupt-*")), "a row that does not decode is no broken file"

        every = ["x", b"\xff", None, math.inf, "{}", DEEP]
        for place in columns:
            for value in every[: case.many(short=1, whole=len(every))]:
                with case.attempt(), in_time():
                    attack(place, value, True)
        fuzz(case, attack, st.sampled_from(columns), HOSTILE_VALUES, st.booleans(), short=20, whole=800)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
SCHEMAS = {
    "an endless view for a table": "DROP TABLE decision; CREATE VIEW decision AS "  # noqa: S608
    f"{ENDLESS} SELECT i AS id, 'x' AS digest, "
    "'x' AS workload, 'x' AS hardware, 'x' AS toolchain, 'x' AS space, 'x' AS value, 1.0 AS decided_at, NULL AS "
    "superseded_at, 0 AS hits, NULL AS hit_at FROM n",
    "a trigger that never ends": "CREATE TRIGGER t BEFORE INSERT ON outcome BEGIN "  # noqa: S608
    f"INSERT INTO answer (digest, value, kept_at) {ENDLESS} SELECT i, 'x', 0 FROM n; END",
    "a trigger that drops what is recorded": "CREATE TRIGGER t BEFORE INSERT ON outcome BEGIN SELECT RAISE(IGNORE); END",
    "a computed column": "ALTER TABLE decision ADD COLUMN more AS (length(hex(zeroblob(200000000))))",
    "an index that computes": "CREATE INDEX i ON outcome (length(hex(zeroblob(200000000))))",
    "an index that keeps rows out": "CREATE UNIQUE INDEX i ON outcome (id, run)",
    "an index of some rows": "CREATE INDEX i ON outcome (run) WHERE length(hex(run)) > 2",
    "an index that computes, beside one that does not": "CREATE INDEX h ON outcome (run); CREATE INDEX i ON outcome "
    "(run, length(hex(zeroblob(200000000))))",
    "an index that is missing": "DROP INDEX program_by_name",
    "row numbers that are used up": "UPDATE sqlite_sequence SET seq = 9223372036854775807",
    "a virtual table": "DROP TABLE answer; CREATE VIRTUAL TABLE answer USING fts5(id, digest, value, kept_at)",
    "a column that is missing": "ALTER TABLE outcome DROP COLUMN described",
    "a column too many": "ALTER TABLE outcome ADD COLUMN more TEXT NOT NULL DEFAULT 'x'",
    "a table without its constraints": "CREATE TABLE o AS SELECT * FROM outcome; DROP TABLE outcome; "
    "ALTER TABLE o RENAME TO outcome",
    "schema 0": "PRAGMA user_version = 0",
    "schema -1": "PRAGMA user_version = -1",
    "schema -2147483648": "PRAGMA user_version = -2147483648",
    "an older schema's number": "PRAGMA user_version = 2",
    "another program's number": "PRAGMA application_id = 1",
}


# In a process of its own, for SQLite on an endless view heeds no alarm.
LOOKS = """
import json, sys
from faults.whole_use import COMMANDS, run_command
print(json.dumps([run_command([*command, "--dir", sys.argv[1]]) for command in COMMANDS[:4]]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("harm", SCHEMAS)
def test_a_database_made_otherwise_is_set_aside_and_never_hangs(
    tmp_path: Path, faults: Ledger, good: Path, harm: str
) -> None:
    with faults.case(
        "views without end, triggers, computed columns, other tables and other schema numbers in a store",
        tmp_path,
        seen="one warning; the file set aside and a fresh one begun",
    ) as case:
        connection = sqlite3.connect(fresh(case.store, good), isolation_level=None)
        connection.executescript(SCHEMAS[harm])
        connection.close()
        before = (case.store / "store.sqlite3").read_bytes()
        with case.attempt():
            looked = [sys.executable, "-c", LOOKS, str(case.store)]
            done = subprocess.run(looked, env=case.environment, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stderr
            answers = json.loads(done.stdout)
            assert [code for code, _, _ in answers] == [2] * 4
            assert all("is no store of this package: move it away" in said for _, _, said in answers)
            assert (case.store / "store.sqlite3").read_bytes() == before, "looking changes nothing"
        with case.attempt():
            use = [sys.executable, "-m", "faults.whole_use", str(case.store)]
            done = subprocess.run(use, env=case.environment, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stderr
            (told,) = json.loads(done.stdout)
            assert "is broken" in told
            assert "in it is not as this package makes it" in told or "not a store of this package" in told
        (aside,) = case.store.glob("store.sqlite3.corrupt-*")
        assert aside.name in told
        assert aside.read_bytes() == before
        assert runs_kept(case.store) == ["run-2"]


def test_a_store_to_which_its_owner_adds_an_index_is_used_as_it_is(tmp_path: Path) -> None:
    connection = sqlite3.connect(filled(tmp_path))
    connection.execute("CREATE INDEX mine ON outcome (recorded_at DESC, run COLLATE NOCASE)")
    connection.execute('CREATE INDEX "my ""own"" index" ON decision (decided_at)')
    connection.close()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.decision(a_job()) == a_decision(a_job())
            store.record_outcome(a_job(), "run-2", SPACE[0], a_measurement(), None)

    assert told_by(use)[1] == []
    assert sorted(runs_kept(tmp_path)) == ["run", "run-2"]
    assert StoreFile(tmp_path).check() == []


@pytest.mark.parametrize("number", [schema.VERSION + 1, 2**31 - 1])
def test_a_newer_store_is_left_as_it_is(tmp_path: Path, faults: Ledger, good: Path, number: int) -> None:
    with faults.case(
        "a store of a newer version", tmp_path, seen="one warning; the file left untouched, and tuning kept in memory"
    ) as case:
        connection = sqlite3.connect(fresh(case.store, good), isolation_level=None)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("CREATE TABLE of_the_future (x)")
        connection.close()
        before = (case.store / "store.sqlite3").read_bytes()
        with case.attempt(), in_time():
            (told,) = whole_use.tune(case.store)
            assert f"it has schema {number}, this version reads {schema.VERSION}" in told
            code, _, said = whole_use.run_command(["list", "--dir", str(case.store)])
            assert code == 2
            assert f"has schema {number}" in said
        assert (case.store / "store.sqlite3").read_bytes() == before


# Files by others ---------------------------------------------------------------------------------------------------------


def exported(folder: Path) -> list[dict[str, Any]]:
    whole_use.fill(folder / "source")
    StoreFile(folder / "source").export(folder / "store.jsonl")
    return [json.loads(line) for line in (folder / "store.jsonl").read_text().splitlines()]


def own_trace(folder: Path) -> list[dict[str, Any]]:
    write_trace(recording(), folder / "own.jsonl")
    return [json.loads(line) for line in (folder / "own.jsonl").read_text().splitlines()]


T4 = {
    "schema_version": "1.0",
    "metadata": {"timeunit": "ms"},
    "results": [
        {"configuration": {"a": 1}, "times": {"runtimes": [1.0, 2.0], "compilation": 3.0}, "invalidity": "correct"},
        {"configuration": {"a": 2}, "times": {}, "invalidity": "compile"},
    ],
}
KERNEL_TUNER = {
    "device_name": "NVIDIA A100", "kernel_name": "k", "problem_size": [4096, 1], "tune_params_keys": ["x"],
    "tune_params": {"x": [1, 2]}, "objective": "time", "schema_version": "1.0.0",
    "cache": {
        "1": {"x": 1, "time": 1.0, "times": [1.0, 1.1], "compile_time": 3.0},
        "2": {"x": 2, "time": "CompilationFailedConfig"},
    },
}  # fmt: skip


def text_of(lines: Any) -> str:
    return "\n".join(json.dumps(line) for line in (lines if isinstance(lines, list) else [lines]))


def read_all(path: Path) -> None:
    """Read a file as all it may be taken for, and go on with what was read."""
    with refused_by(InvalidInputError, naming=[str(path)]):
        read_prior(path)
    with refused_by(InvalidInputError, naming=[str(path)]):
        found = read_trace(path)
        write_trace(found, path.with_name("again.jsonl"))
        assert read_trace(path.with_name("again.jsonl")).outcomes == found.outcomes
    with refused_by(InvalidInputError, naming=[str(path)]):
        read_entries(path)
        folder = path.with_name("imported")
        shutil.rmtree(folder, ignore_errors=True)
        StoreFile(folder).import_files([path])
        assert whole_use.tune(folder) == []
        whole_use.look(folder)


def test_a_trace_or_pack_with_anything_in_it_is_read_or_refused_by_name(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "traces and exported stores with values exchanged, taken out and renamed",
        tmp_path,
        seen="an error that names the file, the line and the value",
    ) as case:
        case.folder.joinpath("made").mkdir()
        lines, own = exported(case.folder / "made"), own_trace(case.folder / "made")
        documents = st.one_of(
            damaged(lines).map(text_of), damaged(own).map(text_of), damaged(T4).map(json.dumps),
            damaged(KERNEL_TUNER).map(json.dumps), HOSTILE_TEXTS,
        )  # fmt: skip
        path = case.folder / "kernel_campaign_A100_T4.json"

        def attack(document: str, packed: bool) -> None:
            data = document.encode(errors="surrogatepass")
            path.write_bytes(gzip.compress(data, 1) if packed else data)
            read_all(path)

        fuzz(case, attack, documents, st.booleans(), short=150, whole=5_000)


def test_a_trace_or_pack_of_damaged_bytes_is_read_or_refused_by_name(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "traces and exported stores with random bytes, cut off, in gzip or not",
        tmp_path,
        seen="an error that names the file and says to copy it again",
    ) as case:
        case.folder.joinpath("made").mkdir()
        texts = [text_of(exported(case.folder / "made")), text_of(own_trace(case.folder / "made")), json.dumps(T4),
                 json.dumps(KERNEL_TUNER, indent=1)]  # fmt: skip
        path = case.folder / "kernel_campaign_A100_T4.json"

        def attack(text: str, harm: Callable[[bytes], bytes], kind: str) -> None:
            data = text.encode("utf-16" if kind == "utf-16" else "utf-8-sig" if kind == "bom" else "utf-8")
            path.write_bytes(harm(gzip.compress(data, 1) if kind == "gzip" else data))
            read_all(path)

        kinds = st.sampled_from(["plain", "plain", "gzip", "utf-16", "bom"])
        fuzz(case, attack, st.sampled_from(texts), harms(), kinds, short=150, whole=5_000)


def a_bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1_100):
            file.write(bytes(2**20))


def a_long_line(path: Path) -> None:
    path.write_text('{"schema": "' + "x" * 10**8 + '"}')


def a_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**33)


ODD_FILES: dict[str, Callable[[Path], None]] = {
    "is no plain file": os.mkfifo,
    "Is a directory": Path.mkdir,
    "is no plain file: copy": lambda path: path.symlink_to("/dev/zero"),
    "MiB": a_bomb,
    "split it into several files": a_large_file,
    "has the schema 'xxx": a_long_line,
    "is not an exported store": lambda path: path.write_bytes(b"\0" * 1000),
    "No such file": lambda path: path.symlink_to(path),
    "": lambda path: path.write_bytes(b""),
}
MAX_MEMORY = 3 * 2**30


@pytest.mark.thorough
@pytest.mark.parametrize("said", ODD_FILES)
def test_an_endless_or_unusual_file_is_refused_in_bounded_time_and_memory(
    tmp_path: Path, faults: Ledger, said: str
) -> None:
    with faults.case(
        "pipes, devices, folders, gzip bombs, endless lines and files of 8 GiB for a trace, an import and a pack",
        tmp_path,
        seen="an error that names the file; for a pack one warning, and it is left out",
    ) as case:
        path = case.folder / "given.jsonl"
        ODD_FILES[said](path)
        expected = {"No such file": "Too many levels", "Is a directory": "is a folder"}.get(said, said)
        for command in (["import", str(path)], ["replay", str(path)]):
            with case.attempt():
                done = subprocess.run(
                    [sys.executable, "-m", "forecast_autotune", *command],
                    env=case.environment, capture_output=True, text=True, timeout=120, preexec_fn=limit_memory,
                )  # fmt: skip
                assert done.returncode == 2, done.stderr
                assert "Traceback" not in done.stderr
                assert str(path) in done.stderr
                assert len(done.stderr) < 2_000
                if command[0] == "import":
                    assert expected in done.stderr
        with case.attempt(), in_time(120):
            store = SqliteStore(case.store, packs=[path])
            _, told = told_by(lambda: store.decision(a_job()))
            store.close()
            assert len(told) == 1
            assert told[0].startswith(f"pack {path} is left out")


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def test_parsers_fuzzed_by_coverage_raise_only_their_documented_errors(tmp_path: Path, faults: Ledger) -> None:
    pytest.importorskip("atheris", reason="needs the extra 'fuzz'")
    with faults.case(
        "bytes that grow towards each line of the parsers (atheris)", tmp_path, seen="the errors of the rows above"
    ) as case:
        corpus = case.folder / "corpus"
        corpus.mkdir()
        examples = [
            text_of(exported(case.folder)),
            text_of(own_trace(case.folder)),
            json.dumps(T4),
            json.dumps(KERNEL_TUNER),
        ]
        for number, text in enumerate(
            [*examples, "16,30s", "reasoned,60s", "http://[::1]:8000/#x", "cdiv(M, 2), max(1, N)"]
        ):
            (corpus / f"example-{number}").write_text(text)
        seed = int(SEED or 8) if SEED or not case.whole else random.randrange(2**31)
        print(f"FAULT_SEED={seed}")
        seconds = case.many(short=5, whole=300)
        with case.attempt():
            done = subprocess.run(
                [sys.executable, "-m", "faults.fuzz_parsers", str(corpus), str(seconds), str(seed)],
                env=case.environment, capture_output=True, text=True, timeout=seconds + 120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4_000:]
        tried = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        assert tried is not None
        case.row.attempts += int(tried[1]) - 1


# Settings, answers, models -----------------------------------------------------------------------------------------------

VARIABLES = (
    "BUDGET", "MODE", "DIR", "PACKS", "REMOTE_STORE", "SURROGATE", "ISOLATE", "TOOLCHAIN", "SYNC", "REMOTE_MODEL",
    "ANSWER", "INDUCTOR", "MODEL", "ONLINE_COST", "ONLINE_CPU",
)  # fmt: skip
SETTING_TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from("0123456789.,%sminall reasonedlgitvhf:/[]@#?~\u0661\u00b2\n"), max_size=16),
    st.sampled_from(
        ["~nobody-of-this-name/x", "http://[", "http://a:99999999", "http://[::1]:x", "hf:", "vllm:\n", "9" * 5000, "1e999",
         "9" * 400 + "s", "reasoned," + "9" * 400 + "s", "\u0661\u0666", "\u00b2%", "./\0", "x" * 100_000]
    ),
)  # fmt: skip


def test_a_setting_with_any_text_is_read_or_refused_by_name(tmp_path: Path, faults: Ledger) -> None:
    assert {PREFIX + name for name in VARIABLES} == {PREFIX + name.upper() for name in Settings.__dataclass_fields__}
    with faults.case(
        "any text for each FORECAST_AUTOTUNE_ variable",
        tmp_path,
        seen="an error that names the variable, the value and what is accepted",
    ) as case:

        def attack(name: str, text: str) -> None:
            settings = Settings()
            with refused_by(InvalidInputError, naming=[PREFIX + name, repr(text.strip())[1:-1][:20]]):
                settings = Settings.from_environment({PREFIX + name: text})
            if settings.budget is not None:
                budget = Budget(settings.budget)
                budget.start(1000)
                assert budget.configs_left >= 0
                assert budget.seconds_left >= 0
            assert math.isfinite(settings.answer.seconds)
            for path in (settings.dir, *settings.packs):
                with suppress(OSError):  # such as a name that is too long
                    path.exists()

        fuzz(case, attack, st.sampled_from(VARIABLES), SETTING_TEXTS, short=400, whole=30_000)


def is_a_distribution(said: Bins) -> bool:
    return (
        len(said.probabilities) == 8
        and all(0 <= p <= 1 for p in said.probabilities)
        and math.isclose(math.fsum(said.probabilities), 1.0)
        and 0 <= said.raw_sum < math.inf
    )


def test_a_models_answer_is_a_distribution_or_none_with_a_reason(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "any text or number as a language model's answer",
        tmp_path,
        seen="nothing; the model abstains with the reason, in `show`",
    ) as case:
        answer = {"reasoning": "so", **dict.fromkeys("ABCDEFGH", 12)}
        texts = damaged(answer).map(json.dumps) | HOSTILE_TEXTS | st.text(max_size=20)
        numbers = st.lists(NUMBERS | st.floats() | st.integers() | JSON_VALUES, min_size=7, max_size=9)

        def attack(text: str, values: list[Any]) -> None:
            labels = list(range(len(values)))
            read = of_labels(dict(enumerate(values)), labels)
            said = [from_text(text), from_text(as_json(text))]
            said.append(read if isinstance(read, Unanswered) else from_log_probabilities(read))
            for one in said:
                assert one.reason if isinstance(one, Unanswered) else is_a_distribution(one)

        fuzz(case, attack, texts, numbers, short=300, whole=10_000)


def test_a_shipped_model_or_adapter_with_anything_in_it_is_refused_by_name(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "a damaged model of the learned surrogate, or description of an adapter",
        tmp_path,
        seen="an error that names the file",
    ) as case:
        small = json.loads(prior_text(following(trees=1), card={}))
        prior, adapter = case.folder / "prior.json", case.folder / "adapter_config.json"

        def attack(model: Any, description: Any) -> None:
            prior.write_text(json.dumps(model))
            adapter.write_text(json.dumps(description))
            with refused_by(InvalidInputError, naming=[str(prior)]):
                read_prior(prior)
            with refused_by(ModelError, naming=[str(adapter)]):
                adapter_in(str(case.folder))

        description = {"base_model_name_or_path": "x", "r": 8, "rank_pattern": {"a": 4}}
        fuzz(case, attack, damaged(small), damaged(description), short=100, whole=3_000)


# Nouns there and back ----------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=8)
KNOBS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXT |
                        st.floats(allow_nan=False, allow_infinity=False), max_size=4).map(Config)  # fmt: skip
SECONDS = st.floats(0, 1e9)
TIMES = st.floats(1e-9, 1e12)
OUTCOMES = st.one_of(
    st.builds(Failure, stage=st.sampled_from(STAGES), message=TEXT, cost_s=SECONDS, crashed=st.booleans(),
              transient=st.booleans()),
    st.builds(Measurement, samples_us=st.lists(TIMES, min_size=1, max_size=4).map(tuple), compile_s=SECONDS, run_s=SECONDS,
              clock_mhz=st.none() | TIMES, temperature_c=st.none() | st.floats(-50, 150)),
)  # fmt: skip
BELLS = st.builds(Normal, st.floats(-60, 60), st.floats(0, 20), st.floats(0, 1), TEXT)
FORECASTS = st.one_of(
    st.none(),
    st.builds(Abstention, TEXT, TEXT),
    st.builds(Forecast, st.lists(BELLS, min_size=1, max_size=3).map(tuple), TEXT, st.floats(0, 1), st.none() | TIMES,
              st.floats(0.1, 10)),
)  # fmt: skip
COUNTS = st.integers(0, 10**9)
DECISIONS = st.builds(
    Decision, config=KNOBS, basis=st.sampled_from(BASES), reason=TEXT, equivalents=st.lists(KNOBS, max_size=2).map(tuple),
    space_digest=TEXT, space_size=COUNTS, budget=TEXT, forecast=COUNTS, compiled=COUNTS, tried=COUNTS, failed=COUNTS,
    spent_s=SECONDS, config_us=st.none() | TIMES, default_us=st.none() | TIMES, run=TEXT, decided_at=SECONDS, model=TEXT,
)  # fmt: skip


def there_and_back(value: Any, encode: Callable[[Any], Any], decode: Callable[[Any, str], Any]) -> Any:
    return decode(encoding.from_text(encoding.to_text(encode(value)), "it"), "it")


def test_what_is_written_is_what_is_read(tmp_path: Path, faults: Ledger) -> None:
    with faults.case("any noun written as JSON and read again", tmp_path, seen="nothing") as case:

        def attack(config: Config, outcome: Any, forecast: Any, decision: Decision) -> None:
            assert there_and_back(config, encoding.encode_config, encoding.decode_config) == config
            assert there_and_back(outcome, encoding.encode_outcome, encoding.decode_outcome) == outcome
            assert there_and_back(forecast, encoding.encode_forecast, encoding.decode_forecast) == forecast
            assert there_and_back(decision, encoding.encode_decision, encoding.decode_decision) == decision

        fuzz(case, attack, KNOBS, OUTCOMES, FORECASTS, DECISIONS, short=100, whole=10_000)


DECODERS = (
    encoding.decode_config, encoding.decode_hardware, encoding.decode_toolchain, encoding.decode_forecast,
    encoding.decode_static_features, encoding.decode_outcome, encoding.decode_answer, encoding.decode_decision,
    encoding.decode_program,
)  # fmt: skip


def test_any_json_is_a_noun_or_refused(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "any JSON where a noun is read", tmp_path, seen="an error that names the row and the value"
    ) as case:
        job = a_job()
        examples = [
            encoding.encode_config(SPACE[0]), encoding.encode_hardware(job.hardware),
            encoding.encode_decision(a_decision(job)),
            encoding.encode_outcome(a_measurement()), encoding.encode_workload(job.workload),
            {"source": "x", "components": [[0.0, 1.0, 1.0]], "fail_probability": 0.0},
        ]  # fmt: skip
        values = st.one_of(*map(damaged, examples)).map(json.dumps) | HOSTILE_TEXTS | JSON_VALUES.map(json.dumps)

        def attack(text: str, name: str) -> None:
            for decode in (*DECODERS, lambda value, what: encoding.decode_workload(value, job.workload.program, what)):
                with refused_by(InvalidInputError, naming=["row 7"]):
                    decode(encoding.from_text(text, "row 7"), "row 7")
            hardware_named(name)

        fuzz(case, attack, values, TEXT, short=200, whole=20_000)
