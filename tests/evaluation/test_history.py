from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import HERE, recording

from forecast_autotune.core.job import Recording
from forecast_autotune.evaluation.history import SAME_RUN, SAME_TASK, history_of
from forecast_autotune.evaluation.traces import write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "mine.jsonl", recording())


def written(path: Path, what: Recording) -> Path:
    write_trace(what, path)
    return path


def test_other_hardware_and_other_sizes_are_kept_in_their_order(trace: Path, tmp_path: Path) -> None:
    elsewhere = replace(HERE, name="elsewhere")
    larger = written(tmp_path / "larger.jsonl", recording(n=8192, best_block=7.5))
    other = written(tmp_path / "other.jsonl", recording(hardware=elsewhere, best_block=6.5))
    assert history_of(trace, [larger, other, larger]).kept == (larger, other)


def test_the_run_itself_and_a_repeat_of_it_are_left_out_with_the_reason(trace: Path, tmp_path: Path) -> None:
    copy = written(tmp_path / "copy.jsonl", recording())
    repeat = written(tmp_path / "repeat.jsonl", recording(best_block=7.25))
    history = history_of(trace, [trace, copy, repeat])
    assert history.kept == ()
    assert history.left_out == {trace: SAME_RUN, copy: SAME_RUN, repeat: SAME_TASK}


def test_another_kernel_is_neither_kept_nor_left_out(trace: Path, tmp_path: Path) -> None:
    own = recording()
    renamed = replace(own.workload, program=replace(own.workload.program, name="gemm"))
    other = written(tmp_path / "gemm.jsonl", replace(own, workload=renamed))
    history = history_of(trace, [other])
    assert (history.kept, dict(history.left_out)) == ((), {})
