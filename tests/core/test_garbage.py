"""The garbage collector, kept from running for a while."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from forecast_autotune.core.garbage import no_collection


def test_it_runs_again_once_the_last_has_ended() -> None:
    both, inner_ended = threading.Barrier(2, timeout=60), threading.Event()

    def beside() -> None:
        with no_collection():
            both.wait()
            assert inner_ended.wait(60)
            assert not gc.isenabled()

    thread = threading.Thread(target=beside)
    thread.start()
    with no_collection():
        both.wait()
    inner_ended.set()
    thread.join()
    assert gc.isenabled()


def test_it_stays_off_in_a_program_that_has_turned_it_off() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_lets_it_run_again() -> None:
    with pytest.raises(ValueError, match="wrong"), no_collection():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_it_runs_in_the_child_of_a_fork() -> None:
    with no_collection():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
