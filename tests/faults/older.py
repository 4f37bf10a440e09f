"""Stores as an earlier version of the package left them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement

from forecast_autotune.core.digest import canonical_json, digest
from forecast_autotune.store import encoding, schema
from forecast_autotune.store.encoding import to_text
from forecast_autotune.store.filesystem import make_file

ROWS = {
    "hardware": "(digest, value)",
    "toolchain": "(digest, value, seen_at)",
    "program": "(digest, name, value, seen_at)",
    "workload": "(digest, program, value)",
    "outcome": "(workload, hardware, toolchain, config, run, default_config, value, recorded_at)",
    "forecast": "(outcome, value)",
    "decision": "(digest, workload, hardware, toolchain, space, value, decided_at)",
}
"""What schema 4 wrote to its tables."""

HARDWARE_DIGEST = digest(canonical_json({**HARDWARE.identity, "power_limit_w": HARDWARE.power_limit_w}))
"""Up to schema 5, the power limit was part of it."""

PLACE = (a_job().workload.digest, HARDWARE_DIGEST, TOOLCHAIN.digest)


def insert(connection: sqlite3.Connection, table: str, *values: object) -> None:
    connection.execute(f"INSERT INTO {table} {ROWS[table]} VALUES ({','.join('?' * len(values))})", values)  # noqa: S608  # ours


def runs(count: int) -> list[str]:
    return [f"run-{n}" for n in range(count)]


def of_schema_4(directory: Path, runs: Sequence[str]) -> Path:
    """A store with a decision, and an outcome of each of these runs."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "store.sqlite3"
    make_file(path)
    connection = sqlite3.connect(path)
    for statements in schema.MIGRATIONS[:4]:
        connection.executescript(statements)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 4")
    job = a_job()
    workload, program = job.workload, job.workload.program
    insert(connection, "hardware", HARDWARE_DIGEST, to_text(encoding.encode_hardware(job.hardware)))
    insert(connection, "toolchain", job.toolchain.digest, to_text(encoding.encode_toolchain(job.toolchain)), 1.8e9)
    insert(connection, "program", program.digest, program.name, to_text(encoding.encode_program(program)), 1.8e9)
    insert(connection, "workload", workload.digest, program.digest, to_text(encoding.encode_workload(workload)))
    measured = to_text(encoding.encode_outcome(a_measurement()))
    for n, run in enumerate(runs):
        config = SPACE[n % len(SPACE)].text
        insert(connection, "outcome", *PLACE, config, run, SPACE[0].text, measured, 1.8e9 + n)
    decided, value = a_decision(job), to_text(encoding.encode_decision(a_decision(job)))
    name = digest(*PLACE, job.space.digest)
    insert(connection, "decision", name, *PLACE, job.space.digest, value, decided.decided_at)
    connection.commit()
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return path
