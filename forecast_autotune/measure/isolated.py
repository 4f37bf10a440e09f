"""Timing in a child process: a candidate that crashes, hangs or scribbles over memory is a failure, not the caller's end."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome
from ..errors import AutotuneError
from ..extension import Extension
from ..workers import Channel, Worker, WorkerDiedError, WorkerRaisedError, WorkerTimeoutError, WorkshopError, workshop
from .arguments import Arguments, Snapshot, UnportableError, snapshot
from .checks import Check, disagreement
from .in_process import Trial

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 60.0
DEFAULT_TIMEOUT_S = 60.0  # for a first run of the default, of which nothing is known
TIMEOUT_FLOOR_S = 5.0
TIMEOUT_RATIO = 20.0  # a candidate so many times slower than the default is not worth waiting for


class Isolated:
    """Times built extensions, each in a worker process of its own, on a copy of the call's arguments.

    Args:
        extension: where a config's build is; it may build.
        function: which of its functions to call.
        default: the config whose outputs are right.
        arguments: what to call it with; copied at the first measurement.
        check: how outputs are compared with the default's.
        log: file that gets what candidates print.
    """

    repeatable = True

    def __init__(
        self,
        *,
        extension: Callable[[Config], Extension],
        function: str,
        default: Config,
        arguments: Sequence[Any],
        check: Check,
        log: Path,
    ) -> None:
        self._extension = extension
        self._function_name = function
        self._default = default
        self._arguments = arguments
        self._snapshot: Snapshot | None = None
        self._check = check
        self._log = log
        self._expected: Sequence[torch.Tensor] | None = None
        self._default_tried = False
        self._default_raised = ""
        self._best_us = math.inf
        self._timeout_s = DEFAULT_TIMEOUT_S

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        if self._snapshot is not None:
            self._snapshot.close()

    def measure(self, config: Config) -> Outcome:
        """Time one built config.

        Raises:
            UnportableError: an argument of the call cannot be copied for trials.
            WorkshopError: no child process can be had.
        """
        if config != self._default and not self._default_tried and self._check is not None:
            self._try(self._default, timed=False)
            if self._expected is None:
                log.warning("%s: the default config does not run: nothing can be compared with it", self._function_name)
        return self._try(config, timed=True)

    def _try(self, config: Config, *, timed: bool) -> Outcome:
        is_default = config == self._default
        self._default_tried |= is_default
        began = time.perf_counter()
        stage = "load"

        def failure(stage: str, message: str, *, crashed: bool = False, transient: bool = False) -> Failure:
            cost_s = time.perf_counter() - began
            return Failure(stage=stage, message=message, cost_s=cost_s, crashed=crashed, transient=transient)

        try:
            with self._start(config) as worker:
                worker.receive(LOAD_TIMEOUT_S)
                stage = "launch"
                ran = worker.receive(self._timeout_s)
                outputs = _outputs(ran, worker)
                if ran["overrun"]:
                    return failure("check", str(ran["overrun"]))
                if is_default:
                    self._expected = outputs
                    self._timeout_s = max(TIMEOUT_FLOOR_S, TIMEOUT_RATIO * float(ran["first_us"]) / 1e6)
                elif self._expected is not None and (wrong := disagreement(self._check, outputs, self._expected)):
                    return failure("check", wrong)
                worker.send({"time": timed, "best_us": self._best_us if math.isfinite(self._best_us) else None})
                samples = tuple(float(s) for s in worker.receive(max(LOAD_TIMEOUT_S, self._timeout_s))["samples_us"])
                worker.finish(LOAD_TIMEOUT_S)
        except WorkerRaisedError as err:
            # What the default raises too, and what memory has to do with, is not this config's doing.
            message = str(err)
            shared = is_default or message == self._default_raised or "out of memory" in message.lower()
            if is_default:
                self._default_raised = message
            return failure(stage, message, transient=shared)
        except WorkerTimeoutError as err:
            # A slow default is a call that takes long, not one that must not be made.
            return failure("timeout", str(err), crashed=not is_default)
        except WorkerDiedError as err:
            return failure(stage, str(err), crashed=True)
        except (WorkshopError, UnportableError):
            raise
        except AutotuneError as err:
            return failure("compile", str(err), transient=True)
        if not timed:
            return failure("check", "not timed", transient=True)
        self._best_us = min(self._best_us, *samples)
        return Measurement(samples_us=samples, run_s=time.perf_counter() - began)

    def _start(self, config: Config) -> Worker:
        import torch

        if self._snapshot is None:
            self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._snapshot = snapshot(self._arguments)
        request = {
            "extension": self._extension(config).as_json(),
            "function": self._function_name,
            "layout": self._snapshot.layout,
            "bytes": self._snapshot.size,
            "threads": torch.get_num_threads(),
            "log": str(self._log),
        }
        return workshop().start(trial, request, [self._snapshot.file])


def _outputs(ran: dict[str, Any], worker: Worker) -> list[torch.Tensor]:
    import os

    file = worker.files[0]
    try:
        return list(Arguments(ran["outputs"], file, ran["bytes"]).values)
    finally:
        os.close(file)


def trial(channel: Channel, request: dict[str, Any]) -> None:
    """Load, run once, report the outputs, and time if told to. Runs in a worker."""
    import torch

    from ..workers import redirect_output

    redirect_output(request["log"])
    torch.set_num_threads(request["threads"])
    arguments = Arguments(request["layout"], channel.files[0], request["bytes"])
    function = Extension.from_json(request["extension"]).function(request["function"])
    channel.send({"loaded": True})
    candidate = Trial(function, arguments)
    outputs = candidate.run()
    copy = snapshot(outputs)
    channel.send(
        {
            "outputs": copy.layout,
            "bytes": copy.size,
            "first_us": candidate.first_us,
            "overrun": candidate.overrun(),
        },
        [copy.file],
    )
    copy.close()
    command = channel.receive()
    best_us = command["best_us"]
    channel.send({"samples_us": candidate.time(math.inf if best_us is None else best_us) if command["time"] else []})
    # A candidate that corrupted the heap is most often found out when its memory is freed: do that before ending well.
    del candidate, arguments, outputs, function
    gc.collect()
