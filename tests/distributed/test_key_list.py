"""Lists of keys: written, read, refused, and obeyed by whoever is given one."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts.store_contract import a_job

from forecast_autotune.distributed import key_list
from forecast_autotune.distributed.key_list import ListedKey, is_asked_for, read_keys, write_keys
from forecast_autotune.errors import InvalidInputError


def listed(n: int) -> ListedKey:
    job = a_job(key={"n": n})
    return ListedKey(hardware=job.hardware.digest, workload=job.workload.digest, what=str(job.workload), on="here")


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    write_keys(path, [listed(1), listed(2)])
    assert read_keys(path) == [listed(1), listed(2)]
    write_keys(path, [])
    assert read_keys(path) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no list of keys"),
        ("{}\n", "has the schema"),
        ('{"schema": "forecast_autotune.store", "version": 1}\n', "has the schema"),
        ('{"schema": "forecast_autotune.keys", "version": 9}\n', "has version 9"),
        ('{"schema": "forecast_autotune.keys", "version": 1}\n{"hardware": "../x"}\n', "line 2"),
        ('{"schema": "forecast_autotune.keys", "version": 1}\n[[[[\n', "line 2"),
    ],
)
def test_what_is_no_list_is_refused_with_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=said):
        read_keys(path)


def test_a_process_that_is_given_a_list_measures_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_asked_for(a_job(key={"n": 2}))
    write_keys(tmp_path / "keys.jsonl", [listed(1)])
    monkeypatch.setenv(key_list.VARIABLE, str(tmp_path / "keys.jsonl"))
    assert is_asked_for(a_job(key={"n": 1}))
    assert not is_asked_for(a_job(key={"n": 2}))
