from __future__ import annotations

import random
import shutil
import sqlite3
import warnings
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_job, a_measurement

from forecast_autotune.errors import StoreWarning
from forecast_autotune.language.answers import Bins
from forecast_autotune.store import answers, rows
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

SAMPLES = Path(__file__).parents[1] / "stores"


def an_answer(seed: int = 0) -> Bins:
    weights = [random.Random(seed * 8 + i).random() for i in range(8)]
    return Bins(probabilities=tuple(w / sum(weights) for w in weights), raw_sum=0.25)


def test_an_answer_is_kept_for_later_processes_to_the_last_digit(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        assert store.answers(["q"]) == {}
        store.keep_answers({"q": an_answer(), "other": an_answer(1)})
    with SqliteStore(tmp_path) as store:
        assert store.answers(["q", "unknown"]) == {"q": an_answer()}
        store.keep_answers({"q": an_answer(2)})
        assert store.answers(["other", "q"]) == {"q": an_answer(2), "other": an_answer(1)}


def test_nothing_asked_and_nothing_to_keep_opens_no_file(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store") as store:
        assert store.answers([]) == {}
        store.keep_answers({})
    assert not (tmp_path / "store").exists()


def test_thousands_are_found_at_once(tmp_path: Path) -> None:
    kept = {str(i): an_answer(i) for i in range(3_000)}
    with SqliteStore(tmp_path) as store:
        store.keep_answers(kept)
        assert store.answers(list(kept)) == kept


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ('{"raw_sum": 1}', "must be 8"),
        ('{"probabilities": [0.5, 0.5], "raw_sum": 1}', "must be 8"),
        ('{"probabilities": [1, 0, 0, 0, 0, 0, 0, "0"], "raw_sum": 1}', "must be a number"),
        ('{"probabilities": [1.5, -0.5, 0, 0, 0, 0, 0, 0], "raw_sum": 1}', "sum to 1"),
        ('{"probabilities": [0.5, 0.4, 0, 0, 0, 0, 0, 0], "raw_sum": 1}', "sum to 1"),
        ('{"probabilities": [NaN, 1, 0, 0, 0, 0, 0, 0], "raw_sum": 1}', "NaN"),
        ('{"probabilities": [1e999, 1, 0, 0, 0, 0, 0, 0], "raw_sum": 1}', "finite"),
        ('{"probabilities": [1, 0, 0, 0, 0, 0, 0, 0]}', "raw_sum missing"),
        ('{"probabilities": [1, 0, 0, 0, 0, 0, 0, 0], "raw_sum": -1}', "negative"),
    ],
)
def test_an_answer_that_is_damaged_is_passed_over_with_one_complaint(tmp_path: Path, value: str, wrong: str) -> None:
    with SqliteStore(tmp_path) as store:
        store.keep_answers({"good": an_answer(), "bad": an_answer(), "worse": an_answer()})
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute("UPDATE answer SET value = ? WHERE digest != 'good'", (value,))
    connection.close()
    with SqliteStore(tmp_path) as store, pytest.warns(StoreWarning, match=wrong) as told:
        assert store.answers(["bad", "good", "worse"]) == {"good": an_answer()}
    assert len(told) == 1


def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST", 10)
    with SqliteStore(tmp_path) as store:
        for i in range(8):
            store.keep_answers({str(i): an_answer(i)})
        store.keep_answers({"0": an_answer(0)})  # the newest again
        store.keep_answers({str(i): an_answer(i) for i in range(8, 17)})
        assert set(store.answers([str(i) for i in range(17)])) == {"0", *map(str, range(8, 17))}
        store.keep_answers({f"again {i}": an_answer(i) for i in range(25)})
        assert StoreFile(tmp_path).stats().answers == 10


def test_an_answer_that_cannot_be_kept_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.keep_answers({"q": an_answer()})
        with pytest.warns(StoreWarning, match="cannot read or keep"):
            store.keep_answers({"nan": Bins(probabilities=(float("nan"),) * 8, raw_sum=1.0)})
        assert store.answers(["q", "nan"]) == {"q": an_answer()}


def test_a_store_in_memory_keeps_answers_while_it_lasts() -> None:
    store = SqliteStore.in_memory()
    store.keep_answers({"q": an_answer()})
    assert store.answers(["q"]) == {"q": an_answer()}


def test_clear_removes_answers_and_prune_those_kept_long_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = rows.now()
    with SqliteStore(tmp_path) as store:
        monkeypatch.setattr(rows, "now", lambda: now - 91 * 86_400)
        store.keep_answers({"old": an_answer()})
        monkeypatch.setattr(rows, "now", lambda: now)
        store.keep_answers({"new": an_answer()})
        store.record_outcome(a_job(), "run", SPACE[0], a_measurement(), None)
    file = StoreFile(tmp_path)
    assert file.prune().answers == 1
    assert file.clear(kernel="rmsnorm").answers == 0
    assert file.stats().answers == 1
    assert file.clear().answers == 1
    assert file.stats().answers == 0


def test_answers_are_not_exported(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "one") as store:
        store.record_outcome(a_job(), "run", SPACE[0], a_measurement(), None)
        store.keep_answers({"a question": an_answer()})
    assert StoreFile(tmp_path / "one").export(tmp_path / "lines") == 1
    assert "a question" not in (tmp_path / "lines").read_text()
    assert StoreFile(tmp_path / "two").import_files([tmp_path / "lines"]) == (1, 0)
    assert StoreFile(tmp_path / "two").stats().answers == 0


def test_reading_leaves_schema_3_as_it_is_and_keeping_answers_migrates_it(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "schema_3.sqlite3", tmp_path / "store.sqlite3")
    stats = StoreFile(tmp_path).stats()
    assert (stats.answers, stats.measurements) == (0, 2)
    assert (tmp_path / "store.sqlite3").read_bytes() == (SAMPLES / "schema_3.sqlite3").read_bytes()
    with warnings.catch_warnings(), SqliteStore(tmp_path) as store:
        warnings.simplefilter("error")
        assert store.answers(["q"]) == {}
        store.keep_answers({"q": an_answer()})
        assert store.answers(["q"]) == {"q": an_answer()}
        assert len(store.outcomes(a_job())) == 3
    assert StoreFile(tmp_path).stats().answers == 1


def test_the_sample_of_this_schema_holds_an_answer(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "schema_5.sqlite3", tmp_path / "store.sqlite3")
    with SqliteStore(tmp_path) as store:
        assert store.answers(["a question"]) == {"a question": Bins(probabilities=(0.125,) * 8, raw_sum=0.5)}
