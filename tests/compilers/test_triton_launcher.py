# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Launchers of Triton up to 3.6, built while a kernel compiles, as the first launch looks for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.nvidia import driver as nvidia  # noqa: E402

from forecast_autotune.compilers import triton_launcher  # noqa: E402
from forecast_autotune.compilers.triton_launcher import LauncherBuilds  # noqa: E402
from forecast_autotune.compilers.triton_source import compile_here, gpu_target, make_source  # noqa: E402

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


@pytest.mark.skipif(BUILDS, reason="this Triton builds a launcher for each signature")
def test_nothing_is_built_where_there_is_one_launcher_for_all() -> None:
    assert LauncherBuilds().begin(source(64)) is None


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_the_launch_of_a_compiled_kernel_finds_its_launcher_built(monkeypatch: pytest.MonkeyPatch) -> None:
    builds, made = LauncherBuilds(), source(128)
    build = builds.begin(made)
    assert build is not None
    build.join(120)
    kernel = compile_here(made)

    def compiler_runs(*_: Any, **__: Any) -> None:
        raise AssertionError("a launch had a C compiler run")

    monkeypatch.setattr(subprocess, "check_call", compiler_runs)
    launcher = nvidia.CudaLauncher(kernel.src, kernel.metadata)
    assert callable(launcher.launch)


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_a_signature_is_built_once_whatever_the_constants() -> None:
    builds = LauncherBuilds()
    first = builds.begin(source(64))
    assert builds.begin(source(128)) is None
    other = builds.begin(source(64, torch.float16))
    for build in (first, other):
        assert build is not None
        build.join(120)


@pytest.mark.skipif(not BUILDS, reason="this Triton has one launcher for all")
def test_without_a_c_compiler_launches_are_left_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    builds = LauncherBuilds()
    build = builds.begin(source(64))
    assert build is not None
    build.join(120)
    assert builds.begin(source(64, torch.float16)) is None


def test_a_backend_that_nobody_knows_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launcher, "_DRIVERS", {})
    assert LauncherBuilds().begin(source(64)) is None
