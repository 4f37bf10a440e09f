"""`tune`: which keys are tuned on which devices of a cluster, and what has become of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.figures import as_duration, counted
from ..store.queries import StoreFile
from .key_list import ListedKey
from .ray_pool import Member, Value
from .suites import chosen
from .tuning_worker import decided_in, taken_in

DEATHS = 3  # of processes that a task may cost: one that ends three is at fault itself
PARTS = 2  # into which a device's fair share of the keys left is cut, so that none works alone for long at the end

Part = tuple[str, str]
"""A call or a key: its hardware's digest, and its name or its workload's digest."""


@dataclass(slots=True, kw_only=True)
class CallResult:
    """What became of a call of a suite, or of a key of another program, on one product."""

    what: str
    on: str  # the hardware's name
    by: str  # the device that did it, as host/number
    seconds: float  # of the task that it was a part of
    problem: str = ""
    warnings: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class _Product:
    """The tasks for all devices that are alike: each is done once, by any of them."""

    name: str
    devices: dict[Member, None] = field(default_factory=dict)  # a set in the order in which they came
    todo: deque[Value] = field(default_factory=deque)
    keys: deque[Value] = field(default_factory=deque)  # of a program, not yet in tasks
    tried: set[tuple[str, str]] = field(default_factory=set)  # keys that a program has had its second chance with


class TuningPlan:
    """A `ray_pool.Plan`: each call of a suite, or each key that a program meets, once for each product of the cluster.

    A device for which nothing is left helps one that is alike and has the same store: both measure configs of its keys.

    Args:
        store: where everything that workers tell is kept, as it comes.
        wanted: names of a suite's calls, as they were typed; none for all. None for a program that is no suite.
        keys: those to tune; None for all.
        say: gets how far it is.
    """

    def __init__(
        self,
        store: StoreFile,
        *,
        wanted: Sequence[str] | None,
        keys: Sequence[ListedKey] | None,
        say: Callable[[str], None],
    ) -> None:
        self._store, self._wanted, self._say = store, wanted, say
        self._listed = None if keys is None else {key.digests for key in keys}
        self._products: dict[str, _Product] = {}
        self._told: dict[Member, list[str]] = {}  # what came of the task that a device has now
        self._began: dict[Member, float] = {}
        self._open: dict[Member, int] = {}  # calls or keys that a device is at
        self._start = 0.0  # when the first device began
        self.decided: set[tuple[str, str]] = set()
        self._ended: dict[Part, CallResult] = {}
        self._redone: set[Part] = set()  # ended for who led them, and done once more since the last helper died

    @property
    def ended_tasks(self) -> list[CallResult]:
        """What became of each call or key, in the order in which they ended."""
        return list(self._ended.values())

    @property
    def is_done(self) -> bool:
        """See `Plan`."""
        return bool(self._products) and not any(p.todo or p.keys for p in self._products.values())

    def next(self, member: Member) -> Value | None:
        """See `Plan`."""
        product = self._product(member)
        if not product.todo and product.keys:
            alone = len(product.devices) == 1
            share = len(product.keys) if alone else -(-len(product.keys) // (PARTS * len(product.devices)))
            product.todo.append({"keys": [product.keys.popleft() for _ in range(share)]})
        if not product.todo:
            return self._to_help(member, product)
        self._told[member], self._began[member] = [], time.monotonic()
        self._start = self._start or self._began[member]
        task = product.todo.popleft()
        self._open[member] = _count(task)
        return task

    def _to_help(self, member: Member, product: _Product) -> Value | None:
        """The task of another device that is alike, to measure some of its configs: the one that has the fewest helpers.

        Their processes share each key's configs through the store that both have.
        """
        store = member.what.get("store")
        beside = [m.task for m in product.devices if m.task is not None and m.what.get("store") == store]
        helped = [_parts(member, task) for task in beside if task.get("helps")]
        to_help = [task for task in beside if _count(task) and not task.get("helps")]
        if not to_help or store is None:
            return None
        self._told[member], self._began[member], self._open[member] = [], time.monotonic(), 0
        least: Value = min(to_help, key=lambda task: helped.count(_parts(member, task)))
        return {**least, "helps": True}

    def _product(self, member: Member) -> _Product:
        digest = str(member.what["hardware"])
        if digest not in self._products:
            tasks: list[Value] = [{}]  # a program is run once to see which keys it meets
            if self._wanted is not None:
                tasks = [{"call": name} for name in chosen(list(member.what["calls"]), list(self._wanted))]
            self._products[digest] = _Product(name=str(member.what["name"]), todo=deque(tasks))
        product = self._products[digest]
        product.devices[member] = None
        return product

    def told(self, member: Member, task: Value, value: Value) -> None:
        """See `Plan`."""
        if "lines" in value:
            self._told[member] += value["lines"]
            self.decided |= decided_in(taken_in(self._store, value["lines"]))
        elif "decided" in value:
            self.decided |= {(hardware, workload) for hardware, workload in value["decided"]}
        elif task.get("helps"):  # how it went, says who does the task
            if "died" in value:
                self._helper_lost(member, task, str(value["died"]))
        elif "keys" in value:
            product = self._product(member)
            listed = [
                k for k in value["keys"] if self._listed is None or (k["hardware"], k["workload"]) in self._listed
            ]
            product.keys.extend(listed)
            self._say(f"{counted(len(listed), 'key')} to tune on {product.name}")
        elif "left" in value:
            self._keys_ended(member, task, value)
        elif "died" in value:
            self._again(member, task, str(value["died"]))
        else:
            self._open[member] = 0
            for part, what in _parts(member, task).items():
                self._keep(member, part, what, value["problem"], value["warnings"])

    def _keys_ended(self, member: Member, task: Value, value: Value) -> None:
        self._open[member] = 0
        product = self._product(member)
        left = {(hardware, workload) for hardware, workload in value["left"]}
        for key in task["keys"]:
            digests = key["hardware"], key["workload"]
            if digests in left and digests not in product.tried:
                product.tried.add(digests)  # another process may have been tuning it
                product.keys.append(key)
                continue
            problem = (value["problem"] or "it was not met again, or tuning it failed") if digests in left else ""
            self._keep(member, digests, key["what"], problem, ())

    def ended(self, member: Member, task: Value, problem: str) -> None:
        """See `Plan`; how a task went that ended well, its worker has told. A problem is none of what has ended already."""
        self._open[member] = 0
        if task.get("helps"):
            return
        if problem:
            for part, what in _parts(member, task).items():
                self._redone.discard(part)
                if part not in self._ended:
                    self._keep(member, part, what, problem, ())
        self._say(self.progress())

    def lost(self, member: Member, task: Value, how: str) -> None:
        """See `Plan`: the next worker knows what this one has measured."""
        if task.get("helps"):
            self._helper_lost(member, task, how)
        else:
            self._again(member, task, how)
        self._product(member).devices.pop(member, None)

    def _again(self, member: Member, task: Value, how: str) -> None:
        self._open[member] = 0
        deaths = int(task.get("deaths", 0)) + 1
        if deaths == DEATHS:
            self.ended(member, task, f"{DEATHS} processes died of it, the last one: {how}")
            return
        known = [*task.get("known", ()), *self._told[member]]
        self._product(member).todo.appendleft({**task, "known": known, "deaths": deaths})

    def _helper_lost(self, member: Member, task: Value, how: str) -> None:
        """Who came first to a key leads it, and that may be who was to help: what is left to nobody is done once more."""
        product = self._product(member)
        running = [m.task for m in product.devices if m is not member and m.task is not None]
        others = {part for other in (*running, *product.todo) for part in _parts(member, other)}
        left = _parts(member, task).keys() - others - set(map(_part, product.keys))
        if not left:
            return
        self._redone |= left & self._ended.keys()
        again = {name: value for name, value in task.items() if name != "helps"}
        if "keys" in task:
            again["keys"] = [key for key in task["keys"] if _part(key) in left]
        self._again(member, again, how)

    def _keep(self, member: Member, part: Part, what: str, problem: str, warnings: Sequence[str]) -> None:
        seconds = time.monotonic() - self._began[member]
        on = str(member.what["name"])
        self._redone.discard(part)
        self._ended.pop(part, None)
        self._ended[part] = CallResult(
            what=what, on=on, by=str(member), seconds=seconds, problem=problem, warnings=list(warnings)
        )

    def progress(self) -> str:
        """How far it is, and how long what is left may take."""
        done = len(self._ended.keys() - self._redone)
        waiting = sum(len(p.keys) + sum(map(_count, p.todo)) for p in self._products.values())
        left = waiting + sum(self._open.values())
        failed = sum(bool(each.problem) for part, each in self._ended.items() if part not in self._redone)
        text = f"{done} of {done + left} done" + (f", {failed} failed" if failed else "")
        if not done or not left:
            return text
        return f"{text}; about {as_duration((time.monotonic() - self._start) / done * left)} left"

    def as_json(self) -> list[dict[str, Any]]:
        """What became of each call or key."""
        return [asdict(each) for each in self._ended.values()]


def _count(task: Value) -> int:
    """How many calls or keys a task is; none where it only looks which keys there are."""
    return len(task["keys"]) if "keys" in task else int("call" in task)


def _part(key: Value) -> Part:
    return str(key["hardware"]), str(key["workload"])


def _parts(member: Member, task: Value) -> dict[Part, str]:
    """The calls or keys that a task of a device is made of, in words."""
    if "keys" in task:
        return {_part(key): str(key["what"]) for key in task["keys"]}
    name = str(task.get("call", ""))
    return {(str(member.what["hardware"]), name): name or "finding the program's keys"}
