"""What is written to and read from a store's tables, given an open connection; transactions are the caller's."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.hardware import REHEARSAL_KINDS, Hardware, Toolchain
from ..core.job import Job, Recording
from ..core.outcome import Failure, Measurement, Outcome
from ..core.workload import Program, Workload
from ..errors import InvalidInputError
from . import encoding
from .encoding import from_text, to_short_text, to_text

if TYPE_CHECKING:
    import sqlite3

RELATED_OUTCOMES = 5_000
"""Outcomes read from elsewhere to seed a forecast; more would eat into a budget given in seconds. 10,000 of 8 knobs and 32
samples each took 0.7 s (two busy cores)."""

TRANSIENT_RUNS = 2

FAR_FUTURE = 32_503_680_000.0
"""The year 3000: a time after it is a damaged one, not that of a clock set wrong."""

Ids = tuple[int | None, int | None, int | None]
"""A workload's, a hardware's and a toolchain's row; None: the store has none, and no row of another table refers to it."""

Complain = Callable[[str], None]
"""Told of each row that does not decode; the row is passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A workload on one hardware under one toolchain: what outcomes and decisions belong to."""

    workload: Workload
    hardware: Hardware
    toolchain: Toolchain

    @classmethod
    def of(cls, job: Job) -> Place:
        return cls(workload=job.workload, hardware=job.hardware, toolchain=job.toolchain)

    @property
    def digests(self) -> tuple[str, str, str]:
        return self.workload.digest, self.hardware.digest, self.toolchain.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutcome:
    """An outcome with its config, the run it belongs to, and the forecast that preceded it.

    `described` is what could be told of the config without compiling; see `Job.described`.
    """

    config: Config
    outcome: Outcome
    forecast: Forecast | Abstention | None
    default: Config
    run: str
    recorded_at: float  # seconds since the epoch
    described: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision with where it holds, and since when it does not any more."""

    id: int
    place: Place
    decision: Decision
    superseded_at: float | None = None
    hits: int = 0
    hit_at: float | None = None

    @property
    def digest(self) -> str:
        """The same for a decision and those it superseded."""
        return decision_digest(self.place, self.decision.space_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A key met where measuring was not allowed."""

    place: Place
    space: str  # its digest
    space_size: int
    why: str
    noted_at: float  # seconds since the epoch
    met_at: float
    met: int = 1  # by so many processes

    @property
    def digest(self) -> str:
        """That of the decision which is missing."""
        return decision_digest(self.place, self.space)


def decision_digest(place: Place, space_digest: str) -> str:
    return digest(*place.digests, space_digest)


# Writing ----------------------------------------------------------------------------------------------------------------


def keep_place(connection: sqlite3.Connection, place: Place, seen_at: float) -> None:
    """Write what a row refers to; what is there already is only seen again.

    It is never seen before the last of all: what is used while the clock is set back must not look unseen for years.
    """
    workload, hardware, toolchain = place.digests
    (newest,) = connection.execute(
        "SELECT max(CAST(seen_at AS REAL)) FROM toolchain WHERE seen_at < ?", (FAR_FUTURE,)
    ).fetchone()
    seen_at = max(seen_at, newest or 0.0)
    program = place.workload.program
    connection.execute(
        "INSERT INTO hardware (digest, power_limit_w, value) VALUES (?, ?, ?)"
        " ON CONFLICT (digest, power_limit_w) DO UPDATE SET value = excluded.value",
        (hardware, place.hardware.power_limit_w, to_text(encoding.encode_hardware(place.hardware))),
    )
    connection.execute(
        "INSERT INTO toolchain (digest, value, seen_at) VALUES (?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)",
        (toolchain, to_text(encoding.encode_toolchain(place.toolchain)), seen_at),
    )
    connection.execute(
        "INSERT INTO program (digest, name, value, seen_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)",
        (program.digest, program.name, to_text(encoding.encode_program(program)), seen_at),
    )
    connection.execute(
        "INSERT INTO workload (digest, program, value) VALUES (?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET value = excluded.value",
        (workload, program.digest, to_text(encoding.encode_workload(place.workload))),
    )


def ids_of(connection: sqlite3.Connection, place: Place) -> Ids:
    """By what the rows of other tables refer to a place."""
    found: Ids = connection.execute(
        "SELECT (SELECT id FROM workload WHERE digest = ?),"
        " (SELECT id FROM hardware WHERE digest = ? AND power_limit_w = ?),"
        " (SELECT id FROM toolchain WHERE digest = ?)",
        (place.digests[0], place.digests[1], place.hardware.power_limit_w, place.digests[2]),
    ).fetchone()
    return found


