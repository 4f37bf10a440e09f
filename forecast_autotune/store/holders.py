"""Who tunes a job now, written in the store so that other processes can name it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def this_process() -> str:
    """A name for this process and thread that people can read and no other process has."""
    import platform

    rank = os.environ.get("RANK")
    prefix = f"rank {rank}, " if rank else ""
    return f"{prefix}process {os.getpid()} of {platform.node()}, thread {threading.get_ident():x}"


def write_holder(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Write who holds a job's lock, in place of what an earlier holder left: its name and the configs claimed then."""
    connection.execute("DELETE FROM claim WHERE job = ?", (job,))
    connection.execute("INSERT OR REPLACE INTO flight (job, holder) VALUES (?, ?)", (job, holder))


def holder_of(connection: sqlite3.Connection, job: str) -> str | None:
    """Who holds a job's lock; None where nobody has written a name."""
    row = connection.execute("SELECT holder FROM flight WHERE job = ?", (job,)).fetchone()
    return None if row is None else str(row[0])


def remove_holder(connection: sqlite3.Connection, job: str, holder: str) -> None:
    """Remove what `write_holder` wrote, and the claims on the job, unless another holder has come meanwhile."""
    removed = connection.execute("DELETE FROM flight WHERE job = ? AND holder = ?", (job, holder)).rowcount
    if removed:
        connection.execute("DELETE FROM claim WHERE job = ?", (job,))
