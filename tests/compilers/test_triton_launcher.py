# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Launchers of Triton up to 3.6, built while a kernel compiles, as the first launch looks for them."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.nvidia import driver as nvidia  # noqa: E402

from forecast_autotune.compilers import triton_compile, triton_launcher, triton_pool  # noqa: E402
from forecast_autotune.compilers.triton_compile import SourceCompiler  # noqa: E402
from forecast_autotune.compilers.triton_launcher import LauncherBuilds  # noqa: E402
from forecast_autotune.compilers.triton_pool import Compiling, WorkerPool, current_setup  # noqa: E402
from forecast_autotune.compilers.triton_source import compile_here, gpu_target, make_source  # noqa: E402
from forecast_autotune.compilers.triton_worker import BuildResult  # noqa: E402
from forecast_autotune.processes.core_slots import CoreSlots  # noqa: E402

BUILDS = hasattr(nvidia, "make_launcher")
DRIVERS_FUNCTIONS = (
    "cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuFuncSetAttribute",
    "cuGetErrorString", "cuLaunchKernel", "cuLaunchKernelEx", "cuPointerGetAttribute",
)  # fmt: skip


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2.0 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def source(block: int, dtype: Any = torch.float32) -> Any:
    x = torch.empty(1000, device="meta", dtype=dtype)
    return make_source(double, (x, x, 1000), {"BLOCK": block}, gpu_target("cuda:90"))