def alike(connection: sqlite3.Connection, hardware: Hardware) -> list[int]:
    """The rows of a product under power limits within a tenth of this one, or unknown: times under them compare.

    The nearest comes last.
    """
    limit_w = hardware.power_limit_w
    matching = connection.execute(
        "SELECT id FROM hardware WHERE digest = :digest AND (power_limit_w = 0 OR :limit_w = 0"
        " OR 10 * min(power_limit_w, :limit_w) >= 9 * max(power_limit_w, :limit_w))"
        " ORDER BY abs(power_limit_w - :limit_w) DESC, id",
        {"digest": hardware.digest, "limit_w": limit_w},
    )
    return [number for (number,) in matching.fetchall()]


def places_of(connection: sqlite3.Connection, place: Place) -> list[Ids]:
    """A place, and the same under power limits alike; the nearest last."""
    workload, _, toolchain = ids_of(connection, place)
    return [(workload, hardware, toolchain) for hardware in alike(connection, place.hardware)]


def marks(values: Sequence[object]) -> str:
    """Question marks for a list in SQL."""
    return ",".join("?" * len(values))


def _text_id(connection: sqlite3.Connection, text: str) -> int | None:
    """By what outcomes refer to a config or a run, which is written if it is new."""
    found = connection.execute("SELECT id FROM text WHERE value = ?", (text,)).fetchone()
    if found is not None:
        return int(found[0])
    return connection.execute("INSERT INTO text (value) VALUES (?)", (text,)).lastrowid


def keep_outcome(
    connection: sqlite3.Connection, place: Place, stored: StoredOutcome, *, from_elsewhere: bool = False
) -> bool:
    """Write an outcome and the forecast before it; its place is there already. Returns whether anything changed.

    A later outcome of the same config and run replaces the earlier one but keeps its forecast: the forecast made after
    a config was timed has seen the answer, and says nothing of how honest forecasts are. One from elsewhere replaces
    only an older one; one of this process always does, even when the clock was set back in between: it is never dated
    before what was recorded at its place already, or a later run would count as the earlier one.
    """
    recorded_at = stored.recorded_at
    ids = ids_of(connection, place)
    if not from_elsewhere:
        (newest,) = connection.execute(
            "SELECT max(CAST(recorded_at AS REAL)) FROM outcome"
            " WHERE workload = ? AND hardware = ? AND toolchain = ? AND recorded_at < ?",
            (*ids, FAR_FUTURE),
        ).fetchone()
        recorded_at = max(recorded_at, newest or 0.0)
    row = (*ids, _text_id(connection, stored.config.text), _text_id(connection, stored.run))
    found = connection.execute(
        "SELECT id, CAST(recorded_at AS REAL), value FROM outcome"
        " WHERE workload = ? AND hardware = ? AND toolchain = ? AND config = ? AND run = ?",
        row,
    ).fetchone()
    value = to_short_text(encoding.encode_outcome(stored.outcome))
    default = _text_id(connection, stored.default.text)
    described = to_text(encoding.encode_described(stored.described)) if stored.described else None
    if found is not None:
        if from_elsewhere and (
            stored.recorded_at < found[1] or _says(found[2], encoding.decode_outcome, stored.outcome)
        ):
            return False
        connection.execute(
            "UPDATE outcome SET value = ?, default_config = ?, recorded_at = ?, described = coalesce(?, described)"
            " WHERE id = ?",
            (value, default, recorded_at, described, found[0]),
        )
        return True
    inserted = connection.execute(
        "INSERT INTO outcome (workload, hardware, toolchain, config, run, default_config, value, recorded_at, described)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, default, value, recorded_at, described),
    )
    forecast = encoding.encode_forecast(stored.forecast)
    if forecast is not None:
        connection.execute(
            "INSERT INTO forecast (outcome, value) VALUES (?, ?)",
            (inserted.lastrowid, to_short_text(forecast)),
        )
    return True


def _says(text: object, decode: Callable[[object], object], noun: object) -> bool:
    """Whether a row holds this already, in whichever words: earlier versions wrote what is missing now."""
    try:
        return decode(from_text(text, "it")) == noun
    except InvalidInputError:
        return False


