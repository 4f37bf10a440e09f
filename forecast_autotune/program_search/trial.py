"""The worker's side of trying a candidate: it loads one into a box and calls it as often as it is told. It judges nothing.

Whatever runs here may have been written by nobody, and may do what it likes with this process. So the caller draws
the inputs, keeps what is expected, reads the clock and looks at the outputs; see `exam.py`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import itertools
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..processes.box import Box, close_box, start_cuda
from ..processes.channel import Channel, Message
from ..processes.extension import Extension
from ..processes.serving import redirect_output

CANDIDATE = "forecast_autotune_candidate"  # the name of its module
SPIN_CYCLES = 300_000  # 0.15 ms on an H200: more than a launch from Python takes


def serve_candidate(channel: Channel, request: Message) -> None:
    """Close the box, load a candidate when told so, and call it. Runs in a worker.

    Messages: `load` loads it. `stage` lays out the sets of arguments that lie in the file handed over first. `run` calls it
    on so many of them, and waits for the device. `collect` copies what it wrote back to the file. `unload` lets go of it,
    before another is loaded.
    """
    box = Box.from_json(request["box"])
    import torch

    for name in request["modules"]:
        importlib.import_module(name)
    file = channel.files[0]
    memory = mmap.mmap(file, request["bytes"])
    redirect_output(os.path.join(box.folder, "output.log"))
    close_box(box, [channel.fileno()])
    torch.set_num_threads(request["threads"])
    device = torch.device(request["device"])
    if device.type == "cuda":
        start_cuda(device)
    pin(memory, request["device"])
    channel.send({"ready": True})
    call: Callable[..., Any] | None = None
    sets: list[_Set] = []
    restore = _as_it_is(request["threads"])
    gc.freeze()  # what was imported is nobody's to free, and looked through at each collection
    while True:
        command = channel.receive()
        try:
            if "load" in command:
                restore()
                call = load(command["load"])
                answer: Message = {"loaded": True}
            elif "unload" in command:
                call, sets = None, []
                _let_go(device)
                answer = {"unloaded": True}
            elif "stage" in command:
                sets = []  # first, for what they hold of the device
                sets = [_Set(memory, values, device) for values in command["stage"]]
                _wait(device)
                answer = {"staged": len(sets)}
            elif "run" in command and call is not None:
                answer = _run(call, sets[: command["run"]], device)
            elif "collect" in command:
                for one in sets:
                    one.collect()
                _wait(device)
                answer = {"collected": True}
            else:
                return
        except UnfitError as err:
            answer = {"unfit": str(err)}
        except Exception as err:
            with contextlib.suppress(Exception):
                print(f"{type(err).__name__}: {err}", flush=True)
            answer = {"raised": f"{type(err).__name__}: {err}"[:4000]}
        channel.send(answer)


def _as_it_is(threads: int) -> Callable[[], None]:
    """What brings the process back to how it is now, as far as a program usually changes it for good."""
    import torch

    environment, path = dict(os.environ), list(sys.path)
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    grad = torch.is_grad_enabled()

    def restore() -> None:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(grad)

    return restore


def _let_go(device: Any) -> None:
    """Free what the last candidate held: a module's functions and globals hold each other."""
    import torch

    for name in [name for name in sys.modules if name.endswith(CANDIDATE)]:
        del sys.modules[name]
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # an illegal access shows at every call after it
        torch.cuda.empty_cache()


class UnfitError(Exception):
    """A call returned something else than the reference does; the message says what."""


