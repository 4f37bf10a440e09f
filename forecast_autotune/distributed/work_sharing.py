"""One job's tuning shared among processes: who leads it, and which config each has taken."""

from __future__ import annotations

import math
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.digest import digest
from ..errors import InvalidInputError
from ..store import encoding
from ..store.connection import transaction
from ..store.lock import SingleFlight
from ..store.rows import now

if TYPE_CHECKING:
    import sqlite3

LEASE_S = 600.0
"""A config taken and not tried for so long is free again, as a last resort: whoever took it hangs. A build may take minutes,
so until then it is believed to be at work while its device's lock is held; if it was killed, the lock tells at once."""


def this_process() -> str:
    """This process and thread for people, and apart from every other."""
    import platform

    rank = os.environ.get("RANK")
    told = f"rank {rank}, " if rank else ""
    return f"{told}process {os.getpid()} of {platform.node()}, thread {threading.get_ident():x}"


def _ranks_of_this_host() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or ""
    return max(2, int(told)) if told.isdecimal() else 2


def name_holder(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Say who holds a job's lock; nobody else does now, so what an earlier one left behind goes."""
    connection.execute("DELETE FROM claim WHERE job = ?", (job,))
    connection.execute("INSERT OR REPLACE INTO flight (job, holder) VALUES (?, ?)", (job, holder))


def holder_of(connection: sqlite3.Connection, job: str) -> str | None:
    found = connection.execute("SELECT holder FROM flight WHERE job = ?", (job,)).fetchone()
    return None if found is None else str(found[0])


def leave(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Take back what `name_holder` said."""
    gone = connection.execute("DELETE FROM flight WHERE job = ? AND holder = ?", (job, holder)).rowcount
    if gone:
        connection.execute("DELETE FROM claim WHERE job = ?", (job,))


class StoredShares:
    """Shares kept in a store's file, and a lock for the device.

    Args:
        job: its decision's digest.
        do: runs an operation on the store's connection; returns the second argument where that cannot be had.
        locks: whose files also stand for devices.
        device: identifies the physical device among all that share the store.
        declined: jobs that this process helps with no more.
    """

    def __init__(
        self,
        job: str,
        *,
        do: Callable[[Callable[[sqlite3.Connection], Any], Any], Any],
        locks: SingleFlight,
        device: str,
        declined: set[str],
    ) -> None:
        self._job = job
        self._do = do
        self._locks = locks
        self._device = digest(device)
        self.processes = _ranks_of_this_host()
        self._declined = declined
        self._leads = False
        self._me = f"{this_process()}, {uuid.uuid4().hex}"  # containers may number processes and name hosts alike

    @contextmanager
    def lead(self, run: str, most: float, first: Config | None) -> Iterator[None]:
        """Let others help a run while this is held, until so many configs are taken; the first is taken at once."""

        def begin(connection: sqlite3.Connection) -> None:
            limit = None if math.isinf(most) else int(most)
            with transaction(connection):
                connection.execute(
                    "INSERT INTO flight (job, holder, run, most) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (job) DO UPDATE SET run = excluded.run, most = excluded.most",
                    (self._job, self._me, run, limit),
                )
                if first is not None:
                    self._take(connection, first)

        def end(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("UPDATE flight SET run = NULL WHERE job = ?", (self._job,))

        self._leads = True
        mine = os.getpid()
        self._do(begin, None)
        try:
            yield
        finally:
            self._leads = False
            if os.getpid() == mine:  # else the child of a fork leaves this block too, while its parent goes on
                self._do(end, None)

    def wanted(self) -> bool:
        """Whether a run is led that has room for one more config, and this process may take it."""
        return (self._leads or self._job not in self._declined) and bool(self._do(self._room, False))

    def take(self, config: Config) -> bool:
        """Take a config for oneself; False where another has it, it was tried, or there is room for no more."""

        def write(connection: sqlite3.Connection) -> bool:
            with transaction(connection):
                return self._take(connection, config)

        # Where the file is gone, nobody helps and nothing keeps the leader from its own work.
        return bool(self._do(write, self._leads))

    def tried(self, config: Config) -> None:
        """Say that a config taken was tried."""

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute(
                    "UPDATE claim SET until = NULL WHERE job = ? AND config = ?", (self._job, config.text)
                )

        self._do(write, None)

    def give_back(self, config: Config) -> None:
        """Free a config taken for others, and let them do the rest: from then on, none is wanted of this process."""
        self._declined.add(self._job)
        self._give_back(config.text, self._me)

    def taken(self) -> frozenset[Config]:
        """Configs that other processes have taken and not tried yet; one whose process is gone is free again."""

        def look(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
            return connection.execute(
                "SELECT config, holder, device FROM claim WHERE job = ? AND holder != ? AND until > ?",
                (self._job, self._me, now()),
            ).fetchall()

        found: set[Config] = set()
        for text, holder, device in self._do(look, []):
            if not re.fullmatch(
                r"[0-9a-f]{32}", str(device)
            ):  # part of a file's name: a row that no process of ours wrote
                continue
            if self._is_free(device):
                self._give_back(text, holder)
                continue
            with suppress(InvalidInputError):  # a row that no process of ours wrote
                found.add(encoding.decode_config(encoding.from_text(text, "claim"), "claim"))
        return frozenset(found)

    def device(self) -> AbstractContextManager[bool]:
        """Hold the device against every process that shares work; False, at once, where another one times on it."""
        return self._locks.hold(self._device, prefix="device-")

    # ----------------------------------------------------------------------------------------------------------------

    def _is_free(self, device: str) -> bool:
        """Whether nobody else works on a device: also where this thread does, for then whoever did before is gone."""
        with self._locks.hold(device, prefix="device-") as free:
            return free

    def _give_back(self, config: str, holder: str) -> None:
        """Free a config for others, unless it was tried after all."""

        def write(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute(
                    "DELETE FROM claim WHERE job = ? AND config = ? AND holder = ? AND until IS NOT NULL",
                    (self._job, config, holder),
                )

        self._do(write, None)

    def _room(self, connection: sqlite3.Connection, but: str = "") -> bool:
        """Whether one more config may be taken, or `but` again. A config not tried for long counts: it may still be."""
        led = connection.execute("SELECT most FROM flight WHERE job = ? AND run IS NOT NULL", (self._job,)).fetchone()
        if led is None:
            return self._leads
        taken = connection.execute(
            "SELECT count(*) FROM claim WHERE job = ? AND config != ?", (self._job, but)
        ).fetchone()[0]
        return led[0] is None or taken < led[0]

    def _take(self, connection: sqlite3.Connection, config: Config) -> bool:
        held = connection.execute(
            "SELECT holder, until FROM claim WHERE job = ? AND config = ?", (self._job, config.text)
        ).fetchone()
        if held is not None and held[0] == self._me and held[1] is not None:
            return True  # taken before
        if (held is not None and (held[1] is None or held[1] > now())) or not self._room(connection, config.text):
            return False
        connection.execute(
            "INSERT OR REPLACE INTO claim (job, config, holder, device, until) VALUES (?, ?, ?, ?, ?)",
            (self._job, config.text, self._me, self._device, now() + LEASE_S),
        )
        return True
