# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What torch.compile gets of our kernels, on the rehearsal driver: real capture and lowering, down to Inductor's code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from contracts.store_contract import a_decision  # noqa: E402
from rehearsed import BEST, BLOCKS, Favours, call, configs, launched, own_triton_cache, playing, scale, tuned  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.codecache import PyCodeCache  # noqa: E402
from torch.library import triton_op, wrap_triton  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.cli import main  # noqa: E402
from forecast_autotune.core.allowance import PROCESS_ALLOWANCE  # noqa: E402
from forecast_autotune.distributed.job_channel import JobChannel  # noqa: E402
from forecast_autotune.distributed.job_store import JobStore  # noqa: E402
from forecast_autotune.errors import CacheMissError, TuningWarning  # noqa: E402
from forecast_autotune.frontends import deciding  # noqa: E402
from forecast_autotune.frontends.online import learning_threads  # noqa: E402
from forecast_autotune.frontends.triton.torch_capture import capture_patches, traced_call  # noqa: E402
from forecast_autotune.settings import Settings  # noqa: E402
from forecast_autotune.store.queries import StoreFile  # noqa: E402
from forecast_autotune.store.sqlite import SqliteStore  # noqa: E402

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

N = 4096
DECIDED = [{"BLOCK": BEST, "num_warps": 4, "num_stages": 3}]


