"""A run shared between processes: the leader waits for its helpers, and a helper tries what the leader has left."""

from __future__ import annotations

import time

from ..core.job import Stop
from ..core.outcome import Measurement
from ..protocols import Policy
from .state import RunState
from .trials import Trials

POLL_S = 0.05  # between two looks at what other processes have measured
GRACE_S = 1.0  # for others to finish their configs, beside twice what the longest took in this run


def await_helpers(state: RunState) -> bool:
    """Give helpers as long as a config takes to finish theirs; whether an outcome came or a config was given up.

    No longer: a helper may itself wait for what this process sends once it has launched.
    """
    sharing, known = state.sharing, len(state.outcomes)
    awaited = sharing.claimed
    state.learn_from_others()
    took_s = (o.cost_s for c, o in state.outcomes.items() if c in state.tried and isinstance(o, Measurement))
    if awaited:
        state.report("waiting for other processes")
    most_s = 2 * max(took_s, default=0.0) + GRACE_S
    until = time.monotonic() + min(most_s, state.budget.seconds_left)
    while sharing.claimed and len(state.outcomes) == known and awaited <= sharing.claimed and time.monotonic() < until:
        awaited = sharing.claimed
        with state.spending.on("waiting"):
            time.sleep(POLL_S)
        state.learn_from_others()
    return len(state.outcomes) > known or not awaited <= sharing.claimed


def help_leader(state: RunState, trials: Trials, policy: Policy) -> None:
    """Try configs of a run that another process leads, one by one, until none is left to claim. It waits for none."""
    sharing = state.sharing
    while sharing.wanted():
        state.learn_from_others()
        step = policy.step(state.view(trials.idle_workers))
        if isinstance(step, Stop):
            return
        refused = len(sharing.refused)
        if config := next(filter(sharing.claim, step.configs), None):
            trials.stream(iter([config]))
        elif len(sharing.refused) == refused:
            return
