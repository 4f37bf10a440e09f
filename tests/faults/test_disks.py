"""The store on disks that are full, read-only or taken away."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.ledger import Case, Ledger
from faults.stores import (
    as_nobody,
    become,
    filled,
    filled_somehow,
    in_child,
    runs_kept,
    told_by,
    use_what_is_there,
)

from forecast_autotune.errors import StoreWarning
from forecast_autotune.settings import Settings
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

Popen = subprocess.Popen[str]


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


def test_a_store_removed_while_open_is_replaced_by_a_fresh_one(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store") as store:
        store.record_decision(a_job(), a_decision(a_job()))
        shutil.rmtree(tmp_path / "store")
        assert store.decision(a_job()) is None
        store.record_outcome(a_job(), "run-2", SPACE[0], a_measurement(), None)
    assert runs_kept(tmp_path / "store") == ["run-2"]


def test_a_store_that_breaks_while_it_is_open_is_set_aside_too(tmp_path: Path) -> None:
    path = filled(tmp_path, 40)

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.decision(a_job()) is not None
            with path.open("r+b") as file:
                file.write(os.urandom(path.stat().st_size))
            other = SqliteStore(tmp_path)
            other.record_outcome(a_job(), "run-2", SPACE[0], a_measurement(), None)
            other.close()
            store.record_outcome(a_job(), "run-3", SPACE[0], a_measurement(), None)

    told_by(use)
    assert sorted(runs_kept(tmp_path)) == ["run-2", "run-3"]


def test_a_folder_that_cannot_be_written_to_leaves_the_process_in_memory(open_folder: Path) -> None:
    directory = open_folder / "not-mine"
    directory.mkdir(mode=0o555)
    (found, kept), told = as_nobody(lambda: told_by(lambda: use_what_is_there(directory / "store")))
    assert (found, kept) == (False, True)
    (warning,) = (t for t in told if "kept in memory alone" in t)
    assert "cannot be used (" in warning
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("journal", ["wal", "rollback"])
@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_read_only_store_is_read_and_goes_on_in_memory(open_folder: Path, folder_mode: int, journal: str) -> None:
    directory = open_folder / "store"
    with SqliteStore(directory, journal=journal) as store:
        store.record_decision(a_job(), a_decision(a_job()))
    shutil.rmtree(directory / "locks")
    path = directory / "store.sqlite3"
    path.chmod(0o444)
    directory.chmod(folder_mode)
    before = path.read_bytes()
    (found, kept), told = as_nobody(lambda: told_by(lambda: use_what_is_there(directory)))
    assert (found, kept) == (True, True)
    (warning,) = (t for t in told if "kept in memory alone" in t)
    assert "cannot be written to (" in warning
    assert ": what it holds is read, and what this process learns is" in warning
    assert path.read_bytes() == before


def test_a_disk_that_fills_up_leaves_the_process_all_it_knew_in_memory(tmp_path: Path) -> None:
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
                store.record_outcome(a_job(key={"n": number}), "run", SPACE[0], a_measurement(), None)
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


def test_a_full_tmpfs_leaves_the_process_all_it_knew_in_memory(tmp_path: Path) -> None:
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
        (warning,) = (t for t in told if "kept in memory alone" in t)
        assert "cannot be written to (" in warning


@pytest.mark.filterwarnings("error")
def test_warnings_made_errors_leave_the_store_whole(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "store.sqlite3").write_bytes(b"no database, but long enough to look at" * 100)
    with SqliteStore(tmp_path) as store:
        with pytest.raises(StoreWarning):
            store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job()) == a_decision(a_job())


# A process of its own on a disk that is slow, fails or cannot lock, on odd paths, under a clock that jumps ---------------

USER = """
import json, os, struct, sys, warnings
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from forecast_autotune.settings import Settings
from forecast_autotune.store.sqlite import open_local_store

def jump(years):
    with open(os.environ["SHIM_CLOCK"], "r+b") as file:
        file.write(struct.pack("q", int(years * 365.25 * 86400)))

