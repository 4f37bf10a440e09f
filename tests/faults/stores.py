"""Stores that are attacked: made, written to by other processes, and looked into afterwards."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store.sqlite import SqliteStore

NOBODY = 65534

WRITER = """
import sys
from contracts.store_contract import SPACE, a_job, a_measurement
from forecast_autotune.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], journal=sys.argv[3])
for number in range(int(sys.argv[4])):
    store.record(a_job(key={"n": number % 10}), f"{sys.argv[2]}-{number}", SPACE[0], a_measurement(), None)
    print(number, flush=True)
"""


def writer(directory: Path, name: str, journal: str = "auto", rows: int = 1000) -> subprocess.Popen[str]:
    """A process that records rows and reports each once it is kept."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", WRITER, str(directory), name, journal, str(rows)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def runs_kept(directory: Path) -> list[str]:
    connection = sqlite3.connect(directory / "store.sqlite3")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [run for (run,) in connection.execute("SELECT text.value FROM outcome JOIN text ON text.id = run")]
    finally:
        connection.close()


def in_child(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked child, which may give up what the parent needs to keep."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = pickle.dumps((True, function()))
        except BaseException as err:
            result = pickle.dumps((False, repr(err)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        succeeded, value = pickle.loads(pipe.read())  # noqa: S301  # written by ourselves a moment ago
    os.waitpid(child, 0)
    assert succeeded, value
    return value


def told_by(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a function returns and every store warning it gave."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = function()
    return value, [str(w.message) for w in told if issubclass(w.category, StoreWarning)]


def filled(directory: Path, rows: int = 1) -> Path:
    with SqliteStore(directory) as store:
        for number in range(rows):
            store.record(a_job(key={"n": number}), "run", SPACE[0], a_measurement(), None)
        store.decide(a_job(), a_decision(a_job()))
    return directory / "store.sqlite3"


def as_nobody(function: Callable[[], Any]) -> Any:
    """Run in a child to which permission bits apply: root's own processes pass them by."""

    def dropped() -> Any:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return function()

    return in_child(dropped)


def use_what_is_there(directory: Path) -> tuple[bool, bool]:
    """Whether the decision on disk is found, and one made now is kept in memory."""
    with SqliteStore(directory) as store:
        found = store.decision(a_job()) == a_decision(a_job())
        store.record(a_job(), "run", SPACE[1], a_measurement(), None)
        store.decide(a_job(), a_decision(a_job(), SPACE[3]))
        kept = store.decision(a_job()) == a_decision(a_job(), SPACE[3])
        with store.single_flight(a_job()) as alone:
            return found, kept and alone


def filled_somehow(directory: Path) -> bool:
    with SqliteStore(directory) as store:
        store.decide(a_job(), a_decision(a_job(), SPACE[3]))
        return store.decision(a_job()) == a_decision(a_job(), SPACE[3])
