"""Recording: what is measured, kept at once, gone on with, and never mixed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toy_recording  # noqa: E402

from calibration.record import devices, worker  # noqa: E402
from calibration.record.devices import Device, Plan, workloads  # noqa: E402
from calibration.record.worker import Recorder, Status, Task, beginning, groups, recordable  # noqa: E402
from forecast_autotune.core.outcome import Failure, Measurement  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.evaluation.traces import read_recorded, read_trace  # noqa: E402
from forecast_autotune.measure.checks import check_name  # noqa: E402

TOY = Path(toy_recording.__file__)


@pytest.fixture(autouse=True)
def toy_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "recordable", lambda kind, corpus: {"toy": toy_recording.TOY})


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(
        kernel="toy", case="small", configs=15, until=time.time() + 120,
        traces=str(tmp_path / "traces"), stores=str(tmp_path / "stores"),
    )  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The CPU, and the process that records on it."""
    paths = [str(TOY.parents[1]), str(TOY.parent), *sys.path]
    monkeypatch.setenv("PYTHONPATH", ":".join(p for p in paths if p))
    found = Device("cpu", [0], (sys.executable, str(TOY)))
    yield found
    found.stop()


def trace_of(task: Task) -> Path:
    (path,) = Path(task.traces).glob(f"toy.{task.case}.*.jsonl.gz")
    return path


def test_a_trace_holds_what_its_job_says_of_configs_without_compiling(task: Task) -> None:
    recorder = Recorder(task, "cpu")
    args = recorder.inputs()
    recorder.work = recorder.kernel.work(*args)
    tuned = worker.front_door(recorder.kernel, beginning(recorder.groups, 4), "0").tuned  # type: ignore[attr-defined]
    job = tuned.job(args)
    first, second, third, _ = job.space
    told = [{"programs": 3.0}, {}, {"programs": 5.0}, {"programs": 7.0}]
    outcomes = {config: Measurement(samples_us=(1.0,)) for config in (first, second, third)}
    seen = SimpleNamespace(job=lambda _: replace(job, static_features=told), outcomes=lambda _: outcomes)
    recorder.written(recorder.recording_of(seen, args), done=True)
    assert read_trace(trace_of(task)).static_features == {first: {"programs": 3.0}, third: {"programs": 5.0}}


def test_every_config_is_measured_and_the_trace_holds_what_replaying_needs(task: Task) -> None:
    *_, told = Recorder(task, "cpu").record()
    found, recorded = read_trace(trace_of(task)), read_recorded(trace_of(task))
    assert (told.done, told.tried, told.of, told.failed, told.problem) == (True, 15, 15, 2, "")
    assert len(found.outcomes) == 15
    assert dict(found.default.knobs) == {"variant": "at_once", "WAIT": 6, "PARTS": None}
    assert "to.copy_(mine" in found.workload.program.source
    failures = {c["PARTS"]: o for c, o in found.outcomes.items() if isinstance(o, Failure)}
    assert {parts: failure.stage for parts, failure in failures.items()} == {3: "check", 7: "launch"}
    assert "7 parts are no use here" in failures[7].message
    times = {
        c["WAIT"]: min(o.samples_us) for c, o in found.outcomes.items() if isinstance(o, Measurement) and c["WAIT"]
    }
    assert set(times) == set(range(1, 9))
    # A clock takes off what timing itself costs, which a busy machine makes it think too high.
    assert all(least_us >= 900 * waited for waited, least_us in times.items())
    assert (recorded["kernel"], recorded["case"], recorded["space"], recorded["flops"]) == ("toy", "small", 15, 840.0)
    assert recorded["agrees_with_reference"] is True


def test_a_second_pass_over_a_tenth_says_how_far_the_first_can_be_repeated(task: Task) -> None:
    *_, told = Recorder(task, "cpu").record()
    found = read_trace(trace_of(task))
    again = read_recorded(trace_of(task))["second_pass"]
    assert told.repeats == len(again) >= 2
    assert 0 <= told.repeat_error < 1
    for each in again:
        first = found.outcomes[worker.Config(each["config"])]
        assert tuple(each["samples_us"]) != first.samples_us
        assert min(each["samples_us"]) >= 900 * (each["config"]["WAIT"] or each["config"]["PARTS"])


