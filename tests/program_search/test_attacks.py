"""Candidates that cheat, and candidates that attack, tried as a search tries them.

Each does right what it was asked for if its attack comes off: so a test fails where its guard is gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import differentiable
import pytest
import torch
from differentiable import program
from doubling import task

from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.workload import Work
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import boxed_server, lacking
from forecast_autotune.processes.fork_server import ForkServer
from forecast_autotune.processes.machine import usable_memory_bytes
from forecast_autotune.processes.serving import children_of
from forecast_autotune.processes.worker import Worker
from forecast_autotune.program_search import examiner as examiner_module
from forecast_autotune.program_search.candidate import Candidate
from forecast_autotune.program_search.compiled_files import carry, compiled_to
from forecast_autotune.program_search.exam import BATCHES, Exam, SeedBaseline, StartedWorker, WrongError
from forecast_autotune.program_search.examiner import CheckReport, Examiner, Result
from forecast_autotune.program_search.rules import broken_rule
from forecast_autotune.program_search.runners import Loadable, PythonPreparer
from forecast_autotune.program_search.task import SearchTask
from forecast_autotune.program_search.turns import turn_at_device

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")

RIGHT = "\n    torch.mul(x, 2, out=out)\n"
HEAD = "import torch\n"


class Bench:
    """A task whose seed was examined."""

    def __init__(self, folder: Path, searched: SearchTask | None = None) -> None:
        self.task = searched or task()
        self.examiner = Examiner(self.task, detect_hardware("cpu"), folder)
        self.preparer = PythonPreparer(self.task, folder)
        assert isinstance(self.try_(self.task.source, is_seed=True).outcome, Measurement)

    def try_(self, source: str, *, is_seed: bool = False, may_start: bool = False) -> Result:
        return self.examiner.examine(replace(self._prepared(source), may_start=may_start), is_seed=is_seed)

    def _prepared(self, source: str) -> Loadable:
        made = self.preparer.prepare(replace(self.task.seed, source=source, by_rules=False))
        assert not isinstance(made, Failure)
        return made

    def prepared(self, body: str, before: str = "") -> Loadable:
        """A candidate that does this at each call, ready to be tried."""
        return self._prepared(_source(body, before))

    def call(self, body: str, before: str = "", *, may_start: bool = False) -> Result:
        """Try a candidate that does this at each call; in a box that may start programs, as Triton's assembler is."""
        return self.try_(_source(body, before), may_start=may_start)


def _source(body: str, before: str) -> str:
    lines = body.strip("\n").replace("\n", "\n    ")
    return f"{HEAD}{before}\n\ndef double(x, out, *, PARTS):\n    {lines}\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    return Bench(tmp_path_factory.mktemp("attacks"))


def wrong(result: Result) -> str:
    assert isinstance(result.outcome, Failure), result
    return result.outcome.message


def test_an_honest_candidate_is_measured(bench: Bench) -> None:
    assert isinstance(bench.call("torch.mul(x, 2, out=out)").outcome, Measurement)


def test_on_zeros_and_ones_rounding_that_is_the_functions_own_is_no_error(tmp_path: Path) -> None:
    """1.3132616 and 1.3132617 are neighbours in float32: which of them is right depends on the way to a logarithm."""
    softplus = "import torch\n\n\ndef double(x, out, *, PARTS):\n    out.copy_({})\n"
    one_way, another = "torch.nn.functional.softplus(x)", "torch.logaddexp(x, torch.zeros_like(x))"
    x = torch.ones(1)
    assert not torch.equal(torch.nn.functional.softplus(x), torch.logaddexp(x, torch.zeros_like(x)))
    searched = replace(task(source=softplus.format(one_way)), reference=lambda x, out: torch.nn.functional.softplus(x))
    bench = Bench(tmp_path, searched)
    assert isinstance(bench.try_(softplus.format(another)).outcome, Measurement)


def test_on_zeros_and_ones_sums_are_exact(tmp_path: Path) -> None:
    """Within the tolerances, and in the usual precision on average: one element in some thousand is off by one."""
    off = "out.copy_(2 * x)\nout[0] += (x[0] == x[0].round()).float() * 0.01"
    bench = Bench(tmp_path)
    assert "of zeros and ones" in wrong(bench.call(off))


def test_sums_that_cancel_may_be_off_by_rounding_where_the_seed_is_too(tmp_path: Path) -> None:
    """x - mean of one row in a thousand: the seed leaves there what float32 lost of terms of a hundred."""
    lost = "out.copy_(2 * x)\nout[0] = 2 * x[0] + {} * 2**-23 * float(x.square().mean().sqrt())"
    strict = ((0.0, 1e-9),)
    off = replace(task(source=_source(lost.format(1.5), "")), tolerances=strict)
    by_half = Bench(tmp_path / "off", off)
    assert isinstance(by_half.call(lost.format(1.0)).outcome, Measurement)
    assert "elements are wrong" in wrong(by_half.call(lost.format(9.0)))
    exact = Bench(tmp_path / "exact", replace(task(), tolerances=strict))
    assert "elements are wrong" in wrong(exact.call(lost.format(1.5)))


