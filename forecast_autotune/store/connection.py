"""A store's connection in one process: opened late, set aside where it is broken, in memory where it cannot be used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.text import error_text
from . import database, filesystem, schema
from .deferred import DeferredWrites
from .held_warnings import HeldWarnings

if TYPE_CHECKING:
    import sqlite3

FORK_WAIT_S = 0.1
"""How long a fork waits for another thread to be done with the file: several times what a transaction takes (13 ms with a
sync of the disk). A thread that waits for another process takes up to `database.BUSY_S`: a child goes on in memory then."""

_ATTEMPTS = 3  # at one operation: the file may be set aside, and then be removed by somebody else

_T = TypeVar("_T")

_OF_PARENTS: list[sqlite3.Connection] = []  # made before this process was forked; never closed here


class StoreConnection:
    """One store's file as one process has it open, for all its threads; or the memory that stands in for it.

    Args:
        path: the file; None for memory alone.
        journal: `wal`, `rollback` or `auto`; see `SqliteStore`.
        warnings: where trouble is reported.
    """

    def __init__(self, path: Path | None, *, journal: str, warnings: HeldWarnings) -> None:
        self.path = path
        self.journal = journal
        self.warnings = warnings
        self._reset()

    def _reset(self) -> None:
        """Nothing is open yet: in a new store, and in the child of a fork."""
        self.lock = threading.RLock()
        self.deferred = DeferredWrites()
        self._connection: sqlite3.Connection | None = None
        self._identity: filesystem.Identity | None = None  # of the open file; None in memory
        self._checked: filesystem.Identity | None = None  # of the file that was whole before this process added to it
        self._gave_way = False  # in memory although a file was asked for
        self._inherited = False  # the file may have been open when this process was forked: it cannot be used here
        self._ready_for_fork = False  # the file is closed, and a thread that forks holds the lock
        self._fork_waits = True  # False after a fork that waited in vain, until the lock has been free

    @property
    def in_memory(self) -> bool:
        """Whether what is written ends with this process."""
        return self.path is None or self._gave_way

    @property
    def is_open(self) -> bool:
        """Whether a file or memory is open already."""
        return self._connection is not None

    @property
    def is_made(self) -> bool:
        """Whether there is anything to read; making a file takes 15 ms of computing, and as long again of a disk."""
        return self.is_open or self.in_memory or filesystem.identity_of(self._file) is not None

    @property
    def _file(self) -> Path:
        if self.path is None:
            raise AssertionError("a store in memory was asked for its file")
        return self.path

    # Using ----------------------------------------------------------------------------------------------------------

    def run(self, operation: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """The result of an operation on the open store; None where it failed, which a warning reports.

        Where the file is at fault, it is set aside or left for memory, and the operation runs again.
        """
        import sqlite3

        with self.warnings.held(), self.lock:
            for _ in range(_ATTEMPTS):
                connection = self.open()
                try:
                    return operation(connection)
                except sqlite3.Error as err:
                    if self.in_memory:
                        self.complain(str(err))
                        return None
                    if filesystem.identity_of(self._file) != self._identity:
                        continue  # removed under our hands: `open` begins another
                    if not (database.is_broken(err, connection) and self._set_aside(err, self._identity)):
                        self._give_way(str(err))
                except (TypeError, ValueError) as err:  # a value that JSON or UTF-8 cannot hold
                    self.complain(str(err))
                    return None
            return None

    def write(self, write: Callable[[sqlite3.Connection], object]) -> None:
        """Write in one transaction, and with it what was deferred. The first write of a process checks the file."""

        def operation(connection: sqlite3.Connection) -> None:
            if not self.in_memory and self._checked != self._identity:
                if database.refuse_damaged(connection):
                    self.complain("indexes that disagreed with its rows and were made anew")
                self._checked = self._identity
            with database.transaction(connection):
                write(connection)
                self.deferred.write(connection)
            self.deferred.written()

        self.run(operation)

    def write_deferred(self) -> None:
        """Write what was deferred if that needs no waiting and makes no trouble; it is worth neither."""
        import sqlite3

        connection = self._connection
        if not self.deferred or connection is None:
            return
        if not self.in_memory and filesystem.identity_of(self._file) != self._identity:
            return
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                with database.transaction(connection):
                    self.deferred.write(connection)
                self.deferred.written()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(database.BUSY_S * 1000)}")

    def complain(self, text: str) -> None:
        """Warn of a row that was skipped; the first speaks for all."""
        where = self.path or "in memory"
        self.warnings.warn_once("rows", f"store {where} passes over what it cannot read or keep: {text}")

    # Opening and closing --------------------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """The connection of this process, opened if need be; called with the lock held."""
        self._fork_waits = True
        if self._connection is not None and not self.in_memory and filesystem.identity_of(self._file) != self._identity:
            # Removed, or set aside by another process: what is written to it now, nobody will read.
            self._close_file()
        if self._connection is None and not self.in_memory:
            self._connect()
        if self._connection is None:
            self._connection = database.open_memory()
        return self._connection

    def close(self) -> None:
        """Write what was deferred and close the file; a later call opens it again. Memory is forgotten."""
        with self.lock:
            if self._connection is not None:
                self.write_deferred()
            self._close_file()
            self._identity = None
            self._gave_way = False

    def rest(self) -> None:
        """Close the file where no thread is at it and nothing is left to write; the next operation opens it again."""
        lock = self.lock
        if self._connection is None or not lock.acquire(blocking=False):
            return
        try:
            if self._connection is None or self.in_memory:
                return
            self.write_deferred()
            if not self.deferred or filesystem.identity_of(self._file) != self._identity:  # or it was removed
                self._close_file()
                self._identity = None
        finally:
            lock.release()

    def _close_file(self) -> None:
        if self._connection is not None:
            with suppress(Exception):  # an error here loses nothing that was reported as kept
                self._connection.close()
        self._connection = None

    def _connect(self) -> None:
        """Open the file; set it aside and begin a fresh one if it is broken; else go on in memory."""
        import sqlite3

        if self._inherited:
            self._give_way("this process was forked while another thread was busy with it")
            return
        # Before opening: when that fails, another process may have set the file aside already and begun a fresh one.
        seen = filesystem.identity_of(self._file)
        try:
            try:
                self._connection = database.open_file(self._file, self.journal)
            except (schema.NotAStoreError, sqlite3.DatabaseError) as err:
                if not (database.is_broken(err) and self._set_aside(err, seen)):
                    raise
                seen = filesystem.identity_of(self._file)
                self._connection = database.open_file(self._file, self.journal)
            self._identity = seen or filesystem.identity_of(self._file)
        except schema.NewerSchemaError as err:
            hint = "use a newer forecast_autotune, or let FORECAST_AUTOTUNE_DIR name another folder"
            self._give_way(f"it has schema {err.version}, this version reads {schema.VERSION}: {hint}", keep=False)
        except (schema.NotAStoreError, sqlite3.Error, OSError) as err:
            self._give_way(error_text(err) or "it is not a store of this package")

    def _set_aside(self, reason: Exception, seen: filesystem.Identity | None) -> bool:
        """Rename the broken store away; False where that cannot be done."""
        if self.warnings.quiet:
            return False
        self._close_file()
        try:
            aside = filesystem.set_aside(self._file, seen)
        except OSError:
            return False
        if aside is not None:
            self.warnings.warn_once(
                "broken",
                f"store {self._file} is broken ({str(reason) or 'not a store of this package'}): it is kept as "
                f"{aside.name}, and a fresh one is begun",
            )
        return True

    def _give_way(self, reason: str, *, keep: bool = True) -> None:
        """Go on in memory; `keep` with what can be read from the file."""
        self._close_file()
        self._gave_way = True
        self._identity = None
        copy = database.open_copy(self._file) if keep else None
        self._connection = database.open_memory() if copy is None else copy
        refused, read = ("used", "") if copy is None else ("written to", "what it holds is read, and ")
        self.warnings.warn_once(
            "memory",
            f"store {self._file} cannot be {refused} ({reason}): {read}what this process learns is kept in memory alone. "
            "'forecast-autotune doctor' says more",
        )

    # Forking --------------------------------------------------------------------------------------------------------

    def before_fork(self) -> bool:
        """Close the file, and hold the lock until the fork is done; False where another thread is busy with it for long.

        A child inherits what SQLite remembers of its process's locks, and would believe to hold them. Seen without this:
        when the parent closed first, what the child recorded from then on was lost without a word; forked while another
        thread wrote, the child found the file locked for ever.
        """
        # A series of forks, such as a loader's workers, waits once.
        self._fork_waits = self.lock.acquire(timeout=FORK_WAIT_S if self._fork_waits else 0)
        if not self._fork_waits:
            return False
        if self._connection is not None and not self.in_memory:
            with suppress(Exception):
                database.skip_checkpoint(self._connection)
            self._close_file()
            self._identity = None
        self._ready_for_fork = True
        return True

    def after_fork_in_parent(self) -> None:
        """Let other threads use the store again; the next operation opens the file."""
        self._ready_for_fork = False
        with suppress(RuntimeError):  # an interrupt came before the lock was had
            self.lock.release()

    def after_fork_in_child(self) -> None:
        """Leave the parent's connection alone, and open the file when it is needed.

        The lock may be held by a thread that does not exist here, so it is replaced. That thread may be opening the file,
        which `_connection` does not show yet.
        """
        inherited = self._inherited or not (self._ready_for_fork or self.in_memory)
        leave_to_parent(self._connection)
        self._reset()
        self._inherited = inherited


def leave_to_parent(connection: sqlite3.Connection | None) -> None:
    """Keep a connection made before a fork from being collected: SQLite must neither use nor close it in the child."""
    if connection is not None:
        _OF_PARENTS.append(connection)
