"""Writes of a store that can wait: recalls of decisions, and keys noted as pending."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from . import rows
from .decisions import count_hits
from .pending import keep_pending

if TYPE_CHECKING:
    import sqlite3

MAX_NOTED = 64  # pending keys that a process remembers having noted: programs meet ever new ones


class DeferredWrites:
    """What is written with the next row, or when the process ends; the store's lock guards it."""

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}  # recalls not written yet, by decision
        self._counted: set[int] = set()  # decisions that this process has recalled
        self._noted: set[str] = set()  # keys that this process has noted as pending of late
        self._pending: list[rows.Pending] = []  # those of them that the file does not have yet

    def __bool__(self) -> bool:
        return bool(self._hits or self._pending)

    def count(self, decision: int) -> bool:
        """Count a recall of a decision; False where this process has counted one already."""
        if decision in self._counted:
            return False
        self._counted.add(decision)
        self._hits[decision] = 1
        return True

    def note(self, pending: rows.Pending) -> bool:
        """Note a pending key; False where this process has noted it already."""
        if pending.digest in self._noted:
            return False
        if len(self._noted) >= MAX_NOTED:
            self._noted.clear()  # a process that meets one of them again writes it again
        self._noted.add(pending.digest)
        self._pending.append(pending)
        return True

    def forget_note(self, digest: str) -> None:
        """Let a key be noted again: it was decided."""
        self._noted.discard(digest)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all of it, within the caller's transaction; `written` clears it once that is committed."""
        if self._hits:
            count_hits(connection, self._hits, rows.now())
        for pending in self._pending:
            with suppress(TypeError, ValueError):  # a key that JSON or UTF-8 cannot hold
                keep_pending(connection, pending)

    def written(self) -> None:
        """Clear what was written."""
        self._hits.clear()
        self._pending.clear()
