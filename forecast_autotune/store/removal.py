"""Rows removed from a store, a few at a time, so that others can write in between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .database import transaction

if TYPE_CHECKING:
    import sqlite3

AT_ONCE = 2_000  # rows removed, or lines taken in, before others may write; 0.1 s

WORTH_SHRINKING = 0.1  # of the file, empty: rewriting what is left takes time and as much room again


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What prune or clear took away."""

    decisions: int
    outcomes: int
    programs: int
    pending: int
    answers: int


def remove(connection: sqlite3.Connection, conditions: Mapping[str, str], values: Mapping[str, object]) -> Removed:
    """Remove from each table the rows that its condition names, with what nothing refers to afterwards.

    Args:
        conditions: by table, in SQL of our own making.
        values: of the names in them.
    """
    removed = Counter[str]()
    for table, condition in conditions.items():
        removed[table] = _remove_gently(connection, table, condition, values)
    programs = _remove_unreferenced(connection)
    _shrink(connection)
    return Removed(
        decisions=removed["decision"],
        outcomes=removed["outcome"],
        programs=programs,
        pending=removed["pending"],
        answers=removed["answer"],
    )


@contextmanager
def taking_turns() -> Iterator[None]:
    """Afterwards, leave the store to others for as long as this took: who records must not wait for a whole prune."""
    began = time.perf_counter()
    yield
    time.sleep(time.perf_counter() - began)


def _remove_gently(connection: sqlite3.Connection, table: str, condition: str, values: Mapping[str, object]) -> int:
    """Remove rows, some at a time, and let others write in between; returns how many went."""
    key = "digest" if table == "pending" else "id"
    after: object = -(2**63)  # before every id, and before every text
    (end,) = connection.execute(f"SELECT max({key}) FROM {table}").fetchone()  # noqa: S608  # what comes later is in use
    removed = 0
    while True:
        with taking_turns(), transaction(connection):
            (last,) = connection.execute(
                f"SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > ? AND {key} <= ? ORDER BY {key} LIMIT ?)",  # noqa: S608  # ours
                (after, end, AT_ONCE),
            ).fetchone()
            if last is None:
                return removed
            removed += connection.execute(  # an outcome's forecast goes with it
                f"DELETE FROM {table} WHERE {key} > :after AND {key} <= :last AND {condition}",  # noqa: S608  # ours
                {**values, "after": after, "last": last},
            ).rowcount
            after = last


def _remove_unreferenced(connection: sqlite3.Connection) -> int:
    """Remove what nothing refers to; returns how many programs went."""

    def remove(table: str, key: str, *referring: tuple[str, str]) -> int:
        unnamed = " AND ".join(f"{key} NOT IN (SELECT {column} FROM {name})" for name, column in referring)  # noqa: S608  # ours
        with taking_turns(), transaction(connection):
            return connection.execute(f"DELETE FROM {table} WHERE {unnamed}").rowcount  # noqa: S608  # names of our own

    for table in ("workload", "hardware", "toolchain"):
        remove(table, "id", ("outcome", table), ("decision", table), ("pending", table))
    remove("text", "id", *(("outcome", column) for column in ("config", "run", "default_config")))
    return remove("program", "digest", ("workload", "program"))


def _shrink(connection: sqlite3.Connection) -> None:
    """Make the file smaller where a good part of it is empty and nobody else has it open; else later rows use the space.

    A million outcomes take ten seconds, in which nobody could write: as long as a process waits before it gives up.
    """
    free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
    if free < pages * WORTH_SHRINKING:
        return
    with suppress(connection.OperationalError):
        # Leaving WAL is refused while anybody else has the file open; who opens it next returns to it.
        connection.execute("PRAGMA busy_timeout = 0")
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("VACUUM")
