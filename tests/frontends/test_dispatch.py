# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""From a call to a launch: what is held, who waits, what a program may change, and calls that must decide nothing."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from forked import exit_status_of_child

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from collecting import without_collecting  # noqa: E402
from rehearsed import BEST, call, configs, launched, playing, tuned  # noqa: E402

from forecast_autotune.distributed.job_channel import JobChannel  # noqa: E402
from forecast_autotune.errors import InvalidInputError, TuningWarning  # noqa: E402
from forecast_autotune.frontends import deciding, dispatch, pending  # noqa: E402
from forecast_autotune.frontends.key_table import Entry, KeyTable, Recent  # noqa: E402
from forecast_autotune.frontends.pending import tune_pending  # noqa: E402
from forecast_autotune.frontends.triton import door  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def alive_after_calls(kernel: Any, keys: int = 4, calls: int = 2) -> int:
    """How many of the tensors of some keys' calls are held by anything afterwards."""
    held: list[weakref.ref[Any]] = []
    with without_collecting():
        for n in range(keys):
            x = torch.zeros(1000 + n)
            held.append(weakref.ref(x))
            for _ in range(calls):
                kernel[(4,)](x, 1000 + n, 2.0)
            del x
        return sum(ref() is not None for ref in held)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that were decided, each time anew."""
    jobs: list[Any] = []
    decide = dispatch.decide

    def counting(job: Any, *args: Any, **kwargs: Any) -> Any:
        jobs.append(job)
        return decide(job, *args, **kwargs)

    monkeypatch.setattr(dispatch, "decide", counting)
    return jobs


# What is held ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["tune", "cached", "forecast", "first"])
def test_no_tensor_of_a_call_outlives_it(mode: str) -> None:
    with playing():
        assert alive_after_calls(tuned(mode=mode)) == 0
        assert alive_after_calls(tuned(mode=mode)) == 0, "recalled, where anything was stored"


def test_a_run_that_fails_holds_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr(dispatch, "decide", broken)
    with playing(), pytest.warns(TuningWarning):
        assert alive_after_calls(tuned()) == 0


def test_keys_that_were_not_used_for_long_leave_and_are_recalled(
    decided: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned(budget=2)
    kernel.dispatcher.table = KeyTable(kernel.forget_shortcuts, max_keys=4)
    with playing() as on:
        for n in (1, 2, 3, 4, 5, 6):
            call(kernel, n)
        assert len(kernel.cache) <= 4
        assert len(decided) == 6
        before = sum(on.launches.values())
        call(kernel, 1)
        call(kernel, 1)
        assert len(decided) == 7, "recalled"
        assert sum(on.launches.values()) == before + 2


def test_keys_that_leave_do_not_wait_for_a_collection() -> None:
    def entries() -> int:
        return sum(type(held) is Entry for held in gc.get_objects())

    kernel = tuned(mode="first")
    kernel.dispatcher.table = KeyTable(kernel.forget_shortcuts, max_keys=200)
    x, keys = torch.zeros(64), 800
    with playing(), without_collecting():
        before = entries()
        for n in range(keys):
            kernel[(4,)](x, 1024 + 16 * n, 2.0)  # multiples of 16, which are compiled alike
        assert 0 < entries() - before <= 200


def test_a_key_in_use_stays_while_others_come_and_go() -> None:
    table = KeyTable(max_keys=10)
    table.pin("own", Entry(launcher="own", awaits_measuring=False))
    for n in range(1000):
        table.add(n, Entry(launcher=n, awaits_measuring=False), version=table.version)
        table.add("often", Entry(launcher="often", awaits_measuring=False), version=table.version) if n == 0 else None
        if n % 3 == 0:
            assert table.get("often") is not None
    assert len(table) <= 11
    assert table.get(0) is None
    assert table.get("own") is not None


def test_the_latest_decisions_are_kept_for_who_looks() -> None:
    recent = Recent(3)
    for n in (1, 2, 3, 1, 4):
        recent[n] = n
    assert list(recent) == [3, 1, 4]


# Calls that show nothing of their key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("not ready"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_key_whose_first_call_raises_is_tuned_by_the_next(error: Exception) -> None:
    kernel, not_ready = tuned(), [True]

    def grid(_: Any) -> tuple[int, ...]:
        if not_ready:
            raise error
        return (4,)

    with playing():
        with pytest.raises(type(error)):
            kernel[grid](torch.zeros(4096), 1000, 2.0)
        not_ready.clear()
        kernel[grid](torch.zeros(4096), 1000, 2.0)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_mistaken_calls_keep_no_later_one_from_being_tuned() -> None:
    with playing():
        for wrong in ((1000,), (1000, "two"), (1000,)):
            kernel = tuned()
            with pytest.raises(TypeError):
                kernel[(4,)](torch.zeros(4096), *wrong)
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_a_key_of_which_no_config_runs_is_tried_again_more_and_more_rarely(
    decided: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, kernel = [0.0], tuned()
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(dispatch.time, "perf_counter", lambda: now_s[0])

    def calls(after_s: float) -> int:
        """How often a key was decided by a call after so long."""
        now_s[0] += after_s
        decided.clear()
        with pytest.raises(ValueError, match="never ready"):
            kernel[never_ready](torch.zeros(4096), 1000, 2.0)
        return len(decided)

    def never_ready(_: Any) -> tuple[int, ...]:
        now_s[0] += 0.01
        raise ValueError("never ready")

    with playing():
        assert [calls(0.0), calls(0.0), calls(0.0)] == [1, 1, 0]
        (entry,) = (entry for _, entry in kernel.dispatcher.table.items())
        pauses = [entry.provisional.pause_s]
        assert pauses[0] > 0
        for _ in range(2):
            assert calls(pauses[-1]) == 1
            (entry,) = (entry for _, entry in kernel.dispatcher.table.items())
            pauses.append(entry.provisional.pause_s)
        assert pauses[2] >= 2 * pauses[1] >= 4 * pauses[0]


def test_two_calls_short_of_memory_keep_no_later_one_from_being_tuned() -> None:
    kernel, short = tuned(), [True]

    def grid(_: Any) -> tuple[int, ...]:
        if short:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (4,)

    with playing():
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                kernel[grid](torch.zeros(4096), 1000, 2.0)
        short.clear()
        again = tuned()
        again[grid](torch.zeros(4096), 1000, 2.0)
        assert again.best_config.kwargs == {"BLOCK": BEST}


def test_ranks_do_not_hold_to_a_key_of_which_no_config_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.distributed.HashStore()
    channel = JobChannel(lambda: shared, rank=0, ranks=2)
    monkeypatch.setattr(deciding, "job_channel", lambda **_: channel)
    monkeypatch.setenv("FORECAST_AUTOTUNE_SYNC", "rank0")
    kernel = tuned()
    with playing():
        with pytest.raises(TypeError):
            kernel[(4,)](torch.zeros(4096), 1000)
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_a_key_no_config_ran_for_is_final_where_nothing_may_be_measured(decided: list[Any]) -> None:
    with playing():
        with pytest.raises(TypeError):
            tuned()[(4,)](torch.zeros(4096), 1000)
        decided.clear()
        kernel = tuned(mode="cached")
        for _ in range(5):
            call(kernel)
        assert len(decided) == 1


@pytest.mark.parametrize("grid", [(0,), (4, 0), lambda meta: ((meta["n"] - 1000) // meta["BLOCK"],)])
def test_an_empty_grid_decides_nothing(grid: Any) -> None:
    kernel = tuned(key=[])
    with playing():
        kernel[grid](torch.zeros(4096), 1000, 2.0)
        tuned(key=[], mode="strict")[grid](torch.zeros(4096), 1000, 2.0)  # there is nothing that it could lack
        assert not kernel.decisions
        call(tuned(key=[]))
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        assert kernel.decisions


# Captured and compile-only calls --------------------------------------------------------------------------------------


def test_captured_launches_of_a_stored_key_decide_once(monkeypatch: pytest.MonkeyPatch, decided: list[Any]) -> None:
    with playing():
        call(tuned())
        kernel = tuned()
        monkeypatch.setattr(door, "is_capturing", lambda: True)
        decided.clear()
        assert alive_after_calls(kernel, keys=1, calls=20) == 0
        assert len(decided) == 1
        assert len(kernel._launches) == 1, "the next call goes straight to the launch"


def test_captured_launches_of_an_open_key_decide_once_and_hold_nothing(
    monkeypatch: pytest.MonkeyPatch, decided: list[Any]
) -> None:
    kernel = tuned()
    with playing() as on:
        with monkeypatch.context() as patch:
            patch.setattr(door, "is_capturing", lambda: True)
            assert alive_after_calls(kernel, keys=1, calls=20) == 0
            assert len(decided) == 1
            assert sum(on.launches.values()) == 20
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}, "measured as soon as it may be"


@pytest.mark.parametrize("over", [False, True])
def test_a_call_that_only_compiles_decides_nothing(over: bool) -> None:
    def heuristic(kernel: Any) -> Any:
        return triton.heuristics({"factor": lambda named: 2.0})(kernel) if over else kernel

    with playing() as on:
        first = tuned()
        given = (torch.empty(4096), 1000) if over else (torch.empty(4096), 1000, 2.0)
        heuristic(first).run(*given, grid=(4,), warmup=True)
        assert not sum(on.launches.values())
        assert [d.basis for d in first.decisions.values()] in ([], ["default"], ["forecast"])
        later = tuned()
        call(later)
        assert later.best_config.kwargs == {"BLOCK": BEST}
        call(first)
        assert first.best_config.kwargs == {"BLOCK": BEST}


# Hooks ----------------------------------------------------------------------------------------------------------------


def test_configs_with_a_hook_are_tuned_in_inference_mode() -> None:
    def hook(named: dict[str, Any]) -> None:
        pass

    hooked = [triton.Config({"BLOCK": c.kwargs["BLOCK"]}, num_warps=4, pre_hook=hook) for c in configs()]
    kernel = tuned(configs=hooked)
    with playing(), torch.inference_mode():
        call(kernel)
    (decision,) = kernel.decisions.values()
    assert (decision.failed, kernel.best_config.kwargs) == (0, {"BLOCK": BEST})


def test_a_hook_that_reads_its_tensors_is_compiled_by_its_launch() -> None:
    seen: list[Any] = []

    def hook(named: dict[str, Any]) -> None:
        seen.append(named["x_ptr"][0].item())

    hooked = [triton.Config({"BLOCK": c.kwargs["BLOCK"]}, num_warps=4, pre_hook=hook) for c in configs()]
    kernel = tuned(configs=hooked)
    with playing():
        kernel[(4,)](torch.full((4096,), 3.0), 1000, 2.0)
    (decision,) = kernel.decisions.values()
    assert (decision.failed, kernel.best_config.kwargs) == (0, {"BLOCK": BEST})
    assert set(seen) == {3.0}


def test_a_hook_may_read_the_calls_arguments_at_every_launch() -> None:
    seen: list[Any] = []

    def hook(named: dict[str, Any]) -> None:
        seen.append(sorted(kernel.nargs or ()))

    kernel = tuned(configs=[triton.Config({"BLOCK": b}, num_warps=4, pre_hook=hook) for b in (64, BEST)])
    with playing():
        for _ in range(3):
            seen.clear()
            call(kernel)
            assert seen[-1] == ["factor", "n", "x_ptr"]
    assert kernel.nargs is None


def test_a_grid_may_read_the_calls_arguments_at_every_launch() -> None:
    kernel, x = tuned(), torch.zeros(4096)

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(kernel.nargs["n"], meta["BLOCK"]),)

    with playing() as on:
        for _ in range(3):
            before = on.launches.copy()
            kernel[grid](x, 1000, 2.0)
            assert on.launches != before
    assert kernel.best_config.kwargs == {"BLOCK": BEST}
    assert kernel.nargs is None


# Threads --------------------------------------------------------------------------------------------------------------


def test_other_threads_do_not_wait_while_one_measures() -> None:
    measuring, done = threading.Event(), threading.Event()

    def slow(launch: Any, quantiles: Any) -> list[float]:
        launch()
        measuring.set()
        done.wait(60)
        return [1.0, 1.0, 1.0]

    busy, other = tuned(do_bench=slow), tuned()
    with playing() as on:
        thread = threading.Thread(target=lambda: call(busy, 1))
        thread.start()
        assert measuring.wait(60)
        for _ in range(50):  # were each to wait for its turn, this would last as long as the measuring
            call(other, 2)
        assert not done.is_set()
        assert {block for block, _ in launched(on)} == {64}, "the default"
        assert not other.cache, "the key stays open"
        done.set()
        thread.join(60)
        call(other, 2)
        assert other.best_config.kwargs == {"BLOCK": BEST}


@triton.heuristics({"EVEN": lambda given: _even(given)})
@triton.jit
def with_heuristic(x_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


_even: Callable[[Any], bool] = bool


@contextmanager
def beside(act: Callable[[], object], until: threading.Event, over: threading.Event) -> Iterator[None]:
    """A thread acts meanwhile; it has come as far as `until`, and stays there."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        assert until.wait(60)
        yield
    finally:
        over.set()
        thread.join(60)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads: they are the point