warnings.simplefilter("always")
told = []
warnings.showwarning = lambda message, category, *rest: told.append(f"{category.__name__}: {message}")
with open_local_store(Settings.from_environment()) as store:
    for number, years in enumerate(json.loads(sys.argv[1])):
        if years is not None:
            jump(years)
        with store.single_flight(a_job()) as alone:
            run = f"{sys.argv[2]}-{number}"
            for config in SPACE:
                store.record_outcome(a_job(), run, config, a_measurement(10.0 + number), None)
                print("kept", run, config.text, flush=True)
            store.record_decision(a_job(), a_decision(a_job(), SPACE[number]))
    decided = store.decision(a_job())
    held = None if decided is None else list(SPACE).index(decided.config)
    found = store.outcomes(a_job())
times = sorted({outcome.median_us for outcome in found.values()})
newest = [run + " " + config.text for config, outcome in found.items() if outcome.median_us == 10.0 + number]
print(json.dumps({"alone": alone, "held": held, "times": times, "newest": newest, "told": told}))
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk and the clock of `shim.c`, to be preloaded."""
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True, timeout=200)
    return built


def user(case: Case, name: str = "a", jumps: Sequence[float | None] = (None,), **changes: str | None) -> Popen:
    """A process that records, decides and looks, some times over."""
    environment = {k: v for k, v in {**case.environment, **changes}.items() if v is not None}
    command = [sys.executable, "-c", USER, json.dumps(list(jumps)), name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: Popen, wait_s: float = 60.0) -> dict[str, Any]:
    """What a user saw, with what it reported as kept; it must end well, whatever the disk does."""
    out, err = process.communicate(timeout=wait_s)
    assert process.returncode == 0, err[-3000:]
    lines = out.splitlines()
    return {**json.loads(lines[-1]), "kept": [line.removeprefix("kept ") for line in lines if line.startswith("kept")]}


def preloaded(shim: Path, case: Case, **options: object) -> dict[str, str]:
    return {"LD_PRELOAD": str(shim), "SHIM_UNDER": str(case.store), **{f"SHIM_{k}": str(v) for k, v in options.items()}}


def account(case: Case, seen: dict[str, Any], store: Path | None = None) -> None:
    """Count what a user reported and is held neither by the file nor, where it said that it has none, in its memory."""
    in_memory = any("kept in memory alone" in text for text in seen["told"])
    there = set(seen["newest"]) if in_memory else set()
    path = (store or case.store) / "store.sqlite3"
    if not set(seen["kept"]) <= there:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT runs.value, configs.value FROM outcome"
                " JOIN text AS runs ON runs.id = run JOIN text AS configs ON configs.id = config"
            )
            there |= {f"{run} {config}" for run, config in rows}
    lost = len(set(seen["kept"]) - there)
    case.kept(reported=len(seen["kept"]), lost=lost)
    assert not lost


def right(seen: dict[str, Any], number: int = 0) -> bool:
    """Whether this process found its newest decision and its newest times again."""
    return bool(seen["held"] == number and seen["times"] == [10.0 + number])


LOCKS = {
    "record locks answer ENOLCK": ({"FCNTL": errno.ENOLCK}, "locks no files"),
    "record locks answer ENOSYS": ({"FCNTL": errno.ENOSYS}, "locks no files"),
    "file locks answer ENOLCK": ({"FLOCK": errno.ENOLCK}, "two processes may tune the same key at once"),
    "file locks answer ENOSYS": ({"FLOCK": errno.ENOSYS}, "two processes may tune the same key at once"),
    "file locks are given to everybody": ({"FLOCK": 0}, ""),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_where_nothing_can_be_locked_two_processes_at_worst_tune_twice(
    faults: Ledger, shim: Path, tmp_path: Path, lock: str
) -> None:
    options, told = LOCKS[lock]
    seen = "one warning that names the folder; at worst a key is tuned twice or kept in memory"
    with faults.case("a filesystem without locks, or with locks for everybody", tmp_path, seen=seen) as case:
        (case.store / "locks").mkdir(parents=True)
        for number in range(4096):  # left from when there were locks
            (case.store / "locks" / f"{number:03x}.lock").touch()
        for _ in range(case.many(short=1, whole=5)):
            with case.attempt():
                both = [user(case, name, **preloaded(shim, case, **options)) for name in "ab"]
                results = [ended(each) for each in both]
                assert any(found["alone"] for found in results), "who finds it held goes on without the key"
                for found in results:
                    assert right(found)
                    assert len(found["told"]) == bool(told)
                    assert all(told in text for text in found["told"])
                    account(case, found)


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_a_disk_failing_at_any_write_leaves_all_that_is_known_in_memory(
    faults: Ledger, shim: Path, tmp_path: Path, journal: str
) -> None:
    seen = "one warning that names the error; all is kept in memory"
    with faults.case("an input/output error at the n-th write", tmp_path, seen=seen) as case:
        for first in (*range(1, 12, 5), 30) if not case.whole else range(1, 90, 3):
            shutil.rmtree(case.store, ignore_errors=True)
            with SqliteStore(case.store, journal=journal) as store:
                assert store.decision(a_job()) is None  # which makes the file
            assert (case.store / "store.sqlite3").exists()
            with case.attempt():
                found = ended(user(case, **preloaded(shim, case, EIO_AT=first)))
            assert right(found)
            assert len(found["told"]) == 1
            assert "disk I/O error" in found["told"][0]
            account(case, found)
            again = ended(user(case))  # the disk is well again
            assert right(again)
            account(case, again)


@pytest.mark.thorough
def test_a_slow_disk_delays_and_nothing_else(faults: Ledger, shim: Path, tmp_path: Path) -> None:
    seen = "nothing, but it waits"
    with faults.case("a disk that takes 30 ms for every write", tmp_path, seen=seen) as case, case.attempt():
        both = [user(case, name, **preloaded(shim, case, DELAY_MS=30)) for name in "ab"]
        for found in map(ended, both):
            assert found["held"] == 0
            assert not found["told"]
            account(case, found)


def test_a_clock_that_jumps_keeps_the_newest_decision_and_outcomes_valid(
    faults: Ledger, shim: Path, tmp_path: Path
) -> None:
    jumps = [0, 10, 0, -10, 0.001, -0.001]
    with faults.case("a clock that jumps by ten years, to and fro", tmp_path, seen="nothing") as case:
        for order in (jumps, jumps[::-1], [0, -10, 10, -10, 10, 0]):
            shutil.rmtree(case.store, ignore_errors=True)
            clock = case.folder / "clock"
            clock.write_bytes(struct.pack("q", 0))
            with case.attempt():
                found = ended(user(case, jumps=order, **preloaded(shim, case, CLOCK=clock)))
            assert right(found, len(order) - 1)
            assert not found["told"]
            account(case, found)
            with SqliteStore(case.store) as store:  # a later process agrees, its own clock being right
                held = store.decision(a_job())
                assert held is not None
                assert held.config == SPACE[len(order) - 1]
                assert {o.median_us for o in store.outcomes(a_job()).values()} == {10.0 + len(order) - 1}
            assert StoreFile(case.store).prune().outcomes == 0, "what was used just now is not forgotten"


def test_what_is_used_under_a_clock_set_back_is_not_pruned_later(faults: Ledger, shim: Path, tmp_path: Path) -> None:
    with faults.case("a clock that jumps by ten years, to and fro", tmp_path, seen="nothing") as case, case.attempt():
        with SqliteStore(case.store) as store:
            store.record_outcome(a_job(name="other"), "earlier", SPACE[0], a_measurement(), None)
        clock = case.folder / "clock"
        clock.write_bytes(struct.pack("q", 0))
        found = ended(user(case, jumps=[-10], **preloaded(shim, case, CLOCK=clock)))
        assert StoreFile(case.store).prune().programs == 0
        account(case, found)


ODD = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a socket": lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK),
}


@pytest.mark.parametrize("ending", ["", "-wal", "-journal"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_in_a_stores_place_is_left_alone_and_hangs_nobody(
    faults: Ledger, tmp_path: Path, odd: str, ending: str
) -> None:
    seen = "one warning that names it; all is kept in memory"
    with faults.case("a pipe, a folder, a link, a socket in the place of a store's file", tmp_path, seen=seen) as case:
        if ending:
            filled(case.store)
        else:
            case.store.mkdir()
        path = case.store / f"store.sqlite3{ending}"
        path.unlink(missing_ok=True)
        ODD[odd](path)
        before = os.lstat(path)
        with case.attempt():
            found = ended(user(case))
        assert right(found)
        assert len(found["told"]) == 1 or (ending and odd == "a dangling link")
        account(case, found)
        if not (ending and odd == "a dangling link"):
            assert os.lstat(path).st_ino == before.st_ino
            assert not (path.parent / "nowhere").exists()
        with case.attempt():
            command = [sys.executable, "-m", "forecast_autotune", "list"]
            listed = subprocess.run(
                command, env=case.environment, capture_output=True, text=True, timeout=200, check=False
            )
            assert "Traceback" not in listed.stderr


@pytest.mark.parametrize(
    "name",
    ['it\'s "quoted"', "a b", "50%?x=1#y", "line\nbreak", b"\xff\xfe".decode(errors="surrogateescape"), "x" * 250],
)
def test_a_store_in_a_folder_of_any_name_is_kept_and_found_again(faults: Ledger, tmp_path: Path, name: str) -> None:
    with faults.case(
        "a folder with quotes, blanks, line breaks, bytes that are no text in its name", tmp_path, seen="nothing"
    ) as case:
        with case.attempt():
            directory = os.fspath(case.folder / "odd" / name)
            found = ended(user(case, FORECAST_AUTOTUNE_DIR=directory))
            assert right(found)
            assert not found["told"]
            assert len(found["kept"]) == 6
            account(case, found, Path(directory))
        listed = subprocess.run(
            [sys.executable, "-m", "forecast_autotune", "list"],
            env={**case.environment, "FORECAST_AUTOTUNE_DIR": directory},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr


HOMES: dict[str, dict[str, str | None]] = {
    "HOME is not there": {"HOME": "/proc/nonexistent", "XDG_CACHE_HOME": None},
    "the cache folder is a file": {"XDG_CACHE_HOME": "/etc/passwd"},
    "the store's folder is a file": {"FORECAST_AUTOTUNE_DIR": "/etc/passwd"},
    "the name is too long": {"FORECAST_AUTOTUNE_DIR": "/var/" + "x" * 300},
}


@pytest.mark.parametrize("home", HOMES)
def test_without_a_folder_to_write_to_all_is_kept_in_memory(faults: Ledger, tmp_path: Path, home: str) -> None:
    seen = "one warning that names the folder; all is kept in memory"
    with faults.case("a home folder that cannot be written to, or none at all", tmp_path, seen=seen) as case:
        with case.attempt():
            found = ended(user(case, **{"FORECAST_AUTOTUNE_DIR": None, **HOMES[home]}))
        assert right(found)
        assert len([text for text in found["told"] if "kept in memory alone" in text]) == 1
        assert len(found["told"]) <= 2
        account(case, found)


def test_a_user_whom_the_system_does_not_know_has_a_store_in_memory(
    faults: Ledger, tmp_path: Path, open_folder: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")

    def unknown() -> tuple[bool, list[str], list[str]]:
        become(54_321)
        os.chdir(open_folder)
        for name in ("HOME", "XDG_CACHE_HOME", "FORECAST_AUTOTUNE_DIR"):
            os.environ.pop(name, None)
        found, told = told_by(lambda: filled_somehow(Settings.from_environment().dir))
        return found, told, os.listdir(open_folder)

    seen = "one warning that names the folder; all is kept in memory"
    open_folder.chmod(0o777)
    with (
        faults.case("a home folder that cannot be written to, or none at all", tmp_path, seen=seen) as case,
        case.attempt(),
    ):
        found, told, made = in_child(unknown)
        assert found
        assert len([text for text in told if "kept in memory alone" in text]) == 1
        assert not made, "nor is a folder named ~ made in the current one"


def test_a_file_in_the_place_of_the_locks_folder_costs_the_locks_alone(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(
        "a file in the place of the locks' folder", tmp_path, seen="one warning; the store is kept"
    ) as case:
        case.store.mkdir()
        (case.store / "locks").touch()
        with case.attempt():
            found = ended(user(case))
        assert right(found)
        assert len(found["told"]) == 1
        assert "no lock can be had" in found["told"][0]
        account(case, found)
