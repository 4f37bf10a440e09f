# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What stands around a timed launch: the user's hooks, what is put back, what cannot be. Values count: it is interpreted."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from forecast_autotune.errors import TuningWarning
from forecast_autotune.measure import clocks, copies

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import call, configs, own_triton_cache, playing, tuned  # noqa: E402

from forecast_autotune.frontends.triton import door  # noqa: E402

HOUR_NS = 3_600 * 10**9


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        yield


def kernel_in_place(**arguments: Any) -> Any:
    @triton.jit
    def add_one(x_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    return tuned(add_one, configs=configs((32, 64)), **arguments)


def launch(kernel: Any, x: Any) -> None:
    kernel[lambda knobs: (triton.cdiv(len(x), knobs["BLOCK"]),)](x, len(x))


def test_an_undeclared_in_place_kernel_is_reported_and_computes_correctly() -> None:
    kernel, x = kernel_in_place(), torch.zeros(64)
    with pytest.warns(TuningWarning, match="reads what it writes to x_ptr: name that in restore_value"):
        launch(kernel, x)
    assert x.tolist() == [1.0] * 64
    (decision,) = kernel.decisions.values()
    assert decision.tried == 2


@pytest.mark.parametrize("isolate", [False, True])
def test_one_that_says_so_is_left_in_peace(isolate: bool) -> None:
    kernel, x = kernel_in_place(restore_value=["x_ptr"], isolate=isolate), torch.zeros(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(kernel, x)
    assert x.tolist() == [1.0] * 64


def test_one_that_starts_from_zeros_is_left_in_peace_and_starts_from_zeros() -> None:
    kernel, x = kernel_in_place(reset_to_zero=["x_ptr"]), torch.full((64,), 7.0)
    launch(kernel, x)
    assert x.tolist() == [1.0] * 64


def test_hooks_of_the_users_run_around_each_launch_and_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"before": 0, "after": 0}

    def before(named: dict[str, Any], reset_only: bool = False) -> None:
        calls["before"] += not reset_only

    def after(named: dict[str, Any], exception: Exception | None) -> None:
        calls["after"] += 1

    def hour_a_hook() -> int:
        return time.perf_counter_ns() + sum(calls.values()) * HOUR_NS

    monkeypatch.setattr(clocks, "time", Mock(wraps=time, perf_counter_ns=hour_a_hook))

    kernel = kernel_in_place(pre_hook=before, post_hook=after, restore_value=["x_ptr"])
    launch(kernel, torch.zeros(64))
    assert calls["before"] == calls["after"] > 4
    assert all(times[0] < HOUR_NS / 1e6 for times in kernel.configs_timings.values())


@pytest.mark.parametrize("options", [{}, {"restore_value": ["x_ptr"]}])
def test_hooks_that_are_assigned_later_run_around_each_launch_too(options: dict[str, Any]) -> None:
    before, after = set(), set()
    kernel, x = kernel_in_place(**options), torch.zeros(64)
    kernel.pre_hook = lambda named, reset_only=False: before.add(named["BLOCK"])
    kernel.post_hook = lambda named, exception: after.add(named["BLOCK"])
    launch(kernel, x)
    assert before == after == {32, 64}
    assert x.tolist() == [1.0] * 64


def test_a_pre_hook_takes_the_place_of_reset_to_zero() -> None:
    seen: list[float] = []

    def pre_hook(named: dict[str, Any], reset_only: bool = False) -> None:
        seen.append(float(named["x_ptr"][0]))

    kernel, x = kernel_in_place(reset_to_zero=["x_ptr"], pre_hook=pre_hook), torch.full((64,), 7.0)
    launch(kernel, x)
    assert 0.0 not in seen
    assert x.tolist() == [8.0] * 64


@pytest.mark.parametrize("parameter", ["restore_value", "reset_to_zero"])
def test_restoring_what_is_no_tensor_is_reported_and_the_first_config_runs(parameter: str) -> None:
    kernel, x = kernel_in_place(**{parameter: ["n"]}), torch.zeros(64)
    with pytest.warns(TuningWarning, match=f"{parameter} names n, which is 64 in this call"):
        kernel[(2,)](x, 64)
    assert x.tolist() == [1.0] * 64
    assert not kernel.decisions


def test_more_to_restore_than_fits_is_reported_and_the_first_config_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 100)
    kernel, x = kernel_in_place(restore_value=["x_ptr"]), torch.zeros(64)
    with pytest.warns(TuningWarning, match="a copy of x_ptr to restore takes 0 MiB, and 0 MiB are free"):
        kernel[(2,)](x, 64)
    assert x.tolist() == [1.0] * 64


