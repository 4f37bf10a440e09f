# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What is told of variants' configs without compiling: from what they launch, no more often and no longer than it pays."""

from __future__ import annotations

import logging
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import BEST, own_triton_cache, playing, scale  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.context import ForecastContext  # noqa: E402
from forecast_autotune.core.forecast import Abstention  # noqa: E402
from forecast_autotune.core.workload import Work  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.features.lazy_static_features import LazyStaticFeatures  # noqa: E402
from forecast_autotune.frontends import tuned_callable  # noqa: E402
from forecast_autotune.frontends.variants import launches  # noqa: E402
from forecast_autotune.settings import Settings  # noqa: E402
from forecast_autotune.surrogates.base import StatelessSurrogate  # noqa: E402

N = 4000


@pytest.fixture(scope="module", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


@triton.jit
def halves(x_ptr, out_ptr, n, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n).to(tl.float32) * 0.5, mask=at < n)


def at_once(x: Any, n: int, *, BLOCK: int) -> None:
    if BLOCK == 512:
        raise InvalidInputError("512 is no use here")
    scale[(triton.cdiv(n, BLOCK),)](x, n, 2.0, BLOCK=BLOCK, num_warps=8)


def in_two(x: Any, n: int) -> None:
    """First into a buffer of its own, by a kernel whose block is its default, then in place."""
    between = torch.empty_like(x, dtype=torch.float16)
    halves[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, between, n)
    scale[(triton.cdiv(n, BEST),)](x, n, 4.0, BLOCK=BEST, num_warps=4)


def without_triton(x: Any, n: int) -> None:
    x[:n] *= 2


class Listening(StatelessSurrogate):
    """A surrogate that keeps what it is asked."""

    name = "listening"

    def __init__(self) -> None:
        self.asked: list[ForecastContext] = []

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Abstention]:
        self.asked.append(context)
        return [Abstention(self.name, "it only listens")] * len(context.job.space)


def scaled(**options: Any) -> Any:
    space = fa.Space.grid({"BLOCK": [1024, 512]})
    given = {"key": "n", "check": None, "compile_ahead": True, **options}
    return fa.variants([(at_once, space), in_two, without_triton], **given)


def test_a_config_is_described_by_what_its_variant_launches() -> None:
    with playing() as on:
        job = scaled().tuned.job((torch.empty(4096), N))
    assert [c["variant"] for c in job.space] == ["at_once", "at_once", "in_two", "without_triton"]
    once, refused, twice, unknown = job.static_features
    assert (refused, unknown) == ({}, {})
    assert {name: once[name] for name in ("programs", "threads", "launches", "least_programs")} == {
        "programs": 4, "threads": 256, "launches": 1, "least_programs": 4,
    }  # fmt: skip
    assert (once["loaded_bytes"], once["stored_bytes"]) == (1024 * 4, 1024 * 4)
    assert (once["traffic_bytes"], once["unique_bytes"]) == (2 * 4 * 1024 * 4, 2 * 4096 * 4)  # read and written
    # 32 programs of 128 elements load four bytes and store two; 16 of 256 load and store four.
    assert (twice["launches"], twice["least_programs"]) == (2, 16)
    assert twice["traffic_bytes"] == 32 * 128 * (4 + 2) + 16 * 256 * (4 + 4)
    assert once["waves"] == 4 / (on.hardware.units * once["blocks_per_unit"])
    assert job.work == Work(flops=min(once["elementwise"], twice["elementwise"]), bytes=2 * 4096 * 4)


def test_a_call_of_variants_by_keyword_is_described_as_one_by_position() -> None:
    x, found = torch.empty(4096), []
    with playing(times=20.0):
        for args, kwargs in (((x, N), {}), ((), {"n": N, "x": x}), ((x,), {"n": N})):
            listening = Listening()
            scaled(mode="forecast", surrogate=listening)(*args, **kwargs)
            found.append(list(listening.asked[0].job.static_features))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["unique_bytes"] == 2 * 4096 * 4


def test_a_view_counts_as_the_part_that_it_is() -> None:
    with playing():
        first, *_ = scaled().tuned.job((torch.empty(3, 4096)[1], N)).static_features
    assert first["unique_bytes"] == 2 * 4096 * 4


def test_work_that_somebody_says_stays_what_they_say() -> None:
    with playing():
        job = scaled(work=lambda x, n: Work(flops=1.0, bytes=2.0)).tuned.job((torch.empty(4096), N))
    assert job.work == Work(flops=1.0, bytes=2.0)


