# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Keys met where measuring is not allowed: noted by both front doors, measured within tune_pending()."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy import Toy

import forecast_autotune as fa
from forecast_autotune.core.budget import TotalSpent
from forecast_autotune.core.config import Config
from forecast_autotune.errors import NoGpuError
from forecast_autotune.frontends.pending import measuring_is_wanted
from forecast_autotune.frontends.triton.simulated_driver import current_rehearsal
from forecast_autotune.store.queries import StoreFile

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402


@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton-cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def tuned(**extras: Any) -> Any:
    configs = [triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128, 256)]
    return fa.autotune(configs=configs, key=["n"], **{"budget": 2, **extras})(scale)


def call(kernel: Any, n: int = 1000) -> int:
    """Launch once, on the device that is rehearsed or on another; returns how many configs were launched."""
    if (on := current_rehearsal()) is not None:
        on.launches.clear()
        kernel[(16,)](torch.empty(n), n, 2.0)
        return len(on.launches)
    with fa.rehearsal("cuda:90", times=400.0):
        return call(kernel, n)


def noted(folder: Path) -> list[tuple[object, str, int]]:
    store = StoreFile(folder)
    return [(p.tuning_key.workload.key["n"], p.why, p.met) for p in store.pending()] if store.exists() else []


@pytest.mark.parametrize(
    ("environment", "extras", "why"),
    [
        ({"FORECAST_AUTOTUNE_MODE": "cached"}, {}, "mode cached"),
        ({"FORECAST_AUTOTUNE_MODE": "forecast"}, {}, "mode forecast"),
        ({"FORECAST_AUTOTUNE_BUDGET": "0"}, {}, "budget 0"),
        ({}, {"budget": "0%"}, "budget 0%"),
        ({}, {"mode": "cached"}, "mode cached"),
    ],
)
def test_a_key_that_may_not_be_measured_is_noted_once_in_a_process(
    own_settings: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    extras: dict[str, Any],
    why: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    kernel = tuned(**extras)
    assert call(kernel) == call(kernel) == 1
    kernel.cache.clear()
    assert call(kernel) == call(kernel, 2000) == 1
    assert sorted(noted(own_settings)) == [(1000, why, 1), (2000, why, 1)]


@pytest.mark.parametrize("where", ["code", "environment"])
def test_once_the_process_total_is_spent_keys_go_unmeasured_and_are_noted(
    own_settings: Path, monkeypatch: pytest.MonkeyPatch, set_process_total: Callable[[Any], None], where: str
) -> None:
    spent = TotalSpent(lambda: clock)
    set_process_total(spent)
    clock = 0.0
    kernel = tuned(budget="2,total=60s") if where == "code" else tuned(budget=2)
    if where == "environment":
        monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "total=60s")  # of a key, what the code says holds
    assert call(kernel) == 2
    assert noted(own_settings) == []
    with spent.running():
        clock += 60.0
    assert call(kernel, 2000) == call(kernel, 2000) == 1
    assert noted(own_settings) == [(2000, "the total of 60 s for this process is spent", 1)]
    assert {d.budget for d in kernel.decisions.values() if d.tried == 0} == {"0"}
    assert call(kernel) == 1, "what was measured before holds"


def test_whoever_asks_for_pending_keys_to_be_tuned_goes_beyond_the_total(
    own_settings: Path, set_process_total: Callable[[Any], None]
) -> None:
    spent = TotalSpent(lambda: clock)
    set_process_total(spent)
    clock = 0.0
    with spent.running():
        clock += 60.0
    kernel = tuned(budget="2,total=60s")
    assert call(kernel) == 1
    with fa.tune_pending():
        assert call(kernel) == 2
    assert noted(own_settings) == []


def test_a_key_where_the_total_ends_before_any_measurement_is_noted(
    own_settings: Path, set_process_total: Callable[[Any], None]
) -> None:
    ticks = itertools.count()
    set_process_total(TotalSpent(lambda: float(next(ticks))))
    kernel = tuned(budget="2,total=1s")
    assert call(kernel) == 1
    ((_, why, _),) = noted(own_settings)
    assert why == "the total of this process was spent (budget 2,total=1s)"
    assert [d.tried for d in kernel.decisions.values()] == [0]


