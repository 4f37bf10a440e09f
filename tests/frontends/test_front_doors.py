"""Every front door keeps the contract: Triton kernels, load_inline, variants, and a plain function as a pattern."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from contracts.front_door_contract import FrontDoorContract  # noqa: E402
from plain_function import TunedFunction  # noqa: E402
from rehearsed import configs, playing, tuned  # noqa: E402
from toy import Toy  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Failure, Measurement  # noqa: E402
from forecast_autotune.core.space import Space  # noqa: E402

SLOW_S = 20e-3  # far above the scheduler's slices on a busy machine
BLOCKS = {64: "default", 256: "best", 1024: "raises"}


pytestmark = pytest.mark.usefixtures("own_cache")


class TestTriton(FrontDoorContract):
    """A kernel on the simulated driver; the config of a call is what its launch ran."""

    def stage(self) -> AbstractContextManager[Any]:
        def config(block: int) -> Config:
            return Config({"BLOCK": block, "num_warps": 4})

        return playing(
            times={
                config(64): Measurement(samples_us=(20_000.0,)),
                config(256): Measurement(samples_us=(2_000.0,)),
                config(1024): Failure(stage="launch", message="it does not run", cost_s=0.0),
            }
        )

    def make(self, *, default_raises: bool = False) -> Any:
        return tuned(configs=configs((1024 if default_raises else 64, 256)))

    def call(self, tuned: Any, x: Any) -> str:
        tuned[(4,)](x, x.numel(), 2.0)
        return BLOCKS[tuned.best_config.kwargs["BLOCK"]]


class TestLoadInline(FrontDoorContract):
    """The toy extension, whose function says which variant it is."""

    @pytest.fixture(autouse=True)
    def extension(self, toy: Toy) -> None:
        self.toy = toy

    def make(self, *, default_raises: bool = False) -> Any:
        space = self.toy.space(["raises" if default_raises else "slower", "plain"])
        return fa.load_inline(**{**self.toy.arguments(), "space": space, "check": None}).marked

    def call(self, tuned: Any, x: Any) -> str:
        x = x.repeat(4096)  # some 20 ms by the default: what else runs, and waits for Python, does not hide that
        return {0: "best", 2: "default"}[int(tuned(x)[0])]


def slow(x: Any) -> str:
    time.sleep(SLOW_S)
    return "default"


def quick(x: Any) -> str:
    return "best"


def raises(x: Any) -> str:
    raise RuntimeError("it does not run")


class TestVariants(FrontDoorContract):
    def make(self, *, default_raises: bool = False) -> Any:
        return fa.variants([raises if default_raises else slow, quick], name="named", check=None)

    def call(self, tuned: Any, x: Any) -> str:
        return str(tuned(x))


def waits(x: Any, *, how: str) -> str:
    if how == "raises":
        raise RuntimeError("it does not run")
    time.sleep(SLOW_S if how == "default" else 0.0)
    return how


class TestPlainFunction(FrontDoorContract):
    def make(self, *, default_raises: bool = False) -> Any:
        first = "raises" if default_raises else "default"
        return TunedFunction(waits, Space([{"how": first}, {"how": "best"}]))

    def call(self, tuned: Any, x: Any) -> str:
        return str(tuned(x))
