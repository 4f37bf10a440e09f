"""FleetStore: this machine's own store, and behind it what other machines have sent to a remote one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.decision import Decision
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..settings import RemoteStore, Settings
from ..store import sqlite
from ..store.rows import Recall
from ..store.sqlite import SqliteStore, on_scale_of, place_digests
from .apart import ExchangeApart
from .exchange import Exchange
from .location import Location
from .mirror import Mirror
from .sync import Sync

if TYPE_CHECKING:
    import sqlite3


class FleetStore(SqliteStore):
    """A store that sends what it learns to a remote one, and knows what other machines have sent there.

    No call waits for the remote store: reading and sending are a thread's. What it read is kept in a mirror on disk.

    Of a trusted remote store decisions are believed: of one of its own and one from there, the newer holds. Of any other
    the outcomes seed forecasts alone, and the config of a decision is to be tried first; see `suggested`.

    Args:
        directory: the folder of this machine's own store; None keeps all in memory.
        remote: where the other machines' is.
        packs, toolchain, alone: as `SqliteStore`.
        apart: exchange in a process of its own. What is in memory, here or there, is exchanged in this one all the same.
    """

    def __init__(
        self,
        directory: Path | str | None,
        remote: RemoteStore,
        *,
        packs: Sequence[Path | str] = (),
        toolchain: str = "exact",
        alone: bool = True,
        apart: bool = True,
    ) -> None:
        super().__init__(directory, packs=packs, toolchain=toolchain, alone=alone)
        self.remote = remote
        self.mirror = Mirror(self.directory, remote.url, toolchain=toolchain)
        exchange = self._exchange(apart and self.directory is not None and not remote.url.startswith("memory:"))
        self.sync = Sync(exchange, self.warnings)

    def _exchange(self, apart: bool) -> Exchange | ExchangeApart:
        def complain(text: str) -> None:
            self.warnings.warn_once("segment", text)

        if apart and self.directory is not None:
            return ExchangeApart(self.directory, self.remote, complain=complain)
        location = Location(self.remote.url)
        return Exchange(self, self.mirror, location, sources=self.remote.sources, complain=complain)

    def recalled(
        self, job: Job, read: Callable[[sqlite3.Connection], Recall | None], *, any_toolchain: bool
    ) -> Decision | None:
        """The newer of this machine's own decision and the remote store's, if that is trusted; else a pack's."""
        own = self.own_decision(read)
        theirs = self.mirror.decision(job, any_toolchain=any_toolchain) if self.remote.trusted else None
        if theirs is not None and theirs.config in job.space and (own is None or theirs.decided_at > own.decided_at):
            return theirs
        return own or self.pack_decision(read)

    def decision(self, job: Job) -> Decision | None:
        """See `SqliteStore.decision`; has what other machines know of the job read, for a later call."""
        self.sync.want(job)
        return super().decision(job)

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """See `SqliteStore.outcomes`; those of a trusted remote store come after its own and a pack's."""
        own = super().outcomes(job)
        if not self.remote.trusted:
            return own
        return {**on_scale_of(own, self.mirror.outcomes(job), job.space.default), **own}

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """See `SqliteStore.related_recordings`; other machines' of the same places as its own are left out."""
        own = list(super().related_recordings(job))
        known = {place_digests(recording) for recording in own}
        theirs = list(self.mirror.related_recordings(job))
        if not self.remote.trusted:
            theirs += self.mirror.own_recordings(job)
        return [*own, *(recording for recording in theirs if place_digests(recording) not in known)]

    def decide(self, job: Job, decision: Decision) -> None:
        """See `SqliteStore.decide`; has it sent, with the outcomes it rests on."""
        super().decide(job, decision)
        if decision.basis == "measured":
            self.sync.send(job.hardware)

    def suggested(self, job: Job) -> tuple[Config, ...]:
        """The config that other machines decided for, where their word alone is not enough; to be tried first."""
        theirs = None if self.remote.trusted else self.mirror.decision(job)
        return () if theirs is None or theirs.config not in job.space else (theirs.config,)

    def is_reading(self, job: Job) -> bool:
        """Whether a decision for a job may be about to come from a trusted remote store."""
        return self.remote.trusted and self.sync.is_reading(job)

    def arrivals(self, job: Job) -> Callable[[], Decision | None]:
        """A function that gives a trusted decision for a job once it has come from another machine. It is quick."""
        seen = self.sync.generation

        def arrived() -> Decision | None:
            nonlocal seen
            if not self.remote.trusted or self.sync.generation == seen:
                return None
            seen = self.sync.generation
            theirs = self.mirror.decision(job)
            return theirs if theirs is not None and theirs.config in job.space else None

        return arrived

    def close(self) -> None:
        """See `SqliteStore.close`; waits a little for what is still to be sent."""
        if "sync" in self.__dict__:  # else the constructor raised
            self.sync.close()
            self.mirror.store.close()
        super().close()

    def __repr__(self) -> str:
        return f"FleetStore({self.path or 'in memory'}, {self.remote})"


_OPENED: dict[tuple[object, ...], FleetStore] = {}
_OPENING = threading.Lock()


def open_store(settings: Settings) -> SqliteStore:
    """The store that the settings name, one for each folder in a process, with a remote one behind it if they name one.

    Mode `forecast` reads no store, and so no remote one.
    """
    remote = settings.remote_store
    if remote is None or settings.mode == "forecast":
        return sqlite.open_store(settings)
    alone = settings.sync != "none"
    key = (str(settings.dir), tuple(str(p) for p in settings.packs), settings.toolchain, alone, remote)
    with _OPENING:
        if key not in _OPENED:
            _OPENED[key] = FleetStore(
                settings.dir, remote, packs=settings.packs, toolchain=settings.toolchain, alone=alone
            )
        return _OPENED[key]


def _after_fork_in_child() -> None:
    global _OPENING
    _OPENING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
