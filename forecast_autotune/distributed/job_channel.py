"""The key-value store of a distributed job, over a connection of our own; no answer is waited for without end."""

from __future__ import annotations

import os
import queue
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from ..core.fork_safe_lock import fork_safe_lock
from ..core.forks import after_fork_in_child
from ..core.user_warnings import warn_once
from ..errors import InvalidInputError, TuningWarning

CALL_S = 10.0
"""How long one question to the key-value store may take; it answers in 0.07 ms on one machine."""

CONNECTING = 3
"""The first question may take so many times as long: of eight ranks that connect to one server at once, some waited 5 s in
one run of twenty (torch 2.13)."""

HOME_S = 2.0
"""How long a call that was hung up may take to return; it took 8 ms (torch 2.13, two cores)."""

_LOCALLY = "this rank decides by its own store"

_T = TypeVar("_T")


class KeyValue(Protocol):
    """What torch's key-value stores have in common and ranks need."""

    def check(self, keys: list[str]) -> bool: ...

    def get(self, key: str) -> bytes: ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...


class UnreachableError(Exception):
    """The key-value store gives no answer; whoever asked goes on without it."""


@dataclass(slots=True)
class KeySighting:
    """What this rank has seen of a key that it does not lead; times are of this process's monotonic clock."""

    first: float  # when this rank met the key
    changed: float  # when the leader or its heartbeat was last seen to change
    sign: tuple[str, int] | None = None  # the leader's claim and the count of its heartbeats


