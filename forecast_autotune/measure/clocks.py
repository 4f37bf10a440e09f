"""Clocks: what times a candidate that is called for that, whichever process it runs in."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from ..core.digest import digest
from ..core.outcome import Measurement
from ..core.timing_limits import IN_FULL, TimingLimits
from ..processes.file_lock import file_lock
from .board import sensors

log = logging.getLogger(__name__)

TIMED_S = 0.1  # how long one measurement of a fast candidate times
MIN_SAMPLES, MAX_SAMPLES = 5, 50
# On a device so many samples are enough, taken in no less time, where all but a few of the middle ones lie within `PRECISE`
# of each other, once a config was timed in full and no neighbour seen. On the recorded suite that saves 70 % of the samples
# of kernels over 200 us. For configs near the best, medians then differ by 0.03 % from those of all samples (by 0.7 % for
# one in a hundred), and choices by 0.004 %.
PRECISE_FROM, PRECISE_S, PRECISE = 10, 0.004, 0.01
SAMPLE_US = 100.0  # CPU calls shorter than this are timed several at once, against the clock's own cost of about 0.1 us
BATCH = 16  # launches handed to a device at once
LONGER_TIMES = 1.5  # a batch is made again where the head start should have been so many times as long
LEAST_SPIN_S, MOST_SPIN_S = 2e-4, 0.02  # the first launch after a wait takes Python about 0.1 ms
EARLY_STOP_SAMPLES = 3  # before an early stop, where samples are so short that one may show a stumble of the host
SHORT_US = 1000.0  # a sample as short as this may show a stumble of the host; a longer one is the device's
# The first sample may be so many times the others: a warm-up (a recorded space on one GPU, each config)
FIRST_TIMES = 2.0
GRAPH_LAUNCHES = 20  # in one graph: what replaying it takes is divided among them
WINDOW = 0.05  # configs so much slower than the best are timed no further: none of them is a finalist

# When samples count as disturbed by a neighbour's work: the quickest fifth of them ends a share of `DISTURBED` below the
# median. Or, of at least `BIMODAL_FROM` samples, a share of `BIMODAL`, and `BIMODAL_TIMES` the spread within that fifth:
# then there are two kinds of samples.
DISTURBED, BIMODAL, BIMODAL_TIMES, BIMODAL_FROM = 0.15, 0.03, 3.0, 20
MOST_BURSTS = 3  # of samples, if none is free of neighbours
AGAIN_TIMES = 10  # no further burst once all together have taken so many times `timed_s`
CLAIM_WAIT_S = 0.5  # for another process that times on this device
QUANTILES = (0.5, 0.2, 0.8)
DIGITS = 4  # of a sample in microseconds behind the point: no clock tells 0.1 ns, and what lies beyond fills stores

_L2_TIMES = 2  # a flush of just the cache's size leaves part of it: its replacement is not strictly the oldest first
# AMD's last level (MI300X: 256 MiB) is not what the driver calls L2, of 4 MiB (pytorch#192159)
_HIP_FLUSH_BYTES = 256 << 20


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
        self._claim = claim or _unclaimed
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
        elif is_in_full and taken >= PRECISE_FROM and _is_steady(samples_us):
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
            if (longer_s := self._lead_s(count, 0.0)) > LONGER_TIMES * lead_s:
                times_us, _ = self._queued(launch, count, longer_s)
        return times_us

    def _lead_s(self, count: int, each_us: float) -> float:
        """For how long to keep the device busy first, so that it comes to each launch after the host has queued it.

        The first launch needs what queueing it takes. From then on the device, on which each takes `each_us`, falls further
        back or catches up.
        """
        catches_up_s = max(0.0, 1.5 * self._host_s - each_us * 1e-6)
        return min(MOST_SPIN_S, LEAST_SPIN_S + 1.5 * self._first_s + (count - 1) * catches_up_s)

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
    is kept as the one sample; `quantiles_ms` holds all that it said last.
    """

    def __init__(self, do_bench: Callable[..., Any], call: Callable[[], None]) -> None:
        self._do_bench = do_bench
        self._call = call
        self.quantiles_ms: list[float] = []

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
        times_ms = self._do_bench(self._call, quantiles=QUANTILES)
        self.quantiles_ms[:] = (
            [float(t) for t in times_ms] if isinstance(times_ms, (list, tuple)) else [float(times_ms)]
        )
        return Measurement(samples_us=(self.quantiles_ms[0] * 1e3,))

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
        claim=partial(claim_device, str(getattr(properties, "uuid", ""))),
    )


class Flush:
    """Overwrites a device's last cache, by a buffer twice its size that is taken at the first use.

    Where memory does not allow the buffer, launches are timed on caches as they are, and that is logged once.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._buffer: Any = None
        self._without = False

    def __call__(self) -> None:
        if self._buffer is None and not self._without:
            self._take()
        if self._buffer is not None:
            self._buffer.zero_()

    def _take(self) -> None:
        import torch

        cache = int(getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 0)) or (128 << 20)
        size = max(_L2_TIMES * cache, _HIP_FLUSH_BYTES if torch.version.hip else 0)
        try:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            self._without = True
            log.warning("no memory for %d MiB to flush the caches with: configs are timed on warm ones", size >> 20)


def spin(seconds: float) -> None:
    """Keep the current stream's device busy for about so long."""
    import torch

    torch.cuda._sleep(int(seconds * 2e9))  # cycles; clocks run at 1 to 2 GHz


Claim = Callable[[], AbstractContextManager[bool]]


def _unclaimed() -> AbstractContextManager[bool]:
    return contextlib.nullcontext(True)


