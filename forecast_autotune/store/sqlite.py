"""The store: one SQLite file that remembers outcomes, forecasts and decisions, and never stands in a launch's way."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Recording
from ..core.outcome import Measurement, Outcome
from ..core.skill import Skill
from ..core.text import plain
from ..errors import InvalidInputError, StoreWarning
from ..language.answers import Bins
from ..language.skills import MOST, fitting, skills_of
from ..settings import Settings
from . import answers, filesystem, rows, schema
from .calibration_pairs import Pair, newest_pairs
from .connection import BUSY_S, SNAPSHOT_S, connect, is_broken, open_file, read_only, refuse_damaged, transaction
from .holders import holder_of, remove_holder, this_process, write_holder
from .lock import SingleFlight
from .recordings import newest_for
from .rows import Place, StoredOutcome

if TYPE_CHECKING:
    import sqlite3

SEEN_EVERY_S = 86_400.0
"""A recall writes at once only when the decision was last noted to be in use longer ago than this."""

FORK_WAIT_S = 0.1
"""How long a fork waits for another thread to be done with the file: several times what a transaction takes (13 ms with a
sync of the disk). A thread that waits for another process takes up to `BUSY_S`: a child goes on in memory then."""

MOST_TOLD = 2_000  # characters of a warning

_T = TypeVar("_T")

log = logging.getLogger(__name__)

MOST_NOTED = 64  # pending keys that a process remembers having noted: programs meet ever new ones


class SqliteStore:
    """Outcomes, forecasts and decisions in one file, shared by any number of threads and processes.

    Nothing is opened before the first call, and no call raises. A file that is broken is set aside under another name
    and a fresh one begun. Where the file cannot be written to, or a newer version has written it, the process goes on
    in memory, with what could be read. Either is told once, as a `StoreWarning`.

    Args:
        directory: the folder of `store.sqlite3`; None keeps everything in memory.
        packs: JSON-lines files, looked up after the store.
        toolchain: `exact`, or `any` to accept a decision made under another toolchain when this one has none.
        journal: `wal` or `rollback` for how SQLite makes writes atomic; `auto` is WAL, and rollback on a network
            filesystem or where WAL cannot work.
        quiet: say nothing of trouble, and leave a broken file as it is.
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
        self.packs = tuple(Path(p) for p in packs)
        self.any_toolchain = toolchain == "any"
        self.journal = journal
        self.quiet = quiet
        self.notes = notes
        self.alone = alone
        self._told: set[str] = set()
        locks = None if self.directory is None else self.directory / "locks"
        self.locks = SingleFlight(locks, complain=lambda text: self._tell("lock", text))
        self._begin()
        _STORES[id(self)] = self

    @classmethod
    def in_memory(cls) -> SqliteStore:
        """A store that ends with the process: for tests, and for modes that read no store."""
        return cls(None)

    def _begin(self) -> None:
        """Nothing open yet: in a new store, and in the child of a fork."""
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pack_connection: sqlite3.Connection | None = None
        self._identity: filesystem.Identity | None = None  # of the open file; None in memory
        self._checked: filesystem.Identity | None = None  # of the file that was whole before this process added to it
        self._gave_way = False  # in memory although a file was asked for
        self._inherited = False  # the file may have been open when this process was forked: it cannot be used here
        self._ready_for_fork = False  # the file is closed, and a thread that forks holds the store
        self._fork_waits = True  # not after one that waited in vain, until the store has been free
        self._hits: dict[int, int] = {}  # recalls not written yet, by decision
        self._counted: set[int] = set()  # decisions that this process has recalled
        self._noted: set[str] = set()  # keys that this process has noted as pending of late
        self._unwritten: list[rows.Pending] = []  # those of them that the file has still to hear of

    # The protocol ---------------------------------------------------------------------------------------------------

    def decision(self, job: Job) -> Decision | None:
        """The decision that holds for this key, hardware, toolchain and space; else a pack's; else of another toolchain."""
        for any_toolchain in (False, True) if self.any_toolchain else (False,):

            def look(connection: sqlite3.Connection, any_toolchain: bool = any_toolchain) -> rows.Recall | None:
                return rows.recall(connection, job, any_toolchain=any_toolchain, complain=self._complain)

            if stored := self.run(look, None):
                self._count(stored)
                return stored.decision
            if from_pack := self._ask_packs(look, None):
                return from_pack.decision
        return None

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """The newest outcome of each config of this job; the store's before a pack's, brought to its scale."""

        def look(connection: sqlite3.Connection) -> dict[Config, Outcome]:
            newest: dict[Config, Outcome] = {}
            for ids in rows.places_of(connection, Place.of(job)):
                newest |= rows.newest_outcomes(connection, ids, self._complain)[0]
            return newest

        nothing: dict[Config, Outcome] = {}
        packed, own = self._ask_packs(look, nothing), self.run(look, nothing)
        theirs, ours = (known.get(job.space.default) for known in (packed, own))
        if isinstance(theirs, Measurement) and isinstance(ours, Measurement):
            factor = ours.median_us / theirs.median_us
            packed = {c: o.scaled(factor) if isinstance(o, Measurement) else o for c, o in packed.items()}
        return {**packed, **own}

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """The same program at other keys, on other hardware, under other toolchains, or in older source."""

        def look(connection: sqlite3.Connection) -> list[Recording]:
            return rows.related_recordings(connection, job, self._complain)

        nothing: list[Recording] = []
        found = self.run(look, nothing)
        places = {(r.workload.digest, r.hardware.digest, r.toolchain.digest) for r in found}
        packed = self._ask_packs(look, nothing)
        return [
            *found,
            *(r for r in packed if (r.workload.digest, r.hardware.digest, r.toolchain.digest) not in places),
        ]

    def record(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        """Keep an outcome, the forecast that preceded it and what the job says of the config, in one transaction, at once.

        A later outcome of the same run replaces it; the forecast made before the first one stays.
        """
        stored = StoredOutcome(
            config=config,
            outcome=outcome,
            forecast=forecast,
            default=job.space.default,
            run=run,
            recorded_at=rows.now(),
            described=job.described[job.space.index(config)] if job.described and config in job.space else {},
        )

        def write(connection: sqlite3.Connection) -> None:
            rows.keep_place(connection, Place.of(job), stored.recorded_at)
            rows.keep_outcome(connection, Place.of(job), stored)

        self._write(write)

    def calibration_pairs(self, kind: str) -> list[Pair]:
        """The newest forecasts on one kind of hardware, each with the log2 speed-up measured then; see `newest_pairs`."""

        def look(connection: sqlite3.Connection) -> list[Pair]:
            return newest_pairs(connection, kind, self._complain)

        nothing: list[Pair] = []
        return self.run(look, nothing)

    def skills(self, job: Job, most: int = MOST) -> list[Skill]:
        """What changes of one knob did, as the newest outcomes on this kind of hardware tell; see `skills.fitting`.

        Not this job's own outcomes: what is then foretold of it would have been seen. A pack's come after the store's.
        """

        def look(connection: sqlite3.Connection) -> list[Recording]:
            return newest_for(connection, job, self._complain)

        nothing: list[Recording] = []
        found = [*self.run(look, nothing), *self._ask_packs(look, nothing)]
        here = Place.of(job).digests[:2]
        return fitting(skills_of([r for r in found if (r.workload.digest, r.hardware.digest) != here]), job, most)

    def answers(self, digests: Sequence[str]) -> dict[str, Bins]:
        """What a language model answered earlier, by digest of the question; without those that are not kept."""

        def look(connection: sqlite3.Connection) -> dict[str, Bins]:
            return answers.kept_answers(connection, digests, self._complain)

        nothing: dict[str, Bins] = {}
        return self.run(look, nothing) if digests else nothing

    def keep_answers(self, found: Mapping[str, Bins]) -> None:
        """Keep a language model's answers, in one transaction; the oldest go beyond `answers.MOST`."""
        if found:
            self._write(lambda connection: answers.keep_answers(connection, found))

    def decide(self, job: Job, decision: Decision) -> None:
        """Keep a decision; the one it supersedes stays as history until it is pruned."""

        def write(connection: sqlite3.Connection) -> None:
            rows.keep_place(connection, Place.of(job), rows.now())
            rows.keep_decision(connection, Place.of(job), decision)

        self._write(write)
        if decision.tried:
            with self._lock:
                self._noted.discard(rows.decision_digest(Place.of(job), job.space.digest))

    def note_pending(self, job: Job, why: str) -> None:
        """Note that this job was met where measuring was not allowed, once in a process.

        Waits for nobody: where the file is busy, it is written with the next row or when the process ends.
        """
        if self.notes is not None:
            self.notes.note_pending(job, why)
            return
        now = rows.now()
        place, space = Place.of(job), job.space
        pending = rows.Pending(
            place=place, space=space.digest, space_size=len(space), why=why, noted_at=now, met_at=now
        )
        with self._telling(), self._lock:
            if pending.digest not in self._noted:
                if len(self._noted) >= MOST_NOTED:
                    self._noted.clear()  # who meets one of them again writes it again
                self._noted.add(pending.digest)
                self._unwritten.append(pending)
                self._open()
                self._write_leftovers()

    def shared_decision(self, job: Job) -> Decision | None:  # noqa: ARG002  # the protocol's
        """Nothing: this store knows of no ranks. Those that share its file find each other's decisions by `decision`."""
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
        name = rows.decision_digest(Place.of(job), job.space.digest)
        with self.locks.hold(digest(*Place.of(job).digests)) as alone:
            if not alone:
                holder = self.run(lambda connection: holder_of(connection, name), None)
                log.info("%s is being tuned by %s", job.workload, holder or "another process")
            # Who tunes has looked for a decision before, so the file is open; opening it for a name would not be worth it.
            if not alone or self._in_memory or self._connection is None:
                yield alone
                return
            me, mine = this_process(), os.getpid()
            self._write(lambda connection: write_holder(connection, name, me))
            try:
                yield True
            finally:
                if os.getpid() == mine:  # else the child of a fork leaves this block too, while its parent goes on
                    self._write(lambda connection: remove_holder(connection, name, me))

    # Opening, closing, forking --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write recalls and notes that wait for it and close the file; a later call opens it again. Memory is forgotten."""
        with self._lock:
            if self._connection is not None:
                self._write_leftovers()
            for connection in (self._connection, self._pack_connection):
                if connection is not None:
                    with suppress(Exception):  # an error here loses nothing that was reported as kept
                        connection.close()
            self._connection = self._pack_connection = self._identity = None
            self._gave_way = False

    def __del__(self) -> None:
        with suppress(Exception):  # also where the constructor raised
            self.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path) if self.path else 'in memory'})"

    @property
    def _in_memory(self) -> bool:
        return self.path is None or self._gave_way

    def _before_fork(self) -> bool:
        """Close the file, and hold the store until the fork is done; False where another thread is busy with it for long.

        A child inherits what SQLite remembers of its process's locks, and would believe to hold them. Seen without this:
        when the parent closed first, what the child recorded from then on was lost without a word; forked while another
        thread wrote, the child found the file locked for ever.
        """
        # A series of forks, such as a loader's workers, waits once.
        self._fork_waits = self._lock.acquire(timeout=FORK_WAIT_S if self._fork_waits else 0)
        if not self._fork_waits:
            return False
        if self._connection is not None and not self._in_memory:
            with suppress(Exception):
                _spare_the_checkpoint(self._connection)
                self._connection.close()
            self._connection = self._identity = None
        self._ready_for_fork = True
        return True

    def _after_fork_in_parent(self) -> None:
        self._ready_for_fork = False
        with suppress(RuntimeError):  # an interrupt came before the lock was had
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        """Leave the parent's connections alone and open the file when it is needed.

        SQLite must not use, nor even close, a connection made before a fork; so it is kept from being collected. The
        lock may be held by a thread that does not exist here, so it is replaced. That thread may be opening the file,
        which `_connection` does not tell yet.
        """
        inherited = self._inherited or not (self._ready_for_fork or self._in_memory)
        _PARENTS.extend(c for c in (self._connection, self._pack_connection) if c is not None)
        self._begin()
        self.locks.begin()
        self._inherited = inherited

    def _open(self) -> sqlite3.Connection:
        """The connection of this process, opened if need be; called with the lock held."""
        self._fork_waits = True
        if (
            self._connection is not None
            and not self._in_memory
            and filesystem.identity_of(self._path) != self._identity
        ):
            # Removed, or set aside by another process: what is written to it now, nobody will read.
            with suppress(Exception):
                self._connection.close()
            self._connection = None
        if self._connection is None and not self._in_memory:
            self._connect()
        if self._connection is None:
            self._connection = self._memory(None)
        return self._connection

    @property
    def _path(self) -> Path:
        if self.path is None:
            raise AssertionError("a store in memory was asked for its file")
        return self.path

    def _connect(self) -> None:
        """Open the file; set it aside and begin a fresh one if it is broken; else go on in memory."""
        import sqlite3

        if self._inherited:
            self._give_way("this process was forked while another thread was busy with it")
            return
        # Before opening: when that fails, another process may have set the file aside already and begun a fresh one.
        seen = filesystem.identity_of(self._path)
        try:
            try:
                self._connection = open_file(self._path, self.journal)
            except (schema.NotAStoreError, sqlite3.DatabaseError) as err:
                if not (is_broken(err) and self._set_aside(err, seen)):
                    raise
                seen = filesystem.identity_of(self._path)
                self._connection = open_file(self._path, self.journal)
            self._identity = seen or filesystem.identity_of(self._path)
        except schema.NewerSchemaError as err:
            hint = "use a newer forecast_autotune, or let FORECAST_AUTOTUNE_DIR name another folder"
            self._give_way(f"it has schema {err.found}, this version reads {schema.VERSION}: {hint}", keep=False)
        except (schema.NotAStoreError, sqlite3.Error, OSError) as err:
            self._give_way(str(err) or "it is not a store of this package")

    def _set_aside(self, reason: Exception, seen: filesystem.Identity | None) -> bool:
        """Rename the broken store away; False where that cannot be done."""
        if self.quiet:
            return False
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None
        try:
            aside = filesystem.set_aside(self._path, seen)
        except OSError:
            return False
        if aside is not None:
            self._tell(
                "broken",
                f"store {self._path} is broken ({str(reason) or 'not a store of this package'}): it is kept as "
                f"{aside.name}, and a fresh one is begun",
            )
        return True

    def _give_way(self, reason: str, *, keep: bool = True) -> None:
        """Go on in memory, with what can be read from the file."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._gave_way = True
        self._identity = None
        self._connection = self._memory(self._path if keep else None)
        self._tell(
            "memory",
            f"store {self._path} cannot be used ({reason}): what this process learns is kept in memory alone. "
            "'forecast-autotune doctor' says more",
        )

    def _memory(self, snapshot_of: Path | None) -> sqlite3.Connection:
        import sqlite3

        connection = connect(":memory:")
        if snapshot_of is not None and filesystem.identity_of(snapshot_of) is not None:
            try:
                with read_only(snapshot_of, wait_s=SNAPSHOT_S) as source:
                    source.backup(connection)
            except (sqlite3.Error, schema.NewerSchemaError, schema.NotAStoreError):
                connection.close()
                connection = connect(":memory:")
        try:
            schema.migrate(connection)
            # Refused where the file's header forbids writing, which was copied with all else.
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")
        except (sqlite3.Error, schema.NewerSchemaError, schema.NotAStoreError):
            connection.close()
            connection = connect(":memory:")
            schema.migrate(connection)
        return connection

    # Doing ----------------------------------------------------------------------------------------------------------

    def run(self, operation: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """Run an operation on the open store; on trouble with the file, make a way and run it again."""
        import sqlite3

        with self._telling(), self._lock:
            for _ in range(3):
                connection = self._open()
                try:
                    return operation(connection)
                except sqlite3.Error as err:
                    if self._in_memory:
                        self._complain(str(err))
                        return otherwise
                    if filesystem.identity_of(self._path) != self._identity:
                        continue  # removed under our hands: `_open` begins another
                    if not (is_broken(err, connection) and self._set_aside(err, self._identity)):
                        self._give_way(str(err))
                except (TypeError, ValueError) as err:  # a value that JSON or UTF-8 cannot hold
                    self._complain(str(err))
                    return otherwise
            return otherwise

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        def operation(connection: sqlite3.Connection) -> None:
            if not self._in_memory and self._checked != self._identity:
                if refuse_damaged(connection):
                    self._complain("indexes that disagreed with its rows and were made anew")
                self._checked = self._identity
            with transaction(connection):
                write(connection)
                self._keep_leftovers(connection)
            self._forget_leftovers()

        self.run(operation, None)

    def _count(self, found: rows.Recall) -> None:
        """Remember a process's first recall of a decision, to be written with the next row or when the process ends.

        Writing it here would make every process a writer: with 64 that start at once, reading would wait for them.
        Once a day it is, so that `prune` knows what long-lived processes use even if they end by being killed.
        """
        with self._lock:
            if found.id in self._counted:
                return
            self._counted.add(found.id)
            self._hits[found.id] = 1
            if not self._in_memory and rows.now() - found.noted_at > SEEN_EVERY_S:
                self._write_leftovers()

    def _keep_leftovers(self, connection: sqlite3.Connection) -> None:
        if self._hits:
            rows.count_hits(connection, self._hits, rows.now())
        for pending in self._unwritten:
            with suppress(TypeError, ValueError):  # a key that JSON or UTF-8 cannot hold
                rows.keep_pending(connection, pending)

    def _forget_leftovers(self) -> None:
        self._hits.clear()
        self._unwritten.clear()

    def _write_leftovers(self) -> None:
        """Write counted recalls and noted keys if that needs no waiting and makes no trouble; they are worth neither."""
        import sqlite3

        connection = self._connection
        if not (self._hits or self._unwritten) or connection is None:
            return
        if not self._in_memory and filesystem.identity_of(self._path) != self._identity:
            return
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                with transaction(connection):
                    self._keep_leftovers(connection)
                self._forget_leftovers()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")

    def _ask_packs(self, look: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        if not self.packs:
            return otherwise
        with self._telling(), self._lock:
            if self._pack_connection is None:
                self._pack_connection = self._read_packs()
            return look(self._pack_connection)

    def _read_packs(self) -> sqlite3.Connection:
        """All packs in one database in memory; one that cannot be read is told of and left out."""
        from .jsonl import bring, read_lines

        connection = self._memory(None)
        for pack in self.packs:  # at equal times, what is written first holds
            try:
                entries = read_lines(pack)
            except (OSError, InvalidInputError) as err:
                self._tell(f"pack {pack}", f"pack {pack} is left out: {err}")
                continue
            with transaction(connection):
                bring(connection, entries)
        return connection

    # Telling --------------------------------------------------------------------------------------------------------

    def _complain(self, text: str) -> None:
        """Told of rows passed over; the first speaks for all."""
        self._tell("rows", f"store {self.path or 'in memory'} passes over what it cannot read or keep: {text}")

    def _tell(self, about: str, text: str) -> None:
        """Warn once about each kind of trouble; held back until the store is whole again and its lock is free."""
        if about not in self._told and not self.quiet:
            self._told.add(about)
            self._pending().append(plain(text[:MOST_TOLD]))  # it may quote a name that a stranger wrote
            if not getattr(_HELD, "depth", 0):
                self._release_warnings()

    def _pending(self) -> list[str]:
        pending: list[str] = _HELD.__dict__.setdefault("pending", [])
        return pending

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Warnings may be errors by the user's choice; raised inside a step they would leave it half done."""
        _HELD.depth = getattr(_HELD, "depth", 0) + 1
        try:
            yield
        finally:
            _HELD.depth -= 1
        if not _HELD.depth:
            self._release_warnings()

    def _release_warnings(self) -> None:
        pending, _HELD.pending = self._pending(), []
        for text in pending:
            warnings.warn(text, StoreWarning, stacklevel=2)


