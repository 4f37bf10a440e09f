from __future__ import annotations

import gzip
import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import InvalidInputError, StoreError
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

FORECAST = Forecast.normal(0.4, 0.3, source="roofline", fail_probability=0.1)


def filled(directory: Path) -> StoreFile:
    with SqliteStore(directory) as store:
        for job in (a_job(), a_job(key={"n": 1}), a_job(name="softmax", hardware=Hardware(kind="cuda", name="A100"))):
            store.record_outcome(job, "run-1", SPACE[0], a_measurement(15.0), Abstention("history", "nothing alike"))
            store.record_outcome(job, "run-1", SPACE[1], a_measurement(10.0), FORECAST)
            store.record_outcome(job, "run-1", SPACE[2], Failure(stage="launch", message="no", cost_s=0.5), FORECAST)
            store.record_decision(job, a_decision(job, SPACE[0]))
            store.record_decision(job, a_decision(job, decided_at=time.time()))
    return StoreFile(directory)


def test_decisions_are_listed_newest_first_and_filtered(tmp_path: Path) -> None:
    store = filled(tmp_path)
    found = store.decisions()
    assert [s.tuning_key.workload.program.name for s in found] == ["softmax", "rmsnorm", "rmsnorm"]
    assert len(store.decisions(superseded=True)) == 6
    assert len(store.decisions(kernel="RMS")) == 2
    assert len(store.decisions(hardware="a100")) == 1
    assert len(store.decisions(limit=2)) == 2
    assert store.decisions(kernel="nothing") == []


