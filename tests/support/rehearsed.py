# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""A Triton kernel that tests tune on the simulated driver, and how long each of its launches takes there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from forecast_autotune import autotune  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.context import ForecastContext  # noqa: E402
from forecast_autotune.core.forecast import Forecast  # noqa: E402
from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import Rehearsal, rehearsal  # noqa: E402
from forecast_autotune.surrogates.base import StatelessSurrogate  # noqa: E402

BLOCKS = (64, 128, 256, 512)
BEST = 256


@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


def configs(blocks: Sequence[int] = BLOCKS, warps: Sequence[int] = (4,)) -> list[Any]:
    """Every block size with every number of warps."""
    return [triton.Config({"BLOCK": b}, num_warps=w) for b in blocks for w in warps]


def time_us(block: int, warps: int) -> float:
    """How long a launch takes, microseconds: least for `BEST` and four warps, and so long that few repeats suffice."""
    return 20_000.0 * max(block / BEST, BEST / block) * max(warps / 4, 4 / warps)


TIMES = {Config({"BLOCK": b, "num_warps": w}): time_us(b, w) for b in (32, *BLOCKS, 1024) for w in (1, 2, 4, 8)}


def tuned(kernel: Any = scale, **arguments: Any) -> ForecastAutotuner:
    """A kernel under our tuner; the configs above and the key `n` unless the arguments say otherwise."""
    arguments.setdefault("configs", configs())
    arguments.setdefault("key", ["n"])
    return autotune(**arguments)(kernel)


def call(kernel: Any, n: int = 1000, dtype: Any = None, **keywords: Any) -> Any:
    """Launch `scale` on an empty tensor."""
    return kernel[(4,)](torch.empty(4096, dtype=dtype or torch.float32), n, 2.0, **keywords)


class Favours(StatelessSurrogate):
    """A surrogate sure that a launch with one value of BLOCK is four times as fast as the rest."""

    name = "favours"

    def __init__(self, block: int) -> None:
        self.block = block
        self.asked: list[Any] = []

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Any]:
        self.asked.append(context)
        return [
            Forecast.normal(2.0 if c["BLOCK"] == self.block else 0.0, 0.01, source=self.name) for c in context.job.space
        ]


@contextmanager
def playing(target: str = "cuda:90", times: Any = None) -> Iterator[Rehearsal]:
    """While this is held, launches go to the simulated driver and take `TIMES`, or the times given."""
    with rehearsal(target, TIMES if times is None else times) as on:
        yield on


def launched(on: Rehearsal) -> set[Any]:
    """The values of BLOCK and num_warps that were launched at all."""
    return {(config["BLOCK"], config["num_warps"]) for (_, config), count in on.launches.items() if count}


@contextmanager
def own_triton_cache(folder: Any) -> Iterator[None]:
    """Triton's cache in a folder of the test's own. Sets the default that Triton 3.9 warns of when it is unset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        yield