@dataclass
class Compiling:
    """What was compiled in a test, and how to compile as a process that has just started would."""

    sources: list[str] = field(default_factory=list)  # of kernels, as Inductor writes them
    backend: Any = "inductor"

    def __call__(self, f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Compile and call; the configs that Inductor is given of each kernel."""
        torch._dynamo.reset()
        kernel_side_table.reset_table()
        PyCodeCache.cache_clear()
        counters.clear()
        self.sources.clear()
        self.compiled = torch.compile(f, fullgraph=True, backend=self.backend, **options)
        self.compiled(*args or (torch.ones(N),))
        return self.configs()

    def configs(self) -> list[Any]:
        found = (re.search(r"configs=(\[.*?\]),\s*inductor_meta", source, re.DOTALL) for source in self.sources)
        return [config for match in found if match for config in ast.literal_eval(match[1])]

    def hits(self) -> tuple[int, int]:
        """Of FxGraphCache and of AOTAutogradCache."""
        return counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]


class NoKernel:
    """In the place of a compiled kernel: Triton has no backend that compiles for the CPU its tensors are on."""

    def run(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Compiling]:
    found = Compiling()

    def written(self: Any, name: str, source: str, *_: Any, **__: Any) -> NoKernel:
        found.sources.append(source)
        return NoKernel()

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(AsyncCompile, "triton", written)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with torch._inductor.config.patch(compile_threads=1):
        yield found
    torch._dynamo.reset()


@pytest.fixture(scope="module", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


def grid(x: Any) -> Callable[[Any], Any]:
    return lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)


def traced_by_dynamo(kernel: Any, grid: Callable[..., Any] = grid, **options: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        kernel[grid(x)](x, x.numel(), 2.0, **options)
        return x

    return f


_ops = iter(range(1000))


def in_a_triton_op(kernel: Any, grid: Callable[..., Any] = grid, **options: Any) -> Callable[..., Any]:
    def scaled(x: torch.Tensor) -> None:
        wrap_triton(kernel)[grid(x)](x, x.numel(), 2.0, **options)

    op = triton_op(f"forecast_autotune_tests::scaled{next(_ops)}", scaled, mutates_args={"x"})

    def f(x: Any) -> Any:
        op(x)
        return x

    return f


routes = pytest.mark.parametrize("route", [traced_by_dynamo, in_a_triton_op])


def pending() -> list[Any]:
    store = StoreFile(Settings.from_environment().dir)
    return store.pending() if store.exists() else []


@routes
def test_inductor_gets_one_config_with_its_cache_cold_and_warm(compiling: Compiling, route: Any) -> None:
    f = route(tuned(surrogate=Favours(128)))
    with playing() as on:
        cold = compiling(f)
        assert cold == [{"BLOCK": 128, "num_warps": 4, "num_stages": 3}]
        assert compiling.hits() == (0, 0)
        assert compiling(f) == cold
        assert max(compiling.hits()) == 1
    assert launched(on) == set()


@routes
def test_tritons_own_autotuner_has_inductor_time_all_configs(compiling: Compiling, route: Any) -> None:
    kernel = triton.autotune(configs=configs(), key=["n"])(scale)
    with playing():
        assert [c["BLOCK"] for c in compiling(route(kernel))] == list(BLOCKS)


@routes
def test_a_decision_made_later_is_picked_up_from_a_warm_cache(compiling: Compiling, route: Any) -> None:
    kernel = tuned(configs=configs(blocks=(64, 256)), surrogate=Favours(64))
    f = route(kernel)
    with playing() as on:
        assert compiling(f) == [{"BLOCK": 64, "num_warps": 4, "num_stages": 3}]
        (waiting,) = pending()
        assert waiting.why == "torch.compile"
        assert not on.launches
        tuned(configs=configs(blocks=(64, 256)), budget="all")[(4,)](torch.ones(N), N, 2.0)
        assert launched(on)
        assert pending() == []
        assert compiling(f) == DECIDED
        assert compiling.hits() == (0, 0)
        assert compiling(f) == DECIDED
        assert max(compiling.hits()) == 1


@routes
def test_a_decision_that_differs_in_warps_alone_is_picked_up(compiling: Compiling, route: Any) -> None:
    space = configs(blocks=(256,), warps=(8, 4))
    f = route(tuned(configs=space, mode="cached"))
    with playing():
        assert compiling(f)[0]["num_warps"] == 8
        tuned(configs=space, budget="all")[(4,)](torch.ones(N), N, 2.0)
        assert compiling(f)[0]["num_warps"] == 4


@routes
def test_the_ranks_shared_decision_is_asked_for_however_warm_the_cache(
    compiling: Compiling, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = [torch.distributed.HashStore()]
    monkeypatch.setenv("FORECAST_AUTOTUNE_SYNC", "rank0")
    monkeypatch.setattr(deciding, "job_channel", lambda **_: JobChannel(lambda: published[0], rank=1, ranks=2))
    surrogate = Favours(64)
    f = route(tuned(surrogate=surrogate))
    with playing():
        assert compiling(f)[0]["BLOCK"] == 64
        published[0] = torch.distributed.HashStore()  # the next job, in which rank 0 was first
        job = surrogate.asked[0].job
        rank0 = JobStore(SqliteStore.in_memory(), JobChannel(lambda: published[0], rank=0, ranks=2), measures=False)
        other = next(c for c in job.space if c["BLOCK"] == 128)
        rank0.publish_decision(job, a_decision(job, other, basis="forecast", budget="0", tried=0, failed=0))
        assert compiling(f)[0]["BLOCK"] == 128


# Kernels that are not ours -------------------------------------------------------------------------------------------


def pruned_stock() -> Any:
    by = {"early_config_prune": lambda found, named, **_: found[1:]}
    return triton.autotune(configs=configs(), key=["n"], prune_configs_by=by)(scale)


def heuristics_below_stock() -> Any:
    return triton.autotune(configs=configs(), key=["n"])(even(triton.jit(even_or_not)))


def stock() -> Any:
    return triton.autotune(configs=configs(), key=["n"])(scale)


class Derived(Autotuner):  # type: ignore[misc]
    """A package's own class."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return super().run(*args, **kwargs)


def derived() -> Any:
    return Derived(scale, scale.arg_names, configs(), ["n"], None, None)


@routes
@pytest.mark.parametrize(
    ("decorated", "choices", "options"),
    [
        (stock, BLOCKS, {}),
        (pruned_stock, BLOCKS[1:], {}),
        (heuristics_below_stock, BLOCKS, {}),
        (stock, BLOCKS, {"num_warps": 8}),
        (derived, BLOCKS, {}),
        (lambda: scale, (), {"num_warps": 8, "BLOCK": 64}),
    ],
)
def test_kernels_decorated_before_install_get_one_config_until_uninstall(
    compiling: Compiling, route: Any, decorated: Any, choices: Any, options: Any
) -> None:
    kernel = decorated()
    f = route(kernel, lambda _: (1,), **options)
    with playing() as on:
        before = compiling(f)
        fa.install()
        try:
            assert compiling(f)[0] in before
            assert len(compiling(f)) == 1
            (noted,) = pending() if choices else [None]
            assert noted is None or noted.why == "torch.compile"
        finally:
            fa.uninstall()
        assert compiling(f) == before
        assert len(before) == max(1, len(choices))
        assert not on.launches


def test_code_that_holds_a_kernel_is_recompiled_once_that_is_measured(compiling: Compiling) -> None:
    kernel = stock()
    fa.install()
    try:
        with playing():
            f = traced_by_dynamo(kernel)
            (first,) = compiling(f)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FORECAST_AUTOTUNE_BUDGET", "all")
                with fa.tune_pending():
                    f(torch.ones(N))
            assert first["BLOCK"] != BEST
            compiling.compiled(torch.ones(N))
            assert compiling.configs()[-1]["BLOCK"] == BEST
    finally:
        fa.uninstall()


# Routes that run our kernel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_captured_graph_runs_the_decided_config_and_measures_nothing(compiling: Compiling, backend: str) -> None:
    compiling.backend = backend
    with playing() as on:
        compiling(traced_by_dynamo(tuned(surrogate=Favours(128))))
        assert launched(on) == {(128, 4)}
        assert sum(on.launches.values()) == 1


def test_a_triton_op_is_decided_when_traced_and_tunes_when_called(
    compiling: Compiling,
) -> None:
    for backend, blocks in (("aot_eager", {128}), ("eager", set(BLOCKS))):
        compiling.backend = backend
        with playing() as on:
            compiling(in_a_triton_op(tuned(surrogate=Favours(128), budget="all")))
            assert {block for block, _ in launched(on)} == blocks


def test_wrap_triton_outside_a_compiler_launches_and_tunes_like_any_call(compiling: Compiling) -> None:
    kept = []

    def prune(found: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        kept.append(named["n"])
        return [c for c in found if c.kwargs["BLOCK"] > 64]

    kernel = tuned(budget="all", restore_value=["x_ptr"], prune_configs_by={"early_config_prune": prune})
    x = torch.ones(N)
    with playing() as on:
        for _ in range(2):
            wrap_triton(kernel)[grid(x)](x, N, 2.0)
        assert launched(on) == {(b, 4) for b in BLOCKS[1:]}
    assert kernel.best_config.kwargs == {"BLOCK": BEST}
    assert kept == [N]


def test_a_triton_op_outside_a_compiler_tunes_like_any_call(compiling: Compiling) -> None:
    kernel = tuned(budget="all")
    with playing() as on:
        in_a_triton_op(kernel)(torch.ones(N))
        assert launched(on) == {(b, 4) for b in BLOCKS}
    assert kernel.best_config.kwargs == {"BLOCK": BEST}


# What is decided -----------------------------------------------------------------------------------------------------


@routes
def test_every_call_in_a_graph_has_a_decision_of_its_own(compiling: Compiling, route: Any) -> None:
    with playing() as on:
        tuned(configs=configs(blocks=(64, 256)), budget="all")[(4,)](torch.ones(N), N, 2.0)
        on.launches.clear()
        kernel = tuned(configs=configs(blocks=(64, 256)), surrogate=Favours(64))
        f = route(kernel)
        found = compiling(lambda x, y: (f(x), f(y)), torch.ones(N), torch.ones(2 * N))
        assert [c["BLOCK"] for c in found] == [256, 64]
        assert [dict(p.tuning_key.workload.key)["n"] for p in pending()] == [2 * N]
        assert not on.launches


def test_one_launcher_called_with_two_sizes_is_decided_twice(compiling: Compiling) -> None:
    surrogate = Favours(128)
    kernel = tuned(surrogate=surrogate)

    def f(x: Any) -> Any:
        launch = kernel[grid(x)]
        launch(x, 1000, 2.0)
        launch(x, 2000, 2.0)
        return x

    with playing():
        compiling(f)
    assert {q.job.workload.key["n"] for q in surrogate.asked} == {1000, 2000}


@routes
def test_the_forecast_knows_shapes_and_grids(compiling: Compiling, route: Any) -> None:
    surrogate = Favours(128)
    with playing():
        compiling(route(tuned(surrogate=surrogate)))
    job = surrogate.asked[0].job
    assert job.workload.key == {"n": N, "dtypes": {"x_ptr": "torch.float32"}}
    assert job.workload.features["x_ptr_0"] == N
    assert [d["programs"] for d in job.static_features] == [N / b for b in BLOCKS]


@routes
def test_sizes_that_vary_are_decided_at_their_hints_and_stay_free(compiling: Compiling, route: Any) -> None:
    surrogate = Favours(128)
    with playing():
        (config,) = compiling(route(tuned(surrogate=surrogate)), torch.ones(N), dynamic=True)
        assert config["BLOCK"] == 128
        compiling.compiled(torch.ones(3 * N + 1))
    assert counters["stats"]["unique_graphs"] == 1
    assert {q.job.workload.key["n"] for q in surrogate.asked} == {N}
    assert [d["programs"] for d in surrogate.asked[0].job.static_features] == [N / b for b in BLOCKS]


def test_a_size_unknown_before_the_run_counts_as_inductor_counts_it(compiling: Compiling) -> None:
    surrogate = Favours(128)
    kernel = tuned(surrogate=surrogate)

    def f(x: Any) -> Any:
        kernel[(4,)](x, x.nonzero().shape[0], 2.0)
        return x

    with playing(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert [c["BLOCK"] for c in compiling(f)] == [128]
    assert surrogate.asked[0].job.workload.key["n"] == torch._inductor.config.unbacked_symint_fallback


@routes
def test_pruning_comes_before_the_choice(compiling: Compiling, route: Any) -> None:
    asked = []

    def prune(found: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        x = named["x_ptr"]
        asked.append((x.device.type, x.dtype, tuple(x.shape), x.stride(), named["n"]))
        return [c for c in found if c.kwargs["BLOCK"] > 64]

    surrogate = Favours(64)
    by = {
        "early_config_prune": prune,
        "perf_model": lambda x_ptr, n, factor, BLOCK, **_: abs(BLOCK - n / 16),
        "top_k": 2,
    }
    with playing():
        (config,) = compiling(route(tuned(surrogate=surrogate, prune_configs_by=by)))
    assert config["BLOCK"] == 256
    assert set(asked) == {("cpu", torch.float32, (N,), (1,), N)}
    assert [c["BLOCK"] for c in surrogate.asked[0].job.space] == [256, 128]


def even_or_not(x_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * factor)
    else:
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


def grid_that_knows(x: Any) -> Callable[[Any], Any]:
    return lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]) if meta["EVEN"] else 1,)


even = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})


