from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from process_ids import is_running

from forecast_autotune.errors import WorkerError
from forecast_autotune.processes.side_by_side import side_by_side


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def die_once(number: int) -> int:
    """Number 1 is killed the first time, as by the kernel when memory is gone."""
    died = Path(os.environ["MARKED"])
    if number == 1 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_: int) -> None:
    raise ValueError("no")


def mark() -> None:
    Path(os.environ["MARKED"]).touch()


def living(pids: set[int]) -> set[int]:
    """Those of these processes that are there. A thread of the pool waits for them too: who loses hears of no end."""
    multiprocessing.active_children()  # or one that has ended is there until it was asked for
    found = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.add(pid)
    return found


def test_each_task_has_its_answer() -> None:
    found = dict(side_by_side(abs, [-1, -2, 3], 2))
    assert found == {-1: 1, -2: 2, 3: 3}


def test_a_process_that_fails_to_start_as_another_dies_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The pool closes its pipes when a worker dies; a process that is started at that moment gets closed ones."""
    started, refused = ProcessPoolExecutor._spawn_process, []

    def start(pool: ProcessPoolExecutor) -> None:
        if len(refused) < 1 and pool._processes:
            refused.append(pool)
            raise ValueError("bad value(s) in fds_to_keep")
        started(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", start)
    assert dict(side_by_side(abs, [-1, -2, 3], 2)) == {-1: 1, -2: 2, 3: 3}
    assert refused
    assert "begin again" in capfd.readouterr().err


def test_each_process_begins_with_what_is_to_be_done_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKED", str(tmp_path / "here"))
    list(side_by_side(abs, [1, 2], 2, mark))
    assert (tmp_path / "here").exists()


def test_an_error_of_a_task_is_the_callers() -> None:
    with pytest.raises(ValueError, match="no"):
        list(side_by_side(fail, [1, 2], 2))


def test_what_is_under_way_is_ended_when_nobody_waits_for_it() -> None:
    others = set(multiprocessing.active_children())  # other tests may have left some, which are nobody's here to end
    answers = side_by_side(nap, [0.0, 300.0], 2)
    next(answers)
    mine = {process.pid for process in set(multiprocessing.active_children()) - others if process.pid}
    assert mine
    deadline = time.monotonic() + 30
    answers.close()
    while (left := living(mine)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_what_a_killed_process_left_undone_is_done_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARKED", str(tmp_path / "died"))
    assert sorted(side_by_side(die_once, range(6), 2)) == [(n, n) for n in range(6)]
    assert "a worker process died" in capsys.readouterr().err


def test_processes_that_keep_dying_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(WorkerError, match=r"died twice in a row with 3 of 3 tasks to do.*--jobs"):
        list(side_by_side(die, [1, 2, 3], 2))


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    """Each of them waits for a task on a queue that they all hold open, and would wait for ever."""
    program = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_side_by_side import nap
from forecast_autotune.processes.side_by_side import side_by_side
if __name__ == "__main__":
    for _, pid in side_by_side(nap, [0.0, 0.1, 300.0], 2):
        print(pid, flush=True)
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    deadline = time.monotonic() + 60
    while left := set(filter(is_running, pids)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
