"""Decisions in a store's tables, and the recalls of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.decision import Decision
from ..core.hardware import Hardware
from ..core.job import Job
from ..errors import InvalidInputError
from . import encoding
from .encoding import from_text, to_short_text, to_text
from .rows import Complain, Recall, StoredDecision, TuningKey, decision_digest, is_stored
from .tuning_keys import KeyReader, alike, ids_of, marks

if TYPE_CHECKING:
    import sqlite3

Parameters = Sequence[object] | Mapping[str, object]
"""Of a statement in SQL: for its question marks, or for its names."""


# Writing ----------------------------------------------------------------------------------------------------------------


def keep_decision(
    connection: sqlite3.Connection, tuning_key: TuningKey, decision: Decision, superseded_at: float | None = None
) -> None:
    """Write a decision; without `superseded_at` it supersedes the one that holds. Its tuning key is there already."""
    name = decision_digest(tuning_key, decision.space_digest)
    hardware = alike(connection, tuning_key.hardware)
    if superseded_at is None:
        connection.execute(
            f"UPDATE decision SET superseded_at = ? WHERE digest = ? AND hardware IN ({marks(hardware)})"  # noqa: S608  # ours
            " AND superseded_at IS NULL",
            (decision.decided_at, name, *hardware),
        )
    connection.execute(
        "INSERT INTO decision (digest, workload, hardware, toolchain, space, value, decided_at, superseded_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            name,
            *ids_of(connection, tuning_key),
            decision.space_digest,
            to_short_text(encoding.encode_decision(decision)),
            decision.decided_at,
            superseded_at,
        ),
    )
    if decision.rests_on_outcomes:
        connection.execute(
            f"DELETE FROM pending WHERE digest = ? AND hardware IN ({marks(hardware)})",  # noqa: S608  # ours
            (name, *hardware),
        )


def import_decision(
    connection: sqlite3.Connection, tuning_key: TuningKey, decision: Decision, superseded_at: float | None
) -> bool:
    """Write a decision made elsewhere: the newer of it and the one that holds goes on to hold.

    Returns whether anything changed: a decision that is stored already is not written twice.
    """
    name = decision_digest(tuning_key, decision.space_digest)
    twins = connection.execute(  # by its workload too, which has an index: decisions that do not hold have none else
        "SELECT value FROM decision WHERE workload = ? AND digest = ? AND decided_at = ?",
        (ids_of(connection, tuning_key)[0], name, decision.decided_at),
    ).fetchall()
    if any(is_stored(value, encoding.decode_decision, decision) for (value,) in twins):
        return False
    hardware = alike(connection, tuning_key.hardware)
    (newest,) = connection.execute(
        f"SELECT max(CAST(decided_at AS REAL)) FROM decision WHERE digest = ? AND hardware IN ({marks(hardware)})"  # noqa: S608  # ours
        " AND superseded_at IS NULL",
        (name, *hardware),
    ).fetchone()
    if superseded_at is None and newest is not None and newest >= decision.decided_at:
        superseded_at = newest
    keep_decision(connection, tuning_key, decision, superseded_at)
    return True


def count_hits(connection: sqlite3.Connection, hits: Mapping[int, int], now: float) -> None:
    """Add recalls to decisions, and see their programs and toolchains again."""
    for decision, count in hits.items():
        connection.execute("UPDATE decision SET hits = hits + ?, hit_at = ? WHERE id = ?", (count, now, decision))
        connection.execute(
            "UPDATE toolchain SET seen_at = max(seen_at, ?) WHERE id = (SELECT toolchain FROM decision WHERE id = ?)",
            (now, decision),
        )
        connection.execute(
            "UPDATE program SET seen_at = max(seen_at, ?) WHERE digest ="
            " (SELECT program FROM workload JOIN decision ON workload.id = workload WHERE decision.id = ?)",
            (now, decision),
        )


# Reading ----------------------------------------------------------------------------------------------------------------


def holding(connection: sqlite3.Connection, name: str, hardware: Hardware) -> list[tuple[int, str, float]]:
    """Decisions of a digest that hold under like power limits, the newest first: id, value, when last known to be in use."""
    under = alike(connection, hardware)
    return connection.execute(
        "SELECT id, value, max(decided_at, coalesce(hit_at, 0)) FROM decision"  # noqa: S608  # marks of our own
        f" WHERE digest = ? AND hardware IN ({marks(under)}) AND superseded_at IS NULL ORDER BY decided_at DESC, id DESC",
        (name, *under),
    ).fetchall()


def recall(connection: sqlite3.Connection, job: Job, *, any_toolchain: bool, complain: Complain) -> Recall | None:
    """The decision that holds for a job under its toolchain; with `any_toolchain`, the newest under any."""
    tuning_key = TuningKey.of(job)
    if any_toolchain:
        under = alike(connection, tuning_key.hardware)
        held = connection.execute(
            "SELECT id, value, max(decided_at, coalesce(hit_at, 0)) FROM decision"  # noqa: S608  # marks of our own
            f" WHERE workload = ? AND hardware IN ({marks(under)}) AND space = ? AND superseded_at IS NULL"
            " ORDER BY decided_at DESC, id DESC",
            (ids_of(connection, tuning_key)[0], *under, job.space.digest),
        ).fetchall()
    else:
        held = holding(connection, decision_digest(tuning_key, job.space.digest), tuning_key.hardware)
    return _first_readable(held, complain)


def recall_for_any_constexprs(
    connection: sqlite3.Connection, job: Job, *, any_toolchain: bool, complain: Complain
) -> Recall | None:
    """As `recall`, for keys that differ from the job's in their constexprs at most; see `Decision.carried_over`."""
    tuning_key = TuningKey.of(job)
    under, shared = alike(connection, tuning_key.hardware), job.workload.without_constexprs().digest
    held = connection.execute(
        "SELECT decision.id, decision.value, max(decided_at, coalesce(hit_at, 0)), workload.value FROM workload"  # noqa: S608
        " JOIN decision ON decision.workload = workload.id"
        f" WHERE workload.shared = ? AND hardware IN ({marks(under)}) AND (toolchain = ? OR ?) AND space = ?"
        " AND superseded_at IS NULL ORDER BY decided_at DESC, decision.id DESC",
        (shared, *under, ids_of(connection, tuning_key)[2], any_toolchain, job.space.digest),
    ).fetchall()
    for number, value, noted_at, text in held:
        with suppress(InvalidInputError):
            decided = encoding.decode_workload(from_text(text, "workload"), job.workload.program)
            if found := _first_readable([(number, value, noted_at)], complain):
                return replace(found, decision=found.decision.carried_over(decided, job.workload))
    return None