def test_the_child_of_a_fork_does_not_wait_for_a_thread_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    deciding, over = threading.Event(), threading.Event()

    def slow(_: Any) -> bool:
        deciding.set()
        return over.wait(60)

    monkeypatch.setattr(sys.modules[__name__], "_even", slow)
    busy, other = tuned(with_heuristic, mode="cached"), tuned(mode="cached")
    with playing(), beside(lambda: call(busy, 1), deciding, over):
        assert exit_status_of_child(lambda: call(other, 2)) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("of", ["the kernel", "what is pending"])
def test_the_child_of_a_fork_does_not_wait_for_a_lock_of_its_parents(of: str) -> None:
    held, over = threading.Event(), threading.Event()
    kernel = tuned(mode="cached")
    lock = kernel.dispatcher.table.lock if of == "the kernel" else pending._lock

    def hold() -> None:
        with lock:
            held.set()
            over.wait(60)

    with playing():
        call(kernel, 1)
        with beside(hold, held, over):
            assert exit_status_of_child(lambda: call(kernel, 2)) == 0


# What a program may change --------------------------------------------------------------------------------------------


def test_entries_under_tritons_own_key_are_heeded_and_stay() -> None:
    kernel = tuned()
    chosen = kernel.configs[1]
    with playing() as on:
        kernel.cache[1000, "torch.float32"] = chosen
        call(kernel)
        call(kernel)
        assert launched(on) == {(128, 4)}
        with tune_pending():
            call(kernel)
        assert kernel.best_config is chosen
    assert dict(kernel.cache) == {(1000, "torch.float32"): chosen}


