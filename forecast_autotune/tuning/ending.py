"""When a run must try no more configs, whatever its policy wants."""

from __future__ import annotations

from collections.abc import Callable

from ..core.budget import Budget
from ..core.decision import Decision


class Ending:
    """A run ends when its budget is spent, or as soon as others have decided: the ranks of the job, or another machine.

    Args:
        shared_decision: looks up the decision of the others; without it, the budget alone ends the run.
    """

    def __init__(self, budget: Budget, shared_decision: Callable[[], Decision | None] = lambda: None) -> None:
        self.shared_decision: Decision | None = None  # once it was seen
        self._budget = budget
        self._look_up = shared_decision

    def reached(self) -> bool:
        """Whether nothing more is to be tried."""
        if self._budget.exhausted:
            return True  # what was measured makes a decision, whatever the other ranks hold to
        if self.shared_decision is None:
            self.shared_decision = self._look_up()
        return self.shared_decision is not None
