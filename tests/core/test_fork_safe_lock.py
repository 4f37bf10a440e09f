from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from forked import exit_status_of_child

from forecast_autotune.core.fork_safe_lock import fork_safe_lock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads: they are the point


@contextmanager
def held_by_a_thread(lock: Any) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        yield
    finally:
        over.set()
        thread.join()


def test_the_child_of_a_fork_takes_a_lock_that_a_thread_of_its_parent_held() -> None:
    lock = fork_safe_lock()

    def taken_and_let_go() -> bool:
        with lock:
            pass
        return lock.acquire(blocking=False)

    with held_by_a_thread(lock):
        assert exit_status_of_child(taken_and_let_go) == 0
        assert not lock.acquire(blocking=False), "the parent's thread holds it on"


def test_who_forks_within_a_lock_holds_it_in_the_child_too() -> None:
    lock = fork_safe_lock()

    def left_once_more() -> bool:
        lock.release()
        try:
            lock.release()
        except RuntimeError:
            return True
        return False

    with lock:
        assert exit_status_of_child(left_once_more) == 0
