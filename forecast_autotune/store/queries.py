"""What the command does with a store: look, count, prune, clear, export, import. Unlike the store itself, it raises."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.forecast import Forecast
from ..core.job import Recording, log2_speedups
from ..core.outcome import Failure, Outcome
from ..core.skill import Skill
from ..core.workload import Program
from ..errors import InvalidInputError, StoreError
from ..language.skills import skills_of
from . import encoding, filesystem, rows, schema
from .calibration_pairs import Pair, kinds_of, newest_pairs
from .connection import connect, damage, is_broken, open_file, read_only, refuse_damaged, transaction
from .jsonl import Parameters, bring, export_lines, stored_decisions, stream_entries
from .recordings import newest_recordings
from .rows import Pending, Place, StoredDecision, StoredOutcome
from .textfile import write_lines

if TYPE_CHECKING:
    import sqlite3

UNSEEN_DAYS = 90

AT_ONCE = 2_000  # rows removed, or lines taken in, before others may write; 0.1 s

WORTH_SHRINKING = 0.1  # of the file, empty: rewriting what is left takes time and as much room again

JUDGED_OUTCOMES = 20_000  # the newest, for how honest forecasts were; reading them takes 2 s (two busy cores)

MINED_OUTCOMES = 20_000  # the newest, for all skills there are; reading and mining them takes 2 s (two busy cores)

_NAMED = "workload IN (SELECT workload.id FROM workload JOIN program ON program = program.digest WHERE name = :name)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionDetail:
    """A decision with every config touched at its place, and the decisions it superseded, the newest first."""

    stored: StoredDecision
    touched: tuple[StoredOutcome, ...]  # the newest outcome of each config, with the first forecast it ever had
    earlier: tuple[StoredDecision, ...]
    log2_speedups: dict[Config, float]  # measured, against the default

    @property
    def default(self) -> Config | None:
        """The default of the newest run; None where nothing was tried."""
        return self.touched[-1].default if self.touched else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What a store holds. `hits` are recalls by a process that did not have the decision in memory yet."""

    path: Path
    size_bytes: int
    schema: int
    journal: str
    programs: int
    workloads: int
    hardware: int
    toolchains: int
    decisions: dict[str, int]  # by basis; those that hold
    superseded: int
    measurements: int
    failures: dict[str, int]  # by stage
    forecasts: int
    abstentions: int
    hits: int
    pending: int  # keys that wait for being measured
    answers: int  # of language models
    spent_s: float  # in all tuning runs that came to a decision
    saved_by_hits_s: float
    saved_by_forecasts_s: float
    pairs: tuple[tuple[Forecast, float], ...] = field(repr=False)  # forecast, log2 speed-up, -inf: failed
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What prune or clear took away."""

    decisions: int
    outcomes: int
    programs: int
    pending: int
    answers: int


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
        with closing(self.each_decision(kernel=kernel, hardware=hardware, superseded=superseded)) as found:
            return list(islice(found, limit))

    def each_decision(
        self, *, kernel: str | None = None, hardware: str | None = None, superseded: bool = False
    ) -> Generator[StoredDecision]:
        """The same, one by one: however many there are, they take no room."""
        with self._reading() as connection:
            where, values = self._which(connection, kernel, hardware, superseded=superseded)
            yield from stored_decisions(connection, self.unreadable.append, where, values)

    def count(self, *, kernel: str | None = None, hardware: str | None = None, superseded: bool = False) -> int:
        """How many decisions that would be, those that cannot be read included."""
        with self._reading() as connection:
            where, values = self._which(connection, kernel, hardware, superseded=superseded)
            return int(connection.execute(f"SELECT count(*) FROM decision {where}", values).fetchone()[0])  # noqa: S608  # ours

    def _which(
        self, connection: sqlite3.Connection, kernel: str | None, hardware: str | None, *, superseded: bool
    ) -> tuple[str, tuple[str, ...]]:
        """A condition for decisions, with its values. Names are matched here, once each: SQLite's LIKE knows ASCII alone."""
        # The plus keeps SQLite from the index of those that hold: by its random order, 100,000 took four times as long.
        conditions, values = [] if superseded else ["+superseded_at IS NULL"], []
        if kernel is not None:
            programs = connection.execute("SELECT digest, name FROM program").fetchall()
            values.append(json.dumps([digest for digest, name in programs if _matches(kernel, str(name))]))
            conditions.append("workload IN (SELECT id FROM workload WHERE program IN (SELECT value FROM json_each(?)))")
        if hardware is not None:
            known = rows.hardware_of(connection, self.unreadable.append)
            values.append(json.dumps([number for number, found in known.items() if _matches(hardware, found.name)]))
            conditions.append("hardware IN (SELECT value FROM json_each(?))")
        return f"WHERE {' AND '.join(conditions)}" if conditions else "", tuple(values)

    def find(self, key: str) -> list[StoredDecision]:
        """Decisions whose digest starts with the key; if none does, those of the kernel of that name."""
        start = key.lower()
        searches: list[tuple[str, Parameters]] = [(f"WHERE superseded_at IS NULL AND {_NAMED}", {"name": key})]
        if start and not start.strip("0123456789abcdef"):
            # What starts with a text comes after it, and before it with a further letter behind every digit.
            searches.insert(0, ("WHERE superseded_at IS NULL AND digest >= ? AND digest < ?", (start, f"{start}g")))
        with self._reading() as connection:
            for where, values in searches:
                if found := list(stored_decisions(connection, self.unreadable.append, where, values)):
                    return found
        return []

    def detail(self, stored: StoredDecision) -> DecisionDetail:
        """Everything that is known around one decision."""
        newest: dict[Config, StoredOutcome] = {}
        with self._reading() as connection:
            ids = rows.ids_of(connection, stored.place)
            for outcome in rows.stored_outcomes(connection, ids, self.unreadable.append):
                newest[outcome.config] = _with_first_forecast(newest.pop(outcome.config, None), outcome)
            history = stored_decisions(
                connection,
                self.unreadable.append,
                "WHERE workload = ? AND superseded_at IS NOT NULL AND digest = ?",  # the workload has an index
                (ids[0], stored.digest),
            )
            earlier = tuple(history)
        touched = tuple(newest.values())
        outcomes: dict[Config, Outcome] = {t.config: t.outcome for t in touched}
        default = touched[-1].default if touched else None
        return DecisionDetail(
            stored=stored,
            touched=touched,
            earlier=earlier,
            log2_speedups=log2_speedups(outcomes, default) if default is not None else {},
        )

    def skills(self, *, kernel: str | None = None, hardware: str | None = None) -> list[Skill]:
        """What changes of one knob did, as the newest outcomes tell, the most telling first; filters as in `decisions`."""

        def fits(place: Place) -> bool:
            return _matches(kernel, place.workload.program.name) and _matches(hardware, place.hardware.name)

        with self._reading() as connection:
            return skills_of(newest_recordings(connection, fits, MINED_OUTCOMES, self.unreadable.append))

    def recordings(self) -> list[Recording]:
        """All outcomes by where they were measured, with what was told of configs without compiling: to learn from."""
        with self._reading() as connection:
            return newest_recordings(connection, lambda _: True, math.inf, self.unreadable.append, described=True)

    def pending(self) -> list[Pending]:
        """Keys met where measuring was not allowed and not measured since, the one met last first."""
        with self._reading() as connection:
            return list(rows.stored_pending(connection, self.unreadable.append))

    def failures(self, *, limit: int) -> list[tuple[Program, Config, Failure, float]]:
        """The newest failures of all, with the program, the config, and when they were recorded, in seconds since 1970."""
        found = []
        with self._reading() as connection:
            for name, value, *of_the_outcome in connection.execute(
                "SELECT program.name, program.value, text.value, outcome.value, recorded_at, outcome.id FROM outcome"
                " LEFT JOIN text ON text.id = config"
                " JOIN workload ON workload.id = outcome.workload JOIN program ON program.digest = workload.program"
                " WHERE outcome.value LIKE '{\"stage\":%' ORDER BY recorded_at DESC, outcome.id DESC LIMIT ?",
                (limit,),
            ):
                config, outcome, recorded_at, number = of_the_outcome
                what = f"outcome {number}"
                try:
                    program = encoding.decode_program(encoding.from_text(value, what), what)
                    decoded = encoding.decode_config(encoding.from_text(config, what), what)
                    failure = encoding.decode_outcome(encoding.from_text(outcome, what), what)
                    when = encoding.number_field({"recorded_at": recorded_at}, "recorded_at", what)
                except InvalidInputError as err:
                    self.unreadable.append(f"{name}: {err}")
                    continue
                if isinstance(failure, Failure):
                    found.append((program, decoded, failure, when))
        return found

    def stats(self) -> StoreStats:
        """Counts, costs, and the pairs that tell how honest forecasts were.

        A hit saves the seconds that the decision's tuning run took, which this process would have spent again. A
        forecast saves, for each config of a decision's space that was not tried, what the tried ones cost on average,
        compared with trying all. A pair is the first forecast ever made for a config at a place and the speed-up
        measured there, minus infinity if it failed; the default is left out, its speed-up being 1 by definition. Pairs are
        read back to the newest `JUDGED_OUTCOMES`; rows beyond them are counted only, unreadable ones included.
        """
        decisions: dict[str, int] = {}
        superseded = hits = 0
        spent_s = saved_by_hits_s = saved_by_forecasts_s = 0.0
        pairs: list[tuple[Forecast, float]] = []
        with self._reading() as connection:
            for stored in stored_decisions(connection, self.unreadable.append):
                decision = stored.decision
                spent_s += decision.spent_s
                hits += stored.hits
                saved_by_hits_s += stored.hits * decision.spent_s
                if decision.measured and decision.space_size > decision.measured:
                    untried = decision.space_size - decision.measured
                    saved_by_forecasts_s += untried * decision.spent_s / decision.measured
                if stored.superseded_at is None:
                    decisions[decision.basis] = decisions.get(decision.basis, 0) + 1
                else:
                    superseded += 1
            failures = _failures_by_stage(connection)
            measurements = connection.execute("SELECT count(*) FROM outcome").fetchone()[0] - sum(failures.values())
            forecasts = connection.execute("SELECT count(*) FROM forecast").fetchone()[0]
            abstentions = connection.execute(
                "SELECT count(*) FROM forecast WHERE CASE WHEN json_valid(value) THEN json_type(value, '$.abstains') END"
                " IS NOT NULL"
            ).fetchone()[0]
            forecasts -= abstentions
            judged = 0
            places = connection.execute(
                "SELECT workload, hardware, toolchain, count(*) FROM outcome GROUP BY 1, 2, 3 ORDER BY max(id) DESC"
            )
            for workload, hardware, toolchain, outcomes in places:
                if judged >= JUDGED_OUTCOMES:
                    break
                judged += outcomes
                newest: dict[Config, StoredOutcome] = {}
                for outcome in rows.stored_outcomes(
                    connection, (workload, hardware, toolchain), self.unreadable.append
                ):
                    newest[outcome.config] = _with_first_forecast(newest.pop(outcome.config, None), outcome)
                if newest:
                    default = next(reversed(newest.values())).default
                    speedups = log2_speedups({c: s.outcome for c, s in newest.items()}, default)
                    pairs += [
                        (s.forecast, speedups.get(c, -math.inf))
                        for c, s in newest.items()
                        if speedups and c != default and isinstance(s.forecast, Forecast)
                    ]
            counts = [
                connection.execute(f"SELECT count(DISTINCT digest) FROM {table}").fetchone()[0]  # noqa: S608  # names of our own
                for table in ("program", "workload", "hardware", "toolchain")
            ]
            journal = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
            pending = connection.execute("SELECT count(*) FROM pending").fetchone()[0]
            answers = connection.execute("SELECT count(*) FROM answer").fetchone()[0]
            version = schema.version_of(connection)
        return StoreStats(
            path=self.path,
            size_bytes=self.size_bytes(),
            schema=version,
            journal=journal,
            programs=counts[0],
            workloads=counts[1],
            hardware=counts[2],
            toolchains=counts[3],
            decisions=decisions,
            superseded=superseded,
            measurements=measurements,
            failures=failures,
            forecasts=forecasts,
            abstentions=abstentions,
            hits=hits,
            pending=pending,
            answers=answers,
            spent_s=spent_s,
            saved_by_hits_s=saved_by_hits_s,
            saved_by_forecasts_s=saved_by_forecasts_s,
            pairs=tuple(pairs),
            unreadable=len(self.unreadable),
        )

    def calibration_pairs_by_kind(self) -> dict[str, list[Pair]]:
        """By kind of hardware, the pairs that correct forecasts there; see `newest_pairs`. Left out: kinds without any."""
        with self._reading() as connection:
            complain = self.unreadable.append
            found = {kind: newest_pairs(connection, kind, complain) for kind in kinds_of(connection, complain)}
        return {kind: pairs for kind, pairs in found.items() if pairs}

    def size_bytes(self) -> int:
        """Of the file and its log."""
        names = [self.path, *(self.path.with_name(self.path.name + ending) for ending in filesystem.COMPANIONS)]
        return sum(os.path.getsize(n) for n in names if n.exists())

    def check(self) -> list[str]:
        """What SQLite's own checks find wrong with the file; empty when it is whole."""
        with self._reading() as connection:
            found = damage(connection)
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK) and self._is_marked_read_only():
            found.append("its header forbids writing to it")
        return found

    def _is_marked_read_only(self) -> bool:
        import sqlite3

        uri = f"{self.path.absolute().as_uri()}?mode=rw"  # or one that is removed just now would be made anew
        with self._explaining(), closing(connect(uri, uri=True, wait_s=0.0)) as connection:
            try:
                with transaction(connection):
                    return False
            except sqlite3.OperationalError as err:
                return "readonly" in str(err)

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
        return self._remove(dict.fromkeys(("decision", "outcome", "pending"), _NAMED), {"name": kernel})

    def export(self, path: Path) -> int:
        """Write all decisions and outcomes as JSON lines; returns the number of lines after the header.

        Answers of language models stay: they belong to a model that runs here.
        """
        count = -1

        def counted() -> Iterator[str]:
            nonlocal count
            with self._reading() as connection:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    connection.execute(
                        "BEGIN"
                    )  # one moment of the store; with a rollback journal, none could write in it
                for line in export_lines(connection, self.unreadable.append):
                    count += 1
                    yield line

        write_lines(path, counted())
        return count

    def import_lines(self, paths: Sequence[Path]) -> tuple[int, int]:
        """Take in exported files, all of them or, if a line of any is broken, nothing; creates the store if need be.

        It takes in `AT_ONCE` lines at a time, so that others can write in between. If it is killed, what it took in stays,
        and running it again takes in the rest.

        Returns:
            How many outcomes and decisions are new here.
        """
        for path in paths:
            for _ in stream_entries(path):  # each line is checked before any is taken
                pass
        entries = chain.from_iterable(map(stream_entries, paths))
        outcomes = decisions = 0
        with self._writing(create=True) as connection:
            while some := list(islice(entries, AT_ONCE)):
                with _giving_way(), transaction(connection):
                    new = bring(connection, some)
                outcomes, decisions = outcomes + new[0], decisions + new[1]
        return outcomes, decisions

    def _remove(self, conditions: Mapping[str, str], values: Mapping[str, object]) -> Removed:
        """Remove from each table the rows that its condition names, with what nothing refers to afterwards."""
        removed = Counter[str]()
        with self._writing() as connection:
            for table, condition in conditions.items():
                removed[table] = _remove_gently(connection, table, condition, values)
            programs = _remove_unreferenced(connection)
            _give_back_space(connection)
        return Removed(
            decisions=removed["decision"],
            outcomes=removed["outcome"],
            programs=programs,
            pending=removed["pending"],
            answers=removed["answer"],
        )

    # Opening --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.exists():
            raise StoreError(f"there is no store at {self.path}: nothing has been tuned here yet")
        with self._explaining(), read_only(self.path) as connection:
            if schema.version_of(connection) == schema.VERSION:
                yield connection
                return
            # Looking changes nothing: a copy is brought up to date, in memory or, if large, in a file without a name.
            with closing(connect("")) as copy:
                connection.backup(copy)
                schema.migrate(copy)
                yield copy

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        if not create and not self.exists():
            raise StoreError(f"there is no store at {self.path}: nothing has been tuned here yet")
        with self._explaining():
            connection = open_file(self.path, "auto")
            try:
                refuse_damaged(connection)
                yield connection
            finally:
                connection.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        import sqlite3

        if self.path.is_symlink():
            raise StoreError(
                f"store {self.path} is a symbolic link, which is not followed: name the folder it leads to"
            )
        try:
            yield
        except schema.NewerSchemaError as err:
            raise StoreError(
                f"store {self.path} has schema {err.found}, this version reads up to {schema.VERSION}: "
                "update forecast_autotune, or run 'forecast-autotune export' with the newer version"
            ) from None
        except schema.NotAStoreError:
            raise StoreError(f"{self.path} is no store of this package: move it away, or name another folder") from None
        except sqlite3.DatabaseError as err:
            hint = (
                "the next tuning run sets it aside and begins a fresh one"
                if is_broken(err)
                else "check the folder's permissions, the disk's space, and what else has it open"
            )
            raise StoreError(f"store {self.path} cannot be used ({err}): {hint}") from None


