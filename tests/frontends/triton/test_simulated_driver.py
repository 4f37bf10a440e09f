# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""The rehearsal driver: compiles and refuses for real, plays recorded times, and leaves no trace behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import REHEARSAL_KINDS, Toolchain
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.triton.simulated_driver import RehearsedFailureError, current_rehearsal, rehearsal

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402


@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


@triton.jit
def hungry(a_ptr, b_ptr, c_ptr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, 4096, BK):
        a = tl.load(a_ptr + m[:, None] * 4096 + k[None, :] + start)
        b = tl.load(b_ptr + (k[:, None] + start) * 4096 + n[None, :])
        total += tl.dot(a, b)
    tl.store(c_ptr + m[:, None] * 4096 + n[None, :], total.to(tl.float16))


pytestmark = pytest.mark.usefixtures("own_cache")


def config(block: int, warps: int = 4) -> Config:
    return Config({"BLOCK": block, "num_warps": warps})


def launch(block: int, warps: int = 4, n: int = 1000) -> None:
    scale[(4,)](torch.empty(n), n, 2.0, BLOCK=block, num_warps=warps)


def recording(outcomes: dict[Config, Outcome], **key: object) -> Recording:
    return Recording(
        workload=Workload(program=Program(name="scale", language="triton", source="…"), key=key),
        hardware=sheet_for("H100"),
        toolchain=Toolchain(versions={}),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def test_launches_advance_the_clock_by_the_recorded_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what another test has compiled counts as none
    with rehearsal("cuda:90", {config(64): 10.0, config(128): 4.0}) as on:
        launch(64)
        launch(128)
        launch(128)
    assert on.clock_us == 18.0
    assert on.launches == {("scale", config(64)): 1, ("scale", config(128)): 2}
    assert on.compiles == {"scale": 2}
    assert on.loads == {"scale": 2}


def test_tritons_own_benchmark_and_autotuner_read_the_clock() -> None:
    times = {config(64): 100.0, config(128): 40.0, config(256): 70.0}
    tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128, 256)], key=["n"])(scale)
    with rehearsal("cuda:90", times):
        assert triton.testing.do_bench(lambda: launch(64)) == pytest.approx(0.1)
        tuned[(4,)](torch.empty(1000), 1000, 2.0)
    assert tuned.best_config.kwargs == {"BLOCK": 128}
    assert sorted(t[0] for t in tuned.configs_timings.values()) == pytest.approx([0.04, 0.07, 0.1])


def test_a_config_nobody_recorded_is_named() -> None:
    with rehearsal("cuda:90", {config(64): 10.0}), pytest.raises(InvalidInputError) as refusal:
        launch(128, warps=8)
    assert "'scale'" in str(refusal.value)
    assert "BLOCK=128 num_warps=8" in str(refusal.value)
    with rehearsal("cuda:90"), pytest.raises(InvalidInputError, match="no time is recorded"):
        launch(64)


@pytest.mark.parametrize("key_of", [lambda n: {"n": n}, lambda n: {"given constexprs": {"n": n}}])
def test_recordings_are_chosen_by_the_keys_of_the_call(key_of: Any) -> None:
    small = recording({config(64): Measurement(samples_us=(3.0, 5.0))}, **key_of(100))
    large = recording({config(64): Measurement(samples_us=(50.0,))}, **key_of(1000))
    with rehearsal("cuda:90", [small, large]) as on:
        launch(64, n=1000)
        assert on.clock_us == 50.0
        for _ in range(4):
            launch(64, n=100)
    assert on.clock_us == 50.0 + 3.0 + 5.0 + 3.0 + 5.0 or on.clock_us == 50.0 + 5.0 + 3.0 + 5.0 + 3.0


def test_a_recorded_failure_fails_the_launch() -> None:
    with rehearsal("cuda:90", recording({config(64): Failure(stage="launch", message="illegal access")})) as on:
        with pytest.raises(RehearsedFailureError, match="launch: illegal access"):
            launch(64)
        assert not on.launches


def test_times_are_given_by_kernel_where_there_are_several() -> None:
    with rehearsal("cuda:90", {"scale": {config(64): 7.0}, "hungry": 9.0}) as on:
        launch(64)
        a = torch.empty(16, dtype=torch.float16)
        hungry[(1,)](a, a, a, BM=64, BN=64, BK=32, num_warps=4, num_stages=2)
    assert on.clock_us == 16.0


