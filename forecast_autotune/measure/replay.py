"""Replay: a recorded space instead of a device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from ..core.config import Config
from ..core.job import Recording
from ..core.outcome import Evidence, Failure, Measurement, Outcome


class Replay:
    """Answer from a recorded run, charging what the recording cost.

    It is both Compiler and Measurer. Give its `clock` to the budget: it runs like a real clock and jumps ahead by the
    seconds that each compile and each timing took when it was recorded.

    Args:
        recording: outcomes of every config that may be asked for.
        now: seconds since any moment, for the part of a run that is not recorded: forecasting and choosing.
    """

    repeatable = False
    workers = 1
    overlaps_timing = False

    def __init__(self, recording: Recording, *, now: Callable[[], float] = time.perf_counter) -> None:
        self.recording = recording
        self.charged_s = 0.0
        self._now = now

    def clock(self) -> float:
        """Real time so far, and the recorded seconds charged so far."""
        return self._now() + self.charged_s

    def paused(self) -> AbstractContextManager[None]:
        """Nothing to stop."""
        return contextlib.nullcontext()

    def compile(self, configs: Sequence[Config]) -> Iterator[tuple[Config, Evidence | Failure]]:
        """Yield what the recording says of each config's compilation, charging its cost."""
        for config in configs:
            outcome = self._outcome(config)
            if isinstance(outcome, Measurement):
                self.charged_s += outcome.compile_s
                yield config, Evidence(compile_s=outcome.compile_s)
            elif outcome.stage in ("compile", "resources"):
                self.charged_s += outcome.cost_s
                yield config, outcome
            else:
                # A recorded failure has one cost; it is charged where it was met.
                yield config, Evidence(compile_s=0.0)

    def skip_default(self) -> None:
        """Nothing is run here."""

    def measure(self, config: Config, *, early_stop_us: float = math.inf) -> Outcome:  # noqa: ARG002  # all is recorded
        """The recorded outcome, charging its cost."""
        outcome = self._outcome(config)
        self.charged_s += outcome.run_s if isinstance(outcome, Measurement) else outcome.cost_s
        return outcome

    def _outcome(self, config: Config) -> Outcome:
        outcome = self.recording.outcomes.get(config)
        return Failure(stage="load", message="not in the recording") if outcome is None else outcome
