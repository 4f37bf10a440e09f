"""Inductor's candidates are timed by our clock, only where that is wanted, and by Inductor's own again afterwards."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from rehearsed_inductor import Timed
from torch._inductor import select_algorithm
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.virtualized import V

import forecast_autotune as fa
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.frontends.inductor import candidate_times, inductor_patches
from forecast_autotune.frontends.inductor.candidate_times import (
    by_our_clock,
    fused_by_our_clock,
    generated_by_our_clock,
)

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # torch's own


class Clock:
    """Tells of every call that it takes 5 us, 2 of them the events' own."""

    def __init__(self) -> None:
        self.timed: list[Any] = []

    def synchronize(self) -> None:
        pass

    def measure(self, launch: Any, *, first_us: float) -> Measurement:
        self.timed.append(launch.call)
        calls = 2 if isinstance(launch.call(), tuple) else 1
        return Measurement(samples_us=(2.0 + 3.0 * calls,))


class Choice:
    def __init__(self, *, device: str = "cuda", fails: bool = False) -> None:
        self.layout = SimpleNamespace(device=SimpleNamespace(type=device))
        self.fails, self.runs = fails, 0

    def run(self) -> None:
        self.runs += 1
        if self.fails:
            raise RuntimeError("out of resource")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ours = Clock()
    monkeypatch.setattr(candidate_times, "clock_of", lambda _: ours)
    return ours


def benchmark_choices(choices: list[Choice], _: Any, is_collective: bool = False) -> dict[Choice, Any]:
    return {choice: benchmarker.benchmark_gpu(choice.run) for choice in choices}


def test_each_candidate_is_run_once_and_then_timed(clock: Clock) -> None:
    listed = [Choice(), Choice()]
    assert by_our_clock(benchmark_choices, lambda: True)(listed, None, is_collective=False) == dict.fromkeys(
        listed, 0.005
    )
    assert clock.timed == [choice.run for choice in listed]
    assert [choice.runs for choice in listed] == [2, 2]
    assert "benchmark_gpu" not in vars(benchmarker)


def test_what_a_candidate_raises_is_inductors_to_catch(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="out of resource"):
        by_our_clock(benchmark_choices, lambda: True)([Choice(fails=True)], None)
    assert clock.timed == []
    assert "benchmark_gpu" not in vars(benchmarker)


@pytest.mark.parametrize("why", ["not wanted", "a CPU", "no candidates"])
def test_otherwise_inductors_own_clock_stays(clock: Clock, monkeypatch: Any, why: str) -> None:
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_: "Inductor's")
    listed = [] if why == "no candidates" else [Choice(device="cpu" if why == "a CPU" else "cuda")]
    told = by_our_clock(benchmark_choices, lambda: why != "not wanted")(listed, None)
    assert told == dict.fromkeys(listed, "Inductor's")
    assert clock.timed == []


def test_what_our_clock_does_not_tell_is_left_to_inductors(clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_, **__: [0.1, 0.2])

    def every_time(choices: list[Choice], _: Any) -> dict[Choice, Any]:
        return {choice: benchmarker.benchmark_gpu(choice.run, return_mode="all") for choice in choices}

    assert list(by_our_clock(every_time, lambda: True)([Choice()], None).values()) == [[0.1, 0.2]]
    assert clock.timed == []


def test_inductor_times_through_it_while_it_is_installed(timed: Timed, clock: Clock, monkeypatch: Any) -> None:
    assert timed.lists == []
    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_: 0.1)
    monkeypatch.setattr(cache, "benchmark_choice", lambda choice, _: benchmarker.benchmark_gpu(choice.run))
    assert list(cache.benchmark_choices([Choice()], None).values()) == [0.005]
    fa.uninstall()
    assert list(cache.benchmark_choices([Choice()], None).values()) == [0.1]
    assert len(clock.timed) == 1


class Module:
    """What Inductor has written to time a kernel that it may fuse."""

    def __init__(self, folder: Path, kind: HeuristicType) -> None:
        self.__file__ = str(folder / "module.py")
        self.triton_ = SimpleNamespace(heuristic_type=kind)

    def run(self) -> None:
        pass


def benchmark_codegened_module(_: Any, mod: Module, **__: Any) -> tuple[float, str]:
    kept = Path(mod.__file__).with_suffix(".kernel_perf")
    if not kept.exists():
        kept.write_text(str(benchmarker.benchmark_gpu(mod.run)))
    return float(kept.read_text()), mod.__file__


