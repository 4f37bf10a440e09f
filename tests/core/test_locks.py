"""Locks and properties that another thread holds while the process is forked."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from forecast_autotune.core.cached_property import cached_property
from forecast_autotune.core.locks import renew_in_children

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


class Slow:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        renew_in_children(self, "lock")
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.computed = 0

    @cached_property
    def value(self) -> int:
        """A value that takes its time."""
        self.computed += 1
        self.begun.set()
        self.may_end.wait(60)
        return 7

    def hold(self) -> None:
        with self.lock:
            self.begun.set()
            self.may_end.wait(60)


def ends_in_a_child(work: Callable[[], object]) -> bool:
    """Whether a forked child comes to the end of some work."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


def beside(work: Callable[[], object], slow: Slow, ask: Callable[[], object]) -> bool:
    """Whether a child, forked while a thread is at some work, comes to the end of what it is asked."""
    thread = threading.Thread(target=work)
    thread.start()
    assert slow.begun.wait(60)
    try:
        return ends_in_a_child(ask)
    finally:
        slow.may_end.set()
        thread.join(60)


def test_a_child_finds_a_lock_free_that_another_thread_held() -> None:
    slow = Slow()

    def ask() -> None:
        with slow.lock:
            pass

    assert beside(slow.hold, slow, ask)


def test_a_child_computes_what_another_thread_was_computing() -> None:
    slow, other = Slow(), Slow()
    other.may_end.set()
    assert beside(lambda: slow.value, slow, lambda: other.value)


def test_a_property_is_computed_once_and_documented() -> None:
    slow = Slow()
    slow.may_end.set()
    assert (slow.value, slow.value, slow.computed) == (7, 7, 1)
    assert Slow.value.__doc__ == "A value that takes its time."