def keep_decision(
    connection: sqlite3.Connection, place: Place, decision: Decision, superseded_at: float | None = None
) -> None:
    """Write a decision; without `superseded_at` it supersedes the one that holds. Its place is there already."""
    name = decision_digest(place, decision.space_digest)
    hardware = alike(connection, place.hardware)
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
            *ids_of(connection, place),
            decision.space_digest,
            to_short_text(encoding.encode_decision(decision)),
            decision.decided_at,
            superseded_at,
        ),
    )
    if decision.tried:
        connection.execute(
            f"DELETE FROM pending WHERE digest = ? AND hardware IN ({marks(hardware)})",  # noqa: S608  # ours
            (name, *hardware),
        )


def keep_pending(connection: sqlite3.Connection, pending: Pending) -> None:
    """Note a key, or that one more process has met it; not if a decision that was measured has come in the meantime."""
    place = pending.place
    for _, held, _ in _holding(connection, pending.digest, place.hardware):
        with suppress(InvalidInputError):
            if encoding.decode_decision(from_text(held, "decision"), "decision").tried:
                return
    keep_place(connection, place, pending.met_at)
    connection.execute(
        "INSERT INTO pending (digest, workload, hardware, toolchain, space, space_size, why, noted_at, met_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET"
        " hardware = excluded.hardware, why = excluded.why, met_at = max(met_at, excluded.met_at), met = met + 1",
        (
            pending.digest,
            *ids_of(connection, place),
            pending.space,
            pending.space_size,
            pending.why,
            pending.noted_at,
            pending.met_at,
        ),
    )