def on_device(name: str) -> Any:
    return V.set_graph_handler(SimpleNamespace(get_current_device_or_throw=lambda: torch.device(name)))  # type: ignore[arg-type]


def test_a_template_must_beat_the_library_and_the_epilogue_clearly(clock: Clock, tmp_path: Path) -> None:
    fused = fused_by_our_clock(benchmark_codegened_module, lambda: True)
    with on_device("cuda"):
        ms, path = fused(None, Module(tmp_path, HeuristicType.TEMPLATE))
    assert (ms, path) == (pytest.approx(0.005 * 1.02), str(tmp_path / "module.py"))
    assert len(clock.timed) == 1


def test_an_epilogue_on_its_own_takes_what_it_adds_to_what_ran_before(clock: Clock, tmp_path: Path) -> None:
    fused = fused_by_our_clock(benchmark_codegened_module, lambda: True)
    with on_device("cuda"):
        ms, _ = fused(None, Module(tmp_path, HeuristicType.POINTWISE), node_names={"op1"})
    assert ms == pytest.approx(0.003)


def test_what_inductors_clock_has_kept_of_another_process_counts_no_more(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "module.kernel_perf").write_text("7.0")
    fused = fused_by_our_clock(benchmark_codegened_module, lambda: True)
    with on_device("cuda"):
        assert [fused(None, Module(tmp_path, HeuristicType.POINTWISE))[0] for _ in range(2)] == [0.005, 0.005]
    assert len(clock.timed) == 1


@pytest.mark.parametrize("why", ["not wanted", "a CPU"])
def test_otherwise_what_is_fused_is_timed_by_inductors_clock(clock: Clock, tmp_path: Path, why: str) -> None:
    (tmp_path / "module.kernel_perf").write_text("7.0")
    fused = fused_by_our_clock(benchmark_codegened_module, lambda: why != "not wanted")
    with on_device("cpu" if why == "a CPU" else "cuda"):
        assert fused(None, Module(tmp_path, HeuristicType.TEMPLATE))[0] == 7.0


def test_inductor_times_what_it_fuses_by_our_clock_while_that_is_installed(timed: Timed) -> None:
    assert timed.lists == []
    assert TritonScheduling.benchmark_codegened_module.__globals__["__name__"] == candidate_times.__name__


def test_a_torch_that_fuses_in_another_way_is_left_alone(monkeypatch: Any, caplog: Any) -> None:
    from torch._inductor.scheduler import Scheduler

    def other(self: Any, everything: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(inductor_patches, "_patched", set())
    monkeypatch.setattr(TritonScheduling, "benchmark_codegened_module", other)
    monkeypatch.setattr(Scheduler, "finalize_multi_template_buffers", other)
    for _ in range(2):
        inductor_patches.patch_fusion(lambda: True)
        inductor_patches.patch_finalizing(lambda _: None)
    assert TritonScheduling.benchmark_codegened_module is other
    assert Scheduler.finalize_multi_template_buffers is other
    assert len([record for record in caplog.records if "in a way unknown here" in record.message]) == 2


class Launcher:
    """Adds one to its only argument."""

    n_spills, config = 0, None

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor, *, stream: int) -> None:
        self.given.append(x)
        x += 1


class Kernel(CachingAutotuner):  # type: ignore[misc]
    """Inductor's own class, without what needs a GPU."""

    on_host: torch.Tensor | None = None

    def copy_args_to_cpu_if_needed(self, x: torch.Tensor) -> dict[str, Any]:
        return {} if self.on_host is None else {"x": (x, self.on_host)}

    def get_device_interface(self) -> Any:
        return SimpleNamespace(get_raw_stream=lambda _: 0, current_device=lambda: 0)


def generated(*, custom: bool = False, on_host: torch.Tensor | None = None) -> Any:
    """A kernel of Inductor's that changes its only argument, as on a GPU."""
    kernel = object.__new__(Kernel)
    kernel.custom_kernel, kernel.inductor_meta, kernel.optimize_mem = custom, {}, False
    kernel.device_props = SimpleNamespace(type="cuda", index=0)
    kernel.fn = SimpleNamespace(arg_names=["x"])
    kernel.mutated_arg_names, kernel.reset_to_zero_arg_names = ["x"], []
    kernel.on_host = on_host
    return kernel


