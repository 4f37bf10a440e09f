"""Which of the threads that learn works now, and how much of a core they take together."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterator


class AtWork:
    """Held by the one thread of all that learn which works now; the others wait for compilers, for calls, or for it.

    Threads that wait go in the order in which they began, so that early keys are decided first.
    It alone is woken: a thread that wakes beside a program that is busy in Python waits up to 5 ms for the interpreter.
    After work there is a pause, in which none works, so that all together take no more than a `share` of one core's time:
    Python code of the program waits for its interpreter meanwhile.
    """

    share = 1.0

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Held by nobody."""
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: dict[int, threading.Lock] = {}  # by number: locked until its turn
        self._numbers = itertools.count()
        self._mine = threading.local()  # `number`, and whether it is `held`
        self._since_s = self._ready_at = 0.0
        self.over = threading.Event()

    def enter(self) -> None:
        """Wait until no other one works; nothing where this thread does already."""
        if getattr(self._mine, "held", False):
            return
        turn = threading.Lock()
        with self._lock:
            if not hasattr(self._mine, "number"):
                self._mine.number = next(self._numbers)
            if self._is_held:
                turn.acquire()
                self._waiting[self._mine.number] = turn
            self._is_held = True
        with turn:  # whoever leaves lets this one go on
            self._mine.held = True
        self._begin_work()

    def leave(self) -> None:
        """Let others work."""
        if getattr(self._mine, "held", False):
            self._end_work()
            self._mine.held = False
            with self._lock:
                if self._waiting:
                    self._waiting.pop(min(self._waiting)).release()
                else:
                    self._is_held = False

    def pause(self) -> None:
        """In the midst of work, let threads work that began before this one; nothing where this thread does not work."""
        if not getattr(self._mine, "held", False):
            return
        with self._lock:
            is_next = self._mine.number < min(self._waiting, default=math.inf)
        if is_next:
            self._end_work()
            self._begin_work()
        else:
            self.leave()
            self.enter()

    def _begin_work(self) -> None:
        if (pause_s := self._ready_at - time.monotonic()) > 0:
            self.over.wait(pause_s)
        self._since_s = time.thread_time()

    def _end_work(self) -> None:
        worked_s = time.thread_time() - self._since_s
        self._ready_at = time.monotonic() + worked_s * (1 / self.share - 1)

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Others may work while this is held."""
        self.leave()
        try:
            yield
        finally:
            self.enter()


at_work = AtWork()
