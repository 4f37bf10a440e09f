# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Triton kernels on a GPU: the suite's results, tuning for real, and what could take the process or the arguments down."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from kernel_suite import TritonKernel, add_inplace, triton_kernels  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.store.queries import StoreFile  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SEED = 11
SAMPLE = 4  # configs beside the default, each at two sizes: a compile takes up to two seconds
FAR = 2**40  # elements: no allocation reaches that far

every_kernel = pytest.mark.parametrize("kernel", tuple(triton_kernels()), ids=lambda kernel: kernel.name)


@triton.jit
def scale(y_ptr, x_ptr, n, factor, BLOCK: tl.constexpr, STRAY: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at + STRAY, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


def tuned(*further: Any, **extras: Any) -> Any:
    blocks = ((256, 4), (1024, 4), (4096, 8))
    configs = [triton.Config({"BLOCK": block, "STRAY": 0}, num_warps=warps) for block, warps in blocks]
    return fa.autotune(configs=[*configs, *further], key=["n"], **{"budget": "all", **extras})(scale)


def launch(kernel: Any, y: Any, x: Any, factor: float = 2.0) -> None:
    kernel[lambda knobs: (triton.cdiv(len(x), knobs["BLOCK"]),)](y, x, len(x), factor)


def odd(kernel: TritonKernel) -> Any:
    return next(case for case in kernel.cases if case.name == "odd")


def agree(kernel: TritonKernel, call: Any, expected: Any) -> None:
    torch.testing.assert_close(call.outs, expected, rtol=kernel.rtol, atol=kernel.atol)


@every_kernel
def test_the_default_and_sampled_configs_agree_with_the_reference(kernel: TritonKernel) -> None:
    draw = random.Random(SEED)
    tried = [(kernel.space.default, case) for case in kernel.corners]
    tried += [(config, draw.choice(kernel.corners)) for config in draw.sample(kernel.space[1:], SAMPLE)]
    too_large = set()
    for config, case in (*tried, *((config, odd(kernel)) for config in dict.fromkeys(config for config, _ in tried))):
        call = kernel.make_call(case, SEED, "cuda")
        expected = kernel.reference(call)
        try:
            call.launch(kernel.function, **config.knobs)
        except OutOfResources:
            too_large.add(config)
            continue
        agree(kernel, call, expected)
    assert kernel.space.default not in too_large
    assert len(too_large) < SAMPLE


@every_kernel
def test_a_kernel_is_tuned_on_its_first_call_and_always_computes_correctly(
    kernel: TritonKernel,
) -> None:
    tuner = kernel.tuned(budget=4)
    for _ in range(2):
        call = kernel.make_call(odd(kernel), SEED, "cuda")
        expected = kernel.reference(call)
        call.launch(tuner)
        agree(kernel, call, expected)
        (decision,) = tuner.decisions.values()
        assert 1 <= decision.tried <= 4


def test_what_is_decided_is_recalled_by_the_next_tuner_without_measuring() -> None:
    x = torch.randn(100_000, device="cuda")
    first, second = tuned(), tuned()
    for tuner in (first, second):
        y = torch.empty_like(x)
        launch(tuner, y, x)
        torch.testing.assert_close(y, 2 * x)
    (decided,), (recalled,) = first.decisions.values(), second.decisions.values()
    assert decided.tried == 3
    assert recalled.run == decided.run
    assert second.best_config.kwargs == first.best_config.kwargs


def test_an_argument_that_is_changed_in_place_is_changed_once() -> None:
    kernel = add_inplace.KERNEL
    tuner = kernel.tuned(budget="all")
    call = kernel.make_call(kernel.cases[0], SEED, "cuda")
    expected = kernel.reference(call)
    call.launch(tuner)
    agree(kernel, call, expected)
    (decision,) = tuner.decisions.values()
    assert decision.tried == len(kernel.space)


@triton.jit
def accumulate(total_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0)))


