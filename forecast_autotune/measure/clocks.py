"""Clocks: what times a candidate that is called for that, whichever process it runs in."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from ..core.outcome import Measurement
from ..core.timing_limits import IN_FULL, TimingLimits
from .board import sensors
from .gpu import Claim, Flush, claim_device, spin, unclaimed
from .sampling import BATCH, MAX_SAMPLES, MIN_SAMPLES, PRECISE_FROM, PRECISE_S, SHORT_US, collect, is_steady

TIMED_S = 0.1  # how long one measurement of a fast candidate times
SAMPLE_US = 100.0  # CPU calls shorter than this are timed several at once, against the clock's own cost of about 0.1 us
LONGER_FACTOR = 1.5  # a batch is made again where the head start should have been so many times as long
MIN_SPIN_S, MAX_SPIN_S = 2e-4, 0.02  # the first launch after a wait takes Python about 0.1 ms
GRAPH_LAUNCHES = 20  # in one graph: what replaying it takes is divided among them

QUANTILES = (0.5, 0.2, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A candidate ready to run. Only `call` is timed; `before` and `after` stand around each call, None for nothing."""

    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def once(self) -> Any:
        """Run it once with what stands around it; returns what the call returns."""
        if self.before is not None:
            self.before()
        returned = self.call()
        if self.after is not None:
            self.after()
        return returned


class Clock(Protocol):
    """Times a candidate."""

    def prepare(self) -> None:
        """Learn and load before the first measurement what it would wait for. May raise whatever a device does."""

    def measure(self, launch: Launch, *, first_us: float, limits: TimingLimits = IN_FULL) -> Measurement:
        """Time it, no further than is of use. `first_us` is what an earlier run took."""

    def synchronize(self) -> None:
        """Wait until what has been launched is done; raises what went wrong with it."""


class CpuClock:
    """Times what runs in the calling thread.

    Args:
        timed_s: after so long, no further sample is taken once there are enough.
    """

    def __init__(self, timed_s: float = TIMED_S) -> None:
        self._timed_s = timed_s

    def prepare(self) -> None:
        """Nothing need be."""

    def measure(self, launch: Launch, *, first_us: float, limits: TimingLimits = IN_FULL) -> Measurement:
        """Time calls by the wall clock, short ones several at once. See `Clock.measure`."""
        hooked = launch.before is not None or launch.after is not None
        calls = 1 if hooked else max(1, min(1000, math.ceil(SAMPLE_US / max(first_us, 0.1))))

        def sample(_: int) -> list[float]:
            if launch.before is not None:
                launch.before()
            call = launch.call
            began = time.perf_counter_ns()
            for _ in range(calls):
                call()
            took_us = max(time.perf_counter_ns() - began, 1) / calls / 1e3
            if launch.after is not None:
                launch.after()
            return [took_us]

        samples_us, disturbance = collect(sample, self._timed_s, limits)
        return Measurement(samples_us=samples_us, disturbance=disturbance)

    def synchronize(self) -> None:
        """What a call does here is done when it returns."""


