"""Worker processes: they answer, they die, they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_jobs
from process_ids import is_running

from forecast_autotune.measure.isolated import extension_trials
from forecast_autotune.processes import endings, machine, worker
from forecast_autotune.processes.channel import channels, memory_file
from forecast_autotune.processes.endings import (
    WorkerDiedError,
    WorkerKilledError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from forecast_autotune.processes.fork_server import ForkServer, fork_server
from forecast_autotune.processes.machine import usable_cores, usable_memory_bytes, workers_that_fit
from forecast_autotune.processes.tools import run_tool
from forecast_autotune.processes.worker import Worker

PATH_OF_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def wait_until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_trial(tmp_path: Path, name: str = "missing", server: ForkServer | None = None) -> Worker:
    extension = {"path": str(tmp_path / f"{name}.so"), "name": name, "namespace": None}
    request: dict[str, Any] = {
        "layout": {"storages": [], "values": []},
        "bytes": 0,
        "threads": 1,
        "log": str(tmp_path / "log"),
    }
    file = memory_file(1, "test")
    try:
        trial = (server or fork_server()).start(extension_trials, request, [file], ready_s=240)
        trial.send({"candidate": {"extension": extension, "function": "f"}})
        return trial
    finally:
        os.close(file)


def test_what_a_job_raises_reaches_the_caller(tmp_path: Path) -> None:
    with start_trial(tmp_path) as trial, pytest.raises(WorkerRaisedError, match=r"missing\.so"):
        trial.receive(120)


def test_a_killed_worker_differs_from_one_that_raised(tmp_path: Path) -> None:
    with start_trial(tmp_path) as trial:
        os.kill(trial.pid, signal.SIGKILL)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)):
            trial.receive(120)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_killed_from_outside_differs_from_one_that_killed_itself(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start_trial(tmp_path) as trial:
        os.kill(trial.pid, number)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)) as caught:
            trial.receive(120)
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
def test_disk_errors_and_signals_that_a_tool_reports_blame_the_machine(said: str, blames: bool) -> None:
    assert endings.blames_the_machine(said) == blames


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPIPE, signal.SIGUSR1])
def test_a_process_ended_by_its_timer_or_pipe_was_not_killed_from_outside(number: signal.Signals) -> None:
    assert not isinstance(endings.died(-number), WorkerKilledError)


def test_the_process_id_of_a_worker_that_ended_is_never_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_trial(tmp_path) as trial:
        os.kill(trial.pid, signal.SIGKILL)
        with pytest.raises((WorkerDiedError, WorkerRaisedError)) as caught:
            trial.receive(120)
        if isinstance(caught.value, WorkerRaisedError):  # it was faster
            with pytest.raises(WorkerDiedError):
                trial.finish(30)
        monkeypatch.setattr(worker, "end_session", lambda _: pytest.fail("it is another's by now"))


def test_only_jobs_of_this_package_are_run() -> None:
    def elsewhere(channel: object, request: object) -> None:
        raise AssertionError

    elsewhere.__module__, elsewhere.__name__ = "os", "abort"
    with pytest.raises(WorkersUnavailableError, match=r"os is no part of forecast_autotune"):
        fork_server().start(elsewhere, {})


def test_a_fork_server_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkersUnavailableError, match="cannot be started"):
        ForkServer("torch").start(extension_trials, {})


def test_a_fork_server_that_cannot_import_says_why() -> None:
    with pytest.raises(WorkersUnavailableError, match="No module named 'no_such_module'"):
        ForkServer("no_such_module").start(extension_trials, {})


def test_a_fork_server_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with start_trial(tmp_path):
        pass
    server = fork_server()._process
    assert server is not None
    server.kill()
    server.wait()
    with start_trial(tmp_path) as trial, pytest.raises(WorkerRaisedError):
        trial.receive(120)


def test_a_forked_caller_starts_a_fork_server_of_its_own(tmp_path: Path) -> None:
    with start_trial(tmp_path):
        pass
    server = fork_server()._process
    assert server is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with start_trial(tmp_path):
                own = fork_server()._process
            status = 0 if own is not None and own.pid != server.pid else 2
            fork_server().stop()
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
import test_fork_server as own
from pathlib import Path
with own.start_trial(Path({str(tmp_path)!r})) as trial:
    try:
        trial.receive(120)
    except own.WorkerRaisedError:
        print("answered")
"""
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=PATH_OF_TESTS)
    assert told.stdout == "answered\n", told.stderr


