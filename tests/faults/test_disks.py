"""The store on disks that are full, read-only or taken away."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.stores import (
    as_nobody,
    filled,
    filled_somehow,
    in_child,
    runs_kept,
    told_by,
    use_what_is_there,
)

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store.sqlite import SqliteStore


def test_a_link_in_the_place_of_the_store_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    victim = tmp_path / "victim"
    (tmp_path / "store" / "store.sqlite3").symlink_to(victim)
    for there_already in (False, True):
        if there_already:
            victim.write_text("precious")
        _, told = told_by(lambda: filled_somehow(tmp_path / "store"))
        assert len(told) == 1
        assert "symbolic link" in told[0]
    assert victim.read_text() == "precious"


def test_a_store_removed_under_an_open_one_is_begun_anew(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store") as store:
        store.decide(a_job(), a_decision(a_job()))
        shutil.rmtree(tmp_path / "store")
        assert store.decision(a_job()) is None
        store.record(a_job(), "run-2", SPACE[0], a_measurement(), None)
    assert runs_kept(tmp_path / "store") == ["run-2"]


def test_a_store_that_breaks_while_it_is_open_is_set_aside_too(tmp_path: Path) -> None:
    path = filled(tmp_path, 40)

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.decision(a_job()) is not None
            with path.open("r+b") as file:
                file.write(os.urandom(path.stat().st_size))
            other = SqliteStore(tmp_path)
            other.record(a_job(), "run-2", SPACE[0], a_measurement(), None)
            other.close()
            store.record(a_job(), "run-3", SPACE[0], a_measurement(), None)

    told_by(use)
    assert sorted(runs_kept(tmp_path)) == ["run-2", "run-3"]


def test_a_folder_that_cannot_be_written_to_leaves_the_process_in_memory(open_folder: Path) -> None:
    directory = open_folder / "not-mine"
    directory.mkdir(mode=0o555)
    (found, kept), told = as_nobody(lambda: told_by(lambda: use_what_is_there(directory / "store")))
    assert (found, kept) == (False, True)
    assert len([t for t in told if "kept in memory alone" in t]) == 1
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("journal", ["wal", "rollback"])
@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_read_only_store_is_read_and_goes_on_in_memory(open_folder: Path, folder_mode: int, journal: str) -> None:
    directory = open_folder / "store"
    with SqliteStore(directory, journal=journal) as store:
        store.decide(a_job(), a_decision(a_job()))
    shutil.rmtree(directory / "locks")
    path = directory / "store.sqlite3"
    path.chmod(0o444)
    directory.chmod(folder_mode)
    before = path.read_bytes()
    (found, kept), told = as_nobody(lambda: told_by(lambda: use_what_is_there(directory)))
    assert (found, kept) == (True, True)
    assert len([t for t in told if "kept in memory alone" in t]) == 1
    assert path.read_bytes() == before


def test_a_disk_that_fills_up_leaves_the_process_in_memory_with_all_it_knew(tmp_path: Path) -> None:
    """No file may grow past a limit: what SQLite meets is a failed write, as on a full disk, on any machine."""

    def use() -> tuple[int, list[str]]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        return fill_up(tmp_path)

    kept, told = in_child(use)
    assert kept == 300
    assert len(told) == 1
    assert 0 < len(runs_kept(tmp_path)) < 300


def fill_up(directory: Path) -> tuple[int, list[str]]:
    def use() -> int:
        with SqliteStore(directory) as store:
            for number in range(300):
                store.record(a_job(key={"n": number}), "run", SPACE[0], a_measurement(), None)
            return sum(bool(store.outcomes(a_job(key={"n": number}))) for number in range(300))

    return told_by(use)


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options.encode()) != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(str(folder).encode(), 2)


def test_a_tmpfs_that_is_full_leaves_the_process_in_memory_with_all_it_knew(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "size=400k"):
        kept, told = fill_up(tmp_path)
        assert kept == 300
        assert len(told) == 1
        assert 0 < len(runs_kept(tmp_path)) < 300


def test_a_read_only_mount_is_read_and_goes_on_in_memory(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "size=4m"):
        filled(tmp_path)
        remount, read_only = 32, 1
        assert ctypes.CDLL(None).mount(None, str(tmp_path).encode(), None, remount | read_only, None) == 0
        (found, kept), told = told_by(lambda: use_what_is_there(tmp_path))
        assert (found, kept) == (True, True)
        assert len([t for t in told if "kept in memory alone" in t]) == 1


def test_warnings_made_errors_leave_the_store_whole(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "store.sqlite3").write_bytes(b"no database, but long enough to look at" * 100)
    with SqliteStore(tmp_path) as store:
        with pytest.raises(StoreWarning):
            store.decide(a_job(), a_decision(a_job()))
        assert store.decision(a_job()) == a_decision(a_job())