@routes
@pytest.mark.parametrize("installed", [False, True])
def test_heuristics_below_are_applied_to_the_decided_config(compiling: Compiling, route: Any, installed: bool) -> None:
    surrogate = Favours(128)
    kernel = tuned(even(triton.jit(even_or_not)), surrogate=surrogate)
    if installed:
        fa.install()
    try:
        with playing():
            found = compiling(route(kernel, grid_that_knows))
            assert found == [{"BLOCK": 128, "EVEN": True, "num_warps": 4, "num_stages": 3}]
    finally:
        fa.uninstall()
    assert [d["programs"] for d in surrogate.asked[0].job.static_features] == [N / b for b in BLOCKS]


def test_heuristics_above_reach_the_decision(compiling: Compiling) -> None:
    surrogate = Favours(128)
    kernel = triton.heuristics({"factor": lambda args: 3.0})(tuned(surrogate=surrogate))

    def f(x: Any) -> Any:
        kernel[grid(x)](x, x.numel())
        return x

    with playing():
        (config,) = compiling(f)
    assert config["BLOCK"] == 128
    assert surrogate.asked[0].job.workload.features["factor"] == 3.0


@routes
def test_warps_given_at_the_call_hold_for_every_config(compiling: Compiling, route: Any) -> None:
    surrogate = Favours(128)
    kernel = tuned(surrogate=surrogate)
    with playing():
        assert compiling(route(kernel, num_warps=8)) == [{"BLOCK": 128, "num_warps": 8, "num_stages": 3}]
    assert {c["num_warps"] for q in surrogate.asked for c in q.job.space} == {8}
    assert {c.num_warps for c in kernel.configs} == {4}


