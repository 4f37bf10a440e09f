"""Turns that many may have at once, and turns alone, among real processes."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.processes.file_lock import turn_at

HOLDER = """
import sys, time
from pathlib import Path
from forecast_autotune.processes.file_lock import turn_at
print("asks", flush=True)
with turn_at(Path(sys.argv[1]), alone=sys.argv[2] == "alone"):
    print("has it", flush=True)
    sys.stdin.read()
print("gave it back", flush=True)
"""


class Holder:
    """A process that has a turn, or waits for one, until its stdin ends."""

    def __init__(self, path: Path, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "asks"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.line() == "gave it back"
        self.close()

    def close(self) -> None:
        with self.process as ended:
            ended.kill()


def test_turns_beside_others_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "turn.lock"
    one, two = Holder(path, "beside others"), Holder(path, "beside others")
    assert (one.line(), two.line()) == ("has it", "has it")
    assert path.stat().st_mode & 0o777 == 0o600
    alone = Holder(path, "alone")
    one.end()
    assert not select.select([alone.process.stdout], [], [], 0.5)[0]
    two.end()
    assert alone.line() == "has it"
    third = Holder(path, "beside others")
    os.kill(alone.process.pid, signal.SIGKILL)  # frees it
    assert third.line() == "has it"
    third.end()
    alone.close()


def test_who_waits_to_be_alone_comes_before_those_who_ask_later(tmp_path: Path) -> None:
    path = tmp_path / "turn.lock"
    one = Holder(path, "beside others")
    assert one.line() == "has it"
    alone = Holder(path, "alone")
    assert not select.select([alone.process.stdout], [], [], 0.5)[0]
    later = Holder(path, "beside others")
    assert not select.select([later.process.stdout], [], [], 0.5)[0]
    one.end()
    assert alone.line() == "has it"
    assert not select.select([later.process.stdout], [], [], 0.5)[0]
    alone.end()
    assert later.line() == "has it"
    later.end()


def test_where_files_cannot_be_locked_none_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError, match="no locks"), turn_at(tmp_path / "turn.lock", alone=True):
        pass
    assert not [path for path in Path("/proc/self/fd").iterdir() if path.resolve() == tmp_path / "turn.lock"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), turn_at(tmp_path / "link", alone=True):
        pass
    assert not (tmp_path / "elsewhere").exists()