class JobChannel:
    """The job's key-value store as one rank sees it. Nothing that comes from it is executed.

    No call waits for a key to appear. A call without an answer is given up after `call_s`, the first one after thrice that:
    torch's own `check` waits without end for a server that stands still (torch 2.13). A server that did not answer once is
    not asked again, so that no later key waits for it.

    Giving up shuts the connection down, which ends torch's call. A thread left in that call would end the process with
    SIGABRT, whatever its exit status, if the server woke or died while the interpreter ends (torch 2.13 under Python
    3.11). Two cases remain: torch reconnects by itself where a group's server stood still from the first question on, and
    connections cannot be listed where the system has no /dev/fd.

    Args:
        connect: opens a connection of our own: one shared with the process group would hold its lock.
        rank: this process's; None where the environment does not say it reliably.
        ranks: how many there are.
        call_s: how long one call may take, in seconds.
        port: where the server listens; None where it has no port, as a store in a file.
    """

    def __init__(
        self,
        connect: Callable[[], KeyValue],
        *,
        rank: int | None,
        ranks: int,
        call_s: float = CALL_S,
        port: int | None = None,
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self.call_s = call_s
        self._connect = connect
        self._port = port
        self._others: set[object] = set()  # connections of this process to that port that are not ours
        self._ours: set[object] | None = None  # None until we are known to be connected
        self._connection: KeyValue | None = None
        self._connecting = threading.Lock()
        self._failed = ""
        self.seen: dict[str, KeySighting] = {}  # by key that another rank leads, until it is decided

    def __str__(self) -> str:
        return f"rank {'?' if self.rank is None else self.rank} of {self.ranks}"

    def read(self, key: str) -> str | None:
        """What is published under a key, None if nothing is."""
        return self._ask(lambda store: _text(store.get(key)) if store.check([key]) else None)

    def swap(self, key: str, expected: str, desired: str) -> str:
        """Put a value in the place of the expected one, "" for none; returns the value that the key has afterwards."""
        return self._ask(lambda store: _text(store.compare_set(key, expected, desired)))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0; returns its new value."""
        return self._ask(lambda store: int(store.add(key, amount)))

    def _ask(self, question: Callable[[KeyValue], _T]) -> _T:
        if self._failed:
            raise UnreachableError(self._failed)
        try:
            call_s = self.call_s * (CONNECTING if self._connection is None else 1)
            return within(call_s, lambda: question(self._connected()), self._hang_up)
        except UnreachableError as err:
            self._failed = str(err)
            raise

    def _connected(self) -> KeyValue:
        with self._connecting:
            if self._failed:  # while this thread waited for another one to connect
                raise UnreachableError(self._failed)
            if self._connection is None:
                self._others = set(_connections(self._port))
                self._connection = self._connect()
                self._ours = set(_connections(self._port)) - self._others
            return self._connection

    def _hang_up(self) -> None:
        for place, file in _connections(self._port).items():
            if place not in self._others and (self._ours is None or place in self._ours):
                with suppress(OSError), socket.socket(fileno=os.dup(file)) as same:
                    same.shutdown(socket.SHUT_RDWR)  # ends the connection for every descriptor of it; closes none


def within(seconds: float, ask: Callable[[], _T], hang_up: Callable[[], None] | None = None) -> _T:
    """The answer of `ask`, called in a thread of its own, which is left behind if it does not return in time.

    Args:
        seconds: how long it may take.
        ask: may block, and may raise anything.
        hang_up: called after that time to make `ask` return; its thread then has `HOME_S` to end.
    Raises:
        UnreachableError: no answer came in time, or `ask` raised.
    """
    answers: queue.SimpleQueue[tuple[_T | None, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((ask(), None))
        except Exception as err:
            answers.put((None, err))

    try:
        threading.Thread(target=work, name="forecast-autotune-ask", daemon=True).start()
    except RuntimeError as no_more:  # threads, the system says
        raise UnreachableError(str(no_more)) from no_more
    try:
        answer, err = answers.get(timeout=seconds)
    except queue.Empty:
        if hang_up is not None:
            hang_up()
            with suppress(queue.Empty):
                answers.get(timeout=HOME_S)
        raise UnreachableError(f"no answer for {seconds:.0f} s") from None
    if err is not None:
        raise UnreachableError(f"{type(err).__name__}: {(str(err) or '?').splitlines()[0][:200]}") from err
    return answer  # type: ignore[return-value]


def _connections(port: int | None) -> dict[object, int]:
    """This process's connections to a port of any host: a file descriptor by the local address of each."""
    connections: dict[object, int] = {}
    # With a default timeout, Python would set a descriptor that is not its own to non-blocking.
    if port is None or socket.getdefaulttimeout() is not None:
        return connections
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # closed since, or not connected
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    with socket.socket(fileno=os.dup(int(name))) as same:
                        if same.family in (socket.AF_INET, socket.AF_INET6) and same.getpeername()[1] == port:
                            connections[same.getsockname()] = int(name)
    return connections


def job_channel(environment: Mapping[str, str] | None = None, *, call_s: float = CALL_S) -> JobChannel | None:
    """The channel to the other ranks: of torchrun's agent, or without one of the process group.

    The agent's goes first, for it is there all the time: a rank that meets a key before it has a process group and one
    that meets it afterwards must not come to two decisions.

    Args:
        environment: in place of `os.environ`.
        call_s: how long one call may take, in seconds.
    Returns:
        None where this process is the only one; also where there is no way to the others, with one warning.
    """
    env = os.environ if environment is None else environment
    with _OPENING:
        try:
            channel = None if _agent_serves(env) else _of_process_group(env, call_s)
            channel = channel or _of_environment(env, call_s)
        except TuningWarning:  # an error by the user's choice
            raise
        except Exception as err:  # a torch that keeps it elsewhere, a group just gone: each fails in its own way
            warn_once(
                f"FORECAST_AUTOTUNE_SYNC=rank0: no way to the process group's store ({err!r}): {_LOCALLY}",
                TuningWarning,
            )
            return None
    return channel if channel is not None and channel.ranks > 1 else None


def ranks_of_job() -> int:
    """How many ranks the job of this process has, by its process group, else by its launcher; 1 where it is alone."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "").strip()
    return max(1, int(text)) if text.isdecimal() else 1


def _of_process_group(env: Mapping[str, str], call_s: float) -> JobChannel | None:
    global _group
    distributed: Any = sys.modules.get("torch.distributed")  # whoever has a process group has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for name, value in (("WORLD_SIZE", ranks), ("RANK", rank)):
        if env.get(name, "").strip() not in ("", str(value)):
            warn_once(
                f"{name}={env[name]!r}, but the process group says {value}: the process group's is taken", TuningWarning
            )
    # A weak reference: a strong one would keep the server of a destroyed group alive, and its port taken.
    if _group is None or _group[0]() is not store:
        _group = (
            weakref.ref(store),
            JobChannel(_connecting_beside(store), rank=rank, ranks=ranks, call_s=call_s, port=_port_of(store)),
        )
    return _group[1]


def _port_of(store: Any) -> int | None:
    while hasattr(store, "underlying_store"):  # each prefix wraps one
        store = store.underlying_store
    port: int | None = getattr(store, "port", None)
    return port


def _connecting_beside(store: Any) -> Callable[[], KeyValue]:
    reference = weakref.ref(store)

    def connect() -> KeyValue:
        from torch.distributed import PrefixStore

        original = reference()
        if original is None:
            raise ConnectionError("the process group was destroyed")
        return PrefixStore("forecast_autotune", original.clone())  # type: ignore[no-any-return]

    return connect


def _agent_serves(env: Mapping[str, str]) -> bool:
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _of_environment(env: Mapping[str, str], call_s: float) -> JobChannel | None:
    """Through torchrun's agent, which serves its ranks a store before any of them has a process group."""
    global _agent
    try:
        ranks = _whole(env, "WORLD_SIZE", default=1)
        if ranks <= 1:
            return None
        rank = _whole(env, "RANK", below=ranks)
        if not _agent_serves(env):
            raise InvalidInputError("there is no process group yet: call torch.distributed.init_process_group first")
        host, port = env.get("MASTER_ADDR", ""), _whole(env, "MASTER_PORT", below=2**16)
    except InvalidInputError as err:
        warn_once(f"FORECAST_AUTOTUNE_SYNC=rank0: {err}. Until then {_LOCALLY}", TuningWarning)
        return None
    # The agent outlives the ranks that it restarts: a claim of a killed one must not keep the new ones from tuning. It does
    # not count a rescale as a restart, so the number of ranks names the attempt too.
    attempt = "/".join((env.get("TORCHELASTIC_RUN_ID", ""), env.get("TORCHELASTIC_RESTART_COUNT", "0"), str(ranks)))
    place = (host, port, rank, ranks, attempt)
    if _agent is None or _agent[0] != place:

        def connect() -> KeyValue:
            from torch.distributed import PrefixStore, TCPStore

            client = TCPStore(
                host, port, is_master=False, timeout=timedelta(seconds=call_s / 2), wait_for_workers=False
            )
            return PrefixStore(f"forecast_autotune/{attempt}", client)  # type: ignore[no-any-return]

        _agent = place, JobChannel(connect, rank=rank, ranks=ranks, call_s=call_s, port=port)
    return _agent[1]


def _whole(env: Mapping[str, str], name: str, *, default: int | None = None, below: int | None = None) -> int:
    text = env.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal() or (below is not None and int(text) >= below):
        bound = "" if below is None else f" below {below}"
        raise InvalidInputError(f"{name}={text!r} in the environment: it must be a whole number{bound}")
    return int(text)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


_OPENING = fork_safe_lock()
_group: tuple[weakref.ref[Any], JobChannel] | None = None
_agent: tuple[tuple[object, ...], JobChannel] | None = None
_PARENTS: list[object] = []  # channels of the process this one was forked from: their connections are the parent's


@after_fork_in_child
def _after_fork_in_child() -> None:
    global _group, _agent
    _PARENTS.extend((_group, _agent))
    _group, _agent = None, None
