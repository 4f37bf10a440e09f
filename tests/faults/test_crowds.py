"""Many processes and threads on one store."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.crowd import BUDGET, decide
from faults.ledger import Case, Ledger
from faults.stores import ended, heard, in_child, runs_kept, told_by, writer
from faults.victims import kept, tuning
from toy import Toy

from forecast_autotune.distributed.work_sharing import SqliteWorkSharing
from forecast_autotune.processes.machine import usable_cores
from forecast_autotune.store import connection as store_connection
from forecast_autotune.store import database, schema
from forecast_autotune.store.database import open_file
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

SEED = 20261122
LIMIT_S = 120.0  # for a process that is to end
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "stores"
OF_CODE = re.compile(
    r"(?P<place>.+):\d+: (?:Pending)?(?:Deprecation|Future|Import|Syntax|User|Runtime)Warning: (?P<says>.*)"
)

CROWD = "many processes that draw keys and tune what nobody has tuned"
CROWD_SEEN = "one of them tunes a key, the others go on and wait for nothing; no store is ever locked"


# A crowd ----------------------------------------------------------------------------------------------------------------


def member(case: Case, seconds: float, seed: int, journal: str, keys: int) -> subprocess.Popen[str]:
    words = [str(case.store), str(seconds), str(seed), journal, str(keys)]
    # Into files: nobody reads sixty-four pipes.
    out, err = (case.folder / f"{seed}.{kind}" for kind in ("out", "err"))
    environment = {**case.environment, "PYTHONWARNINGS": "always"}
    with out.open("w") as told, err.open("w") as complained:
        return subprocess.Popen(
            [sys.executable, "-m", "faults.crowd", *words],
            env=environment,
            stdout=told,
            stderr=complained,
            text=True,
        )


def all_said(case: Case) -> list[dict[str, Any]]:
    """What all members told, but for a line that a kill has cut short."""
    said = []
    for path in sorted(case.folder.glob("*.out")):
        *whole, cut = path.read_text().split("\n")
        said += [json.loads(line) for line in whole]
        assert not cut or not cut.endswith("}")
    return said


def nobody_complained(case: Case) -> None:
    for path in case.folder.glob("*.err"):
        assert complaints(path.read_text()) == [], path.read_text()[-3000:]


def complaints(said: str) -> list[str]:
    """Lines of a process's stderr, but for warnings that another package gives of its own code, and the code shown."""
    lines = said.splitlines()
    ours = (str(ROOT / "forecast_autotune"), str(ROOT / "tests"), "<string>")
    left, theirs = [], False
    for line in lines:
        found = OF_CODE.match(line)
        if found and not found["place"].startswith(ours) and "forecast_autotune" not in found["says"]:
            theirs = True
        elif not (theirs and line.startswith("  ")):
            theirs = False
            left.append(line)
    return left


def test_a_complaint_is_ours_unless_another_package_warns_of_its_own_code() -> None:
    at = f"{ROOT}/forecast_autotune/measure/probe.py:7"
    theirs = "/lib/torch/utils.py:3: DeprecationWarning: do this instead\n  old()\n<frozen x>:9: ImportWarning: odd\n"
    for line in (
        f"{at}: DeprecationWarning: do this instead",
        "/lib/python3/threading.py:3: StoreWarning: the store cannot be used",
        "<string>:9: ResourceWarning: unclosed database",
        "<string>:9: DeprecationWarning: do this instead",
        "/lib/python3/gc.py:9: ResourceWarning: unclosed database",
        "Traceback (most recent call last):",
    ):
        assert complaints(f"{theirs}{line}\n{theirs}") == [line]