@pytest.mark.parametrize("isolate", [False, True])
def test_what_starts_from_zeros_does_so_in_every_trial_in_either_process(isolate: bool) -> None:
    x = torch.rand(100_000, device="cuda")
    configs = [triton.Config({"BLOCK": block}) for block in (256, 1024, 4096)]
    tuner = fa.autotune(
        configs=configs, key=["n"], reset_to_zero=["total_ptr"], check="allclose", isolate=isolate, budget="all"
    )(accumulate)
    total = torch.full((1,), torch.nan, device="cuda")
    tuner[lambda knobs: (triton.cdiv(len(x), knobs["BLOCK"]),)](total, x, len(x))
    torch.testing.assert_close(total, x.sum()[None], rtol=1e-4, atol=0)
    (decision,) = tuner.decisions.values()
    assert (decision.tried, decision.failed) == (3, 0)


def test_a_hook_that_fills_an_argument_by_a_kernel_does_so_in_every_trial() -> None:
    def zeros(named: dict[str, Any]) -> None:
        scale[(64,)](named["y_ptr"], named["x_ptr"], 16384, 0.0, BLOCK=256, STRAY=0)

    x, y = torch.randn(16384, device="cuda"), torch.zeros(16384, device="cuda")
    kernel = tuned(triton.Config({"BLOCK": 512, "STRAY": 0}, pre_hook=zeros))
    launch(kernel, y, x)
    torch.testing.assert_close(y, 2 * x)
    (decision,) = kernel.decisions.values()
    assert (decision.tried, decision.failed) == (4, 0)


@pytest.mark.parametrize("timing", ["eager", "graph"])
def test_a_kernel_in_place_that_does_not_say_so_is_timed_and_ends_right(timing: str) -> None:
    @triton.jit
    def add_one(x_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    tuner = fa.autotune(configs=[triton.Config({"BLOCK": b}) for b in (256, 1024)], key=["n"], timing=timing)(add_one)
    x = torch.zeros(100_000, device="cuda")
    with pytest.warns(fa.TuningWarning, match="reads what it writes to x_ptr"):
        tuner[lambda knobs: (triton.cdiv(len(x), knobs["BLOCK"]),)](x, len(x))
    assert float(x.min()) == float(x.max()) == 1.0


@pytest.mark.timeout(180)
def test_a_config_that_writes_to_an_illegal_address_spares_the_process() -> None:
    x = torch.randn(100_000, device="cuda")
    tuner = tuned(triton.Config({"BLOCK": 512, "STRAY": FAR}, num_warps=4), isolate=True)
    y = torch.full_like(x, torch.nan)
    launch(tuner, y, x)
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 2 * x)
    (decision,) = tuner.decisions.values()
    assert decision.config["STRAY"] == 0
    assert (decision.tried, decision.failed) == (4, 1)
    assert float(torch.ones(8, device="cuda").sum()) == 8.0, "the caller's context is whole"


def test_a_miss_during_graph_capture_is_noted_and_tuned_by_a_later_call(
    own_settings: Path,
) -> None:
    x = torch.randn(100_000, device="cuda")
    y = torch.empty_like(x)
    tuner = tuned()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(tuner, y, x)
    assert not tuner.decisions, "what the captured call made do with is no decision"
    (pending,) = StoreFile(own_settings).pending()
    assert pending.tuning_key.workload.key["n"] == len(x)

    y.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(y, 2 * x)

    launch(tuner, y, x, 3.0)
    torch.testing.assert_close(y, 3 * x)
    (decision,) = tuner.decisions.values()
    assert decision.tried == 3
    x.neg_()
    graph.replay()  # what was captured runs on, as it was
    torch.testing.assert_close(y, 2 * x)


def test_threads_missing_one_key_at_once_tune_it_once_and_all_get_results() -> None:
    tuner = tuned()
    xs = [torch.randn(100_000, device="cuda") for _ in range(2)]
    ys = [torch.full_like(x, torch.nan) for x in xs]
    together, raised = threading.Barrier(2), []

    def work(x: Any, y: Any) -> None:
        try:
            together.wait()
            for _ in range(20):
                launch(tuner, y, x)
            torch.cuda.synchronize()
        except BaseException as err:
            raised.append(err)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(xs, ys, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
    for x, y in zip(xs, ys, strict=True):
        torch.testing.assert_close(y, 2 * x)
    (decision,) = tuner.decisions.values()
    assert decision.tried == 3
