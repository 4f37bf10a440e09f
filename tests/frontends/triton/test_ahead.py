# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What the first launch waits for, done while a program still starts."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.cache import triton_key  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.frontends.triton import ahead  # noqa: E402


@pytest.fixture(autouse=True)
def with_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(ahead, "DRIVERS", (str(driver),))
    monkeypatch.setattr(ahead, "_is_begun", False)
    triton_key.cache_clear()
    yield
    fa.uninstall()


def is_hashed() -> bool:
    for thread in threading.enumerate():
        if thread.name == "forecast_autotune-hash":
            thread.join(60)
    return bool(triton_key.cache_info().currsize)


def test_triton_is_hashed_once_install_is_called() -> None:
    fa.install()
    assert is_hashed()
    triton_key.cache_clear()
    fa.install()
    assert not is_hashed()


def test_triton_is_hashed_once_a_kernel_is_decorated() -> None:
    @fa.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
    @triton.jit
    def kernel(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr, n)

    assert is_hashed()


@pytest.mark.parametrize("why", ["nothing to launch on", "left to Triton", "a setting is wrong", "loads data"])
def test_triton_is_not_hashed(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "nothing to launch on":
        monkeypatch.setattr(ahead, "DRIVERS", ("/dev/none",))
    if why == "left to Triton":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    if why == "a setting is wrong":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "quickly")
    if why == "loads data":
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    fa.install()
    assert not is_hashed()
