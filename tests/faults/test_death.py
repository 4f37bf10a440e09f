"""Processes that are killed."""

from __future__ import annotations

import signal
from pathlib import Path

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
import pytest
from contracts.store_contract import a_job
from faults.stores import (
    runs_kept,
    writer,
)

from forecast_autotune.store.sqlite import SqliteStore


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_every_row_reported_before_a_kill_is_there_afterwards(tmp_path: Path, journal: str) -> None:
    process = writer(tmp_path, "killed", journal, rows=1_000_000)
    assert process.stdout is not None
    for _ in range(30):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    reported = 30 + len(process.communicate()[0].splitlines())
    assert process.returncode == -signal.SIGKILL
    with SqliteStore(tmp_path) as store:
        assert store.outcomes(a_job(key={"n": 0}))
    assert len(runs_kept(tmp_path)) in (reported, reported + 1)  # one may have been kept and not yet reported
