from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, StoreContract, a_decision, a_job, a_measurement
from faults.stores import in_child, told_by

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.errors import InvalidInputError, StoreWarning
from forecast_autotune.features.likeness import SOURCES
from forecast_autotune.settings import Settings
from forecast_autotune.store import database, encoding, filesystem, process_hooks, recordings, schema, textfile
from forecast_autotune.store.database import connect
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.rows import TuningKey
from forecast_autotune.store.sqlite import MAX_OPEN, SqliteStore, open_local_store
from forecast_autotune.surrogates.transfer import most_alike


class TestFile(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqliteStore]:
        with SqliteStore(tmp_path / "store") as store:
            yield store
        assert journal_of(tmp_path / "store") in ("wal", None)


class TestInMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[SqliteStore]:
        with SqliteStore.in_memory() as store:
            yield store


class TestRollbackJournal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqliteStore]:
        with SqliteStore(tmp_path / "store", journal="rollback") as store:
            yield store
        assert journal_of(tmp_path / "store") in ("delete", None)


class TestWithAPackBehindIt(StoreContract):
    """A pack is only read: what it says of another program changes nothing."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqliteStore]:
        pack = a_pack(tmp_path, a_job(name="packed"), SPACE[2])
        with SqliteStore(tmp_path / "store", packs=[pack]) as store:
            yield store
            assert store.decision(a_job(name="packed")) is not None


def test_a_pack_is_asked_for_other_constexprs_too(tmp_path: Path) -> None:
    packed, asked = (a_job(key={"n": 1, "given constexprs": {"D": size}}) for size in (64, 512))
    with SqliteStore(None, packs=[a_pack(tmp_path, packed, SPACE[2])]) as store:
        assert store.decision(asked) is None
        found = store.decision_for_any_constexprs(asked)
    assert found is not None
    assert (found.config, found.rests_on_outcomes) == (SPACE[2], False)


@pytest.mark.parametrize("packed", [False, True])
def test_no_key_but_those_that_differ_in_constexprs_alone_is_read_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    def of_size(n: int, size: int) -> Job:
        return a_job(key={"n": n, "given constexprs": {"D": size}})

    with SqliteStore(tmp_path / "made") as made:
        for n in range(20):
            made.record_decision(of_size(n, 64), a_decision(of_size(n, 64), SPACE[n % 2]))
    StoreFile(tmp_path / "made").export(tmp_path / "pack")
    read: list[object] = []
    with SqliteStore(None, packs=[tmp_path / "pack"]) if packed else SqliteStore(tmp_path / "made") as store:
        assert store.decision(of_size(0, 64)) is not None
        decode = encoding.decode_workload
        monkeypatch.setattr(encoding, "decode_workload", lambda *given: read.append(given) or decode(*given))
        assert store.decision_for_any_constexprs(of_size(100, 512)) is None
        assert store.decision_for_any_constexprs(a_job(key={"n": 1})) is None
        assert read == []
        found = store.decision_for_any_constexprs(of_size(7, 512))
    assert found is not None
    assert found.config == SPACE[1]
    assert len(read) == 1


def test_what_a_pack_knows_is_read_without_making_a_file(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store", packs=[a_pack(tmp_path, a_job(), SPACE[2])]) as store:
        assert store.decision(a_job()) is not None
        assert store.outcomes(a_job())
    assert not (tmp_path / "store").exists()


class TestTwoStoresOnOneFile(StoreContract):
    """Each call goes to the other one in turn, as two processes would."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[object]:
        stores = [SqliteStore(tmp_path / "store") for _ in range(2)]

        class Either:
            turn = 0

            def __getattr__(self, name: str) -> object:
                self.turn += 1
                return getattr(stores[self.turn % 2 if name != "single_flight" else 0], name)

        yield Either()
        for store in stores:
            store.close()


def journal_of(directory: Path) -> str | None:
    if not (directory / "store.sqlite3").exists():
        return None
    connection = sqlite3.connect(directory / "store.sqlite3")
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def test_what_was_kept_is_there_after_closing(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(), "run", SPACE[0], a_measurement(), None)
        store.record_decision(a_job(), a_decision(a_job()))
    with SqliteStore(tmp_path) as store:
        assert store.outcomes(a_job()) == {SPACE[0]: a_measurement()}
        assert store.decision(a_job()) == a_decision(a_job())
        assert [c.config for c in [store.decision(a_job())] if c] == [SPACE[1]]


