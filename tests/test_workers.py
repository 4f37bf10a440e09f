"""Worker processes: they answer, they die, they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune import workers
from forecast_autotune.measure.isolated import extension_trials
from forecast_autotune.workers import (
    Worker,
    WorkerDiedError,
    WorkerKilledError,
    WorkerRaisedError,
    WorkerTimeoutError,
    Workshop,
    WorkshopError,
    memory_file,
    usable_cores,
    usable_memory_bytes,
    workshop,
)


def start_trial(tmp_path: Path, name: str = "missing") -> Worker:
    extension = {"path": str(tmp_path / f"{name}.so"), "name": name, "namespace": None}
    request: dict[str, Any] = {
        "layout": {"storages": [], "values": []},
        "bytes": 0,
        "threads": 1,
        "log": str(tmp_path / "log"),
    }
    file = memory_file(1, "test")
    try:
        worker = workshop().start(extension_trials, request, [file])
        assert worker.receive(60) == {"ready": True}
        worker.send({"candidate": {"extension": extension, "function": "f"}})
        return worker
    finally:
        os.close(file)


def test_what_a_job_raises_reaches_the_caller(tmp_path: Path) -> None:
    with start_trial(tmp_path) as worker, pytest.raises(WorkerRaisedError, match=r"missing\.so"):
        worker.receive(30)


def test_a_killed_worker_is_told_from_one_that_raised(tmp_path: Path) -> None:
    with start_trial(tmp_path) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)):
            worker.receive(30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_killed_from_outside_is_told_from_one_that_brought_itself_down(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start_trial(tmp_path) as worker:
        os.kill(worker.pid, number)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)) as caught:
            worker.receive(30)
        if isinstance(caught.value, WorkerDiedError):
            assert isinstance(caught.value, WorkerKilledError) == (number in (signal.SIGKILL, signal.SIGTERM))


@pytest.mark.parametrize(
    ("said", "blames"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", True),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", True),
        ("subprocess.CalledProcessError: Command '['ninja', '-v']' died with <Signals.SIGKILL: 9>.", True),
        ("PTXASError: `ptxas` failed with error code -9", True),
        ("cc1.s: fatal error: error writing to cc1.o: No space left on device", True),
        ("kernel.cpp:3:9: error: expected ';' before '}' token", False),
        ("c++: internal compiler error: Segmentation fault signal terminated program cc1plus", False),
        ("RuntimeError: Cannot find ptxas-blackwell", True),  # which was killed as it was asked for its version
        ("PTXASError: `ptxas` failed with error code 255", False),
    ],
)
def test_what_a_tool_says_of_a_disk_or_a_signal_from_outside_blames_the_machine(said: str, blames: bool) -> None:
    assert workers.blames_the_machine(said) == blames


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPIPE, signal.SIGUSR1])
def test_a_process_that_its_own_timer_or_pipe_ends_was_not_killed_from_outside(number: signal.Signals) -> None:
    assert not workers.killed_from_outside(-number)


def test_the_number_of_a_worker_whose_end_was_told_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_trial(tmp_path) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)) as caught:
            worker.receive(30)
        if isinstance(caught.value, WorkerRaisedError):  # it was faster
            with pytest.raises(WorkerDiedError):
                worker.finish(30)
        monkeypatch.setattr(workers, "end_session", lambda _: pytest.fail("it is another's by now"))


def test_only_jobs_of_this_package_are_run() -> None:
    def elsewhere(channel: object, request: object) -> None:
        raise AssertionError

    elsewhere.__module__, elsewhere.__name__ = "os", "abort"
    with pytest.raises((WorkerRaisedError, WorkerDiedError), match=r"os is no part of forecast_autotune"):
        workshop().start(elsewhere, {}).receive(30)


def test_a_workshop_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkshopError, match="could not be started"):
        Workshop().start(extension_trials, {})


def test_a_workshop_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with start_trial(tmp_path):
        pass
    server = workshop()._process
    assert server is not None
    server.kill()
    server.wait()
    with start_trial(tmp_path) as worker, pytest.raises(WorkerRaisedError):
        worker.receive(30)


def test_a_forked_caller_starts_a_workshop_of_its_own(tmp_path: Path) -> None:
    with start_trial(tmp_path):
        pass
    server = workshop()._process
    assert server is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with start_trial(tmp_path):
                own = workshop()._process
            status = 0 if own is not None and own.pid != server.pid else 2
            workshop().stop()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert server.poll() is None


def test_a_caller_with_a_thousand_open_files_has_workers(tmp_path: Path) -> None:
    program = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1300, 1300))
sys.path.insert(0, {str(Path(__file__).parent)!r})
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
import test_workers
from pathlib import Path
with test_workers.start_trial(Path({str(tmp_path)!r})) as worker:
    try:
        worker.receive(30)
    except test_workers.WorkerRaisedError:
        print("answered")
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert told.stdout == "answered\n", told.stderr


def test_what_a_candidate_leaves_is_ended_though_a_build_runs_and_a_builds_server_stays() -> None:
    program = """
