"""Cores for compiling: no more compiles at once than cores, whoever does them, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from forecast_autotune.processes import core_slots, machine
from forecast_autotune.processes.core_slots import CoreSlots

HOLDER = """
import sys, time
from pathlib import Path
from forecast_autotune.processes.core_slots import CoreSlots
slots = CoreSlots(Path(sys.argv[1]), lambda: [0, 1])
with slots.held():
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds a core until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def held_in_time(slots: CoreSlots, seconds: float) -> bool:
    """Whether a core is had within so many seconds by a further compile of this process."""
    taken = threading.Event()
    leave = threading.Event()

    def compile_something() -> None:
        with slots.held():
            taken.set()
            leave.wait(60)

    thread = threading.Thread(target=compile_something, daemon=True)
    thread.start()
    had = taken.wait(seconds)
    leave.set()
    return had


def locked(folder: Path) -> list[str]:
    """The lock files that somebody holds."""
    names = []
    for path in folder.iterdir():
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                names.append(path.name)
    return names


def waits(slots: CoreSlots) -> bool:
    """Whether a further compile of this process looks for a core again and again, and has none."""
    looks: list[None] = []

    def given_up() -> bool:
        looks.append(None)
        return len(looks) > 3

    with slots.held(given_up):
        return len(looks) > 3


def test_a_process_alone_has_every_core_and_no_more(tmp_path: Path) -> None:
    slots = CoreSlots(tmp_path, lambda: [0, 1, 2])
    with slots.held(), slots.held():
        with slots.held():
            assert waits(slots)
        assert held_in_time(slots, 60)


def test_processes_share_the_cores_and_each_may_have_one(tmp_path: Path) -> None:
    others = [holder(tmp_path) for _ in range(3)]  # the third has none of the two cores, and goes on all the same
    slots = CoreSlots(tmp_path, lambda: [0, 1])
    with slots.held():
        assert waits(slots), "it would be its second"
        for process in others:
            process.communicate("end\n")
        assert held_in_time(slots, 60)


def test_who_is_given_up_goes_on_without_a_core_and_frees_none(tmp_path: Path) -> None:
    slots = CoreSlots(tmp_path, lambda: [0])
    with slots.held():
        with slots.held(given_up=lambda: True):
            assert locked(tmp_path) == ["core-0.lock"]
        assert locked(tmp_path) == ["core-0.lock"]
    assert locked(tmp_path) == []


def test_the_core_of_a_killed_process_is_free(tmp_path: Path) -> None:
    other = holder(tmp_path)
    slots = CoreSlots(tmp_path, lambda: [0, 1])
    with slots.held():
        assert waits(slots)
        other.kill()
        other.communicate()
        assert held_in_time(slots, 60)


def test_a_fork_does_not_hold_its_parents_core(tmp_path: Path) -> None:
    slots = CoreSlots(tmp_path, lambda: [0, 1])
    with ExitStack() as first:
        first.enter_context(slots.held())
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with slots.held():
            assert held_in_time(slots, 60), "the first core is free again, though the child lives"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


FORKER = """
import os, signal, sys
from pathlib import Path
from forecast_autotune.processes import core_slots
from forecast_autotune.processes.core_slots import CoreSlots
core_slots._shared = CoreSlots(Path(sys.argv[1]), lambda: [0, 1])
with core_slots.core_slots().held():
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    signal.pause()
"""


def test_the_core_of_a_killed_process_is_free_though_a_fork_of_it_lives(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        slots = CoreSlots(tmp_path, lambda: [0, 1])
        try:
            with slots.held():
                assert waits(slots)
                parent.kill()
                parent.wait()
                assert held_in_time(slots, 60)
        finally:
            os.kill(child, signal.SIGKILL)


def test_processes_on_other_cores_do_not_meet(tmp_path: Path) -> None:
    holder_here = holder(tmp_path)
    slots = CoreSlots(tmp_path, lambda: [2, 3])
    with slots.held():
        assert held_in_time(slots, 60)
    holder_here.communicate("end\n")


def test_a_lock_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    slots = CoreSlots(tmp_path, lambda: [0])
    with slots.held():
        pass
    (tmp_path / "core-0.lock").unlink()  # as what tidies temporary files does
    with slots.held():
        neighbour = CoreSlots(tmp_path, lambda: [0])
        with neighbour.held():  # its first, for which it waits for no core
            assert not neighbour._held


def test_files_that_the_program_closed_are_let_alone(tmp_path: Path) -> None:
    slots = CoreSlots(tmp_path, lambda: [0])
    with slots.held():
        ((number, _),) = slots._files.values()
        os.close(number)
        theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
        assert theirs == number, "the program's own file has the number now"
        fcntl.flock(theirs, fcntl.LOCK_EX)
    with slots.held(), open(tmp_path / "theirs") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(theirs)


def test_where_no_lock_can_be_had_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    slots = CoreSlots(tmp_path / "file", lambda: [0])
    with slots.held(), slots.held():
        assert not waits(slots)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert locked(tmp_path) == []


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_slots.tempfile, "gettempdir", lambda: str(tmp_path))
    with CoreSlots(cores=lambda: [7]).held():
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in folder.iterdir()] == ["core-7.lock"]
    (folder / "core-7.lock").unlink()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with CoreSlots(cores=lambda: [7]).held():
        assert list(elsewhere.iterdir()) == [], "a link that somebody has laid is not followed"


def test_under_a_quota_all_processes_name_the_same_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {9, 3, 5, 7}, raising=False)
    assert machine.usable_core_ids() == [3, 5, 7, 9]
    for quota, cores in (("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("what", 4)):
        (tmp_path / "cpu.max").write_text(quota)
        assert machine.usable_core_ids() == [3, 5, 7, 9][:cores]
        assert machine.usable_cores() == cores
