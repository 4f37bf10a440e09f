"""What learning from real calls may cost a process: a share of the time that its tuned kernels take."""

from __future__ import annotations

import threading

from .forks import after_fork_in_child


class Allowance:
    """An account in microseconds, shared by all keys of a process. Tuned kernels fill it, exploring empties it.

    Nothing is tried that it does not cover when it begins. What a launch costs beyond what was expected leaves the account
    in debt, and is repaid before the next one. So exploring never takes more than its share of the time and one launch.

    A candidate's call pays in what it took, at most what would have run takes: what it saves is not paid in.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start at nothing: in a new account, and in the child of a fork, which launches its own kernels."""
        self._lock = threading.Lock()
        self.kernels_us = 0.0
        """Time in tuned kernels whose key was not decided yet, of the calls that took a turn."""
        self.explored_us = 0.0
        """Time that candidates took longer than what would have run, loading them included."""
        self._held_us = 0.0

    def earn(self, us: float) -> None:
        """Note time that a tuned kernel took."""
        with self._lock:
            self.kernels_us += us

    def hold(self, us: float, share: float) -> bool:
        """Hold what a candidate is expected to cost, until it is settled; False where the account does not cover it."""
        with self._lock:
            if self.explored_us + self._held_us + us > share * self.kernels_us or share <= 0:
                return False
            self._held_us += us
            return True

    def settle(self, held_us: float, cost_us: float) -> None:
        """Pay what a candidate did cost, in the place of what was held for it."""
        with self._lock:
            self._held_us -= held_us
            self.explored_us += cost_us


PROCESS_ALLOWANCE = Allowance()
"""What this process has earned and explored."""
after_fork_in_child(PROCESS_ALLOWANCE.reset)
