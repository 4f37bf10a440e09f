"""What a killed search leaves behind is removed by the next one, and nothing of one that lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.program_search.run_folders import RunFolder

HOLDER = """
import sys
from pathlib import Path

import pytest
from forecast_autotune.program_search.run_folders import RunFolder
mine = RunFolder(Path(sys.argv[1]))
(mine.path / "trial-1").mkdir()
print(mine.path, flush=True)
sys.stdin.read()
"""


def holder(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    (tmp_path / "searches.sqlite3").touch()
    (tmp_path / "run-link").symlink_to(tmp_path.parent)
    (killed, left), (living, kept) = holder(tmp_path), holder(tmp_path)
    with killed, living:
        killed.kill()
        killed.wait()
        mine = RunFolder(tmp_path)
        assert not left.exists()
        assert (kept / "trial-1").is_dir()
        living.kill()
    other = RunFolder(tmp_path)
    assert not kept.exists()
    assert mine.path.is_dir()
    mine.close()
    other.close()
    assert {path.name for path in tmp_path.iterdir()} == {"searches.sqlite3", "run-link"}
    assert tmp_path.parent.is_dir()


def test_where_nothing_can_be_locked_each_still_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(*_: object) -> None:
        raise OSError("no locks")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        one, other = RunFolder(tmp_path), RunFolder(tmp_path)
    assert one.path != other.path
    one.close()
    assert other.path.is_dir()
    other.close()
