# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Telling what a call launches: the very kernels that the real call compiles, and nothing of it happens."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from contracts.compiler_contract import CompilerContract

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from kernel_suite import suite_kernels  # noqa: E402
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from forecast_autotune.compilers.triton_launches import (  # noqa: E402
    LaunchesCompiler,
    combine_evidence,
    launches,
    static_features,
    without_data,
)
from forecast_autotune.compilers.triton_pool import WorkerPool  # noqa: E402
from forecast_autotune.compilers.triton_source import gpu_target, make_source  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Evidence, Failure  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.features.hardware_sheets import device_properties, sheet_for  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402

TARGET = "cuda:90"
LIMITS = device_properties(sheet_for("H200"))


@triton.jit
def biased(x_ptr, bias_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n).to(tl.float32) * factor
    if bias_ptr is not None:
        value += tl.load(bias_ptr + at, mask=at < n)
    tl.store(y_ptr + at, value, mask=at < n)


@triton.jit
def at_least_64(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 64, "too small a block")
    tl.store(x_ptr + tl.arange(0, BLOCK), 0)


pytestmark = pytest.mark.usefixtures("own_cache")


class TestLaunchesCompiler(CompilerContract):
    def make_compiler(self) -> LaunchesCompiler:
        def launched(config: Config) -> Sequence[Any]:
            return launches(at_least_64[(1,)], (half(1024),), config.knobs)

        return LaunchesCompiler(launched, target=TARGET, properties=LIMITS)

    def good(self) -> list[Config]:
        return [Config({"BLOCK": 64}), Config({"BLOCK": 128})]

    def unbuildable(self) -> Config:
        return Config({"BLOCK": 32})


def half(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.float16)


def add(x: Any, y: Any, *, bias: Any = None, n: int = 1000, factor: Any = 2.0, block: int = 64) -> None:
    biased[(1,)](x, bias, y, n, factor, BLOCK=block)


WEIGHT = half(1001)


def add_weight(x: Any, y: Any) -> None:
    add(x, y, bias=WEIGHT[1:])


def add_what_it_makes(x: Any, y: Any) -> None:
    made = torch.empty(x.numel() + 1, dtype=torch.float32, device=x.device)
    add(x, y, bias=made)
    add(x, y, bias=made[1:])
    add(x.float(), y, bias=made[4:])


def unload(functions: Sequence[Any]) -> None:
    """Forget what was launched, while the driver is there that loaded it."""
    for function in functions:
        function.device_caches.clear()
    gc.collect()


