"""Work handed to the devices of a Ray cluster: an actor for each GPU, or for each node where there are none.

What an actor does is a worker's business: an object that its node makes, named by module and class. Tasks and what comes of
them are JSON values, so that nothing of ours is pickled but text.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import InvalidInputError, MissingExtraError, WorkerError

log = logging.getLogger(__name__)

LOCAL = "local"
"""In the place of an address: a Ray of this process alone, which ends with it."""

LOOK_S = 0.5  # between two looks at nodes that come and go
JOINING_S = 300.0  # for the first device to be ready: a node may have to start, and import torch from a cold disk
CONNECT_S = 10.0  # to a cluster's head
LATE_S = 60.0  # for further ones, once all else is done: their GPU may be another job's

Value = Mapping[str, Any]
"""JSON."""


class Worker(Protocol):
    """What works on one device, in an actor's process; made by keywords."""

    def describe(self) -> Value:
        """What its device is; asked first."""

    def work(self, task: Value) -> Iterator[Value]:
        """Do a task, and tell of it meanwhile: what was told stays if the node dies."""


class Plan(Protocol):
    """Which tasks there are; asked and told by the pool, in one thread."""

    def next(self, member: Member) -> Value | None:
        """A task for a device that has nothing to do; None if there is none for it now."""

    def told(self, member: Member, task: Value, value: Value) -> None:
        """Take in what a worker tells of its task."""

    def ended(self, member: Member, task: Value, problem: str) -> None:
        """A task has ended; a problem says why it is not done."""

    def lost(self, member: Member, task: Value, how: str) -> None:
        """A device died with a task, which is to be done by another one, or given up."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to hand out."""


@dataclass(slots=True, eq=False)
class Member:
    """A device of the cluster, and what it is doing."""

    node: str
    host: str
    number: int  # of the node's devices
    actor: Any
    what: Value = field(default_factory=dict)  # as its worker describes it; empty until it is ready
    task: Value | None = None
    call: Any = None  # what is waited for
    joined: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.host}/{self.number}"


