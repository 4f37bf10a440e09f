"""What a store's file has gained since one last looked, whichever process wrote it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInputError, StoreError
from . import filesystem
from .decisions import stored_decisions
from .file_access import reading
from .jsonl import Decided, Entry, runs_at
from .tuning_keys import KeyReader

if TYPE_CHECKING:
    import sqlite3


class Following:
    """Looks into a store's file now and then; the file may come to be later than this.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._outcome = self._decision = 0
        if filesystem.identity_of(path) is not None:
            with suppress(StoreError), reading(path) as connection:
                self._outcome, self._decision = _newest(connection)

    def entries(self) -> list[Entry]:
        """Decisions that are new since the last call, and the outcomes of every tuning key that has a new one.

        A file that cannot be read now is looked into the next time.
        """
        if filesystem.identity_of(self.path) is None:
            return []
        try:
            with reading(self.path) as connection:
                return self._new(connection)
        except StoreError:  # it is being made
            return []

    def _new(self, connection: sqlite3.Connection) -> list[Entry]:
        ignored: list[str] = []  # `doctor` and `list` tell of rows that cannot be read
        outcome, decision = _newest(connection)
        if (outcome, decision) == (self._outcome, self._decision):
            return []
        tuning_keys: list[tuple[int, int, int]] = connection.execute(
            "SELECT workload, hardware, toolchain FROM outcome WHERE id > ? UNION"
            " SELECT workload, hardware, toolchain FROM decision WHERE id > ?",
            (self._outcome, self._decision),
        ).fetchall()
        reader, entries = KeyReader(connection), list[Entry]()
        for ids in tuning_keys:
            with suppress(InvalidInputError):
                entries += runs_at(connection, reader.read(*ids), ids, ignored.append)
        for stored in stored_decisions(
            connection, ignored.append, "WHERE id > ?", (self._decision,), newest_first=False
        ):
            entries.append(
                Decided(tuning_key=stored.tuning_key, decision=stored.decision, superseded_at=stored.superseded_at)
            )
        self._outcome, self._decision = outcome, decision
        return entries


def _newest(connection: sqlite3.Connection) -> tuple[int, int]:
    (outcome,) = connection.execute("SELECT coalesce(max(id), 0) FROM outcome").fetchone()
    (decision,) = connection.execute("SELECT coalesce(max(id), 0) FROM decision").fetchone()
    return int(outcome), int(decision)
