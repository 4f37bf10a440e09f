"""Builds that nothing uses are removed; others are not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from forecast_autotune.compilers.builds import mark_used, remove_unused
from forecast_autotune.core.digest import digest


def build(root: Path, name: str, age_days: float) -> Path:
    folder = root / "extension" / digest(name)
    folder.mkdir(parents=True)
    (folder / "built.json").write_text("{}")
    (folder / "library.so").write_bytes(b"x" * 1000)
    then = time.time() - age_days * 86400
    os.utime(folder, (then, then))
    return folder


def test_old_builds_go_and_used_ones_stay(tmp_path: Path) -> None:
    old, new, used = build(tmp_path, "old", 40), build(tmp_path, "new", 1), build(tmp_path, "used", 40)
    mark_used(used)
    count, size = remove_unused(tmp_path, days=30)
    assert (count, size >= 1000) == (1, True)
    assert (old.exists(), new.exists(), used.exists()) == (False, True, True)


def test_a_build_in_progress_is_left_alone(tmp_path: Path) -> None:
    busy = build(tmp_path, "busy", 40)
    then = time.time() - 40 * 86400
    with filelock.FileLock(busy / "build.lock"):
        os.utime(busy, (then, then))
        assert remove_unused(tmp_path, days=30) == (0, 0)
    assert busy.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "builds" / "extension").mkdir(parents=True)
    (tmp_path / "builds" / "extension" / "link").symlink_to(elsewhere)
    assert remove_unused(tmp_path / "builds", days=0) == (0, 0)
    assert elsewhere.exists()


def test_no_builds_at_all_is_no_error(tmp_path: Path) -> None:
    assert remove_unused(tmp_path / "missing", days=0) == (0, 0)


@pytest.mark.parametrize("name", ["release", "slot-machine", digest("of another program")])
def test_a_folder_that_is_no_build_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "linux" / name
    folder.mkdir(parents=True)
    (folder / "app").touch()
    assert remove_unused(tmp_path, days=0) == (0, 0)
    assert os.listdir(folder) == ["app"]


@pytest.mark.parametrize(
    "name", [digest("variant"), "slot-0123456789ab-0", f"slot-0123456789ab-10-{digest('tainted')}"]
)
@pytest.mark.parametrize("held", [(), ("build.lock",), ("build.lock", "kernel_part.cu"), ("request.json", "build.log")])
def test_a_build_that_was_cut_off_is_removed(tmp_path: Path, name: str, held: tuple[str, ...]) -> None:
    folder = tmp_path / "extension" / name
    folder.mkdir(parents=True)
    for file in held:
        (folder / file).touch()
    assert remove_unused(tmp_path, days=0)[0] == 1
    assert not folder.exists()


@pytest.mark.parametrize("removed", range(4))
def test_a_build_whose_removal_was_cut_off_is_removed_later(tmp_path: Path, removed: int, monkeypatch: Any) -> None:
    folder = tmp_path / "app" / ("a" * 32)
    for name in ("build.lock", "request.json", "built.json", "kernel_0.d", "app.so", "tmp/x.o"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    unlink, unlinked = os.unlink, []

    def cut_off(*args: Any, **kwargs: Any) -> None:
        if len(unlinked) == removed:
            raise KeyboardInterrupt
        unlinked.append(args)
        unlink(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", cut_off)
        with pytest.raises(KeyboardInterrupt):
            remove_unused(tmp_path, days=-1)
    assert len(unlinked) == removed
    assert remove_unused(tmp_path, days=-1)[0] == 1
    assert not folder.exists()