def test_a_shorter_sample_begins_a_longer_one_and_is_fair_to_every_variant() -> None:
    whole = groups(toy_recording.TOY)
    assert [len(group) for group in whole] == [8, 7]
    assert [group[0].knobs for group in whole] == [{"WAIT": 6}, {"PARTS": 2}]
    assert [len(group) for group in beginning(whole, 6)] == [3, 3]
    assert [len(group) for group in beginning(whole, 1)] == [1, 1]
    assert all(group == longer[: len(group)] for group, longer in zip(beginning(whole, 6), whole, strict=True))
    assert beginning(whole, 100) == whole
    assert groups(toy_recording.TOY) == whole


def test_rounds_grow_and_a_recording_whose_time_is_up_leaves_what_it_has(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "FIRST_ROUND", 3)
    recorder = Recorder(task, "cpu")
    rounds = recorder.record()
    assert (next(rounds).tried, next(rounds).tried) == (3, 6)
    assert len(read_trace(trace_of(task)).outcomes) == 6
    recorder.task = replace(task, until=time.time())
    (last,) = rounds
    (none,) = Recorder(replace(task, case="large", until=time.time()), "cpu").record()
    assert (none.done, none.tried, none.problem) == (True, 0, "no time was left")
    assert (last.done, last.tried, last.problem) == (True, 6, "")
    assert len(read_trace(trace_of(task)).outcomes) == 6


