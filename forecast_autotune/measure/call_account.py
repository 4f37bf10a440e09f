"""What the real calls of one key may cost: held before a call, settled once after it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.allowance import Allowance


@dataclass(slots=True, eq=False)
class Hold:
    """What the account holds for a candidate's call until that is settled, which is done once."""

    us: float


class CallAccount:
    """One key's part of an allowance.

    Args:
        allowance: what exploring may cost the process; see `Allowance`.
        share: of the time in tuned kernels that it may take.
    """

    def __init__(self, allowance: Allowance, share: float) -> None:
        self.explored_s = self.saved_s = 0.0
        self._allowance, self._share = allowance, share
        self._holds: set[Hold] = set()

    def hold(self, us: float) -> Hold | None:
        """Hold what a call may cost; None where the allowance does not cover it."""
        if not self._allowance.hold(us, self._share):
            return None
        self._holds.add(hold := Hold(us))
        return hold

    def settle(self, hold: Hold | None, cost_us: float) -> None:
        """Pay what a call did cost, in the place of what was held for it, if that is held still."""
        held_us = 0.0
        if hold is not None:
            held_us, hold.us = hold.us, 0.0
            self._holds.discard(hold)
        self._allowance.settle(held_us, cost_us)
        self.explored_s += cost_us * 1e-6

    def earn(self, us: float, saved_us: float = 0.0) -> None:
        """Note time that a call took, and how much less that was than the default's."""
        self._allowance.earn(us)
        self.saved_s += saved_us * 1e-6

    def release_all(self) -> None:
        """Pay nothing for what is held still: of calls that are being launched."""
        for hold in list(self._holds):
            self.settle(hold, 0.0)

    def after_fork_in_child(self) -> None:
        """Forget what is held: it is of the parent's account."""
        for hold in self._holds:
            hold.us = 0.0
        self._holds.clear()
