# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What an autotuner adds to a launch whose key is decided: Triton's own, ours, and one that `install()` reached.

The launch does nothing. Three keys in two dtypes are primed.
`python tests/benchmarks/test_cached_call.py` prints the ratio from one run.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402

CONFIGS = [triton.Config({"BM": 32, "BN": 64}, num_warps=4), triton.Config({"BM": 64, "BN": 64}, num_warps=8)]
MEASUREMENTS = [
    (*(torch.empty(8, 8, dtype=dtype) for _ in range(3)), m, 64, 64, 8, 1, 8, 1, 8, 1)
    for dtype in (torch.float16, torch.float32)
    for m in (64, 128, 256)
]
WAYS = ("run", "grid")


pytestmark = pytest.mark.usefixtures("own_cache")


@triton.jit
def tiled(a, b, c, M, N, K, s0, s1, s2, s3, s4, s5, BM: tl.constexpr, BN: tl.constexpr):
    pass


class Nothing(triton.runtime.jit.KernelInterface):  # type: ignore[misc]
    """A kernel whose launch does nothing."""

    fn = tiled
    arg_names = tiled.arg_names

    def run(self, *args: Any, **kwargs: Any) -> None:
        pass


class Stock(Autotuner):  # type: ignore[misc]
    """Triton's tuner as it is without `install()`, which exchanges the method of its class."""

    run = Autotuner.run


CONTENDERS = {"stock": Stock, "ours": ForecastAutotuner, "reached": Autotuner}


def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
    return [1.0, 1.0, 1.0]


@contextmanager
def calls(way: str) -> Iterator[dict[str, Callable[[], None]]]:
    """A call of each contender, and of the launch alone with all its keywords."""
    nothing, keywords = Nothing(), CONFIGS[0].all_kwargs()
    contenders: dict[str, Any] = {"launch": nothing}
    for name, tuner in CONTENDERS.items():
        contenders[name] = tuner(nothing, tiled.arg_names, CONFIGS, ["M", "N", "K"], None, None, do_bench=bench)
    grid = (1,)

    def made(kernel: Any, args: tuple[Any, ...], **more: Any) -> Callable[[], None]:
        if way == "run":
            return lambda: kernel.run(*args, grid=grid, warmup=False, **more)
        return lambda: kernel[grid](*args, **more)

    with rehearsal("cuda:90", 1.0):
        fa.install()
        try:
            for name in CONTENDERS:
                for args in MEASUREMENTS * 2:
                    made(contenders[name], args)()
                assert len(contenders[name].cache) == 6
                assert (type(contenders[name].cache) is dict) == (name == "stock"), "who decided"
            yield {
                name: made(kernel, MEASUREMENTS[0], **(keywords if name == "launch" else {}))
                for name, kernel in contenders.items()
            }
        finally:
            fa.uninstall()


@pytest.mark.parametrize("contender", ["launch", *CONTENDERS])
@pytest.mark.parametrize("way", WAYS)
def test_a_cached_call(benchmark: Any, way: str, contender: str) -> None:
    benchmark.group = f"cached call through {way}"
    with calls(way) as made:
        benchmark(made[contender])


def best_us(call: Callable[[], None], rounds: int = 40, times: int = 2000) -> float:
    """Microseconds of a call in the best of many rounds: what else runs on the machine only adds."""
    found = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            call()
        found = min(found, (time.perf_counter() - began) / times * 1e6)
    return found


def ratios(way: str, rounds: int = 40) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds of each contender, and what ours and a reached one add to a launch over what Triton's own adds."""
    with calls(way) as made:
        found = dict.fromkeys(made, float("inf"))
        for _ in range(rounds):  # in turns, so that all see the same machine
            for name, call in made.items():
                found[name] = min(found[name], best_us(call, 1))
    added = {name: found[name] - found["launch"] for name in CONTENDERS}
    return found, {name: added[name] / added["stock"] for name in ("ours", "reached")}


def bytes_per_key(tuner: Any, keys: int = 600, settle: int = 40) -> float:
    """Bytes that a tuner holds for each new key, in a process that meets ever more of them."""
    kernel = tuner(Nothing(), tiled.arg_names, CONFIGS, ["M", "N", "K"], None, None, do_bench=bench)

    def meet(first: int, last: int) -> int:
        for m in range(first, last):
            kernel[(1,)](*MEASUREMENTS[0][:3], m, *MEASUREMENTS[0][4:])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with rehearsal("cuda:90", 1.0), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
        tracemalloc.start()
        try:
            before = meet(0, settle)
            return (meet(settle, settle + keys) - before) / keys
        finally:
            tracemalloc.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("contender", [Autotuner, ForecastAutotuner])
def test_memory_of_a_key(benchmark: Any, contender: Any) -> None:
    benchmark.group = "memory of a key"
    keys = 600 if benchmark.enabled else 20  # with `--benchmark-disable` it only has to work; 600 take 25 s
    benchmark.extra_info["bytes"] = benchmark.pedantic(bytes_per_key, (contender, keys), rounds=1)


def main() -> None:
    print(f"Triton {triton.__version__}: microseconds of a cached call, the least of 40 rounds of 2000")
    for way in WAYS:
        found, shares = ratios(way)
        shown = ", ".join(f"{name} {us:.2f}" for name, us in found.items())
        added = ", ".join(f"{name} adds {share:.2f}" for name, share in shares.items())
        print(f"  {'kernel.run(…)' if way == 'run' else 'kernel[grid](…)'}: {shown}; {added} of what stock adds")
    stock, ours = bytes_per_key(Autotuner), bytes_per_key(ForecastAutotuner)
    print(f"  memory of a key: stock {stock:.0f} bytes, ours {ours:.0f}")


if __name__ == "__main__":
    main()
