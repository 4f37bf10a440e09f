"""Workers that stand still, all together, for as long as something is timed that they must not disturb."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .worker import WATCH_S, Worker


class Pausing:
    """The workers of one pool, and whether they may run. Several may have them paused at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._pauses = 0
        self._paused_s = 0.0  # in all pauses that are over
        self._paused_at: float | None = None
        self._may_run = threading.Event()
        self._may_run.set()
        self._of_thread = threading.local()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Every worker is stopped while this is held, with what it has started."""
        self._of_thread.pauses = self._of_this_thread + 1
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._paused_at = time.perf_counter()
                self._may_run.clear()
                for worker in self._workers:
                    worker.pause()
        try:
            yield
        finally:
            self._of_thread.pauses -= 1
            with self._lock:
                self._pauses -= 1
                if not self._pauses:
                    for worker in self._workers:
                        worker.resume()
                    self._end_pause()
                    self._may_run.set()

    @property
    def is_paused(self) -> bool:
        """Whether something is being timed that must not be disturbed."""
        return not self._may_run.is_set()

    @property
    def is_paused_here(self) -> bool:
        """Whether this very thread has them paused, which must then wait for none of them."""
        return self._of_this_thread > 0

    @property
    def _of_this_thread(self) -> int:
        return int(getattr(self._of_thread, "pauses", 0))

    def clock(self) -> float:
        """Seconds since any moment, of which workers could run."""
        with self._lock:
            return (time.perf_counter() if self._paused_at is None else self._paused_at) - self._paused_s

    def _end_pause(self) -> None:
        if self._paused_at is not None:
            self._paused_s += time.perf_counter() - self._paused_at
            self._paused_at = None

    def add(self, worker: Worker) -> None:
        """A worker that was started; in a pause it stops at once."""
        with self._lock:
            self._workers.add(worker)
            if self._pauses:
                worker.pause()

    def discard(self, worker: Worker) -> None:
        """A worker that is done with."""
        with self._lock:
            self._workers.discard(worker)

    def wait(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until nothing is paused, or it is given up: to begin anything sooner would show in what is timed."""
        while not self._may_run.wait(WATCH_S) and not given_up():
            pass

    def give_up(self) -> None:
        """Let go of all that wait for the end of a pause: there is nothing left to run."""
        self._may_run.set()
