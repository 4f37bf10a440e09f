"""Timing in a child process: a candidate that crashes, hangs or scribbles over memory is a failure, not the caller's end."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.config import Config
from ..core.config_errors import raised
from ..core.outcome import Measurement
from ..core.timing_limits import TimingLimits
from ..errors import BuildError
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError
from ..processes.extension import Extension
from ..processes.fork_server import fork_server
from ..processes.machine import own_bytes, usable_memory_bytes
from ..processes.serving import redirect_output
from ..processes.worker import Worker
from .arguments import Arguments, Snapshot, snapshot
from .base import Attempt, BaseMeasurer, DeviceLostError, RunResult
from .clocks import Clock, Launch
from .in_process import InProcessAttempt, clock_for, raise_if_lost
from .outputs import Outputs
from .process_state import RandomState

LOAD_TIMEOUT_S = 60.0
DEFAULT_TIMEOUT_S = 60.0  # for a first run of the default, of which nothing is known
TIMEOUT_FLOOR_S = 5.0
TIMEOUT_RATIO = 20.0  # a candidate so many times slower than the default is not worth waiting for
RUNS_TO_DETECT = 3
MEMORY_SHARE = 0.9  # of what is free when a candidate begins: what it may take
LOG_BYTES = 16 << 20  # of what candidates print: more is thrown away

Load = Callable[[Message, Arguments], tuple[Launch, Clock]]
"""Makes a candidate in a child: from its description and the arguments, its launch and the clock to time that by."""


class Isolated(BaseMeasurer):
    """Times candidates in a worker process, on a copy of the call's arguments.

    Args:
        job: what the worker runs: a module-level function of this package that calls `serve_trials`.
        describe: makes what the worker loads a config by, in JSON, from the config and the copy of the arguments; it may
            build.
        arguments: what to call it with; copied at the first measurement.
        request: further entries of the worker's first message.
        log: file that gets what candidates print.
        one_each: start a worker for each candidate. Without it, one worker serves all until it is lost: for candidates
            that leave nothing behind but memory.
        others: see `BaseMeasurer`.
    """

    def __init__(
        self,
        *,
        job: Callable[[Channel, Message], None],
        describe: Callable[[Config, Snapshot], Message],
        arguments: Sequence[Any],
        log: Path,
        request: Message | None = None,
        one_each: bool,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self._job = job
        self._describe = describe
        self._given = arguments
        self._request = request or {}
        self._log = log
        self._one_each = one_each
        self._snapshot: Snapshot | None = None
        self._worker: Worker | None = None
        self._timeout_s: float | None = None  # for a run; known once one has ended

    def close(self) -> None:
        """End the worker and drop the copy of the arguments."""
        self._let_go()
        self._bound_log()
        if self._snapshot is not None:
            self._snapshot.close()

    @contextlib.contextmanager
    def attempt(self, config: Config) -> Iterator[Attempt]:
        """Load a candidate into the worker, which is started where there is none."""
        if self._snapshot is None:
            self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._snapshot = snapshot(self._given)
        candidate = self._describe(config, self._snapshot)
        if self._worker is None:
            self._worker = self._start(self._snapshot)
        worker = self._worker
        try:
            # Beside what the worker holds already: pages it shares with the fork server, its copy of the arguments.
            worker.memory_bytes = own_bytes(worker.pid) + int(MEMORY_SHARE * usable_memory_bytes())
            worker.send({"candidate": candidate})
            worker.receive(LOAD_TIMEOUT_S, self._bound_log)
            yield _Conversation(worker, self)
            if self._one_each:
                worker.send({"end": True})
                worker.finish(LOAD_TIMEOUT_S)
                self._let_go()
        except WorkerRaisedError as err:  # it said so itself, and waits for the next
            lost = str(err).startswith(DeviceLostError.__name__)
            if lost or self._one_each:
                self._let_go()
            if lost:
                raise WorkerDiedError(str(err)) from None
            if str(err).startswith(BuildError.__name__):  # its library is gone, for which it cannot be blamed
                raise BuildError(str(err)) from None
            raise
        except BaseException:
            self._let_go()
            raise

    def _start(self, copy: Snapshot) -> Worker:
        import torch

        request = {
            **self._request,
            "layout": copy.layout,
            "bytes": copy.size,
            "threads": torch.get_num_threads(),
            "log": str(self._log),
        }
        return fork_server().start(self._job, request, [copy.file], ready_s=LOAD_TIMEOUT_S + self.copying_s)

    def _bound_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > LOG_BYTES:
                os.truncate(self._log, 0)

    @property
    def copying_s(self) -> float:
        """What laying out, comparing and handing over copies of the arguments may take, at half a GB a second."""
        return 0.0 if self._snapshot is None else self._snapshot.size / 5e8

    @property
    def timing_s(self) -> float:
        """What timing a candidate may take that has run once: its samples, and what it was asked for besides."""
        asked_s = float(self._request.get("timed_s", 0.0)) + float(self._request.get("warmup_s", 0.0))
        return max(LOAD_TIMEOUT_S, self._timeout_s or 0.0) + 4 * asked_s + self.copying_s

    def _let_go(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Conversation:
    """The caller's side of an attempt."""

    def __init__(self, worker: Worker, measurer: Isolated) -> None:
        self._worker = worker
        self._measurer = measurer

    def run(self, *, detect: bool, blank: Sequence[int], compared: bool) -> RunResult:
        known_s = self._measurer._timeout_s
        allowed_s = DEFAULT_TIMEOUT_S if known_s is None else known_s
        self._worker.send({"detect": detect, "blank": list(blank), "compared": compared})
        timeout_s = (RUNS_TO_DETECT * allowed_s if detect else allowed_s) + self._measurer.copying_s
        ran = self._worker.receive(timeout_s, self._measurer._bound_log)
        outputs = self._outputs(ran) if compared else None
        if known_s is None:  # the default, or another that ran: in either case one to relate others to
            self._measurer._timeout_s = max(TIMEOUT_FLOOR_S, TIMEOUT_RATIO * float(ran["first_us"]) / 1e6)
        return RunResult(
            outputs=outputs,
            overrun=ran["overrun"],
            first_us=float(ran["first_us"]),
            blank=tuple(ran["blank"]),
            reads=tuple(ran["reads"]),
        )

    def time(self, limits: TimingLimits) -> Measurement:
        finite = {name: limit for name, limit in asdict(limits).items() if math.isfinite(limit)}
        self._worker.send({"time": finite})
        timed = self._worker.receive(self._measurer.timing_s, self._measurer._bound_log)
        return Measurement(
            samples_us=tuple(float(s) for s in timed["samples_us"]),
            clock_mhz=timed["clock_mhz"],
            temperature_c=timed["temperature_c"],
            disturbance=timed["disturbance"],
        )

    def _outputs(self, ran: Message) -> Outputs:
        file = self._worker.files.pop(0)
        try:
            tensors = Arguments(ran["outputs"], file, ran["bytes"]).values()
            return Outputs(
                form=ran["form"], tensors=tensors, written=ran["written"], reuses_memory=ran["reuses_memory"]
            )
        finally:
            os.close(file)


