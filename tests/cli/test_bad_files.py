"""Every verb that is given a path, with one that it cannot use: the path and what to do, and no `[Errno 2]`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.cli import main
from forecast_autotune.cli._commands import COMMANDS
from forecast_autotune.store.searches import SearchFile
from forecast_autotune.store.sqlite import SqliteStore

TRACE = str(Path(__file__).parents[1] / "traces" / "gemm_few_rows.jsonl.gz")
READERS = [["import", "{}"], ["replay", "{}"], ["replay", TRACE, "--history", "{}"]]
WRITERS = [["export", "{}"], ["doctor", "--bundle", "{}"]]
PROGRAMS = [["run", "{}"], ["tune-pending", "{}"], ["tune", "{}"]]
STORES = [
    [verb, "--dir", "{}"] for verb in ("list", "stats", "skills", "pending", "prune", "coverage", "freeze", "warm")
]
STORES += [["remote", word, "--dir", "{}"] for word in ("push", "pull")]
STORES += [["show", "x", "--dir", "{}"], ["clear", "--yes", "--dir", "{}"], ["export", "new.jsonl", "--dir", "{}"]]
KERNELS = [["forecast", "{}:kernel", "--target", "H100"], ["search", "{}:task"], ["warm", "{}"]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a store, a folder, a text, and a file of bytes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", f"file://{tmp_path}/shared")
    job = a_job()
    with SqliteStore(tmp_path / "store") as store:
        store.record_outcome(job, "run-1", SPACE[0], a_measurement(15.0), None)
        store.record_decision(job, a_decision(job, SPACE[0]))
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "bytes.bin").write_bytes(bytes(range(256)) * 9)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], command: list[str], path: str) -> str:
    """What a verb prints to stderr on its one line, with exit code 2."""
    assert main([word.format(path) for word in command]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert not re.search(r"Errno|Traceback", printed.err)
    return printed.err


def test_every_verb_is_asked() -> None:
    asked = {command[0] for command in READERS + WRITERS + PROGRAMS + STORES + KERNELS}
    assert asked == set(COMMANDS) - {"completion"}, "which is given no path"


@pytest.mark.parametrize("command", [*READERS, *PROGRAMS, *KERNELS], ids=str)
def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert re.search(r"there is no file .*missing\.py.*: ", refusal(capsys, command, "missing.py"))


@pytest.mark.parametrize("command", [READERS[0], READERS[1], *WRITERS], ids=str)
def test_a_missing_folder_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert "there is no folder nowhere: make it" in refusal(capsys, command, "nowhere/file.jsonl")


@pytest.mark.parametrize("command", [*READERS, *PROGRAMS, *KERNELS], ids=str)
def test_a_folder_in_the_place_of_a_file_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert re.search("folder is a folder.*name a (Python )?file", refusal(capsys, command, "folder"))


@pytest.mark.parametrize("verb", [["export"], ["coverage", "--write"]], ids=" ".join)
@pytest.mark.parametrize(
    "to", ["store/store.sqlite3", "store/store.sqlite3-wal", "other/searches.sqlite3", "link", "twin"]
)
def test_nothing_is_written_over_a_store(
    capsys: pytest.CaptureFixture[str], folder: Path, verb: list[str], to: str
) -> None:
    store = folder / "store" / "store.sqlite3"
    SearchFile(folder / "other").begin("a", {})
    (folder / "link").symlink_to(store)
    os.link(store, folder / "twin")
    before = {path: path.read_bytes() for path in (store, folder / "other" / "searches.sqlite3")}
    said = refusal(capsys, [*verb, "{}"], to)
    assert f"{to} is a database or belongs to one, and is not written over: name a new file" in said
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "link").is_symlink()
    assert store.stat().st_nlink == 2


@pytest.mark.parametrize("command", WRITERS, ids=str)
def test_nothing_is_written_over_a_folder(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert re.search("folder is .*: name .*new", refusal(capsys, command, "folder"))


@pytest.mark.parametrize("command", [READERS[0], READERS[1], *WRITERS], ids=str)
def test_a_file_in_the_place_of_a_folder_is_named(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert "text.txt is a file, not a folder" in refusal(capsys, command, "text.txt/file.jsonl")


@pytest.mark.parametrize("command", STORES, ids=str)
def test_a_file_in_the_place_of_a_store_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert "text.txt is a file, and a store is a folder: give " in refusal(capsys, command, "text.txt")
    file = folder / "store" / "store.sqlite3"
    assert f"a store is a folder: give {folder / 'store'}\n" in refusal(capsys, command, str(file))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/self", "no file can be made in /proc/self: name a folder that can be written to"),
        ("/proc/self/new", "no folder can be made in /proc/self: name another"),
    ],
)
def test_a_store_where_nothing_can_be_made_is_not_frozen(
    capsys: pytest.CaptureFixture[str], path: str, why: str
) -> None:
    assert why in refusal(capsys, ["freeze", "--dir", "{}"], path)


@pytest.mark.parametrize("command", [*READERS, *WRITERS, *KERNELS], ids=str)
def test_a_file_that_the_system_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    def refuse(path: Any, *others: Any, **named: Any) -> int:  # root may read what nobody else may
        if "refused" in str(path) or (command[0] == "export" and str(path) == "."):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *others, **named)

    opened = os.open
    if command in KERNELS:
        Path("refused.py").write_text("raise PermissionError(13, 'Permission denied', 'refused.py')")
    elif command not in WRITERS:
        Path("refused.py").write_text("")
    monkeypatch.setattr(os, "open", refuse)
    assert "refused.py: this user may not read or write it: change" in refusal(capsys, command, "refused.py")


@pytest.mark.parametrize("command", [*READERS, *KERNELS], ids=str)
@pytest.mark.parametrize("path", ["text.txt", "bytes.bin"])
def test_a_file_of_another_format_is_named(capsys: pytest.CaptureFixture[str], command: list[str], path: str) -> None:
    said = refusal(capsys, command, path)
    assert re.search(f"{path} is (no|not an) .*: (it starts|the first line|give|accepted)", said)


def test_a_module_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, KERNELS[0], "no_such_module")
    assert "there is no module no_such_module: give one that is installed, or FILE.py:KERNEL" in said


def test_a_program_that_cannot_be_run_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "tool").write_text("not a program\n")
    (folder / "tool").chmod(0o700)
    said = refusal(capfd, ["run", "{}"], str(folder / "tool"))
    assert "tool is no program: give a Python file, or one that begins with #!" in said