def whole_store(case: Case, killed: Collection[int] = ()) -> dict[int, dict[str, set[str]]]:
    """The configs that each run has recorded, by key; every row of the store is looked at.

    Only processes that were killed leave their names: these say nothing once the job's lock is free.
    """
    file = StoreFile(case.store)
    file.stats()
    file.export(case.folder / "everything.jsonl")
    assert file.unreadable == []
    connection = sqlite3.connect(file.path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        holders = [holder for (holder,) in connection.execute("SELECT holder FROM flight")]
        assert {int(re.findall(r"process (\d+) of", holder)[0]) for holder in holders} <= set(killed), holders
        rows = connection.execute(
            "SELECT json_extract(workload.value, '$.key.n'), runs.value, configs.value FROM outcome"
            " JOIN workload ON workload.id = workload JOIN text AS runs ON runs.id = run"
            " JOIN text AS configs ON configs.id = config"
        ).fetchall()
    finally:
        connection.close()
    found: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for key, run, config in rows:
        found[key][run].add(config)
    return found


def nothing_lost(case: Case, said: list[dict[str, Any]], found: dict[int, dict[str, set[str]]]) -> None:
    kept = [line["kept"] for line in said if "kept" in line]
    lost = [k for k in kept if k[2] not in found.get(k[0], {}).get(k[1], ())]
    case.kept(reported=len(kept), lost=len(lost))
    assert kept
    assert not lost


@pytest.mark.thorough
@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_in_a_crowd_one_tunes_each_key_and_nothing_is_lost(faults: Ledger, tmp_path: Path, journal: str) -> None:
    with faults.case(CROWD, tmp_path, seen=CROWD_SEEN) as case:
        seconds, keys = case.many(short=6, whole=120), case.many(short=60, whole=400)
        crowd = [member(case, seconds, SEED + n, journal, keys) for n in range(case.many(short=12, whole=64))]
        for process in crowd:
            with case.attempt():
                process.wait(timeout=seconds + LIMIT_S)
        nobody_complained(case)
        assert {process.returncode for process in crowd} == {0}
        said, found = all_said(case), whole_store(case)
        nothing_lost(case, said, found)
        assert {key: len(runs) for key, runs in found.items()} == dict.fromkeys(found, 1)
        assert {len(configs) for runs in found.values() for configs in runs.values()} == {BUDGET}
        ends = [line for line in said if "hits" in line]
        assert len(ends) == len(crowd)
        assert not any(line["heavy"] for line in ends)
        hits = sum(line["hits"] for line in ends)
        assert hits
        faults.figures.append(
            f"{journal} journal: {len(crowd)} processes tuned {len(found)} keys and found {hits / seconds:.0f} decisions a "
            f"second, for {seconds} s on {usable_cores()} cores"
        )


COMMANDS = """
import contextlib, io, sys, time
from forecast_autotune.cli import main
pack, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
told = io.StringIO()
while time.monotonic() < until:
    for words in (["list"], ["show", "bowl 1"], ["stats"], ["prune"], ["export", pack], ["import", pack],
                  ["clear", "--kernel", "another", "--yes"], ["pending"], ["skills", "--json"]):
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = main(words)
        if code == 2 and words[0] != "show":  # which may stand for several
            sys.exit(f"{words} ended with {code}: {told.getvalue()[-2000:]}")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_a_crowd_does_not_mind_who_looks_at_the_store_or_tidies_it(
    faults: Ledger, tmp_path: Path, journal: str
) -> None:
    fault = "such a crowd, while every command runs against its store in a loop"
    with faults.case(fault, tmp_path, seen="nothing: the commands do what they say") as case:
        seconds, keys = case.many(short=6, whole=60), case.many(short=60, whole=400)
        crowd = [member(case, seconds, SEED + n, journal, keys) for n in range(case.many(short=8, whole=32))]
        while not (case.store / "store.sqlite3").exists() and crowd[0].poll() is None:
            time.sleep(0.05)
        pack = str(case.folder / "pack.jsonl")
        commands = subprocess.Popen(
            [sys.executable, "-c", COMMANDS, pack, str(seconds)],
            env=case.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in crowd:
            with case.attempt():
                process.wait(timeout=seconds + LIMIT_S)
        with case.attempt():
            told = commands.communicate(timeout=LIMIT_S)[1]
            assert commands.returncode == 0, told
        nobody_complained(case)
        assert {process.returncode for process in crowd} == {0}
        found = whole_store(case)
        nothing_lost(case, all_said(case), found)
        assert {len(runs) for runs in found.values()} == {1}


@pytest.mark.thorough
@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_a_crowd_goes_on_when_its_members_are_killed(faults: Ledger, tmp_path: Path, journal: str) -> None:
    fault = "kill -9 of members of such a crowd, drawn at random, others coming in their place"
    with faults.case(
        fault, tmp_path, seen="another goes on where the killed one was; no config is tried twice"
    ) as case:
        print(f"drawn from the seed {SEED}")
        draw = random.Random(SEED)
        seconds, keys = case.many(short=6, whole=60), case.many(short=200, whole=1000)
        until = time.monotonic() + seconds
        numbers = iter(range(SEED, SEED + 10**6))
        begun = lambda: member(case, max(0.5, until - time.monotonic()), next(numbers), journal, keys)  # noqa: E731
        crowd = [begun() for _ in range(case.many(short=8, whole=32))]
        killed = set()
        while time.monotonic() < until:
            time.sleep(draw.uniform(0.05, 0.5))
            struck = draw.randrange(len(crowd))
            with case.attempt():
                crowd[struck].kill()
                crowd[struck].wait(timeout=LIMIT_S)
            killed.add(crowd[struck].pid)
            crowd[struck] = begun()
        for process in crowd:
            with case.attempt():
                process.wait(timeout=seconds + LIMIT_S)
        nobody_complained(case)
        assert {process.returncode for process in crowd} == {0}
        found = whole_store(case, killed)
        nothing_lost(case, all_said(case), found)
        for runs in found.values():
            tried = Counter(config for configs in runs.values() for config in configs)
            assert max(tried.values()) == 1


# Opening ----------------------------------------------------------------------------------------------------------------


OPENER = """
import sys
from pathlib import Path
from contracts.store_contract import SPACE, a_job, a_measurement
from forecast_autotune.store.sqlite import SqliteStore
directory, name, journal = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with SqliteStore(directory, journal=journal) as store:
    store.record_outcome(a_job(key={"n": 1}), name, SPACE[0], a_measurement(), None)
"""


@contextmanager
def openers(case: Case, count: int, journal: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that wait for a line, and then open the store and record a row."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**case.environment, "PYTHONWARNINGS": "always"}
    with ExitStack() as stack:
        begun = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", OPENER, str(case.store), str(n), journal],
                    env=environment,
                    text=True,
                    **pipes,  # type: ignore[call-overload]
                )
            )
            for n in range(count)
        ]
        for process in begun:
            assert process.stdout.readline() == "ready\n"
        yield begun


@pytest.mark.parametrize("journal", ["wal", "rollback"])
@pytest.mark.parametrize(
    "before",
    ["nothing", *(pytest.param(f"schema_{n}", marks=pytest.mark.thorough) for n in range(1, 5))],
)
def test_processes_that_open_a_store_at_one_moment_make_or_migrate_it_once(
    faults: Ledger, tmp_path: Path, before: str, journal: str
) -> None:
    fault = "many processes that open a store at one moment, a new one or one of an old schema"
    with faults.case(fault, tmp_path, seen="nothing: it is made, or brought up to date, once") as case:
        for _ in range(case.many(short=1, whole=3)):
            shutil.rmtree(case.store, ignore_errors=True)
            old = 0
            if before != "nothing":
                case.store.mkdir(mode=0o700)
                shutil.copyfile(SAMPLES / f"{before}.sqlite3", case.store / "store.sqlite3")
                with closing(sqlite3.connect(case.store / "store.sqlite3")) as connection:
                    (old,) = connection.execute("SELECT count(*) FROM outcome").fetchone()
            count = case.many(short=8, whole=64)
            with case.attempt(), openers(case, count, journal) as begun:
                for process in begun:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                for process in begun:
                    assert complaints(process.communicate(timeout=LIMIT_S)[1]) == []
                    assert process.returncode == 0
            kept = runs_kept(case.store)
            case.kept(reported=count, lost=count - len({run for run in kept if run.isdecimal()}))
            assert len(kept) == old + count
            connection = sqlite3.connect(case.store / "store.sqlite3")
            assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
            connection.close()
            assert list(case.store.glob("*.corrupt-*")) == []


def test_a_process_out_of_file_descriptors_still_launches_and_warns_once(faults: Ledger, tmp_path: Path) -> None:
    fault = "no file descriptor left (RLIMIT_NOFILE)"
    with faults.case(fault, tmp_path, seen="one warning that names the store, then memory alone") as case:
        with SqliteStore(case.store) as store:
            store.record_decision(a_job(), a_decision(a_job()))

        def starved() -> tuple[bool, list[str], bool]:
            import resource

            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
                held = []
                try:
                    while True:
                        held.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    pass
                store = SqliteStore(case.store)
                for number in range(3):
                    store.record_outcome(a_job(key={"n": number}), "starved", SPACE[0], a_measurement(), None)
                store.record_decision(a_job(key={"n": 7}), a_decision(a_job(key={"n": 7})))
                with store.single_flight(a_job()) as alone:
                    kept = store.decision(a_job(key={"n": 7})) is not None
                for number in held:
                    os.close(number)
            return kept, [str(w.message) for w in told], alone

        with case.attempt():
            kept, told, alone = in_child(starved)
        assert kept
        assert alone
        assert len(told) <= 2
        assert any("store.sqlite3 cannot be used" in text for text in told)
        assert "starved" not in runs_kept(case.store)
        with SqliteStore(case.store) as store:
            assert store.decision(a_job()) == a_decision(a_job())


# Threads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 8])
def test_threads_that_miss_a_key_together_tune_it_once(faults: Ledger, tmp_path: Path, keys: int) -> None:
    with faults.case("32 threads of one process on one key, and on 8", tmp_path, seen="each key is tuned once") as case:
        for attempt in range(case.many(short=2, whole=20)):
            with SqliteStore(case.store / str(attempt)) as store, ThreadPoolExecutor(32) as pool, case.attempt():
                begin = threading.Barrier(32)

                def meet(number: int, store: SqliteStore = store, begin: threading.Barrier = begin) -> str:
                    begin.wait(timeout=LIMIT_S)
                    while (found := decide(store, number % keys)).retry_after_s is not None:
                        time.sleep(found.retry_after_s)
                    return found.decision.config.text

                found = list(pool.map(meet, range(32), timeout=LIMIT_S))
            for key in range(keys):
                assert len({config for number, config in enumerate(found) if number % keys == key}) == 1
            runs = Counter(runs_kept(case.store / str(attempt)))
            assert len(runs) == keys
            assert set(runs.values()) == {BUDGET}


# Forks ------------------------------------------------------------------------------------------------------------------

FORK = "a fork: of a process that tunes, of a thread beside it, of a child's child, many at once"
FORK_SEEN = "the child goes on by itself; the parent keeps what it holds"


@pytest.fixture(autouse=True)
def forks_beside_threads(recwarn: pytest.WarningsRecorder) -> None:
    """Python 3.12 warns of them: they are the point."""
    warnings.simplefilter("ignore", DeprecationWarning)


def is_free(case: Case) -> bool:
    """Whether a process of its own could tune the job now."""
    code = (
        "import sys; from contracts.store_contract import a_job; from forecast_autotune.store.sqlite import SqliteStore\n"
        "with SqliteStore(sys.argv[1]) as store, store.single_flight(a_job()) as alone: print(alone)"
    )
    command = [sys.executable, "-c", code, str(case.store)]
    done = subprocess.run(command, env=case.environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert complaints(done.stderr) == []
    return done.stdout == "True\n"


def holders(case: Case) -> int:
    connection = sqlite3.connect(case.store / "store.sqlite3")
    try:
        return int(connection.execute("SELECT count(*) FROM flight").fetchone()[0])
    finally:
        connection.close()


def forked(act: Callable[[], None]) -> int:
    """A child that acts and raises, which leaves every block it is in, as `sys.exit` does; who forks it ends it there."""
    child = os.fork()
    if child == 0:
        act()
        raise _ChildEndsError
    return child


class _ChildEndsError(Exception):
    """Carries a forked child out of the blocks it was forked in."""


@contextmanager
def ends_here() -> Iterator[None]:
    """No child that is forked in it walks on as a second one of these tests; its exit code tells how it came to its end."""
    process = os.getpid()
    code = 1
    try:
        yield
        code = 0
    except _ChildEndsError:
        code = 0
    except BaseException:
        if os.getpid() == process:
            raise
        traceback.print_exc()
    finally:
        if os.getpid() != process:
            os._exit(code)


@pytest.mark.thorough
def test_a_child_forked_during_tuning_neither_holds_the_job_nor_frees_it(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(FORK, tmp_path, seen=FORK_SEEN) as case, SqliteStore(case.store) as store:
        assert store.decision(a_job()) is None  # the file is open
        reading, writing = os.pipe()

        def tell() -> None:
            with store.single_flight(a_job()) as alone:
                os.write(writing, b"held" if alone else b"free")

        for _ in range(case.many(short=2, whole=20)):
            with case.attempt(), store.single_flight(a_job()) as alone:
                assert alone
                with (
                    ends_here(),
                    store.single_flight(a_job(key={"n": 5})),
                    SqliteWorkSharing(store, a_job(), device="gpu").lead("run", 4, None),
                ):
                    assert ended(forked(tell)) == 0
                    assert SqliteWorkSharing(store, a_job(), device="gpu").wanted(), (
                        "the child ended its parent's shared run"
                    )
                assert heard(reading, 9) == b"free"
                assert not is_free(case)
                assert holders(case) == 1
            assert is_free(case)
        os.close(reading)
        os.close(writing)


def test_a_forked_child_that_outlives_its_parent_keeps_nobody_from_tuning(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(FORK, tmp_path, seen=FORK_SEEN) as case:
        SqliteStore(case.store).record_decision(a_job(key={"n": 3}), a_decision(a_job(key={"n": 3})))
        ready, ready_end = os.pipe()
        leave, leave_end = os.pipe()

        def parent() -> None:
            with SqliteStore(case.store) as store, store.single_flight(a_job()) as alone:
                assert alone
                with ends_here():
                    if os.fork() == 0:
                        os.close(leave_end)
                        os.write(ready_end, b"x")
                        heard(leave)
                        os._exit(0)
                os.kill(os.getpid(), 9)

        with case.attempt():
            with ends_here():
                child = os.fork()
                if child == 0:
                    parent()
            assert ended(child) == -9
            assert heard(ready) == b"x"
            free = is_free(case)
            os.close(leave_end)
            assert free
        for end in (ready, ready_end, leave):
            os.close(end)


def test_a_fork_during_another_threads_transaction_leaves_both_sides_whole(
    faults: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_connection, "FORK_WAIT_S", LIMIT_S)  # however slow the disk
    with faults.case(FORK, tmp_path, seen=FORK_SEEN) as case, SqliteStore(case.store) as store:
        stop = threading.Event()
        written = ["parent"]

        def write() -> None:
            while not stop.is_set():
                name = f"parent-{len(written)}"
                store.record_outcome(a_job(), name, SPACE[0], a_measurement(), None)
                written.append(name)
                time.sleep(0.001)

        # Who makes the file takes a lock, and filelock gives none during a fork.
        store.record_outcome(a_job(), "parent", SPACE[0], a_measurement(), None)
        thread = threading.Thread(target=write)
        thread.start()
        children = case.many(short=10, whole=200)
        try:
            for number in range(children):

                def act(number: int = number) -> str:
                    store.record_outcome(a_job(), f"child-{number}", SPACE[0], a_measurement(), None)

                    def grandchild() -> None:
                        store.record_outcome(a_job(), f"grandchild-{number}", SPACE[0], a_measurement(), None)

                    in_child(grandchild)
                    return "done"

                with case.attempt():
                    assert in_child(act) == "done"
        finally:
            stop.set()
            thread.join()
        kept = set(runs_kept(case.store))
        expected = {*written, *(f"{who}-{n}" for n in range(children) for who in ("child", "grandchild"))}
        case.kept(reported=len(expected), lost=len(expected - kept))
        assert kept == expected


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_what_a_child_records_after_its_parent_closed_the_store_is_kept(
    faults: Ledger, tmp_path: Path, journal: str
) -> None:
    with faults.case(FORK, tmp_path, seen=FORK_SEEN) as case:
        for attempt in range(case.many(short=2, whole=20)):
            directory = case.store / str(attempt)
            closed, closed_end = os.pipe()
            began, began_end = os.pipe()
            with case.attempt(), SqliteStore(directory, journal=journal) as store:
                record_one(store, "before")
                with ends_here():
                    child = os.fork()
                    if child == 0:
                        record_one(store, "child, beside its parent")
                        os.write(began_end, b"x")
                        os.close(closed_end)
                        heard(closed)
                        record_one(store, "child, alone")
                        store.close()
                        os._exit(0)
                assert heard(began) == b"x"
                store.close()
                record_there(directory, "another, meanwhile")
                os.close(closed_end)
                assert ended(child) == 0
            for end in (closed, began, began_end):
                os.close(end)
            expected = {"before", "child, beside its parent", "another, meanwhile", "child, alone"}
            kept = set(runs_kept(directory))
            case.kept(reported=len(expected), lost=len(expected - kept))
            assert kept == expected


def record_one(store: SqliteStore, run: str) -> None:
    store.record_outcome(a_job(), run, SPACE[0], a_measurement(), None)


def record_there(directory: Path, run: str) -> None:
    with SqliteStore(directory) as store:
        record_one(store, run)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_many_children_at_once_each_keep_their_row(faults: Ledger, tmp_path: Path, method: str) -> None:
    with faults.case(FORK, tmp_path, seen=FORK_SEEN) as case, SqliteStore(case.store) as store:
        record_one(store, "before")
        context = multiprocessing.get_context(method)
        count = case.many(short=16, whole=64)
        target, first = (record_one, store) if method == "fork" else (record_there, case.store)
        with store.single_flight(a_job()):
            children = [context.Process(target=target, args=(first, f"child-{n}")) for n in range(count)]
            for child in children:
                child.start()
            for child in children:
                with case.attempt():
                    child.join(timeout=LIMIT_S)
                    if child.is_alive():
                        child.kill()
                        raise TimeoutError(f"child {child.pid}")
            assert not is_free(case)
        assert {child.exitcode for child in children} == {0}
        kept = set(runs_kept(case.store))
        expected = {"before", *(f"child-{n}" for n in range(count))}
        case.kept(reported=len(expected), lost=len(expected - kept))
        assert kept == expected


# Together ----------------------------------------------------------------------------------------------------------------


def test_many_processes_set_a_broken_store_aside_once_and_lose_no_row(tmp_path: Path) -> None:
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
        store.record_outcome(a_job(key={"n": 0}), "before", SPACE[0], a_measurement(), None)

        def child() -> bool:
            for number in range(20):
                store.record_outcome(a_job(key={"n": number}), "child", SPACE[0], a_measurement(), None)
            with store.single_flight(a_job()) as alone:
                return alone

        assert in_child(child)
        for number in range(20):
            store.record_outcome(a_job(key={"n": number}), "parent", SPACE[0], a_measurement(), None)
    assert sorted(runs_kept(tmp_path)) == ["before", *["child"] * 20, *["parent"] * 20]


def test_a_fork_while_another_thread_is_in_the_store_leaves_the_child_free(tmp_path: Path) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job()))
        inside, leave = threading.Event(), threading.Event()

        def stay() -> None:
            with store.connection.lock, store.single_flight(a_job(key={"n": 1})):
                inside.set()
                leave.wait()

        thread = threading.Thread(target=stay)
        thread.start()
        inside.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads: the point
            found, told = in_child(lambda: told_by(lambda: store.decision(a_job()) is not None))
        leave.set()
        thread.join()
        assert found
        assert len(told) == 1
        assert (
            "cannot be written to (this process was forked while another thread was busy with it): what it holds is"
            in told[0]
        )


def test_a_fork_while_another_thread_opens_the_store_leaves_the_child_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(tmp_path) as store:
        store.record_decision(a_job(), a_decision(a_job()))
    inside, leave = threading.Event(), threading.Event()

    def open_slowly(path: Path, journal: str) -> sqlite3.Connection:
        connection = open_file(path, journal)
        inside.set()
        leave.wait()
        return connection

    with monkeypatch.context() as patched, SqliteStore(tmp_path) as store:
        patched.setattr(database, "open_file", open_slowly)
        thread = threading.Thread(target=lambda: store.decision(a_job()))
        thread.start()
        inside.wait()
        patched.undo()
        found, told = in_child(lambda: told_by(lambda: store.decision(a_job()) is not None))
        leave.set()
        thread.join()
        assert found
        assert len(told) == 1
        assert (
            "cannot be written to (this process was forked while another thread was busy with it): what it holds is"
            in told[0]
        )
        record_one(store, "parent")
    assert runs_kept(tmp_path) == ["parent"]


class Watched:
    """A lock that keeps how long each was ready to wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.waits_s: list[float] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.waits_s.append(timeout if blocking else 0.0)
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()


def test_of_many_forks_beside_a_thread_waiting_for_a_busy_file_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", LIMIT_S)  # the thread is to wait until all children are there
    with SqliteStore(tmp_path) as store:
        record_one(store, "before")
        connection = sqlite3.connect(tmp_path / "store.sqlite3", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=record_one, args=(store, "waits"))
        thread.start()
        while store.connection.lock.acquire(blocking=False):
            store.connection.lock.release()
            time.sleep(0.01)
        lock = Watched(store.connection.lock)
        with monkeypatch.context() as patched:
            patched.setattr(store.connection, "lock", lock)
            for _ in range(16):
                in_child(lambda: None)
        assert lock.waits_s == [store_connection.FORK_WAIT_S] + [0.0] * 15
        assert thread.is_alive(), "it held the lock all the while"
        connection.execute("ROLLBACK")
        connection.close()
        thread.join()
        monkeypatch.setattr(store_connection, "FORK_WAIT_S", LIMIT_S)
        assert in_child(lambda: told_by(lambda: record_one(store, "child")))[1] == []
    assert sorted(runs_kept(tmp_path)) == ["before", "child", "waits"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_of_processes_that_miss_one_key_one_builds_and_tunes_it(faults: Ledger, toy: Toy, tmp_path: Path) -> None:
    list(toy.compiler().compile([toy.config("plain")]))  # the binding, so that they meet in tuning, not in it
    seen = "nothing: all run the default meanwhile, and then the decision of the one that tunes"
    with (
        faults.case("eight processes that load one extension", tmp_path, seen=seen) as case,
        case.attempt(),
    ):
        crowd = [tuning(case, toy.builds, range(100, 104), 0) for _ in range(case.many(short=4, whole=8))]
        assert {process.end() for process in crowd} == {0}
        assert all(process.result["right"] for process in crowd)
        tuned = [process for process in crowd if process.numbers("times")]
        assert len(tuned) == 1
        assert len({process.result["run"] for process in crowd}) == 1
        case.kept(reported=4, lost=len(set(tuned[0].numbers("kept")) - set(kept(case.store))))
