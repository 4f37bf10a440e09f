# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""The Triton front door, from the decorator to the store: on the rehearsal driver, or interpreted where values count."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision, Resolution
from forecast_autotune.core.space import Space
from forecast_autotune.errors import CacheMissError, InvalidInputError, TuningWarning

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import BEST, BLOCKS, call, configs, launched, own_triton_cache, playing, scale, tuned  # noqa: E402

from forecast_autotune import autotune  # noqa: E402
from forecast_autotune.compilers.triton_pool import WorkerPool  # noqa: E402
from forecast_autotune.compilers.triton_worker import Task  # noqa: E402
from forecast_autotune.frontends import dispatch  # noqa: E402
from forecast_autotune.frontends.triton import door  # noqa: E402
from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner  # noqa: E402

REPOSITORY = Path(__file__).parents[3]
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Triton's interpreter, for kernels that the test decorates itself."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        yield


class Bench:
    """A benchmark of the user's own: launches once, and says what `milliseconds` says of the configs launched."""

    def __init__(self, milliseconds: Callable[[], float]) -> None:
        self.milliseconds = milliseconds
        self.calls = 0

    def __call__(self, launch: Callable[[], None], quantiles: Any) -> list[float]:
        self.calls += 1
        launch()
        return [self.milliseconds()] * len(quantiles)


def blocks_of(kernel: ForecastAutotuner) -> list[int]:
    return [config.kwargs["BLOCK"] for config in kernel.configs_timings]


def test_keys_share_the_compiles_of_one_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    submit = WorkerPool.submit

    def noting(pool: WorkerPool, task: Any, *others: Any) -> Any:
        if isinstance(task, Task):  # older Tritons have launchers built, too
            compiled.append(task.key)
        return submit(pool, task, *others)

    monkeypatch.setattr(WorkerPool, "submit", noting)
    with own_triton_cache(tmp_path), playing() as on:
        for n, compiles in (
            (1000, 4),
            (1001, 4),
            (3003, 4),
            (1024, 8),
            (4096, 8),
        ):  # multiples of 16 have their own binaries
            call(tuned(budget="all"), n)
            assert len(compiled) == len(set(compiled)) == compiles, n
        assert not on.compiles


# From the decorator to the store --------------------------------------------------------------------------------------


def test_the_first_call_tunes_and_the_next_ones_only_launch() -> None:
    kernel = tuned()
    with playing() as on:
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert isinstance(kernel, triton.runtime.autotuner.Autotuner)
        assert len(launched(on)) == 4
        assert not on.compiles, "compiled in workers, not here"
        before = sum(on.launches.values())
        for _ in range(3):
            call(kernel)
        assert sum(on.launches.values()) == before + 3
    (decision,) = kernel.decisions.values()
    assert decision.basis == "measured"
    assert decision.tried == 4
    assert sorted(blocks_of(kernel)) == [64, 128, 256, 512]
    assert kernel.configs_timings[kernel.best_config] == pytest.approx([20.0] * 3)


def test_a_second_tuner_recalls_the_decision_and_launches_nothing_else() -> None:
    with playing():
        call(tuned())
    kernel = tuned()
    with playing() as on:
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert launched(on) == {(BEST, 4)}
        assert sum(on.launches.values()) == 1
        assert not on.compiles


SCRIPT = """
    import torch, triton
    from rehearsed import call, launched, playing, tuned
    kernel = tuned()
    with playing() as on:
        call(kernel)
    print(kernel.best_config.kwargs["BLOCK"], len(launched(on)), dict(on.compiles))
"""


