"""Inductor's compile workers, told to load Triton's driver when a compile begins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_worker.subproc_pool import SubprocPool
from torch._inductor.runtime import triton_helpers

import forecast_autotune as fa
from forecast_autotune.frontends.inductor import workers
from forecast_autotune.frontends.inductor.workers import woken_with_drivers


class Pool(SubprocPool):
    """Takes jobs, and does each when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Future[None]]] = []
        self.came = threading.Semaphore(0)

    def submit(self, job: Any) -> Future[None]:
        future: Future[None] = Future()
        self.jobs.append((job, future))
        self.came.release()
        return future

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.came.acquire(timeout=20)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with inductor_config.patch(compile_threads=3):
        yield Pool()


def woken(pool: Pool, *, is_wanted: bool = True, ready: Any = "asked") -> list[Any]:
    """What was woken, by a class of Inductor's that uses a pool, or none."""
    asked: list[Any] = []
    inductor = SimpleNamespace(_ready_future=ready, process_pool=lambda: pool)
    woken_with_drivers(asked.append, lambda: is_wanted)(inductor)
    assert asked == [inductor]
    return asked


def no_thread_loads() -> None:
    until = time.monotonic() + 20
    while any(thread.name == "forecast_autotune drivers" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_worker_loads_the_driver_and_then_all_others(pool: Pool) -> None:
    woken(pool)
    pool.wait_for(1)
    assert [job for job, _ in pool.jobs] == [triton_helpers.set_driver_to_gpu]
    woken(pool)  # a second graph begins meanwhile
    pool.jobs[0][1].set_result(None)
    pool.wait_for(2)
    assert len(pool.jobs) == 3
    for _, future in pool.jobs[1:]:
        future.set_result(None)
    no_thread_loads()
    assert len(pool.jobs) == 3
    woken(pool)  # workers may have been started anew since
    pool.wait_for(1)
    pool.jobs[3][1].set_exception(RuntimeError("no GPU"))
    no_thread_loads()
    assert len(pool.jobs) == 4


@pytest.mark.parametrize(("is_wanted", "ready"), [(False, "asked"), (True, None)])
def test_nothing_is_loaded_where_ours_is_not_in_or_no_pool_is_used(pool: Pool, is_wanted: bool, ready: Any) -> None:
    woken(pool, is_wanted=is_wanted, ready=ready)
    no_thread_loads()
    assert not pool.jobs


def test_a_compile_goes_on_where_no_thread_can_be_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    woken(pool)
    assert not pool.jobs


def test_a_pool_that_waits_for_its_jobs_at_the_end_is_left_alone(pool: Pool) -> None:
    with ProcessPoolExecutor(1) as other:
        woken(other)  # type: ignore[arg-type]
        no_thread_loads()
        assert not other._pending_work_items


def test_nothing_is_loaded_in_a_program_without_a_gpu(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    woken(pool)
    no_thread_loads()
    assert not pool.jobs


def test_workers_of_inductor_s_own_pool_load_it(pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Real processes: what they load notes itself in files, for here there is no driver."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "stands_in.py").write_text(
        "import os, pathlib, time\n"
        f"def load():\n    pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.loaded').touch()\n    time.sleep(0.2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import stands_in  # type: ignore[import-not-found]

    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", stands_in.load)
    real = SubprocPool(3)
    try:
        workers._load_drivers(real, 3)
    finally:
        real.shutdown()
    assert 1 <= len(list(tmp_path.glob("*.loaded"))) <= 3


def test_inductor_s_own_waking_is_followed_once_ours_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    monkeypatch.setattr(AsyncCompile, "_ready_future", "asked")
    monkeypatch.setattr(AsyncCompile, "use_process_pool", lambda: False)
    monkeypatch.setattr(AsyncCompile, "process_pool", lambda: pool)
    fa.install(inductor=True)
    try:
        torch._inductor.virtualized.V.choices  # noqa: B018  # as Inductor asks for it
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        AsyncCompile.wakeup()
        pool.wait_for(1)
        pool.jobs[0][1].set_exception(RuntimeError("no GPU"))
        no_thread_loads()
    finally:
        fa.uninstall()
    AsyncCompile.wakeup()
    no_thread_loads()
    assert len(pool.jobs) == 1