CALLS: dict[str, tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]] = {
    "aligned": (add, (half(1000), half(1000)), {}),
    "a view off its alignment": (add, (half(1001)[1:], half(1000)), {}),
    "a view that is aligned again": (add, (half(1008)[8:], half(1000)), {}),
    "a size of one": (add, (half(1000), half(1000)), {"n": 1}),
    "a size divisible by 16": (add, (half(1000), half(1000)), {"n": 1024}),
    "an integer in place of a float": (add, (half(1000), half(1000)), {"factor": 3}),
    "an argument that is there": (add, (half(1000), half(1000)), {"bias": half(1000)}),
    "a weight that is no argument": (add_weight, (half(1000), half(1000)), {}),
    "tensors that it makes itself": (add_what_it_makes, (half(1000), half(1000)), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_predicted_is_what_the_real_call_compiles(call: str) -> None:
    function, args, kwargs = CALLS[call]
    told = launches(function, args, kwargs)
    hashes = {make_source(each.kernel, each.args, each.kwargs, gpu_target(TARGET)).hash for each in told}
    with rehearsal("H200", 1.0) as on:
        function(*args, **kwargs)
        compiled = {kernel.hash for kept, *_ in biased.device_caches.values() for kernel in kept.values()}
        unload([biased])
        assert sum(on.launches.values()) == len(told)
    assert hashes == compiled


def test_suite_kernels_compiled_ahead_compile_nothing_when_launched() -> None:
    calls = {}
    for suite in itertools.islice(suite_kernels(), 2):
        args = suite.make_inputs(suite.corners[-1], 0, "cpu")
        for variant in suite.variants:
            config = Config({"kernel": suite.name, "variant": variant.name})
            calls[config] = variant, args, dict(variant.space.default.knobs)
    ahead = LaunchesCompiler(
        lambda config: launches(calls[config][0].launch, calls[config][1], calls[config][2]),
        target=TARGET,
        properties=LIMITS,
    )
    results = dict(ahead.compile(list(calls)))
    assert results.keys() == calls.keys()
    assert all(isinstance(result, Evidence) and result.registers for result in results.values()), results
    with rehearsal("H200", 1.0) as on:
        for variant, args, knobs in calls.values():
            variant.launch(*args, **knobs)
        unload([function for variant, *_ in calls.values() for function in variant.functions])
        assert not on.compiles
        assert on.cache_hits.keys() == {name for name, _ in on.launches}


def test_nothing_is_launched_and_no_tensor_is_changed() -> None:
    def fill(x: Any) -> None:
        x.add_(1)
        add(x, x)

    x = half(8)
    with rehearsal("H200", 1.0) as on:
        assert len(launches(fill, (x,), {})) == 1
        assert not on.launches
    assert x.sum() == 0


def test_tensors_that_are_no_arguments_are_not_changed_either() -> None:
    count, norm = torch.zeros(4), torch.nn.BatchNorm1d(4)

    def counts(x: Any) -> None:
        count.add_(1)
        count.view(2, 2).mul_(2)
        count[0] = 7
        torch.add(x, 1, out=count)
        torch._foreach_add_([count], 1)
        norm(x.expand(3, 4))
        add(x, count)

    assert len(launches(counts, (torch.ones(4),), {})) == 1
    assert (count.sum(), norm.num_batches_tracked, norm.running_mean.sum()) == (0, 0, 0)


def test_tensors_that_are_fake_already_keep_their_mode() -> None:
    met: list[Any] = []

    def note(x: Any, others: list[Any]) -> None:
        met.extend((x, others[0], x + others[0]))
        add(x, others[0])

    with FakeTensorMode() as mode:
        x = half(1000)
    assert len(launches(note, (x,), {"others": [half(1000)]})) == 1
    assert met[0] is x
    assert all(isinstance(each, FakeTensor) and each.fake_mode is mode for each in met)


def test_arguments_made_fake_once_tell_the_same_at_every_call() -> None:
    def function(x: Any, *, others: Any, bias: Any) -> None:
        between = torch.empty_like(x)
        biased[(8,)](x, None, between, 1000, 2.0, BLOCK=128)
        biased[(8,)](others[0], bias, others[1], 1000, 2.0, BLOCK=128)

    whole = torch.zeros(4096)
    args, kwargs = (whole[1:1001],), {"others": [whole[2048:], half(1024)], "bias": torch.zeros(1024)}
    told = launches(function, args, kwargs)
    made = without_data(args, kwargs)
    assert without_data(*made) == made
    for _ in range(2):
        again = launches(function, *made)
        assert [(each.args, dict(each.kwargs)) for each in again] == [(each.args, dict(each.kwargs)) for each in told]
    assert {argument.data_ptr() % 16 for argument in told[0].args[:1]} == {whole.data_ptr() % 16 + 4}


def test_a_launch_is_described_by_its_grid_its_arguments_and_its_defaults() -> None:
    def function(x: Any, n: int) -> None:
        y = torch.empty_like(x)
        biased[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 1, 2)](x, None, y, n, 2.0, BLOCK=128, num_warps=8)

    hardware = sheet_for("H200")
    found = static_features(launches(function, (half(1000), 1000), {}), hardware)
    assert {name: found[name] for name in ("programs", "threads", "num_stages", "launches")} == {
        "programs": 16, "threads": 256, "num_stages": 3, "launches": 1,
    }  # fmt: skip
    assert (found["loaded_bytes"], found["stored_bytes"], found["unique_bytes"]) == (128 * 2, 128 * 2, 2 * 2000)
    of_sixteen_units = 3.5 * 16 / hardware.units  # of the memory's bandwidth, which 512 bytes of each program pass
    assert found["us_memory"] == pytest.approx(16 * 512 / (hardware.bandwidth_gb_per_s * 1e3 * of_sixteen_units))
    assert found["us_bound"] == pytest.approx(2000 / (hardware.bandwidth_gb_per_s * 1e3))  # L2 may keep what is written
    assert static_features([], hardware) == {}


def test_what_is_called_to_tell_its_launches_cannot_ask_the_same_of_others() -> None:
    asked: list[str] = []

    def outer(x: Any) -> None:
        with pytest.raises(InvalidInputError, match="cannot be told while it is called"):
            launches(lambda: None, (), {})
        asked.append("outer")
        biased[(1,)](x, None, x, 10, 2.0, BLOCK=64)

    assert len(launches(outer, (half(64),), {})) == 1
    assert asked == ["outer"]


def test_a_function_that_needs_data_counts_as_built_with_nothing_compiled() -> None:
    def by_value(x: Any) -> None:
        add(x, x, n=int(x.sum().item()))

    with pytest.raises(DataDependentOutputException):
        launches(by_value, (half(8),), {})
    pool = WorkerPool(1)
    compiler = LaunchesCompiler(
        lambda _: launches(by_value, (half(8),), {}), target=TARGET, properties=LIMITS, pool=pool
    )
    config = Config({"only": 1})
    assert list(compiler.compile([config])) == [(config, Evidence(compile_s=0.0))]
    assert pool.started == 0
    pool.close()


def test_a_config_of_which_one_kernel_does_not_compile_is_a_failure() -> None:
    def both(x: Any, block: int) -> None:
        add(x, x, block=64)
        at_least_64[(1,)](x, BLOCK=block)

    configs = [Config({"block": block}) for block in (32, 64)]
    told = {config: launches(both, (half(64),), dict(config.knobs)) for config in configs}
    results = dict(LaunchesCompiler(told.__getitem__, target=TARGET, properties=LIMITS).compile(configs))
    small, right = (results[config] for config in configs)
    assert isinstance(small, Failure)
    assert (small.stage, "too small a block" in small.message) == ("compile", True)
    assert isinstance(right, Evidence)


def test_a_tuner_of_tritons_own_does_not_time_launches_that_are_not_made() -> None:
    blocks = [triton.Config({"BLOCK": n}) for n in (64, 128)]
    stock = triton.autotune(blocks, key=["n"])(biased)
    before = triton.runtime.autotuner.Autotuner._bench
    with pytest.raises(InvalidInputError, match="tunes itself"):
        launches(lambda x: stock[(1,)](x, None, x, 16, 2.0), (half(16),), {})
    assert not stock.cache
    assert triton.runtime.autotuner.Autotuner._bench is before


def test_features_of_several_kernels_are_the_largest_needs_and_summed_code() -> None:
    first = Evidence(compile_s=1.0, registers=32, shared_bytes=512, code_bytes=100, instructions={"mma": 2})
    second = Evidence(compile_s=0.5, registers=24, shared_bytes=1024, code_bytes=50, spill_bytes=8)
    assert combine_evidence([first, second]) == Evidence(
        compile_s=1.5, registers=32, shared_bytes=1024, code_bytes=150, instructions={"mma": 2}
    )
    failure = Failure(stage="resources", message="too large", cost_s=2.0)
    assert combine_evidence([first, failure]) == Failure(stage="resources", message="too large", cost_s=3.0)
    crash = Failure(stage="compile", message="aborted", cost_s=1.0, crashed=True)
    assert combine_evidence([failure, crash]).crashed, "which is worth more to know"


def test_other_threads_launch_for_real_meanwhile() -> None:
    x = half(1000)

    def wait_for_another(y: Any) -> None:
        other = threading.Thread(target=add, args=(x, x))
        other.start()
        other.join()
        add(y, y)

    with rehearsal("H200", 1.0) as on:
        (told,) = launches(wait_for_another, (x,), {})
        unload([biased])
        assert sum(on.launches.values()) == 1
    assert told.kernel is biased


def fails(x: Any) -> None:
    add(x, x)
    raise KeyError("of its own")


@pytest.mark.parametrize("function", [partial(add, half(8)), fails])
def test_launching_is_as_it_was_afterwards(function: Any) -> None:
    run = JITFunction.run
    if function is fails:
        with pytest.raises(KeyError, match="of its own"):
            launches(function, (half(8),), {})
    else:
        assert len(launches(function, (half(8),), {})) == 1
    assert JITFunction.run is run
    with rehearsal("H200", 1.0) as on:
        add(half(8), half(8))
        unload([biased])
        assert sum(on.launches.values()) == 1
