"""What a Triton candidate launches, described before it is compiled: it is called on tensors without data, in a box.

A worker for each text loads it, notes the launches that it would make under each of its configs, and describes them as those
of a decorated kernel are (`features/launch_features.py`). It has no GPU, and the answer is numbers by name: a candidate that
makes up its own misleads forecasts, and nothing else.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.hardware import Hardware
from ..core.outcome import Failure
from ..processes.box import Box, boxed_environment, close_box
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError
from ..processes.fork_server import ForkServer
from ..processes.machine import usable_cores
from ..processes.serving import redirect_output
from ..store.encoding import decode_hardware, encode_hardware
from .candidate import Candidate
from .exam import LOAD_TIMEOUT_S
from .examiner import Loadable
from .run_folders import RunFolder, remove
from .runners import PythonPreparer
from .task import SearchTask
from .trial import load

log = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 20.0  # for all configs of a text; one takes 0.05 s
MEMORY_BYTES = 4 << 30
BESIDE = 8  # workers at most
MOST = 1e30  # of any number: means and ratios of several are numbers still

Features = Mapping[str, float]


def describer_of(task: SearchTask, hardware: Hardware, folder: Path) -> CandidateDescriber | None:
    """What describes a task's candidates; None where nothing can: in C++ and CUDA, and on a CPU."""
    return CandidateDescriber(task, hardware, folder) if task.language == "triton" and hardware.kind != "cpu" else None


class CandidateDescriber:
    """Describes candidates of one task on one kind of hardware, each once.

    Args:
        task: what is searched for, in Triton.
        hardware: what is described for.
        folder: where the texts are written, and workers get a folder each.
    """

    def __init__(self, task: SearchTask, hardware: Hardware, folder: Path) -> None:
        self._folder = folder
        self._preparer = PythonPreparer(task, folder)
        self._calls = {
            name: [_without_data(value) for value in task.make_inputs(sizes, 0, task.device)]
            for name, sizes in task.sizes.items()
        }
        self._hardware = encode_hardware(hardware)
        self._known: dict[str, Mapping[str, Features]] = {}  # by digest

    def describe(self, candidates: Sequence[Candidate]) -> list[Mapping[str, Features]]:
        """Of each candidate the features of its launches by the name of a size; of a size where it raises, none."""
        texts: dict[str, list[Candidate]] = {}
        for one in {c.digest: c for c in candidates if c.digest not in self._known}.values():
            texts.setdefault(one.source_digest, []).append(one)
        if texts:
            self._learn(list(texts.values()))
        return [self._known.get(one.digest, {}) for one in candidates]

    def _learn(self, texts: Sequence[Sequence[Candidate]]) -> None:
        """Have candidates described, each text's by a worker of its own."""
        try:
            run = RunFolder(self._folder)
        except OSError as err:
            log.warning("candidates are forecast without descriptions: %s", err)
            return
        ends = threading.Event()
        pool = ThreadPoolExecutor(min(BESIDE, usable_cores()))
        try:
            for group, told in zip(
                texts, pool.map(lambda group: self._told(group, run.path, ends), texts), strict=True
            ):
                self._known |= {one.digest: each for one, each in zip(group, told, strict=True)}
        finally:
            ends.set()  # after Ctrl-C, what is being described is left
            pool.shutdown()
            run.close()

    def _told(self, group: Sequence[Candidate], run: Path, ends: threading.Event) -> list[Mapping[str, Features]]:
        """What a worker says of the configs of one text; nothing of those that it ends at."""
        told: list[Mapping[str, Features]] = [{} for _ in group]
        try:
            made = [self._preparer.prepare(one) for one in group]
            folder = Path(tempfile.mkdtemp(prefix="description-", dir=run))
            try:
                ready = {i: one for i, one in enumerate(made) if not isinstance(one, Failure)}
                for i, described in zip(ready, self._described(list(ready.values()), folder, ends), strict=True):
                    told[i] = described
            finally:
                remove(folder)
        except (WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError) as err:
            log.info("a candidate is forecast without a description: %s", err)
        except (OSError, LookupError, UnicodeError) as err:  # no disk, no such key, no text that can be written
            log.info("a candidate is forecast without a description: %r", err)
        return told

    def _described(
        self, made: Sequence[Loadable], folder: Path, ends: threading.Event
    ) -> Iterator[Mapping[str, Features]]:
        """Each as it is described by a worker; raises where that ends or takes too long."""
        if not made:
            return
        readable = {path for one in made for path in one.readable}
        request = {
            "box": Box(folder=str(folder), readable=tuple(sorted(readable)), memory_bytes=MEMORY_BYTES).as_json(),
            "modules": list(made[0].modules),
            "hardware": self._hardware,
            "calls": self._calls,
            "loads": [one.message for one in made],
        }

        def watch() -> None:
            if ends.is_set():
                raise WorkersUnavailableError("the search ends")

        with _server.start(serve_descriptions, request, environment=_environment(), ready_s=LOAD_TIMEOUT_S) as worker:
            until = time.monotonic() + DESCRIBE_TIMEOUT_S
            for _ in made:
                yield _checked(worker.receive(max(0.0, until - time.monotonic()), watch)["described"], self._calls)


