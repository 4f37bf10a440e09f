"""What the command does with a store: look, count, prune, clear, export, import. Unlike the store itself, it raises."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.hardware import REHEARSAL_KINDS
from ..core.job import Recording
from ..core.knob_effect import KnobEffect
from ..core.outcome import Failure, Measurement
from ..core.workload import Program
from ..errors import InvalidInputError
from ..features.knob_effects import mine_knob_effects
from . import filesystem, removal, rows
from .calibration_pairs import Pair, kinds_of, newest_pairs
from .config_files.base import Tuned
from .database import damage, transaction
from .decisions import Parameters, stored_decisions
from .details import DecisionDetail, detail_of
from .file_access import is_marked_read_only, reading, writing
from .jsonl import Entry, export_lines, import_entries, stream_entries
from .outcomes import default_of, measurement_of, newest_failures
from .pending import stored_pending
from .recordings import newest_recordings
from .removal import Removed
from .rows import Complain, Pending, StoredDecision, TuningKey
from .stats import StoreStats, collect_stats
from .textfile import write_lines
from .tuning_keys import hardware_of

if TYPE_CHECKING:
    import sqlite3

UNSEEN_DAYS = 90

MINED_OUTCOMES = (
    20_000  # the newest, for all knob effects there are; reading and mining them takes 2 s (two busy cores)
)

_NAMED = "workload IN (SELECT workload.id FROM workload JOIN program ON program = program.digest WHERE name = :name)"


class StoreFile:
    """The store in a folder, as the command sees it.

    Args:
        directory: the folder of `store.sqlite3`.
    """

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory) / filesystem.FILE_NAME
        self.unreadable: list[str] = []
        """Rows that did not decode and were passed over, each with what is wrong."""

    def exists(self) -> bool:
        """Whether there is a file."""
        return filesystem.identity_of(self.path) is not None

    # Looking --------------------------------------------------------------------------------------------------------

    def decisions(
        self,
        *,
        kernel: str | None = None,
        hardware: str | None = None,
        limit: int | None = None,
        superseded: bool = False,
    ) -> list[StoredDecision]:
        """Decisions that hold, the newest first; filters match any part of a name, whatever its case."""
        with closing(self.each_decision(kernel=kernel, hardware=hardware, superseded=superseded)) as decisions:
            return list(islice(decisions, limit))

    def each_decision(
        self, *, kernel: str | None = None, hardware: str | None = None, superseded: bool = False
    ) -> Generator[StoredDecision]:
        """The same decisions, read one by one: however many there are, they take no memory."""
        with reading(self.path) as connection:
            where, values = _which(connection, kernel, hardware, self.unreadable.append, superseded=superseded)
            yield from stored_decisions(connection, self.unreadable.append, where, values)

    def count(self, *, kernel: str | None = None, hardware: str | None = None, superseded: bool = False) -> int:
        """How many decisions fit the filters of `decisions`, those that cannot be read included."""
        with reading(self.path) as connection:
            where, values = _which(connection, kernel, hardware, self.unreadable.append, superseded=superseded)
            return int(connection.execute(f"SELECT count(*) FROM decision {where}", values).fetchone()[0])  # noqa: S608  # ours

    def each_timed_decision(
        self, *, kernel: str | None = None, hardware: str | None = None, superseded: bool = False
    ) -> Generator[tuple[StoredDecision, Measurement | None]]:
        """The same decisions, each with the newest measurement of its config under its tuning key, where there is one."""
        with reading(self.path) as connection:
            where, values = _which(connection, kernel, hardware, self.unreadable.append, superseded=superseded)
            for stored in stored_decisions(connection, self.unreadable.append, where, values):
                yield stored, measurement_of(connection, stored.id, stored.decision.config, self.unreadable.append)

    def each_tuned(self, *, kernel: str | None = None, hardware: str | None = None) -> Generator[Tuned]:
        """Measured decisions for GPUs, the newest first, each with the default it was compared with."""
        with reading(self.path) as connection:
            where, values = _which(connection, kernel, hardware, self.unreadable.append, superseded=False)
            for stored in stored_decisions(connection, self.unreadable.append, where, values):
                kind = stored.tuning_key.hardware.kind
                if stored.decision.basis == "measured" and kind not in (*REHEARSAL_KINDS, "cpu"):
                    default = default_of(connection, stored.id, self.unreadable.append)
                    yield Tuned(tuning_key=stored.tuning_key, decision=stored.decision, default=default)

    def kernels(self) -> list[str]:
        """The names of all kernels that anything is known of."""
        with reading(self.path) as connection:
            return [str(name) for (name,) in connection.execute("SELECT DISTINCT name FROM program ORDER BY name")]

    def find(self, key: str) -> list[StoredDecision]:
        """Decisions that a person means: of the kernel of exactly that name; else those whose digest starts with the key.

        Else every kernel with the key in its name counts, as in `decisions`.
        """
        start = key.lower()
        if not start or not _is_storable(key):
            return []
        with reading(self.path) as connection:

            def matching(where: str, values: Parameters) -> list[StoredDecision]:
                return list(stored_decisions(connection, self.unreadable.append, where, values))

            if of_name := matching(f"WHERE superseded_at IS NULL AND {_NAMED}", {"name": key}):
                return of_name
            if not start.strip("0123456789abcdef"):
                # What starts with a text comes after it, and before it with a further letter behind every digit.
                digests = "WHERE superseded_at IS NULL AND digest >= ? AND digest < ?"
                if decisions := matching(digests, (start, f"{start}g")):
                    return decisions
            return matching(*_which(connection, key, None, self.unreadable.append, superseded=False))

    def detail(self, stored: StoredDecision) -> DecisionDetail:
        """Everything that is known around one decision."""
        with reading(self.path) as connection:
            return detail_of(connection, stored, self.unreadable.append)

    def knob_effects(self, *, kernel: str | None = None, hardware: str | None = None) -> list[KnobEffect]:
        """The effects of single knobs, mined from the newest outcomes, the most telling first; filters as in `decisions`."""

        def fits(tuning_key: TuningKey) -> bool:
            return is_meant(kernel, tuning_key.workload.program.name) and is_meant(hardware, tuning_key.hardware.name)

        with reading(self.path) as connection:
            return mine_knob_effects(newest_recordings(connection, fits, MINED_OUTCOMES, self.unreadable.append))

    def recordings(self) -> list[Recording]:
        """All outcomes by where they were measured, with the configs' static features: to learn from."""
        with reading(self.path) as connection:
            return newest_recordings(connection, lambda _: True, math.inf, self.unreadable.append, with_features=True)

    def pending(self) -> list[Pending]:
        """Keys met where measuring was not allowed and not measured since, the one met last first."""
        with reading(self.path) as connection:
            return list(stored_pending(connection, self.unreadable.append))

    def failures(self, *, limit: int) -> list[tuple[Program, Config, Failure, float]]:
        """The newest failures of all, with the program, the config, and when they were recorded, in seconds since 1970."""
        with reading(self.path) as connection:
            return newest_failures(connection, self.unreadable.append, limit)

    def stats(self) -> StoreStats:
        """Counts, costs, and the pairs that show how honest forecasts were; see `collect_stats`."""
        with reading(self.path) as connection:
            return collect_stats(connection, self.path, self.size_bytes(), self.unreadable)

    def calibration_pairs_by_kind(self) -> dict[str, list[Pair]]:
        """By kind of hardware, the pairs that correct forecasts there; see `newest_pairs`. Left out: kinds without any."""
        with reading(self.path) as connection:
            complain = self.unreadable.append
            by_kind = {kind: newest_pairs(connection, kind, complain) for kind in kinds_of(connection, complain)}
        return {kind: pairs for kind, pairs in by_kind.items() if pairs}

    def size_bytes(self) -> int:
        """Of the file and its log."""
        names = [self.path, *(self.path.with_name(self.path.name + ending) for ending in filesystem.COMPANIONS)]
        return sum(os.path.getsize(n) for n in names if n.exists())

    def check(self) -> list[str]:
        """What SQLite's own checks find wrong with the file; empty when it is whole."""
        with reading(self.path) as connection:
            problems = damage(connection)
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK) and is_marked_read_only(self.path):
            problems.append("its header forbids writing to it")
        return problems

    # Changing -------------------------------------------------------------------------------------------------------

    def prune(self, *, unseen_days: float = UNSEEN_DAYS) -> Removed:
        """Remove superseded decisions, and all that belongs to programs or toolchains unseen for so many days.

        Seen is: recorded, decided, recalled or noted as pending. An older source of a program that is still used
        goes as well, once nothing has used it for so long. Answers of language models go so many days after they were
        kept.
        """
        if unseen_days < 0:
            raise InvalidInputError(f"{unseen_days} days: give a number that is not negative")
        before = rows.now() - unseen_days * 86_400
        forgotten = (
            "(toolchain IN (SELECT id FROM toolchain WHERE seen_at < :before) OR workload IN (SELECT workload.id"
            " FROM workload JOIN program ON program = program.digest WHERE seen_at < :before))"
        )
        return self._remove(
            {
                "decision": f"(superseded_at IS NOT NULL OR {forgotten})",
                "outcome": forgotten,
                "pending": forgotten,
                "answer": "kept_at < :before",
            },
            {"before": before},
        )

    def clear(self, *, kernel: str | None = None) -> Removed:
        """Remove everything, or everything of the kernel of exactly this name; answers of language models name none."""
        if kernel is None:
            return self._remove(dict.fromkeys(("decision", "outcome", "pending", "answer"), "TRUE"), {})
        if not _is_storable(kernel):
            return self._remove({}, {})
        return self._remove(dict.fromkeys(("decision", "outcome", "pending"), _NAMED), {"name": kernel})

    def export(self, path: Path) -> int:
        """Write all decisions and outcomes as JSON lines; returns the number of lines after the header.

        Answers of language models stay: they belong to a model that runs here.
        """
        count = -1

        def counted() -> Iterator[str]:
            nonlocal count
            with reading(self.path) as connection:
                # One moment of the store; with a rollback journal, nobody could write in the meantime.
                if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    connection.execute("BEGIN")
                for line in export_lines(connection, self.unreadable.append):
                    count += 1
                    yield line

        write_lines(path, counted())
        return count

    def lines(self) -> list[str]:
        """All decisions and outcomes as JSON lines, without a header; none where there is no store."""
        if not self.exists():
            return []
        with reading(self.path) as connection:
            return list(islice(export_lines(connection, self.unreadable.append), 1, None))

    def import_files(self, paths: Sequence[Path]) -> tuple[int, int]:
        """Take in exported files, all of them or, if a line of any is broken, nothing; creates the store if need be.

        It takes in `removal.AT_ONCE` lines at a time, so that others can write in between. If it is killed, what it took
        in stays, and running it again takes in the rest.

        Returns:
            How many outcomes and decisions are new.
        """
        for path in paths:
            for _ in stream_entries(path):  # each line is checked before any is taken
                pass
        entries = chain.from_iterable(map(stream_entries, paths))
        outcomes = decisions = 0
        with writing(self.path, create=True) as connection:
            while some := list(islice(entries, removal.AT_ONCE)):
                with removal.taking_turns(), transaction(connection):
                    new = import_entries(connection, some)
                outcomes, decisions = outcomes + new[0], decisions + new[1]
        return outcomes, decisions

    def take(self, entries: Sequence[Entry]) -> tuple[int, int]:
        """Take in entries at once, or none of them; creates the store if need be.

        Returns:
            How many outcomes and decisions are new.
        """
        with writing(self.path, create=True) as connection, removal.taking_turns(), transaction(connection):
            return import_entries(connection, entries)

    def _remove(self, conditions: Mapping[str, str], values: Mapping[str, object]) -> Removed:
        with writing(self.path) as connection:
            return removal.remove(connection, conditions, values)


