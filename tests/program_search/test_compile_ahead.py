"""What candidates launch, compiled ahead without a GPU: launches of Triton's find it, and what cannot be is left to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubling import task as doubling_task

from calibration.search_tasks import search_tasks
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.features.hardware_sheets import hardware_named
from forecast_autotune.frontends.triton.simulated_driver import rehearsal
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search import compile_ahead, trial
from forecast_autotune.program_search.compile_ahead import AheadCompiler, compiler_of
from forecast_autotune.program_search.exam import SHIFT, Question, at_the_sizes, further_checks
from forecast_autotune.program_search.examiner import Examiner
from forecast_autotune.program_search.runners import Loadable, PythonPreparer

pytestmark = pytest.mark.skipif(bool(lack := lacking(may_start=True)), reason=f"this system lacks {lack}")

HARDWARE = hardware_named("NVIDIA H100 80GB HBM3")


@pytest.fixture(scope="module")
def task() -> Any:
    return search_tasks(["softmax"])[0]


@pytest.fixture
def ahead(task: Any, tmp_path: Path) -> AheadCompiler:
    made = compiler_of(task, HARDWARE, tmp_path / "ahead")
    assert made is not None
    return made


def written(task: Any, folder: Path, source: str) -> Loadable:
    made = PythonPreparer(task, folder).prepare(replace(task.seed, source=source, by_rules=False))
    assert isinstance(made, Loadable)
    return made


def launched(task: Any, candidate: Loadable, question: Question) -> tuple[int, int]:
    """What Triton itself compiles, and finds compiled, as a candidate is called where a GPU is only pretended."""
    import torch

    call = trial.load(candidate.message)
    values = list(task.make_inputs(question.sizes, 0, "cpu"))
    if question.shifted:
        for i, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                values[i] = torch.empty(value.numel() + SHIFT, dtype=value.dtype)[SHIFT:].as_strided(
                    value.shape, value.stride()
                )
    with rehearsal(hardware=HARDWARE, times=1.0) as device:  # type: ignore[arg-type]
        call(*values)
    return sum(device.compiles.values()), sum(device.cache_hits.values())


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_tritons_own_launches_find_it(
    task: Any, ahead: AheadCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = written(task, tmp_path, task.source)
    asked = [*at_the_sizes(task), *(one for one in further_checks(task) if one.shifted)]
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")  # as in a box
    with ahead.compiled([(seed, asked)]) as (folder,):
        assert folder is not None
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        for question in asked:
            compiles, hits = launched(task, seed, question)
            assert compiles == 0, question
            assert hits > 0, question
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "elsewhere"))
        assert launched(task, seed, asked[0])[0] > 0  # so that hits are hits
    assert not folder.exists()


@pytest.mark.parametrize(
    "spoilt",
    [
        "raise ValueError",  # as it is loaded
        "import os; os._exit(3)",
        "while True: pass",
        "import os; os.symlink('/etc', os.environ['TRITON_CACHE_DIR'])",
    ],
)
def test_one_that_spoils_it_costs_nobody_else_anything(
    task: Any, ahead: AheadCompiler, tmp_path: Path, spoilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = written(task, tmp_path, f"{task.source}\n{spoilt}\n"), written(task, tmp_path, task.source)
    start = compile_ahead.without_gpu.start

    @contextlib.contextmanager
    def started(serve: Any, loads: Sequence[Loadable], *given: Any, **how: Any) -> Iterator[Any]:
        with start(serve, loads, *given, **how) as worker:
            if list(loads) == [bad]:
                receive = worker.receive
                monkeypatch.setattr(worker, "receive", lambda limit_s, watch: receive(limit_s / 100, watch))
            yield worker

    monkeypatch.setattr(compile_ahead.without_gpu, "start", started)
    monkeypatch.setattr(compile_ahead, "TIMEOUT_S", 200.0)
    with ahead.compiled([(bad, at_the_sizes(task)), (good, at_the_sizes(task))]) as (of_bad, of_good):
        assert of_good is not None
        assert list(of_good.rglob("*.cubin"))
        assert of_bad is None or of_bad.is_symlink() or not of_bad.exists()


def test_what_was_compiled_in_time_stays(
    task: Any, ahead: AheadCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_ahead, "TIMEOUT_S", 30.0)
    rows = list(task.sizes.values())[1]["rows"]
    hangs = task.source.replace(
        "def online(", f"def online(x, *others, **knobs):\n    while len(x) == {rows}: pass\n"
        "    return _online(x, *others, **knobs)\n\n\ndef _online(", 1,
    )  # fmt: skip
    with ahead.compiled([(written(task, tmp_path, hangs), at_the_sizes(task))]) as (folder,):
        assert folder is not None
        assert len(list(folder.rglob("*.cubin"))) == 1


def test_a_size_that_a_candidate_refuses_leaves_the_others(task: Any, ahead: AheadCompiler, tmp_path: Path) -> None:
    rows = next(iter(task.sizes.values()))["rows"]
    refuses = task.source.replace(
        "def online(", f"def online(x, *others, **knobs):\n    if len(x) == {rows}:\n        raise ValueError(len(x))\n"
        "    return _online(x, *others, **knobs)\n\n\ndef _online(", 1,
    )  # fmt: skip
    assert refuses != task.source
    one = written(task, tmp_path, refuses)
    whole = written(task, tmp_path, task.source)
    with ahead.compiled([(one, at_the_sizes(task)), (whole, at_the_sizes(task))]) as (some, every):
        assert some is not None
        assert every is not None
        assert 0 < len(list(some.rglob("*.cubin"))) < len(list(every.rglob("*.cubin")))


def test_ctrl_c_leaves_what_is_being_compiled(
    task: Any, ahead: AheadCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = written(task, tmp_path, f"{task.source}\nwhile True: pass\n")
    waits = threading.Event()
    receive = compile_ahead.without_gpu._server.start

    def started(*given: Any, **how: Any) -> Any:
        worker = receive(*given, **how)
        waits.set()
        return worker

    monkeypatch.setattr(compile_ahead.without_gpu._server, "start", started)

    class Interrupted:
        """Threads whose results Ctrl-C ends the wait for."""

        def __init__(self, threads: Any) -> None:
            self._threads = threads

        def map(self, *given: Any) -> Iterator[Path | None]:
            self._threads.map(*given)
            assert waits.wait(60)
            raise KeyboardInterrupt

    side_by_side = compile_ahead.without_gpu.side_by_side

    @contextlib.contextmanager
    def interrupted(folder: Path) -> Iterator[Any]:
        with side_by_side(folder) as beside:
            yield replace(beside, threads=Interrupted(beside.threads))

    monkeypatch.setattr(compile_ahead.without_gpu, "side_by_side", interrupted)
    monkeypatch.setattr(compile_ahead, "TIMEOUT_S", 600.0)
    with pytest.raises(KeyboardInterrupt), ahead.compiled([(hangs, at_the_sizes(task))]):
        pass
    assert not list((tmp_path / "ahead").glob("run-*"))


def test_inputs_are_drawn_while_nobody_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[bool] = []
    drawn: list[tuple[list[bool], int]] = []

    @contextlib.contextmanager
    def turn(_: str, *, alone: bool) -> Iterator[None]:
        turns.append(alone)
        yield
        turns.pop()

    class Ahead:
        def draw(self, questions: Sequence[Question]) -> None:
            drawn.append((list(turns), len(questions)))

    of = doubling_task()
    monkeypatch.setattr("forecast_autotune.program_search.examiner.turn_at_device", turn)
    examiner = Examiner(of, detect_hardware("cpu"), tmp_path)
    examiner._ahead = Ahead()  # type: ignore[assignment]
    seed = PythonPreparer(of, tmp_path).prepare(of.seed)
    assert isinstance(seed, Loadable)
    assert isinstance(examiner.examine(seed, is_seed=True).outcome, Measurement)
    assert drawn == [([False], len([*at_the_sizes(of), *further_checks(of)]))]


def test_where_there_is_nothing_to_compile_nothing_is(task: Any, tmp_path: Path) -> None:
    assert compiler_of(task, detect_hardware("cpu"), tmp_path) is None
    assert compiler_of(replace(task, language="cuda"), HARDWARE, tmp_path) is None


@pytest.mark.parametrize("by_rules", [True, False])
def test_who_checks_finds_what_was_compiled(tmp_path: Path, by_rules: bool) -> None:
    of = doubling_task()
    examiner = Examiner(of, detect_hardware("cpu"), tmp_path)
    preparer = PythonPreparer(of, tmp_path)
    seed = preparer.prepare(of.seed)
    assert isinstance(seed, Loadable)
    assert isinstance(examiner.examine(seed, is_seed=True).outcome, Measurement)
    finds = (
        "import os\nimport torch\n\n\ndef double(x, out, *, PARTS):\n"
        "    open(os.path.join(os.environ['TRITON_CACHE_DIR'], 'key', 'kernel.cubin')).close()\n"
        "    torch.mul(x, 2, out=out)\n"
    )
    made = preparer.prepare(replace(of.seed, source=finds, by_rules=by_rules))
    assert isinstance(made, Loadable)
    assert not isinstance(examiner.examine_all([made])[0].outcome, Measurement)

    class Ahead:
        @contextlib.contextmanager
        def compiled(self, wanted: Sequence[tuple[Loadable, Sequence[Question]]]) -> Iterator[list[Path | None]]:
            folder = tmp_path / "compiled"
            (folder / "key").mkdir(parents=True, exist_ok=True)
            (folder / "key" / "kernel.cubin").write_text("")
            yield [folder] * len(wanted)

    examiner._ahead = Ahead()  # type: ignore[assignment]
    (result,) = examiner.examine_all([made])
    assert isinstance(result.outcome, Measurement), result
    assert result.everywhere
    examiner.end_waiting_workers()
