"""What one machine sends to a remote store and reads from it. Nothing here runs on a launch's way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.hardware import REHEARSAL_KINDS
from ..core.workload import Program
from ..errors import InvalidInputError
from ..processes.file_lock import file_lock
from ..store import encoding, rows
from ..store.encoding import from_text
from ..store.filesystem import make_folder
from ..store.jsonl import Decided, Entry, runs_at
from ..store.sqlite import SqliteStore
from ..store.tuning_keys import KeyReader
from . import segments
from .location import MAX_PACKED_BYTES, ListedSegment, Location
from .mirror import Mirror, remove_withdrawn
from .segments import Contents, Withdrawn

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

READ_AT_ONCE = 64  # segments; their requests run side by side
SCANNED_AT_ONCE = 2_000  # decisions looked through before a launch may have the store: 2 ms
LOCK_S = 60.0  # to wait for another process of this machine that asks the same; then both ask

Complain = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Unsent:
    """A decision of this machine's own that the remote store does not have: the name it is noted under, and its row."""

    note: str
    content: str
    number: int
    ids: tuple[int, int, int]


class Exchange:
    """The way between this machine's store and a remote one.

    Every method raises what `Location` raises, and leaves what it could not do for the next call.

    Args:
        own: what this machine has measured.
        sources: whether what is sent holds the source text of kernels.
        complain: gets why a segment is left out.
    """

    def __init__(
        self, own: SqliteStore, mirror: Mirror, location: Location, *, sources: bool, complain: Complain
    ) -> None:
        self.own = own
        self.mirror = mirror
        self.location = location
        self.sources = sources
        self._complain = complain

    def after_fork_in_child(self) -> None:
        """Begin anew in the child of a fork."""
        self.location.after_fork_in_child()

    def close(self) -> None:
        """Nothing to end here; an exchange in a process of its own has that process."""

    # Reading --------------------------------------------------------------------------------------------------------

    def pull(self, hardware: str, program: Program, *, fresh_s: float = 0.0) -> tuple[int, int]:
        """Read what is new of a program on one hardware (a digest).

        Args:
            fresh_s: if a process of this machine has listed it in so many seconds, that is good enough.
        Returns:
            How many outcomes and decisions are new here.
        """
        with self._alone():
            passed_s = rows.now() - self.mirror.listed_at(hardware, program.digest)
            if 0 <= passed_s < fresh_s:
                return 0, 0
            listing = self.location.segments(hardware, program.digest)
            new = self._take(self.mirror.unread(listing), program)
            self.mirror.keep_listing(hardware, program.digest, listing)
        return new

    def pull_from_other_hardware(self, hardware: str, program: Program, *, fresh_s: float) -> None:
        """Read what is new of a program on all hardware but one: it seeds forecasts."""
        for other in self.location.hardware():
            if other != hardware:
                self.pull(other, program, fresh_s=fresh_s)

    def pull_known(self) -> tuple[int, int]:
        """Read what is new of all programs that this machine's store knows the source of."""
        outcomes = decided = 0
        known = self._programs()
        for hardware in self.location.hardware():
            for program in known:
                new = self.pull(hardware, program)
                outcomes, decided = outcomes + new[0], decided + new[1]
        return outcomes, decided

    def _take(self, listing: Sequence[ListedSegment], program: Program) -> tuple[int, int]:
        outcomes = decided = 0
        for start in range(0, len(listing), READ_AT_ONCE):
            batch = listing[start : start + READ_AT_ONCE]
            too_large = [s for s in batch if s.size > MAX_PACKED_BYTES]
            for segment in too_large:
                self._complain(
                    f"segment {segment.path} of {self.location.shown} is left out: it has {segment.size} bytes"
                )
            read: list[tuple[ListedSegment, Contents | None]] = [(segment, None) for segment in too_large]
            for segment, data in self.location.read([s for s in batch if s.size <= MAX_PACKED_BYTES]):
                read.append((segment, self._decoded(segment, data, program)))
            new = self.mirror.take(read)
            outcomes, decided = outcomes + new[0], decided + new[1]
        return outcomes, decided

    def _decoded(self, segment: ListedSegment, data: bytes, program: Program | None) -> Contents | None:
        try:
            contents = segments.decode(
                data, segment.path, hardware=segment.hardware, program=segment.program, known=program
            )
        except InvalidInputError as err:
            self._complain(f"a segment of {self.location.shown} is left out: {err}")
            return None
        return segments.not_after(contents, segment.at)

    # Sending --------------------------------------------------------------------------------------------------------

    def push(self) -> int:
        """Send decisions that the remote store does not have, with the outcomes of their keys; returns how many."""
        sent = 0
        with self._alone():
            for (hardware, program), unsent in self._by_folder(self._unsent()).items():
                entries = [entry for each in unsent for entry in self._entries(each)]
                written = self._write(hardware, program, Contents(entries=tuple(entries)))
                self.mirror.keep_sent({each.note: each.content for each in unsent}, written)
                sent += len(unsent)
        return sent

    def removed(self) -> list[Unsent]:
        """What was sent to folders that hold no segment now, for somebody has emptied the remote store.

        It lists each folder that this machine has sent to: for commands.
        """
        sent = self.mirror.sent()
        arrived = self._by_folder(each for each in self._decisions() if sent.get(each.note) == each.content)
        return [
            each
            for (hardware, program), decisions in arrived.items()
            if not self.location.segments(hardware, program)
            for each in decisions
            if self._entries(each)
        ]

    def forget_removed(self) -> None:
        """Count `removed` as not sent."""
        self.mirror.forget_sent([each.note for each in self.removed()])

    def unsent(self) -> list[Unsent]:
        """This machine's own decisions that hold and were not sent; those of rehearsals are no other machine's concern."""
        return [each for some in self._by_folder(self._unsent()).values() for each in some]

    def _unsent(self) -> Iterator[Unsent]:
        sent = self.mirror.sent()
        return (each for each in self._decisions() if sent.get(each.note) != each.content)

    def _decisions(self) -> Iterator[Unsent]:
        after = -1
        while True:

            def read(connection: sqlite3.Connection, after: int = after) -> list[tuple[int, str, int, int, int, float]]:
                return connection.execute(
                    "SELECT decision.id, decision.digest, workload, hardware, toolchain, decided_at FROM decision"
                    " WHERE superseded_at IS NULL AND id > ? ORDER BY id LIMIT ?",
                    (after, SCANNED_AT_ONCE),
                ).fetchall()

            some = self.own.connection.run(read) or []
            for number, name, workload, hardware, toolchain, decided_at in some:
                note = f"{name}/{hardware}"  # the same key under another power limit is another hardware's row
                yield Unsent(note, f"{number} {decided_at}", number, (workload, hardware, toolchain))
            if len(some) < SCANNED_AT_ONCE:
                return
            after = some[-1][0]

    def _by_folder(self, unsent: Iterable[Unsent]) -> dict[tuple[str, str], list[Unsent]]:
        folders: dict[tuple[str, str], list[Unsent]] = {}
        for each in unsent:
            if (tuning_key := self._place(each)) is not None and tuning_key.hardware.kind not in REHEARSAL_KINDS:
                folders.setdefault((tuning_key.hardware.digest, tuning_key.workload.program.digest), []).append(each)
        return folders

    def _place(self, unsent: Unsent) -> rows.TuningKey | None:
        def read(connection: sqlite3.Connection) -> rows.TuningKey | None:
            try:
                return KeyReader(connection).read(*unsent.ids)
            except InvalidInputError as err:
                self.own.connection.complain(str(err))
                return None

        return self.own.connection.run(read)

    def _entries(self, unsent: Unsent) -> list[Entry]:
        """A decision that was measured, and all outcomes of its key; without the forecasts, which say nothing elsewhere."""

        def read(connection: sqlite3.Connection) -> list[Entry]:
            complain = self.own.connection.complain
            row = connection.execute("SELECT value FROM decision WHERE id = ?", (unsent.number,)).fetchone()
            try:
                if row is None:
                    return []
                decision = encoding.decode_decision(from_text(row[0], f"decision {unsent.number}"))
                tuning_key = KeyReader(connection).read(*unsent.ids)
            except InvalidInputError as err:
                complain(str(err))
                return []
            if decision.basis != "measured":
                return []
            runs = runs_at(connection, tuning_key, unsent.ids, complain)
            bare = [replace(run, outcomes=tuple(replace(o, forecast=None) for o in run.outcomes)) for run in runs]
            return [*bare, Decided(tuning_key=tuning_key, decision=decision, superseded_at=None)]

        return self.own.connection.run(read) or []

    def _write(
        self, hardware: str, program: str, contents: Contents, *, sources: bool | None = None
    ) -> list[ListedSegment]:
        written = []
        for data in segments.encode(hardware, program, contents, sources=self.sources if sources is None else sources):
            name = segments.name_of(data)
            self.location.write(hardware, program, name, data)
            written.append(ListedSegment(hardware=hardware, program=program, name=name, size=len(data), at=None))
        return written

    def everything(self) -> Iterator[tuple[str, str, Contents]]:
        """All of this machine's own that may be sent, sent or not, each with the digests of its hardware and program."""
        for (hardware, program), decisions in self._by_folder(self._decisions()).items():
            entries = tuple(entry for each in decisions for entry in self._entries(each))
            yield hardware, program, Contents(entries=entries)

    # Tidying --------------------------------------------------------------------------------------------------------

    def compact(self, *, since: float | None = None) -> tuple[list[ListedSegment], list[ListedSegment]]:
        """Write each program's segments anew as few, then remove the old ones.

        What is withdrawn or superseded is left out; segments that cannot be read stay as they are. Who reads meanwhile sees
        both or the new one, and merges them to the same.

        Args:
            since: leave out what is older, in seconds since the epoch.
        Returns:
            The segments written, and those removed.
        """
        folders: dict[tuple[str, str], list[ListedSegment]] = {}
        for segment in self.location.all_segments():
            folders.setdefault((segment.hardware, segment.program), []).append(segment)
        written, removed = [], []
        for (hardware, program), listing in folders.items():
            readable, parts = self._read_folder(listing)
            if len(readable) < 2 and since is None:
                continue
            kept = segments.union(parts) if since is None else segments.since(segments.union(parts), since)
            new = self._write(hardware, program, kept, sources=True)  # as they came: what has no source gets none here
            names = {segment.name for segment in new}
            old = [segment for segment in readable if segment.name not in names]
            self.location.remove(old)
            written += [segment for segment in new if segment.name not in {s.name for s in readable}]
            removed += old
        return written, removed

    def _read_folder(self, listing: Sequence[ListedSegment]) -> tuple[list[ListedSegment], list[Contents]]:
        readable, parts = [], []
        for start in range(0, len(listing), READ_AT_ONCE):
            batch = [s for s in listing[start : start + READ_AT_ONCE] if s.size <= MAX_PACKED_BYTES]
            for segment, data in self.location.read(batch):
                if (contents := self._decoded(segment, data, None)) is not None:
                    readable.append(segment)
                    parts.append(contents)
        return readable, parts

    def withdraw(self, withdrawing: Iterable[rows.StoredDecision]) -> int:
        """Say that all known so far of some decisions' keys counts no more; this machine's own store forgets it too.

        Returns:
            How many segments say so.
        """
        folders: dict[tuple[str, str], list[Withdrawn]] = {}
        for stored in withdrawing:
            workload, hardware, toolchain = stored.tuning_key.digests
            before = max(rows.now(), stored.decision.decided_at)  # this machine's clock may be behind
            folders.setdefault((hardware, stored.tuning_key.workload.program.digest), []).append(
                Withdrawn(workload=workload, toolchain=toolchain, before=before)
            )
        count = 0
        for (hardware, program), withdrawn in folders.items():
            contents = Contents(withdrawn=tuple(withdrawn))
            written = self._write(hardware, program, contents)
            got_at = {segment.name: segment.at for segment in self.location.segments(hardware, program)}
            for segment in written:
                self.mirror.take([(segment, segments.not_after(contents, got_at.get(segment.name)))])
            count += len(written)
            self.own.connection.write(lambda opened, h=hardware, w=withdrawn: remove_withdrawn(opened, h, w))  # type: ignore[misc]
        return count

    # ----------------------------------------------------------------------------------------------------------------

    def _programs(self) -> list[Program]:
        """The programs whose source this machine's store has."""

        def read(connection: sqlite3.Connection) -> list[Program]:
            values = connection.execute("SELECT value FROM program").fetchall()
            programs = (_program(value, self.own.connection.complain) for (value,) in values)
            return [program for program in programs if program is not None]

        return self.own.connection.run(read) or []

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold this machine's other processes off, so that they do not ask the same; where no lock can be had, without."""
        folder = self.mirror.folder
        lock = None
        if folder is not None:
            try:
                make_folder(folder)
                lock = file_lock(folder / "exchange.lock", timeout=LOCK_S)
                lock.__enter__()
            except (OSError, RuntimeError) as err:  # a TimeoutError is an OSError
                log.debug("%s: no lock: %s", folder, err)
                lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.__exit__(None, None, None)


def _program(value: object, complain: Complain) -> Program | None:
    try:
        return encoding.decode_program(from_text(value, "program"))
    except InvalidInputError as err:
        complain(str(err))
        return None
