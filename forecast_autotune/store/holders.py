"""Who tunes a job now, written in the store so that other processes can name it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .connection import StoreConnection

if TYPE_CHECKING:
    import sqlite3


def this_process() -> str:
    """A name for this process and thread that people can read and no other process has."""
    import platform

    rank = os.environ.get("RANK")
    prefix = f"rank {rank}, " if rank else ""
    return f"{prefix}process {os.getpid()} of {platform.node()}, thread {threading.get_ident():x}"


def _write_holder(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Write who holds a job's lock, in place of what an earlier holder left: its name and the configs claimed then."""
    connection.execute("DELETE FROM claim WHERE job = ?", (job,))
    connection.execute("INSERT OR REPLACE INTO flight (job, holder) VALUES (?, ?)", (job, holder))


@contextmanager
def named_holder(connection: StoreConnection, job: str) -> Iterator[None]:
    """Let other processes read who holds a job's lock, while this is held.

    Args:
        connection: the store's.
        job: digest of its decision.
    """
    holder, process = this_process(), os.getpid()
    connection.write(lambda opened: _write_holder(opened, job, holder))
    try:
        yield
    finally:
        if os.getpid() == process:  # else the child of a fork leaves this block too, while its parent goes on
            connection.write(lambda opened: _remove_holder(opened, job, holder))


def holder_of(connection: sqlite3.Connection, job: str) -> str | None:
    """Who holds a job's lock; None where nobody has written a name."""
    row = connection.execute("SELECT holder FROM flight WHERE job = ?", (job,)).fetchone()
    return None if row is None else str(row[0])


def _remove_holder(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Remove what `_write_holder` wrote, and the claims on the job, unless another holder has come meanwhile."""
    removed = connection.execute("DELETE FROM flight WHERE job = ? AND holder = ?", (job, holder)).rowcount
    if removed:
        connection.execute("DELETE FROM claim WHERE job = ?", (job,))
