"""Archives of searches: an SQLite file beside the store's, to which rows are added, and of which none is changed until
`clear` removes the file.

A file of its own: a search keeps thousands of programs in full, which nobody who looks up a decision should page through.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.text import error_text
from ..errors import InvalidInputError, StoreError
from . import filesystem
from .database import BUSY_S
from .encoding import fields, from_text, to_text

if TYPE_CHECKING:
    import sqlite3

FILE_NAME = "searches.sqlite3"
APPLICATION_ID = 0x46_41_53_65  # "FASe"
VERSION = 2

_TABLES_1 = """
CREATE TABLE search (
    digest TEXT PRIMARY KEY,  -- of the task, the hardware and the toolchain
    value TEXT NOT NULL,  -- JSON, what it is about, for people
    begun_at REAL NOT NULL  -- seconds since the epoch
) WITHOUT ROWID;
CREATE TABLE tried (
    id INTEGER PRIMARY KEY,
    search TEXT NOT NULL REFERENCES search (digest),
    candidate TEXT NOT NULL,  -- digest
    value TEXT NOT NULL,  -- JSON: the program, what was forecast, and what came of it
    tried_at REAL NOT NULL,
    UNIQUE (search, candidate)
);
"""
_TABLES_2 = """
CREATE TABLE skill (
    id INTEGER PRIMARY KEY,
    search TEXT NOT NULL REFERENCES search (digest),
    skill TEXT NOT NULL,  -- digest
    value TEXT NOT NULL,  -- JSON
    learnt_at REAL NOT NULL,
    UNIQUE (search, skill)
);
"""
_ADDED = {1: _TABLES_1, 2: _TABLES_2}  # by each version to the one before it


class SearchFile:
    """The archives of all searches of a store's folder. Unlike the store it raises: a search that forgets is of no use.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def begin(self, search: str, about: Mapping[str, object]) -> None:
        """Note what a search is about, the first time.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._open() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO search (digest, value, begun_at) VALUES (?, ?, ?)",
                (search, to_text(dict(about)), time.time()),
            )

    def add(self, search: str, candidate: str, value: Mapping[str, object]) -> None:
        """Add what became of a candidate; it is on the disk when this returns. What was there stays as it was.

        Raises:
            StoreError: the file cannot be written to.
        """
        with self._open() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO tried (search, candidate, value, tried_at) VALUES (?, ?, ?, ?)",
                (search, candidate, to_text(dict(value)), time.time()),
            )

    def rows(self, search: str) -> list[tuple[str, Mapping[str, object]]]:
        """What was tried, in its order: the candidate's digest, and its record. A row that does not read raises.

        Raises:
            StoreError: the file cannot be read, or a row of it.
        """
        if not self.path.exists():
            return []
        with self._open() as connection:
            selected = connection.execute(
                "SELECT candidate, value FROM tried WHERE search = ? ORDER BY id", (search,)
            ).fetchall()
        try:
            return [(str(c), fields(from_text(v, f"candidate {c}"), f"candidate {c}")) for c, v in selected]
        except InvalidInputError as err:
            raise StoreError(f"{self.path} holds a row that cannot be read ({err}): move the file away") from None

    def learn(self, search: str, skill: str, value: Mapping[str, object]) -> None:
        """Add a skill that a search taught. What was there stays as it was.

        Raises:
            StoreError: the file cannot be written to.
        """
        with self._open() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO skill (search, skill, value, learnt_at) VALUES (?, ?, ?, ?)",
                (search, skill, to_text(dict(value)), time.time()),
            )

    def skills(self) -> list[Mapping[str, object]]:
        """Every skill that any search taught, the newest first.

        Raises:
            StoreError: the file cannot be read, or a row of it.
        """
        if not self.path.exists():
            return []
        with self._open() as connection:
            selected = connection.execute("SELECT value FROM skill ORDER BY id DESC").fetchall()
        try:
            return [fields(from_text(value, "a skill"), "a skill") for (value,) in selected]
        except InvalidInputError as err:
            raise StoreError(f"{self.path} holds a skill that cannot be read ({err}): move the file away") from None

    def remove(self) -> int:
        """Forget all searches, and the skills that they taught; returns how many searches there were.

        Raises:
            StoreError: the file is none of ours, or cannot be removed.
        """
        if not self.path.exists():
            return 0
        with self._open() as connection:
            (count,) = connection.execute("SELECT count(*) FROM search").fetchone()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as err:
            raise StoreError(f"the archive of searches {self.path} cannot be removed ({error_text(err)})") from None
        return int(count)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        try:
            filesystem.make_folder(self.path.parent)
            filesystem.make_file(self.path)
            connection = sqlite3.connect(str(self.path), timeout=BUSY_S, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                self._check(connection)
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()  # what was not committed is as though it had never been
        except (sqlite3.Error, OSError) as err:
            raise StoreError(
                f"the archive of searches {self.path} cannot be used ({error_text(err) or err}): move it away, or let "
                "FORECAST_AUTOTUNE_DIR name another folder"
            ) from None

    def _check(self, connection: sqlite3.Connection) -> None:
        kind, version = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
        )
        new = (kind, version) == (0, 0) and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if new or (kind == APPLICATION_ID and 0 < version < VERSION):
            for added in range(version + 1, VERSION + 1):
                for statement in _ADDED[added].split(";\n"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        elif kind != APPLICATION_ID or version != VERSION:
            raise StoreError(
                f"{self.path} is no archive of searches that this version reads (version {version}, this one "
                f"reads {VERSION}): "
                "move it away"
            )