@contextlib.contextmanager
def claim_device(identity: str) -> Iterator[bool]:
    """Keep other processes with this store from timing on a device; False where one goes on after a moment's wait.

    It is held for one config, so that processes that tune at the same time take turns by the config.
    """
    from ..settings import Settings

    folder = Settings.from_environment().dir / "locks"
    with contextlib.ExitStack() as held:
        alone = True
        if identity and folder.is_dir():
            try:
                held.enter_context(file_lock(folder / f"timing-{digest(identity)}.lock", timeout=CLAIM_WAIT_S))
            except TimeoutError:
                alone = False
            except (OSError, RuntimeError) as err:  # a filesystem without locks
                log.debug("no claim on a device: %s", err)
        yield alone


def collect(
    sample: Callable[[int], list[float]],
    timed_s: float,
    limits: TimingLimits = IN_FULL,
    *,
    alone: bool = True,
    precise_s: float = math.inf,
) -> tuple[tuple[float, ...], float]:
    """Take bursts of samples, a few at most, until one shows no neighbour's work.

    Where another process is known to time on the device (not `alone`), one burst is not believed: a neighbour that is busy
    all the time leaves no spread.

    Args:
        precise_s: after so long a burst ends once its samples agree; never on a CPU, where neighbours come and go by the
            millisecond.
    Returns:
        The quietest burst, in microseconds, and the share by which its median may be too long.
    """
    began, most = time.perf_counter(), max(MIN_SAMPLES, round(MAX_SAMPLES * limits.share))
    bursts = [_burst(sample, timed_s, limits, most, precise_s)]
    if len(bursts[0]) < MIN_SAMPLES:
        return bursts[0], 0.0  # timing ended early
    while len(bursts) < MOST_BURSTS and time.perf_counter() - began < AGAIN_TIMES * timed_s:
        if _quietest(bursts)[1] == 0.0 and (alone or len(bursts) > 1):
            break
        again = replace(limits, early_stop_us=math.inf)
        bursts.append(_burst(sample, timed_s, again, most, precise_s))
    return _quietest(bursts)


def _quietest(bursts: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], float]:
    """The burst with the least median, and by which share of it that lies above the quickest seen; 0 where that is noise."""
    best = min(bursts, key=statistics.median)
    median_us = statistics.median(best)
    quick_us = min(_quick_us(burst) for burst in bursts)
    quickest_us, gap_us = min(best), median_us - quick_us
    two_kinds = len(best) >= BIMODAL_FROM and gap_us > max(
        BIMODAL * median_us, BIMODAL_TIMES * (_quick_us(best) - quickest_us)
    )
    return best, gap_us / median_us if two_kinds or gap_us > DISTURBED * quick_us else 0.0


def _quick_us(samples_us: Sequence[float]) -> float:
    """Where the quickest fifth ends: that quick it is without neighbours, if a fifth was taken without."""
    return sorted(samples_us)[(len(samples_us) - 1) // 5]


def _burst(
    sample: Callable[[int], list[float]],
    timed_s: float,
    limits: TimingLimits,
    most: int,
    precise_s: float,
) -> tuple[float, ...]:
    """Samples until there are enough of them for the time; fewer where these show that more are useless."""
    with _no_collection():
        began = time.perf_counter()
        samples = sample(1)
        while min(samples) > limits.early_stop_us:
            enough = EARLY_STOP_SAMPLES if samples[0] <= SHORT_US else 2
            if len(samples) >= enough or samples[0] > max(FIRST_TIMES * limits.early_stop_us, SHORT_US):
                return _rounded(samples)
            samples += sample(1)
        each_s = max(time.perf_counter() - began, 1e-6)
        while len(samples) < most:
            spent_s = time.perf_counter() - began
            if len(samples) >= MIN_SAMPLES and (spent_s > timed_s or _slower(samples, limits.best_us)):
                break
            if spent_s > precise_s and _agree(samples):
                break
            fit = int((timed_s - spent_s) / each_s)
            until = most
            if len(samples) < MIN_SAMPLES and limits.best_us != math.inf:
                until = MIN_SAMPLES
            elif len(samples) < PRECISE_FROM < most and PRECISE_FROM * each_s > precise_s:
                until = PRECISE_FROM
            samples += sample(max(1, min(BATCH, fit, until - len(samples))))
    return _rounded(samples)


def _agree(samples_us: Sequence[float]) -> bool:
    """Whether the samples tell their median: those that it lies between (19 times of 20) are as good as equal."""
    count = len(samples_us)
    if count < PRECISE_FROM:
        return False
    ordered, aside = sorted(samples_us), math.floor(count / 2 - math.sqrt(count))
    return ordered[count - 1 - aside] - ordered[aside] <= PRECISE * ordered[count // 2]


def _is_steady(samples_us: Sequence[float]) -> bool:
    """Whether no neighbour shows for a tenth of the samples or more, at either end."""
    ordered, aside = sorted(samples_us), len(samples_us) // 10
    return ordered[-1 - aside] <= (1.0 + BIMODAL) * ordered[aside]


def _slower(samples_us: Sequence[float], best_us: float) -> bool:
    """Whether a config is so much slower than the best that no more samples are of use: its quickest fifth lies beyond.

    Far beyond, where there are few samples. On the recorded suite, 16 configs of a space in any order, this takes half of
    the samples. Of the 1,755 configs whose timing it ended one was within 5 % of the best. The median of the samples taken
    is 0.1 % from that of all, in one of twenty 1.5 %.
    """
    return _quick_us(samples_us) > best_us * (1.0 + WINDOW + 1.0 / len(samples_us))


def _rounded(samples_us: Sequence[float]) -> tuple[float, ...]:
    """Times without digits that say nothing; none becomes 0, which is no time."""
    return tuple(max(round(t, DIGITS), 10.0**-DIGITS) for t in samples_us)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected while something is timed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