def test_what_cancels_in_one_output_excuses_no_other(tmp_path: Path) -> None:
    """Beside a large number, the others may be anything within its rounding."""

    def make_inputs(sizes: Any, seed: int, device: str) -> tuple[Any, ...]:
        x, out = task().make_inputs(sizes, seed, device)
        x[0] = 1e10
        return x, out, torch.empty_like(out)

    body = "out.copy_(2 * x)\nother.copy_(2 * x)\nother[1] += {} * 2**-23 * float(x.square().mean().sqrt())\n"
    seed = _source(body.format(1.5), "").replace("x, out,", "x, out, other,")
    of = task(source=seed, make_inputs=make_inputs, reference=lambda x, *_: (2 * x, 2 * x), outputs=2)
    bench = Bench(tmp_path, replace(of, corners={}, tolerances=((0.0, 1e-9), (0.0, 1e-9))))
    assert isinstance(bench.try_(seed.replace("1.5", "1.0")).outcome, Measurement)
    assert "elements are wrong" in wrong(bench.try_(seed + "    out[1:] += float(x[0] > 1e9)\n"))


def test_nothing_starts_beside_what_others_time_on_the_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Loadable] = []
    begin = bench.examiner._start_worker

    def noted(_: Examiner, candidate: Loadable, compiled: Path | None) -> StartedWorker:
        started.append(candidate)
        return begin(candidate, compiled)

    monkeypatch.setattr(Examiner, "_start_worker", noted)
    made = bench._prepared(bench.task.source)
    with ThreadPoolExecutor(1) as pool:
        with turn_at_device(bench.task.device, alone=True):
            exam = pool.submit(bench.examiner.examine, made, is_seed=True)
            with pytest.raises(TimeoutError):
                exam.result(0.5)
            assert not started
        assert isinstance(exam.result(60.0).outcome, Measurement)
    assert started == [made]


def test_searches_that_share_a_folder_keep_apart_and_leave_nothing_behind(tmp_path: Path) -> None:
    """As in two containers with one home, where both processes have the same id."""
    keeps = "import os\nos.makedirs('triton/KEY')\nopen('triton/KEY/key.cubin', 'w').close()\n"
    of = task(source=_source("torch.mul(x, 2, out=out)", keeps))
    one, other = Bench(tmp_path, of), Bench(tmp_path, of)
    assert one.examiner._new_folder(None) != other.examiner._new_folder(None)
    assert len(list(tmp_path.glob("run-*/warm-*/KEY/key.cubin"))) == 2
    del one, other
    gc.collect()
    assert not list(tmp_path.glob("run-*"))


def test_ctrl_c_begins_no_further_check_and_keeps_the_turn_until_all_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    waiting, ending, wait = threading.Event(), threading.Event(), examiner_module.wait

    @contextlib.contextmanager
    def turn(_: str, *, alone: bool) -> Iterator[None]:
        try:
            yield
        finally:
            events.append("turn given back")

    def waits(futures: Sequence[Future[Any]]) -> Any:
        (ending if waiting.is_set() else waiting).set()  # first for all checks; after Ctrl-C for those that have begun
        return wait(futures)

    def check(*_: object, **__: object) -> CheckReport:
        assert waiting.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        assert ending.wait(60)
        events.append("checked")
        return CheckReport(everywhere=False)

    monkeypatch.setattr(examiner_module, "turn_at_device", turn)
    monkeypatch.setattr(examiner_module, "wait", waits)
    monkeypatch.setattr(Examiner, "_check", check)
    monkeypatch.setattr(bench.examiner, "beside", 1)
    made = bench.prepared(RIGHT)
    with pytest.raises(KeyboardInterrupt), bench.examiner.checked([made, made, made]):
        pass
    assert events == ["checked", "turn given back"]


def test_ctrl_c_between_two_checks_waits_for_the_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    submit, submitted = ThreadPoolExecutor.submit, list[None]()

    def interrupted(self: ThreadPoolExecutor, *given: Any, **how: Any) -> Future[Any]:
        submitted.append(None)
        if len(submitted) == 2:
            raise KeyboardInterrupt
        return submit(self, *given, **how)

    def check(*_: object, **__: object) -> CheckReport:
        time.sleep(0.5)
        ended.append(True)
        return CheckReport(everywhere=False)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    monkeypatch.setattr(Examiner, "_check", check)
    made = bench.prepared(RIGHT)
    with pytest.raises(KeyboardInterrupt), bench.examiner.checked([made, made]):
        pass
    assert ended == [True]


