"""What a run spends its time on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Spending:
    """The seconds of a run in which it waited and timed, and those that its compilers worked.

    Of what happens within something else, the innermost counts.

    Args:
        clock: the budget's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.waiting_s = self.timing_s = self.compiling_s = 0.0
        self._clock = clock
        self._doing = ""
        self._since = clock()

    @contextmanager
    def on(self, doing: str) -> Iterator[None]:
        """While this is held, time counts as `waiting` or `timing`; under any other name, as the run's own work."""
        before = self._doing
        self._turn_to(doing)
        try:
            yield
        finally:
            self._turn_to(before)

    def _turn_to(self, doing: str) -> None:
        now = self._clock()
        if self._doing == "waiting":
            self.waiting_s += now - self._since
        elif self._doing == "timing":
            self.timing_s += now - self._since
        self._doing, self._since = doing, now
