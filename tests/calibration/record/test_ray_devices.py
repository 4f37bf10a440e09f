"""Recording on a cluster: a worker and a plan, handed to each other as `RayPool` hands them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toy_recording  # noqa: E402

from calibration.record import devices, ray_devices, worker  # noqa: E402
from calibration.record.ray_devices import DEATHS, RecordingPlan, RecordingWorker  # noqa: E402
from forecast_autotune.distributed.ray_pool import Member  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.evaluation.traces import read_trace  # noqa: E402

TOY = Path(toy_recording.__file__)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    for module in (worker, devices):
        monkeypatch.setattr(module, "recordable", lambda kind, corpus="suite": {"toy": toy_recording.TOY})
    monkeypatch.setenv("PYTHONPATH", "")  # put back afterwards: a worker sets it
    monkeypatch.setattr(sys, "path", [str(TOY.parents[1]), str(TOY.parent), *sys.path])
    traces = tmp_path / "traces"
    traces.mkdir()
    return argparse.Namespace(
        workloads=["toy/small"], corpus="suite", configs=15, minutes=2.0, to=traces, work=tmp_path / "work", ray="local"
    )


@pytest.fixture
def recording(given: argparse.Namespace) -> Iterator[tuple[RecordingWorker, Member]]:
    made = RecordingWorker(stores=str(given.work), command=(sys.executable, str(TOY)))
    member = Member("node", "host", 0, None)
    member.what = made.describe()
    yield made, member
    assert made._device is not None
    made._device.close()
    made._traces.cleanup()


def done(plan: RecordingPlan, made: RecordingWorker, member: Member) -> Any:
    task = plan.next(member)
    assert task is not None
    for value in made.work(task):
        plan.told(member, task, value)
    plan.ended(member, task, "")
    return plan.results[-1]


def test_a_workload_is_recorded_and_its_trace_is_here(
    given: argparse.Namespace, recording: tuple[RecordingWorker, Member]
) -> None:
    made, member = recording
    shown: list[str] = []
    plan = RecordingPlan(given, lambda who, status: shown.append(f"{who} {status.kernel}"))
    status = done(plan, made, member)
    assert (status.problem, status.done, shown[-1]) == ("", True, "host/0 toy")
    (path,) = given.to.glob("toy.small.*.jsonl.gz")
    assert len(read_trace(path).outcomes) == status.tried
    assert plan.is_done
    again = done(RecordingPlan(given, lambda *_: None), made, member)
    assert (again.tried, again.problem) == (status.tried, "")


def test_a_workload_that_ends_device_after_device_is_given_up(given: argparse.Namespace) -> None:
    plan, member = RecordingPlan(given, lambda *_: None), Member("node", "host", 0, None)
    member.what = {"hardware": "0" * 32, "device": "cpu", "name": "CPU"}
    for _ in range(DEATHS):
        assert not plan.is_done or not plan.results
        task = plan.next(member)
        assert task is not None
        plan.lost(member, task, "the node died")
    assert plan.is_done
    (status,) = plan.results
    assert "3 devices died of it" in status.problem


def test_a_trace_with_a_path_for_a_name_is_refused(given: argparse.Namespace) -> None:
    with pytest.raises(InvalidInputError, match="no file's name"):
        ray_devices._keep(given.to, {"../escape.jsonl.gz": ""})
    assert devices.main(["--ray", "local", "--devices", "cpu", "--to", str(given.to)]) == 2