def test_a_launch_that_does_not_fit_is_refused_with_tritons_own_error() -> None:
    a = torch.empty(16, dtype=torch.float16)
    with rehearsal("cuda:90", 1.0) as on:
        with pytest.raises(
            triton.runtime.errors.OutOfResources, match="shared memory, Required: 294912, Hardware limit: 232448"
        ):
            hungry[(1,)](a, a, a, BM=128, BN=256, BK=128, num_warps=8, num_stages=3)
        assert not on.launches
    with rehearsal("A10", 1.0), pytest.raises(triton.runtime.errors.OutOfResources, match="Hardware limit: 101376"):
        hungry[(1,)](a, a, a, BM=128, BN=256, BK=64, num_warps=8, num_stages=4)


def test_the_driver_that_was_active_is_active_again() -> None:
    from triton.runtime.driver import driver

    before, listener = dict(vars(driver)), triton.knobs.compilation.listener
    assert current_rehearsal() is None
    with rehearsal("cuda:90", 1.0) as outer:
        assert current_rehearsal() is outer
        with rehearsal("hip:gfx942", 1.0) as inner:
            assert current_rehearsal() is inner
            assert driver.active.get_current_target().backend == "hip"
        assert current_rehearsal() is outer
        assert driver.active.get_current_target().arch == 90
    with pytest.raises(KeyError), rehearsal("cuda:80", 1.0):
        raise KeyError
    assert vars(driver) == before
    assert triton.knobs.compilation.listener is listener


def test_a_kernel_that_outlives_its_rehearsal_is_unloaded_when_that_ends() -> None:
    with rehearsal("cuda:90", 1.0):
        kernel = scale[(4,)](torch.empty(100), 100, 2.0, BLOCK=32, num_warps=4)
        assert kernel.module is not None
    assert kernel.module is None
    with rehearsal("cuda:90", 1.0) as again:
        kernel._init_handles()
        assert again.loads["scale"] == 1, "loaded anew by the driver that is active now"


def test_rehearsals_for_different_targets_do_not_mix_their_kernels() -> None:
    for target, arch in (("cuda:80", 80), ("cuda:100", 100), ("cuda:90", 90)):
        with rehearsal(target, 1.0):
            kernel = scale[(4,)](torch.empty(100), 100, 2.0, BLOCK=64, num_warps=4)
        assert kernel.metadata.target.arch == arch


def test_its_hardware_matches_no_real_key() -> None:
    with rehearsal("H100") as on:
        assert on.hardware.kind in REHEARSAL_KINDS
        assert on.hardware.digest != sheet_for("H100").digest
        assert on.hardware.bandwidth_gb_per_s == sheet_for("H100").bandwidth_gb_per_s


def test_hooks_hear_of_each_launch() -> None:
    heard: list[str] = []
    hooks: Any = triton.knobs.runtime
    if hooks.launch_enter_hook is None:
        pytest.skip("this Triton takes one hook, no list of them")
    enter = lambda _: heard.append("enter")  # noqa: E731
    leave = lambda _: heard.append("leave")  # noqa: E731
    hooks.launch_enter_hook.add(enter)
    hooks.launch_exit_hook.add(leave)
    try:
        with rehearsal("cuda:90", 1.0):
            launch(64)
    finally:
        hooks.launch_enter_hook.remove(enter)
        hooks.launch_exit_hook.remove(leave)
    assert heard == ["enter", "leave"]


def test_in_real_time_a_launch_lasts_as_long_as_it_was_recorded() -> None:
    with rehearsal("cuda:90", 20_000.0, realtime=True) as on:
        launch(64)  # loaded
        on.synchronize()
        began = time.perf_counter()
        launch(64)
        launch(64)
        on.synchronize()
        assert time.perf_counter() - began >= 0.04


def test_times_that_are_none_are_refused() -> None:
    for times in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInputError, match="positive microseconds"), rehearsal("cuda:90", times):
            pass
    with pytest.raises(InvalidInputError, match="keys are Configs"), rehearsal("cuda:90", {3: 1.0}):  # type: ignore[dict-item]
        pass
    with pytest.raises(InvalidInputError, match="no hardware sheet"), rehearsal("cuda:1"):
        pass