def test_a_best_config_that_is_changed_is_launched_as_changed() -> None:
    kernel = tuned()
    with playing() as on:
        call(kernel)
        call(kernel)
        kernel.best_config.num_warps = 8
        on.launches.clear()
        call(kernel)
        call(kernel)
        assert launched(on) == {(BEST, 8)}


def test_a_kernel_of_one_config_heeds_its_changes_too() -> None:
    kernel = tuned(configs=configs((64,)))
    with playing() as on:
        call(kernel)
        kernel.configs[0].kwargs["BLOCK"] = 128
        call(kernel)
        call(kernel)
        assert launched(on) == {(64, 4), (128, 4)}


# Bad input ------------------------------------------------------------------------------------------------------------


def test_empty_subclassed_and_overlapping_tensors_are_tuned() -> None:
    @triton.jit
    def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 1, mask=offsets < n)

    x = torch.empty(4096)
    with playing() as on:
        for first, second in (
            (torch.empty(0), torch.empty(0)),
            (torch.nn.Parameter(x), x.as_subclass(torch.nn.Parameter)),
            (x, x),
            (x[:64], x[1:65]),
        ):
            kernel = tuned(add, key=["n"])
            kernel[(4,)](first, second, first.numel())
            assert kernel.best_config in kernel.configs
    assert on.launches


