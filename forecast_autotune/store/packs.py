"""Packs: exported files that are looked up after the store, all of them in one database in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.text import error_text
from ..errors import InvalidInputError
from . import database
from .connection import leave_to_parent
from .held_warnings import HeldWarnings

if TYPE_CHECKING:
    import sqlite3


class Packs:
    """The packs of one store, read when they are first asked for; the store's lock guards them.

    Args:
        paths: JSON-lines files, as `export` writes them. One that cannot be read is left out, with a warning.
        warnings: where trouble is reported.
    """

    def __init__(self, paths: Sequence[Path], *, warnings: HeldWarnings) -> None:
        self.paths = tuple(paths)
        self._warnings = warnings
        self._connection: sqlite3.Connection | None = None

    def __bool__(self) -> bool:
        return bool(self.paths)

    def open(self) -> sqlite3.Connection:
        """The database in memory that holds all packs."""
        if self._connection is None:
            self._connection = self._read()
        return self._connection

    def close(self) -> None:
        """Forget what was read; a later call reads the packs again."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None

    def after_fork_in_child(self) -> None:
        """Leave the parent's connection alone; a later call reads the packs again."""
        leave_to_parent(self._connection)
        self._connection = None

    def _read(self) -> sqlite3.Connection:
        from .jsonl import import_entries, read_entries

        connection = database.open_memory()
        for pack in self.paths:  # at equal times, what is written first holds
            try:
                entries = read_entries(pack)
            except (OSError, InvalidInputError) as err:
                self._warnings.warn_once(f"pack {pack}", f"pack {pack} is left out: {error_text(err)}")
                continue
            with database.transaction(connection):
                import_entries(connection, entries)
        return connection