class EventClock:
    """Times launches on a device by events around each, with cold caches.

    Before each launch the device's caches are overwritten, outside the timed region. Launches are queued several at once
    behind a device that is kept busy, so that no sample holds the time in which Python makes the launch.

    Args:
        interface: what torch offers for this kind of device, such as `torch.cuda`: `Event` and `synchronize`.
        flush: overwrites the caches; None where there are none.
        spin: keeps the device busy for so many seconds; None where it cannot be kept so.
        overhead: a launch of next to nothing, by which to learn what the events add to every time; None to add nothing.
        sensors: tells the device's clock in MHz and temperature in degrees Celsius, each None where nobody says.
        timed_s: as for `CpuClock`.
        warmup_s: for how long the candidate is run before, untimed.
        on: makes the device the current one, for events and launches of torch's.
        claim: held while one config is timed, against other processes; yields whether none times on the device.
    """

    def __init__(
        self,
        interface: Any,
        *,
        flush: Callable[[], object] | None = None,
        spin: Callable[[float], object] | None = None,
        overhead: Callable[[], object] | None = None,
        sensors: Callable[[], tuple[float | None, float | None]] | None = None,
        timed_s: float = TIMED_S,
        warmup_s: float = 0.0,
        on: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        claim: Claim | None = None,
    ) -> None:
        self._interface = interface
        self._flush = flush
        self._spin = spin
        self._overhead = overhead
        self._overhead_us: float | None = None
        self._sensors = sensors
        self._timed_s = timed_s
        self._warmup_s = warmup_s
        self._on = on
        self._claim = claim or unclaimed
        # What queueing a launch takes the host, as last seen: the first after a wait takes it several times as long.
        self._first_s = self._host_s = 1e-4
        self._between_us = math.inf  # the least the device was seen to take between two launches, flushing above all
        self._has_caught_up = False  # with the host, though what launches take it promised otherwise
        self._seen: tuple[float | None, float | None] = (None, None)
        # After how many seconds samples that agree are enough: none, until a measurement in full has shown no neighbour, who
        # may be busy for longer than a short one takes.
        self._enough_s = math.inf

    def prepare(self) -> None:
        """Learn what events add to every time, which also loads what keeps a device busy and flushes its caches."""
        with self._claim():
            self._taken_off_us()

    def measure(
        self,
        launch: Launch,
        *,
        first_us: float,  # noqa: ARG002  # the clock's own contract
        limits: TimingLimits = IN_FULL,
    ) -> Measurement:
        """Time launches by events, each on cold caches. See `Clock.measure`."""

        least_us = 0.0

        def sample(count: int) -> list[float]:
            nonlocal least_us
            times_us = self._batch(launch, count, least_us)
            least_us = min(times_us) if not least_us else min(least_us, *times_us)
            return [max(t - taken_off, 0.1 * t) for t in times_us]

        with self._claim() as alone:
            taken_off = self._taken_off_us()
            self._warm_up(launch)
            return self._collected(sample, limits, alone=alone)

    def _collected(self, sample: Callable[[int], list[float]], limits: TimingLimits, *, alone: bool) -> Measurement:
        taken, began = 0, time.perf_counter()

        def counted(count: int) -> list[float]:
            nonlocal taken
            times_us = sample(count)
            taken += len(times_us)
            return times_us

        samples_us, disturbance = collect(counted, self._timed_s, limits, alone=alone, precise_s=self._enough_s)
        is_in_full = taken >= MAX_SAMPLES or time.perf_counter() - began >= self._timed_s
        if taken > len(samples_us):  # a burst was not believed
            self._enough_s = math.inf
        elif is_in_full and taken >= PRECISE_FROM and is_steady(samples_us):
            self._enough_s = PRECISE_S
        return self._measurement(samples_us, disturbance)

    def _taken_off_us(self) -> float:
        if self._overhead_us is None:
            self._overhead_us = self._learn_overhead()
        return self._overhead_us

    def _learn_overhead(self) -> float:
        """What recording two events adds: of two launches of next to nothing between them, the second adds but itself.

        On an H200 it is 2.5 us, of 4.8 us that the events tell of a kernel of 1.9 us (by the profiler).
        """
        nothing = self._overhead
        if nothing is None:
            return 0.0
        once, twice = Launch(call=nothing), Launch(call=lambda: (nothing(), nothing()))
        self._batch(once, 3)
        alone_us, both_us = (statistics.median(self._batch(launch, BATCH)) for launch in (once, twice))
        return max(0.0, 2 * alone_us - both_us)

    def _warm_up(self, launch: Launch) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < self._warmup_s:
            self._batch(launch, 1)

    def _measurement(self, samples_us: Sequence[float], disturbance: float = 0.0) -> Measurement:
        clock_mhz, temperature_c = self._seen
        return Measurement(
            samples_us=tuple(samples_us), clock_mhz=clock_mhz, temperature_c=temperature_c, disturbance=disturbance
        )

    def synchronize(self) -> None:
        """Wait for the device; raises what went wrong on it."""
        with self._on():
            self._interface.synchronize()

    def _batch(self, launch: Launch, count: int, least_us: float = 0.0) -> list[float]:
        """Queue so many launches, then wait for all: microseconds of each."""
        with self._on():
            return self.time_batch(launch, count, least_us)

    def time_batch(self, launch: Launch, count: int, least_us: float = 0.0) -> list[float]:
        """Make so many launches on the current device: microseconds of each, as far as this clock can tell them apart.

        Args:
            least_us: what each is known to take the device at least: for so long it need not be kept busy otherwise.
        """
        each_us = 0.0 if self._has_caught_up or math.isinf(self._between_us) else least_us + self._between_us
        lead_s = self._lead_s(count, each_us)
        times_us, was_behind = self._queued(launch, count, lead_s)
        if not was_behind:  # what it waited for may be in the times
            self._has_caught_up = self._has_caught_up or (count > 1 and each_us > 0.0)
            if (longer_s := self._lead_s(count, 0.0)) > LONGER_FACTOR * lead_s:
                times_us, _ = self._queued(launch, count, longer_s)
        return times_us

    def _lead_s(self, count: int, each_us: float) -> float:
        """For how long to keep the device busy first, so that it comes to each launch after the host has queued it.

        The first launch needs what queueing it takes. From then on the device, on which each takes `each_us`, falls further
        back or catches up.
        """
        catches_up_s = max(0.0, 1.5 * self._host_s - each_us * 1e-6)
        return min(MAX_SPIN_S, MIN_SPIN_S + 1.5 * self._first_s + (count - 1) * catches_up_s)

    def _queued(self, launch: Launch, count: int, lead_s: float) -> tuple[list[float], bool]:
        """Microseconds of each of so many launches, and whether the device came to the last one after it was queued."""
        new = self._interface.Event
        events = [(new(enable_timing=True), new(enable_timing=True)) for _ in range(count)]
        if self._spin is not None:
            self._spin(lead_s)
        began, took_first_s = time.perf_counter(), -1.0
        for start, end in events:
            if launch.before is not None:
                launch.before()
            if self._flush is not None:
                self._flush()
            start.record()
            launch.call()
            end.record()
            if launch.after is not None:
                launch.after()
            if took_first_s < 0:
                took_first_s = time.perf_counter() - began
                waited_too = self._spin is not None and start.query()  # for the device, and so for its head start
                self._first_s = max(0.0, took_first_s - lead_s) if waited_too else took_first_s
        if count > 1:
            self._host_s = (time.perf_counter() - began - took_first_s) / (count - 1)
        was_behind = self._spin is None or not events[-1][0].query()
        if self._sensors is not None:
            self._seen = self._sensors()  # while it is at work: an idle device slows its clock
        self.synchronize()
        if count > 1:
            self._between_us = min(self._between_us, float(events[0][1].elapsed_time(events[1][0])) * 1e3)
        return [max(float(start.elapsed_time(end)) * 1e3, 1e-3) for start, end in events], was_behind