def test_an_ended_fork_server_leaves_no_process(tmp_path: Path) -> None:
    own = ForkServer("torch")
    with start_trial(tmp_path, server=own) as trial:
        pids = {own.pid, trial.pid}
    own.stop()
    assert not [pid for pid in pids if pid and is_running(pid)]


def test_no_answer_in_time_is_a_timeout() -> None:
    ours, theirs = channels()
    theirs.send({"pid": os.getpid()})
    with pytest.raises(WorkerTimeoutError, match=r"ran out of time: no answer within 0\.1 s"):
        Worker(ours).receive(0.1)
    ours.close()
    theirs.close()


def test_the_ranks_of_a_node_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.RANKS_ON_NODE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: 12)
    monkeypatch.setattr(machine, "usable_memory_bytes", lambda: 64 << 30)
    assert workers_that_fit(1 << 30) == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert workers_that_fit(1 << 30) == 3
    monkeypatch.setattr(machine, "usable_memory_bytes", lambda: 4 << 30)
    assert workers_that_fit(1 << 30) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert workers_that_fit(1 << 30) == 1


def test_cores_and_memory_are_positive() -> None:
    assert usable_cores() >= 1
    assert usable_memory_bytes() > 0


@pytest.mark.parametrize(
    ("stat", "free_mib"), [("anon 1\ninactive_file 10485760\nactive_file 5242880\n", 16), ("anon 1\n", 1), (None, 1)]
)
def test_a_container_that_is_full_of_pages_of_files_has_memory_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str | None, free_mib: int
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{32 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{31 << 20}\n")
    if stat is not None:
        (tmp_path / "memory.stat").write_text(stat)
    assert usable_memory_bytes() == free_mib << 20


def test_a_message_of_any_length_arrives_with_its_files() -> None:
    ours, theirs = channels()
    file = memory_file(3, "test")
    os.pwrite(file, b"abc", 0)
    ours.send({"text": "x" * 1_000_000}, [file])
    os.close(file)
    assert len(theirs.receive()["text"]) == 1_000_000
    (got,) = theirs.files
    assert os.pread(got, 3, 0) == b"abc"
    os.close(got)
    ours.close()
    theirs.close()


def test_modules_that_lie_in_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    own = ForkServer("torch")
    try:
        with start_trial(tmp_path, server=own) as trial, pytest.raises(WorkerRaisedError):
            trial.receive(60)
    finally:
        own.stop()
    assert not (tmp_path / "was_run").exists()


def test_a_path_that_is_no_text_is_passed_over_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_jobs.allow(monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    server = ForkServer("json")
    with server.start(toy_jobs.echo, {}) as talking:
        talking.send({"said": 1})
        assert talking.receive(60.0) == {"said": 1}
    server.stop()


def test_workers_that_end_in_the_same_moment_are_judged_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's server is ended, a build's stays, though the fork server hears of both ends at once."""
    toy_jobs.allow(monkeypatch)
    server = ForkServer("json")
    with (
        server.start(toy_jobs.leave_a_server, {}) as candidate,
        server.start(toy_jobs.leave_a_server, {}, may_leave=True) as build,
    ):
        left, stays = candidate.receive(60)["server"], build.receive(60)["server"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        for ends in (candidate, build):
            ends.send({})
            wait_until(lambda pid=ends.pid: not is_running(pid))
        os.kill(server.pid, signal.SIGCONT)
        for ends in (candidate, build):
            ends.finish(60)
        wait_until(lambda: not is_running(left))
        assert is_running(stays)
    server.stop()
    assert is_running(stays), "it serves other builds, too"
    os.kill(stays, signal.SIGKILL)


CALLER = """
import os, sys, time
import pytest, toy_jobs
from forecast_autotune.processes.fork_server import ForkServer
toy_jobs.allow(pytest.MonkeyPatch())
server = ForkServer("json")
worker = server.start(toy_jobs.hang, {})
worker.receive(60)
child = os.fork()  # it holds what its parent held
if child:
    print(server.pid, worker.pid, child, flush=True)
time.sleep(300)
"""


def test_a_hanging_worker_ends_with_a_killed_caller_that_had_forked() -> None:
    caller = subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE, env=PATH_OF_TESTS)
    assert caller.stdout is not None
    with caller, caller.stdout:
        server, hanging, child = map(int, caller.stdout.readline().split())
        os.kill(server, signal.SIGSTOP)  # as whoever stopped all of this user's processes would have left it
        caller.kill()
        wait_until(lambda: not is_running(server) and not is_running(hanging))
        os.kill(child, signal.SIGKILL)


def test_a_fork_server_that_hangs_in_its_import_ends_with_a_killed_caller(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(
        f"import ctypes, os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); ctypes.PyDLL(None).sleep(300)"
    )
    program = f"""
import sys; sys.path.append({str(tmp_path)!r})
from forecast_autotune.processes.fork_server import ForkServer
from forecast_autotune.measure.isolated import extension_trials
ForkServer("slow_import").start(extension_trials, {{}})
"""
    with subprocess.Popen([sys.executable, "-c", program]) as caller:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        caller.kill()
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_a_fork_of_a_caller_whose_lock_was_held_has_workers(tmp_path: Path) -> None:
    with start_trial(tmp_path), fork_server()._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            status = 1
            try:
                with start_trial(tmp_path):
                    status = 0
                fork_server().stop()
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_workers_outlive_the_thread_that_had_them_started(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_jobs.allow(monkeypatch)
    server = ForkServer("json")
    started: list[Worker] = []
    thread = threading.Thread(target=lambda: started.append(server.start(toy_jobs.echo, {})))
    thread.start()
    thread.join()
    before = server.pid
    with started[0] as first, server.start(toy_jobs.echo, {}) as second:
        for trial in (first, second):
            trial.send({"n": 1})
            assert trial.receive(60) == {"n": 1}
        assert server.pid == before
    server.stop()


@pytest.mark.parametrize("closed", ["os.close(1)", "os.close(0); os.close(1); os.close(2)", "sys.stdout.close()"])
def test_a_caller_that_has_closed_its_output_has_workers(closed: str) -> None:
    """What it opens next gets the number of its stdout, and so would become the stdout of its child."""
    program = f"""
import os, sys
import pytest, toy_jobs
from forecast_autotune.processes.channel import memory_file
from forecast_autotune.processes.fork_server import ForkServer
toy_jobs.allow(pytest.MonkeyPatch())
out = os.dup(1)
{closed}
server = ForkServer("json")
with server.start(toy_jobs.echo, {{}}) as worker:
    worker.send({{"text": "x" * 100_000}})
    answered = len(worker.receive(60)["text"])
server.stop()
os.write(out, str([answered, memory_file(1, "test") > 2]).encode())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120, check=False, env=PATH_OF_TESTS
    )
    assert done.stdout == b"[100000, True]", done.stderr


def test_a_worker_works_in_the_environment_and_folder_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_jobs.allow(monkeypatch)
    server = ForkServer("json")
    for value in ("one", "two"):  # set after the server was started
        environment = {**os.environ, "OF_THE_CALLER": value}
        asked = {"name": "OF_THE_CALLER"}
        with server.start(toy_jobs.tell_environment, asked, environment=environment, folder=str(tmp_path)) as trial:
            assert trial.receive(60) == {"value": value, "folder": str(tmp_path)}
    server.stop()


def test_a_pause_is_not_counted_as_time_that_a_worker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_jobs.allow(monkeypatch)
    server = ForkServer("json")
    with server.start(toy_jobs.echo, {}) as trial:
        trial.pause()
        trial.send({"n": 1})
        waited: list[float] = []

        def watch() -> None:
            waited.append(time.monotonic())
            if waited[-1] - waited[0] > 6.0:
                trial.resume()

        assert trial.receive(5.0, watch) == {"n": 1}
    server.stop()


def test_a_conversation_is_closed_though_nobody_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_jobs.allow(monkeypatch)
    server = ForkServer("json")
    trial = server.start(toy_jobs.echo, {})
    with monkeypatch.context() as patch:

        def refuse(_: int) -> None:
            raise OSError("nothing may be signalled")

        patch.setattr(worker, "end_session", refuse)
        with pytest.raises(OSError, match="may be signalled"):
            trial.close()
    assert trial._channel.fileno() == -1
    server.stop()


def test_a_tool_that_runs_out_of_time_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/pid; wait"
    for limit_s in (2.0, 20.0):  # on a busy machine two seconds may be over before the shell runs
        with pytest.raises(subprocess.TimeoutExpired):
            run_tool(["sh", "-c", script], limit_s)
        if (tmp_path / "pid").exists():
            break
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))
