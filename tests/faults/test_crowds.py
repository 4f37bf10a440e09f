"""Many processes and threads on one store."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.stores import (
    in_child,
    runs_kept,
    writer,
)

from forecast_autotune.store.sqlite import SqliteStore


def test_processes_that_meet_one_broken_store_set_aside_one_file_and_lose_no_row(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_bytes(os.urandom(20_000))
    writers = [writer(tmp_path, name, rows=5) for name in "abcd"]
    for process in writers:
        process.communicate(timeout=60)
    assert len(list(tmp_path.glob("*.corrupt-*"))) == 1
    assert len(runs_kept(tmp_path)) == 20


def test_eight_processes_that_record_at_once_lose_no_row(tmp_path: Path) -> None:
    writers = [writer(tmp_path, str(n), rows=25) for n in range(8)]
    reported = sum(len(process.communicate(timeout=60)[0].split()) for process in writers)
    assert [process.returncode for process in writers] == [0] * 8
    assert reported == 200
    assert sorted(runs_kept(tmp_path)) == sorted(f"{n}-{row}" for n in range(8) for row in range(25))


def test_a_store_used_before_a_fork_is_used_on_both_sides_of_it(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record(a_job(key={"n": 0}), "before", SPACE[0], a_measurement(), None)
        connection = store._connection

        def child() -> bool:
            for number in range(20):
                store.record(a_job(key={"n": number}), "child", SPACE[0], a_measurement(), None)
            with store.single_flight(a_job()) as alone:
                pass
            return alone and store._connection is not connection

        assert in_child(child)
        for number in range(20):
            store.record(a_job(key={"n": number}), "parent", SPACE[0], a_measurement(), None)
        assert store._connection is connection
    assert sorted(runs_kept(tmp_path)) == ["before", *["child"] * 20, *["parent"] * 20]


def test_a_fork_while_another_thread_is_inside_the_store_leaves_the_child_free(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.decide(a_job(), a_decision(a_job()))
        inside, leave = threading.Event(), threading.Event()

        def stay() -> None:
            with store._lock, store.single_flight(a_job(key={"n": 1})):
                inside.set()
                leave.wait()

        thread = threading.Thread(target=stay)
        thread.start()
        inside.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads: the point
            found = in_child(lambda: store.decision(a_job()) is not None)
        leave.set()
        thread.join()
        assert found