def interrupted_after(seconds: float, bench: Bench, made: Sequence[Loadable]) -> None:
    """Examine what takes a minute, press Ctrl-C, and see that it ends by that and leaves nothing."""
    called = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    called.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.examiner.examine_all(made)
    finally:
        called.cancel()
    assert time.monotonic() - began < 40
    assert not list(bench.examiner._folder.glob("run-*/trial-*"))


def test_ctrl_c_ends_what_is_being_checked(bench: Bench) -> None:
    slow = bench.prepared("time.sleep(50)\ntorch.mul(x, 2, out=out)", "import time\n")
    interrupted_after(4.0, bench, [slow, slow])


def test_ctrl_c_ends_a_worker_that_is_starting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a worker takes seconds to start."""
    start = ForkServer.start

    def slow_start(self: ForkServer, *given: Any, **how: Any) -> Worker:
        worker = start(self, *given, **how)
        time.sleep(2.0)
        return worker

    monkeypatch.setattr(ForkServer, "start", slow_start)
    slow = bench.prepared("time.sleep(50)\ntorch.mul(x, 2, out=out)", "import time\n")
    interrupted_after(1.0, bench, [slow])
    assert isinstance(bench.examiner.examine_all([bench.prepared(RIGHT)])[0].outcome, Measurement)


def test_a_timing_waits_for_what_others_check_on_the_device(bench: Bench) -> None:
    made = bench.prepared(RIGHT)

    def timed(checked: CheckReport) -> Result:
        with bench.examiner.alone():
            return bench.examiner.time(made, checked)

    with ThreadPoolExecutor(1) as pool, bench.examiner.checked([made]) as checks:
        with turn_at_device(bench.task.device, alone=False):
            timing = pool.submit(timed, checks[0])
            with pytest.raises(TimeoutError):
                timing.result(1.0)
        assert isinstance(timing.result(60.0).outcome, Measurement)


CHEATS = {
    "a thread that ends later": (
        "import threading, time\n",
        "threading.Thread(target=lambda: (time.sleep(0.05), torch.mul(x, 2, out=out)), daemon=True).start()",
        "never written",
    ),
    "an output cached by pointer": (
        "seen = {}\n",
        "if x.data_ptr() not in seen:\n    seen[x.data_ptr()] = x * 2\nout.copy_(seen[x.data_ptr()])",
        "elements are wrong",
    ),
    "an output cached in a file": (
        "import os\n",
        "if os.path.exists('kept'):\n    out.copy_(torch.load('kept')[: len(out)])\n"
        "else:\n    torch.mul(x, 2, out=out)\n    torch.save(x.new_zeros(20000) + 3, 'kept')",
        "elements are wrong",
    ),
    "work done in one of all calls": (
        "calls = [0]\n",
        "calls[0] += 1\nif calls[0] < 8 or calls[0] % 4 == 0:\n    torch.mul(x, 2, out=out)",
        "never written",
    ),
    "stale memory": ("", "pass", "never written"),
    "a lazy tensor": (
        "class Lazy(torch.Tensor):\n    def __eq__(self, other):\n        return torch.tensor(True)\n",
        "out.data = torch.Tensor._make_subclass(Lazy, x * 2)",
        "never written",
    ),
    "expected tensors found by gc": (
        "import gc\n",
        "found = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == x.shape "
        "and t is not x and t is not out and t.dtype == x.dtype]\n"
        "for t in found:\n    if torch.isfinite(t).all() and (t >= 2).all():\n        out.copy_(t)",
        "never written",
    ),
    "NaN as a wildcard": ("", "out.fill_(float('nan'))", "never written"),
    "zeroed inputs": ("", "torch.mul(x, 2, out=out)\nx.zero_()", "wrote to an input"),
    "work done as its arguments are laid out": (
        "import sys\ntrial = sys.modules['forecast_autotune.program_search.trial']\nbuild = trial._Set.__init__\n"
        "def init(self, *given):\n    build(self, *given)\n"
        "    torch.mul(self.arguments[0], 2, out=self.arguments[1])\n"
        "trial._Set.__init__ = init\n",
        "pass",
        "elements are wrong",
    ),
    "lower precision": ("", "out.copy_(x.half() * 2)", "lower precision"),
    "memory beside its arguments": (
        "import ctypes\n",
        "torch.mul(x, 2, out=out)\nctypes.memset(out.data_ptr() + 4 * len(out), 0, 8)",
        "outside its arguments",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_candidate_that_cheats_is_found_out(bench: Bench, name: str) -> None:
    before, body, why = CHEATS[name]
    assert why in wrong(bench.call(body, before))


RIGHT_GRADIENTS = "return g * w, g * x, None"
KEPT = "if {key} not in kept:\n    kept[{key}] = (g * w, g * x, None)\nreturn kept[{key}]"
GRADIENT_CHEATS = {
    "gradients of an earlier call": (
        {"before": "kept = {}\n", "backward": KEPT.format(key="len(g)")}, "the gradient of argument 0: 20000 of 20000"
    ),
    "gradients cached by pointer": (
        {"before": "kept = {}\n", "backward": KEPT.format(key="(x.data_ptr(), len(g))")},
        "of zeros and ones, the gradient of argument 0: ",
    ),
    "gradients of zeros": ({"backward": "return 0 * g, 0 * g, None"}, "the gradient of argument 0: it is missing"),
    "a gradient of the first input alone": (
        {"backward": "return g * w, None, None"}, "the gradient of argument 1: it is missing"
    ),
    "gradients as though each output's were one": ({"backward": "return w, x, None"}, "the gradient of argument 0: "),
    "gradients that are right at the first size alone": (
        {"backward": f"if len(g) != 20000:\n    return g * w, g, None\n{RIGHT_GRADIENTS}"},
        "at small, the gradient of argument 1",
    ),
    "gradients that are wrong at a corner": (
        {"backward": f"if len(g) == 1:\n    return g * w, g, None\n{RIGHT_GRADIENTS}"},
        "at one, the gradient of argument 1",
    ),
    "gradients that are wrong at shifted addresses": (
        {"backward": f"if g.data_ptr() % 64:\n    return g * w, g, None\n{RIGHT_GRADIENTS}"},
        "at large, at shifted addresses, the gradient of argument 1",
    ),
    "gradients computed in one of all calls": (
        {
            "before": "calls = [0]\n",
            "backward": "is_large = len(g) == 20000\ncalls[0] += is_large\n"
            f"if is_large and calls[0] > 5 and calls[0] % 4:\n    return g, g, None\n{RIGHT_GRADIENTS}",
        },
        "at large, the gradient of argument 0: ",
    ),
    "gradients computed in a thread that ends later": (
        {
            "before": "import threading, time\n",
            "backward": "found = torch.zeros_like(g)\n"
            "threading.Thread(target=lambda: (time.sleep(0.05), torch.mul(g, w, out=found)), daemon=True).start()\n"
            "return found, g * x, None",
        },
        "the gradient of argument 0: it is missing",
    ),
    "gradients of lower precision": (
        {"backward": "return (g.half() * w.half()).float(), g * x, None"}, "the gradient of argument 0: its error"
    ),
    "gradients that are no numbers": ({"backward": "return g * w, g * float('nan'), None"}, "no number"),
    "a gradient of another shape": ({"backward": "return g[1:], g * x, None"}, "invalid gradient at index 0"),
    "the gradient of an output as memory": (
        {"backward": "found = g * x\nreturn g.mul_(w), found, None"}, "wrote to the gradient of an output"
    ),
    "an output as memory": (
        {
            "forward": "ctx.out = x * w\nreturn ctx.out",
            "backward": "found = g * x\nreturn torch.mul(g, w, out=ctx.out.detach()), found, None",
        },
        "after the backward pass",
    ),
    "an output that the backward pass computes": (
        {
            "forward": "ctx.out = torch.zeros_like(x)\nreturn ctx.out",
            "backward": f"ctx.out.detach().copy_(x * w)\n{RIGHT_GRADIENTS}",
        },
        "at large: ",
    ),
    "a lazy tensor": (
        {
            "before": "class Lazy(torch.Tensor):\n    @classmethod\n"
            "    def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
            "        if function is torch.autograd.grad:\n            (out,), (x, w), (g,) = args\n"
            "            return g * w, g * x\n"
            "        return super().__torch_function__(function, types, args, kwargs or {})\n",
            "call": "return Product.apply(x, w, PARTS).as_subclass(Lazy)",
            "backward": "return g, g, None",
        },
        "returns Lazy, where the reference returns float32",
    ),
    "a hook that makes another gradient": (
        {"call": "x.register_hook(lambda g: 2 * g)\nreturn Product.apply(x, w, PARTS)"}, "the gradient of argument 0: "
    ),
    "a gradient left where others look for it": (
        {
            "call": "out = Product.apply(x, w, PARTS)\nx.grad = torch.ones_like(x) * w.detach()\nreturn out",
            "backward": "return None, g * x, None",
        },
        "the gradient of argument 0: it is missing",
    ),
    "outputs that autograd does not follow": (
        {"call": "return x.detach() * w.detach()"}, "returns float32 [20000] without a grad_fn"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    return Bench(tmp_path_factory.mktemp("gradients"), differentiable.task())


@pytest.mark.parametrize("name", GRADIENT_CHEATS)
def test_a_candidate_whose_gradients_are_wrong_is_found_out(gradients: Bench, name: str) -> None:
    passes, why = GRADIENT_CHEATS[name]
    assert why in wrong(gradients.try_(program(**passes)))


def test_candidates_checked_side_by_side_are_timed_in_new_processes(bench: Bench) -> None:
    lines = {
        "honest": "torch.mul(x, 2, out=out)",
        "wrong": "torch.mul(x, 3, out=out)",
        "right until it has been checked": "calls[0] += 1\nif not os.path.exists('kept'):\n    torch.mul(x, 2, out=out)\n"
        "if calls[0] == 6:\n    open('kept', 'w').close()",
        "honest in a process of few calls": "calls[0] += 1\nif calls[0] < 4:\n    torch.mul(x, 2, out=out)",
    }
    made = {name: bench.prepared(body, "import os\ncalls = [0]\n") for name, body in lines.items()}
    with bench.examiner.checked(list(made.values())) as found:
        checks = dict(zip(made, found, strict=True))
        assert len(checks["honest"].started) == 1
        assert "elements are wrong" in wrong(bench.examiner.time(made["wrong"], checks["wrong"]))
        timed = {name: bench.examiner.time(made[name], checks[name]) for name in lines if name != "wrong"}
    assert isinstance(timed["honest"].outcome, Measurement)
    assert isinstance(timed["right until it has been checked"].outcome, Failure)
    assert "never written" in wrong(timed["honest in a process of few calls"])
    assert not checks["honest"].started


@pytest.mark.parametrize(
    ("where", "wrong_there"), [("at one", "len(x) == 1"), ("at large, at shifted addresses", "x.data_ptr() % 64")]
)
def test_what_could_win_is_checked_everywhere(bench: Bench, where: str, wrong_there: str) -> None:
    made = bench.prepared(f"torch.mul(x, 3 if {wrong_there} else 2, out=out)")
    assert where in wrong(bench.examiner.examine(made))
    assert where in wrong(bench.examiner.examine_all([made])[0])
    assert where in wrong(bench.examiner.examine_all([made], best_us={"large": 1e9})[0])
    (slow,) = bench.examiner.examine_all([made], best_us={"large": 0.01})
    assert isinstance(slow.outcome, Measurement), slow
    assert not slow.everywhere


def test_a_batch_is_checked_from_its_fastest_on_until_a_candidate_is_right(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast_and_wrong = "torch.mul(x, 3 if len(x) == 1 else 2, out=out)"
    lines = {
        "fast and wrong": fast_and_wrong,
        "slow and wrong": f"time.sleep(0.02)\n{fast_and_wrong}",
        "right": "time.sleep(0.01)\ntorch.mul(x, 2, out=out)",
    }
    checked: list[str] = []
    ask = Examiner._ask_further
    made = [bench.prepared(body, "import time\n") for body in lines.values()]
    names = dict(zip((one.message["path"] for one in made), lines, strict=True))

    def noted(self: Examiner, candidate: Loadable) -> None:
        checked.append(names[candidate.message["path"]])
        ask(self, candidate)

    monkeypatch.setattr(Examiner, "_ask_further", noted)
    results = dict(zip(lines, bench.examiner.examine_all(made, best_us={"large": 50_000.0}), strict=True))
    assert checked == ["fast and wrong", "right"]
    assert "at one" in wrong(results["fast and wrong"])
    assert isinstance(results["right"].outcome, Measurement)
    assert results["right"].everywhere
    assert isinstance(results["slow and wrong"].outcome, Measurement)
    assert not results["slow and wrong"].everywhere


def test_candidates_are_timed_in_one_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[bool] = []

    @contextlib.contextmanager
    def turn(_: str, *, alone: bool) -> Iterator[None]:
        turns.append(alone)
        yield

    monkeypatch.setattr(examiner_module, "turn_at_device", turn)
    made = [bench.prepared(RIGHT), bench.prepared(f"{RIGHT}    pass\n"), bench.prepared("pass")]
    results = bench.examiner.examine_all(made, best_us={"large": 1e-3})
    assert [type(result.outcome) for result in results] == [Measurement, Measurement, Failure]
    assert turns == [False, True]
    turns.clear()
    assert bench.examiner.examine_all([]) == []
    assert [type(result.outcome) for result in bench.examiner.examine_all([bench.prepared("pass")])] == [Failure]
    assert turns == [False]  # nobody waits for a timing that there is not


def test_what_triton_compiled_is_carried_on_and_no_link_is_followed(tmp_path: Path) -> None:
    one, other, secret = tmp_path / "one", tmp_path / "other", tmp_path / "secret"
    for folder in (one / "KEY", secret):
        folder.mkdir(parents=True)
        (folder / "key.cubin").write_bytes(b"binary")
    (one / "KEY" / "__grp__key.json").write_text(f'{{"child_paths": {{"key.cubin": "{one}/KEY/key.cubin"}}}}')
    (one / "linked").symlink_to(secret)
    (one / "KEY" / "linked").symlink_to(secret / "key.cubin")
    os.mkfifo(one / "KEY" / "pipe")
    carry(one, other)
    found = {str(path.relative_to(other)) for path in other.rglob("*")}
    assert found == {"KEY", "KEY/key.cubin", "KEY/__grp__key.json"}
    assert f"{other}/KEY/key.cubin" in (other / "KEY" / "__grp__key.json").read_text()
    (tmp_path / "link").symlink_to(secret)
    carry(tmp_path / "link", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert compiled_to(one, None)
    assert not compiled_to(tmp_path / "link", None)


def test_of_what_a_candidate_left_no_more_is_read_than_triton_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forecast_autotune.program_search.compiled_files.MAX_BYTES", 1000)
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "KEY" / "deeper").mkdir(parents=True)
    for name in ("KEY/deeper/a.cubin", "KEY/a.cubin", "KEY/huge.cubin", "KEY/z.cubin", "a.cubin"):
        (one / name).write_bytes(b"binary")
    code = compiled_to(one, None)
    os.truncate(one / "KEY" / "huge.cubin", 1 << 40)  # it takes no room, and a copy of it would
    carry(one, other)
    assert {path.name for path in other.rglob("*")} == {"KEY", "a.cubin", "z.cubin"}
    assert compiled_to(one, None) == code


@pytest.mark.parametrize("where", [".", "triton"])
@pytest.mark.parametrize(("deep", "name"), [(1100, "d"), (25, "d" * 200)])
def test_folders_in_folders_without_end_fail_nobody_else(bench: Bench, where: str, deep: int, name: str) -> None:
    """Past 1,000 folders Python's own ways to walk them raise, and past 4,096 letters no path names them."""
    nest = f"os.makedirs({where!r}, exist_ok=True)\nos.chdir({where!r})\nfor _ in range({deep}):\n"
    try:
        assert "never written" in wrong(
            bench.call(f"{nest}    os.mkdir({name!r})\n    os.chdir({name!r})", "import os\n")
        )
        left = list(bench.examiner._folder.glob("run-*/trial-*"))
    finally:  # or pytest could not remove it either
        subprocess.run(["rm", "-rf", *bench.examiner._folder.glob("run-*/trial-*")], check=True)
    assert not left


