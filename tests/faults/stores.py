"""Stores that are attacked: made, written to by other processes, and looked into afterwards."""

from __future__ import annotations

import encodings.unicode_escape
import errno
import gzip
import hmac
import os
import pickle
import platform
import secrets
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import platformdirs
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store.sqlite import SqliteStore

# What a store imports as it is used: once privileges are dropped, this interpreter's folder may be closed.
NEEDED_LATER = (encodings.unicode_escape, filelock, gzip, hmac, platform, platformdirs, secrets, tempfile)
NOBODY = 65534
CHILD_S = 240.0  # for a forked child to answer, and to end

WRITER = """
import sys
from contracts.store_contract import SPACE, a_job, a_measurement
from forecast_autotune.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], journal=sys.argv[3])
for number in range(int(sys.argv[4])):
    store.record_outcome(a_job(key={"n": number % 10}), f"{sys.argv[2]}-{number}", SPACE[0], a_measurement(), None)
    print(number, flush=True)
"""


def writer(directory: Path, name: str, journal: str = "auto", rows: int = 1000) -> subprocess.Popen[str]:
    """A process that records rows and reports each once it is kept."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests / "support")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
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
            try:
                result = pickle.dumps((True, function()))
            except BaseException as err:
                cannot = isinstance(err, CannotBecomeError)
                result = pickle.dumps((None, str(err)) if cannot else (False, repr(err)))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(result)
        finally:
            os._exit(0)  # or there would be two of these tests
    os.close(writing)
    try:
        said = b""
        while part := heard(reading, 65536):
            said += part
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        ended(child)
    succeeded, value = pickle.loads(said)  # noqa: S301  # written by ourselves a moment ago
    if succeeded is None:
        pytest.skip(value)
    assert succeeded, value
    return value


def heard(pipe: int, size: int = 1) -> bytes:
    """What comes next from a child; nothing once nobody holds the other end."""
    if not select.select([pipe], [], [], CHILD_S)[0]:
        raise TimeoutError(f"a child says nothing for {CHILD_S:.0f} s")
    return os.read(pipe, size)


def ended(child: int) -> int:
    """The exit code of a forked child."""
    deadline = time.monotonic() + CHILD_S
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"child {child} does not end within {CHILD_S:.0f} s")
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(found[1])


def told_by(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a function returns and every store warning it gave."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = function()
    return value, [str(w.message) for w in told if issubclass(w.category, StoreWarning)]


def filled(directory: Path, rows: int = 1) -> Path:
    with SqliteStore(directory) as store:
        for number in range(rows):
            store.record_outcome(a_job(key={"n": number}), "run", SPACE[0], a_measurement(), None)
        store.record_decision(a_job(), a_decision(a_job()))
    return directory / "store.sqlite3"


def as_nobody(function: Callable[[], Any]) -> Any:
    """Run in a child to which permission bits apply: root's own processes pass them by."""

    def dropped() -> Any:
        if os.getuid() == 0:
            become(NOBODY)
        return function()

    return in_child(dropped)


class CannotBecomeError(Exception):
    """Root may not become another user, as in some containers: what needs one is skipped."""


def become(user: int) -> None:
    """Make this child another user's, for good."""
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    except OSError as err:
        if err.errno not in (errno.EPERM, errno.EINVAL):
            raise
        raise CannotBecomeError(f"root may not become user {user} here: {err}") from None


def use_what_is_there(directory: Path) -> tuple[bool, bool]:
    """Whether the decision on disk is found, and one made now is kept in memory."""
    with SqliteStore(directory) as store:
        found = store.decision(a_job()) == a_decision(a_job())
        store.record_outcome(a_job(), "run", SPACE[1], a_measurement(), None)
        store.record_decision(a_job(), a_decision(a_job(), SPACE[3]))
        kept = store.decision(a_job()) == a_decision(a_job(), SPACE[3])
        with store.single_flight(a_job()) as alone:
            return found, kept and alone


def filled_somehow(directory: Path) -> bool:
    with SqliteStore(directory) as store:
        store.record_decision(a_job(), a_decision(a_job(), SPACE[3]))
        return store.decision(a_job()) == a_decision(a_job(), SPACE[3])
