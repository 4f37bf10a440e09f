"""Processes that are killed, frozen and interrupted while a tuning runs."""

from __future__ import annotations

import ctypes
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from contracts.store_contract import a_job
from faults.ledger import Case, Ledger
from faults.stores import (
    runs_kept,
    writer,
)
from faults.victims import TRITON, Tuning, begin, kept, strike, tuning, wait_until_gone
from toy import Toy

from forecast_autotune.core.config import Config
from forecast_autotune.store.sqlite import SqliteStore

SEED = 20261121
CACHED = range(6)  # numbers of variants that are built once: kills among them fall into timing

PARENT = "kill -9 of the process that tunes, at a moment drawn at random"
PARENT_SEEN = "the next run starts and goes on where this one was"
CHILD = "kill -9 of the process that forks workers, of a worker, of a compiler, at a moment drawn at random"
CHILD_SEEN = "nothing: it is tried once more; killed again, a warning, and the default is run"
GAVE_UP = "its first config is run: WorkersUnavailableError"


@pytest.fixture(scope="module")
def builds(toy: Toy) -> Path:
    """The toy's builds, with the variants `CACHED` in it."""
    configs = [Config({"MODE": "slow" if n % 3 else "plain", "NUMBER": n}) for n in CACHED]
    list(toy.compiler().compile(configs))
    return toy.builds


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    seed = f"{SEED} {request.node.name}"
    print(f"drawn from the seed {seed!r}")
    return random.Random(seed)


def fresh(draw: random.Random, count: int) -> list[int]:
    """Numbers of variants that nobody has built."""
    return [draw.randrange(10**6, 10**9) * 1000 + time.time_ns() % 1000 for _ in range(count)]


def held_to(case: Case, ended: Tuning, numbers: Sequence[int], key: int) -> None:
    """A tuning has come to its end: right, on a config of the space, with nothing held against any."""
    assert ended.end() == 0, (ended.said[-5:], ended.errors[-30:])
    assert ended.result["right"]
    if "config" in ended.result:
        assert ended.result["config"]["NUMBER"] in numbers
    said = sum(GAVE_UP in line for line in ended.errors)
    assert said == ("config" not in ended.result), ("without any worker it gives up and says so, once", ended.errors)
    for number, outcomes in kept(case.store, key).items():
        for outcome in outcomes:
            assert "samples_us" in outcome or outcome.get("transient"), (number, outcome)


def attempted(case: Case, running: Tuning, victim: str, draw: random.Random) -> bool:
    """Whether a process was hit; only then it was an attempt."""
    with case.attempt():
        hit = strike(case, running, victim, draw)
    case.row.attempts -= not hit
    return hit


@pytest.mark.parametrize("journal", ["wal", "rollback"])
def test_every_row_reported_before_a_kill_is_there_afterwards(faults: Ledger, tmp_path: Path, journal: str) -> None:
    seen = "the next process finds every row that was reported"
    with faults.case("kill -9 of a process that writes to the store", tmp_path, seen=seen) as case:
        for _ in range(case.many(short=1, whole=20)):
            with case.attempt():
                name = f"{journal}{case.row.attempts}"
                process = writer(case.store, name, journal, rows=1_000_000)
                assert process.stdout is not None
                with process.stdout:
                    for _ in range(30):
                        process.stdout.readline()
                    process.kill()
                    reported = 30 + sum(1 for _ in process.stdout)
                assert process.wait(timeout=60) == -signal.SIGKILL
            with SqliteStore(case.store) as store:
                assert store.outcomes(a_job(key={"n": 0}))
            there = sum(run.startswith(f"{name}-") for run in runs_kept(case.store))
            case.kept(reported=reported, lost=max(0, reported - there))
            assert there in (reported, reported + 1)  # one may have been kept and not yet reported


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["timing", "building"])
def test_a_tuning_killed_at_any_moment_is_finished_by_the_next_one(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random, what: str
) -> None:
    with faults.case(PARENT, tmp_path, seen=PARENT_SEEN) as case:
        for key in range(case.many(short=1, whole=12)):
            numbers = list(CACHED) if what == "timing" else fresh(draw, 4)
            reported: set[int] = set()
            for _ in range(case.many(short=1, whole=3)):
                with case.attempt():
                    running = tuning(case, builds, numbers, key)
                    assert running.hears_until("ready")
                    for _ in range(draw.randint(1, 3 * len(numbers))):
                        if running.hears() is None:
                            break
                    time.sleep(draw.uniform(0.0, 0.5))
                    running.process.kill()
                    running.end()
                    wait_until_gone(case)
                again = set(running.numbers("times")) & reported
                assert again <= {numbers[0]}, "of what was measured before, the default alone is timed once more"
                now = set(running.numbers("kept"))
                lost = (reported | now) - set(kept(case.store, key))
                case.kept(reported=len(now), lost=len(lost))
                assert not lost, (lost, running.said[-40:], running.errors[-20:])
                reported |= now
            with case.attempt():
                last = tuning(case, builds, numbers, key)
                held_to(case, last, numbers, key)
                assert set(last.numbers("times")) & reported <= {numbers[0]}
            assert set(kept(case.store, key)) == set(numbers)
            assert last.result["config"]["NUMBER"] % 3 == 0 or what == "building"


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("victim", "what"),
    [
        ("fork server", "timing"),
        ("worker", "timing"),
        ("fork server", "building"),
        ("worker", "building"),
        ("tool", "building"),
    ],
)
def test_a_child_killed_at_any_moment_is_held_against_no_config(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random, victim: str, what: str
) -> None:
    with faults.case(CHILD, tmp_path, seen=CHILD_SEEN) as case:
        for key in range(case.many(short=1, whole=9)):
            numbers = list(CACHED) if what == "timing" else fresh(draw, 5)
            running = tuning(case, builds, numbers, key)
            assert running.hears_until("times" if what == "timing" else "builds")
            hits = 0
            for times in range(3):
                running.hears_until("kept", times)  # one that is killed twice in a row is given up, and rightly so
                # The first one while there is surely something to hit.
                time.sleep(draw.uniform(0.0, 0.5) if times else 0.0)
                hits += attempted(case, running, victim, draw)
            assert hits, "it ended before anything was hit"
            held_to(case, running, numbers, key)
            case.kept(
                reported=len(set(running.numbers("kept"))),
                lost=len(set(running.numbers("kept")) - set(kept(case.store, key))),
            )
            wait_until_gone(case)


