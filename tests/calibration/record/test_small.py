"""Recording kernels of one function: the whole list as users call it, compact, gone on with, and described again."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import small_kernels  # noqa: E402
from rehearsed import own_triton_cache  # noqa: E402

from calibration import paths  # noqa: E402
from calibration.record import devices, worker  # noqa: E402
from calibration.record.describe import describe_trace  # noqa: E402
from calibration.record.measuring import KEPT_SAMPLES, shortened  # noqa: E402
from calibration.record.single_kernel import SingleKernel  # noqa: E402
from calibration.record.worker import Recorder, Task  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Failure, Measurement  # noqa: E402
from forecast_autotune.evaluation.traces import read_recorded, read_trace  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import Rehearsal, rehearsal  # noqa: E402

DROPOUT = next(kernel for kernel in small_kernels() if kernel.name == "dropout_add")
SMALL = next(case for case in DROPOUT.cases if case.name == "small")


def time_us(config: Config) -> float:
    return 40_000.0 / config["num_warps"] + config["BLOCK"]


TIMES = {config: time_us(config) for config in DROPOUT.space}


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """`dropout_add` at its small case, under a driver that computes nothing."""
    untouched = replace(DROPOUT, reference=lambda call: call.outs)
    monkeypatch.setattr(worker, "recordable", lambda kind, corpus: {"dropout_add": SingleKernel(untouched)})
    return Task(
        kernel="dropout_add", case="small", configs=256, until=time.time() + 120, corpus="small",
        traces=str(tmp_path / "traces"), stores=str(tmp_path / "stores"),
    )  # fmt: skip


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Rehearsal]:
    with own_triton_cache(tmp_path / "triton"), rehearsal("H200", TIMES) as device:
        yield device


def trace_of(task: Task) -> Path:
    (path,) = Path(task.traces).iterdir()
    return path


@pytest.mark.usefixtures("on")
def test_the_whole_list_is_recorded_as_the_kernels_users_call_it(task: Task) -> None:
    *_, last = Recorder(task, "cpu").record()
    assert (last.done, last.tried, last.of, last.failed, last.problem) == (True, 12, 12, 0, "")
    found, recorded = read_trace(trace_of(task)), read_recorded(trace_of(task))
    assert trace_of(task).name == "dropout_add.small.rehearsed_NVIDIA_H200.jsonl.gz"
    assert found.workload.program.name == "kernel_suite.small.dropout_add.dropout_add"
    assert (found.workload.check, found.workload.key["n"]) == ("", 2**17)
    for config, outcome in found.outcomes.items():
        asked = Config({name: config[name] for name in ("BLOCK", "num_warps")})
        assert isinstance(outcome, Measurement)
        assert outcome.median_us == pytest.approx(time_us(asked), rel=1e-3)
    assert [c["BLOCK"] for c in found.outcomes] == [c["BLOCK"] for c in DROPOUT.space], "in the order of the list"
    assert found.static_features.keys() == found.outcomes.keys()
    assert (recorded["corpus"], recorded["kernel"], recorded["case"], recorded["space"]) == (
        "small", "dropout_add", "small", 12,
    )  # fmt: skip


@pytest.mark.usefixtures("on")
def test_a_wrong_result_is_a_problem_and_leaves_no_trace(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(DROPOUT, reference=lambda call: tuple(torch.zeros_like(out) for out in call.outs))
    monkeypatch.setattr(worker, "recordable", lambda kind, corpus: {"dropout_add": SingleKernel(wrong)})
    *_, last = Recorder(task, "cpu").record()
    assert last.problem.startswith("dropout_add is off by ")
    assert not Path(task.traces).exists()


def test_measured_configs_are_not_launched_again_nor_lethal_ones_at_all(task: Task, on: Rehearsal) -> None:
    list(Recorder(task, "cpu").record())
    before = {config["num_warps"]: count for (_, config), count in on.launches.items() if config["BLOCK"] == 4096}
    recorder = Recorder(task, "cpu")
    lethal = next(c for c in read_trace(trace_of(task)).outcomes if (c["BLOCK"], c["num_warps"]) == (512, 2))
    recorder.trying.write_text("\n".join([json.dumps(dict(lethal.knobs))] * 2))
    *_, last = recorder.record()
    after = {config["num_warps"]: count for (_, config), count in on.launches.items() if config["BLOCK"] == 4096}
    assert (before.keys(), after[2]) == ({2, 4, 8}, before[2]), "what is far from the best is not timed again"
    assert (last.tried, last.failed) == (12, 1)
    outcome = read_trace(trace_of(task)).outcomes[lethal]
    assert isinstance(outcome, Failure)
    assert outcome.crashed


@pytest.mark.usefixtures("on")
def test_a_trace_that_is_described_again_says_what_it_said(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    list(Recorder(task, "cpu").record())
    path = trace_of(task)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    bare = [line.partition(',"described":{')[0].removesuffix("}") + "}" for line in lines[1:]]
    path.write_bytes(gzip.compress("\n".join([lines[0], *bare, ""]).encode()))
    monkeypatch.undo()
    assert describe_trace(path).described == 12
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == lines


def test_samples_in_a_trace_are_few_and_tell_the_median_of_all() -> None:
    outcome = shortened(Measurement(samples_us=tuple(100.0 + i / 7 for i in range(150)), run_s=0.12345))
    assert isinstance(outcome, Measurement)
    assert len(outcome.samples_us) == KEPT_SAMPLES
    assert all(len(str(us).replace(".", "")) <= 4 for us in outcome.samples_us)
    assert outcome.median_us == pytest.approx(100.0 + 149 / 14, rel=0.01)
    assert shortened(Measurement(samples_us=(3.0, 4.0))).samples_us == (3.0, 4.0)  # type: ignore[union-attr]


def test_each_corpus_has_its_folder_and_evaluations_take_the_suite_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.x.GPU", "small/b.x.GPU", "packages/p/c.x.GPU"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.jsonl.gz").touch()
    monkeypatch.setattr(
        paths, "CORPORA", {n: tmp_path / p for n, p in (("suite", ""), ("small", "small"), ("packages", "packages"))}
    )
    names: dict[tuple[str, ...], list[str]] = {
        corpora: [p.name[0] for p in paths.traces(*corpora)] for corpora in ((), ("small",), ("packages", "suite"))
    }
    assert names == {(): ["a"], ("small",): ["b"], ("packages", "suite"): ["c", "a"]}


def test_small_kernels_need_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--corpus", "small", "--devices", "cpu", "--to", str(tmp_path), "--work", str(tmp_path / "work")]
    assert devices.main(given) == 2
    assert "no kernel of the corpus small can be recorded on cpu: it needs a GPU" in capsys.readouterr().err