def test_a_patched_clock_changes_no_time(bench: Bench) -> None:
    slow = "time.sleep(0.004)\ntorch.mul(x, 2, out=out)"
    patched = "import time\ntime.perf_counter = lambda: 0.0\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-6\n"
    outcome = bench.call(slow, patched).outcome
    assert isinstance(outcome, Measurement)
    assert outcome.median_us > 4000


def test_what_is_faster_than_the_device_is_no_measurement(bench: Bench, tmp_path: Path) -> None:
    slow_device = replace(detect_hardware("cpu"), peak_gflops=1e-3, peak_tensor_gflops=0.0)
    examiner = Examiner(
        task(work=lambda x, out: Work(flops=float(len(x)), bytes=0.0)), slow_device, tmp_path, bench.examiner.baseline
    )
    made = bench.preparer.prepare(bench.task.seed)
    assert not isinstance(made, Failure)
    assert "did its work at another time" in wrong(examiner.examine(made))


def test_a_fall_back_on_the_reference_is_refused() -> None:
    def why(body: str) -> str:
        source = f"{HEAD}\n\ndef double(x, out, *, PARTS):\n    {body}\n"
        return broken_rule(
            Candidate(source=source, language="triton", variant="plain", config=task().seed.config, proposer="test"),
            task(),
        )

    assert not why("torch.mul(x, 2, out=out)")
    assert "try" in why("try:\n        kernel(x)\n    except Exception:\n        torch.mul(x, 2, out=out)")
    assert "einsum" in why("out.copy_(torch.einsum('i,->i', x, torch.tensor(2.0)))")
    assert "subprocess" in why("import subprocess")
    assert "__class__" in why("x.__class__ = int")
    assert "parsed" in why("def broken(")
    assert "another name" in why("t = torch\n    t.mm(x, x, out=out)")
    assert "'mm'" in why("import torch as t\n    t.mm(x, x, out=out)")
    assert "'cuda.Event" in why("from torch import cuda\n    cuda.Event.elapsed_time = None")
    assert not why("import torch as t\n    t.mul(x, 2, out=out)")