def test_another_process_recalls_the_decision(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "support"), os.environ.get("PYTHONPATH", "")])

    def told() -> str:
        done = subprocess.run(
            [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert told() == f"{BEST} 4 {{}}"
    assert told() == f"{BEST} 1 {{}}"


def test_one_config_added_to_the_list_is_the_only_one_timed() -> None:
    with playing():
        call(tuned(configs=configs((64, 128, 512))))
    kernel = tuned(configs=configs((64, 128, 512, 256)))
    with playing() as on:
        call(kernel)
        (decision,) = kernel.decisions.values()
        assert decision.tried == 1
        assert decision.compiled == 1
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert launched(on) == {(256, 4), (64, 4)}, "the first config beside it among the finalists"
    assert len(kernel.configs_timings) == 4


def test_no_more_configs_are_compiled_and_timed_than_the_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = tuned(configs=configs((64, 128, 256, 512), (1, 2, 4, 8)), budget=5)
    with playing() as on:
        call(kernel)
        (decision,) = kernel.decisions.values()
        assert decision.tried == 5
        assert decision.forecast == 16
        assert (64, 1) in launched(on), "the first config is always timed"
        assert len(launched(on)) == 5
        assert not on.compiles
    assert len(list(tmp_path.glob("*/scale.cubin"))) == 5


def test_the_environment_overrides_the_budget_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")
    kernel = tuned(budget="all")
    with playing() as on:
        call(kernel)
        assert len(launched(on)) == 2


def test_each_value_dtype_and_device_is_a_key_of_its_own() -> None:
    kernel = tuned(budget=2)
    with playing():
        for n in (1000, 2000):
            for dtype in (torch.float32, torch.float16):
                call(kernel, n, dtype)
                call(kernel, n, dtype)
        assert len(kernel.cache) == 4
        assert set(kernel.cache) == {
            (n, dtype) for n in (1000, 2000) for dtype in ("torch.float32", "torch.float16")
        }, "Triton's keys"
    assert all(kernel.cache[key] is config for key, config in kernel.cache.items()), "whatever device is current"
    with playing():  # another device
        call(kernel, 1000)
        assert len({device for *_, device in kernel.cache}) == 2
        assert len(kernel.cache) == 5


def test_an_argument_that_is_sometimes_a_tensor_counts_by_its_dtype_there(interpreted: None) -> None:
    @triton.jit
    def fill(out_ptr, bias, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

    out = torch.zeros(1)
    kernel = tuned(fill, key=[], do_bench=lambda launch, quantiles: [1.0] * 3)
    for _ in range(2):
        for bias in (None, torch.zeros(1), torch.zeros(1, dtype=torch.float16), 3):
            kernel[(1,)](out, bias)
    assert set(kernel.cache) == {
        ("torch.float32",),
        ("torch.float32", "torch.float32"),
        ("torch.float32", "torch.float16"),
    }


def test_reordered_keywords_are_another_key_only_if_their_values_are(interpreted: None) -> None:
    @triton.jit
    def fill(out_ptr, m, n, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

    out = torch.zeros(1)
    kernel = tuned(fill, key=["m", "n"], configs=configs((1, 2)), do_bench=lambda launch, quantiles: [1.0] * 3)
    kernel.cache[1, 2, "torch.float32"], kernel.cache[2, 1, "torch.float32"] = kernel.configs
    for _ in range(2):
        kernel[(1,)](out, m=1, n=2)
        assert float(out) == 1
        kernel[(1,)](out, n=1, m=2)
        assert float(out) == 2
        kernel[(1,)](out, n=2, m=1)
        assert float(out) == 1
        kernel[(1,)](out, 2, 1)
        assert float(out) == 2
    assert len(kernel.cache) == 2


def test_calls_in_one_bucket_share_a_decision() -> None:
    kernel = tuned(key_buckets={"n": "pow2"}, budget=2)
    with playing() as on:
        for n in (600, 1000, 1024):
            call(kernel, n)
        assert len(kernel.cache) == 1
        call(kernel, 1025)
        assert len(kernel.cache) == 2
        tens = tuned(key_buckets={"n": lambda n: n // 10})
        call(tens, 19)
        before = sum(on.launches.values())
        call(tens, 10)
        assert sum(on.launches.values()) == before + 1


@pytest.mark.parametrize(("bucket", "shown"), [([7], r"\[7\]"), ((1, {}), r"\(1, \{\}\)")])
def test_a_bucket_that_is_no_part_of_a_key_is_refused(bucket: Any, shown: str) -> None:
    kernel = tuned(key_buckets={"n": lambda _: bucket})
    told = rf"key_buckets of scale: .* n=1000 returned {shown}, which cannot be hashed: return a number"
    with playing(), pytest.raises(InvalidInputError, match=told):
        call(kernel)


def test_a_key_that_cannot_be_hashed_without_buckets_is_pythons_error() -> None:
    kernel = tuned(key=["n", "factor"], key_buckets={"n": "pow2"})
    with playing(), pytest.raises(TypeError, match="unhashable type: 'list'"):
        kernel[(4,)](torch.empty(4096), 1000, [2.0])


def test_a_space_takes_the_place_of_a_list() -> None:
    space = Space.grid(
        {"BLOCK": [64, 128, 256, 512], "num_warps": [1, 2, 4, 8]},
        constraints=[lambda BLOCK, num_warps: 32 * num_warps <= BLOCK],
    )
    kernel = tuned(configs=None, space=space, budget="all")
    with playing() as on:
        call(kernel)
        assert len(launched(on)) == len(space) == len(kernel.configs) == 13
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert kernel.best_config.num_warps == 4


# Modes ----------------------------------------------------------------------------------------------------------------


def test_mode_first_runs_the_first_config() -> None:
    kernel = tuned(mode="first")
    with playing() as on:
        call(kernel)
        assert launched(on) == {(64, 4)}


def test_mode_forecast_ignores_what_is_stored_and_measures_nothing() -> None:
    def forecast() -> Any:
        kernel = tuned(configs=configs(warps=(1, 4, 8)), mode="forecast")
        with playing() as on:
            call(kernel)
            assert sum(on.launches.values()) == 1
            assert sum(on.loads.values()) == 1
        (decision,) = kernel.decisions.values()
        assert decision.basis in ("forecast", "default")
        return kernel.best_config.all_kwargs()

    before = forecast()
    with playing():
        call(tuned(configs=configs(warps=(1, 4, 8)), budget="all"))
    assert forecast() == before


def test_mode_cached_takes_what_is_stored_and_measures_nothing() -> None:
    with playing() as on:
        call(tuned(mode="cached"))
        assert sum(on.launches.values()) == 1
        call(tuned())
        before = sum(on.launches.values())
        kernel = tuned(mode="cached")
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert sum(on.launches.values()) == before + 1


def test_mode_strict_refuses_a_key_it_does_not_know_and_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    with playing():
        call(tuned(), 1000)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")  # the environment's word counts, not the code's
    kernel = tuned(mode="tune")
    with playing() as on:
        call(kernel, 1000)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        with pytest.raises(CacheMissError) as refusal:
            call(kernel, 2000)
        assert sum(on.launches.values()) == 1
    assert "scale(n=2000" in str(refusal.value)
    assert "nearest key known is" in str(refusal.value)
    assert "scale(n=1000" in str(refusal.value)


# As Triton's own ------------------------------------------------------------------------------------------------------


def test_trials_leave_the_arguments_as_they_were(interpreted: None) -> None:
    @triton.jit
    def add(total_ptr, kept_ptr, none_ptr, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(total_ptr + at, tl.load(total_ptr + at) + 1)
        tl.store(kept_ptr + at, tl.load(kept_ptr + at) * 2)

    total, kept = torch.zeros(16), torch.ones(16)
    bench = Bench(lambda: 1.0)
    kernel = tuned(
        add,
        configs=configs((4, 8, 16)),
        reset_to_zero=["total_ptr", "none_ptr"],
        restore_value=["kept_ptr", "none_ptr"],
        do_bench=bench,
    )
    kernel[(1,)](total, kept, None, 16)
    assert bench.calls == 3
    assert total[:4].tolist() == [1, 1, 1, 1]
    assert kept[:4].tolist() == [2, 2, 2, 2]


def test_hooks_are_called_around_each_trial(interpreted: None) -> None:
    @triton.jit
    def fill(out_ptr, n, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

    heard: list[Any] = []
    kernel = tuned(
        fill,
        configs=configs((1, 2)),
        pre_hook=lambda named, reset_only=False: heard.append("reset" if reset_only else named["BLOCK"]),
        post_hook=lambda named, exception: heard.append(exception),
        do_bench=Bench(lambda: 1.0),
    )
    kernel[(1,)](torch.zeros(1), 5)
    assert heard == [1, None, 2, None, "reset"]
    kernel[(1,)](torch.zeros(1), 5)
    assert len(heard) == 5


@triton.jit
def hungry(a_ptr, b_ptr, c_ptr, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns, inner = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, n, BK):
        a = tl.load(a_ptr + rows[:, None] * n + inner[None, :] + start)
        b = tl.load(b_ptr + (inner[:, None] + start) * n + columns[None, :])
        total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(tl.float16))


def tiles(*sizes: tuple[int, int, int]) -> list[Any]:
    return [triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=8, num_stages=3 if k > 64 else 2) for m, n, k in sizes]


def call_hungry(kernel: Any) -> None:
    a = torch.empty(4096, dtype=torch.float16)
    kernel[(1,)](a, a, a, 4096)


def test_a_config_that_does_not_fit_is_launched_only_for_a_users_hook() -> None:
    sizes = tiles((64, 64, 32), (128, 256, 128))
    with playing(times=20_000.0) as on:
        quiet = tuned(hungry, configs=sizes)
        call_hungry(quiet)
        assert quiet.best_config.kwargs["BM"] == 64
        assert on.loads == {"hungry": 1}
        heard: list[Exception | None] = []
        kernel = tuned(hungry, configs=sizes, budget="all", post_hook=lambda named, exception: heard.append(exception))
        kernel.cache.clear()
        forget_the_store()
        call_hungry(kernel)
    failed = [err for err in heard if err is not None]
    assert [type(err) for err in failed] == [triton.runtime.errors.OutOfResources]
    assert kernel.best_config.kwargs["BM"] == 64


def forget_the_store() -> None:
    """Empty the store of this test, so that what follows meets every config for the first time."""
    import shutil

    shutil.rmtree(os.environ["FORECAST_AUTOTUNE_DIR"], ignore_errors=True)


def test_where_no_config_fits_the_caller_gets_tritons_own_error() -> None:
    kernel = tuned(hungry, configs=tiles((128, 256, 128), (256, 256, 128)))
    with playing(times=20_000.0) as on, pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory"):
        call_hungry(kernel)
    assert not on.launches


def test_heuristics_below_and_above_are_applied() -> None:
    @triton.jit
    def scale_even(x_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * factor)
        else:
            tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)

    times = {Config({"BLOCK": b, "EVEN": e}): 20_000.0 + b for b in (64, 128) for e in (False, True)}
    even = triton.heuristics({"EVEN": lambda named: named["n"] % 128 == 0})
    below = tuned(even(scale_even), configs=configs((128, 64)))
    above = even(tuned(scale_even, configs=configs((128, 64))))
    for kernel, tuner in ((below, below), (above, above.fn)):
        with playing(times=times) as on:
            call(kernel, 1024)
            call(kernel, 1000)
            assert tuner.best_config.kwargs == {"BLOCK": 128}, "64 is quicker by less than tells"
            assert {config["EVEN"] for _, config in on.launches} == {False, True}
            assert not on.compiles


def test_a_hook_that_shapes_a_descriptor_meets_each_config_by_itself() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def copy_tile(source, target, n, BM: tl.constexpr, BN: tl.constexpr):
        at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
        target.store(at, source.load(at))

    def shape_anew(named: dict[str, Any]) -> None:
        named["source"].block_shape = [named["BM"], named["BN"]]
        named["target"].block_shape[:] = [named["BM"], named["BN"]]

    shapes = [(64, 64), (128, 64), (64, 128), (32, 64)]
    kernel = tuned(
        copy_tile,
        configs=[triton.Config({"BM": m, "BN": n}, num_warps=4, pre_hook=shape_anew) for m, n in shapes],
    )
    times = {Config({"BM": m, "BN": n}): 20_000.0 if (m, n) == (64, 128) else 40_000.0 for m, n in shapes}
    x, y = (torch.empty(256, 256, dtype=torch.float16) for _ in range(2))
    source, target = (TensorDescriptor.from_tensor(t, [1, 1]) for t in (x, y))
    with playing(times=times) as on:
        for _ in range(2):
            kernel[(4, 4)](source, target, 256)
            assert source.block_shape == target.block_shape == [64, 128]
        assert not on.compiles, "each launch found what the worker compiled for it"
        assert on.cache_hits["copy_tile"] == 4
    assert kernel.best_config.kwargs == {"BM": 64, "BN": 128}
    (decision,) = kernel.decisions.values()
    assert decision.failed == 0


def test_the_users_pruning_runs_first_and_ours_among_what_it_leaves() -> None:
    seen: list[Any] = []

    def early(given: list[Any], named: dict[str, Any], **keywords: Any) -> list[Any]:
        seen.append((len(given), sorted(named), sorted(keywords)))
        return [c for c in given if c.kwargs["BLOCK"] != BEST]

    def model(**named: Any) -> float:
        seen.append(named["BLOCK"])
        return -float(named["BLOCK"])

    kernel = tuned(prune_configs_by={"early_config_prune": early, "perf_model": model, "top_k": 2})
    with playing() as on:
        kernel[(4,)](torch.empty(10), n=10, factor=2.0)
        assert launched(on) == {(512, 4), (128, 4)}
    assert seen == [(4, ["x_ptr"], ["factor", "grid", "n", "warmup"]), 64, 128, 512]


@pytest.mark.parametrize(("top_k", "left"), [(0.5, 2), (0.1, 1), (3, 3), (1.0, 4)])
def test_top_k_is_a_share_of_the_pruned_or_a_number(top_k: float, left: int) -> None:
    kernel = tuned(prune_configs_by={"perf_model": lambda BLOCK, **_: BLOCK, "top_k": top_k})
    with playing() as on:
        call(kernel)
        assert len(launched(on)) == left


def test_a_single_config_left_is_run_without_being_timed(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tuned(prune_configs_by={"early_config_prune": lambda given, named, **_: given[2:3]})
    with playing() as on, triton.knobs.autotuning.scope():
        triton.knobs.autotuning.print = True
        call(kernel)
        assert sum(on.launches.values()) == 1
    assert kernel.best_config.kwargs == {"BLOCK": 256}
    assert capsys.readouterr().out == ""
    alone = tuned(configs=configs((128,)))
    with playing() as on:
        call(alone)
        call(alone)
        assert launched(on) == {(128, 4)}
    assert not alone.cache


def test_a_users_own_benchmark_is_the_measurer_and_is_not_asked_twice() -> None:
    times = iter([4.0, 1.0, 1.01, 3.0])
    bench = Bench(lambda: next(times))
    kernel = tuned(do_bench=bench)
    with playing(times=1.0):
        call(kernel)
    assert bench.calls == 4
    assert sorted(t[0] for t in kernel.configs_timings.values()) == [1.0, 1.01, 3.0, 4.0]


def test_what_a_users_own_benchmark_returns_is_told_as_it_is() -> None:
    def bench(launch: Callable[[], None], quantiles: Any) -> float:
        launch()
        return 1.5

    with playing(times=1.0):
        for count in (2, 4):  # those of the second that the first has timed are recalled
            kernel = tuned(do_bench=bench, configs=configs(BLOCKS[:count]))
            call(kernel)
            assert list(kernel.configs_timings.values()) == [1.5] * count


def test_times_by_another_benchmark_do_not_count() -> None:
    with playing():
        call(tuned(do_bench=Bench(lambda: 1.0)))
        call(kernel := tuned())
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        (decision,) = kernel.decisions.values()
        assert decision.tried == 4


def test_what_graphs_take_is_kept_under_a_key_of_its_own() -> None:
    with playing() as on:
        call(tuned())
        before = on.launches.total()
        call(tuned(timing="graph"))
        assert on.launches.total() > before + 4, "measured anew"
        with pytest.warns(DeprecationWarning, match="use_cuda_graph"):
            older = tuned(use_cuda_graph=True)
        before = on.launches.total()
        call(older)
        assert on.launches.total() == before + 1, "its times are the same workload's"


def test_warmup_compiles_every_config() -> None:
    kernel = tuned(configs=configs((64, 128)))
    with playing() as on:
        compiled = kernel.warmup(torch.float32, 1000, 2.0, grid=(1,))
        assert len({c.hash for c in compiled}) == 2
        assert not on.launches


def test_results_are_kept_whatever_cache_results_says() -> None:
    with playing() as on:
        call(tuned(cache_results=True))
        before = sum(on.launches.values())
        call(tuned(cache_results=True))
        assert sum(on.launches.values()) == before + 1


def test_tuning_is_printed_where_triton_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tuned(configs=configs((64, 256)))
    with playing(), triton.knobs.autotuning.scope():
        triton.knobs.autotuning.print = True
        call(kernel)
        call(kernel)
    out = capsys.readouterr().out
    assert f"Autotuning kernel scale with config {kernel.configs[0]}" in out
    assert out.count("Triton autotuning for function scale,\nwith key as (1000, 'torch.float32'),") == 1
    assert f"best config selected: {kernel.best_config};" in out


@pytest.mark.skipif(VERSION < (3, 8), reason="Triton has this listener since 3.8")
def test_the_listener_hears_of_each_decision_once() -> None:
    heard: list[dict[str, Any]] = []
    with playing(), triton.knobs.autotuning.scope():
        triton.knobs.autotuning.listener = lambda **told: heard.append(told)
        kernel = tuned()
        call(kernel)
        call(kernel)
        assert [told["cache_hit"] for told in heard] == [False]
        assert heard[0]["fn"] is scale
        assert heard[0]["key"] == (1000, "torch.float32")
        assert heard[0]["best_config"] is kernel.best_config
        assert heard[0]["duration"] > 0
        assert len(heard[0]["configs_timings"]) == 4
        kernel.cache.clear()
        call(kernel)
        assert [told["cache_hit"] for told in heard] == [False, True]
        assert heard[1]["duration"] is None
        call(tuned(configs=configs((64,))))
        assert len(heard) == 2


@pytest.mark.skipif(VERSION < (3, 8), reason="Triton has this listener since 3.8")
def test_a_listener_that_raises_costs_a_warning_and_not_the_decision() -> None:
    kernel = tuned()

    def listener(**_: Any) -> None:
        raise RuntimeError("nobody listens")

    with playing(), triton.knobs.autotuning.scope():
        triton.knobs.autotuning.listener = listener
        with pytest.warns(TuningWarning, match="the listener of autotuning failed on kernel scale.*nobody listens"):
            call(kernel)
        assert len(kernel.cache) == 1
        call(kernel)


def test_assigning_configs_decides_again() -> None:
    kernel = tuned()
    with playing():
        call(kernel)
        kernel.configs = configs((64, 128))
        assert not kernel.cache
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": 128}


def test_a_list_of_configs_that_is_changed_in_place_holds_for_new_keys() -> None:
    kernel = tuned(configs=(shared := configs()))
    with playing() as on:
        call(kernel)
        shared[:] = configs((64, 128))
        call(kernel, 2000)
        assert kernel.best_config is shared[1]
        kernel.configs[:] = configs((32, 64))
        call(kernel, 3000)
        assert kernel.best_config is shared[1]
        before = on.launches.total()
        call(kernel, 1000)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}, "what is decided stays"
        assert on.launches.total() == before + 1


def test_a_list_that_is_changed_in_place_to_one_config_and_back_is_heeded() -> None:
    kernel = tuned(configs=(shared := configs((64,))))
    with playing():
        for blocks, chosen in (((64,), 64), ((128,), 128), ((64, 128), 128), ((32,), 32), ((64, 128, 256), 256)):
            shared[:] = configs(blocks)
            for _ in range(3):
                call(kernel, 1000 + len(blocks))
                assert kernel.best_config.kwargs == {"BLOCK": chosen}
            assert all(form.single == (len(blocks) == 1) for form in kernel._shortcuts._forms.values() if form)


def test_assigned_keys_tell_the_next_calls_apart() -> None:
    kernel = tuned(key=["factor"], budget=2)
    with playing():
        call(kernel)
        call(kernel)
        kernel.keys = ["n"]
        for n in (2000, 3000, 3000):
            call(kernel, n)
        assert [key[0] for key in kernel.cache] == [2.0, 2000, 3000]


def test_configs_assigned_while_tuning_are_not_answered_from_the_old_list() -> None:
    kernel = tuned(configs=configs((64, 256)), do_bench=lambda launch, quantiles: assign() or [1.0] * 3)

    def assign() -> None:
        if len(kernel.configs) == 2:
            kernel.configs = configs((128, 512, 32))

    with playing():
        call(kernel)
        assert not kernel.cache
        call(kernel)
        assert kernel.best_config in kernel.configs


def test_what_is_put_into_the_cache_is_run() -> None:
    kernel = tuned()
    with playing() as on:
        call(kernel)
        (key,) = kernel.cache
        for change in (
            lambda c: kernel.cache.__setitem__(key, c),
            lambda c: kernel.cache.update({key: c}),
            lambda c: kernel.cache.__ior__({key: c}),
            lambda c: setattr(kernel, "cache", {key: c}),
        ):
            for config in (kernel.configs[0], kernel.configs[1]):
                change(config)
                before = dict(on.launches)
                call(kernel)
                (ran,) = [c for (_, c), count in on.launches.items() if count != before.get(("scale", c), 0)]
                assert ran["BLOCK"] == config.kwargs["BLOCK"]
                assert kernel.best_config is config
                assert dict(kernel.cache) == {key: config}
        del kernel.cache[key]
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_the_cache_is_copied_pickled_and_merged_as_a_dictionary() -> None:
    kernel = tuned()
    with playing():
        call(kernel)
        kept = dict(kernel.cache)
        read = pickle.loads(pickle.dumps(kernel.cache))  # noqa: S301  # our own bytes
        assert {key: config.kwargs for key, config in read.items()} == {next(iter(kept)): {"BLOCK": BEST}}
        assert kernel.cache.copy() == copy.copy(kernel.cache) == kernel.cache | {} == {} | kernel.cache == kept
        assert list(copy.deepcopy(kernel.cache)) == list(kept)
        call(other := tuned(configs=configs((32, 1024))), n=5)
        other.cache.update(read)
        call(other)
        assert other.best_config.kwargs == {"BLOCK": BEST}


def test_a_copied_tuner_chooses_among_its_own_configs() -> None:
    kernel = tuned()
    with playing() as on:
        call(kernel)
        copied = copy.copy(kernel)
        launches = sum(on.launches.values())
        call(copied)
        assert sum(on.launches.values()) == launches + 1
        assert copied.best_config is kernel.best_config
        copied.configs = configs((32, 64))
        assert len(kernel.cache) == 1
        call(copied, n=5)
        assert copied.best_config.kwargs == {"BLOCK": 64}
        assert len(copied.cache) == 1
        call(kernel, n=5)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_the_cache_is_read_by_tritons_own_key() -> None:
    kernel = tuned()
    with playing():
        call(kernel)
        assert list(kernel.cache.items()) == [((1000, "torch.float32"), kernel.best_config)]
        assert kernel.cache[1000, "torch.float32"] is kernel.best_config
        assert (1000, "torch.float32") in kernel.cache
        assert (1001, "torch.float32") not in kernel.cache
        del kernel.cache[1000, "torch.float32"]
        assert not kernel.cache


def test_other_threads_launch_while_the_users_pruning_waits_for_them() -> None:
    other = tuned()

    def prune(all_configs: list[Any], *_: Any, **__: Any) -> list[Any]:
        thread = threading.Thread(target=lambda: call(other), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return all_configs

    with playing():
        call(kernel := tuned(prune_configs_by={"early_config_prune": prune}))
    assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_the_tuner_is_let_go_with_its_last_reference() -> None:
    import weakref

    kernel = tuned(budget=2)
    with playing():
        call(kernel)
        call(kernel)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


# Threads --------------------------------------------------------------------------------------------------------------


def test_eight_threads_tune_each_key_once_and_run_the_default_meanwhile(interpreted: None) -> None:
    @triton.jit
    def fill(out_ptr, n, BLOCK: tl.constexpr):
        tl.store(out_ptr, BLOCK)

    benched: list[tuple[int, int]] = []
    wanted = {10: 1, 20: 2, 30: 4}

    def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
        named = kernel.nargs
        launch()
        block = int(named["out_ptr"])
        benched.append((named["n"], block))
        time.sleep(0.1)
        return [1.0 if wanted[named["n"]] == block else 5.0] * 3

    kernel = tuned(fill, configs=configs((1, 2, 4)), do_bench=bench)
    meanwhile = []
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for i in range(10_000):
            n = (10, 20, 30)[(seed + i) % 3]
            if i > 40 and all(any(key[0] == m for key in list(kernel.cache)) for m in wanted):
                return
            out = torch.zeros(1)
            decided = any(key[0] == n for key in kernel.cache)
            try:
                kernel[(1,)](out, n)
            except Exception as err:
                wrong.append(err)
            if int(out) != wanted[n]:
                (wrong if decided or int(out) != 1 else meanwhile).append((n, float(out)))

    # The interpreter keeps the running program's place in one global, so launches themselves take turns.
    turns = threading.RLock()
    launch = kernel.fn.run
    kernel.fn.run = lambda *args, **kwargs: [turns.acquire(), launch(*args, **kwargs), turns.release()][1]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert meanwhile
    assert {pair[0] for pair in benched} == {10, 20, 30}
    assert len(set(benched)) == 9
    assert len(kernel.decisions) == 3
    assert kernel.best_config.kwargs["BLOCK"] in wanted.values()


def test_a_call_whose_key_is_decided_does_not_wait_for_another_keys_tuning() -> None:
    tuning, done = threading.Event(), threading.Event()

    def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
        if kernel.nargs["n"] == 2000:
            tuning.set()
            assert done.wait(120)
        return [1.0] * 3

    kernel = tuned(do_bench=bench, budget=2)
    with playing():
        call(kernel, 1000)
        thread = threading.Thread(target=call, args=(kernel, 2000))
        thread.start()
        assert tuning.wait(120)
        call(kernel, 1000)
        kernel.run(torch.empty(10), 1000, factor=2.0, grid=(1,), warmup=False)  # a form not met before
        done.set()
        thread.join()
    assert len(kernel.cache) == 2


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_compiler_that_aborts_takes_down_a_worker_and_not_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("ptxas", "ptxas_blackwell"):
        if tool := getattr(triton.knobs.nvidia, name, None):
            script = tmp_path / name
            script.write_text(
                f'#!/bin/sh\ncase "$*" in *--version*) exec {tool.path} --version;; esac\n'
                'for file; do case "$file" in *.ptx)\n'
                '  grep -q "ntid 256" "$file" && kill -ABRT $PPID && sleep 5;; esac; done\n'
                f'exec {tool.path} "$@"\n'
            )
            script.chmod(0o755)
            monkeypatch.setenv(f"TRITON_{name.upper()}_PATH", str(script))
    kernel = tuned(configs=[*configs((64,), (4, 8)), *configs((BEST,), (8, 4))])
    with playing() as on:
        call(kernel)
        assert {warps for _, warps in launched(on)} == {4}
    assert kernel.best_config.kwargs == {"BLOCK": BEST}
    assert kernel.best_config.num_warps == 4
    (decision,) = kernel.decisions.values()
    assert decision.failed == 2


def test_nothing_is_timed_during_graph_capture_and_the_key_is_tuned_later(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned()
    with playing() as on:
        with monkeypatch.context() as patch:
            patch.setattr(door, "is_capturing", lambda: True)
            call(kernel)
            call(kernel)
            assert sum(on.launches.values()) == 2
            assert not kernel.cache
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert len(kernel.cache) == 1


def test_tuning_that_fails_does_not_break_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("no reason")

    for module, name in ((dispatch, "decide"), (door, "TritonCall"), (dispatch, "open_store")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            kernel = tuned()
            with playing() as on:
                with pytest.warns(TuningWarning, match="kernel scale is not tuned.*ZeroDivisionError: no reason"):
                    call(kernel)
                assert launched(on) == {(64, 4)}


def test_names_of_no_argument_are_refused_where_triton_does_else_warned_of() -> None:
    for arguments in ({"key": ["m"]}, {"reset_to_zero": ["m"]}, {"restore_value": ["m"]}):
        told = f"{next(iter(arguments))} of kernel scale .* not kernel arguments: m. Valid .* x_ptr, n, factor, BLOCK"
        if VERSION >= (3, 9):
            with pytest.raises(ValueError, match=told):
                tuned(**arguments)
        else:
            with pytest.warns(TuningWarning, match=told):
                tuned(**arguments)


def test_a_key_that_cannot_be_hashed_is_pythons_own_error() -> None:
    kernel = tuned(key=["factor"])
    with playing(), pytest.raises(TypeError, match="unhashable type: 'list'"):
        kernel[(1,)](torch.empty(10), 10, [2.0])


def test_configs_missing_a_knob_are_refused_unless_the_kernel_defaults_it() -> None:
    @triton.jit
    def wide(x_ptr, n, BLOCK: tl.constexpr, WIDE: tl.constexpr = 1):
        tl.store(x_ptr + tl.arange(0, BLOCK), WIDE)

    mixed = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 64, "WIDE": 2})]
    with playing(times=20_000.0) as on:
        tuned(wide, configs=mixed)[(1,)](torch.empty(100), 10)
        assert len(on.launches) == 2
        lacking = tuned(configs=[*configs((64,)), triton.Config({})])
        with pytest.raises(InvalidInputError, match="configs of kernel scale set different knobs: BLOCK"):
            call(lacking)


def test_what_some_configs_lack_a_launcher_of_the_users_may_add() -> None:
    @triton.jit
    def split(x_ptr, n, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), SPLIT)

    class WithDefaults(triton.runtime.KernelInterface):  # type: ignore[misc]
        def __init__(self, fn: Any) -> None:
            self.fn, self.arg_names = fn, fn.arg_names

        def run(self, *args: Any, **kwargs: Any) -> Any:
            return self.fn.run(*args, **{"SPLIT": 1, **kwargs})

    mixed = [*configs((64, BEST)), triton.Config({"BLOCK": 128, "SPLIT": 2})]
    with playing() as on:
        kernel = tuned(WithDefaults(split), configs=mixed)
        kernel[(1,)](torch.empty(4096), 10)
        (decision,) = kernel.decisions.values()
        assert (decision.tried, decision.failed, len(on.launches)) == (3, 0, 3)
    assert kernel.best_config is mixed[1]


def test_options_of_a_backend_may_stand_in_some_configs_only() -> None:
    with playing("hip:gfx942", times=20_000.0) as on:
        kernel = tuned(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 64, "waves_per_eu": 2})])
        call(kernel)
        (decision,) = kernel.decisions.values()
        assert (decision.tried, decision.failed) == (2, 0)
        assert sum(on.launches.values()) > 1


def test_configs_that_set_what_the_call_gives_are_refused_as_triton_does() -> None:
    kernel = tuned()
    with playing(), pytest.raises(ValueError, match=r"Conflicting meta-parameters: BLOCK.*Kernel scale"):
        call(kernel, BLOCK=64)


def test_pruning_that_leaves_nothing_is_tritons_own_error() -> None:
    kernel = tuned(prune_configs_by={"early_config_prune": lambda given, named, **_: []})
    with playing(), pytest.raises(Exception, match="Autotuner error: No valid autotuner configs after pruning"):
        call(kernel)


def test_pruning_may_hand_on_configs_of_its_own_but_nothing_else() -> None:
    own = tuned(prune_configs_by={"early_config_prune": lambda given, named, **_: configs((1024, 32))})
    odd = tuned(prune_configs_by={"early_config_prune": lambda given, named, **_: [{"BLOCK": 64}, given[0]]})
    with playing() as on:
        call(own)
        assert launched(on) == {(1024, 4), (32, 4)}
        with pytest.raises(InvalidInputError, match=r"prune_configs_by of kernel scale left \{'BLOCK': 64\}"):
            call(odd)


@pytest.mark.parametrize("top_k", [1.5, 0, -8])
def test_a_top_k_that_is_no_number_or_leaves_nothing_is_refused(top_k: float) -> None:
    kernel = tuned(prune_configs_by={"perf_model": lambda **_: 1.0, "top_k": top_k})
    with (
        playing(),
        pytest.raises(TypeError, match=rf"top_k={top_k} .*scale: give a share up to 1.0, or a whole number from 1"),
    ):
        call(kernel)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"configs": configs(), "space": Space([{"BLOCK": 64}])}, "scale has both configs= and space="),
        ({"timing": "wall"}, "timing='wall' of scale: accepted are eager, graph"),
        ({"budget": "many"}, "budget 'many' does not parse"),
        ({"mode": "fast"}, "mode='fast': accepted are"),
        ({"surrogate": "crystal ball"}, "surrogate='crystal ball': accepted are"),
        ({"check": "close"}, "check='close': accepted are"),
        ({"key_buckets": {"factor": "pow2"}}, "key_buckets of scale names 'factor': key is n"),
        ({"key_buckets": {"n": "pow3"}}, "key_buckets of scale: n='pow3'; accepted are pow2"),
        ({"key_buckets": ["n"]}, "key_buckets=['n'] of scale: give a mapping, such as {'n': 'pow2'}"),
        ({"prune_configs_by": "top"}, "prune_configs_by='top': give a mapping, such as {'perf_model'"),
        ({"isolate": "0"}, "isolate='0' of scale: accepted are True and False"),
        ({"shard": "no"}, "shard='no' of scale: accepted are True and False"),
        ({"key": "factor"}, "key='factor': give a list of names, such as key=['n'], or [] for one key"),
        ({"key": None}, "key=None: give a list of names"),
    ],
)
def test_arguments_that_say_nothing_are_refused_at_once(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        tuned(**arguments)
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": "n"}, {"key": np.array(["n"])}, {"key": ("n",)}, {"prune_configs_by": {}}, {"prune_configs_by": ()},
        {"isolate": np.bool_(False), "shard": 0}, {"key_buckets": {}}, {"reset_to_zero": np.array(["x_ptr"])},
    ],
)  # fmt: skip
def test_what_triton_takes_is_taken(arguments: dict[str, Any]) -> None:
    assert tuned(**arguments).configs