# Under nohup, what is started is deaf to a terminal that closes.
HEEDS_HANGUPS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"

ENDS = {
    "Control-C": ([signal.SIGINT], "KeyboardInterrupt"),
    "Control-C twice in a row": ([signal.SIGINT, signal.SIGINT], "KeyboardInterrupt"),
    "SIGTERM": ([signal.SIGTERM], ""),
    "a terminal that is closed (SIGHUP)": ([signal.SIGHUP], ""),
}


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", ENDS)
def test_a_tuning_asked_to_end_does_so_at_once_and_keeps_what_it_has(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random, end: str
) -> None:
    signals, error = ENDS[end]
    with faults.case(end, tmp_path, seen="it ends at once; the next run goes on where it was") as case:
        for key in range(case.many(short=1, whole=8)):
            for again in range(5):
                numbers = [*CACHED, *fresh(draw, 6)]
                with case.attempt():
                    running = tuning(case, builds, numbers, key + 1000 * again, first=HEEDS_HANGUPS)
                    assert running.hears_until("builds" if key % 2 else "times")
                    for _ in range(draw.randint(0, 2)):
                        running.hears()
                    for number in signals:
                        running.process.send_signal(number)
                        time.sleep(draw.uniform(0.0, 0.1))
                    code = running.end()
                    wait_until_gone(case)
                if code != 0:
                    break
                # Python tells of an interrupt that comes to a hook or a destructor, and goes on: nothing has heard it.
                assert error, "a signal that ends a process ended none"
                assert any("Exception ignored" in line for line in running.errors), running.errors[-5:]
            assert code != 0, "no interrupt is ever heeded"
            assert not error or any(error in line for line in running.errors), running.errors[-5:]
            reported = set(running.numbers("kept"))
            lost = reported - set(kept(case.store, key + 1000 * again))
            case.kept(reported=len(reported), lost=len(lost))
            assert not lost, (lost, running.said[-40:], running.errors[-20:])


SHORT_LIMITS = (
    "from forecast_autotune.processes import worker; from forecast_autotune.measure import isolated;"
    " isolated.LOAD_TIMEOUT_S = isolated.DEFAULT_TIMEOUT_S = isolated.TIMEOUT_FLOOR_S = 6.0; worker.START_S = 20.0;"
    " CppCompiler.__init__.__kwdefaults__['timeout_s'] = 15.0"
)


FROZEN = (("worker", "timing"), ("fork server", "timing"), ("worker", "building"), ("tool", "building"))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_child_that_freezes_is_ended_by_its_time_limit(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random
) -> None:
    seen = "the run goes on after the time limit; without any worker, a warning and the default"
    with faults.case("a child process that is frozen (SIGSTOP)", tmp_path, seen=seen) as case:
        for key, (victim, what) in enumerate(FROZEN[: case.many(short=1, whole=4)]):
            with case.attempt():
                numbers = list(CACHED) if what == "timing" else fresh(draw, 3)
                running = tuning(case, builds, numbers, key, first=SHORT_LIMITS)
                assert running.hears_until("times" if what == "timing" else "builds", 2)
                assert strike(case, running, victim, draw, signal.SIGSTOP)
                assert running.end() == 0, running.errors[-20:]
                assert running.result["right"]
                wait_until_gone(case)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_another_caller_of_the_key_takes_over_when_the_tuner_is_killed(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random
) -> None:
    seen = "one of those goes on where it was, the others take its decision"
    with faults.case("kill -9 of the process that tunes a key that others call", tmp_path, seen=seen) as case:
        for key in range(case.many(short=1, whole=5)):
            with case.attempt():
                leader = tuning(case, builds, list(CACHED), key)
                assert leader.hears_until("kept")
                waiting = [tuning(case, builds, list(CACHED), key) for _ in range(2)]
                leader.process.send_signal(signal.SIGSTOP)  # so that it still tunes when they are there
                assert all(w.hears_until("ready") for w in waiting)
                time.sleep(draw.uniform(0.0, 1.0))
                leader.process.kill()
                leader.end()
                for process in waiting:
                    held_to(case, process, list(CACHED), key)
            timed = [w for w in waiting if w.numbers("times")]
            assert len(timed) <= 1
            assert len({w.result["run"] for w in waiting}) == 1
            reported = set(leader.numbers("kept"))
            again = {n for w in timed for n in w.numbers("times")} & reported
            assert again <= {CACHED[0]}, "only the default, by which earlier times are compared with this run's"
            case.kept(reported=len(reported), lost=len(reported - set(kept(case.store, key))))
            wait_until_gone(case)