def test_without_memory_for_copies_nothing_is_measured_and_the_user_warned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 1000)
    kernel, x = kernel_in_place(), torch.zeros(64)
    with pytest.warns(
        TuningWarning, match="MiB are free. Nothing is measured, unless restore_value or reset_to_zero name"
    ):
        launch(kernel, x)
    assert x.tolist() == [1.0] * 64
    assert not kernel.decisions


@pytest.mark.parametrize("parameter", ["restore_value", "reset_to_zero"])
def test_configs_run_on_the_callers_tensors_where_writes_are_declared(
    monkeypatch: pytest.MonkeyPatch, parameter: str
) -> None:
    monkeypatch.setattr(copies, "usable_memory_bytes", lambda: 1000)
    kernel, x = kernel_in_place(**{parameter: ["x_ptr"]}), torch.zeros(64)
    launch(kernel, x)
    assert x.tolist() == [1.0] * 64
    (decision,) = kernel.decisions.values()
    assert decision.tried == 2


def test_an_unexpected_exception_ends_one_config_and_warns_once() -> None:
    def broken(named: dict[str, Any]) -> None:
        raise KeyError("a slip")

    kernel, x = kernel_in_place(restore_value=["x_ptr"]), torch.zeros(64)
    kernel.configs = [triton.Config({"BLOCK": b}, pre_hook=None if b == 32 else broken) for b in (32, 64, 128)]
    with pytest.warns(TuningWarning, match=r"add_one: BLOCK: 64.* raised KeyError: 'a slip'. Tuning goes on") as warned:
        launch(kernel, x)
    assert x.tolist() == [1.0] * 64
    assert len(warned) == 1
    (decision,) = kernel.decisions.values()
    assert (decision.basis, decision.tried, decision.failed) == ("measured", 3, 2)


def test_random_numbers_are_left_alone_where_nothing_of_the_users_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewound(_: object) -> None:
        raise AssertionError("another thread would draw its numbers again")

    for module, name in ((random, "setstate"), (torch, "set_rng_state")):
        monkeypatch.setattr(module, name, rewound)
    kernel, x = kernel_in_place(restore_value=["x_ptr"]), torch.zeros(64)
    drawn = random.random()
    launch(kernel, x)
    assert random.random() != drawn


def test_arguments_that_share_memory_are_tuned_on_as_they_are() -> None:
    @triton.jit
    def shift(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    kernel, x = tuned(shift, configs=configs((32, 64)), check="allclose"), torch.zeros(64)
    with pytest.warns(TuningWarning, match="reads what it writes to x_ptr, y_ptr"):
        kernel[lambda knobs: (triton.cdiv(64, knobs["BLOCK"]),)](x, x, 64)
    assert x.tolist() == [1.0] * 64


def test_a_hook_that_raises_fails_the_configs_and_a_launch_still_happens() -> None:
    def hook(named: dict[str, Any], reset_only: bool = False) -> None:
        if not reset_only:
            raise KeyError("no such thing")

    kernel, x = kernel_in_place(pre_hook=hook), torch.zeros(64)
    kernel[(2,)](x, 64)
    assert x.tolist() == [1.0] * 64
    (decision,) = kernel.decisions.values()
    assert (decision.basis, decision.failed) == ("default", 2)


def test_a_check_that_raises_is_reported_and_the_first_config_launched() -> None:
    def check(got: Any, expected: Any) -> None:
        raise ZeroDivisionError("a slip in the check")

    kernel, x = kernel_in_place(check=check, restore_value=["x_ptr"]), torch.zeros(64)
    with pytest.warns(TuningWarning, match="fails on the default config's own outputs"):
        kernel[(2,)](x, 64)
    assert x.tolist() == [1.0] * 64


def test_a_half_written_tensor_is_restored_when_tuning_is_interrupted() -> None:
    kernel, x = kernel_in_place(restore_value=["x_ptr"]), torch.zeros(64)
    runs = []

    def interrupt(named: dict[str, Any]) -> None:
        runs.append(1)
        if len(runs) > 1:
            raise KeyboardInterrupt

    kernel.configs = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, pre_hook=interrupt)]
    with pytest.raises(KeyboardInterrupt):
        launch(kernel, x)
    assert x.tolist() == [0.0] * 64


def test_nothing_is_timed_while_a_graph_is_captured_and_the_key_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from forecast_autotune.cli import main

    triton.knobs.runtime.interpret = False
    kernel = tuned()
    with own_triton_cache(tmp_path), playing() as on:
        monkeypatch.setattr(door, "is_capturing", lambda: True)
        call(kernel)
        assert on.launches.total() == 1
        main(["pending"])
        assert "a CUDA graph was being captured" in capsys.readouterr().out
        monkeypatch.setattr(door, "is_capturing", lambda: False)
        call(kernel)
    (decision,) = kernel.decisions.values()
    assert decision.tried == 4
    main(["pending"])
    assert "no key is pending" in capsys.readouterr().err