def test_what_is_no_kernel_is_told_where_the_decorator_belongs() -> None:
    def scale(x_ptr: Any) -> None: ...

    with pytest.raises(InvalidInputError, match=r"scale is no Triton kernel, but a function: .* above @triton.jit"):
        autotune(configs=configs(), key=["n"])(scale)


def test_two_kernels_of_one_name_do_not_share_decisions() -> None:
    def other() -> Any:
        @triton.jit
        def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + factor, mask=offsets < n)

        return scale

    with playing() as on:
        call(tuned())
        before = sum(on.launches.values())
        kernel = tuned(other())
        call(kernel)
        (decision,) = kernel.decisions.values()
        assert decision.tried == 4
        assert sum(on.launches.values()) > before + 4


def test_a_decision_made_under_another_triton_is_no_hit_but_informs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, playing():
        patch.setattr(triton, "__version__", "3.0.0")
        call(tuned(configs=configs(warps=(1, 2, 4, 8)), budget="all"))
    with playing() as on:
        kernel = tuned(configs=configs(warps=(1, 2, 4, 8)), budget=3)
        call(kernel)
        (decision,) = kernel.decisions.values()
        assert decision.tried == 3
        assert (BEST, 4) in launched(on), "what was best there is tried here"


def test_a_config_whose_outputs_differ_is_not_chosen(interpreted: None) -> None:
    @triton.jit
    def fill(out_ptr, n, BLOCK: tl.constexpr, WRONG: tl.constexpr):
        tl.store(out_ptr + tl.arange(0, BLOCK), 7 + WRONG)

    choices = [triton.Config({"BLOCK": 8, "WRONG": w}, num_stages=s) for w, s in ((0, 1), (1, 1), (0, 2))]
    out = torch.zeros(8)
    left = iter([5.0, 2.0])  # the wrong one is not timed at all
    kernel = tuned(fill, configs=choices, check="allclose", do_bench=Bench(lambda: next(left)))
    kernel[(1,)](out, 8)
    assert kernel.best_config is choices[2]
    (decision,) = kernel.decisions.values()
    assert decision.failed == 1


