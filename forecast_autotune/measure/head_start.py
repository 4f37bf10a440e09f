"""Keeping a device busy before a call that is timed, where it would wait for the host between the call's two moments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.config import Config

HOST_TIME_MARGIN = 1.15  # times what a launch takes the host: for so long the device is kept busy
MAX_US = 500.0  # where that is more, the launch counts as a part of the call's time
# The head start covers this share of the last so many launches. Threads that work in Python delay every third launch by up
# to 150 us (H100); keeping the device busy for those costs more than timing another call.
USUAL_SHARE, USUAL_LAUNCHES = 0.65, 16
MAX_RECORD_US = 50.0  # that keeping a device busy takes the host; the first may load something, another be held up
MIN_LAUNCHES = 4  # launches of a config, from which on they tell what is usual for it
ENOUGH_BEHIND = 4  # calls that find a device behind the host, after one that waited: then it is left alone
MAX_SHORT = 16  # calls in turn in which the device waited though it was kept busy: it cannot be
# For how long a device was busy, over what it was asked for: the middle of so many counts, those beyond are other work's.
STRETCHES, MIN_STRETCH, MAX_STRETCH = 5, 0.25, 8.0


@dataclass(slots=True)
class Head:
    """One head start: what a device was kept busy for before a call.

    Attributes:
        us: between the moment before and that before the launch: what is expected, and what it was once that is read.
        asked_us: for which the device was asked to be busy.
        was_idle: whether it had nothing to do.
        before: the moment before.
        began_s: when the host began to record that.
        covered_us: that the host took from then until the call was launched.
    """

    us: float
    asked_us: float
    was_idle: bool
    before: Any
    began_s: float
    covered_us: float = 0.0

    @property
    def cost_us(self) -> float:
        """For how long at most it has kept the device from the call: an idle one would have waited for the launch."""
        return max(0.0, self.us - self.covered_us) if self.was_idle else self.us

    @property
    def short_us(self) -> float:
        """For how long the device waited for the launch all the same."""
        return max(0.0, self.covered_us - self.us)


class HeadStart:
    """Keeps a device busy before a call is timed, until that is launched, where it would wait for the host.

    A device with nothing to do passes the moment before the launch at once, and what the launch takes the host, some 20 us,
    counts as the kernel's: of two kernels of 5 and 10 us, the second seems slower by a fifth, not twice as slow. Where a
    call was found to wait, the next ones are given a head start, until `ENOUGH_BEHIND` of them find the device behind.

    Args:
        keep_busy: keeps the current stream of the call's device busy for about so many seconds; None where it cannot be. How
            long it really does, by whatever clock the device has, is learned.
        is_idle: whether that stream has nothing to do.
        new_event: makes an event of the device; see `call_events.Event`.
    """

    def __init__(
        self, keep_busy: Callable[[float], object] | None, is_idle: Callable[[], bool], new_event: Callable[[], Any]
    ) -> None:
        self._keep_busy, self._is_idle, self._new_event = keep_busy, is_idle, new_event
        # What launches took the host, by config, and what keeping the device busy took before them. New tuples each time:
        # other threads may read them.
        self._hosts_us: dict[Config | None, tuple[float, ...]] = {}  # None: of any
        self._records_us: tuple[float, ...] = ()
        self._stretches: tuple[float, ...] = ()  # of how long the device was busy, over what was asked for
        # As reckoned last: that takes 5 us, and calls that wait for the account ask.
        self._costs_us: dict[Config, float] = {}
        self._seen = 0
        self._wanted = 0
        self._was_idle = True
        self._short = 0
        self._spare: list[Any] = []

    def us(self, config: Config) -> float:
        """For how long the device is to be kept busy before the next call, under a config."""
        is_wanted = self._wanted > 0 and self._can_help(config)
        return HOST_TIME_MARGIN * self._usual_us(config) + self._record_us() if is_wanted else 0.0

    def cost_us(self, config: Config) -> float:
        """For how long that is likely to keep the device from a call, by the launches that were seen until lately."""
        if (known_us := self._costs_us.get(config)) is not None:
            return known_us
        us = self.us(config)
        covered_us = self._usual_us(config, 0.5) + self._record_us() if self._was_idle else 0.0
        self._costs_us[config] = cost_us = max(0.0, us - covered_us)
        return cost_us

    def _record_us(self) -> float:
        return min(*self._records_us, MAX_RECORD_US) if self._records_us else 0.0

    def _stretch(self) -> float:
        return statistics.median(self._stretches) if self._stretches else 1.0

    def _usual_us(self, config: Config, share: float = USUAL_SHARE) -> float:
        """That a share of the launches of a config took the host no longer than; of those of any, while there are few."""
        of_any, own = (sorted(self._hosts_us.get(which, ())) for which in (None, config))
        if len(own) >= MIN_LAUNCHES:
            return own[int(share * (len(own) - 1))]
        usual_us = of_any[int(share * (len(of_any) - 1))] if of_any else 0.0
        least_us = min(own, default=0.0)  # it may take longer than those of others, or something held it up
        return max(usual_us, least_us) if HOST_TIME_MARGIN * least_us <= MAX_US else usual_us

    def _can_help(self, config: Config) -> bool:
        return self._keep_busy is not None and HOST_TIME_MARGIN * self._usual_us(config) <= MAX_US

    def give(self, config: Config) -> Head | None:
        """Keep the device busy, where it would wait for the launch of a config; None where it is left alone."""
        us = self.us(config)
        if not us or self._keep_busy is None:
            return None
        self._was_idle = was_idle = self._is_idle()
        before = self._spare.pop() if self._spare else self._new_event()
        began_s = time.perf_counter()
        before.record()
        asked_us = us / self._stretch()
        self._keep_busy(asked_us * 1e-6)
        return Head(us, asked_us, was_idle, before, began_s)

    def recorded(self, head: Head) -> None:
        """Note that the moment before the launch is recorded."""
        self._records_us = (*self._records_us[1 - USUAL_LAUNCHES :], (time.perf_counter() - head.began_s) * 1e6)

    def saw(self, config: Config, host_us: float) -> None:
        """Note what a launch took the host, timed or not."""
        if self._keep_busy is None:
            return
        for which in (config, None):
            self._hosts_us[which] = (*self._hosts_us.get(which, ())[1 - USUAL_LAUNCHES :], host_us)
        self._seen += 1
        if self._seen % USUAL_LAUNCHES == 0:
            self._costs_us.clear()

    def note(self, config: Config, host_us: float, head: Head | None, *, waited: bool, first: bool) -> bool:
        """Note a timed call. Returns whether its time is the host's, and another is to be timed with a head start.

        Args:
            host_us: that its launch took the host.
            head: what `give` has returned before it.
            waited: whether the device had come to the moment before the launch once that was made.
            first: whether the config was launched for the first time: what that takes the host is not usual.
        """
        if self._keep_busy is None:
            return False
        if not first:
            self.saw(config, host_us)
        self._costs_us.clear()
        if waited:
            self._wanted = ENOUGH_BEHIND
        if head is not None:
            head.covered_us = (time.perf_counter() - head.began_s) * 1e6
            if not head.before.query():  # it is behind the host
                self._wanted -= 1
            self._short = self._short + 1 if waited and not head.short_us else 0
            if self._short > MAX_SHORT:
                self._keep_busy = None
        return waited and self._can_help(config)

    def read(self, head: Head, us: float) -> None:
        """Note for how long a device was kept busy, by its own moments."""
        if head.asked_us and MIN_STRETCH <= (stretch := us / head.asked_us) <= MAX_STRETCH:
            self._stretches = (*self._stretches[1 - STRETCHES :], stretch)
        head.us = us
        self._spare.append(head.before)
