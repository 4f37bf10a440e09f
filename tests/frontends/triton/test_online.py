"""Mode `online` as a program meets it: Triton kernels on the simulated driver, real compilers, real threads."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learning_at_once import learning_at_once
from process_ids import is_running
from rehearsed import (
    BEST,
    BLOCKS,
    TIMES,
    Favours,
    call,
    configs,
    launched,
    own_triton_cache,
    playing,
    time_us,
    torch,
    triton,
    tuned,
)

import forecast_autotune as fa
from forecast_autotune import cli
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import TuningWarning
from forecast_autotune.frontends.online import learning_threads
from forecast_autotune.frontends.online.at_work import AtWork, at_work
from forecast_autotune.frontends.online.learning import Learning
from forecast_autotune.frontends.online.learning_threads import Learners, learners
from forecast_autotune.frontends.triton.door import LearnableKernel
from forecast_autotune.frontends.triton.simulated_driver import Rehearsal
from forecast_autotune.measure import real_calls
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with learning_at_once(), own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


def is_learning(kernel: Any) -> bool:
    table = kernel.dispatcher.table
    with table.lock:  # who decides drops generated launch code last, and holds it until then
        return any(entry.learning is not None for _, entry in table.items())


def call_until_decided(kernel: Any, n: int = 1000, limit_s: float = LIMIT_S) -> int:
    """Call a kernel as a program does; returns how many calls it took."""
    calls, ends = 0, time.monotonic() + limit_s
    while not calls or is_learning(kernel):
        assert time.monotonic() < ends, f"undecided after {calls} calls"
        call(kernel, n)
        calls += 1
        time.sleep(0.0002)
    return calls


def test_the_first_call_launches_one_config_and_later_ones_decide() -> None:
    kernel = tuned(mode="online")
    with playing() as on:
        call(kernel)
        assert sum(on.launches.values()) == len(launched(on)) == 1
        assert is_learning(kernel)
        call_until_decided(kernel)
        ((_, decision),) = kernel.decisions.items()
        assert decision.config["BLOCK"] == BEST
        assert decision.basis == "measured"
        assert decision.tried == len(BLOCKS)
        assert 0 < decision.explored_s <= 0.05 * on.clock_us * 1e-6 + 0.2
        before = on.launches.copy()
        call(kernel)
        assert set((on.launches - before).elements()) == {("scale", Config({"BLOCK": BEST, "num_warps": 4}))}


def test_the_decision_is_stored_and_recalled_by_another_process(tmp_path: Path) -> None:
    first, second = tuned(mode="online"), tuned(mode="online")
    with playing() as on:
        call_until_decided(first)
        before = on.launches.copy()
        call(second)
        assert not is_learning(second)
        assert (on.launches - before).total() == 1
    assert "exploring" in str(second.explain())
    stats = StoreFile(Path(os.environ["FORECAST_AUTOTUNE_DIR"])).stats()
    assert stats.explored_s == pytest.approx(next(iter(first.decisions.values())).explored_s)
    assert stats.saved_in_calls_s > stats.explored_s


def test_a_hit_keeps_its_generated_launch_code() -> None:
    kernel = tuned(mode="online")
    with playing():
        call_until_decided(kernel)
        ends = time.monotonic() + LIMIT_S
        while (
            not kernel._launches and time.monotonic() < ends
        ):  # the thread that decided forgets launch code as it ends
            call(kernel)
        assert kernel._launches


def test_while_nothing_is_tried_calls_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "start", lambda _: None)  # nothing is learned but what this test asks for
    kernel = tuned(mode="online")
    with playing():
        for _ in range(20):  # whose first ones tell how long the incumbent takes
            call(kernel)
        ((_, entry),) = kernel.dispatcher.table.items()
        calls = entry.learning.calls
        monkeypatch.setattr(calls, "_waiting", contextlib.nullcontext)
        assert not calls.wanted
        assert kernel._launches
        turns = calls._schedule.turns
        call(kernel)
        assert calls._schedule.turns == turns
        trial = threading.Thread(target=lambda: calls.measure(calls.incumbent))
        trial.start()
        until = time.monotonic() + 60
        while trial.is_alive() and time.monotonic() < until:
            call(kernel)
        assert not trial.is_alive()
        assert calls._schedule.turns > turns
        calls.end()
        assert not kernel._launches


def test_no_tensor_of_a_call_is_kept_while_its_key_is_learned() -> None:
    kernel = tuned(mode="online")
    with playing():
        gc.disable()
        try:
            x = torch.empty(4096)
            gone = weakref.ref(x)
            kernel[(4,)](x, 1000, 2.0)
            assert is_learning(kernel)
            del x
            assert gone() is None
        finally:
            gc.enable()


def test_what_is_compiled_in_the_background_is_what_calls_load() -> None:
    kernel = tuned(mode="online")
    with playing() as on:
        call_until_decided(kernel)
        assert on.compiles["scale"] <= 1  # the first call's own


def test_calls_compiled_apart_teach_nothing_and_wait_for_no_candidate() -> None:
    """One key, and two kernels of it: Triton compiles a number that 16 divides apart."""
    kernel = tuned(mode="online", key=[])
    blocks_of: dict[int, set[int]] = {1000: set(), 1024: set()}
    with playing() as on:
        call(kernel, 1000)
        ends = time.monotonic() + LIMIT_S
        while is_learning(kernel):
            assert time.monotonic() < ends
            for n, blocks in blocks_of.items():
                before = on.launches.copy()
                call(kernel, n)
                blocks |= {config["BLOCK"] for (_, config) in (on.launches - before).elements()}
            time.sleep(0.0002)
        (decision,) = kernel.decisions.values()
        assert (decision.config["BLOCK"], decision.basis) == (BEST, "measured")
        assert blocks_of[1000] == set(BLOCKS)
        assert blocks_of[1024] <= {BLOCKS[0], BEST}  # what the key ran at first, and what was decided
        before = on.launches.copy()
        for n in blocks_of:
            call(kernel, n)
        assert set((on.launches - before).elements()) == {("scale", Config({"BLOCK": BEST, "num_warps": 4}))}
        assert on.compiles["scale"] <= 2  # the first call's own, of each kernel


def test_an_unusual_first_call_does_not_keep_its_key_from_being_learned() -> None:
    kernel = tuned(mode="online", key=[])
    with playing() as on:
        call(kernel, 1024)
        call_until_decided(kernel, 1000)
        (decision,) = kernel.decisions.values()
        assert (decision.config["BLOCK"], decision.basis) == (BEST, "measured")
        assert on.launches["scale", Config({"BLOCK": 512, "num_warps": 4})] > 0


def test_what_cannot_be_compiled_for_other_calls_leaves_the_key_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Config) -> None:
        raise RuntimeError("out of resource")

    others = LearnableKernel.for_other_calls
    monkeypatch.setattr(LearnableKernel, "for_other_calls", lambda self: [(made, refuse) for made, _ in others(self)])
    kernel = tuned(mode="online", key=[])
    with playing():
        call(kernel, 1000)
        call(kernel, 1024)
        call_until_decided(kernel, 1000)
        (decision,) = kernel.decisions.values()
        assert decision.basis == "measured"
        call(kernel, 1024)
        assert kernel.best_config.kwargs["BLOCK"] == BEST


def test_hooks_run_no_more_often_than_calls_and_compiles() -> None:
    ran: list[Any] = []
    hooked = [triton.Config(c.kwargs, num_warps=c.num_warps, pre_hook=ran.append) for c in configs()]
    kernel = tuned(mode="online", configs=hooked)
    with playing():
        calls = call_until_decided(kernel)
    assert calls <= len(ran) <= calls + 2 * len(hooked) + 1


def test_a_candidate_that_raises_is_a_failure_and_the_call_runs_another() -> None:
    times = dict(TIMES)
    for config in TIMES:
        if config["BLOCK"] == 512:
            times[config] = Failure(stage="launch", message="it does not run")
    kernel = tuned(mode="online")
    with playing(times=times) as on:
        calls = call_until_decided(kernel)
        (decision,) = kernel.decisions.values()
        assert (decision.config["BLOCK"], decision.failed) == (BEST, 1)
        assert sum(on.launches.values()) >= calls  # every call ran something


def test_a_call_that_raises_by_itself_leaves_its_candidate_in_the_race() -> None:
    kernel, draw, x = tuned(mode="online"), random.Random(0), torch.empty(4096)
    with playing():
        call(kernel)
        ends = time.monotonic() + LIMIT_S
        while is_learning(kernel):
            assert time.monotonic() < ends
            if draw.random() < 0.3:
                with pytest.raises(ValueError, match="no such batch"):
                    kernel[_no_grid](x, 1000, 2.0)
            else:
                call(kernel)
    ((_, decision),) = kernel.decisions.items()
    assert decision.config["BLOCK"] == BEST
    assert decision.tried == len(BLOCKS)


@pytest.mark.parametrize("threads", [2, 4])
def test_what_other_threads_launch_on_the_stream_is_in_no_sample(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, launch, device = tuned(mode="online"), Rehearsal.launch, threading.Lock()

    def without_the_gil(self: Rehearsal, *args: Any) -> None:
        time.sleep(0)  # as Triton's launcher does before it calls the driver
        with device:
            launch(self, *args)

    monkeypatch.setattr(Rehearsal, "launch", without_the_gil)
    with playing():
        call(kernel)
        at_once = [threading.Thread(target=call_until_decided, args=(kernel,)) for _ in range(threads)]
        for thread in at_once:
            thread.start()
        for thread in at_once:
            thread.join()
    ((_, decision),) = kernel.decisions.items()
    assert decision.config_us == pytest.approx(TIMES[Config({"BLOCK": decision.config["BLOCK"], "num_warps": 4})])
    assert decision.default_us == pytest.approx(TIMES[Config({"BLOCK": BLOCKS[0], "num_warps": 4})])


def test_a_call_that_runs_under_no_config_does_not_end_learning() -> None:
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        with pytest.raises(triton.CompilationError):
            kernel[(4,)](torch.empty(4096), 1000, None)
        assert is_learning(kernel)
        call_until_decided(kernel)
    ((_, decision),) = kernel.decisions.items()
    assert decision.config["BLOCK"] == BEST


def _no_grid(meta: dict[str, Any]) -> tuple[int, ...]:
    raise ValueError("no such batch")


def test_a_key_whose_first_call_raises_holds_nobody_up() -> None:
    kernel = tuned(mode="online")
    with playing():
        with pytest.raises(ValueError, match="no such batch"):
            kernel[_no_grid](torch.empty(4096), 16, 2.0)
        assert all(entry.learning.calls.is_met for _, entry in kernel.dispatcher.table.items())
        call(kernel, 1000)
        ends = time.monotonic() + LIMIT_S
        while len(kernel.dispatcher.decisions) < 2 or next(reversed(kernel.decisions.values())).basis != "measured":
            assert time.monotonic() < ends
            call(kernel, 1000)
            time.sleep(0.0002)


def test_keys_that_are_no_longer_called_make_way_and_are_learned_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_threads, "MAX_THREADS", 2)
    monkeypatch.setattr(learning_threads, "IDLE_S", 0.2)
    monkeypatch.setattr(real_calls, "LOOK_S", 0.05)
    kernel = tuned(mode="online")
    with playing():
        for n in (16, 32, 1000):
            call(kernel, n)
        ends = time.monotonic() + LIMIT_S
        for n in (1000, 16, 32):
            while (decision := _decision(kernel, n)) is None or decision.basis != "measured":
                assert time.monotonic() < ends, n
                call(kernel, n)
                time.sleep(0.0002)


def _decision(kernel: Any, n: int) -> Any:
    return next((decision for key, decision in kernel.decisions.items() if key[0] == n), None)


def test_the_thread_of_a_kernel_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_threads, "IDLE_S", 0.1)
    monkeypatch.setattr(learning_threads, "GONE_S", 0.2)
    monkeypatch.setattr(real_calls, "LOOK_S", 0.05)
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        gone = weakref.ref(kernel)
        del kernel
        ends = time.monotonic() + LIMIT_S
        while learners._threads or gone() is not None:
            assert time.monotonic() < ends
            gc.collect()
            time.sleep(0.01)


def test_a_copy_of_a_kernel_that_is_being_learned_learns_its_key_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # The original's thread has the key until the original is called no more.
    monkeypatch.setattr(learning_threads, "IDLE_S", 0.5)
    monkeypatch.setattr(learning_threads, "GONE_S", 1.0)
    monkeypatch.setattr(real_calls, "LOOK_S", 0.05)
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        assert is_learning(kernel)
        other = copy.copy(kernel)
        call_until_decided(other)
    assert [decision.config["BLOCK"] for decision in other.decisions.values()] == [BEST]


def test_ten_threads_share_a_key() -> None:
    kernel = tuned(mode="online")
    errors: list[BaseException] = []

    def calls() -> None:
        try:
            call_until_decided(kernel)
        except BaseException as err:
            errors.append(err)

    with playing():
        # Compiled once: where two threads parse at a time, CPython 3.11 may raise SystemError.
        call(tuned(mode="first"))
        threads = [threading.Thread(target=calls) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not errors
        (decision,) = kernel.decisions.values()
        assert decision.config["BLOCK"] == BEST


def test_a_cost_of_nothing_learns_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_ONLINE_COST", "0")
    kernel = tuned(mode="online")
    with playing() as on:
        with pytest.warns(TuningWarning, match="nothing is learned from calls"):
            call(kernel)
        call(kernel)
        assert not is_learning(kernel)
        assert len(launched(on)) == 1


def test_learning_takes_the_share_of_a_core_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtWork, "share", 1.0)
    monkeypatch.setenv("FORECAST_AUTOTUNE_ONLINE_CPU", "80%")
    kernel = tuned(mode="online")
    with playing():
        call_until_decided(kernel)
    assert at_work.share == 0.8


def test_ranks_of_a_job_do_not_explore_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    kernel = tuned(mode="online")
    with playing():
        with pytest.warns(TuningWarning, match="ranks of one job"):
            call(kernel)
        assert not is_learning(kernel)


def test_with_a_check_a_candidate_is_compared_before_its_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(_: LearnableKernel, config: Config, call: Any) -> Failure | None:
        assert call[0][1] == 1000
        assert (config["BLOCK"], 4) not in launched(on)
        compared.append(config["BLOCK"])  # type: ignore[arg-type]
        return Failure(stage="check", message="it computes something else") if config["BLOCK"] == BEST else None

    monkeypatch.setattr(LearnableKernel, "compared", compare)
    kernel = tuned(mode="online", check="allclose")
    with playing() as on:
        call_until_decided(kernel)
        (decision,) = kernel.decisions.values()
        assert sorted(compared) == [128, 256, 512]  # each once, and the default with nothing
        assert launched(on) == {(64, 4), (128, 4), (512, 4)}
        assert (decision.config["BLOCK"], decision.failed) == (128, 1)


def test_what_cannot_be_compared_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any) -> None:
        raise MemoryError("no room for copies")

    monkeypatch.setattr(LearnableKernel, "compared", compare)
    kernel = tuned(mode="online", check="allclose")
    with playing() as on:
        call_until_decided(kernel)
        assert len(launched(on)) == 1


def test_nothing_is_compared_while_the_device_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def busy(_: LearnableKernel) -> bool:
        asked.set()
        return False

    monkeypatch.setattr(LearnableKernel, "may_compare", busy)
    monkeypatch.setattr(LearnableKernel, "compared", lambda *_: pytest.fail("the call waits for the device"))
    kernel = tuned(mode="online", check="allclose")
    with playing() as on:
        ends = time.monotonic() + LIMIT_S
        while not asked.is_set():
            assert time.monotonic() < ends
            call(kernel)
            time.sleep(0.0002)
        for _ in range(50):
            call(kernel)
        assert len(launched(on)) == 1


def test_a_forecast_does_not_run_first_where_it_was_not_compared() -> None:
    for check, first in ((None, 128), ("allclose", 64)):
        kernel = tuned(mode="online", check=check, surrogate=Favours(128))
        with playing() as on:
            call(kernel)
            assert launched(on) == {(first, 4)}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("environment", "isolates"), [("auto", None), ("0", False), ("1", True)])
def test_what_is_to_be_isolated_is_not_tried_in_real_calls(
    isolate: bool, environment: str, isolates: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", environment)
    kernel = tuned(mode="online", isolate=isolate)
    with playing() as on:
        call(kernel)
        assert is_learning(kernel) is not (isolate if isolates is None else isolates)
        assert sum(on.launches.values()) == 1


def test_a_captured_call_runs_the_best_known_and_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned(mode="online")
    with playing() as on:
        call(kernel)
        monkeypatch.setattr(
            type(kernel.dispatcher._door), "why_unmeasured", lambda *_: "a CUDA graph was being captured"
        )
        before, known = on.launches.copy(), launched(on)
        for _ in range(200):
            call(kernel)
        assert launched(on) == known
        assert (on.launches - before).total() == 200


def test_assigned_configs_end_the_learning_of_the_old_ones() -> None:
    kernel = tuned(mode="online")
    with playing() as on:
        call(kernel)
        kernel.configs = configs(blocks=(1024,), warps=(4, 8))
        call_until_decided(kernel)
        assert {config["BLOCK"] for config in (d.config for d in kernel.decisions.values())} == {1024}
        assert time_us(1024, 4) < time_us(1024, 8)
        assert on.launches


def test_freezing_ends_exploring_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "frozen", False)
    kernel = tuned(mode="online")
    with playing() as on:
        call(kernel)
        fa.freeze()
        before = on.launches.copy()
        for _ in range(50):
            call(kernel)
        call(kernel, 2000)
        assert not is_learning(kernel)
        assert len(set((on.launches - before).elements())) == 1


def test_explain_names_what_a_key_runs_while_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "frozen", False)
    kernel = tuned(mode="online")
    with playing() as on:
        call(kernel)
        ((key, entry),) = kernel.dispatcher.table.items()
        learning, ends = entry.learning, time.monotonic() + LIMIT_S
        while learning.calls.incumbent == kernel.decisions[key].config and not learning.calls.over:
            assert time.monotonic() < ends
            call(kernel)
            time.sleep(0.0002)
        fa.freeze()
        before = on.launches.copy()
        call(kernel)
        ((_, config),) = (on.launches - before).elements()
    assert entry.learning is None
    told = str(kernel.explain(key)).partition("\ndefault")[0]
    assert f"BLOCK={config['BLOCK']}" in told.partition("\nwhy")[0]
    assert "measured" in told


def test_a_key_that_is_still_learned_is_not_the_one_decided_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "start", lambda _: None)  # nothing is learned but what this test tells
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        ((key, entry),) = kernel.dispatcher.table.items()
        call(kernel, 2000)
        times = SimpleNamespace(incumbent_us=1.0, default_us=2.0)
        calls = SimpleNamespace(incumbent=kernel.decisions[key].config, measured=2, times=times)
        kernel.dispatcher._note_best(key, entry, calls)
        assert kernel.decisions[key].basis == "default", "others wait for it to be measured"
        assert "n=2000" in str(kernel.explain())
        assert "the best of 2 that real calls have told of" in str(copy.copy(kernel).explain(key))


def test_freezing_a_store_ends_exploring_until_it_is_undone(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        assert cli.main(["freeze"]) == 0
        assert (Path(os.environ["FORECAST_AUTOTUNE_DIR"]) / "frozen").stat().st_mode & 0o777 == 0o600
        call_until_decided(kernel)  # ends with what is known
        assert all(decision.tried < len(BLOCKS) for decision in kernel.decisions.values())
        call(kernel, 2000)
        assert not is_learning(kernel)
        assert cli.main(["freeze", "--undo"]) == 0
        call(kernel, 3000)
        assert is_learning(kernel)
    said = capsys.readouterr().err
    assert "explore nothing from now on" in said
    assert "may explore again" in said


EXITING = """
import sys, tempfile, time
sys.path[:0] = {paths!r}
from rehearsed import call, playing, tuned
kernel = tuned(mode="online")
with playing():
    call(kernel)
    ends = time.monotonic() + 60
    from forecast_autotune.compilers import triton_pool
    while not (triton_pool._shared and any(p.processes() for p in triton_pool._shared.values())):
        assert time.monotonic() < ends
        call(kernel)
        time.sleep(0.001)
    print(*(pid for pool in triton_pool._shared.values() for pid in pool.processes()), flush=True)