def test_values_without_a_finite_number_are_keys_and_knobs_like_others() -> None:
    @triton.jit
    def cap(x_ptr, n, factor, BLOCK: tl.constexpr, LIMIT: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), factor)

    choices = [triton.Config({"BLOCK": b, "LIMIT": float("inf")}) for b in (64, 128)]
    kernel = tuned(cap, key=["factor"], configs=choices)
    with playing(times=20_000.0), warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[(1,)](torch.empty(100), 10, float("inf"))
    assert len(kernel.decisions) == 1


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_an_error_in_the_callers_grid_is_not_kept_against_the_configs() -> None:
    with playing() as on:
        with pytest.raises(KeyError, match="BLOK"):
            tuned()[lambda meta: (meta["BLOK"],)](torch.empty(4096), 1000, 2.0)
        assert not on.launches
        kernel = tuned()
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        (decision,) = kernel.decisions.values()
        assert (decision.tried, decision.failed) == (4, 0)


def test_a_failing_default_leaves_no_reference_and_fails_alone(
    interpreted: None, caplog: pytest.LogCaptureFixture
) -> None:
    @triton.jit
    def fill(out_ptr, n, BLOCK: tl.constexpr):
        tl.store(out_ptr + tl.arange(0, BLOCK), 7)

    def refuse(named: dict[str, Any]) -> None:
        raise ZeroDivisionError("not this one")

    choices = [triton.Config({"BLOCK": 4}, pre_hook=refuse), *configs((8, 16, 32))]
    left = iter([5.0, 2.0, 3.0])

    def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
        launch()
        return [next(left)] * 3

    kernel = tuned(fill, configs=choices, check="allclose", do_bench=bench)
    with pytest.warns(
        TuningWarning, match="BLOCK: 4.* raised ZeroDivisionError: not this one. Tuning goes on without it"
    ):
        kernel[(1,)](torch.zeros(32), 32)
    assert kernel.configs_timings[kernel.best_config][0] == 2.0
    (decision,) = kernel.decisions.values()
    assert (decision.tried, decision.failed) == (4, 1)
    assert caplog.text.count("the default config does not run: nothing can be compared") == 1


