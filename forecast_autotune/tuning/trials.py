"""Trying configs: build them, then time them, the default before all others."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from ..core.config import Config
from ..core.job import reference_us
from ..core.outcome import Evidence, Failure, Measurement, Outcome
from ..protocols import Compiler, Measurer
from .early_stop import early_stop_us
from .ending import Ending
from .state import RunState


class Trials:
    """Compiles and measures what a policy asks for, until the run ends; each outcome is kept as it comes."""

    def __init__(self, state: RunState, compiler: Compiler, measurer: Measurer, ending: Ending) -> None:
        self.compiler = compiler
        self.measurer = measurer
        self._state = state
        self._ending = ending

    @property
    def workers(self) -> int:
        """How many configs this process builds side by side."""
        return self._state.sharing.part_of(self.compiler.workers)

    def compile(self, configs: Iterable[Config]) -> None:
        """Build configs; where building does not disturb timing, each is timed as soon as it is built."""
        state = self._state
        chosen = [c for c in self._untried(configs) if c not in state.evidence]
        room = state.budget.configs_left - sum(c not in state.outcomes for c in state.evidence)
        chosen = chosen[: int(max(0, min(room, len(chosen))))]
        chosen = state.sharing.claim_batch(chosen, self.compiler.workers)
        if chosen:
            state.report("building")
        with contextlib.closing(_closable(self.compiler.compile(chosen))) as building:
            for config, result in building:
                state.compiled += 1
                self._note_built(config, result)
                state.report("building")
                if self.compiler.overlaps_timing:
                    self._time(c for c in state.evidence if c not in state.outcomes)
                if self._ending.reached():
                    break

    def measure(self, configs: Iterable[Config]) -> None:
        """Time configs, building first those that are not built."""
        chosen = self._untried(configs)
        if missing := [c for c in chosen if c not in self._state.evidence]:
            self.compile(missing)
        self._time(chosen)

    def recompile(self, configs: Sequence[Config]) -> list[Config]:
        """Build configs that an earlier run has timed; returns those of `configs` that are built now, in their order.

        They were compiled and paid for once: neither the count of this run nor its budget grows.
        """
        built = self._state.evidence
        self._state.report("building")
        for config, result in self.compiler.compile([c for c in configs if c not in built]):
            self._note_built(config, result)
        return [c for c in configs if c in built]

    def time_once_more(self, config: Config) -> Outcome:
        """Time a built config in full, with nothing being compiled beside it. The outcome is not kept."""
        with self.compiler.paused():
            return self._measure("timing the default again", config)

    def time_as_finalist(self, config: Config) -> Outcome:
        """Time a built config in full. The outcome is not kept."""
        return self._measure("timing the best in turns", config)

    def _measure(self, doing: str, config: Config, early_stop_us: float = math.inf) -> Outcome:
        """Time a config, and have whoever watches keep still meanwhile."""
        self._state.report(doing, timing=True)
        try:
            return self.measurer.measure(config, early_stop_us=early_stop_us)
        finally:
            self._state.report("choosing")

    def _note_built(self, config: Config, result: Evidence | Failure) -> None:
        if isinstance(result, Failure):
            self._state.keep(config, result)
        else:
            self._state.evidence[config] = result

    def _untried(self, configs: Iterable[Config]) -> list[Config]:
        """The configs not tried yet, with the default before all others until something is known of it."""
        state = self._state
        default = state.space.default
        chosen = [c for c in dict.fromkeys(configs) if c not in state.outcomes and c in state.space]
        if chosen and default not in state.outcomes and state.sharing.tries_default_first:
            chosen = [default, *(c for c in chosen if c != default)]
        return chosen

    def _time(self, configs: Iterable[Config]) -> None:
        """Time those of the configs that are built, none before the default is known."""
        state = self._state
        for config in self._untried(configs):
            if self._ending.reached():
                return
            if config not in state.evidence:
                if config == state.space.default:
                    return  # still being built
                continue
            outcome = self._measure("timing", config, self._early_stop_us(config))
            if isinstance(outcome, Measurement):
                outcome = replace(outcome, compile_s=state.evidence[config].compile_s)
            state.keep(config, outcome)

    def _early_stop_us(self, config: Config) -> float:
        """The time of a first run beyond which timing the config further is useless; infinite before anything ran."""
        ran = self._state.measured()
        reference = reference_us(self._state.outcomes, self._state.space.default)
        if not ran or reference is None:
            return math.inf
        best_us = next(iter(ran.values())).median_us
        return early_stop_us(best_us, reference, self._state.forecaster.of(config))


def _closable(
    building: Iterator[tuple[Config, Evidence | Failure]],
) -> Generator[tuple[Config, Evidence | Failure], None, None]:
    """The same as a generator: closing it closes the iterator too, so that building stops when the run ends."""
    yield from building