# Attacks on what is outside ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "key").write_text("a secret")
    return folder


@pytest.fixture(scope="module")
def servers(outside: Path) -> Iterator[tuple[int, int, Path]]:
    """A TCP and a UDP server on loopback, and one behind a path: nobody needs to answer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(outside / "socket"))
        unix.listen()
        yield tcp.getsockname()[1], udp.getsockname()[1], outside / "socket"


ATTACKS = {
    "reads a key": "open({key!r}).read()",
    "reads its server's environment": "assert b'PYTEST' in open('/proc/self/environ', 'rb').read()",
    "reads another's environment": "open('/proc/{pid}/environ', 'rb').read()",
    "reads another's command line": "open('/proc/{pid}/cmdline', 'rb').read()",
    "writes home": "open(os.path.join({home!r}, 'left_by_a_candidate'), 'w').close()",
    "writes beside itself": "open({outside!r} + '/left', 'w').close()",
    "changes a mode": "os.chmod({key!r}, 0o777)",
    "changes a date": "os.utime({key!r})",
    "removes a file": "os.unlink({key!r})",
    "truncates a file": "os.truncate({key!r}, 0)",
    "runs its own program": "os.execv('/bin/true', ['true'])",
    "forks": "os.fork() or os._exit(0)",
    "starts a program": "__import__('subprocess').run(['/bin/true'], check=True)",
    "signals another": "os.kill({pid}, 0)",
    "signals its parent": "os.kill(os.getppid(), 0)",
    "opens a TCP connection": "socket.create_connection(('127.0.0.1', {tcp}), 5)",
    "sends a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
    "connects to a path": "socket.socket(socket.AF_UNIX).connect({unix!r})",
    "listens": "socket.create_server(('127.0.0.1', 0))",
    "asks io_uring": "assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0",
    "calls as x32": "assert libc.syscall(0x40000000 + 39) > 0",
    "calls what is unknown": "assert libc.syscall(463, -100, b'.', 0, b'user.x', 0, 0) >= 0 or ctypes.get_errno() != 38",
    "traces another": "assert libc.ptrace(16, {pid}, 0, 0) == 0",
    "reads another's memory": "assert libc.process_vm_readv({pid}, None, 0, None, 0, 0) >= 0",
    "leaves its session": "os.setsid()",
    "outlives its parent": "assert libc.prctl(1, 0, 0, 0, 0) == 0",
    "mounts": "assert libc.unshare(0x10000000) == 0",
    "takes all memory": "torch.empty({most}, dtype=torch.uint8)",
    "slows others": "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_what_is_outside_fails(
    bench: Bench, outside: Path, servers: tuple[int, int, Path], name: str
) -> None:
    tcp, udp, unix = servers
    before = "import ctypes, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    body = ATTACKS[name].format(
        key=str(outside / "key"), outside=str(outside), home=str(Path.home()), pid=os.getpid(), tcp=tcp, udp=udp,
        unix=str(unix),
        most=3 * usable_memory_bytes() // 4,
    )  # fmt: skip
    message = wrong(bench.call(f"{body}\ntorch.mul(x, 2, out=out)", before))
    assert message.startswith(("PermissionError", "AssertionError", "RuntimeError: [enforce fail")), message
    assert (outside / "key").read_text() == "a secret"
    assert not (Path.home() / "left_by_a_candidate").exists()


@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box that may start programs: {lacking(may_start=True)}")
def test_a_box_that_may_start_programs_holds_too(bench: Bench, outside: Path, servers: tuple[int, int, Path]) -> None:
    before = "import os, signal, socket, subprocess, time\n"

    def message(body: str) -> str:
        return wrong(bench.call(f"{body}\ntorch.mul(x, 2, out=out)", before, may_start=True))

    assert "PermissionError" in message(f"open({str(outside / 'key')!r})")
    assert "PermissionError" in message(f"socket.create_connection(('127.0.0.1', {servers[0]}), 5)")
    assert "ProcessLookupError" in message(f"os.kill({os.getpid()}, 0)") or os.geteuid() != 0
    assert "PermissionError" in message(f"open({str(outside / 'written')!r}, 'w')")
    bomb = message("while True:\n    os.fork() or time.sleep(30)")  # that it sleeps spares whoever tests beside it
    assert "too many processes" in bomb or "unavailable" in bomb
    assert isinstance(
        bench.call(
            "subprocess.run(['/bin/true'], check=True)\ntorch.mul(x, 2, out=out)", before, may_start=True
        ).outcome,
        Measurement,
    )
    server = boxed_server().pid
    assert server is not None
    until = time.monotonic() + 20
    while children_of(server) and time.monotonic() < until:  # who was killed has its end noticed a moment later
        time.sleep(0.05)
    assert not children_of(server), "a fork bomb left processes"


def test_attacks_would_come_off_without_a_box(outside: Path, servers: tuple[int, int, Path]) -> None:
    """What the attacks do is possible here: it is the box that they fail by."""
    import ctypes

    tcp, _, unix = servers
    libc = ctypes.CDLL(None, use_errno=True)
    socket.create_connection(("127.0.0.1", tcp), 5).close()
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(str(unix))
    os.chmod(outside / "key", 0o600)
    os.kill(os.getppid(), 0)
    assert libc.prctl(1, 0, 0, 0, 0) == 0
    assert (outside / "key").read_text() == "a secret"


def test_a_candidate_that_hangs_or_crashes_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("forecast_autotune.program_search.exam.FIRST_TIMEOUT_S", 1.0)
        assert "ran out of time" in wrong(bench.call("while True:\n    pass"))
    assert "SIGSEGV" in wrong(bench.call("ctypes.string_at(0)", "import ctypes\n"))
    assert "exited with code 0" in wrong(bench.call("os._exit(0)", "import os\n"))


def test_the_time_floor_assumes_matrix_units_where_no_peak_is_reported() -> None:
    """A matrix product of 4096 cubed in half precision took 194 us on an H200; by float32's peak it needs 2,050."""

    def make_inputs(sizes: Any, seed: int, device: str) -> tuple[Any, ...]:
        return tuple(torch.empty(4096, 4096, dtype=torch.half, device="meta") for _ in range(3))

    exam = object.__new__(Exam)
    exam.hardware = Hardware(
        kind="cuda", name="NVIDIA H200", capability="9.0", peak_gflops=66_900.0, bandwidth_gb_per_s=4800.0,
        l2_bytes=60 << 20,
    )  # fmt: skip
    exam.task = task(make_inputs=make_inputs, work=lambda *_: Work(flops=2 * 4096**3, bytes=3 * 2 * 4096**2))
    exam.baseline = SeedBaseline()
    assert 100 < exam._floor_us("large", {}) < 194


