"""Triton on a machine without a GPU."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import forecast_autotune as fa
from forecast_autotune.errors import NoGpuError, TuningWarning

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from rehearsed import call, configs, playing, scale, tuned  # noqa: E402
from triton.backends import backends  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402
from triton.runtime.jit import KernelInterface  # noqa: E402

from forecast_autotune.frontends.triton import target  # noqa: E402
from forecast_autotune.frontends.triton.target import (  # noqa: E402
    compiled_for,
    current_hardware,
    current_toolchain,
    require_driver,
)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton on a machine without a GPU."""
    monkeypatch.setattr(driver, "_active", None)
    monkeypatch.setattr(driver, "_default", None)
    for backend in backends.values():
        monkeypatch.setattr(backend.driver, "is_active", lambda: False)


@pytest.mark.parametrize("listed", [configs(), configs([64])], ids=["two configs", "one config"])
def test_without_a_gpu_the_launch_says_what_can_be_done(no_driver: None, listed: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="0 active drivers"):
        scale[(4,)](torch.empty(4096), 1000, 2.0, BLOCK=64)
    with pytest.raises(NoGpuError, match="no GPU that Triton can use: kernel scale cannot be launched") as raised:
        call(tuned(configs=listed))
    assert isinstance(raised.value, RuntimeError), "as Triton's own"
    for way in (r"forecast \S*rehearsed.py:scale --target H100", "forecast_autotune.rehearsal", "TRITON_INTERPRET=1"):
        assert re.search(way, str(raised.value))


def test_a_variant_without_a_gpu_gives_way_to_one_that_runs(no_driver: None) -> None:
    kernel = tuned()

    def by_triton(x: Any) -> str:
        call(kernel)
        return "triton"

    either = fa.variants([lambda x: "torch", by_triton], key=["x"], check=None)
    assert either(torch.ones(8)) == "torch"
    (decision,) = either.decisions.values()
    assert decision.failed == len(kernel.configs)


def _broken(*_: Any) -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_broken_driver_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=_broken, get_current_device=_broken))
    for ask in (current_hardware, current_toolchain):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            ask()
    assert compiled_for() is None
    assert current_toolchain(GPUTarget("no such", 1, 32)).versions["backend"] == "none", "it is only named"


def test_without_a_driver_there_is_no_device_and_no_backend(no_driver: None) -> None:
    assert current_hardware().name == "no driver"
    assert current_toolchain().versions["backend"] == "none"
    assert compiled_for() is None


def test_a_call_runs_where_the_toolchain_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_backend_hash", _broken)
    kernel = tuned()
    with playing() as on:
        with pytest.warns(TuningWarning, match="is not tuned, its first config is run: RuntimeError: CUDA error"):
            call(kernel)
        assert sum(on.launches.values()) == 1
    assert not kernel.decisions


class Elsewhere(KernelInterface):  # type: ignore[misc]
    """A kernel that a program's own code launches, on no device of Triton's."""

    fn, arg_names = staticmethod(scale.fn), scale.arg_names

    def run(self, *args: Any, BLOCK: int, **kwargs: Any) -> int:  # noqa: N803
        return BLOCK


def test_a_kernel_of_a_programs_own_make_needs_no_gpu(no_driver: None) -> None:
    assert call(tuned(Elsewhere(), configs=configs([64]))) == 64


def test_in_a_rehearsal_and_in_the_interpreter_no_gpu_is_needed(no_driver: None) -> None:
    kernel = tuned()
    with playing():
        call(kernel)
    assert len(kernel.decisions) == 1
    with pytest.raises(NoGpuError):
        require_driver(scale)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        require_driver(scale)