@pytest.fixture
def adopting() -> Iterator[None]:
    """Make this process inherit what killed processes leave, as the first process of a container does."""
    prctl, subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(subreaper, 1, 0, 0, 0) == 0
    yield
    assert prctl(subreaper, 0, 0, 0, 0) == 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("adopting")
@pytest.mark.parametrize("moment", ["paused", "kept", "ready"])
def test_a_killed_triton_tuning_leaves_no_worker_and_the_next_finishes_it(
    faults: Ledger, tmp_path: Path, draw: random.Random, moment: str
) -> None:
    with faults.case(PARENT, tmp_path, seen=PARENT_SEEN) as case:
        for number in range(case.many(short=1, whole=4)):
            extra = {"TRITON_CACHE_DIR": str(case.folder / f"triton-{number}")}
            if case.store.exists():
                shutil.rmtree(case.store)
            reported: set[int] = set()
            for _ in range(case.many(short=1, whole=3)):
                with case.attempt():
                    running = begin(case, TRITON, extra=extra)
                    running.hears_until(moment, draw.randint(1, 8) if moment == "kept" else 1)
                    time.sleep(draw.uniform(0.0, 1.5 if moment == "ready" else 0.05))
                    running.process.kill()
                    running.end()
                    wait_until_gone(case)
                assert not case.files_left()
                reported |= set(running.numbers("kept"))
                lost = reported - set(kept(case.store))
                case.kept(reported=len(running.numbers("kept")), lost=len(lost))
                assert not lost, (lost, running.said[-40:], running.errors[-20:])
            with case.attempt():
                last = begin(case, TRITON, extra=extra)
                assert last.end() == 0, last.errors[-20:]
            assert last.result["config"]["BLOCK"] == 256


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["fork server", "worker", "tool"])
def test_a_compile_worker_or_ptxas_killed_anytime_counts_against_no_config(
    faults: Ledger, tmp_path: Path, draw: random.Random, victim: str
) -> None:
    with faults.case(CHILD, tmp_path, seen=CHILD_SEEN) as case:
        for number in range(case.many(short=1, whole=6)):
            if case.store.exists():
                shutil.rmtree(case.store)
            running = begin(case, TRITON, extra={"TRITON_CACHE_DIR": str(case.folder / f"triton-{number}")})
            assert running.hears_until("ready")
            hits = 0
            for times in range(3):
                # The first one while there is surely something to hit.
                time.sleep(draw.uniform(0.0, 0.8) if times else 0.0)
                hits += attempted(case, running, victim, draw)
            assert hits, "it ended before anything was hit"
            assert running.end() == 0, running.errors[-20:]
            outcomes_of = kept(case.store)
            timed = {n for n, outcomes in outcomes_of.items() if any("samples_us" in outcome for outcome in outcomes)}
            assert running.result["config"]["BLOCK"] == 256 or 256_04 not in timed, (
                "the best one, if it was not killed twice"
            )
            for outcomes in outcomes_of.values():
                assert all("samples_us" in outcome or outcome.get("transient") for outcome in outcomes), outcomes
            wait_until_gone(case)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_compiler_that_cannot_write_its_objects_counts_against_no_config(
    faults: Ledger, builds: Path, tmp_path: Path, draw: random.Random
) -> None:
    """No file may grow past a limit: what compilers meet is a failed write or a signal, as on a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    seen = "one warning that all is kept in memory; the next run builds what this one could not"
    with faults.case("a disk that is full for compilers and store alike", tmp_path, seen=seen) as case:
        numbers = [CACHED[0], *fresh(draw, 2)]
        with case.attempt():
            full = tuning(case, builds, numbers, 0, first=limit)
            held_to(case, full, numbers, 0)
            wait_until_gone(case)
        assert full.result["config"]["NUMBER"] == CACHED[0]
        assert not set(full.numbers("times")) - {CACHED[0]}
        with case.attempt():
            well = tuning(case, builds, numbers, 0)
            held_to(case, well, numbers, 0)
        assert set(well.numbers("times")) >= set(numbers[1:])
        case.kept(reported=len(numbers), lost=len(set(numbers) - set(kept(case.store))))