def test_a_decision_made_without_a_check_does_not_answer_for_one_with_it() -> None:
    with playing():
        runs = []
        for check in (None, "allclose", "allclose"):
            call(kernel := tuned(check=check))
            runs += [decision.run for decision in kernel.decisions.values()]
    assert runs[0] != runs[1] == runs[2]


def forecast_the_second(job: Any, *_: Any, **__: Any) -> Resolution:
    """A decision for the second config, which nothing has measured."""
    return Resolution(
        Decision(
            config=job.space[1],
            basis="forecast",
            reason="",
            space_digest=job.space.digest,
            space_size=len(job.space),
            budget="0",
        )
    )


def test_a_forecast_config_that_does_not_fit_gives_way_to_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "decide", forecast_the_second)
    kernel = tuned(hungry, configs=tiles((64, 64, 32), (128, 256, 128)), mode="forecast")
    with playing(times=20_000.0) as on:
        with pytest.warns(
            TuningWarning,
            match="kernel hungry runs its first config, not BM=128.*which a forecast chose.*OutOfResources",
        ) as told:
            call_hungry(kernel)
        assert len(told) == 1
        assert sum(on.launches.values()) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call_hungry(kernel)
            call_hungry(kernel)
        assert sum(on.launches.values()) == 3
    assert list(kernel.cache.values()) == [kernel.configs[0]]
    assert kernel.best_config is kernel.configs[0]
    (decision,) = kernel.decisions.values()
    assert (decision.basis, decision.config["BM"]) == ("default", 64)