def _with_first_forecast(earlier: StoredOutcome | None, outcome: StoredOutcome) -> StoredOutcome:
    """The outcome, with the forecast made before the config was ever timed here: a later one has seen the answer."""
    from dataclasses import replace

    return outcome if earlier is None else replace(outcome, forecast=earlier.forecast)


def _failures_by_stage(connection: sqlite3.Connection) -> dict[str, int]:
    """Counted by SQLite, which takes half a second for a million; as `encode_outcome` writes them, stage first."""
    counted = connection.execute(
        "SELECT CASE WHEN json_valid(value) THEN json_extract(value, '$.stage') END AS stage, count(*) FROM outcome"
        " WHERE value LIKE '{\"stage\":%' GROUP BY stage HAVING typeof(stage) = 'text'"
    )
    return dict(counted.fetchall())


@contextmanager
def _giving_way() -> Iterator[None]:
    """Afterwards, leave the store to others for as long as this took: whoever records must not wait for a whole prune."""
    began = time.perf_counter()
    yield
    time.sleep(time.perf_counter() - began)


def _remove_gently(connection: sqlite3.Connection, table: str, condition: str, values: Mapping[str, object]) -> int:
    """Remove rows, some at a time, and let others write in between; returns how many went."""
    key = "digest" if table == "pending" else "id"
    after: object = -(2**63)  # before every id, and before every text
    (end,) = connection.execute(f"SELECT max({key}) FROM {table}").fetchone()  # noqa: S608  # what comes later is in use
    removed = 0
    while True:
        with _giving_way(), transaction(connection):
            (last,) = connection.execute(
                f"SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > ? AND {key} <= ? ORDER BY {key} LIMIT ?)",  # noqa: S608  # ours
                (after, end, AT_ONCE),
            ).fetchone()
            if last is None:
                return removed
            removed += connection.execute(  # an outcome's forecast goes with it
                f"DELETE FROM {table} WHERE {key} > :after AND {key} <= :last AND {condition}",  # noqa: S608  # ours
                {**values, "after": after, "last": last},
            ).rowcount
            after = last


