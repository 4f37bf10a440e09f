"""The store: one SQLite file that remembers outcomes, forecasts and decisions, and never stands in a launch's way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.fork_safe_lock import fork_safe_lock
from ..core.job import Job, Recording
from ..core.knob_effect import KnobEffect
from ..core.outcome import Measurement, Outcome
from ..errors import InvalidInputError
from ..features.knob_effects import MOST, fitting, mine_knob_effects
from ..language.answers import Bins
from ..settings import Settings
from . import answers, decisions, filesystem, process_hooks, rows, tuning_keys
from .calibration_pairs import Pair, newest_pairs
from .connection import StoreConnection
from .held_warnings import HeldWarnings
from .holders import holder_of, named_holder
from .lock import SingleFlight
from .outcomes import keep_outcome, newest_outcomes
from .packs import Packs
from .recordings import newest_for, related_recordings
from .rows import StoredOutcome, TuningKey

if TYPE_CHECKING:
    import sqlite3

SEEN_EVERY_S = 86_400.0
"""A recall writes at once only when the decision was last noted to be in use longer ago than this."""

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class SqliteStore:
    """Outcomes, forecasts and decisions in one file, shared by any number of threads and processes.

    Nothing is opened before the first call, and no call raises. A broken file is set aside under another name and a fresh
    one begun. Where the file cannot be written to, or a newer version has written it, the process goes on in memory, with
    what could be read. Either gives one `StoreWarning`.

    Args:
        directory: the folder of `store.sqlite3`; None keeps everything in memory.
        packs: JSON-lines files, looked up after the store.
        toolchain: `exact`, or `any` to accept a decision made under another toolchain when this one has none.
        journal: `wal` or `rollback` for how SQLite makes writes atomic; `auto` is WAL, and rollback on a network
            filesystem or where WAL cannot work.
        quiet: warn of nothing, and leave a broken file as it is.
        notes: the store that keeps keys noted as pending, if not this one.
        alone: whether of all processes that miss a key one tunes it; if not, each does for itself.
    Raises:
        InvalidInputError: `toolchain` or `journal` is none of these.
    """

    def __init__(
        self,
        directory: Path | str | None,
        *,
        packs: Sequence[Path | str] = (),
        toolchain: str = "exact",
        journal: str = "auto",
        quiet: bool = False,
        notes: SqliteStore | None = None,
        alone: bool = True,
    ) -> None:
        if toolchain not in ("exact", "any"):
            raise InvalidInputError(f"toolchain {toolchain!r}: accepted are exact, any")
        if journal not in ("auto", "wal", "rollback"):
            raise InvalidInputError(f"journal {journal!r}: accepted are auto, wal, rollback")
        self.directory = None if directory is None else Path(directory)
        self.path = None if self.directory is None else self.directory / filesystem.FILE_NAME
        self.any_toolchain = toolchain == "any"
        self.notes = notes
        self.alone = alone
        self.warnings = HeldWarnings(quiet=quiet)
        self.connection = StoreConnection(self.path, journal=journal, warnings=self.warnings)
        self.packs = Packs([Path(p) for p in packs], warnings=self.warnings)
        locks = None if self.directory is None else self.directory / "locks"
        self.locks = SingleFlight(locks, complain=lambda text: self.warnings.warn_once("lock", text))
        process_hooks.register(self)

    @classmethod
    def in_memory(cls) -> SqliteStore:
        """A store that ends with the process: for tests, and for modes that read no store."""
        return cls(None)

    # The protocol ---------------------------------------------------------------------------------------------------

    def decision(self, job: Job) -> Decision | None:
        """The decision that holds for this key, hardware, toolchain and space; else a pack's; else of another toolchain."""
        return self._decision(job, decisions.recall)

    def decision_for_any_constexprs(self, job: Job) -> Decision | None:
        """As `decision`, for a key that may hold other constexprs, whose decision is then carried over.

        None for a key without constexprs.
        """
        if not job.workload.constexprs:
            return None
        return self._decision(job, decisions.recall_for_any_constexprs)

    def _decision(self, job: Job, recall: Callable[..., rows.Recall | None]) -> Decision | None:
        for any_toolchain in (False, True) if self.any_toolchain else (False,):

            def read(connection: sqlite3.Connection, any_toolchain: bool = any_toolchain) -> rows.Recall | None:
                return recall(connection, job, any_toolchain=any_toolchain, complain=self.connection.complain)

            if found := self.recalled(job, read):
                return found
        return None

    def recalled(
        self,
        job: Job,  # noqa: ARG002  # for stores that look elsewhere too
        read: Callable[[sqlite3.Connection], rows.Recall | None],
    ) -> Decision | None:
        """The decision for a job by what `read` finds in a store and in packs."""
        packed = None if self.connection.is_made else self.pack_decision(read)
        return packed or self.own_decision(read) or self.pack_decision(read)

    def own_decision(self, read: Callable[[sqlite3.Connection], rows.Recall | None]) -> Decision | None:
        """What is recalled from the store's own file."""
        if own := self.connection.run(read):
            self._count(own)
            return own.decision
        return None

    def pack_decision(self, read: Callable[[sqlite3.Connection], rows.Recall | None]) -> Decision | None:
        """What is recalled from packs."""
        from_pack = self.run_on_packs(read)
        return None if from_pack is None else from_pack.decision

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """The newest outcome of each config of this job; the store's before a pack's, brought to its scale."""

        def read(connection: sqlite3.Connection) -> dict[Config, Outcome]:
            newest: dict[Config, Outcome] = {}
            for ids in tuning_keys.tuning_keys_of(connection, TuningKey.of(job)):
                newest |= newest_outcomes(connection, ids, self.connection.complain).outcomes
            return newest

        packed = self.run_on_packs(read) or {}
        own = (self.connection.run(read) if self.connection.is_made else None) or {}
        return {**on_scale_of(own, packed, job.space.default), **own}

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """The same program at other keys, on other hardware, under other toolchains, or in older source: the most alike."""

        def read(connection: sqlite3.Connection) -> list[Recording]:
            return related_recordings(connection, job, self.connection.complain)

        own = self.connection.run(read) or []
        known = {TuningKey.of(r).digests for r in own}
        return [*own, *(r for r in self.run_on_packs(read) or [] if TuningKey.of(r).digests not in known)]

    def related_decisions(self, job: Job) -> list[rows.StoredDecision]:
        """Decisions for the program's name and this key: of older source, elsewhere, in other spaces; a pack's come last."""

        def read(connection: sqlite3.Connection) -> list[rows.StoredDecision]:
            return decisions.related_decisions(connection, job, self.connection.complain)

        return [*(self.connection.run(read) or []), *(self.run_on_packs(read) or [])]

    def record_outcome(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        """Keep an outcome, the forecast that preceded it and the config's static features, in one transaction, at once.

        A later outcome of the same run replaces it; the forecast made before the first one stays.
        """
        stored = StoredOutcome(
            config=config,
            outcome=outcome,
            forecast=forecast,
            default=job.space.default,
            run=run,
            recorded_at=rows.now(),
            static_features=job.static_features[job.space.index(config)]
            if job.static_features and config in job.space
            else {},
        )

        def write(connection: sqlite3.Connection) -> None:
            tuning_keys.keep_tuning_key(connection, TuningKey.of(job), stored.recorded_at)
            keep_outcome(connection, TuningKey.of(job), stored)

        self.connection.write(write)

    def record_decision(self, job: Job, decision: Decision) -> None:
        """Keep a decision; the one it supersedes stays as history until it is pruned."""

        def write(connection: sqlite3.Connection) -> None:
            tuning_keys.keep_tuning_key(connection, TuningKey.of(job), rows.now())
            decisions.keep_decision(connection, TuningKey.of(job), decision)

        self.connection.write(write)
        if decision.rests_on_outcomes:
            with self.connection.lock:
                self.connection.deferred.forget_note(rows.decision_digest(TuningKey.of(job), job.space.digest))

    def note_pending(self, job: Job, why: str) -> None:
        """Note that this job was met where measuring was not allowed, once in a process.

        Waits for nobody: where the file is busy, the note is written with the next row or when the process ends.
        """
        if self.notes is not None:
            self.notes.note_pending(job, why)
            return
        now, space = rows.now(), job.space
        pending = rows.Pending(
            tuning_key=TuningKey.of(job), space=space.digest, space_size=len(space), why=why, noted_at=now, met_at=now
        )
        with self.warnings.held(), self.connection.lock:
            if self.connection.deferred.note(pending):
                self.connection.open()
                self.connection.write_deferred()

    def shared_decision(self, job: Job) -> Decision | None:  # noqa: ARG002  # the protocol's
        """None: this store knows of no ranks. Those that share its file find each other's decisions by `decision`."""
        return None

    def publish_decision(self, job: Job, decision: Decision) -> Decision:  # noqa: ARG002
        """The decision itself: this store knows of no ranks."""
        return decision

    @contextmanager
    def single_flight(self, job: Job) -> Iterator[bool]:
        """Hold this job against every other process and thread; False, at once, where another one holds it."""
        if not self.alone:
            yield True
            return
        name = rows.decision_digest(TuningKey.of(job), job.space.digest)
        with self.locks.hold(digest(*TuningKey.of(job).digests)) as alone:
            if not alone:
                holder = self.connection.run(lambda opened: holder_of(opened, name))
                log.info("%s is being tuned by %s", job.workload, holder or "another process")
            if alone and self.connection.is_open and not self.connection.in_memory:  # not worth opening it for a name
                with named_holder(self.connection, name):
                    yield True
            else:
                yield alone

    # What surrogates ask of it --------------------------------------------------------------------------------------

    def calibration_pairs(self, kind: str) -> list[Pair]:
        """The newest forecasts on one kind of hardware, each with the log2 speed-up measured then; see `newest_pairs`."""
        return self.connection.run(lambda opened: newest_pairs(opened, kind, self.connection.complain)) or []

    def knob_effects(self, job: Job, most: int = MOST) -> list[KnobEffect]:
        """The effects of single knobs, mined from the newest outcomes on this kind of hardware; see `fitting`.

        This job's own outcomes are left out: forecasts of it would have seen the answer. A pack's come after the store's.
        """

        def read(connection: sqlite3.Connection) -> list[Recording]:
            return newest_for(connection, job, self.connection.complain)

        recordings = [*(self.connection.run(read) or []), *(self.run_on_packs(read) or [])]
        own = TuningKey.of(job).digests[:2]
        return fitting(mine_knob_effects([r for r in recordings if TuningKey.of(r).digests[:2] != own]), job, most)

    def answers(self, digests: Sequence[str]) -> dict[str, Bins]:
        """A language model's earlier answers by digest of the question; questions without one are left out."""
        if not digests:
            return {}
        return self.connection.run(lambda opened: answers.kept_answers(opened, digests, self.connection.complain)) or {}

    def keep_answers(self, given: Mapping[str, Bins]) -> None:
        """Keep a language model's answers, in one transaction; the oldest go beyond `answers.MOST`."""
        if given:
            self.connection.write(lambda connection: answers.keep_answers(connection, given))

    def close(self) -> None:
        """Write recalls and notes that wait for it and close the file; a later call opens it again. Memory is forgotten."""
        with self.connection.lock:
            self.connection.close()
            self.packs.close()

    def __del__(self) -> None:
        with suppress(Exception):  # also where the constructor raised
            self.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqliteStore({self.path or 'in memory'})"

    def before_fork(self) -> bool:
        """See `StoreConnection.before_fork`."""
        return self.connection.before_fork()

    def after_fork_in_parent(self) -> None:
        """See `StoreConnection.after_fork_in_parent`."""
        self.connection.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Begin with nothing open and nothing held: that is all the parent's."""
        self.connection.after_fork_in_child()
        self.packs.after_fork_in_child()
        self.locks.reset()

    def _count(self, recall: rows.Recall) -> None:
        """Remember a process's first recall of a decision, to be written with the next row or when the process ends.

        Writing it at once would make every process a writer: with 64 that start together, reading would wait for them.
        Once a day it is, so that `prune` knows what long-lived processes use even if they end by being killed.
        """
        with self.connection.lock:
            counted = self.connection.deferred.count(recall.id)
            if counted and not self.connection.in_memory and rows.now() - recall.noted_at > SEEN_EVERY_S:
                self.connection.write_deferred()

    def run_on_packs(self, read: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """The result of reading the packs; None without any."""
        if not self.packs:
            return None
        with self.warnings.held(), self.connection.lock:
            return read(self.packs.open())


def on_scale_of(
    own: Mapping[Config, Outcome], packed: Mapping[Config, Outcome], default: Config
) -> dict[Config, Outcome]:
    """A pack's outcomes, their times multiplied by how much longer the default took in the store's own."""
    packed_default, own_default = packed.get(default), own.get(default)
    if not (isinstance(packed_default, Measurement) and isinstance(own_default, Measurement)):
        return dict(packed)
    factor = own_default.median_us / packed_default.median_us
    return {c: o.scaled(factor) if isinstance(o, Measurement) else o for c, o in packed.items()}


MAX_OPEN = 4
"""Stores of `open_local_store` whose files stay open, three descriptors each: a test suite may set one for each test."""

_OPENED: dict[tuple[object, ...], SqliteStore] = {}  # the one asked for last at the end
_OPENING = fork_safe_lock()


def open_local_store(settings: Settings) -> SqliteStore:
    """The store that the settings name, one for each folder in a process; in mode `forecast`, an empty one in memory.

    Mode `forecast` must come to the same answer in every run, so it may not know what an earlier one learned. Keys it
    meets are noted as pending in the named store all the same, quietly: reading nothing there, it warns of nothing.
    """
    if settings.mode == "forecast":
        notes = _opened((str(settings.dir), "notes"), lambda: SqliteStore(settings.dir, quiet=True))
        return SqliteStore(None, notes=notes)
    alone = settings.sync != "none"
    packs = [pack for pack in settings.packs if isinstance(pack, Path)]
    return _opened(
        (str(settings.dir), tuple(str(p) for p in settings.packs), settings.toolchain, alone),
        lambda: SqliteStore(settings.dir, packs=packs, toolchain=settings.toolchain, alone=alone),
    )


def _opened(key: tuple[object, ...], make: Callable[[], SqliteStore]) -> SqliteStore:
    with _OPENING:
        store = _OPENED[key] = _OPENED.pop(key) if key in _OPENED else make()
        for other in list(_OPENED.values())[:-MAX_OPEN]:
            other.connection.rest()
        return store