class RayPool:
    """The devices of a Ray cluster, while this is held.

    Nodes that join later get work too. A node or a process that dies costs what its worker had not told yet.

    Args:
        address: `HOST:PORT` of a cluster, `auto` for the one that this machine belongs to, or `LOCAL`.
        worker: `module:class`, importable on each node.
        arguments: keywords for it, JSON.
        say: gets a line when a device joins or dies.
    Raises:
        MissingExtraError: Ray is not installed.
        InvalidInputError: there is no cluster at that address.
    """

    def __init__(self, address: str, worker: str, arguments: Value, *, say: Any = log.info) -> None:
        self._ray = connect(address)
        self._worker, self._arguments, self._say = worker, dict(arguments), say
        self._members: list[Member] = []
        self._ready: set[tuple[str, int]] = set()  # devices that were so once
        self._looked = -LOOK_S
        self._broken: dict[tuple[str, int], str] = {}  # devices whose worker cannot be made, and why

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            with suppress(Exception):
                self._ray.kill(member.actor)
        self._ray.shutdown()

    def run(self, plan: Plan) -> None:
        """Hand out a plan's tasks until it is done.

        Raises:
            WorkerError: no device was ready in `JOINING_S`, or all that there were are gone for as long.
        """
        some_since = time.monotonic()
        while True:
            self._look()
            self._hand_out(plan)
            if plan.is_done and not any(m.task is not None or self._may_join(m) for m in self._members):
                return
            if any(m.what for m in self._members):
                some_since = time.monotonic()
            elif time.monotonic() - some_since > JOINING_S or (self._broken and not self._members):
                why = "; ".join(dict.fromkeys(self._broken.values())) or f"none was ready in {JOINING_S:.0f} s"
                raise WorkerError(f"no device of the Ray cluster can be used: {why}")
            calls = {m.call: m for m in self._members if m.call is not None}
            if not calls:
                time.sleep(LOOK_S)
                continue
            ready, _ = self._ray.wait(list(calls), timeout=LOOK_S)
            for call in ready:
                self._answered(calls[call], plan)

    def _may_join(self, member: Member) -> bool:
        """Whether a device is worth waiting for that is not ready yet: one that was ready before brings no new product."""
        known = (member.node, member.number) in self._ready
        return not member.what and not known and time.monotonic() - member.joined < LATE_S

    def _look(self) -> None:
        """Have an actor on every device of every node that lives."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        with_gpus = any(node["Resources"].get("GPU") for node in nodes)
        known = {(m.node, m.number) for m in self._members} | self._broken.keys()
        for node in nodes:
            devices = int(node["Resources"].get("GPU", 0)) if with_gpus else 1
            for number in range(devices):
                if (node["NodeID"], number) not in known:
                    self._members.append(self._joining(node, number, with_gpus))

    def _joining(self, node: Mapping[str, Any], number: int, with_gpus: bool) -> Member:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_gpus": 1 if with_gpus else 0,
            "num_cpus": 0,  # a GPU is what is asked for; compilers share the cores by locks of their own
            "max_restarts": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        }
        paths = [path for path in sys.path if path]
        actor = self._ray.remote(Actor).options(**options).remote(self._worker, self._arguments, paths)
        member = Member(node["NodeID"], node["NodeManagerHostname"], number, actor)
        member.call = actor.describe.remote()
        return member

    def _hand_out(self, plan: Plan) -> None:
        for member in self._members:
            if member.what and member.task is None and (task := plan.next(member)) is not None:
                member.task = task
                member.call = member.actor.work.options(num_returns="streaming").remote(dict(task))

    def _answered(self, member: Member, plan: Plan) -> None:
        """Take in the next thing that a worker says: what it is, or of its task."""
        from ray.exceptions import RayError, RayTaskError

        task = member.task
        try:
            if task is None:
                member.what, member.call = self._ray.get(member.call), None
                self._ready.add((member.node, member.number))
                self._say(f"{member} is ready: {member.what.get('name', '')}")
                return
            plan.told(member, task, self._ray.get(next(member.call)))
        except StopIteration:
            member.task = member.call = None
            plan.ended(member, task, "")  # type: ignore[arg-type]  # only tasks come as iterators
        except RayTaskError as err:
            if task is None:
                self._refuse(member, _last_line(err))
                return
            member.task = member.call = None
            plan.ended(member, task, _last_line(err))
        except RayError as err:
            if not member.what:
                self._refuse(member, _last_line(err))
                return
            self._members.remove(member)
            self._say(f"{member} died: {_last_line(err)}")
            if task is not None:
                plan.lost(member, task, _last_line(err))

    def _refuse(self, member: Member, why: str) -> None:
        """Use a device no more that no worker can be made for."""
        self._members.remove(member)
        self._broken[member.node, member.number] = f"{member}: {why}"
        self._say(f"{member} cannot be used: {why}")


class Actor:
    """A worker in a process of Ray's."""

    def __init__(self, worker: str, arguments: Value, paths: list[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        module, _, name = worker.partition(":")
        self._worker: Worker = getattr(importlib.import_module(module), name)(**arguments)

    def describe(self) -> Value:
        """See `Worker`."""
        return self._worker.describe()

    def work(self, task: Value) -> Iterator[Value]:
        """See `Worker`."""
        yield from self._worker.work(task)


def connect(address: str) -> Any:
    """Ray, connected to a cluster, or with one of its own.

    Raises:
        MissingExtraError, InvalidInputError: as `RayPool`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray is to do in future; else it warns
    try:
        import ray
    except ImportError:
        raise MissingExtraError("pip install 'forecast-autotune[ray]'") from None
    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal() and "/" not in host:  # where nobody listens, Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, OverflowError, ValueError, RuntimeError) as err:
        why = _last_line(err).rstrip(".")
        raise InvalidInputError(
            f"--ray {address}: {why}. Give HOST:PORT of a Ray cluster, auto on one of its machines, or {LOCAL}"
        ) from None
    return ray


def _last_line(err: BaseException) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(err).__name__