def test_nothing_is_made_before_the_first_call(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "store").close()
    assert not (tmp_path / "store").exists()


def test_folder_and_files_are_private(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "new" / "store") as store, store.single_flight(a_job()):
        store.record_decision(a_job(), a_decision(a_job()))
        files = [p for p in (tmp_path / "new" / "store").rglob("*") if p.is_file()]
        assert {p.name for p in files} >= {"store.sqlite3", "store.sqlite3-wal", "store.sqlite3-shm"}
        assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "new" / "store").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "new" / "store" / "locks").stat().st_mode) == 0o700


def test_the_forecast_before_the_first_outcome_of_a_run_stays(tmp_path: Path) -> None:
    before, after = Forecast.normal(0.0, 1.0, source="x"), Forecast.normal(0.5, 0.1, source="x")
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(), "run", SPACE[1], a_measurement(20.0), before)
        store.record_outcome(a_job(), "run", SPACE[1], a_measurement(10.0), after)
        store.record_decision(a_job(), a_decision(a_job()))
    detail = StoreFile(tmp_path).detail(StoreFile(tmp_path).find("rmsnorm")[0])
    assert [(t.outcome, t.forecast) for t in detail.touched] == [(a_measurement(10.0), before)]


def a_pack(path: Path, job: Job, config: Config) -> Path:
    """A pack with one decision."""
    with SqliteStore(path / "made") as store:
        store.record_decision(job, a_decision(job, config))
        store.record_outcome(job, "run-1", SPACE[0], a_measurement(10.0 + SPACE.index(config)), None)
    StoreFile(path / "made").export(path / "pack.jsonl")
    return path / "pack.jsonl"


def test_a_pack_for_this_toolchain_beats_a_stored_decision_for_another(tmp_path: Path) -> None:
    older = a_job(toolchain=Toolchain(versions={"triton": "2.0.0"}))
    packs = [a_pack(tmp_path / "exact", a_job(), SPACE[2]), a_pack(tmp_path / "older", older, SPACE[4])]
    found = []
    for given in (packs, packs[1:], []):
        with SqliteStore(tmp_path / f"with {len(given)}", packs=given, toolchain="any") as store:
            store.record_decision(older, a_decision(older, SPACE[3]))
            found.append(store.decision(a_job()))
    assert [d.config for d in found if d] == [SPACE[2], SPACE[3], SPACE[3]]
    with SqliteStore(tmp_path / "nothing", packs=packs[1:], toolchain="any") as store:
        assert (held := store.decision(a_job())) is not None
        assert held.config == SPACE[4]


def test_of_packs_that_say_different_things_at_equal_times_the_first_holds(tmp_path: Path) -> None:
    packs = [a_pack(tmp_path / name, a_job(), SPACE[n]) for n, name in ((2, "mine"), (3, "base"))]
    found = {}
    for order in (packs, packs[::-1]):
        with SqliteStore(tmp_path / "store", packs=order) as store:
            held = store.decision(a_job())
            found[order[0].parent.name] = held and held.config
    assert found == {"mine": SPACE[2], "base": SPACE[3]}


def test_any_toolchain_will_do_when_asked_for_but_its_own_is_better(tmp_path: Path) -> None:
    older = a_job(toolchain=Toolchain(versions={"triton": "3.0.0"}))
    with SqliteStore(tmp_path, toolchain="any") as store:
        store.record_decision(older, a_decision(older, SPACE[4], decided_at=1_900_000_000.0))
        assert store.decision(a_job()) == a_decision(a_job(), SPACE[4], decided_at=1_900_000_000.0)
        store.record_decision(a_job(), a_decision(a_job(), SPACE[2]))
        assert store.decision(a_job()) == a_decision(a_job(), SPACE[2])
        assert store.decision(a_job(key={"n": 1})) is None


def test_a_recall_writes_nothing_until_there_is_something_to_write(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job(), decided_at=time.time()))
    with SqliteStore(tmp_path) as store:
        before = (tmp_path / "store.sqlite3").read_bytes()
        for _ in range(3):
            store.decision(a_job())
        assert (tmp_path / "store.sqlite3").read_bytes() == before
        assert (tmp_path / "store.sqlite3-wal").stat().st_size == 0
    assert StoreFile(tmp_path).stats().hits == 1  # one process that had it not in memory


def test_a_decision_long_in_use_is_seen_at_once(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job(), decided_at=time.time() - 2 * 86_400))
        store.decision(a_job())
        assert StoreFile(tmp_path).stats().hits == 1