def test_a_forecast_config_that_does_not_compile_gives_way_to_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "decide", forecast_the_second)
    kernel = tuned(configs=configs((64, 96)), mode="forecast")  # no power of 2
    with playing(), pytest.warns(TuningWarning, match="runs its first config.*CompilationError"):
        call(kernel)
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_a_compile_error_that_another_config_shares_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(dispatch, "decide", forecast_the_second)
    refuse(monkeypatch, launching=tried.append)
    kernel = tuned(configs=configs((96, 97, 98, 99)), mode="forecast")
    with playing(), pytest.raises(triton.CompilationError):
        call(kernel)
    assert tried == [97, 96]


def refuse(patch: pytest.MonkeyPatch, *blocks: int, launching: Callable[[int], object] = lambda _: None) -> None:
    """Let the device refuse launches with some values of BLOCK; `launching` is called at the start of each."""
    run = triton.runtime.jit.JITFunction.run

    def refusing(self: Any, *args: Any, **kwargs: Any) -> Any:
        launching(kwargs["BLOCK"])
        if kwargs["BLOCK"] in blocks:
            raise triton.runtime.errors.OutOfResources(2, 1, "shared memory")
        return run(self, *args, **kwargs)

    patch.setattr(triton.runtime.jit.JITFunction, "run", refusing)


