"""Timing compiled configs of a Triton kernel in a child process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ...compilers.triton_source import Source, compile_here, files_in_cache
from ...core.outcome import Failure, Measurement
from ...errors import AutotuneError
from ...measure.arguments import Arguments, Snapshot
from ...measure.clocks import Clock, EventClock, Launch, cuda_clock
from ...measure.isolated import serve_trials
from ...processes.channel import Channel, Message
from ...processes.serving import redirect_output
from ...store.encoding import decode_hardware, decode_outcome, encode_hardware, encode_outcome
from .compiled_launch import TritonBinary
from .simulated_driver import current_rehearsal, rehearsal


def describe_trial(made: Source, grid: Any, copy: Snapshot, zeroed: Sequence[Any]) -> Message:
    """The message by which a child loads a config: its binary, its launch's values, and the tensors to set to zero.

    Raises:
        UnportableError: a value cannot be handed on.
    """
    files = files_in_cache(made)
    if files is None:
        compile_here(made)
        files = files_in_cache(made)
    if files is None:
        raise AutotuneError(f"{made.source.name}: Triton's cache does not hold what was just compiled")
    sizes = tuple(grid(made.bound) if callable(grid) else grid)
    types = made.source.signature
    binary = TritonBinary(
        name=made.source.name,
        hash=made.hash,
        files=files,
        signature=types,
        constants=[(list(place), _plain(value)) for place, value in made.source.constants.items()],
        grid=[int(n) for n in (*sizes, 1, 1)[:3]],
    )
    values = [_plain(v) if types.get(n) == "constexpr" else v for n, v in made.bound.items()]
    described: Message = {
        "binary": binary.as_json(),
        "values": copy.describe(values),
        "zeroed": copy.describe(zeroed),
    }
    if (simulated := current_rehearsal()) is not None:
        described["plays"] = encode_outcome(
            simulated.recorded.outcome(made.source.name, {**made.options, **made.bound})[1]
        )
    return described


def trials_request(device: int, *, timing: str, timed_s: float, warmup_s: float) -> Message:
    """The first message to a child: the device, and how to time there."""
    simulated = current_rehearsal()
    return {
        "device": device,
        "timing": timing,
        "timed_s": timed_s,
        "warmup_s": warmup_s,
        "rehearsed": None if simulated is None else encode_hardware(simulated.sheet),
    }


def triton_trials(channel: Channel, request: Message) -> None:
    """Time the configs that the caller names. Runs in a worker, which needs no source of the kernel."""
    redirect_output(request["log"])
    if request["rehearsed"] is not None:
        with ExitStack() as stage:
            serve_trials(channel, request, _rehearsed(decode_hardware(request["rehearsed"]), stage))
        return
    import torch
    import triton

    # For kernels that need memory of their own, such as those that make tensor descriptors on the device.
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))  # noqa: ARG005
    torch.cuda.set_device(request["device"])
    clock = cuda_clock(
        torch.device("cuda", request["device"]),
        timing=request["timing"],
        timed_s=request["timed_s"],
        warmup_s=request["warmup_s"],
    )

    def load(candidate: Message, arguments: Arguments) -> tuple[Launch, Clock]:
        return _launch(candidate, arguments), clock

    serve_trials(channel, request, load)


def _rehearsed(hardware: Any, stage: ExitStack) -> Callable[[Message, Arguments], tuple[Launch, Clock]]:
    """Load candidates onto the simulated driver; one whose recording is a crash or a timeout crashes or hangs for real."""

    def load(candidate: Message, arguments: Arguments) -> tuple[Launch, Clock]:
        from triton.runtime.driver import driver

        plays = decode_outcome(candidate["plays"])
        lasts_us = plays.median_us if isinstance(plays, Measurement) else 1.0
        stage.close()
        stage.enter_context(rehearsal(times=lasts_us, hardware=hardware))
        launch = _launch(candidate, arguments)

        def call() -> None:
            if isinstance(plays, Failure):
                _fail(plays)
            launch.call()

        return replace(launch, call=call), EventClock(driver.active.get_device_interface())

    return load


def _launch(candidate: Message, arguments: Arguments) -> Launch:
    launcher = TritonBinary.from_json(candidate["binary"]).launcher()
    values, zeroed = (arguments.build(candidate[name]) for name in ("values", "zeroed"))

    def zero() -> None:
        for tensor in zeroed:
            tensor.zero_()

    return Launch(call=lambda: launcher(*values), before=zero if zeroed else None)


def _fail(recorded: Failure) -> None:
    if recorded.stage == "timeout":
        time.sleep(3600)
    if recorded.crashed:
        os.kill(os.getpid(), signal.SIGSEGV)
    raise RuntimeError(f"{recorded.stage}: {recorded.message}")


def _plain(value: Any) -> Any:
    """A compiled-in value if it is plain, else None; the binary holds such values, and no launch reads them."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    return value if isinstance(value, (bool, int, float, str)) else None