def test_packs_are_looked_up_after_the_store(tmp_path: Path) -> None:
    other = a_job(key={"n": 1})
    with SqliteStore(tmp_path / "a") as store:
        for job in (a_job(), other):
            store.record_outcome(job, "run", SPACE[0], a_measurement(), None)
            store.record_outcome(job, "run", SPACE[1], a_measurement(5.0), None)
            store.record_decision(job, a_decision(job))
    pack = tmp_path / "pack.jsonl.gz"
    StoreFile(tmp_path / "a").export(pack)
    with SqliteStore(tmp_path / "b", packs=[pack]) as store:
        assert store.decision(other) == a_decision(other)
        store.record_decision(other, a_decision(other, SPACE[5]))
        assert store.decision(other) == a_decision(other, SPACE[5])
        store.record_outcome(a_job(), "run-2", SPACE[0], a_measurement(30.0), None)
        brought = a_measurement(5.0).scaled(3.0)  # on the scale of the store's own default
        assert store.outcomes(a_job()) == {SPACE[0]: a_measurement(30.0), SPACE[1]: brought}
        assert [r.workload.key for r in store.related_recordings(a_job())] == [{"n": 1}]
    assert StoreFile(tmp_path / "b").find("rmsnorm")[0].decision == a_decision(other, SPACE[5])


@pytest.mark.parametrize("text", [None, "", "{}\n", '{"schema":"forecast_autotune.store","version":1}\n{"line":\n'])
def test_a_pack_that_cannot_be_read_is_left_out_with_one_warning(tmp_path: Path, text: str | None) -> None:
    pack = tmp_path / "pack.jsonl"
    if text is not None:
        pack.write_text(text)
    with SqliteStore(tmp_path / "store", packs=[pack]) as store:
        with pytest.warns(StoreWarning, match=r"pack .*pack\.jsonl is left out") as told:
            assert store.decision(a_job()) is None
        assert len(told) == 1
        store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job(key={"n": 2})) is None


def test_related_recordings_stop_at_a_limit_and_begin_with_the_closest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "RELATED_OUTCOMES", 3)
    with SqliteStore(tmp_path) as store:
        for job in (a_job(key={"n": 2048}), a_job(key={"n": 256}), a_job(key={"n": 512}, source="older")):
            store.record_outcome(job, "run", SPACE[0], a_measurement(), None)
            store.record_outcome(job, "run", SPACE[1], a_measurement(), None)
        found = store.related_recordings(a_job())
        assert [(r.workload.key["n"], list(r.outcomes)) for r in found] == [(2048, list(SPACE[:2])), (256, [SPACE[0]])]
        monkeypatch.setattr(recordings, "KEYS_COMPARED", 1)
        assert [r.workload.key["n"] for r in store.related_recordings(a_job())] == [256], (
            "the newest of the same source"
        )


def test_of_many_recordings_those_that_forecasts_read_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[TuningKey] = []

    def recording_at(connection: Any, tuning_key: TuningKey, *arguments: Any, **options: Any) -> Any:
        decoded.append(tuning_key)
        return decode(connection, tuning_key, *arguments, **options)

    decode = recordings.recording_at
    monkeypatch.setattr(recordings, "recording_at", recording_at)
    a100 = Hardware(kind="cuda", name="NVIDIA A100", units=108)
    with SqliteStore(tmp_path) as store:
        for octave in range(1, 40):
            job = a_job(key={"n": 2**octave}, **({} if octave % 3 == 1 else {"source": "older"}))
            store.record_outcome(job, "run", SPACE[0], a_measurement(20.0), None)
            store.record_outcome(replace(job, hardware=a100), "run", SPACE[0], a_measurement(), None)
        found = store.related_recordings(a_job())
        assert len(found) == len(decoded) == SOURCES
        assert [recording for _, recording in most_alike(a_job(), found)] == found
        monkeypatch.setattr(recordings, "SOURCES", 1_000)
        every = store.related_recordings(a_job())
    assert len(every) == 78
    assert [recording for _, recording in most_alike(a_job(), every)] == found


def test_a_recording_of_the_own_product_is_among_those_of_many_others(tmp_path: Path) -> None:
    a100 = Hardware(kind="cuda", name="NVIDIA A100", units=108)
    far = {f"x{number}": "other" for number in range(9)}  # a key as far away as can be
    with SqliteStore(tmp_path) as store:
        store.record_outcome(a_job(key=far, source="older"), "run", SPACE[0], a_measurement(), None)
        for number in range(SOURCES + 2):
            job = a_job(hardware=a100, key={"n": 4096 + number})
            store.record_outcome(job, "run", SPACE[0], a_measurement(), None)
        found = store.related_recordings(a_job())
    assert [r.hardware.name for r in found] == ["NVIDIA A100"] * SOURCES + ["NVIDIA H200"]