_HELD = threading.local()  # warnings held back, of this thread
_STORES: weakref.WeakValueDictionary[int, SqliteStore] = weakref.WeakValueDictionary()  # by id
_PARENTS: list[sqlite3.Connection] = []  # connections of the process this one was forked from; never closed here
_OPENED: dict[tuple[object, ...], SqliteStore] = {}
_OPENING = threading.Lock()


def open_store(settings: Settings) -> SqliteStore:
    """The store that the settings name, one for each folder in a process; in mode `forecast`, an empty one in memory.

    Mode `forecast` must come to the same answer in every run, so it may not know what an earlier one learned. Keys it
    meets are noted as pending in the named store all the same, quietly: reading nothing there, it warns of nothing.
    """
    if settings.mode == "forecast":
        key: tuple[object, ...] = (str(settings.dir), "notes")
        with _OPENING:
            if key not in _OPENED:
                _OPENED[key] = SqliteStore(settings.dir, quiet=True)
            return SqliteStore(None, notes=_OPENED[key])
    alone = settings.sync != "none"
    key = (str(settings.dir), tuple(str(p) for p in settings.packs), settings.toolchain, alone)
    with _OPENING:
        if key not in _OPENED:
            _OPENED[key] = SqliteStore(settings.dir, packs=settings.packs, toolchain=settings.toolchain, alone=alone)
        return _OPENED[key]


def _stores() -> list[SqliteStore]:
    """All stores of this process, copied in one step, as another thread may be making one."""
    return [store for reference in _STORES.valuerefs() if (store := reference()) is not None]


def _spare_the_checkpoint(connection: sqlite3.Connection) -> None:
    """Let a connection leave its log where it is when it is closed: syncing the disk makes a fork take 13 ms, not 0.7."""
    if sys.version_info >= (3, 12):
        import sqlite3

        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)


def _before_fork() -> None:
    # Each is noted before its lock is had: Python goes on with the fork when Ctrl-C ends this, and what is noted is freed.
    held: list[SqliteStore] = []
    _HELD.forking = held
    for store in sorted(_stores(), key=id):  # in one order, lest two threads that fork wait for each other
        held.append(store)
        if not store._before_fork():
            held.pop()


def _after_fork_in_parent() -> None:
    for store in _HELD.__dict__.pop("forking", []):
        store._after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _OPENING
    _OPENING = threading.Lock()
    _HELD.__dict__.clear()
    for store in _stores():
        store._after_fork_in_child()


@atexit.register
def _close_all() -> None:
    for store in _stores():
        store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