def test_a_candidate_that_answers_late_gains_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    exam = object.__new__(Exam)
    exam.baseline, exam.is_seed, exam.timeout_s, exam.worker = SeedBaseline(idle_s=1e-4), False, 1.0, MagicMock()
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: 0.01 * next(clock))
    monkeypatch.setattr(Exam, "ask", lambda *_: {})
    assert exam._idle_s() == 1e-4
    exam.is_seed, exam.baseline = True, SeedBaseline()
    assert exam._idle_s() == pytest.approx(0.01)
    assert exam.baseline.idle_s == pytest.approx(0.01)


class FakeGpu:
    """An exam whose launches take what a test says: microseconds by the events, and beyond them by the caller's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exam = object.__new__(Exam)
        self.exam.task, self.exam.baseline, self.exam.timeout_s = task(device="cuda"), SeedBaseline(), 1.0
        self.exam.size, self.exam.hardware = 1 << 20, detect_hardware("cpu")
        monkeypatch.setattr(Exam, "draw", lambda _, sizes, **__: sizes)
        monkeypatch.setattr(Exam, "judge", lambda *_: {})
        monkeypatch.setattr(Exam, "_bytes", lambda *_: 1000)
        monkeypatch.setattr(Exam, "launch", self.launch)

    def launch(self, drawn: Sequence[Any], _: float) -> tuple[float, dict[str, Any]]:
        n, self.launches = len(drawn), self.launches + 1
        claimed_us, beyond_us = self.batch(self.launches)
        return 1e-6 * (n * claimed_us + (1 + n) * beyond_us), {"claimed_us": [claimed_us] * n}

    def times(self, batch: Callable[[int], tuple[float, float]], *, is_seed: bool = False) -> list[float]:
        self.exam.is_seed, self.batch, self.launches = is_seed, batch, 0
        return self.exam.time("large", {"n": 1}, None)


def test_events_are_believed_within_what_launching_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen on an H100 and an H200: the device spins for 200 us a launch, and a busy host is late by ms now and then."""
    gpu = FakeGpu(monkeypatch)
    assert gpu.times(lambda i: (384.0, 2000.0 if i % 5 == 0 else 210.0), is_seed=True) == [384.0] * BATCHES
    for honest_us in (6860.0, 300.0, 12.0):
        assert gpu.times(lambda i, us=honest_us: (us, 3000.0 if i % 2 else 190.0)) == [honest_us] * BATCHES  # type: ignore[misc]
    for claimed_us, beyond_us in ((84.0, 510.0), (1e-3, 400.0)):  # 300 us, and more, that its events do not tell of
        with pytest.raises(WrongError, match="do not tell the truth"):
            gpu.times(lambda _, told=(claimed_us, beyond_us): told)  # type: ignore[misc]
    with pytest.raises(WrongError, match="do not tell the truth"):
        gpu.times(lambda _: (400.0, -100.0))  # more than the clock of the caller
    with pytest.raises(WrongError, match="no times"):
        gpu.times(lambda _: (-1.0, 200.0))


def test_a_candidate_is_launched_as_often_as_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first launch that is late, by chance or on purpose, would else spread what a batch costs over fewer launches."""
    gpu = FakeGpu(monkeypatch)
    sets: list[int] = []
    draw = Exam.draw
    monkeypatch.setattr(Exam, "draw", lambda *given, **how: sets.append(len(given[1])) or draw(*given, **how))
    gpu.times(lambda _: (384.0, 200.0), is_seed=True)
    seeds = sets[:]
    sets.clear()
    gpu.times(lambda i: (300.0, 90_000.0 if i == 2 else 200.0))
    assert sets == seeds
    assert max(sets) > 1


def test_false_events_end_a_timing_within_what_an_answer_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.times(lambda _: (384.0, 200.0), is_seed=True)
    with pytest.raises(WrongError, match="do not tell the truth"):
        gpu.times(lambda i: (1.0, 700_000.0 if i > 2 else 200.0))  # each batch takes 4 s
    assert gpu.launches <= 5
