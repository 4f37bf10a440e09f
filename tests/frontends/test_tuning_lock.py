"""Who waits for the thread that holds the tuning lock."""

from __future__ import annotations

import threading

from forecast_autotune.frontends.tuning_lock import TuningLock


def asked_elsewhere(lock: TuningLock, *, timeout_s: float) -> list[bool]:
    """Whether another thread gets the lock; empty where it still waits."""
    answers: list[bool] = []

    def ask() -> None:
        with lock.held_unless_slow() as locked:
            answers.append(locked)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers


def test_others_do_without_the_lock_while_its_holder_is_slow() -> None:
    lock = TuningLock()
    with lock.held():
        with lock.slow(True):
            assert asked_elsewhere(lock, timeout_s=60) == [False]
        assert asked_elsewhere(lock, timeout_s=0.1) == []
    assert asked_elsewhere(lock, timeout_s=60) == [True]


def test_a_thread_without_the_lock_does_not_say_that_its_holder_is_slow() -> None:
    lock = TuningLock()
    with lock.held():
        elsewhere = lock.slow(True)
        thread = threading.Thread(target=elsewhere.__enter__)
        thread.start()
        thread.join()
        assert asked_elsewhere(lock, timeout_s=0.1) == []