class GraphClock(EventClock):
    """Times launches as a CUDA graph replays them: what the graph takes, less what it takes without them.

    Both graphs hold the same flushes and restores, so that caches are cold here too.
    """

    def measure(
        self,
        launch: Launch,
        *,
        first_us: float,  # noqa: ARG002  # the clock's own contract
        limits: TimingLimits = IN_FULL,
    ) -> Measurement:
        """Time launches in replays of a CUDA graph. See `Clock.measure`."""

        import torch

        with self._on():
            stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        try:
            with self._claim() as alone:
                return self._on_stream(stream, launch, limits, alone=alone)
        finally:  # whoever puts arguments back does so after what was launched here
            current.wait_stream(stream)

    def _on_stream(self, stream: Any, launch: Launch, limits: TimingLimits, *, alone: bool) -> Measurement:
        import torch

        with torch.cuda.stream(stream):
            self._warm_up(launch)
            (once_us,) = self._batch(launch, 1)
            if once_us > max(limits.early_stop_us, SHORT_US):
                first_us, (once_us,) = once_us, self._batch(launch, 1)
                if min(first_us, once_us) > limits.early_stop_us:
                    return self._measurement([first_us, once_us])
            count = max(1, min(GRAPH_LAUNCHES, int(2e6 * self._timed_s / MIN_SAMPLES / max(once_us, 1.0))))
            nothing = Launch(call=lambda: None, before=launch.before)
            graphs = [self._captured(which, count) for which in (nothing, launch)]
            times: tuple[list[float], list[float]] = ([], [])

            def sample(_: int) -> list[float]:
                for graph, kept in zip(graphs, times, strict=True):
                    kept.append(self._batch(Launch(call=graph.replay), 1)[0])
                return [max((times[1][-1] - statistics.median(times[0])) / count, 1e-3)]

            for graph in graphs:
                graph.replay()
            return self._collected(sample, replace(limits, early_stop_us=math.inf), alone=alone)

    def _captured(self, launch: Launch, count: int) -> Any:
        import torch

        if launch.before is not None:
            launch.before()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which empties the allocator's cache each time. What other threads launch meanwhile is their
        # own business: by default it would end the capture in an error.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(count):
                if launch.before is not None:
                    launch.before()
                if self._flush is not None:
                    self._flush()
                launch.call()
        finally:
            graph.capture_end()
        return graph