def test_a_key_whose_own_time_ends_before_any_measurement_is_noted(own_settings: Path) -> None:
    kernel = tuned(budget="2,0.000000001s")
    assert call(kernel) == 1
    assert noted(own_settings) == [(1000, "budget 2,0.000000001s", 1)]
    with fa.tune_pending():
        call(tuned(budget=2))
    assert noted(own_settings) == []


def test_a_key_with_only_its_default_timed_when_the_total_ends_stays_open(
    own_settings: Path, set_process_total: Callable[[Any], None]
) -> None:
    clock = 0.0

    def bench(launch: Any, quantiles: Any) -> list[float]:
        nonlocal clock
        clock += 61.0
        launch()
        return [1.0, 1.0, 1.0]

    set_process_total(TotalSpent(lambda: clock))
    kernel = tuned(budget="4,total=60s", do_bench=bench)
    call(kernel)
    assert [d.rests_on_outcomes for d in kernel.decisions.values()] == [False]
    assert len(noted(own_settings)) == 1
    assert not list(StoreFile(own_settings).decisions())


def test_a_total_of_nothing_measures_nothing(own_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "total=0s")
    kernel = tuned()
    assert call(kernel) == 1
    assert noted(own_settings) == [(1000, "budget 2,total=0s", 1)]
    with fa.tune_pending():
        assert call(kernel) == 2, "of a key, what the code says holds"


def test_mode_first_and_a_stored_decision_note_nothing(own_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(tuned()) == 2
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    call(tuned(), 2000)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    call(tuned())
    assert noted(own_settings) == []


def test_a_miss_in_mode_strict_is_noted(own_settings: Path) -> None:
    with pytest.raises(fa.CacheMissError):
        call(tuned(mode="strict"))
    assert noted(own_settings) == [(1000, "mode strict", 1)]


def test_measuring_the_key_later_strikes_it_out(own_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    call(tuned())
    call(tuned(), 2000)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "tune")
    call(tuned())
    assert noted(own_settings) == [(2000, "mode cached", 1)]


def test_without_a_rehearsal_a_missing_driver_is_no_key_of_anybody(own_settings: Path) -> None:
    kernel = tuned(mode="cached", do_bench=lambda call, quantiles: [1.0] * len(quantiles))
    with pytest.raises(NoGpuError):
        kernel[(16,)](torch.empty(1000), 1000, 2.0)
    assert noted(own_settings) == []


FIRST_COMPILE = """
import sys
import torch.utils._triton
from rehearsed import call, launched, playing, tuned
torch.utils._triton.has_triton = lambda: True  # Dynamo asks whether there is a GPU
import forecast_autotune as fa
assert "torch._dynamo" not in sys.modules
kernel = tuned(budget="all")
with playing() as on, fa.tune_pending():
    torch.compile(lambda: call(kernel), backend="eager")()
    print(len(launched(on)))
"""


def test_within_tune_pending_keys_are_measured_though_dynamo_comes_later() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_COMPILE],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.stdout == "4\n", done.stderr


@pytest.mark.parametrize("mode", ["cached", "forecast", "first", "strict", "tune"])
def test_tune_pending_measures_keys_decided_unmeasured_whatever_the_mode(
    own_settings: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "0" if mode == "tune" else "2")
    kernel = tuned()
    with fa.rehearsal("cuda:90", times=400.0):
        if mode != "strict":
            assert call(kernel) == 1
        with fa.tune_pending():
            assert call(kernel) == (3 if mode == "tune" else 2)  # a budget of 0 gives way to the front end's own
            assert call(kernel) == 1  # it is measured: once is enough
            call(kernel, 2000)
        assert noted(own_settings) == []
        assert call(kernel) == call(kernel, 2000) == 1
    assert {d.basis for d in kernel.decisions.values()} == {"measured"}


@triton.jit
def head(x_ptr, n, D: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), D)


