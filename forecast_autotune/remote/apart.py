"""The exchange in a process of its own: launches would wait while a storage's package is imported, and it may hang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.text import error_text
from ..core.workload import Program
from ..errors import AutotuneError, RemoteStoreError
from ..processes.channel import Channel, Message
from ..processes.endings import (
    WorkerDiedError,
    WorkerKilledError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from ..processes.fork_server import ForkServer
from ..processes.machine import give_way
from ..settings import PackUrl, RemoteStore
from ..store import encoding
from ..store.sqlite import SqliteStore
from .exchange import Complain, Exchange
from .location import Location
from .mirror import Mirror
from .trees import PackCopy

if TYPE_CHECKING:
    from ..processes.worker import Worker

START_S = 60.0
ANSWER_S = 600.0  # for one thing that is asked: a storage that takes longer counts as one that cannot be reached
NICENESS = 10  # of that process: it is nobody's hurry

_servers = ForkServer(__name__)


class ExchangeApart:
    """What an `Exchange` or a `PackCopy` does, done by a worker process; it ends with this one, or when it is closed.

    Args:
        folder: of this machine's own store, or of the copy of a pack.
        address: of the remote store, or of the pack.
        complain: gets why a segment is left out.
    """

    def __init__(self, folder: Path, address: RemoteStore | PackUrl, *, complain: Complain) -> None:
        self._request = {"folder": str(folder.absolute()), "pack": isinstance(address, PackUrl), **asdict(address)}
        self._complain = complain
        self._worker: Worker | None = None

    def after_fork_in_child(self) -> None:
        """Leave the worker to the parent, in the child of a fork."""
        self._worker = None

    def close(self) -> None:
        """End the worker; the next thing that is asked starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def pull(self, hardware: str, program: Program, *, fresh_s: float = 0.0) -> None:
        """See `Exchange.pull`."""
        self._ask("pull", {"hardware": hardware, "program": encoding.encode_program(program), "fresh_s": fresh_s})

    def pull_from_other_hardware(self, hardware: str, program: Program, *, fresh_s: float) -> None:
        """See `Exchange.pull_from_other_hardware`."""
        self._ask(
            "pull_from_other_hardware",
            {"hardware": hardware, "program": encoding.encode_program(program), "fresh_s": fresh_s},
        )

    def push(self) -> None:
        """See `Exchange.push`."""
        self._ask("push", {})

    def _ask(self, what: str, given: Mapping[str, Any]) -> None:
        """Have the worker do something; where it ends before it has answered, another one is asked.

        Raises:
            RemoteStoreError: the storage failed, or the workers did.
        """
        try:
            try:
                answer = self._asked(what, given)
            except WorkerKilledError:
                self.close()
                answer = self._asked(what, given)
        except (WorkerDiedError, WorkerRaisedError, WorkerTimeoutError, WorkersUnavailableError) as err:
            self.close()
            raise RemoteStoreError(f"the process that reads and sends: {err}") from None
        for complaint in answer["complaints"]:
            self._complain(str(complaint))
        if "failed" in answer:
            raise RemoteStoreError(str(answer["failed"]))

    def _asked(self, what: str, given: Mapping[str, Any]) -> Message:
        if self._worker is None or self._worker.has_ended:
            self.close()
            self._worker = _servers.start(
                exchange, self._request, ready_s=START_S, environment=dict(os.environ), folder=os.sep
            )
        self._worker.send({"do": what, "given": dict(given)})
        return self._worker.receive(ANSWER_S)


def exchange(channel: Channel, request: Mapping[str, Any]) -> None:
    """Do what is asked until the caller hangs up; a worker's job."""
    give_way(NICENESS)
    complaints: list[str] = []
    done_by = _exchange_of(request, complaints.append)
    channel.send({"ready": True})
    while True:
        message = channel.receive()
        complaints.clear()
        failed: dict[str, str] = {}
        try:
            _do(done_by, str(message["do"]), message["given"])
        except (AutotuneError, OSError) as err:
            failed = {"failed": error_text(err)}
        channel.send({**failed, "complaints": complaints})


def _exchange_of(request: Mapping[str, Any], complain: Complain) -> Exchange | PackCopy:
    folder, url = Path(request["folder"]), str(request["url"])
    if request["pack"]:
        return PackCopy(folder, PackUrl(url=url, digest=str(request["digest"])), complain)
    own, mirror = SqliteStore(folder, quiet=True), Mirror(folder, url)
    return Exchange(own, mirror, Location(url), sources=bool(request["sources"]), complain=complain)


def _do(done_by: Exchange | PackCopy, what: str, given: Mapping[str, Any]) -> None:
    if what == "push":
        done_by.push()
        return
    hardware, program = str(given["hardware"]), encoding.decode_program(given["program"])
    pull = done_by.pull if what == "pull" else done_by.pull_from_other_hardware
    pull(hardware, program, fresh_s=float(given["fresh_s"]))