class BenchmarkClock:
    """Times through a function of the user's own, which gets a call with everything around the launch.

    That function takes the call and `quantiles`, and returns milliseconds, as `triton.testing.do_bench` does. The median
    is kept as the one sample; `told_ms` is what it returned last, a number or several.
    """

    def __init__(self, do_bench: Callable[..., Any], call: Callable[[], None]) -> None:
        self._do_bench = do_bench
        self._call = call
        self.told_ms: Any = None

    def prepare(self) -> None:
        """That function sees to itself."""

    def measure(
        self,
        launch: Launch,  # noqa: ARG002
        *,
        first_us: float,  # noqa: ARG002
        limits: TimingLimits = IN_FULL,  # noqa: ARG002
    ) -> Measurement:
        """Call the user's function once; its median is the one sample."""
        self.told_ms = self._do_bench(self._call, quantiles=QUANTILES)
        median_ms = self.told_ms[0] if isinstance(self.told_ms, (list, tuple)) else self.told_ms
        return Measurement(samples_us=(float(median_ms) * 1e3,))

    def synchronize(self) -> None:
        """Whether to wait is that function's business."""


TIMINGS: dict[str, type[EventClock]] = {"eager": EventClock, "graph": GraphClock}
"""The ways to time launches on a GPU, by the names that `timing=` accepts."""


def cuda_clock(device: Any, *, timing: str = "eager", timed_s: float = TIMED_S, warmup_s: float = 0.0) -> EventClock:
    """The clock of a CUDA or HIP device.

    Args:
        device: as torch names it.
        timing: one of `TIMINGS`.
        timed_s, warmup_s: see `EventClock`.
    """
    import torch

    from ..settings import Settings

    kind = TIMINGS[timing]
    little = torch.zeros(1, dtype=torch.uint8, device=device)
    properties = torch.cuda.get_device_properties(device)
    return kind(
        torch.cuda,
        flush=Flush(device),
        spin=spin,
        overhead=little.zero_,
        sensors=sensors(properties),
        timed_s=timed_s,
        warmup_s=warmup_s,
        on=lambda: torch.cuda.device(device),
        claim=partial(claim_device, str(getattr(properties, "uuid", "")), Settings.from_environment().dir / "locks"),
    )
