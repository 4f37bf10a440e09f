"""Times of earlier runs, brought to the scale of this one: the device may be warmer now, or its clock another."""

from __future__ import annotations

from dataclasses import replace

from ..core.outcome import Failure
from .state import RunState
from .trials import Trials


def rescale_earlier_times(state: RunState, trials: Trials) -> None:
    """Time one config of the earlier runs once more, and scale all of their times by how much that one has changed.

    It is the default where that ran, else the fastest of theirs. Happens once a run; where that config does not run now,
    the stored times stay as they are.
    """
    if not (state.stored_measurements and trials.measurer.repeatable):
        return
    stored, state.stored_measurements = state.stored_measurements, {}
    anchor = state.space.default if state.space.default in stored else next(iter(stored))
    if not trials.recompile([anchor]):
        return
    outcome = trials.time_once_more(anchor)
    if isinstance(outcome, Failure):
        state.keep(anchor, outcome)
        return
    before = stored.pop(anchor)
    state.keep(anchor, replace(outcome, compile_s=before.compile_s))
    for config, measurement in stored.items():
        state.outcomes[config] = measurement.scaled(outcome.median_us / before.median_us)