def test_what_was_measured_before_is_not_measured_again(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    list(Recorder(replace(task, configs=6), "cpu").record())
    before = read_trace(trace_of(task)).outcomes
    list(Recorder(task, "cpu").record())
    after = read_trace(trace_of(task)).outcomes
    assert len(after) == 15
    ran = {c: o for c, o in before.items() if isinstance(o, Measurement)}
    # What is known is brought to the second run's clock by one factor; its default and its finalists are timed anew.
    factors = Counter(round(after[c].median_us / o.median_us, 3) for c, o in ran.items())
    assert max(factors.values()) >= len(ran) - 4


@pytest.mark.thorough
def test_a_longer_trace_is_not_replaced_before_there_is_as_much(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    list(Recorder(replace(task, configs=9), "cpu").record())
    before = read_trace(trace_of(task)).outcomes
    monkeypatch.setattr(worker, "device_identity", lambda _: "another")
    list(Recorder(replace(task, configs=6, stores=f"{task.stores}2"), "cpu").record())
    assert read_trace(trace_of(task)).outcomes == before
    list(Recorder(replace(task, configs=12, stores=f"{task.stores}2"), "cpu").record())
    assert read_recorded(trace_of(task))["device"] == worker.digest("another")[:12]
    assert len(read_trace(trace_of(task)).outcomes) == 12


@pytest.mark.thorough
def test_a_trace_of_another_device_is_kept_if_whole_and_restarted_if_not(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(Recorder(replace(task, configs=6), "cpu").record())
    monkeypatch.setattr(worker, "device_identity", lambda _: "another")
    list(Recorder(task, "cpu").record())
    recorded, mine = read_recorded(trace_of(task)), read_trace(trace_of(task))
    assert recorded["device"] == worker.digest("another")[:12]
    assert len(mine.outcomes) == 15
    assert len(list(Path(task.stores).iterdir())) == 4  # two devices, two passes each
    monkeypatch.setattr(worker, "device_identity", lambda _: "a third")
    (told,) = Recorder(task, "cpu").record()
    assert (told.done, told.tried) == (True, 15)
    assert read_trace(trace_of(task)).outcomes == mine.outcomes


def test_a_process_that_is_killed_half_way_is_followed_by_one_that_goes_on(
    task: Task, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = tmp_path / "died"
    monkeypatch.setenv("TOY_DIES_ONCE", str(died))
    rounds: list[Status] = []
    told = device.record(task, lambda _, each: rounds.append(each))
    assert died.exists()
    assert (told.done, told.tried, told.failed, told.problem) == (True, 15, 2, "")
    parts = {c["PARTS"]: o for c, o in read_trace(trace_of(task)).outcomes.items()}
    assert isinstance(parts[5], Measurement)


@pytest.mark.thorough
def test_a_config_that_ends_every_process_is_left_out_and_reported(
    task: Task, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_DIES", "1")
    told = device.record(task, print)
    assert (told.done, told.tried, told.failed, told.problem) == (True, 15, 3, "")
    (lethal,) = (o for c, o in read_trace(trace_of(task)).outcomes.items() if c["PARTS"] == 5)
    assert isinstance(lethal, Failure)
    assert lethal.crashed


def test_a_config_that_was_once_cut_off_is_tried_again(task: Task) -> None:
    recorder = Recorder(replace(task, configs=4), "cpu")
    recorder.trying.parent.mkdir(parents=True)
    line = json.dumps({"variant": "in_parts", "PARTS": 2, "WAIT": None})
    recorder.trying.write_text(line)
    *_, told = recorder.record()
    assert (told.tried, recorder.lethal) == (4, frozenset())
    recorder.trying.write_text(f"{line}\n{line}")
    recorder.leave_out_lethal()
    assert [len(group) for group in recorder.groups] == [8, 6]
    assert [dict(c.knobs) for c in recorder.lethal] == [json.loads(line)]


def test_a_device_that_is_closed_starts_no_process_again(task: Task, device: Device) -> None:
    told: list[Status] = []
    recording_it = threading.Thread(target=lambda: told.append(device.record(task, print)))
    recording_it.start()
    deadline = time.time() + 240
    while device._process is None and time.time() < deadline:
        time.sleep(0.01)
    device.close()
    recording_it.join(120)
    assert [t.problem for t in told] == ["stopped"]
    assert device._process is None


def test_a_process_that_hangs_is_given_up_soon_after_its_time(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "GRACE_S", 0.2)
    hangs = Device("cpu", [0], (sys.executable, "-c", "import time; time.sleep(600)"))
    began = time.time()
    told = hangs.record(replace(task, until=began + 0.3), print)
    assert "the process that recorded it ended" in told.problem
    assert time.time() - began < 60


def test_a_device_is_the_one_that_is_visible_at_its_place(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    says = (
        "import json, os; task = json.loads(input()); "
        "print(json.dumps({'kernel': '', 'case': '', 'done': True, 'problem': os.environ['CUDA_VISIBLE_DEVICES']}))"
    )
    for visible, which in (("", "1"), ("4,GPU-ab", "GPU-ab")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        second = Device("cuda:1", [0], (sys.executable, "-c", says))
        assert second.record(task, print).problem == which
        second.close()


def test_what_cannot_be_started_is_a_problem_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(Device, "_started", lambda device: subprocess.Popen(["/nothing/there"]).stdin)
    given = argparse.Namespace(
        workloads=["gemm/odd"],
        devices="cpu",
        minutes=1.0,
        configs=2,
        to=tmp_path,
        work=tmp_path / "work",
        corpus="suite",
    )
    (told,) = devices.record(given)
    assert told.problem.startswith("FileNotFoundError: ")


@pytest.mark.thorough
def test_a_torn_or_outdated_trace_or_one_of_other_hardware_is_restarted(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(task, configs=2)
    list(Recorder(short, "cpu").record())
    monkeypatch.setattr(worker, "machine_of", lambda _: "another")
    path = trace_of(task)
    whole = path.read_bytes()
    assert len(list(Recorder(short, "cpu").record())) == 1, "it is kept as it is"
    path.write_bytes(whole[: len(whole) // 2])
    assert len(list(Recorder(short, "cpu").record())) > 1
    assert read_recorded(path)["device"] == "another"
    found = read_trace(path)
    older = replace(found.workload, program=replace(found.workload.program, source="older"))
    worker.write_trace(replace(found, workload=older), path, recorded={"device": "a third"})
    assert len(list(Recorder(short, "cpu").record())) > 1
    assert read_trace(path).workload.program.source != "older"
    path.rename(path.with_name("toy.small.Other_1.jsonl.gz"))
    monkeypatch.setattr(worker, "machine_of", lambda _: "a fourth")
    assert len(list(Recorder(short, "cpu").record())) > 1


def test_two_recordings_do_not_time_on_one_device_at_once(task: Task, device: Device) -> None:
    with worker.alone(Path(task.stores), "cpu"):
        assert "another process is recording on cpu" in device.record(task, print).problem
    assert device.record(replace(task, configs=2), print).problem == ""


def test_devices_without_an_identity_are_distinguished_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "device_identity", lambda _: "")
    found = set()
    for visible in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found.add(worker.machine_of("cuda:0"))
    assert len(found) == 2


def test_what_was_found_under_other_tolerances_does_not_count() -> None:
    names = {check_name(worker.within([pair])) for pair in ((1e-2, 1e-3), (1e-2, 1e-4), (1e-2, 1e-4))}
    assert len(names) == 2


@pytest.mark.thorough
def test_a_process_that_always_dies_is_a_problem_of_that_workload_alone(
    task: Task, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "ATTEMPTS", 1)
    ends = Device("cpu", [0], (sys.executable, "-c", "raise SystemExit(3)"))
    assert "ended (exit status" in ends.record(task, print).problem
    assert device.record(replace(task, configs=2), print).problem == ""


@pytest.mark.thorough
def test_short_memory_is_reported_and_the_process_goes_on(task: Task, device: Device) -> None:
    told = device.record(replace(task, case="short"), print)
    assert told.problem.startswith("memory is short: OutOfMemoryError: CUDA out of memory")
    assert device.record(replace(task, configs=2), print).tried == 2


def test_first_cases_come_first_and_a_kernel_stays_with_its_device() -> None:
    todo = workloads([], "cpu")
    kinds = [name for name, _ in todo]
    assert kinds[: len(set(kinds))] == list(dict.fromkeys(kinds))
    plan = Plan([("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("a", "3")])
    assert [plan.next(d) for d in ("x", "y", "x", "x", "y", "y")] == [
        ("a", "1"), ("b", "1"), ("a", "2"), ("a", "3"), ("b", "2"), None,
    ]  # fmt: skip
    plan = Plan([("a", "1"), ("a", "2")])
    assert [plan.next("x"), plan.next("y")] == [("a", "1"), ("a", "2")]


def test_everything_of_the_suite_can_be_recorded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert {"matmul", "softmax", "trimul", "cuda_gemm"} <= set(recordable("cuda"))
    assert set(recordable("cpu")) == {"gemm", "conv2d"}
    with pytest.raises(InvalidInputError, match="no kernel 'gem' can be recorded on cpu: there are gemm, conv2d"):
        workloads(["gem"], "cpu")
    with pytest.raises(InvalidInputError, match="gemm has no case 'round': it has square"):
        workloads(["gemm/round"], "cpu")
    assert workloads(["conv2d/odd", "gemm/odd", "gemm/tall"], "cpu") == [
        ("conv2d", "odd"), ("gemm", "odd"), ("gemm", "tall"),
    ]  # fmt: skip


def test_what_does_not_exist_is_named_on_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folders = ["--to", str(tmp_path / "t"), "--work", str(tmp_path / "w")]
    assert devices.main(["nothing", *folders]) == 2
    assert capsys.readouterr().err.startswith("record: no kernel 'nothing'")
    assert devices.main(["--devices", "cuda:77", *folders]) == 2
    assert "there is no device 'cuda:77' here: there are" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert devices.main(["--to", str(tmp_path / "file"), "--work", str(tmp_path / "w")]) == 2


def test_the_process_answers_in_lines_whatever_kernels_print(task: Task) -> None:
    paths = ":".join([str(TOY.parents[1]), str(TOY.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(TOY), "cpu"], input=json.dumps(asdict(replace(task, configs=2))) + "\n",
        capture_output=True, text=True, env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [Status(**json.loads(line)).done for line in done.stdout.splitlines()] == [False, True]