def _which(
    connection: sqlite3.Connection,
    kernel: str | None,
    hardware: str | None,
    complain: Complain,
    *,
    superseded: bool,
) -> tuple[str, tuple[str, ...]]:
    """SQL that selects decisions, with its values. Names are matched here: SQLite's LIKE ignores case in ASCII alone."""
    # The plus keeps SQLite from the index of those that hold: by its random order, 100,000 took four times as long.
    conditions, values = [] if superseded else ["+superseded_at IS NULL"], []
    if kernel is not None:
        programs = connection.execute("SELECT digest, name FROM program").fetchall()
        values.append(json.dumps([digest for digest, name in programs if is_meant(kernel, str(name))]))
        conditions.append("workload IN (SELECT id FROM workload WHERE program IN (SELECT value FROM json_each(?)))")
    if hardware is not None:
        known = hardware_of(connection, complain)
        values.append(json.dumps([number for number, one in known.items() if is_meant(hardware, one.name)]))
        conditions.append("hardware IN (SELECT value FROM json_each(?))")
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", tuple(values)


def _is_storable(name: str) -> bool:
    """Whether SQLite takes a text: what is typed in a terminal may be no UTF-8, and no row has such a name."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def is_meant(wanted: str | None, name: str) -> bool:
    """Whether a name has in it what is wanted, in capitals or not; None wants all."""
    return wanted is None or wanted.lower() in name.lower()
