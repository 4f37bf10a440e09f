from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from forecast_autotune.cli._processes import side_by_side


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def fail(_: int) -> None:
    raise ValueError("no")


def mark() -> None:
    Path(os.environ["MARKED"]).touch()


def test_each_task_has_its_answer() -> None:
    found = dict(side_by_side(abs, [-1, -2, 3], 2))
    assert found == {-1: 1, -2: 2, 3: 3}


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
    mine = set(multiprocessing.active_children()) - others
    assert mine
    began = time.monotonic()
    answers.close()
    for process in mine:
        process.join(30)
    assert time.monotonic() - began < 20
    assert not mine & set(multiprocessing.active_children())
