# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Triton's hash of itself, and what workers are forked from: made ready while a program still starts."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.cache import triton_key  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.compilers import triton_ahead, triton_pool  # noqa: E402
from forecast_autotune.compilers.triton_launcher import LauncherTask  # noqa: E402
from forecast_autotune.compilers.triton_pool import WorkerPool, current_setup  # noqa: E402
from forecast_autotune.compilers.triton_source import gpu_target  # noqa: E402
from forecast_autotune.processes.fork_server import ForkServer  # noqa: E402


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    monkeypatch.setattr(triton_pool, "shared_pool", lambda: pool)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def with_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(triton_ahead, "DRIVERS", (str(driver),))
    monkeypatch.setattr(triton_ahead, "_hashing", None)
    triton_key.cache_clear()
    yield
    fa.uninstall()


def is_hashed() -> bool:
    triton_ahead.wait_for_hash()
    return bool(triton_key.cache_info().currsize)


def decorated(**options: Any) -> None:
    @fa.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"], **options)
    @triton.jit
    def kernel(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr, n)


@pytest.mark.parametrize("begins", [fa.install, decorated])
def test_triton_is_hashed_once_a_program_is_to_launch_kernels(begins: Callable[[], None]) -> None:
    begins()
    assert is_hashed()
    triton_key.cache_clear()
    begins()
    assert not is_hashed()


def test_a_compile_waits_for_the_hash_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, began = threading.Event(), threading.Event()

    def hash_slowly() -> None:
        began.set()
        may_end.wait(60)

    monkeypatch.setattr(triton_ahead, "_hash_triton", hash_slowly)
    fa.install()
    assert began.wait(60)
    waiting = threading.Thread(target=triton_ahead.wait_for_hash)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    may_end.set()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_mistaken_setting_is_left_for_the_first_call_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUGDET", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fa.install()
        decorated()
    assert is_hashed()


@pytest.mark.parametrize(
    "why", ["nothing to launch on", "left to Triton", "a setting is wrong", "loads data", "code leaves it"]
)
def test_triton_is_not_hashed(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "nothing to launch on":
        monkeypatch.setattr(triton_ahead, "DRIVERS", ("/dev/none",))
    if why == "left to Triton":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    if why == "a setting is wrong":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "quickly")
    if why == "loads data":
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    decorated(mode="first") if why == "code leaves it" else fa.install()
    assert not is_hashed()


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_workers_are_forked_from_is_ready_before_the_first_is_wanted(pool: WorkerPool) -> None:
    fa.install()
    wait_for(lambda: pool._server.pid)
    server = pool._server.pid
    assert pool.started == 0
    task = LauncherTask(name="kernel", signature={}, target=gpu_target("cuda:90"))
    setup = current_setup()
    assert setup is not None
    pool.submit(task, setup, 60).result(60)
    assert pool._server.pid == server
    assert pool.started == 1


def test_it_ends_where_no_worker_is_wanted_soon(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pool, "IDLE_S", 0.1)
    fa.install()
    wait_for(lambda: pool._server._folder)  # one was started
    wait_for(lambda: pool._server.pid is None)


@pytest.mark.parametrize("mode", ["online", "cached", "forecast", "strict", "first"])
def test_workers_are_not_made_ready_where_no_call_waits_for_them(
    mode: str, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    fa.install()
    assert not pool._threads


def test_install_makes_workers_ready_though_triton_was_hashed_before(pool: WorkerPool) -> None:
    decorated()
    fa.install()
    wait_for(lambda: pool._server.pid)


@pytest.mark.parametrize("fails", ["thread", "server"])
def test_where_nothing_can_be_made_ready_the_first_task_is_done_all_the_same(
    fails: str, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("there is no more of it")

    with monkeypatch.context() as patch:
        patch.setattr(*((threading.Thread, "start") if fails == "thread" else (ForkServer, "begin")), fail)
        with contextlib.suppress(RuntimeError):
            pool.start_ahead()
        time.sleep(0.1)
    task = LauncherTask(name="kernel", signature={}, target=gpu_target("cuda:90"))
    setup = current_setup()
    assert setup is not None
    assert pool.submit(task, setup, 60).result(60)


def test_workers_are_not_made_ready_where_a_kernel_is_but_decorated(pool: WorkerPool) -> None:
    decorated()
    assert not pool._threads