def test_one_store_for_each_folder_in_a_process_and_none_in_mode_forecast(tmp_path: Path) -> None:
    settings = Settings(dir=tmp_path)
    assert open_local_store(settings) is open_local_store(Settings(dir=tmp_path))
    assert open_local_store(settings) is not open_local_store(replace(settings, toolchain="any"))
    with open_local_store(replace(settings, mode="forecast")) as store:
        assert store.path is None
    open_local_store(settings).close()


def test_the_last_few_stores_stay_open_and_the_others_open_again(tmp_path: Path) -> None:
    job = a_job()
    stores = [open_local_store(Settings(dir=tmp_path / str(number))) for number in range(MAX_OPEN + 3)]
    for number, store in enumerate(stores):
        assert open_local_store(Settings(dir=tmp_path / str(number))) is store
        store.record_decision(job, a_decision(job))
        store.note_pending(a_job(key={"n": 5}), "not allowed")
    assert [store.connection.is_open for store in stores] == [False] * 3 + [True] * MAX_OPEN
    assert all(store.decision(job) for store in stores)
    assert [len(StoreFile(tmp_path / str(number)).pending()) for number in range(len(stores))] == [1] * len(stores)
    for store in stores:
        store.close()


def test_a_store_does_not_rest_while_it_is_used_or_only_in_memory(busy_thread: SqliteStore, tmp_path: Path) -> None:
    busy_thread.connection.rest()
    assert busy_thread.connection.is_open
    (tmp_path / "file").write_text("")
    with SqliteStore(tmp_path / "file") as in_memory:
        with pytest.warns(StoreWarning):
            in_memory.record_decision(a_job(), a_decision(a_job()))
        in_memory.connection.rest()
        assert in_memory.decision(a_job()) == a_decision(a_job())


def test_a_store_whose_folder_is_gone_rests_too(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "gone") as store:
        store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job())  # which is counted later
        shutil.rmtree(tmp_path / "gone")
        store.connection.rest()
        assert not store.connection.is_open


@pytest.mark.parametrize("wrong", [{"toolchain": "some"}, {"journal": "off"}])
def test_an_unknown_word_is_refused_with_the_accepted_ones(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="accepted are"):
        SqliteStore(tmp_path, **wrong)  # type: ignore[arg-type]


def test_a_network_filesystem_gets_a_rollback_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda _: "nfs4")
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job()))
        assert journal_of(tmp_path) == "delete"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mount points are read from /proc")
def test_the_filesystem_of_a_path_is_known() -> None:
    assert filesystem.filesystem_type(Path("/proc/self")) == "proc"
    assert filesystem.filesystem_type(Path("/no/such/folder")) == filesystem.filesystem_type(Path("/"))


def test_opening_is_quick_and_pulls_in_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; import forecast_autotune.store.sqlite as s; assert 'sqlite3' not in sys.modules;"
        "s.SqliteStore.in_memory().close(); print(sorted({'torch', 'triton', 'numpy', 'rich'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_a_store_made_by_another_process_while_it_is_looked_at_is_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    connection, other = connect(str(path)), connect(str(path))
    connection.execute("PRAGMA journal_mode = wal")

    class Slow:
        """The other process is done just before the last of the three looks."""

        in_transaction = False

        def execute(self, statement: str) -> sqlite3.Cursor:
            if "sqlite_master" in statement:
                schema.migrate(other)
            return connection.execute(statement)

    assert schema.version_of(Slow()) == 0  # type: ignore[arg-type]
    assert schema.version_of(connection) == schema.VERSION
    connection.close()
    other.close()


