"""`search`: what it prints, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import forecast_autotune as fa
from forecast_autotune.cli import main
from forecast_autotune.processes import box

NO_BOX = pytest.mark.skipif(bool(box.lacking()), reason=f"no box here: {box.lacking()}")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["search", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "Traceback" not in err
    return err


def test_bad_input_is_told_in_clear_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Function:\n    name, recipe, space = 'f', None, None\nFUNCTION, NUMBER = Function(), 3\n"
    )
    assert "names no task" in told(capsys, "kernel.c")
    assert "f has no reference" in told(capsys, f"{tmp_path}/mine.py:FUNCTION")
    assert "cannot be searched" in told(capsys, f"{tmp_path}/mine.py:NUMBER")
    assert "at least 2" in told(capsys, "doubling:TASK", "--budget", "1")
    assert "proposer 'magic'" in told(capsys, "doubling:TASK", "--proposer", "magic")
    assert "REMOTE_MODEL=1" in told(capsys, "doubling:TASK", "--proposer", "http://192.0.2.1:80")
    assert "has no size 'huge': it has large, odd" in told(capsys, "doubling:TASK", "--sizes", "huge")


def test_a_mistyped_task_is_answered_with_the_tasks_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "doubling has no TAKS: its tasks are TASK" in told(capsys, "doubling:TAKS")
    (tmp_path / "mine.py").write_text("NUMBER = 3\n")
    assert f"{tmp_path}/mine.py has no TASK: there is no task in it" in told(capsys, f"{tmp_path}/mine.py:TASK")


def test_a_held_model_that_is_not_there_stops_a_search_by_forecasts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", "/nowhere/model.json")
    monkeypatch.setattr(box, "_lacking", lambda may_start, gpu: "a box")
    assert "FORECAST_AUTOTUNE_MODEL=/nowhere/model.json" in told(capsys, "doubling:TASK")
    assert "it lacks a box" in told(capsys, "doubling:TASK", "--no-forecasts")


def test_without_a_box_nothing_is_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "_lacking", lambda may_start, gpu: "Landlock (Linux 5.13)")
    assert "this system has none to offer: it lacks Landlock (Linux 5.13)" in told(capsys, "doubling:TASK")


@NO_BOX
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_box_for_a_gpu_is_tried_with_the_driver_itself() -> None:
    assert "a CUDA driver that starts within a box" in box.lacking(may_start=True, gpu=True)
    with pytest.raises(fa.NoBoxError, match="CUDA driver"):
        box.require_box(may_start=True, gpu=True)


@NO_BOX
def test_what_was_found_is_printed_where_its_page_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "missing" / "page.html"
    command = ["search", "doubling:TASK", "--budget", "2", "--page", str(page), "--json", "--dir", str(tmp_path)]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["measured"] == 2
    assert f"there is no folder {page.parent}" in err


@NO_BOX
def test_a_search_prints_a_table_and_a_diff_and_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["search", "doubling:TASK", "--budget", "7", "--page", str(page), "--dir", str(tmp_path)]) in (0, 1)
    out, err = capsys.readouterr()
    assert out.startswith("program")
    assert "[seed]" in err
    assert "0 tokens" in err
    assert page.read_text().count("<svg") == 3
    assert main(["search", "doubling:TASK", "--budget", "7", "--json", "--dir", str(tmp_path)]) in (0, 1)
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["measured"] == 7
    assert "goes on from 7 candidates" in err
    assert answer["finals"][0]["speedup"] == 1.0
