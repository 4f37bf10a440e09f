"""The ledger sees what it is there to see: an attack that leaves something, loses something or never ends is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
from faults import ledger
from faults.ledger import Ledger


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(ledger, "LEAVE_S", 0.2)
    return Ledger(whole=False)


def test_a_process_that_is_left_is_counted_and_ended(own: Ledger, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="left behind"), own.case("f", tmp_path, seen="s") as case:  # noqa: PT012
        left = subprocess.Popen(
            [sys.executable, "-c", "print('here', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=case.environment,
        )
        assert left.stdin is not None
        assert left.stdout is not None
        assert left.stdout.readline() == b"here\n", "until it runs, its environment cannot be read"
    assert left.wait(timeout=60) == -9
    left.stdin.close()
    left.stdout.close()
    assert own.rows[0].left_behind == 1


def test_a_lock_that_is_held_and_a_temporary_file_are_counted(own: Ledger, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="left behind"), own.case("f", tmp_path, seen="s") as case:  # noqa: PT012
        (case.temporary / "forgotten").touch()
        (case.temporary / "tmp0a_b1c2d").mkdir()
        (case.temporary / "tmp0a_b1c2d" / "probe-source").touch()  # of filelock's, killed while it was imported
        case.store.mkdir()
        lock = filelock.FileLock(case.store / "a.lock")
        lock.acquire()
        (case.store / "free.lock").touch()
    lock.release()
    assert own.rows[0].left_behind == 2


def test_a_payload_that_ran_is_counted(own: Ledger, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="executed"), own.case("f", tmp_path, seen="s") as case:
        case.canary.with_name("canary-2").touch()
    assert own.rows[0].code_run == 1


def test_an_attempt_that_does_not_end_is_stuck(own: Ledger, tmp_path: Path) -> None:
    with own.case("f", tmp_path, seen="s") as case:
        with pytest.raises(AssertionError, match="stuck"), case.attempt():
            subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2, check=False)
        with case.attempt():
            case.kept(reported=5, lost=2)
    with own.case("f", tmp_path, seen="s") as more, more.attempt():
        pass
    assert own.table().splitlines()[2] == "| f | 3 | 5 | 2 | 1 | 0 | 0 | s |"
    own.figures.append("3 a second")
    own.skipped["test_g"] = "no privilege"
    assert own.table().splitlines()[3:] == ["3 a second", "not run here: test_g (no privilege)"]
    counts = {"cases": 1, "attempts": 3, "outcomes_lost": 2, "stuck": 1, "code_run": 0, "left_behind": 0}
    assert json.loads(own.summary()) == counts
