"""Tuning keys in the tables of a store: the program, workload, hardware and toolchain that outcomes and decisions refer to.

Here and in the modules beside it, the connection is open and transactions are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.hardware import Hardware, Toolchain
from ..core.workload import Program, Workload
from ..errors import InvalidInputError
from . import encoding
from .encoding import from_text, to_text
from .rows import FAR_FUTURE, Complain, Ids, TuningKey

if TYPE_CHECKING:
    import sqlite3


def keep_tuning_key(connection: sqlite3.Connection, tuning_key: TuningKey, seen_at: float) -> None:
    """Write the program, workload, hardware and toolchain that rows refer to; known ones get a new `seen_at`.

    That is never earlier than the newest of all: what is used while the clock is set back must not look unseen for years.
    """
    workload, hardware, toolchain = tuning_key.digests
    (newest,) = connection.execute(
        "SELECT max(CAST(seen_at AS REAL)) FROM toolchain WHERE seen_at < ?", (FAR_FUTURE,)
    ).fetchone()
    seen_at = max(seen_at, newest or 0.0)
    program = tuning_key.workload.program
    connection.execute(
        "INSERT INTO hardware (digest, power_limit_w, value) VALUES (?, ?, ?)"
        " ON CONFLICT (digest, power_limit_w) DO UPDATE SET value = excluded.value",
        (hardware, tuning_key.hardware.power_limit_w, to_text(encoding.encode_hardware(tuning_key.hardware))),
    )
    connection.execute(
        "INSERT INTO toolchain (digest, value, seen_at) VALUES (?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)",
        (toolchain, to_text(encoding.encode_toolchain(tuning_key.toolchain)), seen_at),
    )
    connection.execute(
        "INSERT INTO program (digest, name, value, seen_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)",
        (program.digest, program.name, to_text(encoding.encode_program(program)), seen_at),
    )
    connection.execute(
        "INSERT INTO workload (digest, program, value, shared) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET value = excluded.value, shared = excluded.shared",
        (
            workload,
            program.digest,
            to_text(encoding.encode_workload(tuning_key.workload)),
            tuning_key.workload.without_constexprs().digest,
        ),
    )


def ids_of(connection: sqlite3.Connection, tuning_key: TuningKey) -> Ids:
    """How the rows of other tables refer to a tuning key."""
    ids: Ids = connection.execute(
        "SELECT (SELECT id FROM workload WHERE digest = ?),"
        " (SELECT id FROM hardware WHERE digest = ? AND power_limit_w = ?),"
        " (SELECT id FROM toolchain WHERE digest = ?)",
        (tuning_key.digests[0], tuning_key.digests[1], tuning_key.hardware.power_limit_w, tuning_key.digests[2]),
    ).fetchone()
    return ids


def alike(connection: sqlite3.Connection, hardware: Hardware) -> list[int]:
    """The rows of a product under power limits within a tenth of this one, or unknown: times under them compare.

    The nearest comes last.
    """
    limit_w = hardware.power_limit_w
    known = connection.execute(
        "SELECT id, CAST(power_limit_w AS INTEGER) FROM hardware WHERE digest = ? ORDER BY abs(power_limit_w - ?) DESC, id",
        (hardware.digest, limit_w),
    )
    return [number for number, other_w in known.fetchall() if limits_alike(limit_w, other_w)]


def limits_alike(limit_w: int, other_w: int) -> bool:
    """Whether times under two power limits in watts compare: they differ by a tenth at most, or one is unknown, 0."""
    return 0 in (limit_w, other_w) or 10 * min(limit_w, other_w) >= 9 * max(limit_w, other_w)


def tuning_keys_of(connection: sqlite3.Connection, tuning_key: TuningKey) -> list[Ids]:
    """A tuning key, and the same under power limits alike; the nearest last."""
    workload, _, toolchain = ids_of(connection, tuning_key)
    return [(workload, hardware, toolchain) for hardware in alike(connection, tuning_key.hardware)]


def hardware_of(connection: sqlite3.Connection, complain: Complain) -> dict[int, Hardware]:
    """All hardware that a store knows of, by id."""
    known: dict[int, Hardware] = {}
    for number, value in connection.execute("SELECT id, value FROM hardware").fetchall():
        what = f"hardware {number}"
        try:
            known[number] = encoding.decode_hardware(from_text(value, what), what)
        except InvalidInputError as err:
            complain(str(err))
    return known


class KeyReader:
    """Reads tuning keys by their ids, each hardware and toolchain once, and each of the last programs and workloads."""

    KEPT = 1_000  # programs and workloads: rows come sorted by them, or nearly so

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._programs: dict[str, Program] = {}
        self._workloads: dict[int, Workload] = {}
        self._hardware: dict[int, Hardware] = {}
        self._toolchains: dict[int, Toolchain] = {}

    def read(self, workload: int, hardware: int, toolchain: int) -> TuningKey:
        """The tuning key that three ids name.

        Raises:
            InvalidInputError: a row does not decode or is gone.
        """
        if workload not in self._workloads:
            if len(self._workloads) >= self.KEPT:
                self._workloads.clear()
                self._programs.clear()
            program, text = self._row("SELECT program, value FROM workload WHERE id = ?", workload, "workload")
            if program not in self._programs:
                (value,) = self._row("SELECT value FROM program WHERE digest = ?", program, "program")
                self._programs[program] = encoding.decode_program(from_text(value, f"program {program}"))
            self._workloads[workload] = encoding.decode_workload(
                from_text(text, f"workload {workload}"), self._programs[program]
            )
        if hardware not in self._hardware:
            (value,) = self._row("SELECT value FROM hardware WHERE id = ?", hardware, "hardware")
            self._hardware[hardware] = encoding.decode_hardware(from_text(value, f"hardware {hardware}"))
        if toolchain not in self._toolchains:
            (value,) = self._row("SELECT value FROM toolchain WHERE id = ?", toolchain, "toolchain")
            self._toolchains[toolchain] = encoding.decode_toolchain(from_text(value, f"toolchain {toolchain}"))
        return TuningKey(
            workload=self._workloads[workload],
            hardware=self._hardware[hardware],
            toolchain=self._toolchains[toolchain],
        )

    def _row(self, query: str, name: int | str, what: str) -> tuple[str, ...]:
        row: tuple[str, ...] | None = self._connection.execute(query, (name,)).fetchone()
        if row is None:
            raise InvalidInputError(f"{what} {name} is referred to but is not in the store: prune or clear it")
        return row


def marks(values: Sequence[object]) -> str:
    """Question marks for a list in SQL."""
    return ",".join("?" * len(values))
