# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What surrounds a tuned kernel on a GPU: inference mode, hooks, other streams, captures, and memory that is given back."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from collecting import without_collecting  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.frontends import dispatch  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

N = 1 << 22  # 16 MiB a tensor: what is kept of one is seen
BLOCKS = (64, 128, 256, 512, 1024, 2048)
KEYS = 6
CAPTURED = 20


@pytest.fixture
def without_gc() -> Iterator[None]:
    """As serving frameworks run: what only a full collection would find stays."""
    with without_collecting():
        yield


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def multiply(x_ptr, weights_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, weights = tl.load(x_ptr + at, mask=at < n), tl.load(weights_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * weights, mask=at < n)


def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def tuned(kernel: Any = double, *, pre_hook: Any = None) -> Any:
    configs = [triton.Config({"BLOCK": block}, pre_hook=pre_hook) for block in BLOCKS]
    return fa.autotune(configs=configs, key=["n"], budget="all")(kernel)


def test_configs_with_hooks_are_measured_in_inference_mode() -> None:
    hooked: list[int] = []
    tuner = tuned(pre_hook=lambda named: hooked.append(named["BLOCK"]))
    with torch.inference_mode():
        x = torch.randn(N, device="cuda")
        y = torch.full_like(x, torch.nan)
        tuner[grid](x, y, N)
        torch.testing.assert_close(y, 2 * x)
    (decision,) = tuner.decisions.values()
    assert (decision.basis, decision.tried, decision.failed) == ("measured", len(BLOCKS), 0)
    assert set(hooked) == set(BLOCKS)


def test_memory_of_tuned_keys_is_given_back_without_a_collection(without_gc: None) -> None:
    tuner, alive = tuned(), []

    def meet(n: int) -> None:
        x = torch.randn(n, device="cuda")
        y = torch.empty_like(x)
        alive.extend((weakref.ref(x), weakref.ref(y)))
        for _ in range(2):
            tuner[grid](x, y, n)

    meet(N)  # what a process holds once
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for i in range(1, 1 + KEYS):
        meet(N - 16 * i)
    torch.cuda.synchronize()
    assert not [tensor for tensor in alive if tensor() is not None]
    assert torch.cuda.memory_allocated() - before < 1 << 20
    assert all(decision.tried == len(BLOCKS) for decision in tuner.decisions.values())


@contextmanager
def watched(tensor: Any) -> Iterator[dict[str, int]]:
    """Another thread looks on a stream of its own for NaN in a tensor, from before what is within until after it."""
    seen = {"looks": 0, "nan": 0}
    looked, over = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def look() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                nan = torch.zeros((), device="cuda", dtype=torch.int64)
                while not over.is_set():
                    nan += torch.isnan(tensor).any()
                    seen["looks"] += 1
                    if seen["looks"] % 50 == 0:
                        stream.synchronize()
                        looked.set()
                seen["nan"] = int(nan)
        except BaseException as err:
            raised.append(err)
        finally:
            looked.set()

    torch.cuda.synchronize()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert looked.wait(60)
        yield seen
    finally:
        over.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not raised


@pytest.mark.filterwarnings("ignore::forecast_autotune.TuningWarning")  # that the GPU is not alone
def test_another_stream_sees_no_nan_in_weights_that_are_only_read() -> None:
    weights = torch.ones(N, device="cuda")
    x = torch.randn(N, device="cuda")
    y = torch.empty_like(x)
    tuner = tuned(multiply)
    with watched(weights) as seen:
        tuner[grid](x, weights, y, N)
        torch.cuda.synchronize()
    assert seen["looks"] > 50
    assert seen["nan"] == 0
    assert bool((weights == 1).all())
    torch.testing.assert_close(y, x)
    (decision,) = tuner.decisions.values()
    assert decision.tried == len(BLOCKS)


def test_captured_launches_of_a_stored_key_hold_no_tensor_and_decide_once(
    without_gc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(N, device="cuda")
    tuned()[grid](x, torch.empty_like(x), N)  # its decision is stored
    decisions = 0
    decide = dispatch.decide

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal decisions
        decisions += 1
        return decide(*args, **kwargs)

    monkeypatch.setattr(dispatch, "decide", counted)

    tuner, graph, alive = tuned(), torch.cuda.CUDAGraph(), []
    last = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            y = torch.empty_like(x)
            alive.append(weakref.ref(y))
            tuner[grid](x, y, N)
            del y
        tuner[grid](x, last, N)
    assert not [tensor for tensor in alive if tensor() is not None]
    assert decisions <= 1
    graph.replay()
    torch.testing.assert_close(last, 2 * x)


def test_a_call_that_only_compiles_decides_nothing() -> None:
    x = torch.randn(N, device="cuda")
    y = torch.full_like(x, torch.nan)
    tuner = tuned()
    tuner.run(x, y, N, grid=grid, warmup=True)
    torch.cuda.synchronize()
    assert not tuner.decisions
    assert bool(y.isnan().all()), "nothing was launched"

    tuner[grid](x, y, N)
    torch.testing.assert_close(y, 2 * x)
    (decision,) = tuner.decisions.values()
    assert decision.tried == len(BLOCKS)
