"""Replay: a recorded space instead of a device."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager

from ..core.config import Config
from ..core.job import Recording
from ..core.outcome import Evidence, Failure, Measurement, Outcome
from ..core.timing_limits import IN_FULL, TimingLimits
from ..protocols import without_limit


class Replay:
    """Answer from a recorded run, charging what the recording cost.

    It is both Compiler and Measurer. Give its `clock` to the budget: it runs like a real clock and jumps ahead to the end
    of each compile that is waited for, and by the seconds that each timing took when it was recorded.

    Args:
        recording: outcomes of every config that may be asked for.
        workers: how many configs compile side by side, and beside timing.
        now: seconds since any moment, for the part of a run that is not recorded: forecasting and choosing. Nothing is
            compiled meanwhile, so that in which order compiles end does not depend on it.
    """

    repeatable = False
    explored_s = saved_s = 0.0
    overlaps_timing = True

    def __init__(self, recording: Recording, *, workers: int = 1, now: Callable[[], float] = time.perf_counter) -> None:
        self.recording = recording
        self.workers = workers
        self.charged_s = 0.0
        self._now = now

    def clock(self) -> float:
        """Real time so far, and the recorded seconds charged so far."""
        return self._now() + self.charged_s

    def paused(self) -> AbstractContextManager[None]:
        """Nothing to stop."""
        return contextlib.nullcontext()

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """Yield what the recording says of each config's compilation, when it would have ended. See `Compiler.compile`."""
        most, waiting = workers or self.workers, iter(configs)
        under_way: list[tuple[float, int, float, Config, Evidence | Failure]] = []  # a heap, by when they end
        begun = itertools.count()
        while True:
            while len(under_way) < most and (config := next(waiting, None)) is not None:
                result, seconds = self._compiled(config)
                heapq.heappush(under_way, (self.charged_s + seconds, next(begun), self.charged_s, config, result))
            if not under_way:
                return
            last_s = max(began for _, _, began, _, _ in under_way)
            while (wait_s := max(0.0, under_way[0][0] - self.charged_s)) > 0 and wait_s > (
                limit_s := on_wait(self.charged_s - last_s)
            ):
                if self.charged_s + limit_s == self.charged_s:  # too little for the clock to tell
                    return
                self.charged_s += limit_s
            self.charged_s += wait_s
            *_, config, result = heapq.heappop(under_way)
            yield config, result

    def _compiled(self, config: Config) -> tuple[Evidence | Failure, float]:
        """What compiling a config comes to, and the seconds it takes."""
        outcome = self._outcome(config)
        if isinstance(outcome, Measurement):
            return Evidence(compile_s=outcome.compile_s), outcome.compile_s
        if outcome.stage in ("compile", "resources"):
            return outcome, outcome.cost_s
        return Evidence(compile_s=0.0), 0.0  # a recorded failure has one cost; it is charged where it was met

    def prepare(self) -> None:
        """Nothing is prepared here."""

    def skip_default(self) -> None:
        """Nothing is run here."""

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:  # noqa: ARG002  # a recording is in full
        """The recorded outcome, charging its cost."""
        outcome = self._outcome(config)
        self.charged_s += outcome.run_s if isinstance(outcome, Measurement) else outcome.cost_s
        return outcome

    def _outcome(self, config: Config) -> Outcome:
        outcome = self.recording.outcomes.get(config)
        return Failure(stage="load", message="not in the recording") if outcome is None else outcome