import os, signal, socket, time
from forecast_autotune import workers

def worker(leaves, until):
    pid = os.fork()
    if pid:
        return pid
    workers._adopt_orphans()
    if os.fork() == 0:
        if os.fork():
            os._exit(0)  # what the next line begins has no parent but the worker
        os.setsid()
        os.write(leaves[1], str(os.getpid()).encode())
        time.sleep(60)
        os._exit(0)
    os.read(until[0], 1)
    os._exit(0)

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

def report_until(gone):
    while gone in children:
        workers._report_ended(children, leaving, left)
        time.sleep(0.01)

workers._adopt_orphans()
ends, servers, children, left = [], [], {}, set()
for _ in range(2):
    told, until = os.pipe(), os.pipe()
    pid = worker(told, until)
    servers.append(int(os.read(told[0], 20)))
    ends.append((pid, until[1]))
    children[pid] = socket.socketpair()[0]
(candidate, candidate_ends), (build, build_ends) = ends
leaving = {build}
os.write(candidate_ends, b"x")
report_until(candidate)
os.write(build_ends, b"x")
report_until(build)
time.sleep(0.2)
print([alive(pid) for pid in servers], left == {servers[1]})
os.kill(servers[1], signal.SIGKILL)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == "[False, True] True\n", told.stderr


def test_an_ended_workshop_leaves_no_process(tmp_path: Path) -> None:
    own = Workshop()
    server = own._ensure_running() and own._process
    assert server is not None
    own.stop()
    assert server.poll() is not None


def test_no_answer_in_time_is_a_timeout() -> None:
    ours, theirs = workers.socket.socketpair(workers.socket.AF_UNIX, workers._KIND)
    with ours, theirs:
        began = time.monotonic()
        with pytest.raises(WorkerTimeoutError):
            workers.Channel(ours).receive(0.1)
        assert time.monotonic() - began < 5


def test_cores_and_memory_are_positive() -> None:
    assert usable_cores() >= 1
    assert usable_memory_bytes() > 0


@pytest.mark.parametrize(
    ("stat", "free_mib"), [("anon 1\ninactive_file 10485760\nactive_file 5242880\n", 16), ("anon 1\n", 1), (None, 1)]
)
def test_a_container_that_is_full_of_pages_of_files_has_memory_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str | None, free_mib: int
) -> None:
    monkeypatch.setattr(workers, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{32 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{31 << 20}\n")
    if stat is not None:
        (tmp_path / "memory.stat").write_text(stat)
    assert usable_memory_bytes() == free_mib << 20


def test_a_message_of_any_length_arrives_with_its_files() -> None:
    ours, theirs = workers.socket.socketpair(workers.socket.AF_UNIX, workers._KIND)
    file = memory_file(3, "test")
    with ours, theirs:
        os.pwrite(file, b"abc", 0)
        workers.Channel(ours).send({"text": "x" * 1_000_000}, [file])
        os.close(file)
        receiver = workers.Channel(theirs)
        assert len(receiver.receive(5)["text"]) == 1_000_000
        (got,) = receiver.files
        assert os.pread(got, 3, 0) == b"abc"
        os.close(got)


def test_modules_that_lie_in_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    own = Workshop()
    monkeypatch.setattr(workers, "_workshop", own)
    try:
        with start_trial(tmp_path) as worker, pytest.raises(WorkerRaisedError):
            worker.receive(60)
    finally:
        own.stop()
    assert not (tmp_path / "was_run").exists()