def _remove_unreferenced(connection: sqlite3.Connection) -> int:
    """Remove what nothing refers to; returns how many programs went."""

    def remove(table: str, key: str, *referring: tuple[str, str]) -> int:
        unnamed = " AND ".join(f"{key} NOT IN (SELECT {column} FROM {name})" for name, column in referring)  # noqa: S608  # ours
        with _giving_way(), transaction(connection):
            return connection.execute(f"DELETE FROM {table} WHERE {unnamed}").rowcount  # noqa: S608  # names of our own

    for table in ("workload", "hardware", "toolchain"):
        remove(table, "id", ("outcome", table), ("decision", table), ("pending", table))
    remove("text", "id", *(("outcome", column) for column in ("config", "run", "default_config")))
    return remove("program", "digest", ("workload", "program"))


def _give_back_space(connection: sqlite3.Connection) -> None:
    """Make the file smaller where a good part of it is empty and nobody else has it open; else later rows use the space.

    A million outcomes take ten seconds, in which nobody could write: as long as a process waits before it gives up.
    """
    free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
    if free < pages * WORTH_SHRINKING:
        return
    with suppress(connection.OperationalError):
        # Leaving WAL is refused while anybody else has the file open; who opens it next returns to it.
        connection.execute("PRAGMA busy_timeout = 0")
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("VACUUM")


def _matches(wanted: str | None, name: str) -> bool:
    return wanted is None or wanted.lower() in name.lower()
