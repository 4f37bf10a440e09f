"""What the command does with a store: look, count, prune, clear, export, import. Unlike the store itself, it raises."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.forecast import Forecast
from ..core.job import Recording, log2_speedups
from ..core.outcome import Failure, Outcome
from ..core.skill import Skill
from ..errors import InvalidInputError, StoreError
from ..skills import skills_of
from . import filesystem, rows, schema
from .lines import bring, export_lines, read_lines, stored_decisions
from .opening import connect, open_file, read_only, transaction
from .pairs import Pair, kinds_of, newest_pairs
from .recordings import newest_recordings
from .rows import Pending, Place, StoredDecision, StoredOutcome
from .textfile import write_lines

if TYPE_CHECKING:
    import sqlite3

UNSEEN_DAYS = 90

MINED_OUTCOMES = 20_000  # the newest, for all skills there are; reading and mining them takes 2 s (two busy cores)


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
        found = []
        with self._reading() as connection:
            condition = "" if superseded else "WHERE superseded_at IS NULL"
            for stored in stored_decisions(connection, self.unreadable.append, condition):
                if not _matches(kernel, stored.place.workload.program.name):
                    continue
                if not _matches(hardware, stored.place.hardware.name):
                    continue
                found.append(stored)
                if limit is not None and len(found) >= limit:
                    break
        return found

    def find(self, key: str) -> list[StoredDecision]:
        """Decisions whose digest starts with the key; if none does, those of the kernel of that name."""
        holding = self.decisions()
        by_digest = [s for s in holding if key and s.digest.startswith(key.lower())]
        return by_digest or [s for s in holding if s.place.workload.program.name == key]

    def detail(self, stored: StoredDecision) -> DecisionDetail:
        """Everything that is known around one decision."""
        newest: dict[Config, StoredOutcome] = {}
        with self._reading() as connection:
            for outcome in rows.stored_outcomes(connection, stored.place.digests, self.unreadable.append):
                newest[outcome.config] = _with_first_forecast(newest.pop(outcome.config, None), outcome)
            history = stored_decisions(
                connection, self.unreadable.append, "WHERE superseded_at IS NOT NULL AND digest = ?", (stored.digest,)
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

    def stats(self) -> StoreStats:
        """Counts, costs, and the pairs that tell how honest forecasts were.

        A hit saves the seconds that the decision's tuning run took, which this process would have spent again. A
        forecast saves, for each config of a decision's space that was not tried, what the tried ones cost on average,
        compared with trying all. A pair is the first forecast ever made for a config at a place and the speed-up
        measured there, minus infinity if it failed; the default is left out, its speed-up being 1 by definition.
        """
        decisions: dict[str, int] = {}
        superseded = hits = 0
        spent_s = saved_by_hits_s = saved_by_forecasts_s = 0.0
        failures: dict[str, int] = {}
        pairs: list[tuple[Forecast, float]] = []
        measurements = forecasts = abstentions = 0
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
            places = connection.execute("SELECT DISTINCT workload, hardware, toolchain FROM outcome").fetchall()
            for digests in places:
                newest: dict[Config, StoredOutcome] = {}
                for outcome in rows.stored_outcomes(connection, digests, self.unreadable.append):
                    newest[outcome.config] = _with_first_forecast(newest.pop(outcome.config, None), outcome)
                    if isinstance(outcome.outcome, Failure):
                        failures[outcome.outcome.stage] = failures.get(outcome.outcome.stage, 0) + 1
                    else:
                        measurements += 1
                    if isinstance(outcome.forecast, Forecast):
                        forecasts += 1
                    elif outcome.forecast is not None:
                        abstentions += 1
                if newest:
                    default = next(reversed(newest.values())).default
                    speedups = log2_speedups({c: s.outcome for c, s in newest.items()}, default)
                    pairs += [
                        (s.forecast, speedups.get(c, -math.inf))
                        for c, s in newest.items()
                        if speedups and c != default and isinstance(s.forecast, Forecast)
                    ]
            counts = [
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608  # names of our own
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

    def pairs_by_kind(self) -> dict[str, list[Pair]]:
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
        """What SQLite's own check finds wrong with the file; empty when it is whole."""
        with self._reading() as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)")]
        return [] if found == ["ok"] else found

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
            "(toolchain IN (SELECT digest FROM toolchain WHERE seen_at < :before) OR workload IN (SELECT workload.digest"
            " FROM workload JOIN program ON program = program.digest WHERE seen_at < :before))"
        )
        return self._remove(
            f"DELETE FROM decision WHERE superseded_at IS NOT NULL OR {forgotten}",  # noqa: S608  # of our own making
            f"DELETE FROM outcome WHERE {forgotten}",  # noqa: S608
            f"DELETE FROM pending WHERE {forgotten}",  # noqa: S608
            "DELETE FROM answer WHERE kept_at < :before",
            {"before": before},
        )

    def clear(self, *, kernel: str | None = None) -> Removed:
        """Remove everything, or everything of the kernel of exactly this name; answers of language models name none."""
        if kernel is None:
            return self._remove(
                "DELETE FROM decision", "DELETE FROM outcome", "DELETE FROM pending", "DELETE FROM answer", {}
            )
        named = "workload IN (SELECT workload.digest FROM workload JOIN program ON program = program.digest WHERE name = :n)"
        return self._remove(
            f"DELETE FROM decision WHERE {named}",  # noqa: S608  # of our own making; the name is a parameter
            f"DELETE FROM outcome WHERE {named}",  # noqa: S608
            f"DELETE FROM pending WHERE {named}",  # noqa: S608
            None,
            {"n": kernel},
        )

    def export(self, path: Path) -> int:
        """Write all decisions and outcomes as JSON lines; returns the number of lines after the header.

        Answers of language models stay: they belong to a model that runs here.
        """
        count = -1

        def counted() -> Iterator[str]:
            nonlocal count
            with self._reading() as connection:
                connection.execute("BEGIN")  # one moment of the store, however long writing it takes
                for line in export_lines(connection, self.unreadable.append):
                    count += 1
                    yield line

        write_lines(path, counted())
        return count

    def import_lines(self, paths: Sequence[Path]) -> tuple[int, int]:
        """Take in exported files, all of them or, if a line of any is broken, nothing; creates the store if need be.

        Returns:
            How many outcomes and decisions are new here.
        """
        entries = [entry for path in paths for entry in read_lines(path)]
        with self._writing(create=True) as connection, transaction(connection):
            return bring(connection, entries)

    def _remove(
        self, decisions: str, outcomes: str, pending: str, answers: str | None, values: dict[str, object]
    ) -> Removed:
        with self._writing() as connection:
            with transaction(connection):
                removed = Removed(
                    decisions=connection.execute(decisions, values).rowcount,
                    outcomes=connection.execute(outcomes, values).rowcount,  # their forecasts go with them
                    pending=connection.execute(pending, values).rowcount,
                    answers=connection.execute(answers, values).rowcount if answers else 0,
                    programs=_remove_unreferenced(connection),
                )
            # Not while another process has the file open: the space is used again by later rows then.
            with suppress(connection.OperationalError):
                connection.execute("VACUUM")
        return removed

    # Opening --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.exists():
            raise StoreError(f"there is no store at {self.path}: nothing has been tuned here yet")
        with self._explaining(), read_only(self.path) as connection:
            if schema.version_of(connection) == schema.VERSION:
                yield connection
                return
            # An older file is brought up to date in memory: looking changes nothing.
            with closing(connect(":memory:")) as copy:
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
                "the next tuning run sets it aside and begins a fresh one" if type(err) is sqlite3.DatabaseError else ""
            )
            hint = hint or "check the folder's permissions, the disk's space, and what else has it open"
            raise StoreError(f"store {self.path} cannot be used ({err}): {hint}") from None


def _with_first_forecast(earlier: StoredOutcome | None, outcome: StoredOutcome) -> StoredOutcome:
    """The outcome, with the forecast made before the config was ever timed here: a later one has seen the answer."""
    from dataclasses import replace

    return outcome if earlier is None else replace(outcome, forecast=earlier.forecast)


def _remove_unreferenced(connection: sqlite3.Connection) -> int:
    """Remove what nothing refers to; returns how many programs went."""
    connection.execute(
        "DELETE FROM workload WHERE digest NOT IN (SELECT workload FROM outcome UNION SELECT workload FROM decision"
        " UNION SELECT workload FROM pending)"
    )
    programs = connection.execute("DELETE FROM program WHERE digest NOT IN (SELECT program FROM workload)").rowcount
    for table in ("hardware", "toolchain"):
        connection.execute(
            f"DELETE FROM {table} WHERE digest NOT IN"  # noqa: S608  # names of our own
            f" (SELECT {table} FROM outcome UNION SELECT {table} FROM decision UNION SELECT {table} FROM pending)"
        )
    return programs


def _matches(wanted: str | None, name: str) -> bool:
    return wanted is None or wanted.lower() in name.lower()
