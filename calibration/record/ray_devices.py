"""Recording on the GPUs of a Ray cluster: each workload once for each product, its trace brought here after every round.

A process that dies costs the config that it was timing, as on one machine: its node's work folder keeps the rest. A node
that dies costs the workload it was at, which another device begins anew, for a trace never mixes two devices.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from forecast_autotune.distributed.ray_pool import Member, RayPool, Value
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.processes.machine import usable_cores

from .devices import STARTING_S, Device, workloads
from .worker import Status, Task

RECORDS = (sys.executable, "-m", "calibration.record.worker")
DESCRIBES = (sys.executable, "-m", "forecast_autotune.distributed.suite_process")
DEATHS = 3  # of devices that a workload may cost


class RecordingWorker:
    """Records on the device that this process sees; see `ray_pool.Worker`.

    Args:
        stores: the folder of what is not finished, on this node.
        command: of the process that records.
    """

    def __init__(self, *, stores: str, command: Sequence[str] = RECORDS) -> None:
        self._stores, self._command = stores, command
        self._traces = tempfile.TemporaryDirectory(prefix="traces-")
        self._device: Device | None = None

    def describe(self) -> dict[str, Any]:
        """The device: its kind, its hardware's digest, and its name."""
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        said = subprocess.run(DESCRIBES, check=True, stdout=subprocess.PIPE, text=True).stdout
        described: dict[str, Any] = json.loads(said.strip().rpartition("\n")[2])
        cores = sorted(os.sched_getaffinity(0))[: usable_cores()]
        self._device = Device("cuda:0" if described["device"] == "cuda" else "cpu", cores, self._command)
        return described

    def work(self, task: Value) -> Iterator[dict[str, Any]]:
        """Record a workload; tells its status after each round, with the traces that are new."""
        folder = Path(self._traces.name)
        _keep(folder, task["traces"])
        told: queue.Queue[Status] = queue.Queue()
        wanted = Task(**{**task["task"], "traces": str(folder), "stores": self._stores})
        device = self._device
        if device is None:
            raise InvalidInputError("a worker is asked what its device is before it is given work")

        def record() -> None:
            try:
                told.put(replace(device.record(wanted, lambda _, status: told.put(status)), done=True))
            except Exception as err:  # no process can be started, or it says what nobody understands
                problem = f"{type(err).__name__}: {err}"
                told.put(Status(kernel=wanted.kernel, case=wanted.case, done=True, problem=problem))

        threading.Thread(target=record, daemon=True).start()
        known = dict(task["traces"])
        while True:
            status = told.get()
            new = {name: data for name, data in _traces_of(folder, wanted).items() if known.get(name) != data}
            known.update(new)
            yield {"status": asdict(status), "traces": new}
            if status.done:
                return


def _traces_of(folder: Path, task: Task) -> dict[str, str]:
    """The traces of a workload in a folder, by name, as text."""
    found = folder.glob(f"{task.kernel}.{task.case}.*.jsonl.gz")
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in found}


def _keep(folder: Path, traces: Mapping[str, str]) -> None:
    for name, data in traces.items():
        if Path(name).name != name:
            raise InvalidInputError(f"a trace is named {name!r}, which is no file's name")
        unfinished = folder / f".{name}.unfinished"
        unfinished.write_bytes(base64.b64decode(data))
        unfinished.replace(folder / name)


class RecordingPlan:
    """A `ray_pool.Plan`: each workload once for each product of the cluster, until the time is up."""

    def __init__(self, given: argparse.Namespace, show: Any) -> None:
        self._given, self._show = given, show
        self._until = time.time() + 60 * given.minutes
        self._todo: dict[str, deque[tuple[str, str]]] = {}  # by product
        self._deaths: dict[tuple[str, str, str], int] = {}
        self.results: list[Status] = []

    @property
    def is_done(self) -> bool:
        """See `Plan`."""
        return self._is_over or (bool(self._todo) and not any(self._todo.values()))

    @property
    def _is_over(self) -> bool:
        return bool(time.time() > self._until - STARTING_S)

    def next(self, member: Member) -> Value | None:
        """See `Plan`."""
        product = str(member.what["hardware"])
        if product not in self._todo:
            kind = "cpu" if member.what["device"] == "cpu" else "cuda"
            self._todo[product] = deque(workloads(self._given.workloads, kind, self._given.corpus))
        if not self._todo[product] or self._is_over:
            return None
        kernel, case = self._todo[product].popleft()
        task = Task(
            kernel=kernel, case=case, configs=self._given.configs, until=self._until, traces="", stores="",
            corpus=self._given.corpus,
        )  # fmt: skip
        return {"task": asdict(task), "traces": _traces_of(self._given.to, task)}

    def told(self, member: Member, task: Value, value: Value) -> None:  # noqa: ARG002  # as `Plan` has it
        """See `Plan`."""
        _keep(self._given.to, value["traces"])
        status = Status(**value["status"])
        self._show(str(member), status)
        if status.done:
            self.results.append(status)

    def ended(self, member: Member, task: Value, problem: str) -> None:
        """See `Plan`."""
        if problem:
            status = Status(kernel=task["task"]["kernel"], case=task["task"]["case"], done=True, problem=problem)
            self._show(str(member), status)
            self.results.append(status)

    def lost(self, member: Member, task: Value, how: str) -> None:
        """See `Plan`."""
        named = str(member.what["hardware"]), task["task"]["kernel"], task["task"]["case"]
        self._deaths[named] = self._deaths.get(named, 0) + 1
        if self._deaths[named] == DEATHS:
            self.ended(member, task, f"{DEATHS} devices died of it, the last one: {how}")
        else:
            self._todo[named[0]].appendleft(named[1:])


def record_on_ray(given: argparse.Namespace, show: Any) -> list[Status]:
    """Record everything asked for on a cluster, or as much as there is time for; what became of each workload."""
    plan = RecordingPlan(given, show)
    arguments = {"stores": str(given.work), "command": list(RECORDS)}

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with RayPool(given.ray, "calibration.record.ray_devices:RecordingWorker", arguments, say=say) as pool:
        pool.run(plan)
    return plan.results
