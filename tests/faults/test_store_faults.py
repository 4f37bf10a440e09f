"""The store on what really goes wrong: broken files, disks that are full or read-only, processes that are killed."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  # before privileges are dropped, after which this interpreter's folder may be closed
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.errors import StoreWarning
from forecast_autotune.store import schema
from forecast_autotune.store.manage import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

NOBODY = 65534

WRITER = """
import sys
from contracts.store_contract import SPACE, a_job, a_measurement
from forecast_autotune.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], journal=sys.argv[3])
for number in range(int(sys.argv[4])):
    store.record(a_job(key={"n": number % 10}), f"{sys.argv[2]}-{number}", SPACE[0], a_measurement(), None)
    print(number, flush=True)
"""


def writer(directory: Path, name: str, journal: str = "auto", rows: int = 1000) -> subprocess.Popen[str]:
    """A process that records rows and reports each once it is kept."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", WRITER, str(directory), name, journal, str(rows)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def runs_kept(directory: Path) -> list[str]:
    connection = sqlite3.connect(directory / "store.sqlite3")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [run for (run,) in connection.execute("SELECT run FROM outcome")]
    finally:
        connection.close()


def in_child(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked child, which may give up what the parent needs to keep."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = pickle.dumps((True, function()))
        except BaseException as err:
            result = pickle.dumps((False, repr(err)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        succeeded, value = pickle.loads(pipe.read())  # noqa: S301  # written by ourselves a moment ago
    os.waitpid(child, 0)
    assert succeeded, value
    return value


def told_by(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a function returns and every store warning it gave."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = function()
    return value, [str(w.message) for w in told if issubclass(w.category, StoreWarning)]


def filled(directory: Path, rows: int = 1) -> Path:
    with SqliteStore(directory) as store:
        for number in range(rows):
            store.record(a_job(key={"n": number}), "run", SPACE[0], a_measurement(), None)
        store.decide(a_job(), a_decision(a_job()))
    return directory / "store.sqlite3"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


# Broken files -----------------------------------------------------------------------------------------------------------


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_in_the_first_page(path: Path) -> None:
    os.truncate(path, 1000)


def overwrite_with_noise(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def overwrite_the_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


def drop_a_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE decision")
    connection.close()


def replace_with_another_programs_database(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()


@pytest.mark.parametrize(
    "harm",
    [
        cut_in_half,
        cut_in_the_first_page,
        overwrite_with_noise,
        overwrite_the_middle,
        drop_a_table,
        replace_with_another_programs_database,
    ],
)
def test_a_broken_store_is_set_aside_with_one_warning_and_a_fresh_one_begun(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = filled(tmp_path, 40)
    harm(path)
    broken = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.decision(a_job())
            store.decide(a_job(key={"n": -1}), a_decision(a_job()))
            store.outcomes(a_job())
            store.recollect(a_job())
            store.record(a_job(), "run", SPACE[1], a_measurement(), None)
            assert store.decision(a_job(key={"n": -1})) == a_decision(a_job())

    _, told = told_by(use)
    assert len(told) == 1
    assert "is broken" in told[0]
    (aside,) = (p for p in tmp_path.glob("store.sqlite3.corrupt-*") if not p.name.endswith(("-wal", "-shm")))
    assert aside.name in told[0]
    assert aside.stat().st_size >= len(broken)
    assert runs_kept(tmp_path) == ["run"]


def test_an_empty_file_is_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").touch()
    filled(tmp_path)
    assert runs_kept(tmp_path) == ["run"]


def test_a_row_that_does_not_decode_is_passed_over_and_the_rest_is_read(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with SqliteStore(tmp_path) as store:
        store.record(a_job(key={"n": 0}), "run", SPACE[1], a_measurement(), None)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE outcome SET value = '{\"samples_us\": [NaN]}' WHERE id = 1")
    connection.execute("UPDATE decision SET value = substr(value, 1, 30)")
    connection.close()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            assert store.outcomes(a_job(key={"n": 0})) == {SPACE[1]: a_measurement()}
            assert store.decision(a_job()) is None
            store.decide(a_job(), a_decision(a_job()))
            assert store.decision(a_job()) == a_decision(a_job())

    assert len(told_by(use)[1]) == 1
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_processes_that_meet_one_broken_store_set_aside_one_file_and_lose_no_row(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_bytes(os.urandom(20_000))
    writers = [writer(tmp_path, name, rows=5) for name in "abcd"]
    for process in writers:
        process.communicate(timeout=60)
    assert len(list(tmp_path.glob("*.corrupt-*"))) == 1
    assert len(runs_kept(tmp_path)) == 20


def test_a_newer_schema_is_left_untouched_and_the_process_goes_on_in_memory(tmp_path: Path) -> None:
    path = filled(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()

    def use() -> None:
        with SqliteStore(tmp_path) as store:
            store.decide(a_job(), a_decision(a_job(), SPACE[3]))
            assert store.decision(a_job()) == a_decision(a_job(), SPACE[3])

    _, told = told_by(use)
    assert len(told) == 1
    assert "schema 99" in told[0]
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.corrupt-*"))


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


def filled_somehow(directory: Path) -> bool:
    with SqliteStore(directory) as store:
        store.decide(a_job(), a_decision(a_job(), SPACE[3]))
        return store.decision(a_job()) == a_decision(a_job(), SPACE[3])


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


# Folders and disks that cannot be written to ----------------------------------------------------------------------------


def as_nobody(function: Callable[[], Any]) -> Any:
    """Run in a child to which permission bits apply: root's own processes pass them by."""

    def dropped() -> Any:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return function()

    return in_child(dropped)


def use_what_is_there(directory: Path) -> tuple[bool, bool]:
    """Whether the decision on disk is found, and one made now is kept in memory."""
    with SqliteStore(directory) as store:
        found = store.decision(a_job()) == a_decision(a_job())
        store.record(a_job(), "run", SPACE[1], a_measurement(), None)
        store.decide(a_job(), a_decision(a_job(), SPACE[3]))
        kept = store.decision(a_job()) == a_decision(a_job(), SPACE[3])
        with store.single_flight(a_job()) as alone:
            return found, kept and alone


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


# Processes --------------------------------------------------------------------------------------------------------------


def test_eight_processes_that_record_at_once_lose_no_row(tmp_path: Path) -> None:
    writers = [writer(tmp_path, str(n), rows=25) for n in range(8)]
    reported = sum(len(process.communicate(timeout=60)[0].split()) for process in writers)
    assert [process.returncode for process in writers] == [0] * 8
    assert reported == 200
    assert sorted(runs_kept(tmp_path)) == sorted(f"{n}-{row}" for n in range(8) for row in range(25))


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_every_row_reported_before_a_kill_is_there_afterwards(tmp_path: Path, journal: str) -> None:
    process = writer(tmp_path, "killed", journal, rows=1_000_000)
    assert process.stdout is not None
    for _ in range(30):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    reported = 30 + len(process.communicate()[0].splitlines())
    assert process.returncode == -signal.SIGKILL
    with SqliteStore(tmp_path) as store:
        assert store.outcomes(a_job(key={"n": 0}))
    assert len(runs_kept(tmp_path)) in (reported, reported + 1)  # one may have been kept and not yet reported


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


def test_warnings_made_errors_leave_the_store_whole(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "store.sqlite3").write_bytes(b"no database, but long enough to look at" * 100)
    with SqliteStore(tmp_path) as store:
        with pytest.raises(StoreWarning):
            store.decide(a_job(), a_decision(a_job()))
        assert store.decision(a_job()) == a_decision(a_job())


# Older schemas ----------------------------------------------------------------------------------------------------------

SAMPLES = Path(__file__).parents[1] / "stores"


def test_there_is_a_sample_of_every_schema() -> None:
    assert {p.name for p in SAMPLES.glob("*.sqlite3")} == {
        f"schema_{version}.sqlite3" for version in range(1, schema.VERSION + 1)
    }


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite3")), ids=lambda p: p.stem)
def test_a_store_of_an_older_schema_is_read_and_goes_on(tmp_path: Path, sample: Path) -> None:
    shutil.copy(sample, tmp_path / "store.sqlite3")
    assert [s.decision.run for s in StoreFile(tmp_path).decisions(superseded=True)] == ["run-2", "run-1"]
    assert (tmp_path / "store.sqlite3").read_bytes() == sample.read_bytes()
    with SqliteStore(tmp_path) as store:
        assert store.decision(a_job()) == a_decision(a_job(), SPACE[1], run="run-2")
        assert set(store.outcomes(a_job())) == set(SPACE[:3])
        store.record(a_job(), "run-3", SPACE[3], a_measurement(), None)
        assert set(store.outcomes(a_job())) == set(SPACE[:4])
    connection = sqlite3.connect(tmp_path / "store.sqlite3")
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    connection.close()


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite3")), ids=lambda p: p.stem)
def test_rows_of_an_older_schema_tell_nothing_of_their_configs_and_new_ones_beside_them_do(
    tmp_path: Path, sample: Path
) -> None:
    shutil.copy(sample, tmp_path / "store.sqlite3")
    older = int(sample.stem.rpartition("_")[2]) < 3
    before = {} if older else {SPACE[1]: {"programs": 64.0, "waves": 0.484848}}
    only_read = StoreFile(tmp_path)
    detail = only_read.detail(only_read.decisions()[0])
    assert {t.config: t.described for t in detail.touched if t.described} == before
    assert only_read.unreadable == []
    assert (tmp_path / "store.sqlite3").read_bytes() == sample.read_bytes()
    with SqliteStore(tmp_path) as store:
        elsewhere = a_job(key={"n": 2})
        (recording,) = store.recollect(elsewhere)
        assert (set(recording.outcomes), recording.described) == (set(SPACE[:3]), before)
        job = replace(a_job(), described=[{"programs": float(i)} for i in range(len(SPACE))])
        store.record(job, "run-3", SPACE[3], a_measurement(), None)
        (recording,) = store.recollect(elsewhere)
        assert set(recording.outcomes) == set(SPACE[:4])
        assert recording.described == {**before, SPACE[3]: {"programs": 3.0}}


def test_a_description_that_is_damaged_is_told_and_its_outcome_stays(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record(a_job(key={"n": 1}), "run", SPACE[0], a_measurement(), None)
    connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
    connection.execute('UPDATE outcome SET described = \'{"programs": "many"}\'')
    connection.close()
    with SqliteStore(tmp_path) as store, pytest.warns(StoreWarning, match="programs 'many': it must be a number"):
        (recording,) = store.recollect(a_job())
    assert (recording.outcomes, recording.described) == ({SPACE[0]: a_measurement()}, {})


def test_a_thousand_rows_take_seconds_not_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    with SqliteStore(tmp_path) as store:
        for number in range(1000):
            store.record(a_job(key={"n": number % 10}), f"run-{number}", SPACE[0], a_measurement(), None)
    assert time.monotonic() - began < 10