def _first_readable(held: Sequence[tuple[int, str, float]], complain: Complain) -> Recall | None:
    for number, text, noted_at in held:
        try:
            what = f"decision {number}"
            decision = encoding.decode_decision(from_text(text, what), what)
            noted_at = encoding.number_field({"noted_at": noted_at}, "noted_at", what)
        except InvalidInputError as err:
            complain(str(err))
            continue
        return Recall(id=number, decision=decision, noted_at=noted_at)
    return None


def related_decisions(connection: sqlite3.Connection, job: Job, complain: Complain) -> list[StoredDecision]:
    """Decisions that hold for the program's name at the job's key: of whatever source, elsewhere or in other spaces."""
    related = (
        "WHERE superseded_at IS NULL AND workload IN (SELECT workload.id FROM program"
        " JOIN workload ON workload.program = program.digest"
        " WHERE program.name = :name AND substr(workload.value, 1, length(:key)) = :key)"
    )
    # A workload's text begins with its key: none is decoded that has another one.
    key = to_text({"key": dict(job.workload.key)}).removesuffix("}") + ","
    return list(stored_decisions(connection, complain, related, {"name": job.workload.program.name, "key": key}))


def stored_decisions(
    connection: sqlite3.Connection,
    complain: Complain,
    where: str = "",
    values: Parameters = (),
    *,
    newest_first: bool = True,
) -> Iterator[StoredDecision]:
    """Decisions of a store, read one by one; `where` is an SQL condition of our own making."""
    reader = KeyReader(connection)
    order = "DESC" if newest_first else "ASC"
    # Ids are sorted, not rows: 100,000 of them fit anywhere.
    sorted_ids = f"SELECT id FROM decision {where} ORDER BY decided_at {order}, id {order}"  # noqa: S608
    for (number,) in connection.execute(sorted_ids, values).fetchall():
        row = connection.execute(
            "SELECT workload, hardware, toolchain, value, superseded_at, hits, hit_at FROM decision WHERE id = ?",
            (number,),
        ).fetchone()
        if row is None:
            continue  # removed meanwhile
        workload, hardware, toolchain, value, superseded_at, hits, hit_at = row
        what, fields = f"decision {number}", {"superseded_at": superseded_at, "hits": hits, "hit_at": hit_at}
        try:
            yield StoredDecision(
                id=number,
                tuning_key=reader.read(workload, hardware, toolchain),
                decision=encoding.decode_decision(from_text(value, what), what),
                superseded_at=encoding.optional_number(fields, "superseded_at", what),
                hits=encoding.count_field(fields, "hits", what),
                hit_at=encoding.optional_number(fields, "hit_at", what),
            )
        except InvalidInputError as err:
            complain(str(err))
