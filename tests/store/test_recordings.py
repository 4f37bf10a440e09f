from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contracts.store_contract import HARDWARE, SPACE, a_job, a_measurement

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import StoreWarning
from forecast_autotune.store import recordings
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

STUB = Hardware(kind="stub", name=HARDWARE.name, capability="9.0", units=132)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store") as opened:
        yield opened


def by_warps(config: Config) -> float:
    return 10.0 if config["num_warps"] == 4 else 20.0


def fill(store: SqliteStore, job: Job, us: Callable[[Config], float] = by_warps, run: str = "run") -> None:
    for config in job.space:
        store.record_outcome(job, run, config, a_measurement(us(config)), None)


def asking(**changes: object) -> Job:
    """A job at a key where nothing was measured."""
    return a_job(key={"n": 99}, **changes)  # type: ignore[arg-type]


def told(store: SqliteStore, job: Job) -> list[tuple[str, str, float | None, int]]:
    found = store.knob_effects(job)
    return [(s.program, s.change, s.speedup and round(s.speedup, 3), s.tried) for s in found if s.knob == "num_warps"]


def test_knob_effects_come_from_other_keys_and_not_from_this_one(store: SqliteStore) -> None:
    assert store.knob_effects(a_job()) == []
    fill(store, a_job(key={"n": 1}))
    fill(store, a_job())
    assert told(store, a_job()) == [("rmsnorm", "num_warps 2 -> 4", 2.0, 3)]
    assert len(store.knob_effects(a_job(), most=1)) == 1


def test_other_programs_come_after_the_jobs_own(store: SqliteStore) -> None:
    fill(store, a_job(name="other"), lambda c: by_warps(c) ** 3)
    fill(store, a_job())
    assert [program for program, *_ in told(store, asking())] == ["rmsnorm", "other"]


def test_rehearsals_teach_themselves_alone(store: SqliteStore) -> None:
    fill(store, a_job())
    assert store.knob_effects(asking(hardware=STUB)) == []
    fill(store, a_job(hardware=STUB), lambda c: 100 / by_warps(c))
    assert told(store, asking(hardware=STUB)) == [("rmsnorm", "num_warps 4 -> 2", 2.0, 3)]
    assert told(store, asking()) == [("rmsnorm", "num_warps 2 -> 4", 2.0, 3)]


def test_a_configs_newest_outcome_counts_and_transient_failures_do_not(store: SqliteStore) -> None:
    fill(store, a_job(), lambda _: 10.0, run="old")
    fill(store, a_job(), run="new")
    transient = Failure(stage="launch", message="no memory", transient=True)
    store.record_outcome(a_job(), "newest", SPACE[1], transient, None)
    assert told(store, asking()) == [("rmsnorm", "num_warps 2 -> 4", 2.0, 3)]


def test_so_many_outcomes_are_read_at_most_the_programs_own_first(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, a_job())
    for number in range(5):
        fill(store, a_job(name=f"other {number}"))
    monkeypatch.setattr(recordings, "NEWEST", 2 * len(SPACE))
    assert [program for program, *_ in told(store, asking())] == ["rmsnorm", "other 4"]


def test_a_row_that_is_damaged_is_passed_over(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, a_job())
    fill(store, a_job(key={"n": 1}))
    fill(store, a_job(key={"n": 2}))
    connection = sqlite3.connect(tmp_path / "store" / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE outcome SET value = '{}' WHERE id = 1")
    connection.execute("INSERT INTO text (id, value) VALUES (1000, '[')")
    connection.execute("UPDATE outcome SET config = 1000 WHERE id = 7")
    connection.execute("UPDATE workload SET value = '[]' WHERE value LIKE '%\"n\":2%'")
    connection.close()
    with pytest.warns(StoreWarning, match="passes over"):
        found = told(store, asking())
    assert found == [("rmsnorm", "num_warps 2 -> 4", 2.0, 4)]


def test_a_packs_outcomes_count_too(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "one") as store:
        fill(store, a_job(key={"n": 1}))
    StoreFile(tmp_path / "one").export(tmp_path / "pack")
    with SqliteStore(tmp_path / "two", packs=[tmp_path / "pack"]) as store:
        assert told(store, a_job()) == [("rmsnorm", "num_warps 2 -> 4", 2.0, 3)]


def test_the_command_gets_all_effects_and_filters_match_parts_of_names(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, a_job())
    fill(store, a_job(name="softmax", hardware=Hardware(kind="cuda", name="NVIDIA L4")))
    file = StoreFile(tmp_path / "store")
    assert {s.program for s in file.knob_effects()} == {"rmsnorm", "softmax"}
    assert {s.program for s in file.knob_effects(kernel="SOFT")} == {"softmax"}
    assert {s.hardware for s in file.knob_effects(hardware="h200")} == {"NVIDIA H200 (132 SMs)"}
    assert file.knob_effects(kernel="soft", hardware="h200") == []