"""


def test_a_process_that_ends_while_candidates_compile_leaves_no_child(tmp_path: Path) -> None:
    paths = [path for path in sys.path if path.endswith(("support", "tests"))]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EXITING.format(paths=paths)],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    ends = time.monotonic() + LIMIT_S
    for pid in map(int, done.stdout.split()):
        while is_running(pid):
            assert time.monotonic() < ends, f"{pid} lives"
            time.sleep(0.05)
    assert not list(SqliteStore(os.environ["FORECAST_AUTOTUNE_DIR"]).connection.run(_failures) or [])


def _failures(connection: Any) -> list[Any]:
    return connection.execute("SELECT value FROM outcome WHERE value LIKE '{\"stage\":%'").fetchall()


def test_a_forked_child_goes_on_with_the_best_known() -> None:
    kernel = tuned(mode="online")
    with playing():
        call(kernel)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for _ in range(50):
                    call(kernel)
                code = int(is_learning(kernel))
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        call_until_decided(kernel)


def test_after_work_there_is_a_pause_that_leaves_it_its_share_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtWork, "share", 0.2)
    at_work = AtWork()
    at_work.enter()
    began = time.thread_time()
    while (worked_s := time.thread_time() - began) < 0.02:
        pass
    before = time.monotonic()
    at_work.leave()
    at_work.enter()
    assert time.monotonic() - before > 3 * worked_s
    at_work.leave()


def test_a_thread_goes_on_after_a_pause_unless_one_that_began_before_waits() -> None:
    at_work, worked = AtWork(), []
    at_work.enter()  # the first
    at_work.leave()
    begun, gate = threading.Event(), threading.Event()

    def second() -> None:
        at_work.enter()
        begun.set()
        gate.wait()
        at_work.pause()
        worked.append("second")
        at_work.leave()

    def third() -> None:
        at_work.enter()
        worked.append("third")
        at_work.leave()

    threads = [threading.Thread(target=second), threading.Thread(target=third)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    waiting = threading.Thread(target=lambda: (_until(lambda: len(at_work._waiting) == 2), gate.set()))
    waiting.start()
    at_work.enter()  # the first, which began before: it is let in by the pause, and the third is not
    worked.append("first")
    at_work.leave()
    for thread in (*threads, waiting):
        thread.join(60)
    assert worked == ["first", "second", "third"]


def test_whoever_leaves_wakes_one_thread_alone() -> None:
    at_work = AtWork()
    at_work.enter()
    threads = [threading.Thread(target=lambda: (at_work.enter(), at_work.leave())) for _ in range(5)]
    for thread in threads:
        thread.start()
    _until(lambda: len(at_work._waiting) == 5)
    turns = dict(at_work._waiting)
    at_work._begin_work = gate = threading.Event().wait  # type: ignore[method-assign,assignment]  # it works for long
    at_work.leave()
    assert sum(not turn.locked() for turn in turns.values()) <= 1
    assert len(at_work._waiting) == 4
    gate.__self__.set()
    for thread in threads:
        thread.join(60)


def test_a_key_that_is_never_launched_holds_nobody_up_but_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_threads, "MAX_QUIET_S", 0.2)
    learners = Learners()
    never, learned = _learning(is_met=False), threading.Event()
    learners._known.add(never)
    learners.start(_learning(is_met=True, decide=learned.set))
    assert learned.wait(60)


def test_keys_that_come_together_wait_for_one_and_the_same_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            now_s += timeout or 0.0
            return False

    monkeypatch.setattr(learning_threads, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(at_work, "over", Event())
    learners, first, second = Learners(), _learning(is_met=True), _learning(is_met=True)
    learners._met_at = now_s
    learners._await_quiet(first)
    assert now_s >= 100.0 + learning_threads.QUIET_S
    before_s = now_s
    learners._await_quiet(second)
    assert now_s == before_s


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Learners, Callable[[], None]]]:
    """Learners whose only thread is taken, and what lets it end."""
    monkeypatch.setattr(learning_threads, "MAX_THREADS", 1)
    learners, gate = Learners(), threading.Event()
    learners.start(_learning(is_met=True, decide=lambda: gate.wait(60)))  # type: ignore[arg-type,return-value]
    yield learners, gate.set
    gate.set()
    _until(lambda: not learners._threads)


def test_of_keys_that_wait_for_a_thread_the_one_called_last_is_next(
    one_thread: tuple[Learners, Callable[[], None]],
) -> None:
    (learners, let_go), learned = one_thread, []
    keys = {name: _learning(is_met=True, decide=functools.partial(learned.append, name)) for name in "abc"}
    for learning in keys.values():
        learners.start(learning)
    keys["b"].teaches(None)
    keys["a"].teaches(None)
    let_go()
    _until(lambda: len(learned) == 3)
    assert learned == ["a", "b", "c"]


def test_of_too_many_keys_that_wait_those_called_longest_ago_make_way(
    one_thread: tuple[Learners, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_threads, "MAX_WAITING", 2)
    learners, _ = one_thread
    keys = [_learning(is_met=True) for _ in range(4)]
    keys[2].called_at -= learning_threads.GONE_S + 1
    for learning in keys:
        learners.start(learning)
    assert [learning.calls.made_way for learning in keys] == [True, False, True, False]
    assert learners._waiting == [keys[1], keys[3]]


def test_a_waiting_key_that_makes_way_holds_nothing_and_is_learned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning_threads, "MAX_THREADS", 0)
    monkeypatch.setattr(learning_threads, "MAX_WAITING", 1)
    kernel = tuned(mode="online")

    def learned() -> dict[Any, bool]:
        return {key[0]: entry.learning is not None for key, entry in kernel.dispatcher.table.items()}

    with playing():
        call(kernel, 16)
        call(kernel, 32)
        assert learned() == {16: False, 32: True}
        call(kernel, 16)
        assert learned() == {16: True, 32: False}


def _learning(*, is_met: bool, decide: Callable[[], None] = lambda: None) -> Learning:
    calls = SimpleNamespace(is_met=is_met, over=False, made_way=False, end=lambda: None)
    return Learning(calls, None, None, lambda _: True, decide)  # type: ignore[arg-type]


def _until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_of_keys_that_wait_for_work_the_first_is_next() -> None:
    at_work, worked = AtWork(), []
    began = [threading.Event() for _ in range(4)]

    def work(number: int) -> None:
        at_work.enter()
        at_work.leave()  # its number is given
        began[number].set()
        gate.wait()
        at_work.enter()
        worked.append(number)
        at_work.leave()

    gate = threading.Event()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread, event in zip(threads, began, strict=True):
        thread.start()
        assert event.wait(60)
    at_work.enter()  # this thread's, the last
    gate.set()
    while len(at_work._waiting) < 4:
        time.sleep(0.001)
    at_work.leave()
    for thread in threads:
        thread.join(60)
    assert worked == [0, 1, 2, 3]
