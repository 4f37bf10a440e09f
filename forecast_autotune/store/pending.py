"""Keys met where measuring was not allowed, in a store's table, until they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from . import encoding
from .decisions import holding
from .encoding import from_text
from .rows import Complain, Pending
from .tuning_keys import KeyReader, ids_of, keep_tuning_key

if TYPE_CHECKING:
    import sqlite3


def keep_pending(connection: sqlite3.Connection, pending: Pending) -> None:
    """Note a key, or that one more process has met it; not if a decision that was measured has come in the meantime."""
    tuning_key = pending.tuning_key
    for _, held, _ in holding(connection, pending.digest, tuning_key.hardware):
        with suppress(InvalidInputError):
            if encoding.decode_decision(from_text(held, "decision"), "decision").rests_on_outcomes:
                return
    keep_tuning_key(connection, tuning_key, pending.met_at)
    connection.execute(
        "INSERT INTO pending (digest, workload, hardware, toolchain, space, space_size, why, noted_at, met_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET"
        " hardware = excluded.hardware, why = excluded.why, met_at = max(met_at, excluded.met_at), met = met + 1",
        (
            pending.digest,
            *ids_of(connection, tuning_key),
            pending.space,
            pending.space_size,
            pending.why,
            pending.noted_at,
            pending.met_at,
        ),
    )


def stored_pending(connection: sqlite3.Connection, complain: Complain) -> Iterator[Pending]:
    """Keys that wait for being measured, the one met last first."""
    reader = KeyReader(connection)
    selected = connection.execute(
        "SELECT workload, hardware, toolchain, space, space_size, why, noted_at, met_at, met FROM pending"
        " ORDER BY met_at DESC, digest"
    ).fetchall()
    for workload, hardware, toolchain, space, space_size, why, noted_at, met_at, met in selected:
        row = {"space": space, "space_size": space_size, "why": why, "noted_at": noted_at, "met_at": met_at, "met": met}
        what = "a pending key"
        try:
            yield Pending(
                tuning_key=reader.read(workload, hardware, toolchain),
                space=encoding.text_field(row, "space", what),
                space_size=encoding.count_field(row, "space_size", what),
                why=encoding.text_field(row, "why", what),
                noted_at=encoding.number_field(row, "noted_at", what),
                met_at=encoding.number_field(row, "met_at", what),
                met=encoding.count_field(row, "met", what),
            )
        except InvalidInputError as err:
            complain(str(err))