def test_an_interrupt_while_a_fork_waits_leaves_no_store_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sorted((SqliteStore(tmp_path / name) for name in "ab"), key=id)
    monkeypatch.setattr(process_hooks, "_stores", lambda: [second, first])

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

        def release(self) -> None:
            raise RuntimeError("cannot release un-acquired lock")

    with monkeypatch.context() as patched:
        patched.setattr(second.connection, "lock", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            process_hooks._before_fork()  # Python prints it, and goes on with the fork
        process_hooks._after_fork_in_parent()
    for store in (first, second):
        with ThreadPoolExecutor(1) as another:
            assert another.submit(store.connection.lock.acquire, blocking=False).result()
            another.submit(store.connection.lock.release).result()


@pytest.fixture
def busy_thread(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store that another thread is inside of: who is forked now has inherited an open file."""
    inside, leave = threading.Event(), threading.Event()
    with SqliteStore(tmp_path, journal="rollback") as store:
        store.record_decision(a_job(), a_decision(a_job()))

        def stay() -> None:
            with store.connection.lock:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=stay)
        thread.start()
        inside.wait()
        yield store
        leave.set()
        thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads: the point
@pytest.mark.parametrize("used", [False, True])
def test_a_childs_child_uses_the_inherited_file_as_little(busy_thread: SqliteStore, used: bool) -> None:
    def use() -> bool:
        told_by(lambda: busy_thread.decision(a_job()))
        return busy_thread.connection.in_memory

    def child() -> tuple[bool, bool]:
        return not used or use(), in_child(use)

    assert in_child(child) == (True, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_inherited_a_file_does_not_wait_for_its_writer(
    busy_thread: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SNAPSHOT_S", 0.1)
    other = sqlite3.connect(busy_thread.path or "", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    def child() -> float:
        began = time.monotonic()
        told_by(lambda: busy_thread.decision(a_job()))
        return time.monotonic() - began

    assert in_child(child) < database.BUSY_S / 2
    other.execute("ROLLBACK")
    other.close()


def test_stores_are_listed_while_another_thread_makes_some(tmp_path: Path) -> None:
    begun, leave = threading.Event(), threading.Event()

    def make() -> None:
        while not leave.is_set():
            made = [SqliteStore(tmp_path) for _ in range(100)]
            begun.set()
            del made

    thread = threading.Thread(target=make)
    thread.start()
    begun.wait()
    try:
        with SqliteStore(tmp_path) as kept:
            for _ in range(2_000):
                assert kept in process_hooks._stores()
    finally:
        leave.set()
        thread.join()


def test_an_export_avoids_a_foreseeable_name_that_somebody_took(tmp_path: Path) -> None:
    taken = tmp_path / f".out.jsonl.{os.getpid()}"
    taken.write_text("another's")
    textfile.write_lines(tmp_path / "out.jsonl", ["ours"])
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"out.jsonl": "ours\n", taken.name: "another's"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no folder can be made in /proc")
def test_a_home_that_takes_no_folder_is_told_by_its_variable() -> None:
    with pytest.warns(StoreWarning, match=r"no folder can be made in /proc: .*FORECAST_AUTOTUNE_DIR.*HOME"):
        SqliteStore(Path("/proc/.cache/forecast_autotune")).record_decision(a_job(), a_decision(a_job()))


@pytest.mark.parametrize("folder", ["/proc/self/fd", "fd"])
def test_a_link_that_every_program_needs_is_not_replaced(tmp_path: Path, folder: str) -> None:
    stdout = tmp_path / "stdout"
    (tmp_path / "fd").symlink_to("/proc/self/fd")
    with (tmp_path / "redirected").open("w") as opened:
        stdout.symlink_to(f"{folder}/{opened.fileno()}")  # as /dev/stdout is
        with pytest.raises(InvalidInputError, match="no plain file"):
            textfile.write_lines(stdout, ["ours"])
    assert stdout.is_symlink()


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/out.jsonl'"):
        textfile.write_lines(tmp_path / "out.jsonl", ["ours"])
    assert list(tmp_path.iterdir()) == []


def test_without_agreement_everybody_flies_at_once(tmp_path: Path) -> None:
    settings = [Settings(dir=tmp_path, sync=sync) for sync in ("store", "none")]
    waiting, hurrying = map(open_local_store, settings)
    assert waiting is not hurrying
    with waiting.single_flight(a_job()) as first, hurrying.single_flight(a_job()) as second:
        assert (first, second) == (True, True)


def test_the_log_says_who_tunes_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteStore(tmp_path) as holder, SqliteStore(tmp_path) as other:
        assert holder.decision(a_job()) is None
        with holder.single_flight(a_job()), caplog.at_level(logging.INFO), other.single_flight(a_job()) as alone:
            assert not alone
    (told,) = [r.getMessage() for r in caplog.records if "is being tuned by" in r.getMessage()]
    assert f"process {os.getpid()} of " in told
    assert "rmsnorm(n=4096)" in told
