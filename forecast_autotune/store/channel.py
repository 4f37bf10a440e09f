"""The job's key-value store: found, reached over a connection of our own, and never waited for without end."""

from __future__ import annotations

import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from ..errors import InvalidInputError, TuningWarning

CALL_S = 10.0
"""How long one question to the key-value store may take; it answers in 0.07 ms on one machine."""

CONNECTING = 3
"""The first question may take so many times as long: of eight ranks that connect to one server at once, some waited 5 s in
one run of fifty (torch 2.13)."""

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


class JobChannel:
    """The job's key-value store as one rank sees it. Nothing that comes from it is executed.

    It never blocks for a key, and it gives up after `call_s`, or thrice that to connect: torch's own `check` waits
    without end for a server that stands still (torch 2.13). What did not answer once is not asked again, so that no later
    key waits for it.

    Args:
        connect: opens a connection of our own: one shared with the process group would hold its lock.
        rank: None where the environment does not say it reliably.
    """

    def __init__(
        self, connect: Callable[[], KeyValue], *, rank: int | None, ranks: int, call_s: float = CALL_S
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self.call_s = call_s
        self._connect = connect
        self._connection: KeyValue | None = None
        self._connecting = threading.Lock()
        self._failed = ""

    def __str__(self) -> str:
        return f"rank {'?' if self.rank is None else self.rank} of {self.ranks}"

    def look(self, key: str) -> str | None:
        """What is published under a key, None if nothing is."""
        return self._ask(lambda store: _text(store.get(key)) if store.check([key]) else None)

    def swap(self, key: str, expected: str, desired: str) -> str:
        """Put a value in the place of the expected one, "" for none; returns the one that stands there then."""
        return self._ask(lambda store: _text(store.compare_set(key, expected, desired)))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0; returns its new value."""
        return self._ask(lambda store: int(store.add(key, amount)))

    def _ask(self, question: Callable[[KeyValue], _T]) -> _T:
        if self._failed:
            raise UnreachableError(self._failed)
        try:
            call_s = self.call_s * (CONNECTING if self._connection is None else 1)
            return within(call_s, lambda: question(self._connected()))
        except UnreachableError as err:
            self._failed = str(err)
            raise

    def _connected(self) -> KeyValue:
        with self._connecting:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """The answer, if there is one in time; asked in a thread of its own, which is left behind if there is none.

    Raises:
        UnreachableError: there was none, or asking failed.
    """
    answers: queue.SimpleQueue[tuple[_T | None, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((ask(), None))
        except Exception as err:
            answers.put((None, err))

    threading.Thread(target=work, name="forecast-autotune-ask", daemon=True).start()
    try:
        answer, err = answers.get(timeout=seconds)
    except queue.Empty:
        raise UnreachableError(f"no answer for {seconds:.0f} s") from None
    if err is not None:
        raise UnreachableError(f"{type(err).__name__}: {(str(err) or '?').splitlines()[0][:200]}") from err
    return answer  # type: ignore[return-value]


def job_channel(environment: Mapping[str, str] | None = None, *, call_s: float = CALL_S) -> JobChannel | None:
    """The channel to the other ranks: of the process group, or without one of torchrun's agent.

    None where this process is the only one, which needs no word, or where there is no way to the others, which is
    warned about once.
    """
    env = os.environ if environment is None else environment
    with _FINDING:
        try:
            found = _of_process_group(env, call_s) or _of_environment(env, call_s)
        except (AttributeError, ValueError, RuntimeError) as err:  # a torch that keeps it elsewhere, a group just gone
            tell_once(f"FORECAST_AUTOTUNE_SYNC=rank0: no way to the process group's store ({err!r}): {_LOCALLY}")
            return None
    return found if found is not None and found.ranks > 1 else None


def tell_once(text: str) -> None:
    """Warn, but of one thing only once in a process."""
    if text not in _TOLD:
        _TOLD.add(text)
        warnings.warn(text, TuningWarning, stacklevel=2)


def _of_process_group(env: Mapping[str, str], call_s: float) -> JobChannel | None:
    global _group
    distributed: Any = sys.modules.get("torch.distributed")  # whoever has a process group has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for name, value in (("WORLD_SIZE", ranks), ("RANK", rank)):
        if env.get(name, "").strip() not in ("", str(value)):
            tell_once(f"{name}={env[name]!r}, but the process group says {value}: the process group's is taken")
    # A weak reference: a strong one would keep the server of a destroyed group alive, and its port taken.
    if _group is None or _group[0]() is not store:
        _group = weakref.ref(store), JobChannel(_connecting_beside(store), rank=rank, ranks=ranks, call_s=call_s)
    return _group[1]


def _connecting_beside(store: Any) -> Callable[[], KeyValue]:
    reference = weakref.ref(store)

    def connect() -> KeyValue:
        from torch.distributed import PrefixStore

        original = reference()
        if original is None:
            raise ConnectionError("the process group was destroyed")
        return PrefixStore("forecast_autotune", original.clone())  # type: ignore[no-any-return]

    return connect


def _of_environment(env: Mapping[str, str], call_s: float) -> JobChannel | None:
    """Through torchrun's agent, which serves its ranks a store before any of them has a process group."""
    global _agent
    try:
        ranks = _whole(env, "WORLD_SIZE", default=1)
        if ranks <= 1:
            return None
        rank = _whole(env, "RANK", below=ranks)
        if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise InvalidInputError("there is no process group yet: call torch.distributed.init_process_group first")
        host, port = env.get("MASTER_ADDR", ""), _whole(env, "MASTER_PORT", below=2**16)
    except InvalidInputError as err:
        tell_once(f"FORECAST_AUTOTUNE_SYNC=rank0: {err}. Until then {_LOCALLY}")
        return None
    place = (host, port, rank, ranks)
    if _agent is None or _agent[0] != place:

        def connect() -> KeyValue:
            from torch.distributed import PrefixStore, TCPStore

            client = TCPStore(
                host, port, is_master=False, timeout=timedelta(seconds=call_s / 2), wait_for_workers=False
            )
            return PrefixStore("forecast_autotune", client)  # type: ignore[no-any-return]

        _agent = place, JobChannel(connect, rank=rank, ranks=ranks, call_s=call_s)
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


_TOLD: set[str] = set()
_FINDING = threading.Lock()
_group: tuple[weakref.ref[Any], JobChannel] | None = None
_agent: tuple[tuple[object, ...], JobChannel] | None = None
_PARENTS: list[object] = []  # channels of the process this one was forked from: their connections are the parent's


def _after_fork_in_child() -> None:
    global _FINDING, _group, _agent
    _PARENTS.extend((_group, _agent))
    _FINDING, _group, _agent = threading.Lock(), None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