@pytest.mark.parametrize("mode", ["tune", "forecast", "cached"])
def test_a_forecast_sees_it_and_the_store_keeps_it(mode: str) -> None:
    listening = Listening()
    with playing():
        tuned = scaled(mode=mode, surrogate=listening, budget="1")
        tuned(torch.empty(4096), N)
        job = listening.asked[0].job
        assert [d.get("programs") for d in job.static_features] == [4, None, 16, None] or job.static_features[2][
            "launches"
        ] == 2
        other = tuned.tuned.job((torch.empty(4096), 2 * N))
        recordings = tuned.dispatcher.store(job.hardware, Settings.from_environment()).related_recordings(other)
    if mode == "tune":
        (recording,) = recordings
        assert recording.static_features == {job.space.default: pytest.approx(job.static_features[0], rel=1e-5)}


def test_launches_are_described_only_on_request_and_never_in_graph_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening = Listening()
    with playing():
        assert not scaled(compile_ahead=False).tuned.job((torch.empty(4096), N)).static_features
        monkeypatch.setattr(tuned_callable, "why_unmeasured", lambda _: "a CUDA graph was being captured")
        scaled(surrogate=listening)(torch.empty(4096), N)
    assert not any(asked.job.static_features for asked in listening.asked)


@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)


def adding(x: Any, y: Any, n: int, *, BLOCK: int) -> None:
    add[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK=BLOCK)


def plainly(x: Any, y: Any, n: int) -> None:
    y[:n].add_(x[:n])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_compiled_with_a_call_is_described_and_not_in_its_graph() -> None:
    listening = Listening()
    variants = [plainly, (adding, fa.Space.grid({"BLOCK": [64, 128]}))]
    tuned = fa.variants(variants, key="n", compile_ahead=True, surrogate=listening)
    found: list[str] = []

    def backend(module: Any, _: Any) -> Any:
        found.append(module.code)
        return module.forward

    torch._dynamo.reset()
    x, y = torch.ones(1024), torch.ones(1024)
    with playing():
        torch.compile(lambda x, y: tuned(x, y, 1000), backend=backend, fullgraph=True)(x, y)
    torch._dynamo.reset()
    assert [d.get("programs") for d in listening.asked[0].job.static_features] == [None, 16, 8]
    assert len(found) == 1
    assert found[0].count(".add_(") == 1
    assert y.sum() == 2024


def configs(count: int) -> list[Config]:
    return [Config({"n": n}) for n in range(count)]


def test_each_is_asked_for_once_when_the_first_is_looked_at() -> None:
    asked: list[Config] = []
    described = LazyStaticFeatures(configs(5), lambda config: asked.append(config) or {"n": float(config["n"])})  # type: ignore[arg-type,func-returns-value]
    assert (len(described), asked) == (5, [])
    assert [d["n"] for d in described] == [0, 1, 2, 3, 4]
    assert described[-1] == {"n": 4.0}
    assert pickle.loads(pickle.dumps(described)) == tuple(described)  # noqa: S301  # our own bytes
    assert sorted(asked, key=lambda c: int(c["n"] or 0)) == configs(5)


def test_tensors_of_a_call_do_not_live_as_long_as_what_was_described_of_it() -> None:
    x = torch.empty(4096)
    gone = weakref.ref(x)
    launched = launches.VariantLaunches(lambda _: lambda x: None, (x,), {})
    assert launched(Config({"n": 1})) == []
    del x
    assert gone() is None
    assert launched(Config({"n": 2})) == []


def test_of_very_many_a_drawn_part_is_described_in_about_the_time_there_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def describe(config: Config) -> dict[str, float]:
        now[0] += 3.0 if config["n"] == 0 else 0.1  # the first one imports
        return {"n": 1.0}

    with caplog.at_level(logging.DEBUG, LazyStaticFeatures.__module__):
        described = LazyStaticFeatures(configs(1000), describe, longest_s=2.0)
        told = [i for i, d in enumerate(described) if d]
    assert now[0] == pytest.approx(3.0 + 2.0, abs=0.2)
    assert 20 <= len(told) <= 22
    assert told[0] == 0
    assert len({i // 250 for i in told}) == 4, "of all parts of the space"
    assert [i for i, asked in enumerate(described.asked) if asked] == told
    assert f"{len(told)} of 1000 configs are described" in caplog.text
    monkeypatch.setattr("forecast_autotune.features.lazy_static_features.MAX_CONFIGS", 30)
    assert sum(map(bool, LazyStaticFeatures(configs(1000), lambda _: {"n": 1.0}, longest_s=float("inf")))) == 30


@pytest.mark.parametrize(
    ("how", "longest_s"), [({"budget": "500ms"}, 0.05), ({}, 2.0), ({"mode": "forecast"}, float("inf"))]
)
def test_describing_launches_takes_at_most_a_tenth_of_a_budget_in_seconds(
    how: dict[str, Any], longest_s: float
) -> None:
    listening = Listening()
    with playing():
        scaled(surrogate=listening, **how)(torch.empty(4096), N)
    described = listening.asked[0].job.static_features
    assert isinstance(described, LazyStaticFeatures)
    assert described._longest_s == pytest.approx(longest_s)
