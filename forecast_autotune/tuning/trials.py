"""Trying configs: build them as they are chosen, and time each as soon as it is built, the default before all others."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial

from ..core.config import Config
from ..core.forecast import Forecast
from ..core.job import reference_us
from ..core.outcome import Evidence, Failure, Measurement, Outcome
from ..core.timing_limits import IN_FULL, TimingLimits
from ..protocols import Compiler, Measurer
from .early_stop import early_stop_us
from .ending import Ending
from .state import RunState
from .stragglers import patience_s, usual_build_s

log = logging.getLogger(__name__)

SOON_S = 0.001  # to ask again at once how much longer to wait
TURN_SHARE = 0.4  # of a measurement's samples, for a turn of a finalist: 20, by which a neighbour's work still shows


class Trials:
    """Compiles and measures what a policy asks for, until the run ends; each outcome is kept as it comes.

    Args:
        patient: no build is left behind.
    """

    def __init__(
        self, state: RunState, compiler: Compiler, measurer: Measurer, ending: Ending, *, patient: bool = False
    ) -> None:
        self.compiler = compiler
        self.measurer = measurer
        self._state = state
        self._ending = ending
        self._patient = patient or state.budget.all
        self._is_prepared = False  # the measurer
        self._all_begun = False  # that were chosen for this stream

    @property
    def workers(self) -> int:
        """How many configs this process builds side by side."""
        return self._state.sharing.part_of(self.compiler.workers)

    @property
    def idle_workers(self) -> int:
        """How many more could be building now."""
        return max(1, self.workers - len(self._state.under_way.keys() - self._state.left_behind))

    def stream(self, choices: Iterator[Config], *, meanwhile: Callable[[float], bool] = lambda _: False) -> None:
        """Try configs, each chosen when a worker is free for it, until there are no more or the run ends.

        What is built is timed at once, while the rest is being built. Stragglers are left behind; see `stragglers`.

        Args:
            meanwhile: times what a wait for stragglers leaves time for, where nothing else is left to do, and whether it
                did; it is told how many seconds a build usually takes.
        """
        state = self._state
        state.report("building")
        on_wait = partial(self._on_wait, meanwhile)
        building = self.compiler.compile(self._begun(choices), workers=self.workers, on_wait=on_wait)
        with contextlib.closing(building):
            # Whatever is decided, the default may be what is launched: its build is waited for.
            while state.space.default in state.under_way or not self._ending.reached():
                with state.spending.on("waiting"):
                    done = next(building, None)
                if done is None:
                    self._leave_behind()
                    break
                self._note_built(*done)
                self._time_built()
                state.report("building")

    def _leave_behind(self) -> None:
        """Wait no more for what is being built still. It was begun, so it stays off the budget; no failure is noted.

        Where the run ends, it does not count: nobody knows whether its build takes long.
        """
        state = self._state
        if self._ending.reached():
            return
        if left := state.under_way.keys() - state.evidence.keys() - state.left_behind:
            state.left_behind |= left
            log.info("%s: left behind while being built: %s", state.job.workload, "; ".join(sorted(map(str, left))))

    def _begun(self, choices: Iterator[Config]) -> Iterator[Config]:
        self._all_begun = False
        for config in choices:
            self._state.under_way[config] = None
            self._state.report("building")  # to choose it, forecasts may have been made anew
            yield config
        self._all_begun = True
        self._state.report("building")

    def claim(self, configs: Iterable[Config]) -> list[Config]:
        """Those of the configs to try now: untried, within the budget, the default first, and nobody else's."""
        state = self._state
        chosen = self._untried(configs)
        chosen = chosen[: int(max(0, min(state.configs_left, len(chosen))))]
        return state.sharing.claim_batch(chosen, self.idle_workers)

    def recompile(self, configs: Sequence[Config]) -> list[Config]:
        """Build configs that an earlier run has timed; returns those of `configs` that are built now, in their order.

        They were compiled and paid for once: neither the count of this run nor its budget grows.
        """
        built = self._state.evidence
        self._state.report("building")
        with self._state.spending.on("waiting"):
            for config, result in self.compiler.compile([c for c in configs if c not in built]):
                self._keep_built(config, result)
        return [c for c in configs if c in built]

    def time_once_more(self, config: Config) -> Outcome:
        """Time a built config in full, with nothing being compiled beside it. The outcome is not kept."""
        with self.compiler.paused():
            return self._measure("timing an earlier config again", config)

    def time_as_finalist(self, config: Config) -> Outcome:
        """Time a built config for one turn of several. The outcome is not kept."""
        return self._measure("timing the best in turns", config, TimingLimits(share=TURN_SHARE))

    def _measure(
        self,
        doing: str,
        config: Config,
        limits: TimingLimits = IN_FULL,
    ) -> Outcome:
        """Time a config, and have whoever watches keep still until the next report."""
        self._state.report(doing, timing=True)
        undisturbed = contextlib.nullcontext() if self.compiler.overlaps_timing else self.compiler.paused()
        with self._state.spending.on("timing"), undisturbed:
            return self.measurer.measure(config, limits)

    def _note_built(self, config: Config, result: Evidence | Failure) -> None:
        """Count a build of this run."""
        state = self._state
        state.compiled += 1
        took_s = result.cost_s if isinstance(result, Failure) else result.compile_s
        state.build_s.append(took_s)
        state.spending.compiling_s += took_s
        self._keep_built(config, result)

    def _keep_built(self, config: Config, result: Evidence | Failure) -> None:
        if isinstance(result, Failure):
            self._state.keep(config, result)
        else:
            self._state.evidence[config] = result

    def _on_wait(self, meanwhile: Callable[[float], bool], waited_s: float) -> float:
        """Use a wait: prepare the measurer, and time finalists while the last configs build.

        Args:
            waited_s: for how long all that is under way has been built.
        Returns: for how many seconds to wait before this is called again; 0 leaves behind what is not built.
        """
        state = self._state
        if not self._is_prepared:
            self._is_prepared = True
            with state.spending.on("timing"):
                self.measurer.prepare()
        building = state.under_way.keys() - state.evidence.keys()
        if state.space.default in building:
            return math.inf
        if self._patient:
            return state.budget.seconds_left
        gain = partial(self._expected_gain, building - state.left_behind)
        left_s = min(state.budget.seconds_left, patience_s(state.build_s, waited_s, gain))
        if left_s > 0 and (self._all_begun or state.configs_left <= 0) and self._repeats_beside_builds:
            usual_s = usual_build_s(state.build_s)
            if waited_s < usual_s:
                return min(left_s, usual_s - waited_s)
            if meanwhile(usual_s):
                left_s = min(left_s, SOON_S)
        state.report("building")
        return left_s

    @property
    def _repeats_beside_builds(self) -> bool:
        """Whether a config can be timed again while others are being built."""
        return self.measurer.repeatable and self.compiler.overlaps_timing

    def _expected_gain(self, configs: Set[Config]) -> float:
        """The most octaves that one of the configs is expected to gain over the best so far; infinite if nobody knows."""
        state = self._state
        ran, reference = state.measured(), reference_us(state.outcomes, state.space.default)
        with state.spending.on("forecasting"):
            state.forecast()
        forecasts = [state.forecaster.of(config) for config in configs]
        if not ran or reference is None or not all(isinstance(forecast, Forecast) for forecast in forecasts):
            return math.inf
        best = math.log2(reference / next(iter(ran.values())).median_us)
        return max((each.expected_gain(best) for each in forecasts if isinstance(each, Forecast)), default=0.0)

    def _untried(self, configs: Iterable[Config]) -> list[Config]:
        """The configs not tried yet, with the default before all others until something is known of it."""
        state = self._state
        default = state.space.default
        chosen = [c for c in dict.fromkeys(configs) if not state.is_busy(c) and c in state.space]
        if chosen and not state.is_busy(default) and state.sharing.tries_default_first:
            chosen = [default, *(c for c in chosen if c != default)]
        return chosen

    def _time_built(self) -> None:
        """Time what is built and not timed yet, none before the default is known."""
        state = self._state
        state.forecast_first()
        default = state.space.default
        for config in sorted(state.under_way, key=lambda config: config != default):
            if self._ending.reached() or (default in state.under_way and default not in state.evidence):
                return
            if config not in state.evidence:
                continue
            outcome = self._measure("timing", config, self._limits(config))
            if isinstance(outcome, Measurement):
                outcome = replace(outcome, compile_s=state.evidence[config].compile_s)
            state.keep(config, outcome)
            state.report("choosing")

    def _limits(self, config: Config) -> TimingLimits:
        """How far to time a config beside what is known of it and of others; in full at first."""
        ran = self._state.measured()
        reference = reference_us(self._state.outcomes, self._state.space.default)
        if not ran or reference is None:
            return IN_FULL
        best_us = next(iter(ran.values())).median_us
        stop_us = early_stop_us(best_us, reference, self._state.forecaster.of(config))
        return TimingLimits(early_stop_us=stop_us, best_us=best_us)
