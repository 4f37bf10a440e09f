"""Workers that try one candidate after another: whose they are, what ends them, and who is believed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doubling import task

from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import lacking
from forecast_autotune.processes.endings import WorkerRaisedError
from forecast_autotune.program_search import compiled_files, shared_workers
from forecast_autotune.program_search.compiled_files import carry, forget
from forecast_autotune.program_search.exam import StartedWorker, WrongError
from forecast_autotune.program_search.examiner import CHECKED_IN, Examiner, Result
from forecast_autotune.program_search.runners import Loadable, PythonPreparer

boxed = pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")

RIGHT = "torch.mul(x, 2, out=out)"
ADDED = "torch.add(x, x, out=out)"


class Bench:
    """A task whose seed was examined, and the workers that were begun since."""

    def __init__(self, folder: Path) -> None:
        self.task = task()
        self.examiner = Examiner(self.task, detect_hardware("cpu"), folder)
        self.examiner.beside = 1  # one after the other, so that they come to the same worker
        self.preparer = PythonPreparer(self.task, folder)
        seed = self.preparer.prepare(self.task.seed)
        assert isinstance(seed, Loadable)
        assert isinstance(self.examiner.examine(seed, is_seed=True).outcome, Measurement)
        self.started: list[StartedWorker] = []
        begin = self.examiner._start_worker

        def counted(*arguments: Any) -> StartedWorker:
            self.started.append(begin(*arguments))
            return self.started[-1]

        self.examiner._start_worker = counted  # type: ignore[method-assign]

    def made(self, body: str, *, before: str = "", by_rules: bool = True) -> Loadable:
        source = f"import torch\n{before}\n\ndef double(x, out, *, PARTS):\n    {body}\n"
        made = self.preparer.prepare(replace(self.task.seed, source=source, by_rules=by_rules))
        assert isinstance(made, Loadable)
        return made

    def tried(self, *bodies: str, **how: Any) -> list[Result]:
        """What comes of candidates, one after the other; each is far slower than the fastest, and so asked nothing more."""
        made = [self.made(body, **how) for body in bodies]
        return [self.examiner.examine_all([one], best_us={"large": 1e-3})[0] for one in made]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.examiner.end_waiting_workers()


def is_measured(result: Result) -> bool:
    return isinstance(result.outcome, Measurement)


@boxed
def test_what_rules_made_is_tried_in_one_worker(bench: Bench) -> None:
    assert all(is_measured(result) for result in bench.tried(RIGHT, ADDED, "out.copy_(x * 2)"))
    assert len(bench.started) == 1


@boxed
def test_what_a_model_wrote_has_a_worker_for_each_check_and_timing(bench: Bench) -> None:
    assert all(is_measured(result) for result in bench.tried(RIGHT, ADDED, by_rules=False))
    assert len(bench.started) == 4
    assert bench.tried("out.copy_(x * 2)")
    assert len(bench.started) == 5


@boxed
def test_finals_time_each_in_new_processes(bench: Bench) -> None:
    bench.tried(ADDED)
    made = bench.made(RIGHT)
    with bench.examiner.checked([made], timings=2) as (checked,), bench.examiner.alone():
        pids = {one.worker.pid for one in checked.started}
        assert all(is_measured(bench.examiner.time(made, checked)) for _ in range(2))
    assert checked.shared is None
    assert len(pids) == 2
    assert bench.started[0].worker.pid not in pids


@boxed
def test_one_that_is_wrong_ends_its_worker_and_is_asked_again_in_a_new_one(bench: Bench) -> None:
    right, wrong, another = bench.tried(RIGHT, "torch.mul(x, 3, out=out)", ADDED)
    assert all(map(is_measured, (right, another)))
    assert isinstance(wrong.outcome, Failure)
    assert wrong.outcome.stage == "check"
    assert len(bench.started) == 3  # the first's, which the wrong one ended, as it did the next; the last's
    (first_and_wrong,) = bench.tried("torch.mul(x, 3, out=out)", before="# once more")
    assert not is_measured(first_and_wrong)


@boxed
def test_one_that_is_wrong_in_a_new_worker_is_asked_once(bench: Bench) -> None:
    (wrong,) = bench.tried("torch.mul(x, 3, out=out)")
    assert not is_measured(wrong)
    assert len(bench.started) == 1


@boxed
def test_one_that_merely_raises_leaves_its_workers_to_others(bench: Bench) -> None:
    right, raises, another = bench.tried(RIGHT, "raise ValueError(PARTS)", ADDED)
    assert all(map(is_measured, (right, another)))
    assert isinstance(raises.outcome, Failure)
    assert "ValueError" in raises.outcome.message
    assert len(bench.started) == 2
    assert len(bench.examiner._shared) == 2
    bench.tried("raise KeyError(PARTS)")
    assert len(bench.examiner._shared) == 2  # a third was begun, and enough wait


@boxed
def test_one_whose_device_answers_no_more_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tried(RIGHT)
    (shared,) = bench.examiner._shared._idle
    assert shared.unload()
    monkeypatch.setattr(shared.exam, "ask", _raises(WorkerRaisedError("an illegal memory access was encountered")))
    bench.tried(ADDED)
    assert shared not in bench.examiner._shared._idle
    assert shared.started.worker.has_ended
    assert not shared.unload()


@boxed
def test_what_another_left_behind_is_held_against_nobody(bench: Bench) -> None:
    spoils = "torch.mul(x, 2, out=out)\n    torch.add = None"
    assert all(is_measured(result) for result in bench.tried(spoils, ADDED))
    assert len(bench.started) > 1


@boxed
def test_what_one_changes_for_good_is_as_it_was_for_the_next(bench: Bench) -> None:
    changes = (
        "torch.set_num_threads(1 + torch.get_num_threads())\n    torch.set_default_dtype(torch.float64)\n"
        "    torch.set_grad_enabled(False)\n    os.environ['LEFT'] = '1'\n    sys.path.insert(0, '/left')\n    " + RIGHT
    )
    finds = (
        "left = [torch.get_num_threads() != " + str(torch.get_num_threads()) + ", torch.get_default_dtype() != "
        "torch.float32, not torch.is_grad_enabled(), 'LEFT' in os.environ, '/left' in sys.path]\n"
        "    if any(left):\n        raise ValueError(left)\n    " + RIGHT
    )  # fmt: skip
    assert all(is_measured(result) for result in bench.tried(changes, finds, before="import os, sys"))
    assert len(bench.started) == 1


@boxed
def test_what_one_holds_is_let_go_of_before_the_next(bench: Bench) -> None:
    holds = (
        "import os, weakref\nclass Held: pass\nheld = Held()\nheld.itself = held\n"
        "weakref.finalize(held, os.mkdir, os.path.join(os.environ['HOME'], 'gone'))"
    )
    finds = f"os.stat(os.path.join(os.environ['HOME'], 'gone'))\n    {RIGHT}"
    assert is_measured(bench.tried(RIGHT, before=holds)[0])
    assert is_measured(bench.tried(finds, before="import os")[0])
    assert len(bench.started) == 1


@boxed
@pytest.mark.parametrize("place", ["check", "time"])
def test_a_worker_that_breaks_under_an_innocent_one_is_left(
    bench: Bench, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_measured(bench.tried(RIGHT)[0])
    (shared,) = bench.examiner._shared._idle
    monkeypatch.setattr(shared.exam, place, _raises(WrongError("spoilt")))
    assert is_measured(bench.tried(ADDED)[0])
    assert shared not in bench.examiner._shared._idle
    assert shared.started.worker.has_ended


def _raises(err: Exception) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> None:
        raise err

    return raises


@boxed
def test_in_a_used_worker_what_was_not_compiled_ahead_has_no_digest(bench: Bench) -> None:
    """A kernel that an earlier candidate launched too is not compiled anew there."""
    compiles = (
        "folder = os.path.join(os.environ['TRITON_CACHE_DIR'], '{}')\n    os.makedirs(folder, exist_ok=True)\n"
        "    open(os.path.join(folder, 'kernel.cubin'), 'w').write('{}')\n    " + RIGHT
    )
    one, other = bench.tried(*(compiles.format(name, name) for name in "ab"), before="import os")
    assert all(map(is_measured, (one, other)))
    assert one.code
    assert not other.code
    assert len(bench.started) == 1


@boxed
def test_a_worker_is_closed_once(bench: Bench) -> None:
    bench.tried(RIGHT)
    (shared,) = bench.examiner._shared._idle
    file = shared.started.file
    bench.examiner.end_waiting_workers()
    own, other = os.pipe()
    os.dup2(own, file)  # by now it may be anybody's
    shared.close()
    os.fstat(file)
    for each in {own, other, file}:
        os.close(each)


@boxed
def test_one_that_died_while_it_waited_is_passed_over(bench: Bench) -> None:
    bench.tried(RIGHT)
    bench.started[0].worker.kill()
    assert is_measured(bench.tried(ADDED)[0])
    assert len(bench.started) == 2


@boxed
def test_one_that_hangs_is_not_asked_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tried(RIGHT)
    monkeypatch.setattr("forecast_autotune.program_search.exam.FIRST_TIMEOUT_S", 1.0)
    (hangs,) = bench.tried("while True: pass")
    assert isinstance(hangs.outcome, Failure)
    assert hangs.outcome.stage == "timeout"
    assert len(bench.started) == 1


@boxed
def test_one_has_its_share_and_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_workers, "MAX_TRIED", 2)
    bench.tried(RIGHT, ADDED, "out.copy_(x * 2)")
    assert len(bench.started) == 2
    assert bench.started[0].worker.has_ended
    assert not bench.started[0].folder.exists()


@boxed
def test_what_is_the_fastest_is_asked_everywhere_in_new_workers(bench: Bench) -> None:
    bench.examiner.beside = 2
    together = [bench.made(RIGHT), bench.made(ADDED)]
    results = bench.examiner.examine_all(together)
    assert all(is_measured(result) for result in results)
    confirmed = sum(result.everywhere for result in results)
    assert confirmed
    assert len(bench.started) == 2 + CHECKED_IN * confirmed
    corners = "out.copy_(x * 2) if len(x) in {} else out.zero_()"
    sizes = {size["n"] for size in bench.task.sizes.values()}
    (wrong,) = bench.examiner.examine_all([bench.made(corners.format(sizes))], best_us={"large": 1e9})
    assert (isinstance(wrong.outcome, Failure) and "corner" in wrong.outcome.message) or "elements" in str(
        wrong.outcome
    )


@boxed
def test_after_an_exception_none_is_used_again(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt), bench.examiner.checked([bench.made(RIGHT)]):
        raise KeyboardInterrupt
    assert not bench.examiner._shared
    assert bench.started[0].worker.has_ended


@boxed
def test_those_that_wait_end_with_their_examiner(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.tried(RIGHT)
    (pid,) = [one.worker.pid for one in bench.started]
    bench.started.clear()
    del bench
    gc.collect()
    until = time.time() + 60
    while os.path.exists(f"/proc/{pid}") and time.time() < until:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_no_more_files_are_carried_than_kernels_come_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_files, "MAX_FILES", 50)
    compiled = tmp_path / "compiled"
    for key in ("a", "b"):
        (compiled / key).mkdir(parents=True)
        for i in range(40):
            (compiled / key / f"{i}").write_text("")
    carry(compiled, tmp_path / "to")
    assert 0 < len([path for path in (tmp_path / "to").rglob("*") if path.is_file()]) <= 50


def test_compiled_kernels_are_forgotten_and_launchers_are_kept(tmp_path: Path) -> None:
    compiled, kept = tmp_path / "compiled", tmp_path / "kept"
    for folder, names in {
        compiled / "seeds": ("kernel.cubin",), compiled / "anothers": ("kernel.cubin", "kernel.ttir"),
        compiled / "launcher": ("launcher.so",), kept / "seeds": ("kernel.cubin",),
    }.items():  # fmt: skip
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("")
    (compiled / "link").symlink_to(kept)
    forget(compiled, kept)
    assert {path.name for path in compiled.iterdir()} == {"seeds", "launcher", "link"}
    assert list(kept.rglob("*.cubin"))
    forget(compiled, None)
    assert {path.name for path in compiled.iterdir()} == {"launcher", "link"}
    forget(tmp_path / "nowhere", None)
