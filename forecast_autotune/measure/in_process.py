"""Timing: the only code that times a candidate, whichever process it runs in."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome
from .arguments import Arguments, Snapshot, UnportableError, snapshot
from .checks import Check, disagreement

if TYPE_CHECKING:
    import torch

TIMED_S = 0.1  # how long one measurement of a fast candidate times
MIN_SAMPLES, MAX_SAMPLES = 5, 50
SAMPLE_US = 100.0  # calls shorter than this are timed several at once, against the clock's own cost of about 0.1 us
HOPELESS = 4.0  # a candidate whose first timed run takes so many times the best known is not timed again


class Trial:
    """One candidate on its own copy of the arguments: run once and look, then time."""

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        self._function = function
        self._arguments = arguments
        self._cuda = next((v.device for v in arguments.values if getattr(v, "is_cuda", False)), None)
        self._mutates = True  # until a run has shown
        self.first_us = math.nan

    def run(self) -> list[torch.Tensor]:
        """Run it once on pristine arguments and return its outputs; the arguments are put back afterwards."""
        self._arguments.restore()
        began = time.perf_counter()
        returned = self._function(*self._arguments.values)
        self._synchronize()
        self.first_us = (time.perf_counter() - began) * 1e6
        outputs = [o.clone() for o in self._arguments.outputs(returned)]
        self._mutates = self._arguments.changed
        self._arguments.restore()
        return outputs

    def overrun(self) -> str | None:
        return self._arguments.overrun()

    def time(self, best_us: float = math.inf) -> tuple[float, ...]:
        """Run times in microseconds, arguments put back before each sample, outside the timed region.

        One sample only where the first one shows a candidate `HOPELESS` times slower than `best_us`.
        """
        restore = self._arguments.restore if self._mutates else None
        calls = 1 if restore else max(1, min(1000, math.ceil(SAMPLE_US / max(self.first_us, 0.1))))
        sample = self._cuda_sample if self._cuda is not None else self._cpu_sample
        samples: list[float] = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            began = time.perf_counter()
            while len(samples) < MAX_SAMPLES:
                if restore:
                    restore()
                samples.append(sample(calls))
                if samples[0] > HOPELESS * best_us:
                    break
                if len(samples) >= MIN_SAMPLES and time.perf_counter() - began > TIMED_S:
                    break
        finally:
            if collecting:
                gc.enable()
        return tuple(samples)

    def _cpu_sample(self, calls: int) -> float:
        function, values = self._function, self._arguments.values
        began = time.perf_counter_ns()
        for _ in range(calls):
            function(*values)
        return max(time.perf_counter_ns() - began, 1) / calls / 1e3

    def _cuda_sample(self, calls: int) -> float:
        import torch

        self._flush_l2()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            self._function(*self._arguments.values)
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e3, 1e-3) / calls

    def _flush_l2(self) -> None:
        """Overwrite twice the L2 cache, so that no sample finds the previous one's data there."""
        import torch

        if not hasattr(self, "_flush"):
            size = 2 * torch.cuda.get_device_properties(self._cuda).L2_cache_size
            self._flush = torch.empty(size, dtype=torch.uint8, device=self._cuda)
        self._flush.zero_()

    def _synchronize(self) -> None:
        if self._cuda is not None:
            import torch

            torch.cuda.synchronize(self._cuda)


class InProcess:
    """Times candidates in the caller's own process, on copies of its arguments: quick to start, and nothing protects the
    caller from a candidate that crashes or never ends."""

    repeatable = True

    def __init__(
        self,
        *,
        function: Callable[[Config], Callable[..., Any]],
        default: Config,
        arguments: Sequence[Any],
        check: Check,
    ) -> None:
        self._function = function
        self._default = default
        self._arguments = arguments
        self._snapshot: Snapshot | None = None
        self._check = check
        self._expected: Sequence[torch.Tensor] | None = None
        self._default_tried = False
        self._default_raised = ""
        self._best_us = math.inf

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._snapshot is not None:
            self._snapshot.close()

    def measure(self, config: Config) -> Outcome:
        """Time one built config.

        Raises:
            UnportableError: an argument of the call cannot be copied for trials.
        """
        began = time.perf_counter()

        def failure(stage: str, message: str, *, transient: bool = False) -> Failure:
            return Failure(stage=stage, message=message, cost_s=time.perf_counter() - began, transient=transient)

        if config != self._default and not self._default_tried and self._check is not None:
            self.measure(self._default)
        is_default = config == self._default
        self._default_tried |= is_default
        try:
            trial = self._trial(config)
            outputs = trial.run()
            if overrun := trial.overrun():
                return failure("check", overrun)
            if is_default:
                self._expected = outputs
            elif self._expected is not None and (wrong := disagreement(self._check, outputs, self._expected)):
                return failure("check", wrong)
            samples = trial.time(self._best_us)
        except UnportableError:
            raise
        except Exception as err:
            # What the default raises too, and what memory has to do with, is not this config's doing.
            message = f"{type(err).__name__}: {err}"
            shared = is_default or message == self._default_raised or "out of memory" in message.lower()
            if is_default:
                self._default_raised = message
            return failure("launch", message, transient=shared)
        self._best_us = min(self._best_us, *samples)
        return Measurement(samples_us=samples, run_s=time.perf_counter() - began)

    def _trial(self, config: Config) -> Trial:
        if self._snapshot is None:
            self._snapshot = snapshot(self._arguments)
        copy = self._snapshot
        return Trial(self._function(config), Arguments(copy.layout, copy.file, copy.size))