@pytest.fixture(autouse=True)
def _cache_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, and a driver to link with."""
    library, code = tmp_path / "libcuda.so.1", tmp_path / "driver.c"
    code.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in DRIVERS_FUNCTIONS))
    subprocess.run(["gcc", "-shared", str(code), f"-Wl,-soname,{library}", "-o", str(library)], check=True)
    (tmp_path / "libcuda.so").symlink_to(library)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for kept in ("libcuda_dirs", "library_dirs"):
        if hasattr(nvidia, kept):
            getattr(nvidia, kept).cache_clear()
    yield
    for kept in ("libcuda_dirs", "library_dirs"):
        if hasattr(nvidia, kept):
            getattr(nvidia, kept).cache_clear()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(2)
    yield made
    made.close()


def begin(builds: LauncherBuilds, made: Any, pool: WorkerPool) -> Any:
    setup = current_setup()
    assert setup is not None
    return builds.begin(made, pool, setup)


@pytest.mark.skipif(BUILDS, reason="this Triton builds a launcher for each signature")
def test_nothing_is_built_where_there_is_one_launcher_for_all(pool: WorkerPool) -> None:
    assert begin(LauncherBuilds(), source(64), pool) is None
    assert pool.started == 0


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_the_launch_of_a_compiled_kernel_finds_its_launcher_built(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source(128)
    assert begin(LauncherBuilds(), made, pool).result(120).error == ""
    kernel = compile_here(made)

    def compiler_runs(*_: Any, **__: Any) -> None:
        raise AssertionError("a launch had a C compiler run")

    monkeypatch.setattr(subprocess, "check_call", compiler_runs)
    assert "__triton_launcher" not in sys.modules  # nothing of it is loaded here but by a launch
    launcher = nvidia.CudaLauncher(kernel.src, kernel.metadata)
    assert callable(launcher.launch)


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_a_kernel_that_is_compiled_has_its_launcher_begun(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    builds, begun = LauncherBuilds(), []
    monkeypatch.setattr(triton_compile.launcher_builds, "begin", lambda *given: begun.append(builds.begin(*given)))
    configs = [Config({"BLOCK": block}) for block in (64, 128)]
    compiler = SourceCompiler(lambda config: source(int(config["BLOCK"])), properties={}, pool=pool)  # type: ignore[call-overload]
    assert all(isinstance(result, Evidence) for _, result in compiler.compile(configs))
    assert [each is not None for each in begun] == [True, False]  # one signature
    assert begun[0].result(120).error == ""


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_without_a_c_compiler_launches_are_left_to_say_so(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    builds = LauncherBuilds()
    assert "/nowhere/cc" in begin(builds, source(64), pool).result(120).error
    assert begin(builds, source(64, torch.float16), pool) is None
    assert not builds.builds("cuda")


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_closing_the_pool_silently_ends_a_c_compiler_that_hangs(
    tmp_path: Path, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler, begun = tmp_path / "cc", tmp_path / "begun"
    compiler.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 3600\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    building = begin(LauncherBuilds(), source(64), pool)
    while not begun.exists():
        time.sleep(0.01)
    pool.close()
    assert building.result(120).error
    assert "once more" not in caplog.text


def test_a_backend_that_nobody_knows_builds_nothing(pool: WorkerPool) -> None:
    assert not LauncherBuilds().builds("abacus")


class Handed:
    """A pool that takes a launcher and leaves it to the test when it is begun and done."""

    def __init__(self) -> None:
        self.building = Compiling()

    def submit(self, *_: Any) -> Compiling:
        return self.building


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> tuple[LauncherBuilds, Any, Handed]:
    builds, made, pool = LauncherBuilds(), source(64), Handed()
    monkeypatch.setattr(builds, "builds", lambda _: True)
    assert begin(builds, made, pool) is pool.building  # type: ignore[arg-type]
    return builds, made, pool


def taken(building: Compiling) -> None:
    """As a thread of the pool takes a task, and a worker gets it."""
    building.set_running_or_notify_cancel()
    building.begun = time.perf_counter()


def test_a_launch_waits_for_the_launcher_that_a_worker_is_at(handed: tuple[LauncherBuilds, Any, Handed]) -> None:
    builds, made, pool = handed
    taken(pool.building)
    later = threading.Timer(0.2, pool.building.set_result, [BuildResult(cost_s=0.2)])
    later.start()
    builds.finish(made, math.inf)
    assert pool.building.done()
    assert begin(builds, made, pool) is None  # type: ignore[arg-type] # it is there
    later.join()


def test_a_launcher_that_no_worker_is_at_is_left_to_its_launch(handed: tuple[LauncherBuilds, Any, Handed]) -> None:
    builds, made, pool = handed
    builds.finish(made, math.inf)
    assert pool.building.cancelled()
    assert builds.builds("cuda")  # nothing was wrong with it


@pytest.mark.parametrize("held", ["core", "pool"])
def test_a_launcher_held_up_by_a_core_or_a_pause_is_left_to_its_launch(
    held: str, pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds, made = LauncherBuilds(), source(64)
    monkeypatch.setattr(builds, "builds", lambda _: True)
    monkeypatch.setattr(triton_launcher, "PATIENCE_S", math.inf)
    (tmp_path / "cores").mkdir()
    slots = CoreSlots(tmp_path / "cores", cores=lambda: [0])
    monkeypatch.setattr(triton_pool, "core_slots", lambda: slots)
    with slots.held() if held == "core" else pool.paused():
        building = begin(builds, made, pool)
        while not building.running():
            time.sleep(0.01)
        builds.finish(made, math.inf)
    assert "abandoned" in building.result(120).error
    assert builds.builds("cuda")


@pytest.mark.parametrize(("left_s", "waited_s"), [(0.1, 0.1), (math.inf, triton_launcher.PATIENCE_S)])
def test_a_launcher_is_waited_for_once_and_no_longer_than_the_run_has_left(
    left_s: float, waited_s: float, handed: tuple[LauncherBuilds, Any, Handed], monkeypatch: pytest.MonkeyPatch
) -> None:
    builds, made, pool = handed
    waited: list[float] = []
    monkeypatch.setattr(triton_launcher, "wait", lambda _, seconds: waited.append(seconds))
    taken(pool.building)
    builds.finish(made, left_s)
    builds.finish(made, left_s)
    builds.finish(source(64, torch.float16), left_s)  # of which none was begun
    assert waited == [waited_s]


def test_a_forked_child_waits_for_no_launcher_of_its_parents(
    handed: tuple[LauncherBuilds, Any, Handed], monkeypatch: pytest.MonkeyPatch
) -> None:
    builds, made, pool = handed
    monkeypatch.setattr(triton_launcher, "PATIENCE_S", math.inf)
    taken(pool.building)
    builds.after_fork_in_child()
    builds.finish(made, math.inf)
    assert not pool.building.done()