def extension_trials(channel: Channel, request: Message) -> None:
    """Try functions of built extensions. Runs in a worker."""

    def load(candidate: Message, arguments: Arguments) -> tuple[Launch, Clock]:
        function = Extension.from_json(candidate["extension"]).function(candidate["function"])
        values = arguments.values()
        return Launch(call=lambda: function(*values)), clock_for(values)

    redirect_output(request["log"])
    serve_trials(channel, request, load)


def serve_trials(channel: Channel, request: Message, load: Load) -> None:
    """Load, run and time the candidates that the caller names, until it has no more or the device is lost."""
    import torch

    os.umask(0o077)  # what candidates write is this user's alone
    torch.set_num_threads(request["threads"])
    devices = (torch.device(storage["device"]) for storage in request["layout"]["storages"])
    if (device := next((d for d in devices if d.type == "cuda"), None)) is not None:
        torch.cuda.set_device(device)
    arguments = Arguments(request["layout"], channel.files[0], request["bytes"], request.get("names", ()))
    clock, random_state = clock_for(arguments.values()), RandomState()
    channel.send({"ready": True})
    command = channel.receive()
    while "end" not in command:
        try:
            launch, clock = load(command["candidate"], arguments)
            attempt = InProcessAttempt(functools.partial(_same, launch), arguments, clock, random_state)
            channel.send({"loaded": True})
            command = _try(channel, attempt)
        except Exception as err:
            with contextlib.suppress(Exception):
                print(f"{type(err).__name__}: {err}", flush=True)
            raise_if_lost(clock, err)
            channel.send({"raised": raised(err)[:4000]})
            command = channel.receive()
        # A candidate that corrupted the heap is most often found out when its memory is freed: do that before ending well.
        launch = attempt = None  # type: ignore[assignment]
        gc.collect()


def _try(channel: Channel, attempt: InProcessAttempt) -> Message:
    """One candidate's conversation; the first message that is no longer about it."""
    while True:
        command = channel.receive()
        if "detect" in command:
            _run(channel, attempt, command)
        elif "time" in command:
            _time(channel, attempt, command["time"])
        else:
            return command


def _same(launch: Launch) -> Launch:
    return launch


def _run(channel: Channel, attempt: InProcessAttempt, command: Message) -> None:
    ran = attempt.run(detect=command["detect"], blank=command["blank"], compared=command["compared"])
    message: Message = {"first_us": ran.first_us, "overrun": ran.overrun, "blank": ran.blank, "reads": ran.reads}
    if ran.outputs is None:
        channel.send(message)
        return
    copy = snapshot(ran.outputs.tensors)
    try:
        outputs = ran.outputs
        message |= {"form": outputs.form, "written": outputs.written, "reuses_memory": outputs.reuses_memory}
        channel.send({**message, "outputs": copy.layout, "bytes": copy.size}, [copy.file])
    finally:
        copy.close()


def _time(channel: Channel, attempt: InProcessAttempt, limits: Message) -> None:
    timed = attempt.time(TimingLimits(**limits))
    names = ("samples_us", "clock_mhz", "temperature_c", "disturbance")
    channel.send({name: getattr(timed, name) for name in names})
