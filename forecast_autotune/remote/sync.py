"""The thread that exchanges with a remote store in the background; a launch only tells it what it would like to know."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # registers its end before ours, so that ours comes first; storages use it
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from ..core.forks import after_fork_in_child
from ..core.hardware import REHEARSAL_KINDS, Hardware
from ..core.job import Job
from ..core.text import error_text, plain
from ..core.workload import Program
from ..store.held_warnings import HeldWarnings
from .apart import ExchangeApart
from .exchange import Exchange
from .trees import PackCopy

log = logging.getLogger(__name__)

FRESH_S = 60.0  # a listing is good for so long, in all processes of a machine
OTHERS_FRESH_S = 3600.0  # one of other hardware, which only seeds forecasts
IDLE_S = 30.0  # without anything to do, after which the thread ends; the next thing to do starts another
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # after a failure: doubled each time
END_S = 5.0  # a process that ends waits for what it has to send or copy, if nothing failed; the next one does the rest

Folder = tuple[str, str]  # digests of hardware and program


class Sync:
    """One process's exchange with a remote store, or its copying of a pack. None of its methods raises.

    None waits but `await_read`, `finish`, `close` and `end`.

    Args:
        exchange: what the thread does.
        warnings: where trouble is reported: once for each kind.
        what: the exchange is with, for the warning.
        is_copied: of a pack: whether the copy holds all of a program, which then is not read. A process that ends waits a
            little for what is not copied yet; None where it does not.
    """

    def __init__(
        self,
        exchange: Exchange | PackCopy | ExchangeApart,
        warnings: HeldWarnings,
        what: str = "the remote store",
        *,
        is_copied: Callable[[Program], bool] | None = None,
    ) -> None:
        self.exchange = exchange
        self.warnings = warnings
        self.what = what
        self._is_copied = is_copied
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        """Nothing asked for yet and no thread."""
        self.generation = 0  # changes with what is known here of other machines
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked: dict[Folder, float] = {}  # when this process last asked for a folder
        self._wanted: dict[Folder, Program] = {}  # to be read next
        self._reading: dict[Folder, Program] = {}  # being read; one that is wanted again meanwhile is read again
        self._unread: set[Folder] = set()  # wanted, and not read since, also where that failed
        self._to_send = True  # what earlier processes left
        self._own, self._own_sent = 0, 0  # decisions of this one, and how many of them have arrived
        self._busy = False  # the thread is at it
        self._failures = 0  # in a row
        self._over = False

    def after_fork_in_child(self) -> None:
        """The thread and its connections are the parent's."""
        self._reset()
        self.exchange.after_fork_in_child()

    # On a launch's way ----------------------------------------------------------------------------------------------

    def want(self, job: Job) -> None:
        """Have what bears on a job read, unless that was done a moment ago."""
        hardware, program = job.hardware, job.workload.program
        folder, now = (hardware.digest, program.digest), time.monotonic()
        if now - self._asked.get(folder, -FRESH_S) < FRESH_S or hardware.kind in REHEARSAL_KINDS:
            return
        self._asked[folder] = now
        if self._is_copied is not None and self._is_copied(program):
            self._unread.discard(folder)  # by another process
            return
        with self._changed:
            self._wanted[folder] = program
            self._unread.add(folder)
            self._wake()

    def send(self, hardware: Hardware) -> None:
        """Have sent what was decided on some hardware."""
        if hardware.kind in REHEARSAL_KINDS:
            return
        with self._changed:
            self._to_send = True
            self._own += 1
            self._wake()

    def is_reading(self, job: Job) -> bool:
        """Whether what bears on a job is still to come."""
        folder = job.hardware.digest, job.workload.program.digest
        return folder in self._wanted or folder in self._reading

    def may_hold(self, job: Job) -> bool:
        """Whether what bears on a job is still to come, or could not be read."""
        return (job.hardware.digest, job.workload.program.digest) in self._unread

    def await_read(self, job: Job, wait_s: float) -> None:
        """Wait until what bears on a job is read, so many seconds at most, or until that fails."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_reading(job), wait_s)

    def finish(self, wait_s: float) -> bool:
        """Wait until all is read and sent, so many seconds at most, or until something fails; whether all was."""
        with self._changed:
            if self._thread is None:
                return self._idle
            return self._changed.wait_for(lambda: self._idle or self._failures > 0, wait_s) and self._idle

    def close(self) -> None:
        """Wait a little for what this process still has to send, and end what runs beside it; a later call starts anew."""
        self._await_sent(END_S)
        with self._changed:
            if not self._busy:
                self.exchange.close()

    def end(self, until: float = math.inf) -> None:
        """The process ends: send what it has decided, and finish a copy, as far as that can be done by then, and soon."""
        most_s = max(0.0, min(END_S, until - time.monotonic()))
        self._await_sent(most_s)
        if self._is_copied is not None:
            with self._changed:
                self._changed.wait_for(lambda: not (self._wanted or self._reading) or self._failures > 0, most_s)
        self._over = True

    @property
    def only_copies(self) -> bool:
        """Whether nothing is ever sent: a pack's."""
        return self._is_copied is not None

    def _await_sent(self, most_s: float) -> None:
        with self._changed:
            if self._thread is not None and not self._over:
                failures = self._failures
                self._changed.notify_all()  # after a failure it is tried once more, at once
                self._changed.wait_for(lambda: self._own_sent == self._own or self._failures > failures, most_s)

    @property
    def _idle(self) -> bool:
        return not (self._wanted or self._to_send or self._busy)

    def _wake(self) -> None:
        """Have the thread look; called with the condition held."""
        self._changed.notify_all()
        if self._thread is None and not self._over:
            thread = threading.Thread(target=self._work, name="forecast-autotune-remote", daemon=True)
            try:
                thread.start()
            except RuntimeError as err:  # no more threads can be had, or the interpreter is ending
                log.debug("no thread for the remote store: %s", err)
                self._wanted.clear()
                return
            self._thread = thread

    # In the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._has_work():
            with self._changed:
                self._reading, self._wanted, self._busy = self._wanted, {}, True
            try:
                self._read()
                self._send()
                if self._failures:
                    self._asked.clear()  # what could not be read is asked for by the next call that misses it
                self._failures = 0
            # A storage's own may be none of `Exception`; without this thread nothing is sent.
            except BaseException as err:
                self._fail(err)
            with self._changed:
                self._reading = {}  # also after a failure: nobody is to look out for it any more
                self._busy = False
                self._changed.notify_all()

    def _has_work(self) -> bool:
        """Wait for something to do; False where there was nothing for long. Then what runs beside this process has ended."""
        with self._changed:
            if self._failures and not self._wanted:
                self._changed.wait(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1)))
                return True
            if self._changed.wait_for(lambda: not self._idle, IDLE_S):
                return True
            self._busy = True
        self.exchange.close()  # it takes its time: with the condition held, a launch would wait for it
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            if self._idle:
                self._thread = None
            return self._thread is not None

    def _read(self) -> None:
        """Read what is wanted; of this hardware first, as that alone decides calls."""
        reading = dict(self._reading)
        for (hardware, digest), program in reading.items():
            self.exchange.pull(hardware, program, fresh_s=FRESH_S)
            self.generation += 1
            with self._changed:
                self._reading.pop((hardware, digest), None)
                if (hardware, digest) not in self._wanted:  # not again meanwhile
                    self._unread.discard((hardware, digest))
                self._changed.notify_all()
        for (hardware, _), program in reading.items():
            self.exchange.pull_from_other_hardware(hardware, program, fresh_s=OTHERS_FRESH_S)

    def _send(self) -> None:
        with self._changed:
            to_send, own = self._to_send, self._own
            self._to_send = False
        if to_send:
            try:
                self.exchange.push()
            except BaseException:
                self._to_send = True
                raise
            self._own_sent = own

    def _fail(self, err: BaseException) -> None:
        if self._over:
            return  # what runs beside this process ends with it
        log.info("%s: %s", self.what, error_text(err), exc_info=not isinstance(err, OSError))
        goes_on = (
            "What is known here is used without it"
            if self.only_copies
            else "Tuning goes on with what is known here; what this machine learns waits in its store and is sent later"
        )
        with suppress(Exception):  # the user may have made warnings errors, and this thread is nobody's call
            self.warnings.warn_once(self.what, f"{self.what} cannot be used: {plain(error_text(err))}. {goes_on}")
        self._failures += 1


_ALL: weakref.WeakSet[Sync] = weakref.WeakSet()


def _end_all() -> None:
    until = time.monotonic() + END_S  # of all, what is sent first
    for sync in sorted(_ALL, key=lambda sync: sync.only_copies):
        sync.end(until)


@after_fork_in_child
def _after_fork_in_child() -> None:
    for sync in list(_ALL):
        sync.after_fork_in_child()


# At `atexit` it would be too late: by then no executor takes work any more, by which storages look up names of hosts.
getattr(threading, "_register_atexit", atexit.register)(_end_all)
