"""Giving way to others for the CPU, also where the kernel shares it among sessions first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.processes import worker
from forecast_autotune.processes.machine import give_way, own_bytes, process_ids, thread_ids
from forecast_autotune.processes.serving import children_of
from forecast_autotune.processes.worker import end_session

GROUP = Path("/proc/self/autogroup")


@pytest.mark.parametrize("leads", [True, False])
def test_a_session_gives_way_as_a_whole_if_it_is_the_process_s_own(leads: bool) -> None:
    program = (
        "import os\n"
        f"from {give_way.__module__} import give_way\n"
        "give_way(7)\n"
        f"group = open({str(GROUP)!r}).read() if os.path.exists({str(GROUP)!r}) else ''\n"
        "print(os.nice(0), *group.split()[-1:])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], start_new_session=leads, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert told[0] == str(min(19, os.nice(0) + 7))
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not enabled.exists() or enabled.read_text().strip() != "1":
        pytest.skip("this kernel shares the CPU among processes alone")
    ours = GROUP.read_text().split()[-1:]  # nothing where no session was begun since the machine was
    assert told[1:] == (["7"] if leads else ours)


def test_a_process_that_ended_after_it_was_listed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait(60)
    monkeypatch.setattr(worker, "process_ids", lambda: [ended.pid, *process_ids()])
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        end_session(sleeper.pid)
        assert sleeper.wait(60) < 0


def test_the_processes_and_threads_of_the_machine_are_listed() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert {os.getpid(), sleeper.pid} <= set(process_ids())
        assert thread_ids(sleeper.pid) == [sleeper.pid]
        assert sleeper.pid in (children_of(os.getpid()) or ())
        sleeper.kill()
    assert sleeper.pid not in process_ids()
    assert thread_ids(sleeper.pid) == []
    assert children_of(sleeper.pid) is None


def test_a_process_whose_name_is_no_text_is_measured() -> None:
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'messungen-gr\\xc3\\xb6\\xc3')\n"
        "print(flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        assert b"\xc3" in Path(f"/proc/{named.pid}/status").read_bytes()
        assert own_bytes(named.pid) > 1 << 20
        named.kill()