def test_a_hook_that_raises_costs_its_config_alone() -> None:
    def raises(named: dict[str, Any]) -> None:
        raise ValueError("not this one")

    def deletes(named: dict[str, Any]) -> None:
        del named["n"]

    for hook in (raises, deletes):
        hooked = [*configs((64, BEST)), triton.Config({"BLOCK": 128}, num_warps=4, pre_hook=hook)]
        kernel = tuned(configs=hooked)
        with playing(), pytest.warns(TuningWarning, match="BLOCK: 128.*raised") as warned:
            call(kernel)
        assert len(warned) == 1
        assert kernel.best_config.kwargs == {"BLOCK": BEST}


def test_a_measured_key_leaves_nothing_to_collect() -> None:
    kernel = tuned()
    with playing():
        for n in (16, 32, 48):  # what a kernel keeps once, a first key makes
            call(kernel, n)
        left = []
        for first in (64, 128, 192):  # in one of these a thread that an earlier test has left may end, with its own
            with without_collecting():
                for n in range(first, first + 64, 16):
                    call(kernel, n)
                left.append(gc.collect())
    assert min(left) == 0


def test_decisions_that_a_program_put_there_break_no_fallback() -> None:
    kernel = tuned()
    with playing():
        call(kernel)
        (key,) = kernel.decisions
        decision = kernel.decisions[key]
        kernel.dispatcher.table.clear()
        kernel.decisions.clear()
        kernel.dispatcher._stored.clear()
        entry = Entry(launcher=kernel.configs[1], awaits_measuring=True, fallback=(kernel.configs[0], decision.config))
        kernel.decisions[key] = decision
        with pytest.warns(TuningWarning, match="does not run"):
            kernel.dispatcher.fall_back(key, entry, RuntimeError("refused"))
    assert entry.launcher is kernel.configs[0]
    with pytest.raises(InvalidInputError, match="decided nothing for"):
        kernel.explain(key)