def bring_decision(
    connection: sqlite3.Connection, place: Place, decision: Decision, superseded_at: float | None
) -> bool:
    """Write a decision made elsewhere: the newer of it and the one that holds goes on to hold.

    Returns whether anything changed: a decision that is here already is not written twice.
    """
    name = decision_digest(place, decision.space_digest)
    twins = connection.execute(  # by its workload too, which has an index: decisions that do not hold have none else
        "SELECT value FROM decision WHERE workload = ? AND digest = ? AND decided_at = ?",
        (ids_of(connection, place)[0], name, decision.decided_at),
    ).fetchall()
    if any(_says(value, encoding.decode_decision, decision) for (value,) in twins):
        return False
    hardware = alike(connection, place.hardware)
    (newest,) = connection.execute(
        f"SELECT max(CAST(decided_at AS REAL)) FROM decision WHERE digest = ? AND hardware IN ({marks(hardware)})"  # noqa: S608  # ours
        " AND superseded_at IS NULL",
        (name, *hardware),
    ).fetchone()
    if superseded_at is None and newest is not None and newest >= decision.decided_at:
        superseded_at = newest
    keep_decision(connection, place, decision, superseded_at)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A decision found for a job, with what counting the recall needs."""

    id: int
    decision: Decision
    noted_at: float  # when the store last heard that this decision is in use


def _holding(connection: sqlite3.Connection, name: str, hardware: Hardware) -> list[tuple[int, str, float]]:
    """Decisions of a digest that hold under like power limits, the newest first: id, value, when last known to be in use."""
    under = alike(connection, hardware)
    return connection.execute(
        "SELECT id, value, max(decided_at, coalesce(hit_at, 0)) FROM decision"  # noqa: S608  # marks of our own
        f" WHERE digest = ? AND hardware IN ({marks(under)}) AND superseded_at IS NULL ORDER BY decided_at DESC, id DESC",
        (name, *under),
    ).fetchall()


def recall(connection: sqlite3.Connection, job: Job, *, any_toolchain: bool, complain: Complain) -> Recall | None:
    """The decision that holds for a job under its toolchain; with `any_toolchain`, the newest under any."""
    place = Place.of(job)
    if any_toolchain:
        under = alike(connection, place.hardware)
        holding = connection.execute(
            "SELECT id, value, max(decided_at, coalesce(hit_at, 0)) FROM decision"  # noqa: S608  # marks of our own
            f" WHERE workload = ? AND hardware IN ({marks(under)}) AND space = ? AND superseded_at IS NULL"
            " ORDER BY decided_at DESC, id DESC",
            (ids_of(connection, place)[0], *under, job.space.digest),
        ).fetchall()
    else:
        holding = _holding(connection, decision_digest(place, job.space.digest), place.hardware)
    for number, text, noted_at in holding:
        try:
            what = f"decision {number}"
            decision = encoding.decode_decision(from_text(text, what), what)
            noted_at = encoding.number_field({"noted_at": noted_at}, "noted_at", what)
        except InvalidInputError as err:
            complain(str(err))
            continue
        return Recall(id=number, decision=decision, noted_at=noted_at)
    return None


def text_of(column: str) -> str:
    """What stands in a column of an outcome, in SQL; NULL if that is gone, which decoding complains of."""
    return f"(SELECT text.value FROM text WHERE text.id = outcome.{column})"  # noqa: S608  # names of our own


def stored_outcomes(connection: sqlite3.Connection, ids: Ids, complain: Complain) -> Iterator[StoredOutcome]:
    """Outcomes of one place, the oldest first."""
    rows = connection.execute(
        f"SELECT outcome.id, {text_of('config')}, outcome.value, forecast.value, {text_of('default_config')},"  # noqa: S608  # ours
        f" {text_of('run')}, recorded_at, described FROM outcome LEFT JOIN forecast ON forecast.outcome = outcome.id"
        " WHERE workload = ? AND hardware = ? AND toolchain = ? ORDER BY recorded_at, outcome.id",
        ids,
    ).fetchall()
    for number, config, value, forecast, default, run, recorded_at, described in rows:
        what = f"outcome {number}"
        try:
            yield StoredOutcome(
                config=encoding.decode_config(from_text(config, what), what),
                outcome=encoding.decode_outcome(from_text(value, what), what),
                forecast=None if forecast is None else encoding.decode_forecast(from_text(forecast, what), what),
                default=encoding.decode_config(from_text(default, what), what),
                run=encoding.text_field({"run": run}, "run", what),
                recorded_at=encoding.number_field({"recorded_at": recorded_at}, "recorded_at", what),
                described=_decode_described(described, what),
            )
        except InvalidInputError as err:
            complain(str(err))


def newest_outcomes(
    connection: sqlite3.Connection,
    ids: Ids,
    complain: Complain,
    limit: int = -1,
    described: dict[Config, Mapping[str, float]] | None = None,
) -> tuple[dict[Config, Outcome], Config | None]:
    """The newest outcome of each config of one place, and the default of its newest run.

    Into `described`, if it is given, goes what was told of these configs without compiling.

    A transient failure counts as an outcome only when it has come in `TRANSIENT_RUNS` runs, and never against a time: so a
    config that memory was short for is tried once more, and not for ever. The default is tried again by every run: without
    its time nobody can say what beats it.

    Times are on the scale of the newest run that has timed the default: those of another run are multiplied by how
    many times as long the default took there as in theirs. From run to run a device is warmer, or its clock another.

    A limit keeps the oldest rows: the default is measured first, and the others say little without it.
    """
    outcomes: dict[Config, Outcome] = {}
    runs: dict[Config, object] = {}
    default_us: dict[object, dict[object, float]] = {}  # of each default: its time in each run, the newest last
    told: dict[Config, tuple[str, str]] = {}
    transient: Counter[Config] = Counter()
    default = None
    rows = connection.execute(
        f"SELECT id, {text_of('config')}, value, {text_of('default_config')}, described, run FROM outcome"  # noqa: S608  # ours
        " WHERE workload = ? AND hardware = ? AND toolchain = ? ORDER BY recorded_at, id LIMIT ?",
        (*ids, limit),
    ).fetchall()
    for number, config, value, default_text, description, run in rows:
        what = f"outcome {number}"
        try:
            decoded = encoding.decode_config(from_text(config, what), what)
            outcome = encoding.decode_outcome(from_text(value, what), what)
            default = default_text
            if description is not None:
                told[decoded] = description, what
            if isinstance(outcome, Failure) and outcome.transient:
                transient[decoded] += 1
                if decoded in outcomes or config == default_text or transient[decoded] < TRANSIENT_RUNS:
                    continue
            outcomes[decoded], runs[decoded] = outcome, run
            if config == default_text and isinstance(outcome, Measurement):
                in_runs = default_us.setdefault(config, {})
                in_runs.pop(run, None)
                in_runs[run] = outcome.median_us
        except InvalidInputError as err:
            complain(str(err))
    if default is None:
        return {}, None
    in_runs = default_us.get(default, {})
    newest_us = next(reversed(in_runs.values()), math.nan)
    for decoded, outcome in outcomes.items():
        drift = newest_us / in_runs.get(runs[decoded], newest_us)
        if isinstance(outcome, Measurement) and drift != 1.0:
            outcomes[decoded] = outcome.scaled(drift)
    if described is not None:
        for decoded in outcomes:
            if decoded in told:
                try:
                    described[decoded] = _decode_described(*told[decoded])
                except InvalidInputError as err:
                    complain(str(err))
    try:
        return outcomes, encoding.decode_config(from_text(default, "default"), "default")
    except InvalidInputError as err:
        complain(str(err))
        return outcomes, None


def _decode_described(text: object, what: str) -> dict[str, float]:
    return {} if text is None else encoding.decode_described(from_text(text, what), f"{what}: described")


def stored_pending(connection: sqlite3.Connection, complain: Complain) -> Iterator[Pending]:
    """Keys that wait for being measured, the one met last first."""
    reader = PlaceReader(connection)
    found = connection.execute(
        "SELECT workload, hardware, toolchain, space, space_size, why, noted_at, met_at, met FROM pending"
        " ORDER BY met_at DESC, digest"
    ).fetchall()
    for workload, hardware, toolchain, space, space_size, why, noted_at, met_at, met in found:
        row = {"space": space, "space_size": space_size, "why": why, "noted_at": noted_at, "met_at": met_at, "met": met}
        what = "a pending key"
        try:
            yield Pending(
                place=reader.read(workload, hardware, toolchain),
                space=encoding.text_field(row, "space", what),
                space_size=encoding.count_field(row, "space_size", what),
                why=encoding.text_field(row, "why", what),
                noted_at=encoding.number_field(row, "noted_at", what),
                met_at=encoding.number_field(row, "met_at", what),
                met=encoding.count_field(row, "met", what),
            )
        except InvalidInputError as err:
            complain(str(err))


def related_recordings(connection: sqlite3.Connection, job: Job, complain: Complain) -> list[Recording]:
    """Recordings of the program's name at other places: the same source first, then the same hardware, then the newest.

    Rehearsals are left out: no time of theirs says anything of a device. A rehearsal sees its own kind alone.
    """
    own = places_of(connection, Place.of(job))
    groups = connection.execute(
        # The newest by id, not by time: so the index of places alone is read, and no outcome's row.
        "SELECT workload.id, outcome.hardware, outcome.toolchain, count(*) FROM program"
        " JOIN workload ON workload.program = program.digest JOIN outcome ON outcome.workload = workload.id"
        " WHERE program.name = ? GROUP BY 1, 2, 3"
        " ORDER BY max(program.digest = ?) DESC, max(outcome.hardware IS ?) DESC, max(outcome.id) DESC",
        (job.workload.program.name, job.workload.program.digest, own[-1][1] if own else None),
    )
    reader = PlaceReader(connection)
    found: list[Recording] = []
    rows_left = RELATED_OUTCOMES
    for workload, hardware, toolchain, rows in groups:
        ids = workload, hardware, toolchain
        if ids in own or rows_left <= 0:
            continue
        try:
            place = reader.read(*ids)
        except InvalidInputError as err:
            complain(str(err))
            continue
        kinds = {place.hardware.kind, job.hardware.kind}
        if place.workload.program.language != job.workload.program.language:
            continue
        if len(kinds) > 1 and kinds & set(REHEARSAL_KINDS):
            continue
        described: dict[Config, Mapping[str, float]] = {}
        outcomes, default = newest_outcomes(connection, ids, complain, rows_left, described)
        if outcomes and default is not None:
            rows_left -= rows
            found.append(
                Recording(
                    workload=place.workload,
                    hardware=place.hardware,
                    toolchain=place.toolchain,
                    default=default,
                    outcomes=outcomes,
                    described=described,
                )
            )
    return found


def hardware_of(connection: sqlite3.Connection, complain: Complain) -> dict[int, Hardware]:
    """All hardware that a store knows of, by id."""
    found: dict[int, Hardware] = {}
    for number, value in connection.execute("SELECT id, value FROM hardware").fetchall():
        what = f"hardware {number}"
        try:
            found[number] = encoding.decode_hardware(from_text(value, what), what)
        except InvalidInputError as err:
            complain(str(err))
    return found


class PlaceReader:
    """Reads places by their ids, each hardware and toolchain once, and each of the last programs and workloads."""

    KEPT = 1_000  # programs and workloads: rows come sorted by them, or nearly so

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._programs: dict[str, Program] = {}
        self._workloads: dict[int, Workload] = {}
        self._hardware: dict[int, Hardware] = {}
        self._toolchains: dict[int, Toolchain] = {}

    def read(self, workload: int, hardware: int, toolchain: int) -> Place:
        """Raises InvalidInputError where a row does not decode or is gone."""
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
        return Place(
            workload=self._workloads[workload],
            hardware=self._hardware[hardware],
            toolchain=self._toolchains[toolchain],
        )

    def _row(self, query: str, name: int | str, what: str) -> tuple[str, ...]:
        found: tuple[str, ...] | None = self._connection.execute(query, (name,)).fetchone()
        if found is None:
            raise InvalidInputError(f"{what} {name} is referred to but is not in the store: prune or clear it")
        return found


def now() -> float:
    return time.time()
