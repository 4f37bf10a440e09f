"""What a candidate changes around it is put back, but not what another thread may have changed; and that fails nobody."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest
import torch
from deadline import DeadlineError, deadline_in

from forecast_autotune.measure import process_state
from forecast_autotune.measure.process_state import RandomState, preserve_process_state


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # which also brings back the folder
    monkeypatch.delenv("MEDDLED", raising=False)
    umask, dtype = process_state._umask(), torch.get_default_dtype()
    yield
    os.umask(umask)
    torch.set_default_dtype(dtype)
    os.environ.pop("MEDDLED", None)
    torch.backends.cuda.matmul.fp32_precision = "none"  # type: ignore[assignment]  # as a process begins
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def another_thread() -> Iterator[threading.Thread]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def meddle() -> None:
    os.environ["MEDDLED"] = "1"
    os.umask(0o777 & ~process_state._umask())
    os.chdir("/")
    torch.set_default_dtype(torch.float64)


def shared() -> list[Any]:
    return [os.environ.get("MEDDLED"), process_state._umask(), os.getcwd(), torch.get_default_dtype()]


def test_in_a_single_threaded_program_what_a_candidate_changed_is_restored() -> None:
    before = shared()
    with preserve_process_state():
        meddle()
        assert all(now != then for now, then in zip(shared(), before, strict=True))
    assert shared() == before


@pytest.mark.parametrize("name", ["forecast_autotune-compile", "fsspecIO"])
def test_threads_of_the_package_count_for_none(name: str, another_thread: threading.Thread) -> None:
    another_thread.name = name
    before = shared()
    with preserve_process_state():
        meddle()
    assert shared() == before


def test_the_thread_that_reads_remote_stores_has_the_name_that_is_known() -> None:
    fsspec.asyn.get_loop()
    assert "fsspecIO" in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("another_thread")
def test_where_another_thread_may_have_changed_it_it_is_left() -> None:
    with preserve_process_state():
        meddle()
        meddled = shared()
    assert shared() == meddled


@pytest.mark.usefixtures("another_thread")
def test_random_state_and_gradient_mode_are_restored_whatever_threads_run() -> None:
    random.seed(1)
    torch.manual_seed(1)
    with preserve_process_state():
        drawn = random.random(), torch.rand(1)
        torch.set_grad_enabled(False)
    assert (random.random(), torch.rand(1)) == drawn
    assert torch.is_grad_enabled()


def test_numbers_are_drawn_again_from_a_state_that_is_put_back() -> None:
    state, drawn = RandomState(), []
    for _ in range(3):
        state.put_back()
        drawn.append((random.random(), torch.rand(1)))
    assert drawn[0] == drawn[1] == drawn[2]


def test_random_numbers_that_a_candidate_cannot_draw_are_not_rewound() -> None:
    random.seed(1)
    with preserve_process_state(draws=False):
        drawn = random.random(), torch.rand(1)
    assert (random.random(), torch.rand(1)) != drawn


def test_the_umask_is_not_set_to_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    umask = process_state._umask()
    with monkeypatch.context() as patched:
        patched.setattr(os, "umask", lambda _: pytest.fail("a file made now would get other permissions"))
        assert process_state._umask() == umask


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch older than 2.9")
def test_precision_set_by_torchs_newer_switch_is_kept_and_harms_nothing() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    before = shared()
    with preserve_process_state():
        meddle()
    assert shared() == before
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch older than 2.9")
def test_precision_is_put_back_where_a_candidate_used_the_newer_switch() -> None:
    before = shared()
    with preserve_process_state():
        meddle()
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert shared() == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_cannot_be_put_back_hides_no_outcome_and_hinders_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("not now")

    def candidate() -> None:
        with preserve_process_state():
            meddle()
            raise ValueError("the candidate's own")

    before = shared()
    with monkeypatch.context() as patched:
        for module, name in ((random, "setstate"), (torch, "set_rng_state"), (torch, "set_num_threads")):
            patched.setattr(module, name, refuse)
        with pytest.raises(ValueError, match="the candidate's own"):
            candidate()
    assert shared() == before


def test_a_folder_that_is_gone_is_no_candidates_failure(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with preserve_process_state():
        os.environ["MEDDLED"] = "1"
    assert "MEDDLED" not in os.environ


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (random, "getstate", 1),
        (Path, "read_text", 1),
        (random, "setstate", 1),
        (torch, "get_num_threads", 2),  # to see whether it has changed
        (process_state, "_set_environment", 1),
    ],
)
def test_what_a_handler_of_signals_raises_is_raised_once_all_is_put_back(owner: Any, name: str, call: int) -> None:
    @preserve_process_state()
    def candidate() -> None:
        meddle()
        random.random()

    before, numbers = shared(), random.getstate()
    with deadline_in(owner, name, call=call), pytest.raises(DeadlineError):
        candidate()
    assert shared() == before
    assert random.getstate() == numbers


def test_generators_are_put_back_whatever_a_handler_of_signals_raises() -> None:
    numbers = random.getstate()
    with deadline_in(random, "setstate"):
        state = RandomState()
        random.random()
        with pytest.raises(DeadlineError):
            state.put_back()
    assert random.getstate() == numbers
