"""Keeping a device busy before a call that is timed, where it would wait for the host between the call's two moments."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

TIMES = 1.15  # times what a launch takes the host: for so long the device is kept busy
MOST_US = 500.0  # where that is more, the launch counts as a part of the call's time
# Of so many launches, this share took the host no longer than a usual one: threads that work in Python hold up every third,
# by up to 150 us (H100), and to keep a device busy for those costs more than to time another call.
USUAL, OF = 0.65, 16
MOST_SHORT = 16  # calls in turn in which the device waited though it was kept busy: it cannot be


class HeadStart:
    """Keeps a device that is ahead of the host busy before a call is timed, until that is launched.

    A device with nothing to do passes the moment before the launch at once, and what the launch takes the host, some 20 us,
    counts as the kernel's: of two kernels of 5 and 10 us, the second seems slower by a fifth, not twice as slow. A device
    that is behind the host is left alone: one call in which it was found so ends this, until it is found to wait again.

    Args:
        keep_busy: keeps the device of the call busy for so many seconds; None where it cannot be.
        new_event: makes an event of the device; see `real_calls.Event`.
    """

    def __init__(self, keep_busy: Callable[[float], object] | None, new_event: Callable[[], Any]) -> None:
        self._keep_busy, self._new_event = keep_busy, new_event
        self._hosts_us: tuple[float, ...] = ()  # a new one for each launch: other threads may read it
        self._is_wanted = False
        self._short = 0
        self._spare: list[Any] = []

    @property
    def us(self) -> float:
        """For how long the device is kept busy before the next call."""
        return TIMES * self._usual_us() if self._is_wanted and self._can_help() else 0.0

    @property
    def cost_us(self) -> float:
        """For how long of it the device is likely to be kept from a call that is launched."""
        return max(0.0, us - statistics.median(self._hosts_us)) if (us := self.us) else 0.0

    def _usual_us(self) -> float:
        hosts_us = sorted(self._hosts_us)
        return hosts_us[int(USUAL * (len(hosts_us) - 1))] if hosts_us else 0.0

    def _can_help(self) -> bool:
        return self._keep_busy is not None and TIMES * self._usual_us() <= MOST_US

    def give(self) -> tuple[float, Any]:
        """Keep the device busy, where it would wait; for how many microseconds, and the moment before that."""
        us = self.us
        if not us or self._keep_busy is None:
            return 0.0, None
        before = self._spare.pop() if self._spare else self._new_event()
        before.record()
        self._keep_busy(us * 1e-6)
        return us, before

    def saw(self, host_us: float) -> None:
        """Note what a launch took the host, timed or not."""
        self._hosts_us = (*self._hosts_us[1 - OF :], host_us)

    def note(self, host_us: float, *, given_us: float, before: Any, waited: bool, first: bool) -> bool:
        """Note a timed call. Returns whether its time is the host's, and another is to be timed with a head start.

        Args:
            host_us: that it took the host, since the device was kept busy for it.
            given_us, before: what `give` has returned before it.
            waited: whether the device had come to the moment before the launch once that was made.
            first: whether the config was launched for the first time: what that takes the host is not usual.
        """
        if self._keep_busy is None:
            return False
        if not first:
            self.saw(host_us)
        if before is not None:
            self._is_wanted = before.query()
            self._spare.append(before)
            self._short = self._short + 1 if waited and host_us < given_us else 0
            if self._short > MOST_SHORT:
                self._keep_busy = None
        elif waited:
            self._is_wanted = True
        return waited and self._can_help()
