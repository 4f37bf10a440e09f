# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What a forecast is given of a call's configs: the same whichever way the call hands its arguments over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import own_triton_cache, playing  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.core.context import ForecastContext  # noqa: E402
from forecast_autotune.core.forecast import Abstention  # noqa: E402
from forecast_autotune.surrogates.base import StatelessSurrogate  # noqa: E402

N = 1000


@pytest.fixture(scope="module", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


class Listening(StatelessSurrogate):
    """A surrogate that keeps what it is given."""

    name = "listening"

    def __init__(self) -> None:
        self.described: list[dict[str, float]] = []

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Abstention]:
        self.described = [dict(each) for each in context.job.static_features]
        return [Abstention(self.name, "it only listens")] * len(context.job.space)


Outer = Callable[[Any], Any]


def described(
    kernel: Any, call: Callable[[Any], object], *, configs: list[Any] | None = None, outer: Outer = lambda tuner: tuner
) -> list[dict[str, float]]:
    """What a forecast is given when a kernel is called for the first time on a rehearsed GPU."""
    listening = Listening()
    tuner = fa.autotune(configs or blocks(), key=["n"], mode="forecast", surrogate=listening)(kernel)
    with playing(times=20.0):
        call(outer(tuner))
    assert listening.described
    return listening.described


def blocks() -> list[Any]:
    return [triton.Config({"BLOCK": block}) for block in (128, 256)]


def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@triton.jit
def scaled(x_ptr, y_ptr, n, times=1, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(times):
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def vectors() -> tuple[Any, Any]:
    return torch.empty(N), torch.empty(N, dtype=torch.float16)


def test_a_call_by_position_is_described_as_one_by_keyword() -> None:
    x, y = vectors()
    by_position = described(scaled, lambda kernel: kernel[grid](x, y, N, 3))
    assert by_position == described(scaled, lambda kernel: kernel[grid](x_ptr=x, y_ptr=y, n=N, times=3))
    assert by_position == described(scaled, lambda kernel: kernel[grid](times=3, n=N, y_ptr=y, x_ptr=x))
    assert by_position == described(scaled, lambda kernel: kernel[grid](x, y, times=3, n=N))
    small, large = by_position
    assert small["unique_bytes"] == N * (4 + 2)
    assert (small["loaded_bytes"], small["stored_bytes"]) == (3 * 128 * 4, 3 * 128 * 2)
    assert (small["programs"], large["programs"]) == (8, 4)


def test_a_default_left_out_is_described_as_if_it_were_given() -> None:
    x, y = vectors()
    given = described(scaled, lambda kernel: kernel[grid](x, y, N, 1))
    assert given == described(scaled, lambda kernel: kernel[grid](x, y, N))
    assert given == described(scaled, lambda kernel: kernel[grid](x_ptr=x, y_ptr=y, n=N))
    assert given[0]["loaded_bytes"] == 128 * 4


@triton.jit
def halved(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, PARTS: tl.constexpr):
    for part in range(PARTS):
        at = (tl.program_id(0) * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(y_ptr + at, tl.load(x_ptr + at))
        else:
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def parts(given: Mapping[str, Any]) -> int:
    return int(512 // given["BLOCK"])


def even(given: Mapping[str, Any]) -> bool:
    return bool(given["n"] % given["BLOCK"] == 0)


def test_heuristics_below_the_tuner_are_those_of_each_config() -> None:
    x, y = vectors()
    below = triton.heuristics({"PARTS": parts, "EVEN": even})(halved)
    by_position = described(below, lambda kernel: kernel[(2,)](x, y, N))
    assert by_position == described(below, lambda kernel: kernel[(2,)](n=N, x_ptr=x, y_ptr=y))
    assert [each["loaded_bytes"] for each in by_position] == [512 * 4] * 2  # four parts of 128, two of 256


def test_heuristics_above_the_tuner_count_as_arguments() -> None:
    x, y = vectors()

    def outer(tuner: Any) -> Any:
        return triton.heuristics({"PARTS": lambda given: 2 if given["n"] == N else 1, "EVEN": lambda _: False})(tuner)

    by_position = described(halved, lambda kernel: kernel[(2,)](x, y, N), outer=outer)
    assert by_position == described(halved, lambda kernel: kernel[(2,)](n=N, y_ptr=y, x_ptr=x), outer=outer)
    assert [each["loaded_bytes"] for each in by_position] == [2 * 128 * 4, 2 * 256 * 4]


def test_a_heuristic_that_raises_leaves_the_rest_of_the_description() -> None:
    x, y = vectors()

    def refuse(given: Mapping[str, Any]) -> bool:
        raise RuntimeError("not for you")

    listening = Listening()
    below = triton.heuristics({"PARTS": refuse, "EVEN": even})(halved)
    tuner = fa.autotune(blocks(), key=["n"], mode="forecast", surrogate=listening)(below)
    with playing(times=20.0), pytest.raises(RuntimeError, match="not for you"):
        tuner[(2,)](x, y, N)
    assert [each["programs"] for each in listening.described] == [2, 2]


@triton.jit
def of_tuples(pointers, sizes, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(sizes[1]):
        tl.store(pointers[1] + at, tl.load(pointers[0] + at, mask=at < sizes[0]), mask=at < n)


def test_what_tuples_hold_is_described() -> None:
    x, y = vectors()
    by_position = described(of_tuples, lambda kernel: kernel[grid]((x, y), (N, 3), N))
    assert by_position == described(of_tuples, lambda kernel: kernel[grid](n=N, sizes=(N, 3), pointers=(x, y)))
    small, large = by_position
    assert small["unique_bytes"] == N * (4 + 2)
    assert (small["loaded_bytes"], small["stored_bytes"]) == (3 * 128 * 4, 3 * 128 * 2)
    assert large["loaded_bytes"] == 3 * 256 * 4


@triton.jit
def copied(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    target.store([at, 0], source.load([at, 0]))


def block_rows(named: dict[str, Any]) -> None:
    for name in ("source", "target"):
        named[name].block_shape = [named["BLOCK"], 32]


def test_descriptors_have_the_block_that_the_hook_of_each_config_gives() -> None:
    source, target = (TensorDescriptor.from_tensor(torch.empty(256, 32), [16, 32]) for _ in range(2))
    hooked = [triton.Config({"BLOCK": block}, pre_hook=block_rows) for block in (64, 128)]

    def call(by_keyword: bool) -> Callable[[Any], object]:
        if by_keyword:
            return lambda kernel: kernel[grid](n=256, target=target, source=source)
        return lambda kernel: kernel[grid](source, target, 256)

    by_position = described(copied, call(by_keyword=False), configs=hooked)
    assert by_position == described(copied, call(by_keyword=True), configs=hooked)
    assert [each["loaded_bytes"] for each in by_position] == [64 * 32 * 4, 128 * 32 * 4]
    assert by_position[0]["unique_bytes"] == 2 * 256 * 32 * 4
