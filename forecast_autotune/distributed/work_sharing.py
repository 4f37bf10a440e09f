"""One job's tuning shared among processes through a store's file: who leads it, and who has claimed which config."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..core.config import Config
from ..core.digest import digest
from ..core.job import Job
from ..errors import InvalidInputError
from ..store import encoding
from ..store.database import transaction
from ..store.holders import this_process
from ..store.rows import TuningKey, decision_digest, now
from ..store.sqlite import SqliteStore

if TYPE_CHECKING:
    import sqlite3

LEASE_S = 600.0
"""A claim on a config not tried for so long ends, as a last resort: its process hangs. A build may take minutes, so until
then the process is believed to be at work while its device's lock is held; if it was killed, the lock is free at once."""

VARIABLE = "_FORECAST_AUTOTUNE_SHARES_AS"
"""The environment variable that names to a process of `tune` its device, by which it shares every key's measurements."""

_DECLINED: WeakKeyDictionary[SqliteStore, set[str]] = WeakKeyDictionary()
"""Jobs that this process has released a config of, by store: it helps with them no more."""


class SqliteWorkSharing:
    """A `protocols.WorkSharing` among the processes that have one store's file open, on devices of equal hardware.

    Claims are rows of the file. The process that has claimed a config holds the lock of its device while it works, so that
    two processes never time on one device at once and a killed process loses its claims.

    Args:
        store: the store; where its file cannot be used, nobody helps and the leader goes on alone.
        job: what is tuned.
        device: identifies the physical device among all that use the store.
    """

    def __init__(self, store: SqliteStore, job: Job, *, device: str) -> None:
        self._store = store
        self._job = decision_digest(TuningKey.of(job), job.space.digest)
        self._device = digest(device)
        self.processes = _ranks_of_this_host()
        self._declined = _DECLINED.setdefault(store, set())
        self._leads = False
        self._me = f"{this_process()}, {uuid.uuid4().hex}"  # containers may number processes and name hosts alike

    @contextmanager
    def lead(self, run: str, most: float, first: Config | None) -> Iterator[None]:
        """Let others help a run while this is held, until `most` configs are claimed; `first` is claimed at once."""

        def begin(connection: sqlite3.Connection) -> None:
            limit = None if math.isinf(most) else int(most)
            with transaction(connection):
                connection.execute(
                    "INSERT INTO flight (job, holder, run, most) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (job) DO UPDATE SET run = excluded.run, most = excluded.most",
                    (self._job, self._me, run, limit),
                )
                if first is not None:
                    self._claim(connection, first)

        def end(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("UPDATE flight SET run = NULL WHERE job = ?", (self._job,))

        self._leads = True
        leader = os.getpid()
        self._store.connection.run(begin)
        try:
            yield
        finally:
            self._leads = False
            if os.getpid() == leader:  # else the child of a fork leaves this block too, while its parent goes on
                self._store.connection.run(end)

    def wanted(self) -> bool:
        """Whether a run is led that has room for one more config, and this process may claim it."""
        return (self._leads or self._job not in self._declined) and bool(self._store.connection.run(self._has_room))

    def claim(self, config: Config) -> bool:
        """Claim a config for oneself; False where another has it, it was tried, or there is room for no more."""

        def write(connection: sqlite3.Connection) -> bool:
            with transaction(connection):
                return self._claim(connection, config)

        claimed = self._store.connection.run(write)
        # Where the file is gone, nobody helps and nothing keeps the leader from its own work.
        return self._leads if claimed is None else claimed

    def tried(self, config: Config) -> None:
        """Note that a claimed config was tried."""

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute(
                    "UPDATE claim SET until = NULL WHERE job = ? AND config = ?", (self._job, config.text)
                )

        self._store.connection.run(write)

    def release(self, config: Config) -> None:
        """Free a claimed config for others, and leave them the rest: from then on, this process is asked for no more."""
        self._declined.add(self._job)
        self._release(config.text, self._me)

    def claimed_by_others(self) -> frozenset[Config]:
        """Configs that other processes have claimed and not tried yet; claims of a process that is gone are freed."""

        def read(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
            return connection.execute(
                "SELECT config, holder, device FROM claim WHERE job = ? AND holder != ? AND until > ?",
                (self._job, self._me, now()),
            ).fetchall()

        claimed: set[Config] = set()
        for text, holder, device in self._store.connection.run(read) or []:
            # It becomes part of a file's name; no process of ours wrote another.
            if not re.fullmatch(r"[0-9a-f]{32}", str(device)):
                continue
            if self._is_free(device):
                self._release(text, holder)
                continue
            with suppress(InvalidInputError):  # no process of ours wrote this row
                claimed.add(encoding.decode_config(encoding.from_text(text, "claim"), "claim"))
        return frozenset(claimed)

    def device(self) -> AbstractContextManager[bool]:
        """Hold the device against every process that shares work; False, at once, where another one times on it."""
        return self._store.locks.hold(self._device, prefix="device-")

    # ----------------------------------------------------------------------------------------------------------------

    def _is_free(self, device: str) -> bool:
        """Whether nobody else works on a device: also where this thread does, for then whoever did before is gone."""
        with self._store.locks.hold(device, prefix="device-") as free:
            return free

    def _release(self, config: str, holder: str) -> None:
        """Free a config for others, unless it was tried after all."""

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute(
                    "DELETE FROM claim WHERE job = ? AND config = ? AND holder = ? AND until IS NOT NULL",
                    (self._job, config, holder),
                )

        self._store.connection.run(write)

    def _has_room(self, connection: sqlite3.Connection, except_config: str = "") -> bool:
        """Whether one more config may be claimed, or `except_config` again.

        An expired claim still counts: its process may go on after all.
        """
        led = connection.execute("SELECT most FROM flight WHERE job = ? AND run IS NOT NULL", (self._job,)).fetchone()
        if led is None:
            return self._leads
        (claimed,) = connection.execute(
            "SELECT count(*) FROM claim WHERE job = ? AND config != ?", (self._job, except_config)
        ).fetchone()
        return led[0] is None or claimed < led[0]

    def _claim(self, connection: sqlite3.Connection, config: Config) -> bool:
        """`claim`, within the caller's transaction."""
        held = connection.execute(
            "SELECT holder, until FROM claim WHERE job = ? AND config = ?", (self._job, config.text)
        ).fetchone()
        if held is not None and held[0] == self._me and held[1] is not None:
            return True  # claimed before
        if (held is not None and (held[1] is None or held[1] > now())) or not self._has_room(connection, config.text):
            return False
        connection.execute(
            "INSERT OR REPLACE INTO claim (job, config, holder, device, until) VALUES (?, ?, ?, ?, ?)",
            (self._job, config.text, self._me, self._device, now() + LEASE_S),
        )
        return True


def device_of_tune() -> str:
    """What this process's device is called among those of one `tune`; empty in any other process."""
    return os.environ.get(VARIABLE, "")


def _ranks_of_this_host() -> int:
    if device_of_tune():
        return 1  # who helps is not known; compiles of several processes take turns on the cores
    ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or ""
    return max(2, int(ranks)) if ranks.isdecimal() else 2