def over_sizes(described: Mapping[str, Features], sizes: Sequence[str]) -> Features:
    """One description of a candidate at several sizes: of each number its geometric mean, as times are; the mean of one that
    may be 0. Empty where a size is not described."""
    if not all(described.get(name) for name in sizes):
        return {}
    each = [described[name] for name in sizes]
    return {name: _mean([one[name] for one in each]) for name in each[0] if all(name in one for one in each)}


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values)


def _checked(described: Any, calls: Mapping[str, Any]) -> Mapping[str, Features]:
    """An answer, as far as it has the form of one: a candidate may have written it."""
    if not isinstance(described, dict):
        return {}
    return {
        size: {
            name: float(value)
            for name, value in features.items()
            if isinstance(name, str) and type(value) in (int, float) and 0 <= value <= MOST
        }
        for size, features in described.items()
        if size in calls and isinstance(features, dict)
    }


def _without_data(value: Any) -> Message:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"value": value}
    return {
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "dtype": str(value.dtype).removeprefix("torch."),
    }


def _environment() -> dict[str, str]:
    """A box's, without a GPU, in which kernels are those that would be compiled."""
    environment = {name: value for name, value in boxed_environment().items() if name != "TRITON_INTERPRET"}
    return {**environment, "CUDA_VISIBLE_DEVICES": ""}


_server = ForkServer(f"{__package__}.description_imports", environment=_environment())


# The worker's side -----------------------------------------------------------------------------------------------------


def serve_descriptions(channel: Channel, request: Message) -> None:
    """Close the box, load what is asked for, and describe its launches. Runs in a worker."""
    import importlib

    from ..compilers.triton_launches import launches, static_features
    from ..frontends.triton.simulated_driver import rehearsal

    for name in request["modules"]:
        importlib.import_module(name)
    box = Box.from_json(request["box"])
    redirect_output(os.path.join(box.folder, "output.log"))
    close_box(box, [channel.fileno()])
    hardware = decode_hardware(request["hardware"], "hardware")

    def features(call: Callable[..., Any], values: Sequence[Message], device: str = "cuda") -> Features:
        try:
            return static_features(launches(call, _fakes(values, device), {}), hardware)
        except Exception:  # it refuses the size, or needs data to tell
            log.debug("a call is not described", exc_info=True)
            return {}

    channel.send({"ready": True})
    for message in request["loads"]:
        described: dict[str, Features] = {}
        try:
            call = load(message)
        except Exception:  # its check will say so
            log.debug("%s does not load", message["path"], exc_info=True)
        else:
            with rehearsal(hardware=hardware):  # some ask their device how large it is
                described = {
                    name: features(call, values) or features(call, values, "cpu")
                    for name, values in request["calls"].items()
                }
        channel.send({"described": described})


def _fakes(values: Sequence[Message], device: str) -> list[Any]:
    """Tensors without data. On `cuda`, as AMD's says too, for some ask whether it is a GPU; it need not be there."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return [
            value["value"]
            if "value" in value
            else torch.empty_strided(
                value["shape"], value["stride"], dtype=getattr(torch, value["dtype"]), device=device
            )
            for value in values
        ]
