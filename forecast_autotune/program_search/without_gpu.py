"""What boxed workers without a GPU find out of candidates: they call those in Triton on tensors without data, and read those
in CUDA."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.hardware import Hardware
from ..processes.box import Box, boxed_environment, close_box
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError
from ..processes.fork_server import ForkServer, Job
from ..processes.machine import usable_cores
from ..processes.serving import redirect_output
from ..processes.worker import Worker
from ..store.encoding import decode_hardware
from .exam import LOAD_TIMEOUT_S
from .run_folders import RunFolder
from .runners import Loadable
from .task import SearchTask

BESIDE = 8  # workers at most
MEMORY_BYTES = 4 << 30

FINDS_NOTHING = (
    WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError,
    OSError, LookupError, UnicodeError,  # no disk, no such key, no text that can be written
)  # fmt: skip
"""What is raised where a worker finds nothing out."""


def can_tell(task: SearchTask, hardware: Hardware) -> bool:
    """Whether such workers can call a task's candidates: not in C++ and CUDA, nor for a CPU."""
    return task.language == "triton" and hardware.kind != "cpu"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Threads that wait for workers, a folder for those, and what raises as soon as all is to end."""

    threads: ThreadPoolExecutor
    folder: Path
    watch: Callable[[], None]


@contextmanager
def side_by_side(folder: Path) -> Iterator[SideBySide]:
    """Workers beside each other; after Ctrl-C, what they are at is left.

    Raises:
        OSError: there is no folder to be had.
    """
    run = RunFolder(folder)
    ends = threading.Event()

    def watch() -> None:
        if ends.is_set():
            raise WorkersUnavailableError("the search ends")

    threads = ThreadPoolExecutor(min(BESIDE, usable_cores()))
    try:
        yield SideBySide(threads, run.path, watch)
    finally:
        ends.set()
        threads.shutdown()
        run.close()


def start(
    job: Job, made: Sequence[Loadable], folder: Path, hardware: Message, calls: object, *, may_start: bool = False
) -> Worker:
    """A worker that does this job on candidates, with a folder to write to; `calls` are what they are called on.

    Raises:
        WorkersUnavailableError, WorkerDiedError, WorkerRaisedError, WorkerTimeoutError: it does not come up.
    """
    readable = tuple(sorted({path for one in made for path in one.readable}))
    box = Box(folder=str(folder), readable=readable, may_start=may_start, memory_bytes=MEMORY_BYTES)
    request = {
        "box": box.as_json(),
        "modules": list(made[0].modules),
        "hardware": hardware,
        "calls": calls,
        "loads": [one.message for one in made],
    }
    return _server.start(job, request, environment=_environment(), ready_s=LOAD_TIMEOUT_S)


def without_data(value: Any, shift: int = 0) -> Message:
    """An argument as a worker is told of it: of a tensor all but its values, and by how many elements it is shifted."""
    import torch

    if not isinstance(value, torch.Tensor):
        return {"value": value}
    return {
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "dtype": str(value.dtype).removeprefix("torch."),
        "shift": shift,
    }


def _environment() -> dict[str, str]:
    """A box's, without a GPU, in which kernels are those that would be compiled."""
    inherited = {name: value for name, value in boxed_environment().items() if name != "TRITON_INTERPRET"}
    return {**inherited, "CUDA_VISIBLE_DEVICES": ""}


_server = ForkServer(f"{__package__}.description_imports", environment=_environment())


# The worker's side -----------------------------------------------------------------------------------------------------


def begin(channel: Channel, request: Message) -> Hardware:
    """Import what candidates import, and close the box; what they are asked about."""
    for name in request["modules"]:
        importlib.import_module(name)
    box = Box.from_json(request["box"])
    redirect_output(os.path.join(box.folder, "output.log"))
    close_box(box, [channel.fileno()])
    return decode_hardware(request["hardware"], "hardware")


def fakes(values: Sequence[Message], device: str) -> list[Any]:
    """Tensors without data. On `cuda`, as AMD's says too, for some ask whether it is a GPU; it need not be there."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def made(value: Message) -> Any:
        dtype = getattr(torch, value["dtype"])
        shape, stride, shift = value["shape"], value["stride"], value["shift"]
        if not shift:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)
        elements = shift + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        return torch.empty(elements, dtype=dtype, device=device).as_strided(shape, stride, shift)

    with FakeTensorMode(allow_non_fake_inputs=True):
        return [value["value"] if "value" in value else made(value) for value in values]