def test_a_call_during_a_first_launch_that_is_refused_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = []

    def launch() -> None:
        try:
            call(kernel)
        except BaseException as err:
            raised.append(err)

    def beside(block: int) -> None:
        if block == 64 and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=launch)
            other.start()
            other.join()

    refuse(monkeypatch, 64, launching=beside)
    kernel = tuned(configs=configs((64, 128)), mode="first")
    with playing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        launch()
    assert not raised


def test_a_forecast_config_that_does_not_fit_gives_way_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def forecast(job: Any, *_: Any, **__: Any) -> Resolution:
        digest, size = job.space.digest, len(job.space)
        return Resolution(
            Decision(config=job.space[1], basis="forecast", reason="", space_digest=digest, space_size=size, budget="0")
        )

    both = threading.Barrier(2)
    monkeypatch.setattr(dispatch, "decide", forecast)
    refuse(monkeypatch, 128, launching=lambda block: both.wait(60) if block == 128 else None)
    kernel = tuned(configs=configs((64, 128)), mode="forecast")
    raised: list[BaseException] = []

    def launch() -> None:
        try:
            call(kernel)
        except BaseException as err:
            raised.append(err)

    with playing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        threads = [threading.Thread(target=launch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        call(kernel)
    assert not raised
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_a_default_that_does_not_fit_gives_way_while_another_thread_tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, launched_here = threading.Event(), threading.Event()

    def launching(block: int) -> None:
        if threading.current_thread() is tuning:
            timing.set()
            launched_here.wait(60)

    refuse(monkeypatch, 64, launching=launching)
    kernel = tuned()
    tuning = threading.Thread(target=lambda: call(kernel))
    with playing():
        tuning.start()
        assert timing.wait(60)
        with pytest.warns(TuningWarning, match="runs BLOCK: 128.*its first config does not run: OutOfResources"):
            call(kernel)
        launched_here.set()
        tuning.join()
        call(kernel)
    assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_a_recalled_config_that_does_not_fit_here_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with playing():
        first = tuned()
        call(first)
        assert first.best_config.kwargs == {"BLOCK": BEST}
        refuse(monkeypatch, BEST)  # a driver that leaves less shared memory, say
        kernel = tuned()
        with pytest.warns(TuningWarning, match="runs its first config.* was recalled and which does not run: OutOfRes"):
            call(kernel)
        call(kernel)
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_a_call_that_runs_under_no_config_leaves_what_was_recalled() -> None:
    with playing():
        call(tuned())
        kernel = tuned()
        with pytest.raises(triton.CompilationError):
            kernel[(4,)](torch.empty(4096), 1000, None)
        call(kernel)
    assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_a_program_may_give_a_kernel_another_name() -> None:
    kernel = tuned()
    kernel.name = "scale of attention"
    with playing():
        call(kernel)
    assert (kernel.name, tuned().name) == ("scale of attention", "scale")


def test_without_measuring_the_first_config_that_fits_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, 64, 128, 512)
    kernel = tuned(mode="forecast")
    with playing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)  # unless the forecast chooses what fits
        call(kernel)
        call(kernel)
    assert kernel.best_config.kwargs == {"BLOCK": 256}
    assert list(kernel.cache.values()) == [kernel.best_config]


