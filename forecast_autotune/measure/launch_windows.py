"""Which calls are being launched on a stream: what another thread launches there meanwhile counts in a timed call's time."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from ..core.fork_safe_lock import fork_safe_lock
from ..core.forks import after_fork_in_child

if TYPE_CHECKING:
    from .call_turns import Turn

WAIT_S = 0.005  # at most, for another thread's launch: one takes 20 to 100 us


class LaunchWindows:
    """The calls of this process that have begun and not ended, by stream.

    A timed call waits for those before it, and those after it wait for the timed one: a moment, for a launch may itself wait
    for another thread. Calls that overlap all the same are told, and are no samples.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(fork_safe_lock())
        self._open: dict[Hashable, list[Turn]] = {}

    def enter(self, turn: Turn) -> None:
        """A call begins to launch on its stream."""
        with self._changed:
            calls = self._open.setdefault(turn.stream, [])
            calls.append(turn)
            if len(calls) > 1 and not self._is_alone(turn, calls):
                self._changed.wait_for(lambda: self._is_alone(turn, calls), WAIT_S)
                for other in () if self._is_alone(turn, calls) else calls:
                    other.overlapped = True

    @staticmethod
    def _is_alone(turn: Turn, calls: list[Turn]) -> bool:
        """Whether no call that came before it disturbs this one, or is disturbed."""
        before = calls[: calls.index(turn)]
        return not (before and turn.timed) and not any(other.timed for other in before)

    def leave(self, turn: Turn) -> None:
        """It is launched, or never will be. Once more does nothing."""
        with self._changed:
            calls = self._open.get(turn.stream, [])
            if turn in calls:
                calls.remove(turn)
                self._changed.notify_all()
                if not calls:
                    del self._open[turn.stream]

    def after_fork_in_child(self) -> None:
        """What the parent's threads launch is not launched here."""
        self._open.clear()


launch_windows = LaunchWindows()
after_fork_in_child(launch_windows.after_fork_in_child)
