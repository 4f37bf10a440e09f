"""A store as an SQLite database: opened, brought to this version's schema, given a journal that works, and checked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import filesystem, schema

if TYPE_CHECKING:
    import sqlite3

BUSY_S = 20.0
"""How long a write waits for other processes'. 32 that began at one moment, ten rows each, waited up to 0.6 s (ext4, two
cores)."""

MIGRATION_S = 120.0
"""How long to wait for another process that migrates an older file to this version's schema. A million outcomes took 9 s
(ext4, two cores)."""

SNAPSHOT_S = 1.0
"""How long to wait for a file that is only to be copied, by a process that cannot use it."""

CHECKED_BYTES = 32 * 2**20
"""The largest file that is read in whole before a process first adds to it: 2 to 3 ms for each MiB in Linux's cache."""

JOURNAL_S = 2.0
"""How long to ask for another journal mode while others have the file open."""


def open_file(path: Path, journal: str) -> sqlite3.Connection:
    """Open a store's file for reading and writing, created and brought to this version's schema if need be.

    Raises:
        OSError: the folder or the file cannot be had, or a link stands there.
        sqlite3.Error: SQLite cannot use the file.
        schema.NewerSchemaError, schema.NotAStoreError: it is not for this version, or no store.
    """
    filesystem.make_folder(path.parent)
    try:
        if filesystem.identity_of(path) is None:
            with filesystem.folder_lock(path.parent):
                filesystem.make_file(path)
    except TimeoutError as err:
        raise OSError(f"{err}: another process holds it") from None
    except OSError:
        pass  # no lock can be had here; what it guards against is rare, and no reason to keep nothing
    filesystem.make_file(path)  # refuses a link
    filesystem.refuse_without_locks(path.parent)
    connection = connect(str(path))
    try:
        version = schema.version_of(connection)  # before anything is changed: a newer version's file stays as it is
        _choose_journal(connection, path, journal)
        if version != schema.VERSION:
            connection.execute(f"PRAGMA busy_timeout = {int(MIGRATION_S * 1000)}")
            schema.migrate(connection)
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def read_only(path: Path, *, wait_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """Open a store's file without ever writing to it.

    `wait_s`, else `BUSY_S`, is how long to wait for another process that is just writing.

    Raises:
        sqlite3.Error: SQLite cannot read it.
        schema.NewerSchemaError, schema.NotAStoreError: it is not for this version, or no store.
    """
    import sqlite3

    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        filesystem.refuse_special(path)
    except OSError as err:
        raise schema.NotAStoreError(str(err)) from None
    connection = connect(uri, uri=True, wait_s=wait_s)
    try:
        try:
            filesystem.refuse_without_locks(path.parent)
            schema.version_of(connection)
        except (sqlite3.OperationalError, OSError) as err:
            if "locked" in str(err):
                raise
            # A WAL database in a folder that cannot be written to has no place for its index. Nobody else can be
            # writing there either, which is what `immutable` asks to be promised.
            connection.close()
            connection = connect(uri + "&immutable=1", uri=True)
            schema.version_of(connection)
        yield connection
    finally:
        connection.close()


def open_memory() -> sqlite3.Connection:
    """An empty store in memory."""
    connection = connect(":memory:")
    schema.migrate(connection)
    return connection


def open_copy(path: Path) -> sqlite3.Connection | None:
    """A store in memory with a copy of what a file holds; None where there is none, or it cannot be read."""
    import sqlite3

    if filesystem.identity_of(path) is None:
        return None
    connection = connect(":memory:")
    try:
        with read_only(path, wait_s=SNAPSHOT_S) as source:
            source.backup(connection)
        schema.migrate(connection)
        # Refused where the file's header forbids writing, which was copied with all else.
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    except (sqlite3.Error, schema.NewerSchemaError, schema.NotAStoreError):
        connection.close()
        return None
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; the lock for writing is taken at the start, where waiting for it is safe."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(Exception):  # the error that led here is the one to raise
                connection.execute("ROLLBACK")
        raise


def is_broken(err: Exception, connection: sqlite3.Connection | None = None) -> bool:
    """Whether an error says that the file's content is at fault, not the disk or another process.

    A constraint also fails where a newer version has changed the tables meanwhile: the file is asked what is wrong with it.
    """
    import sqlite3

    if isinstance(err, schema.NotAStoreError) or type(err) is sqlite3.DatabaseError:
        return True  # "file is not a database", "database disk image is malformed"
    if isinstance(err, sqlite3.IntegrityError) and connection is not None:
        checks = ("integrity_check", "foreign_key_check")
        try:
            problems = [row for check in checks for row in connection.execute(f"PRAGMA {check}")]
        except sqlite3.Error as other:
            return is_broken(other)
        return problems != [("ok",)]
    damaged = ("no such table", "no such column", "unsupported file format")
    return isinstance(err, sqlite3.OperationalError) and any(words in str(err) for words in damaged)


def damage(connection: sqlite3.Connection) -> list[str]:
    """What is wrong with a file's pages and indexes. Odd values are no damage: readers skip them."""
    lines = (line.splitlines()[-1] for (line,) in connection.execute("PRAGMA integrity_check"))
    return [line for line in lines if line != "ok" and " value in " not in line]


def refuse_damaged(connection: sqlite3.Connection) -> bool:
    """Check a whole file, if it is not large, before rows are added: rows added to a damaged page may be lost unseen.

    Indexes that disagree with their rows are rebuilt, so that a flipped bit costs its row alone.

    Returns:
        whether indexes were rebuilt.
    Raises:
        sqlite3.DatabaseError: more than indexes is damaged.
    """
    import sqlite3

    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if pages * size > CHECKED_BYTES or not damage(connection):
        return False
    with suppress(sqlite3.IntegrityError):  # rows that stand there twice
        connection.execute("REINDEX")
    if problems := damage(connection):
        raise sqlite3.DatabaseError(problems[0])
    return True


def connect(target: str, *, uri: bool = False, wait_s: float | None = None) -> sqlite3.Connection:
    """A connection for any thread (the store's lock takes turns), with transactions begun by hand."""
    import sqlite3

    timeout = BUSY_S if wait_s is None else wait_s
    connection = sqlite3.connect(target, timeout=timeout, isolation_level=None, check_same_thread=False, uri=uri)
    # A flipped bit in a text must not cost all that stands beside it: what is left of the text shows that it is damaged.
    connection.text_factory = lambda data: data.decode(errors="replace")
    # What sqlite.org/security.html advises for files that somebody may have made or a disk may have changed.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    # Pages that come free need not be overwritten, as some builds of SQLite do: a million outcomes took 1.4 GB of log more.
    connection.execute("PRAGMA secure_delete = FAST")
    return connection


def skip_checkpoint(connection: sqlite3.Connection) -> None:
    """Let a connection leave its log where it is when it is closed: syncing the disk makes a fork take 13 ms, not 0.7."""
    if sys.version_info >= (3, 12):
        import sqlite3

        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)


def _choose_journal(connection: sqlite3.Connection, path: Path, journal: str) -> None:
    """WAL where it works: readers and a writer do not wait for each other, and no row waits for the disk."""
    rollback = journal == "rollback" or (journal == "auto" and filesystem.on_network(path))
    mode = _set_journal(connection, "delete" if rollback else "wal")
    if mode not in ("wal", "delete"):
        mode = _set_journal(connection, "delete")
    # In WAL mode NORMAL loses at most the last rows at a power failure and never breaks the file; a rollback journal
    # needs FULL for that.
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")


def _set_journal(connection: sqlite3.Connection, wanted: str) -> str:
    """Ask for a journal mode; returns the one in force, which others who have the file open may hold it to."""
    import sqlite3

    deadline = time.monotonic() + JOURNAL_S
    while True:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        if mode == wanted:
            return mode
        try:
            return str(connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0])
        except sqlite3.OperationalError as err:
            # Changing it needs the file for oneself and does not wait for that, whatever the timeout says.
            if "locked" not in str(err) or time.monotonic() > deadline:
                return mode
            time.sleep(0.01)