class _Set:
    """The arguments of one call: over the shared file itself on the CPU, copies of it on another device.

    For a call with a backward pass, also buffers for its outputs and for the gradients of its inputs, and the gradients of
    its outputs.
    """

    def __init__(self, memory: mmap.mmap, values: Sequence[Message], device: Any) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._parts: dict[str, list[Any]] = {}
        for value in values:
            self._parts.setdefault(value["part"], []).append(self._build(memory, value, device))
        self._tracked = [value["tracked"] for value in values if value["part"] == "returned"]
        self.arguments = tuple(self._parts.get("argument", ()))

    def _build(self, memory: mmap.mmap, value: Message, device: Any) -> Any:
        import torch

        if "offset" not in value:
            return value["value"]
        dtype = getattr(torch, value["dtype"])
        count = value["elements"]
        flat = (
            torch.frombuffer(memory, dtype=dtype, count=count, offset=value["offset"])
            if count
            else torch.empty(0, dtype=dtype)
        )
        if device.type != "cpu":
            copy = torch.empty(count + value["shift"], dtype=dtype, device=device)[value["shift"] :]
            copy.fill_(nothing(dtype)) if value.get("output") else copy.copy_(flat)
            self._pairs.append((flat, copy))
            flat = copy
        return flat.as_strided(value["shape"], value["stride"]).requires_grad_(value.get("requires_grad", False))

    def launch(self, call: Callable[..., Any]) -> None:
        """Call it. Where inputs require gradients, bring what it returns and their gradients to where the caller looks.

        Raises:
            UnfitError: it returned something else than the reference does, or nothing that could be differentiated.
        """
        returned = call(*self.arguments)
        if self._tracked:
            self._differentiate(list(returned) if isinstance(returned, (tuple, list)) else [returned])

    def _differentiate(self, outputs: list[Any]) -> None:
        import torch

        buffers = self._parts["returned"]
        tracked = [*self._tracked, *[False] * len(outputs)]
        seen = [_described(output, needs_grad=needs) for output, needs in zip(outputs, tracked, strict=False)]
        if seen != (expected := [_described(buffer) for buffer in buffers]):
            raise UnfitError(
                f"it returns {', '.join(seen) or 'nothing'}, where the reference returns {', '.join(expected)}"
            )
        for buffer, output in zip(buffers, outputs, strict=True):
            buffer.copy_(output.detach())
        gradients = torch.autograd.grad(
            [output for output, needs in zip(outputs, self._tracked, strict=True) if needs],
            [a for a in self.arguments if isinstance(a, torch.Tensor) and a.requires_grad],
            self._parts["output gradient"],
            allow_unused=True,
            materialize_grads=True,
        )
        for buffer, gradient in zip(self._parts["gradient"], gradients, strict=True):
            buffer.copy_(gradient)
        for buffer, output in zip(self._parts.get("returned again", ()), outputs, strict=False):
            buffer.copy_(output.detach())

    def collect(self) -> None:
        for shared, own in self._pairs:
            shared.copy_(own)


def _described(output: Any, *, needs_grad: bool = False) -> str:
    """What a call returned, in words. A subclass of a tensor is none: it may compute at another time."""
    import torch

    if type(output) is not torch.Tensor:
        return "None" if output is None else type(output).__name__
    lacks = " without a grad_fn" if needs_grad and not output.requires_grad else ""
    return f"{str(output.dtype).removeprefix('torch.')} {list(output.shape)}{lacks}"


def nothing(dtype: Any) -> float:
    """What an output holds before anybody writes to it."""
    import torch

    if dtype is torch.bool:
        return True
    value: float = torch.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).min
    return value


def pin(memory: mmap.mmap, device: str) -> Callable[[], None]:
    """Let a GPU reach shared memory itself, so that a copy takes a fifth of the time; what lets go of it again.

    Where the driver does not, copies are slower, and nothing else changes.
    """
    if device == "cpu":
        return lambda: None
    import torch

    torch.zeros(1, device=device)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    runtime = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(start, len(memory), 0)):
        with contextlib.suppress(RuntimeError):  # the error would be told at the next launch, whose it is not
            torch.zeros(1, device=device)
        return lambda: None
    return lambda: runtime.cudaHostUnregister(start)


def _run(call: Callable[..., Any], sets: Sequence[_Set], device: Any) -> Message:
    if device.type == "cpu":
        for one in sets:
            one.launch(call)
        return {"ran": len(sets)}
    import torch

    # The device is busy until all are queued, so that events tell its time alone.
    torch.cuda._sleep(SPIN_CYCLES * (1 + len(sets)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(sets) + 1)]
    events[0].record()
    for one, event in zip(sets, events[1:], strict=True):
        one.launch(call)
        event.record()
    torch.cuda.synchronize(device)  # all streams: what was moved to another one ends within the caller's clock
    return {
        "ran": len(sets),
        "claimed_us": [1000 * a.elapsed_time(b) for a, b in itertools.pairwise(events)],
    }


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def load(described: Message) -> Callable[..., Any]:
    """What a candidate is called by, its knobs given."""
    if "extension" in described:
        function: Callable[..., Any] = Extension.from_json(described["extension"]).function(described["function"])
        return function
    name = f"{described['package']}.{CANDIDATE}".lstrip(".")
    spec = importlib.util.spec_from_file_location(name, described["path"])
    if spec is None or spec.loader is None:
        raise ImportError(f"{described['path']} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    entry, knobs = getattr(module, described["entry"]), described["knobs"]
    return lambda *arguments: entry(*arguments, **knobs)
