"""One call of a key that is learned from: which config it runs, and the moments before and after its launch."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.outcome import Stage
from .call_account import Hold
from .call_pairs import Pair
from .call_trial import CallTrial
from .head_start import Head
from .launch_windows import launch_windows

if TYPE_CHECKING:
    from .real_calls import RealCalls

COLD_US = 1000.0  # a first launch that takes the host longer than this has compiled or loaded something

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """One call of the key: which config it runs, and whether that is timed.

    The front door calls `begin`, launches, calls `end`; `failed` where that raised.
    """

    calls: RealCalls
    config: Config
    timed: bool = False
    trial: CallTrial | None = None  # that the config is a candidate of
    pair: Pair | None = None
    first: bool = False  # of the config
    hold: Hold | None = None
    stream: Hashable = 0  # that it is launched on
    overlapped: bool = False  # another thread launched there meanwhile
    load_us: float = 0.0  # that loading the config took, which held up the call
    head: Head | None = None  # for which the device was kept busy before
    host_us: float = 0.0  # that the launch took the host
    waited: bool = False  # the device waited for the host between the two moments, and can be kept busy the next time
    stalled: bool = False  # it waited, and the launch took far longer than launches do
    compared_us: float = 0.0  # that comparing it with the default took, which held up the call
    given_up: bool = False  # it is not to be timed, or not any more
    began_s: float = 0.0
    start: Any = None
    stop: Any = None

    def begin(self) -> None:
        """Record the moment before the launch."""
        launch_windows.enter(self)
        self.began_s = time.perf_counter()
        if self.timed:
            try:
                self.start, self.stop = self.calls.events()
                self.head = self.calls.head_start.give(self.config)
                self.start.record()
                if self.head is not None:
                    self.calls.head_start.recorded(self.head)
                self.began_s = time.perf_counter()
            except Exception:  # such as while another thread captures a graph
                self.give_up_timing()

    def end(self) -> None:
        """Record the moment after it."""
        self.note_host()
        if self.timed:
            try:
                self._note_waiting()
                self.stop.record()
            except Exception:  # it was launched, and must not be again
                self.give_up_timing()
        launch_windows.leave(self)
        if self.timed or self.first:
            self.calls.launched(self)
        else:
            self.calls.head_start.saw(self.config, self.host_us)

    def note_host(self) -> None:
        """Note what the launch took the host, whether it came to an end or raised."""
        self.host_us = (time.perf_counter() - self.began_s) * 1e6
        cold_us = self.calls.beyond_usual(self.host_us)
        if self.first and cold_us > COLD_US:
            self.load_us = cold_us

    def _note_waiting(self) -> None:
        if self.calls.on_host:
            return
        waited = self.start.query()  # a device that is behind has not come to it yet
        self.waited = self.calls.head_start.note(self.config, self.host_us, self.head, waited=waited, first=self.first)
        self.stalled = waited and self.host_us > COLD_US

    @property
    def head_cost_us(self) -> float:
        """What its head start has cost."""
        return 0.0 if self.head is None else self.head.cost_us

    @property
    def lost_us(self) -> float:
        """What exploring cost before and around the launch, whatever the launch itself takes."""
        of_candidate_us = self.load_us + self.compared_us if self.trial is not None else 0.0
        return of_candidate_us + self.head_cost_us

    @property
    def waited_us(self) -> float:
        """For how long the device waited for the host between the two moments, at most."""
        return self.host_us if self.head is None else self.head.short_us

    def give_up_timing(self) -> None:
        """Forget that the call was to be timed; another takes its place. Once is enough."""
        launch_windows.leave(self)
        if not self.given_up:
            log.debug("a call of %s is not timed", self.config, exc_info=True)
            self.timed, self.given_up = False, True
            self.calls.give_up_timing(self)

    def compare_later(self) -> None:
        """Leave the first call of the candidate to a later turn."""
        self.given_up = True
        self.calls.compare_later(self)

    @property
    def to_compare(self) -> bool:
        """Whether the config is to be compared with the default before it is launched."""
        return self.first and self.trial is not None and self.calls.compares(self.config)

    def failed(self, message: str, *, transient: bool = False, stage: Stage = "launch") -> None:
        """Note that the candidate does not run, or where `transient` that the call itself may be to blame."""
        launch_windows.leave(self)
        self.given_up = True
        self.calls.failed(self, message, transient=transient, stage=stage)
