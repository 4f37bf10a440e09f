"""The local copy of what was read from a remote store, in a store of its own, with notes of what was read and sent.

It lies in `remote/<digest of the URL>/` in the store's folder. Removing it costs reading everything again, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..store import decisions, rows, tuning_keys
from ..store.jsonl import import_entries
from ..store.recordings import recording_at
from ..store.sqlite import SqliteStore
from .location import ListedSegment
from .segments import Contents, Withdrawn

if TYPE_CHECKING:
    import sqlite3

TAKEN, OURS, REFUSED = "taken", "ours", "refused"
"""What became of a segment: read, written by this machine, or not readable."""

_NOTES = """
CREATE TABLE IF NOT EXISTS segment (
    hardware TEXT NOT NULL, program TEXT NOT NULL, name TEXT NOT NULL,
    size INTEGER NOT NULL,  -- bytes; one that was refused is read again once it has another
    state TEXT NOT NULL,
    PRIMARY KEY (hardware, program, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS listed (  -- when a folder was last listed
    hardware TEXT NOT NULL, program TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (hardware, program)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS withdrawn (
    hardware TEXT NOT NULL, program TEXT NOT NULL, workload TEXT NOT NULL, toolchain TEXT NOT NULL, before REAL NOT NULL,
    PRIMARY KEY (hardware, program, workload, toolchain)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent (  -- for each decision's digest, the digest of the newest one that was sent
    decision TEXT PRIMARY KEY, content TEXT NOT NULL
) WITHOUT ROWID;
"""

_T = TypeVar("_T")


def mirror_folder(directory: Path, url: str) -> Path:
    """Where the mirror of a remote store lies in a store's folder."""
    return directory / "remote" / digest(url)


class Mirror:
    """What this machine has read from one remote store, shared by its processes. No method raises; see `SqliteStore`.

    Args:
        directory: the store's folder, in which it lies; None keeps it in memory.
        url: of the remote store.
        toolchain: as `SqliteStore`.
    """

    def __init__(self, directory: Path | None, url: str, *, toolchain: str = "exact") -> None:
        self.folder = None if directory is None else mirror_folder(directory, url)
        self.store = SqliteStore(self.folder, toolchain=toolchain, alone=False)

    # What a launch asks ---------------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether anything was ever read; if not, no launch pays for making the file."""
        return self.store.path is None or self.store.connection.is_open or self.store.path.exists()

    def decision(self, job: Job) -> Decision | None:
        """The newest decision that holds for a job."""
        complain = self.store.connection.complain
        return self.recalled(partial(decisions.recall, job=job, any_toolchain=False, complain=complain))

    def recalled(self, read: Callable[[sqlite3.Connection], rows.Recall | None]) -> Decision | None:
        """The decision that `read` finds."""
        recalled = self.store.connection.run(read) if self.is_there else None
        return None if recalled is None else recalled.decision

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """The newest outcome of each config of a job."""
        return self.store.outcomes(job) if self.is_there else {}

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """The same program at other keys, on other hardware and under other toolchains."""
        return self.store.related_recordings(job) if self.is_there else ()

    def related_decisions(self, job: Job) -> list[rows.StoredDecision]:
        """Decisions for the program's name and key; see `SqliteStore.related_decisions`."""
        return self.store.related_decisions(job) if self.is_there else []

    def own_recordings(self, job: Job) -> list[Recording]:
        """The job's own outcomes on other machines, as recordings: to forecast from, not to decide by."""

        def read(connection: sqlite3.Connection) -> list[Recording]:
            tuning_key, complain = rows.TuningKey.of(job), self.store.connection.complain
            found = (
                recording_at(connection, tuning_key, ids, complain)
                for ids in tuning_keys.tuning_keys_of(connection, tuning_key)
            )
            return [recording for recording in found if recording is not None]

        return (self.store.connection.run(read) if self.is_there else None) or []

    # Notes ----------------------------------------------------------------------------------------------------------

    def unread(self, segments: Sequence[ListedSegment]) -> list[ListedSegment]:
        """Those of a listing that are new here, or have changed since they could not be read."""
        known: dict[tuple[str, str, str], tuple[str, int]] = {}

        def read(connection: sqlite3.Connection) -> None:
            for hardware, program in {(s.hardware, s.program) for s in segments}:
                of_folder = connection.execute(
                    "SELECT name, state, size FROM segment WHERE hardware = ? AND program = ?", (hardware, program)
                )
                known.update(((hardware, program, name), (state, size)) for name, state, size in of_folder)

        self._run(read)

        def is_read(segment: ListedSegment) -> bool:
            state, size = known.get((segment.hardware, segment.program, segment.name), (REFUSED, -1))
            return state != REFUSED or size == segment.size

        return [segment for segment in segments if not is_read(segment)]

    def listed_at(self, hardware: str, program: str) -> float:
        """When a process of this machine last listed a folder, in seconds since the epoch; 0 if none did."""

        def read(connection: sqlite3.Connection) -> float:
            row = connection.execute(
                "SELECT at FROM listed WHERE hardware = ? AND program = ?", (hardware, program)
            ).fetchone()
            return 0.0 if row is None else float(row[0])

        return self._run(read) or 0.0

    def keep_listing(self, hardware: str, program: str, segments: Sequence[ListedSegment]) -> None:
        """Note that a folder was listed just now, and forget segments that are gone from it; what they held stays."""
        names = {s.name for s in segments}

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO listed VALUES (?, ?, ?)", (hardware, program, rows.now()))
            known = connection.execute(
                "SELECT name FROM segment WHERE hardware = ? AND program = ?", (hardware, program)
            ).fetchall()
            connection.executemany(
                "DELETE FROM segment WHERE hardware = ? AND program = ? AND name = ?",
                [(hardware, program, name) for (name,) in known if name not in names],
            )

        self._write(write)

    def take(self, read: Sequence[tuple[ListedSegment, Contents | None]]) -> tuple[int, int]:
        """Take in what segments hold, all of it or nothing; None for one that is refused.

        Returns:
            How many outcomes and decisions are new.
        """
        new = (0, 0)

        def write(connection: sqlite3.Connection) -> None:
            nonlocal new
            outcomes = decided = 0
            folders = set()
            for segment, contents in read:
                folder = segment.hardware, segment.program
                state = REFUSED if contents is None else TAKEN
                connection.execute(
                    "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?)",
                    (*folder, segment.name, segment.size, state),
                )
                if contents is None:
                    continue
                more = import_entries(connection, contents.entries)
                outcomes, decided = outcomes + more[0], decided + more[1]
                _keep_withdrawn(connection, folder, contents.withdrawn)
                folders.add(folder)
            for folder in folders:
                remove_withdrawn(connection, folder[0], _withdrawn_in(connection, folder))
            new = outcomes, decided

        self._write(write)
        return new

    def sent(self) -> dict[str, str]:
        """By the digest of a decision, that of its content when it was last sent."""

        def read(connection: sqlite3.Connection) -> dict[str, str]:
            return dict(connection.execute("SELECT decision, content FROM sent").fetchall())

        return (self._run(read) if self.is_there else None) or {}

    def keep_sent(self, sent: Mapping[str, str], segments: Sequence[ListedSegment]) -> None:
        """Note that decisions were sent, and in which segments."""

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO sent VALUES (?, ?)", sent.items())
            connection.executemany(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?)",
                [(s.hardware, s.program, s.name, s.size, OURS) for s in segments],
            )

        self._write(write)

    def forget_sent(self, decisions: Sequence[str]) -> None:
        """Drop the notes that decisions, by the digests they are noted under, were sent."""

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM sent WHERE decision = ?", [(name,) for name in decisions])

        self._write(write)

    def _run(self, operation: Callable[[sqlite3.Connection], _T]) -> _T | None:
        def noted(connection: sqlite3.Connection) -> _T:
            _make_notes(connection)
            return operation(connection)

        return self.store.connection.run(noted)

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        def noted(connection: sqlite3.Connection) -> None:
            _make_notes(connection)
            write(connection)

        self.store.connection.write(noted)


def _make_notes(connection: sqlite3.Connection) -> None:
    """The tables of notes, where they are missing: a file that was set aside takes them along."""
    for statement in _NOTES.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def _keep_withdrawn(connection: sqlite3.Connection, folder: tuple[str, str], withdrawn: Iterable[Withdrawn]) -> None:
    connection.executemany(
        "INSERT INTO withdrawn VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET before = max(before, excluded.before)",
        [(*folder, w.workload, w.toolchain, w.before) for w in withdrawn],
    )


def _withdrawn_in(connection: sqlite3.Connection, folder: tuple[str, str]) -> list[Withdrawn]:
    found = connection.execute(
        "SELECT workload, toolchain, before FROM withdrawn WHERE hardware = ? AND program = ?", folder
    ).fetchall()
    return [Withdrawn(workload=workload, toolchain=toolchain, before=before) for workload, toolchain, before in found]


def remove_withdrawn(connection: sqlite3.Connection, hardware: str, withdrawn: Iterable[Withdrawn]) -> None:
    """Remove from a store what was withdrawn on one hardware (a digest); the transaction is the caller's."""
    place = (
        "workload = (SELECT id FROM workload WHERE digest = ?) AND hardware IN (SELECT id FROM hardware WHERE digest = ?)"
        " AND toolchain = (SELECT id FROM toolchain WHERE digest = ?)"
    )
    for each in withdrawn:
        values = (each.workload, hardware, each.toolchain, each.before)
        connection.execute(f"DELETE FROM outcome WHERE {place} AND recorded_at <= ?", values)  # noqa: S608  # our own words
        connection.execute(f"DELETE FROM decision WHERE {place} AND decided_at <= ?", values)  # noqa: S608