def test_a_config_of_a_generated_kernel_has_one_copy_of_what_it_changes(clock: Clock) -> None:
    x, launcher, kernel = torch.zeros(4), Launcher(), generated()
    assert generated_by_our_clock(CachingAutotuner.bench, lambda: True)(kernel, launcher, x) == 0.005
    assert len(clock.timed) == 1
    assert len(launcher.given) == 2
    assert launcher.given[0] is launcher.given[1] is not x
    assert x.tolist() == [0, 0, 0, 0]
    assert "maybe_clone_args" not in vars(kernel)


def test_threads_may_time_the_same_generated_kernel(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_times, "_clock_on", lambda *_: nullcontext())
    kernel, both, failed = generated(), threading.Barrier(2, timeout=10), list[Exception]()

    def bench(*_: Any) -> float:
        both.wait()
        return 1.0

    def timed() -> None:
        try:
            generated_by_our_clock(bench, lambda: True)(kernel, Launcher(), torch.zeros(4))
        except Exception as err:
            failed.append(err)

    threads = [threading.Thread(target=timed) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert "maybe_clone_args" not in vars(kernel)


def test_what_lies_on_the_host_is_brought_back_once_all_is_timed(clock: Clock) -> None:
    x, launcher = torch.zeros(4), Launcher()
    kernel = generated(on_host=torch.full((4,), 7.0))
    generated_by_our_clock(CachingAutotuner.bench, lambda: True)(kernel, launcher, x)
    assert len(clock.timed) == 1
    assert launcher.given[0] is launcher.given[1] is x
    assert x.tolist() == [7, 7, 7, 7]


def test_kernels_of_users_or_that_change_whole_numbers_are_timed_as_ever(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda _, call, **__: (call(), call()) and 1.0)
    floats, places = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    for kernel, wanted, x in (
        (generated(custom=True), True, floats),
        (generated(), False, floats),
        (generated(), True, places),
    ):
        launcher = Launcher()
        bench = generated_by_our_clock(CachingAutotuner.bench, lambda wanted=wanted: wanted)
        assert bench(kernel, launcher, x) == 1.0
        assert launcher.given[0] is not launcher.given[1]
    assert clock.timed == []


def inductors_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's clock, without a GPU: it runs a call twice, and tells one millisecond."""
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda _, call, **__: (call(), call()) and 1.0)


def test_what_a_config_raises_is_inductors_to_catch(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: torch.Tensor, *, stream: int) -> None:
        raise RuntimeError("out of resource")

    inductors_own(monkeypatch)
    fails.n_spills, fails.config = 0, SimpleNamespace(num_warps=4, num_stages=1, kwargs={})  # type: ignore[attr-defined]
    x, kernel = torch.zeros(4), generated(on_host=torch.full((4,), 7.0))
    with pytest.raises(RuntimeError, match="out of resource"):
        generated_by_our_clock(CachingAutotuner.bench, lambda: True)(kernel, fails, x)
    assert x.tolist() == [7, 7, 7, 7]
    assert clock.timed == []


def test_where_our_clock_has_no_memory_inductors_tells(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    inductors_own(monkeypatch)
    monkeypatch.setattr(clock, "measure", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("100 MiB")))
    x, launcher, kernel = torch.zeros(4), Launcher(), generated()
    assert generated_by_our_clock(CachingAutotuner.bench, lambda: True)(kernel, launcher, x) == 1.0
    assert x.tolist() == [0, 0, 0, 0]
    assert "benchmark_gpu" not in vars(benchmarker)


def test_choosing_a_config_while_another_kernel_is_timed_keeps_our_clock(clock: Clock) -> None:
    def fused(_: Any, __: Any) -> float:
        generated_by_our_clock(CachingAutotuner.bench, lambda: True)(generated(), Launcher(), torch.zeros(4))
        return benchmarker.benchmark_gpu(lambda: None)

    with candidate_times._clock_on(torch.device("cuda", 0)):
        assert fused(None, None) == 0.005
    assert len(clock.timed) == 2
    assert "benchmark_gpu" not in vars(benchmarker)


def test_two_threads_never_leave_our_clock_behind(clock: Clock) -> None:
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with candidate_times._clock_on(torch.device("cuda", 0)):
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    with candidate_times._clock_on(torch.device("cuda", 0)):
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(10)
    left.set()
    thread.join()
    assert "benchmark_gpu" not in vars(benchmarker)