def test_a_decision_is_found_by_its_digests_start_or_in_its_kernels_name(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (softmax,) = store.find("softmax")
    assert store.find(softmax.digest[:8].upper()) == store.find("SOFT") == [softmax]
    for part in ("rmsnorm", "NORM", "m"):
        assert store.find(part) == store.decisions(kernel=part)
    assert store.find("hardmax") == store.find("") == []


def test_a_kernel_whose_name_is_the_key_goes_before_longer_names(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with SqliteStore(tmp_path) as opened:
        opened.record_decision(a_job(name="log_softmax"), a_decision(a_job(name="log_softmax")))
    (found,) = store.find("softmax")
    assert found.tuning_key.workload.program.name == "softmax"
    assert len(store.find("oftmax")) == 2


def test_a_name_that_is_no_utf8_is_found_nowhere(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.find("\udcff") == []
    assert store.decisions(kernel="\udcff") == []
    held = len(store.decisions())
    assert store.clear(kernel="\udcff").decisions == 0
    assert len(store.decisions()) == held > 0


def test_a_decision_is_listed_with_the_newest_time_of_its_config(tmp_path: Path) -> None:
    store = filled(tmp_path)
    timed = {stored.tuning_key.workload.program.name: outcome for stored, outcome in store.each_timed_decision()}
    assert timed["softmax"] == a_measurement(10.0)
    with SqliteStore(tmp_path) as opened:
        job = a_job(name="untimed")
        opened.record_decision(job, a_decision(job))
    assert [outcome for _, outcome in store.each_timed_decision(kernel="untimed")] == [None]


def test_the_noise_of_timings_is_told_by_hardware(tmp_path: Path) -> None:
    noise = filled(tmp_path).stats().noise
    assert set(noise) == {"NVIDIA H200", "A100"}
    assert noise["A100"].configs == 2
    assert noise["A100"].spread == pytest.approx(a_measurement(10.0).relative_spread)


def test_the_detail_holds_everything_touched_and_what_was_superseded(tmp_path: Path) -> None:
    store = filled(tmp_path)
    detail = store.detail(store.find("softmax")[0])
    assert [t.config for t in detail.touched] == list(SPACE[:3])
    assert [t.forecast for t in detail.touched] == [Abstention("history", "nothing alike"), FORECAST, FORECAST]
    assert detail.log2_speedups == {SPACE[0]: 0.0, SPACE[1]: pytest.approx(0.585, abs=1e-3)}
    assert detail.default == SPACE[0]
    assert [e.decision.config for e in detail.earlier] == [SPACE[0]]


def test_stats_count_what_there_is_and_say_what_was_saved(tmp_path: Path) -> None:
    filled(tmp_path)
    for _ in range(2):
        with SqliteStore(tmp_path) as store:
            store.decision(a_job())
    stats = StoreFile(tmp_path).stats()
    assert (stats.programs, stats.workloads, stats.hardware, stats.toolchains) == (2, 3, 2, 1)
    assert (stats.decisions, stats.superseded) == ({"measured": 3}, 3)
    assert (stats.measurements, stats.failures) == (6, {"launch": 3})
    assert (stats.forecasts, stats.abstentions) == (6, 3)
    assert (stats.hits, stats.saved_by_hits_s, stats.spent_s) == (2, 5.0, 15.0)
    assert stats.saved_by_forecasts_s == pytest.approx(6 * 3 * 2.5 / 3)
    assert sorted(m for _, m in stats.pairs) == pytest.approx([-float("inf")] * 3 + [0.585] * 3, abs=1e-3)


@pytest.mark.parametrize(("known", "saved"), [(1, 2), (3, 0), (6, 0)])
def test_forecasts_save_nothing_on_configs_known_before(tmp_path: Path, known: int, saved: int) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job(), tried=3, known=known, spent_s=2.4))
    assert StoreFile(tmp_path).stats().saved_by_forecasts_s == pytest.approx(saved * 0.8)


def test_a_forecast_made_after_a_config_was_timed_is_no_proof_of_honesty(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(), "run-1", SPACE[0], a_measurement(15.0), None)
        store.record_outcome(a_job(), "run-1", SPACE[1], a_measurement(10.0), FORECAST)
        store.record_outcome(
            a_job(), "run-2", SPACE[1], a_measurement(11.0), Forecast.normal(0.58, 0.001, source="knows")
        )
    assert [f for f, _ in StoreFile(tmp_path).stats().pairs] == [FORECAST]


def test_a_failure_for_no_fault_of_the_config_proves_no_forecast_wrong(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(), "run-1", SPACE[0], a_measurement(15.0), None)
        store.record_outcome(
            a_job(), "run-1", SPACE[1], Failure(stage="launch", message="memory", transient=True), FORECAST
        )
        store.record_outcome(a_job(), "run-1", SPACE[2], Failure(stage="launch", message="no"), FORECAST)
    assert StoreFile(tmp_path).stats().pairs == ((FORECAST, -math.inf),)


def test_prune_removes_what_is_superseded_and_what_nothing_has_used(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.prune().decisions == 3
    assert len(store.decisions(superseded=True)) == 3
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE program SET seen_at = seen_at - 100 * 86400 WHERE name = 'softmax'")
    connection.close()
    removed = store.prune(unseen_days=90)
    assert (removed.decisions, removed.outcomes, removed.programs) == (1, 3, 1)
    assert {s.tuning_key.workload.program.name for s in store.decisions()} == {"rmsnorm"}
    assert store.stats().forecasts == 4
    removed = store.prune(unseen_days=0)
    assert (removed.decisions, removed.outcomes, removed.programs) == (2, 6, 1)
    with pytest.raises(InvalidInputError, match="-1"):
        store.prune(unseen_days=-1)


def test_a_prune_takes_few_rows_at_a_time_and_lets_others_write_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)
    monkeypatch.setattr("forecast_autotune.store.removal.AT_ONCE", 2)
    begun: list[str] = []

    @contextmanager
    def between() -> Iterator[None]:
        yield
        with SqliteStore(tmp_path) as other:
            other.record_outcome(a_job(key={"n": 2}), f"run-{len(begun)}", SPACE[0], a_measurement(), None)
        begun.append(f"run-{len(begun)}")

    monkeypatch.setattr("forecast_autotune.store.removal.taking_turns", between)
    assert store.prune().decisions == 3
    assert len(begun) > 4
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT count(*) FROM outcome").fetchone() == (9 + len(begun),)
    connection.close()


def test_a_mostly_empty_file_is_shrunk_when_nobody_else_has_it_open(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        for number in range(300):
            store.record_outcome(a_job(name=f"k{number}"), "run", SPACE[0], a_measurement(), None)
        store.record_outcome(a_job(), "run", SPACE[0], a_measurement(), None)
        file = StoreFile(tmp_path)
        assert file.clear(kernel="k0").outcomes == 1
        before = file.size_bytes()
        for number in range(1, 150):
            file.clear(kernel=f"k{number}")
        assert file.size_bytes() >= before, "it is open: the space is kept for later rows"
        assert store.outcomes(a_job())
    file.clear(kernel="k150")
    assert file.size_bytes() < 0.8 * before
    with SqliteStore(tmp_path) as store:
        assert store.outcomes(a_job())
    assert file.stats().journal == "wal"


def test_a_recalled_decision_is_not_pruned(tmp_path: Path) -> None:
    store = filled(tmp_path)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE program SET seen_at = 0")
    connection.execute("UPDATE toolchain SET seen_at = 0")
    connection.close()
    with SqliteStore(tmp_path) as used:
        used.decision(a_job())
    store.prune()
    assert {s.tuning_key.workload.program.name for s in store.decisions()} == {"rmsnorm"}


def test_clear_removes_one_kernel_or_everything(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.clear(kernel="soft").decisions == 0
    assert store.clear(kernel="softmax").outcomes == 3
    assert len(store.decisions()) == 2
    store.clear()
    assert store.decisions(superseded=True) == []
    stats = store.stats()
    assert (stats.programs, stats.workloads, stats.hardware, stats.toolchains, stats.forecasts) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_what_is_exported_is_readable_and_comes_back_whole(tmp_path: Path, name: str) -> None:
    store = filled(tmp_path / "a")
    assert store.export(tmp_path / name) == 3 + 6
    data = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(data) if name.endswith(".gz") else data).decode().splitlines()
    assert json.loads(lines[0]) == {"schema": "forecast_autotune.store", "version": 1}
    for line in lines[1:]:
        assert {"program", "workload", "hardware", "toolchain"} <= json.loads(line).keys()
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    other = StoreFile(tmp_path / "b")
    assert other.import_files([tmp_path / name]) == (9, 6)
    assert other.import_files([tmp_path / name]) == (0, 0)
    other.export(tmp_path / "again")
    assert (tmp_path / "again").read_text().splitlines() == lines
    assert [s.decision for s in other.decisions()] == [s.decision for s in store.decisions()]
    with SqliteStore(tmp_path / "b") as opened:
        assert opened.outcomes(a_job())[SPACE[1]] == a_measurement(10.0)


def test_features_are_exported_and_a_file_without_them_is_imported_too(tmp_path: Path) -> None:
    job = replace(a_job(), static_features=[{"programs": 64.0, "waves": 1 / 3}, *[{}] * (len(SPACE) - 1)])
    with SqliteStore(tmp_path / "a") as store:
        for config in SPACE[:2]:
            store.record_outcome(job, "run", config, a_measurement(), None)
    StoreFile(tmp_path / "a").export(tmp_path / "told.jsonl")
    run = json.loads((tmp_path / "told.jsonl").read_text().splitlines()[1])
    assert [o.pop("described", None) for o in run["outcomes"]] == [{"programs": 64.0, "waves": 0.333333}, None]
    header = (tmp_path / "told.jsonl").read_text().splitlines()[0]
    (tmp_path / "older.jsonl").write_text(f"{header}\n{json.dumps(run)}\n")
    for name, told in (("told", {SPACE[0]: {"programs": 64.0, "waves": 0.333333}}), ("older", {})):
        assert StoreFile(tmp_path / name).import_files([tmp_path / f"{name}.jsonl"]) == (2, 0)
        with SqliteStore(tmp_path / name) as store:
            (recording,) = store.related_recordings(a_job(key={"n": 1}))
        assert (set(recording.outcomes), recording.static_features) == (set(SPACE[:2]), told)
    run["outcomes"][0]["described"] = {"programs": "many"}
    (tmp_path / "bad.jsonl").write_text(f"{header}\n{json.dumps(run)}\n")
    with pytest.raises(InvalidInputError, match="outcome 1's description has programs 'many': it must be a number"):
        StoreFile(tmp_path / "bad").import_files([tmp_path / "bad.jsonl"])


def test_an_imported_decision_holds_only_if_newer_and_nothing_is_lost(tmp_path: Path) -> None:
    now = time.time()
    for folder, when, config in (("a", now, SPACE[1]), ("b", now - 60, SPACE[2]), ("c", now + 60, SPACE[3])):
        with SqliteStore(tmp_path / folder) as store:
            store.record_decision(a_job(), a_decision(a_job(), config, decided_at=when))
    for folder in "bc":
        StoreFile(tmp_path / folder).export(tmp_path / f"{folder}.jsonl")
    here = StoreFile(tmp_path / "a")
    here.import_files([tmp_path / "b.jsonl"])
    assert [s.decision.config for s in here.decisions()] == [SPACE[1]]
    here.import_files([tmp_path / "c.jsonl"])
    assert [s.decision.config for s in here.decisions()] == [SPACE[3]]
    assert [s.decision.config for s in here.decisions(superseded=True)] == [SPACE[3], SPACE[1], SPACE[2]]


def test_a_broken_line_is_named_and_nothing_is_taken(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    store.export(tmp_path / "good.jsonl")
    lines = (tmp_path / "good.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"samples_us":[', '"samples_us":[-1,')
    lines[4] = lines[4][:100]
    lines[6] = '{"line":"riddle"}'
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidInputError, match=r"3 broken lines.*line 3: .*line 5: .*line 7: .*riddle"):
        StoreFile(tmp_path / "b").import_files([tmp_path / "good.jsonl", tmp_path / "bad.jsonl"])
    assert not StoreFile(tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not an exported store"),
        ("hello\n", "not an exported store"),
        ('{"schema": "forecast_autotune.trace", "version": 1}\n', "schema 'forecast_autotune.trace'"),
        ('{"schema": "forecast_autotune.store", "version": 2}\n', "version 2"),
    ],
)
def test_another_files_header_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InvalidInputError, match=named):
        StoreFile(tmp_path).import_files([tmp_path / "x"])


def test_reading_changes_nothing_and_an_unusable_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        StoreFile(tmp_path).decisions()
    with pytest.raises(StoreError, match="no store"):
        StoreFile(tmp_path).clear()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store.sqlite3").write_bytes(b"nonsense" * 1000)
    with pytest.raises(StoreError, match="cannot be used"):
        StoreFile(tmp_path).decisions()
    assert [p.name for p in tmp_path.iterdir()] == ["store.sqlite3"]
    (tmp_path / "store.sqlite3").unlink()
    connection = sqlite3.connect(tmp_path / "store.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    with pytest.raises(StoreError, match="no store of this package"):
        StoreFile(tmp_path).stats()


def test_a_row_that_does_not_decode_is_left_out_and_counted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE outcome SET value = '{}' WHERE id = 1")
    connection.execute("UPDATE toolchain SET value = '[]' WHERE 0")
    connection.close()
    store.export(tmp_path / "out")
    assert len(store.unreadable) == 1
    assert "outcome 1" in store.unreadable[0]


def test_a_toolchain_that_nothing_uses_goes_with_its_outcomes(tmp_path: Path) -> None:
    older = a_job(toolchain=Toolchain(versions={"triton": "2"}))
    with SqliteStore(tmp_path) as opened:
        for job in (a_job(), older):
            opened.record_outcome(job, "run", SPACE[0], a_measurement(), None)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE toolchain SET seen_at = 0 WHERE digest = ?", (older.toolchain.digest,))
    connection.close()
    removed = StoreFile(tmp_path).prune()
    assert (removed.outcomes, removed.programs) == (1, 0)
    assert StoreFile(tmp_path).stats().toolchains == 1