def through_descriptor(x, y_ptr, n, BLOCK: tl.constexpr):
    tile = x.load([tl.program_id(0) * 64])
    tl.store(y_ptr + tl.program_id(0) * 64 + tl.arange(0, 64), tile)


def test_tensor_descriptors_are_described_by_their_tensor(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    monkeypatch.setattr("torch.utils._triton.has_triton_tensor_descriptor_host_tma", lambda: True)
    surrogate = Favours(128)
    kernel = tuned(triton.jit(through_descriptor), surrogate=surrogate)
    compiling.backend = lambda *_: lambda x: (x,)

    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel[(N // 64,)](TensorDescriptor.from_tensor(x, [64]), y, N)
        return y

    with playing():
        compiling(f)
    (question,) = surrogate.asked
    assert question.job.workload.key["n"] == N


# Modes ---------------------------------------------------------------------------------------------------------------


@routes
def test_mode_first_takes_the_first_config_that_pruning_leaves(compiling: Compiling, route: Any) -> None:
    by = {"early_config_prune": lambda found, named, **_: found[1:]}
    with playing():
        assert compiling(route(tuned(mode="first", prune_configs_by=by)))[0]["BLOCK"] == BLOCKS[1]
    assert pending() == []


@routes
def test_mode_strict_says_which_key_has_no_decision(compiling: Compiling, route: Any) -> None:
    f = route(tuned(mode="strict"))
    with playing():
        with pytest.raises(Exception, match=r"no decision for rehearsed\.scale\(n=4096") as raised:
            compiling(f)
        if route is traced_by_dynamo:
            assert isinstance(raised.value, CacheMissError)
        tuned(budget="all")[(4,)](torch.ones(N), N, 2.0)
        assert compiling(f) == DECIDED


@routes
def test_a_setting_that_does_not_parse_is_an_error(
    compiling: Compiling, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = route(tuned())
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "sometimes")
    with playing(), pytest.raises(Exception, match=r"FORECAST_AUTOTUNE_MODE='sometimes'"):
        compiling(f)


# What goes wrong -----------------------------------------------------------------------------------------------------


@routes
def test_tuning_that_fails_leaves_the_first_config_and_one_warning(
    compiling: Compiling, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(traced_call, "TritonCall", broken)
    with playing(), pytest.warns(TuningWarning, match="its first config: RuntimeError: out of order") as told:
        assert [c["BLOCK"] for c in compiling(route(tuned()))] == [BLOCKS[0]]
    assert len([w for w in told if w.category is TuningWarning]) == 1


def test_pruning_that_fails_ahead_is_left_to_torch_with_what_to_restore(compiling: Compiling) -> None:
    def prune(found: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        if not torch.compiler.is_dynamo_compiling():
            raise RuntimeError("not without Dynamo")
        return found[2:]

    kernel = tuned(restore_value=["x_ptr"], prune_configs_by={"early_config_prune": prune})
    with (
        playing(),
        pytest.warns(
            TuningWarning, match="is left to torch, which times all its configs: RuntimeError: not without Dynamo"
        ),
    ):
        assert [c["BLOCK"] for c in compiling(traced_by_dynamo(kernel))] == list(BLOCKS[2:])
    assert compiling.sources[0].count("'restore_value': ('x_ptr',)") == 1


def picky(x_ptr, n, factor, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK != 128, "not this one")
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


@routes
def test_a_forecast_config_that_does_not_compile_gives_way_to_the_first(compiling: Compiling, route: Any) -> None:
    kernel = tuned(triton.jit(picky), surrogate=Favours(128))
    with playing(), pytest.warns(TuningWarning, match="is not compiled under BLOCK: 128"):
        assert [c["BLOCK"] for c in compiling(route(kernel))] == [BLOCKS[0]]


@routes
def test_if_the_first_fails_to_compile_too_inductor_gets_all_that_remain(compiling: Compiling, route: Any) -> None:
    kernel = tuned(triton.jit(picky), configs=configs((128, 256, 512)), surrogate=Favours(128), reset_to_zero=["x_ptr"])
    with playing(), pytest.warns(TuningWarning, match="is not compiled under BLOCK: 128"):
        assert [c["BLOCK"] for c in compiling(route(kernel))] == [128, 256, 512]
    assert compiling.sources[0].count("'reset_to_zero': ('x_ptr',)") == 1


def test_hooks_are_refused_as_torch_refuses_them(compiling: Compiling) -> None:
    kernel = tuned(pre_hook=lambda *_, **__: None)
    with playing(), pytest.raises(torch._dynamo.exc.Unsupported, match="pre_hook and post_hook are not supported"):
        compiling(traced_by_dynamo(kernel))


def test_a_torch_that_captures_kernels_in_another_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import TritonHOPifier

    def other(self: Any, variable: Any, call: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(capture_patches, "_patched", set())
    monkeypatch.setattr(TritonHOPifier, "call_triton_kernel", other)
    for _ in range(2):
        capture_patches.patch_capture()
    assert TritonHOPifier.call_triton_kernel is other
    assert len([r for r in caplog.records if "in a way unknown here" in r.message]) == 1


def test_taking_part_twice_is_taking_part_once(compiling: Compiling) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import TritonHOPifier

    hash(tuned())
    before = TritonHOPifier.call_triton_kernel
    hash(tuned())
    assert TritonHOPifier.call_triton_kernel is before
    assert "forecast_autotune" in before.__globals__["__name__"]


def test_after_a_graph_break_nothing_of_ours_is_compiled(compiling: Compiling) -> None:
    def prune(found: list[Any], *_: Any, **__: Any) -> list[Any]:
        return found[: int((torch.ones(9) - 1).numel())]

    kernel = tuned(pre_hook=lambda *_, **__: None, prune_configs_by={"early_config_prune": prune})
    graphs: list[Any] = []

    def collect(gm: Any, _: Any) -> Any:
        graphs.append(gm)
        return gm

    def f(x: Any) -> Any:
        y = x + 1
        kernel[(4,)](y, N, 2.0)
        return y * 2

    with playing() as on:
        for _ in range(3):
            torch.compile(f, backend=collect)(torch.ones(N))
        assert launched(on) == {(b, 4) for b in BLOCKS}
    assert kernel.best_config.kwargs == {"BLOCK": BEST}
    traced = {str(node.target) for gm in graphs for node in gm.graph.nodes if node.op == "call_function"}
    assert traced <= {"<built-in function add>", "<built-in function mul>"}


# Later ---------------------------------------------------------------------------------------------------------------


def test_what_tune_pending_has_measured_is_compiled_in_afterwards(compiling: Compiling) -> None:
    space = configs(blocks=(64, 256))
    kernel = tuned(configs=space, surrogate=Favours(64))
    f = traced_by_dynamo(kernel)
    with playing() as on:
        assert compiling(f)[0]["BLOCK"] == 64
        with fa.tune_pending():
            compiling.compiled(torch.ones(N))
        assert launched(on) == {(64, 4), (256, 4)}
        assert pending() == []
        compiling.sources.clear()
        for _ in range(3):
            compiling.compiled(torch.ones(N))
        assert compiling.configs() == DECIDED
        with fa.tune_pending():
            pass
        compiling.compiled(torch.ones(N))
    assert counters["stats"]["unique_graphs"] == 2


def test_what_calls_have_taught_is_compiled_in_afterwards(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_threads, "QUIET_S", 0.0)
    monkeypatch.setenv("FORECAST_AUTOTUNE_ONLINE_CPU", "100%")
    PROCESS_ALLOWANCE.reset()
    kernel = tuned(configs=configs(blocks=(64, 256)), surrogate=Favours(64), mode="online")
    f = traced_by_dynamo(kernel)
    with playing():
        assert compiling(f)[0]["BLOCK"] == 64
        ends = time.monotonic() + 120
        while not any(decision.rests_on_outcomes for decision in kernel.decisions.values()):
            assert time.monotonic() < ends
            call(kernel, N)
            time.sleep(0.0002)
        learning_threads.learners.end()  # its thread has told whoever listens
        compiling.compiled(torch.ones(N))
        assert compiling.configs()[-1]["BLOCK"] == BEST
    assert counters["stats"]["unique_graphs"] == 2


def test_what_was_not_measured_within_tune_pending_is_not_compiled_again(compiling: Compiling) -> None:
    with playing():
        compiling(traced_by_dynamo(tuned(surrogate=Favours(64))))
        for _ in range(2):
            with fa.tune_pending():
                pass
            compiling.compiled(torch.ones(N))
    assert counters["stats"]["unique_graphs"] == 1


def test_a_forecast_that_measuring_confirms_is_not_compiled_again(compiling: Compiling) -> None:
    with playing() as on:
        compiling(traced_by_dynamo(tuned(surrogate=Favours(BEST))))
        for _ in range(2):
            with fa.tune_pending():
                compiling.compiled(torch.ones(N))
            compiling.compiled(torch.ones(N))
        assert launched(on)
    assert counters["stats"]["unique_graphs"] == 1


def test_measuring_one_key_leaves_alone_what_is_compiled_of_others(compiling: Compiling) -> None:
    kernel = tuned(surrogate=Favours(64))
    with playing():
        compiling(traced_by_dynamo(kernel))
        for n in (1000, 2000):
            torch.compile(traced_by_dynamo(kernel))(torch.ones(n))
            with fa.tune_pending():
                kernel[(4,)](torch.ones(n), n, 2.0)
            compiling.compiled(torch.ones(N))
        assert counters["stats"]["unique_graphs"] == 3
        with fa.tune_pending():
            compiling.compiled(torch.ones(N))
        compiling.sources.clear()
        compiling.compiled(torch.ones(N))
    assert compiling.configs() == DECIDED


def test_with_ranks_compiled_code_stays_with_what_they_decided_first(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = torch.distributed.HashStore()
    monkeypatch.setenv("FORECAST_AUTOTUNE_SYNC", "rank0")
    monkeypatch.setattr(deciding, "job_channel", lambda **_: JobChannel(lambda: published, rank=0, ranks=2))
    with playing():
        compiling(traced_by_dynamo(tuned(surrogate=Favours(64))))
        for _ in range(2):
            with fa.tune_pending():
                compiling.compiled(torch.ones(N))
            compiling.compiled(torch.ones(N))
    assert counters["stats"]["unique_graphs"] == 1


def test_assigning_configs_compiles_again(compiling: Compiling) -> None:
    kernel = tuned(surrogate=Favours(64))
    with playing():
        compiling(traced_by_dynamo(kernel))
        kernel.configs = configs(blocks=(128, 32))
        compiling.sources.clear()
        compiling.compiled(torch.ones(N))
    assert [c["BLOCK"] for c in compiling.configs()] == [128]


COMPILED = """
import torch.utils._triton

torch.utils._triton.has_triton = lambda: True
from rehearsed import playing, torch, tuned

kernel = tuned()


@torch.compile(backend="eager", fullgraph=True)
def f(x):
    kernel[(4,)](x, x.numel(), 2.0)


with playing():
    f(torch.ones(4096))
"""


@pytest.mark.slow
def test_the_command_tunes_what_a_compiled_program_left_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(COMPILED)
    tests = Path(__file__).parents[2]
    paths = [str(folder) for folder in (tests.parent, tests, tests / "support")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    subprocess.run([sys.executable, str(program)], check=True)
    assert [p.why for p in pending()] == ["torch.compile"]
    assert main(["tune-pending", str(program)]) == 0
    assert pending() == []
