"""Inductor as on a GPU, down to what it renders and writes; only the times of its candidates are given."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.kernel.flex import flex_attention as flex_lowering
from torch._inductor.kernel.flex import flex_decoding
from torch._inductor.output_code import CompiledFxGraph
from torch.nn.attention import flex_attention as public_flex
from torch.nn.attention.flex_attention import flex_attention

import forecast_autotune as fa
from forecast_autotune.frontends.inductor import choices, narrowing
from forecast_autotune.frontends.inductor import request as product_request
from forecast_autotune.store.queries import StoreFile

UNWRITTEN = ("IndentationError", "0 compatible backends", "NotImplementedError")
"""On the CPU, none that Triton would compile can be written, nor timed with what it takes in (torch 2.15)."""


class Timed:
    """Stands in for Inductor's compiling and timing, which need a device: the lists that it would time, with given times."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []
        self.ms = lambda place: 0.1 + 0.01 * place

    def benchmark(self, candidates: list[Any], *_: Any, **__: Any) -> dict[Any, float]:
        self.lists.append(candidates)
        return {candidate: self.ms(place) for place, candidate in enumerate(candidates)}


@contextmanager
def rehearsed_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Timed]:
    """Inductor as on a GPU, down to what it renders; our choices installed, with a store of their own."""
    stands_in = Timed()
    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(cache, "make_precompile_fn", lambda *_, **__: dict)
    monkeypatch.setattr(cache, "benchmark_in_current_process", stands_in.benchmark)
    monkeypatch.setattr(product_request, "_aside", "")
    monkeypatch.setattr(choices, "narrowing", narrowing.Narrowing())
    settings = {"cpu_backend": "triton", "max_autotune": True, "fx_graph_cache": False, "compile_threads": 1}
    settings |= {"autotune_local_cache": False, "max_autotune_gemm_backends": "ATEN,TRITON"}
    try:
        with inductor_config.patch(settings), fa.rehearsal("H200"):
            fa.install(inductor=True)
            yield stands_in
    finally:
        fa.uninstall()
        select_algorithm.clear_feedback_savers()
        select_algorithm.clear_preprocessing_fns()


class _CompiledError(Exception):
    """Ends a call once its graph is compiled."""


def _do_not_run(graph: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
    raise _CompiledError


def lowered(f: Any, *args: Any, dynamic: bool | None = None) -> None:
    """Compile for the rehearsed device; what comes before kernels of Triton's are written into the wrapper is all real.

    What was compiled is not run: a product of bfloat16 took a CPU without instructions for it 50 s.
    """
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledFxGraph, "__call__", _do_not_run)
        try:
            torch.compile(f, dynamic=dynamic)(*args)
        except torch._inductor.exc.InductorError as err:
            if not any(reason in str(err) for reason in UNWRITTEN):
                raise
        except _CompiledError:
            pass


def product(m: int = 256, n: int = 256, k: int = 256) -> None:
    lowered(lambda a, b: torch.relu(a @ b), torch.ones(m, k), torch.ones(k, n))


def convolution(channels: int = 128, side: int = 3) -> None:
    """One that the library and Inductor's template are listed for."""
    x, weight = torch.ones(2, 64, 32, 32), torch.ones(channels, 64, side, side)
    with inductor_config.patch(max_autotune_conv_backends="ATEN,TRITON"):
        lowered(lambda x, weight: torch.relu(torch.conv2d(x, weight, padding=1)), x, weight)


def attention(
    monkeypatch: pytest.MonkeyPatch, *, queries: int = 1024, score: Any = None, dynamic: bool | None = None
) -> None:
    """Flex attention by the templates for GPUs, which its lowering leaves alone on a CPU."""
    source = inspect.getsource(flex_lowering.flex_attention)
    for_gpus: dict[str, Any] = {}
    text = source[source.index("def flex_attention") :].replace('query.get_device().type == "cpu"', "False")
    exec(text, vars(flex_lowering), for_gpus)  # noqa: S102  # torch's own source
    monkeypatch.setattr(flex_decoding, "get_split_k", lambda *_, **__: 8)  # asks a GPU for its units
    monkeypatch.setattr(flex_lowering, "lower_cpu", for_gpus["flex_attention"])
    q, kv = torch.ones(2, 8, queries, 64), torch.ones(2, 8, 1024, 64)
    lowered(lambda q, k, v: flex_attention(q, k, v, score_mod=score), q, kv, kv, dynamic=dynamic)


def attention_backward(monkeypatch: pytest.MonkeyPatch, width: int = 64) -> None:
    """The gradient of flex attention: its graph alone is lowered, for on a CPU there is none."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    monkeypatch.setattr(public_flex, "_validate_device", lambda *_: None)
    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=compile_fx_inner,
        decompositions=select_decomp_table,
    )
    torch._dynamo.reset()
    inputs = [torch.ones(2, 8, 1024, width, requires_grad=True) for _ in range(3)]
    result = torch.compile(lambda q, k, v: flex_attention(q, k, v), backend=backend)(*inputs)
    try:
        result.sum().backward()
    except torch._inductor.exc.InductorError as err:
        if not any(reason in str(err) for reason in UNWRITTEN):
            raise


def decisions() -> list[Any]:
    known = store()
    return known.decisions() if known.exists() else []


def store() -> StoreFile:
    return StoreFile(os.environ["FORECAST_AUTOTUNE_DIR"])


def names(listed: list[Any]) -> list[str]:
    return [candidate.name for candidate in listed]


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "narrowing", narrowing.Narrowing())
