"""Stores that an earlier version wrote, brought to this version's schema on a bad day."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_job, a_measurement
from faults.ledger import Ledger
from faults.older import of_schema_4, runs
from faults.stores import runs_kept, told_by

from forecast_autotune.store import database, schema
from forecast_autotune.store.sqlite import SqliteStore

SEED = 20261121
LIMIT_S = 120.0  # for a process that is to end
ROWS = 20_000  # bringing them over takes half a second

OPENS = """
import sys, warnings
from contracts.store_contract import SPACE, a_job, a_measurement
from forecast_autotune.errors import StoreWarning
from forecast_autotune.store.sqlite import SqliteStore
warnings.simplefilter("error", StoreWarning)
warnings.filterwarnings("error", module="forecast_autotune|contracts|__main__")  # not those of other packages
print("begins", flush=True)
with SqliteStore(sys.argv[1]) as store:
    store.record_outcome(a_job(), sys.argv[2], SPACE[0], a_measurement(), None)
print("done", flush=True)
"""


def opener(directory: Path, run: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process that records one outcome, once it was told to have begun."""
    command = [sys.executable, "-c", OPENS, str(directory), run]
    started = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "begins\n"
    return started


def ended(started: subprocess.Popen[str]) -> None:
    out, err = started.communicate(timeout=LIMIT_S)
    assert (started.returncode, out) == (0, "done\n"), err


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def test_a_kill_while_a_store_is_brought_to_this_schema_loses_nothing(faults: Ledger, tmp_path: Path) -> None:
    print("seed", SEED)
    chance = random.Random(SEED)
    fault = "kill -9 while a store of an older schema is brought to this one's"
    with faults.case(fault, tmp_path, seen="nothing; the next process does it") as case:
        older = of_schema_4(case.folder / "older", runs(ROWS))
        shutil.copytree(older.parent, case.store)
        first = opener(case.store, "first", case.environment)
        began = time.monotonic()
        ended(first)
        whole_s = time.monotonic() - began
        for _ in range(case.many(short=6, whole=200)):
            shutil.rmtree(case.store)
            shutil.copytree(older.parent, case.store)
            with case.attempt():
                victim = opener(case.store, "killed", case.environment)
                time.sleep(chance.uniform(0.0, whole_s))
                victim.kill()
                victim.communicate(timeout=LIMIT_S)
                assert version(case.store / "store.sqlite3") in (4, schema.VERSION)
                ended(opener(case.store, "next", case.environment))
            kept = set(runs_kept(case.store))
            lost = {*runs(ROWS), "next"} - kept
            case.kept(reported=ROWS + 1, lost=len(lost))
            assert not lost
            assert version(case.store / "store.sqlite3") == schema.VERSION
            assert list(case.store.glob("*.corrupt*")) == []


def test_processes_meeting_an_older_store_migrate_it_once_and_lose_nothing(faults: Ledger, tmp_path: Path) -> None:
    with faults.case("8 processes that meet a store of an older schema at once", tmp_path, seen="nothing") as case:
        for _ in range(case.many(short=1, whole=20)):
            shutil.rmtree(case.store, ignore_errors=True)
            of_schema_4(case.store, runs(ROWS))
            with case.attempt():
                started = [opener(case.store, f"new-{n}", case.environment) for n in range(8)]
                for process in started:
                    ended(process)
            lost = {*runs(ROWS), *(f"new-{n}" for n in range(8))} - set(runs_kept(case.store))
            case.kept(reported=ROWS + 8, lost=len(lost))
            assert not lost
            assert list(case.store.glob("*.corrupt*")) == []


HOLDS = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
time.sleep(3.0)
connection.close()
"""


def test_who_opens_an_older_store_waits_longer_for_it_than_for_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.5)  # what is read first has to wait as well
    path = of_schema_4(tmp_path, runs(1))
    other = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "holds\n"

    def record() -> None:
        with SqliteStore(tmp_path) as store:
            store.record_outcome(a_job(), "new", SPACE[0], a_measurement(), None)

    assert told_by(record) == (None, [])
    assert runs_kept(tmp_path) == ["run-0", "new"]
    other.communicate(timeout=LIMIT_S)
