# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Triton's hash of itself, taken while a program still starts."""

from __future__ import annotations

import multiprocessing
import threading
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
from forecast_autotune.compilers import triton_hash  # noqa: E402


@pytest.fixture(autouse=True)
def with_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(triton_hash, "DRIVERS", (str(driver),))
    monkeypatch.setattr(triton_hash, "_hashing", None)
    triton_key.cache_clear()
    yield
    fa.uninstall()


def is_hashed() -> bool:
    triton_hash.wait_for_hash()
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

    monkeypatch.setattr(triton_hash, "_hash_triton", hash_slowly)
    fa.install()
    assert began.wait(60)
    waiting = threading.Thread(target=triton_hash.wait_for_hash)
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
        monkeypatch.setattr(triton_hash, "DRIVERS", ("/dev/none",))
    if why == "left to Triton":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    if why == "a setting is wrong":
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "quickly")
    if why == "loads data":
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    decorated(mode="first") if why == "code leaves it" else fa.install()
    assert not is_hashed()