@pytest.mark.parametrize("mode", ["cached", "strict"])
def test_a_decision_for_other_constexprs_claims_nothing_and_stays_pending(
    own_settings: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def make() -> Any:
        configs = [triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128, 256)]
        return fa.autotune(configs=configs, key=["n"], budget="all")(head)

    best_at_256 = {Config({"BLOCK": b, "num_warps": 4}): us for b, us in ((64, 400.0), (128, 200.0), (256, 100.0))}
    with fa.rehearsal("cuda:90", times=best_at_256):
        make()[(16,)](torch.empty(1000), 1000, D=64)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    kernel = make()
    with fa.rehearsal("cuda:90", times=best_at_256):
        kernel[(16,)](torch.empty(1000), 1000, D=512)
        explanation = kernel.explain()
        assert kernel.best_config.kwargs == {"BLOCK": 256}
        told = explanation.as_json()
        assert [told[name] for name in ("decision", "basis", "speedup", "config_us", "measured")] == [
            None,
            "forecast",
            None,
            None,
            0,
        ]
        assert "decided for D=64" in str(explanation)
        (pending,) = StoreFile(own_settings).pending()
        assert pending.tuning_key.workload.constexprs == {"D": 512}
        with fa.tune_pending():
            kernel[(16,)](torch.empty(1000), 1000, D=512)
        assert [d.basis for d in kernel.decisions.values()] == ["measured"]
    assert StoreFile(own_settings).pending() == []


def test_what_was_measured_or_set_by_hand_is_not_decided_again() -> None:
    kernel = tuned()
    with fa.rehearsal("cuda:90", times=400.0):
        call(kernel)
        chosen = kernel.configs[2]
        kernel.cache.update(dict.fromkeys(kernel.cache, chosen))
        with fa.tune_pending():
            assert call(kernel) == 1
    assert kernel.best_config is chosen


def test_load_inline_notes_and_tunes_pending_keys_too(
    toy: Toy, own_settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(2_000, dtype=torch.float32)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["slow", "plain"])})
    assert torch.equal(module.scaled(x, 2.0), 2 * x)
    (pending,) = StoreFile(own_settings).pending()
    assert pending.tuning_key.workload.program.name.endswith(".scaled")
    with fa.tune_pending():
        assert torch.equal(module.scaled(x, 2.0), 2 * x)
    (decision,) = module.scaled.decisions.values()
    assert (decision.basis, decision.config) == ("measured", toy.config("plain"))
    assert StoreFile(own_settings).pending() == []


def test_blocks_that_overlap_in_two_threads_leave_torch_compiling() -> None:
    first, second = threading.Event(), threading.Event()
    graphs: list[Any] = []

    def collect(gm: Any, _: Any) -> Any:
        graphs.append(gm)
        return gm

    def open_first() -> None:
        with fa.tune_pending():
            first.set()
            assert second.wait(120)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=collect)
    other = threading.Thread(target=open_first)
    other.start()
    assert first.wait(120)
    with fa.tune_pending():
        second.set()
        other.join()
        compiled(torch.ones(2))
        assert not graphs
    compiled(torch.ones(2))
    assert len(graphs) == 1


def test_a_block_that_torch_does_not_let_open_wants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> None:
        raise RuntimeError("attempted to set_stance in a torch.compile region")

    monkeypatch.setattr(torch.compiler, "set_stance", refused)
    monkeypatch.setitem(sys.modules, "torch._dynamo", torch)
    with pytest.raises(RuntimeError, match="set_stance"), fa.tune_pending():
        pass
    assert not measuring_is_wanted()


# A store that cannot be had -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_forecast_mode_says_nothing_of_a_folder_it_may_not_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "closed" / "store"))
    assert call(tuned(mode="forecast")) == 1


@pytest.mark.parametrize("trouble", ["a file in the way", "no database"])
def test_forecast_mode_says_nothing_of_a_store_it_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    folder = tmp_path / "broken"
    if trouble == "a file in the way":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
        (folder / "store.sqlite3").write_bytes(b"nonsense" * 1000)
        (folder / "store.sqlite3").chmod(0o600)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(folder))
    assert call(tuned(mode="forecast")) == 1  # a warning would be an error here
    if folder.is_dir():
        assert (folder / "store.sqlite3").read_bytes() == b"nonsense" * 1000