def test_any_other_error_of_a_forecast_config_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "decide", forecast_the_second)
    with playing(), pytest.raises(KeyError, match="BLOK"):
        tuned(mode="forecast")[lambda meta: (meta["BLOK"],)](torch.empty(4096), 1000, 2.0)


def test_configs_assigned_during_a_call_are_not_answered_from_the_old_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = tuned(configs=configs((64, 256)))
    remember = kernel._shortcuts.remember
    assigning = threading.Thread(target=lambda: setattr(kernel, "configs", configs((128, 512))))
    clear, forgetting = kernel.dispatcher.table.clear, threading.Event()

    def noted() -> None:
        forgetting.set()
        clear()

    def slowly(*args: Any) -> None:
        assigning.start()
        assert forgetting.wait(60)
        assigning.join(0.3)  # it ends here, and what is remembered outlives it, unless it has to wait
        remember(*args)

    with playing():
        with monkeypatch.context() as patch:
            patch.setattr(kernel._shortcuts, "remember", slowly)
            patch.setattr(kernel.dispatcher.table, "clear", noted)
            call(kernel)
        assigning.join()
        call(kernel)
        assert kernel.best_config in kernel.configs


def test_quantiles_of_the_users_own_benchmark_are_shown_unchanged() -> None:
    with playing():
        own = tuned(do_bench=lambda launch, quantiles: launch() or [2.0, 1.0, 4.0])
        call(own)
    assert list(own.configs_timings.values()) == [[2.0, 1.0, 4.0]] * 4


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_that_has_closed_an_output_is_tuned(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open(os.devnull, "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, stream, closed)
    kernel = tuned()
    with playing():
        call(kernel)
    assert [decision.basis for decision in kernel.decisions.values()] == ["measured"]
