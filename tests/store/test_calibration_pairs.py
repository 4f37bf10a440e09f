from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_job, a_measurement

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.store.calibration_pairs import MOST, NEWEST
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore


def said(mean: float) -> Forecast:
    return Forecast.normal(mean, 0.3, source="s")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path) as opened:
        yield opened


def test_a_pair_is_a_forecast_and_the_speedup_over_the_default(store: SqliteStore) -> None:
    job = a_job()
    store.record_outcome(job, "run", SPACE[0], a_measurement(20.0), said(0.0))
    store.record_outcome(job, "run", SPACE[1], a_measurement(10.0), said(0.4))
    store.record_outcome(job, "run", SPACE[2], a_measurement(40.0), said(0.5))
    store.record_outcome(job, "run", SPACE[3], Failure(stage="launch", message="no"), said(0.6))
    store.record_outcome(job, "run", SPACE[4], a_measurement(), Abstention("s", "no idea"))
    store.record_outcome(job, "run", SPACE[5], a_measurement(), None)
    assert store.calibration_pairs("cuda") == [(said(0.6), -math.inf), (said(0.5), -1.0), (said(0.4), 1.0)]


def test_what_failed_for_no_fault_of_its_own_is_no_pair(store: SqliteStore) -> None:
    store.record_outcome(a_job(), "run", SPACE[0], a_measurement(), None)
    store.record_outcome(a_job(), "run", SPACE[1], Failure(stage="launch", message="memory", transient=True), said(0.1))
    assert store.calibration_pairs("cuda") == []


def test_without_the_defaults_time_only_failures_are_pairs(store: SqliteStore) -> None:
    store.record_outcome(a_job(), "run", SPACE[0], Failure(stage="launch", message="no"), said(0.0))
    store.record_outcome(a_job(), "run", SPACE[1], a_measurement(), said(0.1))
    store.record_outcome(a_job(), "run", SPACE[2], Failure(stage="compile", message="no"), said(0.2))
    assert store.calibration_pairs("cuda") == [(said(0.2), -math.inf)]


def test_a_forecast_made_after_its_config_was_timed_has_seen_the_answer(store: SqliteStore) -> None:
    for run, mean in (("one", 0.4), ("two", 1.0)):
        store.record_outcome(a_job(), run, SPACE[0], a_measurement(20.0), said(0.0))
        store.record_outcome(a_job(), run, SPACE[1], a_measurement(10.0), said(mean))
    assert store.calibration_pairs("cuda") == [(said(0.4), 1.0)]
    store.record_outcome(
        a_job(toolchain=Toolchain(versions={"triton": "4"})), "three", SPACE[1], a_measurement(), said(0.9)
    )
    assert len(store.calibration_pairs("cuda")) == 1, "at another place, where the default has no time"


def test_a_kind_of_hardware_knows_nothing_of_another(store: SqliteStore) -> None:
    for kind, mean in (("cuda", 0.1), ("stub", 0.2), ("replay", 0.3)):
        job = a_job(hardware=Hardware(kind=kind, name=HARDWARE.name))
        store.record_outcome(job, "run", SPACE[0], a_measurement(20.0), None)
        store.record_outcome(job, "run", SPACE[1], a_measurement(10.0), said(mean))
    assert [store.calibration_pairs(kind) for kind in ("cuda", "stub", "cpu")] == [
        [(said(0.1), 1.0)],
        [(said(0.2), 1.0)],
        [],
    ]


def many(store: SqliteStore, count: int) -> None:
    space = Space.grid({"X": list(range(count + 1))})
    job = a_job(space=space)
    with store.connection.lock:
        connection = store.connection.open()
        connection.execute("PRAGMA synchronous = OFF")
    store.record_outcome(job, "run", space[0], a_measurement(10.0), None)
    rows = connection.execute(
        "SELECT workload, hardware, toolchain, run, default_config, value FROM outcome"
    ).fetchall()
    workload, hardware, toolchain, run, default, value = rows[0]
    connection.execute("BEGIN")
    for n in range(1, count + 1):
        config = connection.execute("INSERT INTO text (value) VALUES (?)", (space[n].text,)).lastrowid
        inserted = connection.execute(
            "INSERT INTO outcome (workload, hardware, toolchain, config, run, default_config, value, recorded_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (workload, hardware, toolchain, config, run, default, value, time.time()),
        )
        forecast = f'{{"source":"s","components":[[{n / 10},0.1,1.0]],"fail_probability":0.0,"default_us":null}}'
        connection.execute("INSERT INTO forecast (outcome, value) VALUES (?, ?)", (inserted.lastrowid, forecast))
    connection.execute("COMMIT")


def test_of_many_pairs_some_of_the_newest_are_drawn_the_same_every_time(store: SqliteStore) -> None:
    many(store, NEWEST + 500)
    found = [round(10 * forecast.mean) for forecast, _ in store.calibration_pairs("cuda")]
    assert len(found) == MOST
    assert 500 < min(found) < 550
    assert max(found) > NEWEST + 450
    assert [round(10 * forecast.mean) for forecast, _ in store.calibration_pairs("cuda")] == found


def test_rows_that_do_not_decode_are_passed_over(store: SqliteStore, tmp_path: Path) -> None:
    many(store, 6)
    other = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    other.execute("UPDATE outcome SET value = 'nonsense' WHERE id = 2")
    other.execute("UPDATE outcome SET value = '{\"samples_us\":[]}' WHERE id = 3")
    other.execute('UPDATE outcome SET value = \'{"samples_us":[1,"2"]}\' WHERE id = 4')
    other.execute("UPDATE outcome SET value = '{\"samples_us\":[NaN]}' WHERE id = 5")
    other.execute("UPDATE forecast SET value = '[]' WHERE outcome = 6")
    other.close()
    with pytest.warns(match="passes over"):
        assert [forecast.mean for forecast, _ in store.calibration_pairs("cuda")] == [0.6]


def test_the_command_sees_the_pairs_of_each_kind_that_has_some(store: SqliteStore, tmp_path: Path) -> None:
    assert store.calibration_pairs("cuda") == []
    store.record_outcome(
        a_job(hardware=Hardware(kind="cpu", name="C"), toolchain=TOOLCHAIN), "r", SPACE[0], a_measurement(), None
    )
    store.record_outcome(a_job(), "run", SPACE[0], a_measurement(20.0), None)
    store.record_outcome(a_job(), "run", SPACE[1], a_measurement(10.0), said(0.1))
    assert StoreFile(tmp_path).calibration_pairs_by_kind() == {"cuda": [(said(0.1), 1.0)]}
