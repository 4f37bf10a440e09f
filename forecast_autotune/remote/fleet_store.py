"""FleetStore: this machine's own store, and behind it what other machines have sent to a remote one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.decision import Decision
from ..core.fork_safe_lock import fork_safe_lock
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..settings import PackUrl, RemoteStore, Settings
from ..store.rows import Recall, StoredDecision, TuningKey
from ..store.sqlite import SqliteStore, on_scale_of, open_local_store
from .apart import ExchangeApart
from .exchange import Exchange
from .location import Location
from .mirror import Mirror
from .sync import Sync
from .trees import PackCopy, Tree, is_copied, pack_folder

if TYPE_CHECKING:
    import sqlite3


class FleetStore(SqliteStore):
    """A store that sends what it learns to a remote one, and knows what other machines have sent there or put into packs.

    No call waits for a network, but those of mode `strict` and of `torch.compile` by `await_read`: reading and sending are a
    thread's, and its worker's. What it read is kept on disk.

    Of a trusted remote store decisions are believed: of one of its own and one from there, the newer holds. Of any other
    the outcomes seed forecasts alone, and the config of a decision is to be tried first; see `suggested`.

    Args:
        directory: the folder of this machine's own store; None keeps all in memory.
        remote: where the other machines' is; None for packs alone.
        packs: files as for `SqliteStore`, folders that are trees, and trees behind URLs.
        toolchain, alone: as `SqliteStore`.
        apart: exchange in a process of its own. What is in memory, here or there, is exchanged in this one all the same.
    """

    def __init__(
        self,
        directory: Path | str | None,
        remote: RemoteStore | None,
        *,
        packs: Sequence[Path | str | PackUrl] = (),
        toolchain: str = "exact",
        alone: bool = True,
        apart: bool = True,
    ) -> None:
        folders = [Path(p) for p in packs if not isinstance(p, PackUrl) and Path(p).is_dir()]
        files = [Path(p) for p in packs if not isinstance(p, PackUrl) and Path(p) not in folders]
        super().__init__(directory, packs=files, toolchain=toolchain, alone=alone)
        self.remote = remote
        self._apart = apart
        self._waited_in_vain_s = 0.0
        self.syncs: list[Sync] = []
        self.mirror = None if remote is None else Mirror(self.directory, remote.url, toolchain=toolchain)
        if remote is not None and self.mirror is not None:
            self.syncs.append(Sync(self._exchange(remote, self.mirror), self.warnings))
        self.trees = [Tree(folder, complain=self._of_pack(folder), toolchain=toolchain) for folder in folders]
        for pack in packs:
            if isinstance(pack, PackUrl) and self.directory is not None:
                folder = pack_folder(self.directory, pack)
                if pack.pinned:
                    self.trees.append(Tree(folder, complain=self._of_pack(folder), toolchain=toolchain, is_copy=True))
                copying = self._copying(folder, pack)
                copied = partial(is_copied, folder, pack)
                self.syncs.append(Sync(copying, self.warnings, f"the pack at {pack}", is_copied=copied))

    def _complain(self, text: str) -> None:
        self.warnings.warn_once("segment", text)

    def _of_pack(self, folder: Path) -> Callable[[str], None]:
        """Warns of one pack once: trouble with another one is another."""
        return partial(self.warnings.warn_once, f"pack {folder}")

    def _exchange(self, remote: RemoteStore, mirror: Mirror) -> Exchange | ExchangeApart:
        if self._apart and self.directory is not None and not remote.url.startswith("memory:"):
            return ExchangeApart(self.directory, remote, complain=self._complain)
        return Exchange(self, mirror, Location(remote.url), sources=remote.sources, complain=self._complain)

    def _copying(self, folder: Path, pack: PackUrl) -> PackCopy | ExchangeApart:
        if self._apart and not pack.url.startswith("memory:"):
            return ExchangeApart(folder, pack, complain=self._of_pack(folder))
        return PackCopy(folder, pack, self._of_pack(folder))

    @property
    def is_trusted(self) -> bool:
        """Whether decisions of the remote store are believed."""
        return self.remote is not None and self.remote.trusted

    def recalled(self, job: Job, read: Callable[[sqlite3.Connection], Recall | None]) -> Decision | None:
        """The newer of this machine's own decision and the remote store's, if that is trusted; else the newest of packs."""
        made = self.connection.is_made
        own = self.own_decision(read) if made else None
        theirs = self.mirror.recalled(read) if self.mirror and self.is_trusted else None
        if theirs is not None and theirs.config in job.space and (own is None or theirs.decided_at > own.decided_at):
            return theirs
        if own is not None:
            return own
        packed = [self.pack_decision(read), *(tree.own_decision(read) for tree in self._trees(job))]
        newest = max((d for d in packed if d is not None), key=lambda d: d.decided_at, default=None)
        return newest if made or newest is not None else self.own_decision(read)

    def _trees(self, job: Job) -> list[SqliteStore]:
        generation = self._generation
        return [tree.prepare(job, generation) for tree in self.trees]

    @property
    def _generation(self) -> int:
        return sum(sync.generation for sync in self.syncs)

    def decision(self, job: Job) -> Decision | None:
        """See `SqliteStore.decision`; has what other machines know of the job read, for a later call."""
        for sync in self.syncs:
            sync.want(job)
        return super().decision(job)

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """See `SqliteStore.outcomes`; those of a trusted remote store and of packs come after its own."""
        own = dict(super().outcomes(job))
        others = [tree.outcomes(job) for tree in self._trees(job)]
        if self.mirror is not None and self.is_trusted:
            others.insert(0, self.mirror.outcomes(job))
        for other in others:
            own = {**on_scale_of(own, other, job.space.default), **own}
        return own

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """See `SqliteStore.related_recordings`; other machines' of the same tuning keys as its own are left out."""
        found = {TuningKey.of(recording).digests: recording for recording in super().related_recordings(job)}
        others = [recording for tree in self._trees(job) for recording in tree.related_recordings(job)]
        if self.mirror is not None:
            others += self.mirror.related_recordings(job)
            others += [] if self.is_trusted else self.mirror.own_recordings(job)
        for recording in others:
            found.setdefault(TuningKey.of(recording).digests, recording)
        return list(found.values())

    def related_decisions(self, job: Job) -> list[StoredDecision]:
        """See `SqliteStore.related_decisions`; those of packs and of a trusted remote store come after its own."""
        found = super().related_decisions(job)
        for tree in self._trees(job):
            found += tree.related_decisions(job)
        return found + (self.mirror.related_decisions(job) if self.mirror is not None and self.is_trusted else [])

    def untrusted_decisions(self, job: Job) -> list[StoredDecision]:
        """As `related_decisions`, those of a remote store that is not trusted."""
        return [] if self.mirror is None or self.is_trusted else self.mirror.related_decisions(job)

    def record_decision(self, job: Job, decision: Decision) -> None:
        """See `SqliteStore.record_decision`; has it sent, with the outcomes it rests on."""
        super().record_decision(job, decision)
        if decision.basis == "measured" and self.remote is not None:
            self.syncs[0].send(job.hardware)

    def suggested(self, job: Job) -> tuple[Config, ...]:
        """The config that other machines decided for, where their word alone is not enough; to be tried first."""
        theirs = None if self.mirror is None or self.is_trusted else self.mirror.decision(job)
        return () if theirs is None or theirs.config not in job.space else (theirs.config,)

    def is_reading(self, job: Job) -> bool:
        """Whether a decision for a job that would be believed may be about to come."""
        return any(sync.is_reading(job) for sync in self._believed)

    def await_read(self, job: Job, wait_s: float) -> None:
        """Wait until all that would be believed of a job is read or has failed, so many seconds at most.

        What was waited for in vain counts for all later waits: a server that is silent, or away, is not waited for again.
        """
        began = time.monotonic()
        until = began + wait_s - self._waited_in_vain_s
        for sync in self._believed:
            sync.await_read(job, max(0.0, until - time.monotonic()))
        self._waited_in_vain_s = self._waited_in_vain_s + time.monotonic() - began if self.unread(job) else 0.0

    def unread(self, job: Job) -> list[str]:
        """Names what may hold a decision for a job that would be believed, and is not read yet or could not be read."""
        return [sync.what for sync in self._believed if sync.may_hold(job)]

    @property
    def _believed(self) -> Sequence[Sync]:
        return self.syncs if self.is_trusted or self.remote is None else self.syncs[1:]

    def arrivals(self, job: Job) -> Callable[[], Decision | None]:
        """A function that gives a decision for a job once it has come from elsewhere and is believed. It is quick."""
        seen = self._generation

        def arrived() -> Decision | None:
            nonlocal seen
            if self._generation == seen:
                return None
            seen = self._generation
            found = SqliteStore.decision(self, job)
            return found if found is not None and found.config in job.space and found.basis == "measured" else None

        return arrived

    def after_fork_in_child(self) -> None:
        """See `SqliteStore.after_fork_in_child`."""
        super().after_fork_in_child()
        for tree in self.trees:
            tree.after_fork_in_child()

    def close(self) -> None:
        """See `SqliteStore.close`; waits a little for what is still to be sent."""
        if "trees" in self.__dict__:  # else the constructor raised
            for sync in self.syncs:
                sync.close()
            if self.mirror is not None:
                self.mirror.store.close()
        super().close()

    def __repr__(self) -> str:
        return f"FleetStore({self.path or 'in memory'}, {self.remote})"


_OPENED: dict[tuple[object, ...], FleetStore] = {}
_OPENING = fork_safe_lock()


def open_store(settings: Settings) -> SqliteStore:
    """The store that the settings name, one for each folder in a process, with a remote one and packs behind it.

    In mode `forecast` an empty one, so that what is stored, here or elsewhere, changes no answer.
    """
    remote, packs = settings.remote_store, settings.packs
    shared = remote is not None or any(isinstance(pack, PackUrl) or pack.is_dir() for pack in packs)
    if not shared or settings.mode == "forecast":
        return open_local_store(settings)
    alone = settings.sync != "none"
    key = (str(settings.dir), packs, settings.toolchain, alone, remote)
    with _OPENING:
        if key not in _OPENED:
            _OPENED[key] = FleetStore(settings.dir, remote, packs=packs, toolchain=settings.toolchain, alone=alone)
        return _OPENED[key]
