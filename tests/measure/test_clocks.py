from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.timing_limits import TimingLimits
from forecast_autotune.measure import clocks, gpu, sampling
from forecast_autotune.measure.clocks import Clock, CpuClock, EventClock, Launch
from forecast_autotune.measure.sampling import BATCH, MAX_BURSTS, MAX_SAMPLES, MIN_SAMPLES, PRECISE_FROM, _rounded
from forecast_autotune.processes.file_lock import file_lock
from forecast_autotune.tuning.trials import TURN_SHARE


def set_time(monkeypatch: pytest.MonkeyPatch, now: SimpleNamespace) -> None:
    for module in (clocks, sampling):
        monkeypatch.setattr(module, "time", now)


def test_a_sample_has_no_digits_that_no_clock_tells() -> None:
    measured = CpuClock(timed_s=0.01).measure(Launch(call=lambda: sum(range(100))), first_us=1.0)
    assert all(float(f"{t:.4f}") == t for t in measured.samples_us)


@pytest.mark.parametrize(("share", "samples"), [(1.0, MAX_SAMPLES), (0.4, 20), (0.01, MIN_SAMPLES)])
def test_a_share_of_the_usual_samples_is_taken(share: float, samples: int) -> None:
    timed, _ = sampling.collect(lambda count: [100.0] * count, 60.0, TimingLimits(share=share))
    assert len(timed) == samples


def test_a_turn_of_a_finalist_still_shows_a_neighbours_work() -> None:
    times = itertools.cycle([100.0, 110.0, 110.0])
    limits = TimingLimits(share=TURN_SHARE)
    _, disturbance = sampling.collect(lambda count: [next(times) for _ in range(count)], 60.0, limits)
    assert disturbance > 0.0
    assert round(MAX_SAMPLES * TURN_SHARE) >= sampling.BIMODAL_FROM


def test_what_takes_no_time_at_all_takes_some() -> None:
    assert _rounded([1e-9, 0.00004, 1.23456]) == (1e-4, 1e-4, 1.2346)


def test_another_way_of_timing_needs_one_method() -> None:
    class WallClock(EventClock):
        def time_batch(self, launch: Launch, count: int, least_us: float = 0.0) -> list[float]:
            times = []
            for _ in range(count):
                began = time.perf_counter()
                launch.once()
                self.synchronize()
                times.append((time.perf_counter() - began) * 1e6)
            return times

    clock = WallClock(SimpleNamespace(synchronize=lambda: None), timed_s=0.01)
    slept = clock.measure(Launch(call=lambda: time.sleep(0.002)), first_us=math.nan)
    assert len(slept.samples_us) >= MIN_SAMPLES
    assert slept.median_us >= 2000


# A device behind the host ------------------------------------------------------------------------------------------------


class Queue:
    """A device that runs what is queued behind the host, to which queueing takes time."""

    def __init__(
        self, kernel_us: Iterator[float], *, host_us: float, flush_us: float, first_us: float | None = None
    ) -> None:
        self.kernel_us, self.host_us, self.flush_us = kernel_us, host_us, flush_us
        self.first_us = host_us if first_us is None else first_us  # what the first launch after a wait takes the host
        self.has_waited = True
        self.now_us = self.free_us = self.spun_us = 0.0
        self.launches = 0
        self.spun_before_us = 0.0  # the first launch
        queue = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = queue.run(0.0)

            def query(self) -> bool:
                return queue.now_us >= self.at_us

            def elapsed_time(self, end: Event) -> float:
                return (end.at_us - self.at_us) / 1e3

        self.interface = SimpleNamespace(Event=Event, synchronize=self.synchronize)

    def run(self, us: float) -> float:
        self.free_us = max(self.free_us, self.now_us) + us
        return self.free_us

    def synchronize(self) -> None:
        self.now_us = max(self.now_us, self.free_us)
        self.has_waited = True

    def spin(self, seconds: float) -> None:
        self.spun_us += seconds * 1e6
        self.run(seconds * 1e6)

    def launch(self) -> None:
        if not self.launches:
            self.spun_before_us = self.spun_us
        self.launches += 1
        self.now_us += self.first_us if self.has_waited else self.host_us
        self.has_waited = False
        self.run(next(self.kernel_us))

    def clock(self, overhead: Callable[[], object]) -> EventClock:
        return EventClock(self.interface, flush=lambda: self.run(self.flush_us), spin=self.spin, overhead=overhead)

    def measure(self, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> Measurement:
        set_time(monkeypatch, SimpleNamespace(perf_counter=lambda: self.now_us / 1e6))
        clock = self.clock(lambda: self.run(2.0))
        return clock.measure(Launch(call=self.launch), first_us=math.nan, limits=TimingLimits(share=share))


@pytest.mark.parametrize("flush_us", [0.0, 35.0])
@pytest.mark.parametrize("host_us", [20.0, 60.0, 500.0])
@pytest.mark.parametrize("first_times", [1.0, 4.0])
@pytest.mark.parametrize("kernel_us", [2.0, 50.0, 100.0, 2000.0])
def test_no_sample_holds_what_queueing_takes_the_host(
    kernel_us: float, first_times: float, host_us: float, flush_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_us = first_times * host_us
    queue = Queue(itertools.repeat(kernel_us), host_us=host_us, flush_us=flush_us, first_us=first_us)
    _, *samples_us = queue.measure(monkeypatch).samples_us  # before the first, nobody knows what queueing takes
    assert samples_us == pytest.approx([kernel_us] * len(samples_us))


def test_a_device_that_launches_keep_busy_needs_no_more_than_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    spun_us = {}
    for kernel_us in (2.0, 100.0):
        queue = Queue(itertools.repeat(kernel_us), host_us=60.0, flush_us=35.0)
        queue.measure(monkeypatch)
        spun_us[kernel_us] = queue.spun_us - queue.spun_before_us
    assert spun_us[100.0] < 0.5 * spun_us[2.0]
    assert spun_us[100.0] < 5 * (1e6 * clocks.MIN_SPIN_S + 1.5 * 100.0)


def test_a_slow_first_launch_is_taken_for_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(itertools.repeat(30.0), host_us=50.0, flush_us=40.0, first_us=300.0)
    queue.measure(monkeypatch)
    batches = 5  # of 50 samples, with the very first, which is made again
    assert queue.spun_us - queue.spun_before_us < batches * (1e6 * clocks.MIN_SPIN_S + 1.5 * 300.0 + 15 * 5.0)


def test_a_stumble_of_the_host_at_the_first_sample_ends_no_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(itertools.repeat(100.0), host_us=50.0, flush_us=5.0)
    set_time(monkeypatch, SimpleNamespace(perf_counter=lambda: queue.now_us / 1e6))
    clock = queue.clock(lambda: queue.run(2.0))
    clock.prepare()

    def stumbling() -> None:
        queue.now_us += 0.0 if queue.launches else 5000.0
        queue.launch()

    measured = clock.measure(Launch(call=stumbling), first_us=math.nan, limits=TimingLimits(early_stop_us=200.0))
    assert len(measured.samples_us) > BATCH
    assert set(measured.samples_us) == {100.0}


def test_a_call_that_synchronizes_needs_no_longer_head_start_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(itertools.repeat(40.0), host_us=30.0, flush_us=5.0)
    set_time(monkeypatch, SimpleNamespace(perf_counter=lambda: queue.now_us / 1e6))
    clock = queue.clock(lambda: queue.run(2.0))

    def waiting() -> None:
        queue.launch()
        queue.synchronize()

    measured = [clock.measure(Launch(call=waiting), first_us=math.nan) for _ in range(4)]
    assert all(len(each.samples_us) > BATCH for each in measured)
    assert {each.median_us for each in measured} == {measured[0].median_us}


def test_what_was_prepared_is_not_waited_for_by_the_first_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(itertools.repeat(100.0), host_us=20.0, flush_us=5.0)
    set_time(monkeypatch, SimpleNamespace(perf_counter=lambda: queue.now_us / 1e6))
    learning: list[int] = []
    clock = queue.clock(lambda: learning.append(queue.launches))
    clock.prepare()
    learnt = len(learning)
    clock.measure(Launch(call=queue.launch), first_us=math.nan)
    assert learnt == len(learning) > 0


def test_launches_that_get_far_shorter_are_made_again_with_the_host_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(itertools.chain([4000.0], itertools.repeat(20.0)), host_us=60.0, flush_us=5.0)
    measured = queue.measure(monkeypatch)
    assert measured.samples_us == (4000.0, *[20.0] * (len(measured.samples_us) - 1))
    assert queue.launches > len(measured.samples_us)


# Neighbours -------------------------------------------------------------------------------------------------------------


class Machine:
    """A device on which each launch takes what `times_us` says next, and the clocks that see no other time."""

    def __init__(self, times_us: Iterator[float]) -> None:
        self.times_us = times_us
        self.now_us = 0.0
        self.launches = 0
        machine = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = machine.now_us

            def elapsed_time(self, end: Event) -> float:
                return (end.at_us - self.at_us) / 1e3

        self.interface = SimpleNamespace(Event=Event, synchronize=lambda: None)

    def launch(self) -> None:
        self.launches += 1
        self.now_us += next(self.times_us)

    def clock(self, kind: str, **arguments: Any) -> Clock:
        return CpuClock() if kind == "cpu" else EventClock(self.interface, **arguments)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Measurement, int]]:
    """Times launches that last so long, on a clock of either kind; the measurement, and how many it took.

    With `before`, another config is timed first, whose launches last so long.
    """

    def timed(
        times_us: Iterator[float], kind: str, *, before: Iterator[float] | None = None, **arguments: Any
    ) -> tuple[Measurement, int]:
        machine = Machine(times_us)
        now = SimpleNamespace(
            perf_counter=lambda: machine.now_us / 1e6, perf_counter_ns=lambda: round(machine.now_us * 1e3)
        )
        set_time(monkeypatch, now)
        clock = machine.clock(kind, **arguments)
        if before is not None:
            machine.times_us = before
            clock.measure(Launch(call=machine.launch), first_us=100.0)
            machine.times_us, machine.launches = times_us, 0
        return clock.measure(Launch(call=machine.launch), first_us=100.0), machine.launches

    return timed


def quiet(us: float = 100.0) -> Iterator[float]:
    """Times with a noise of 2 %, and now and then a stumble."""
    return (us * (1 + 0.01 * (i % 5 - 2)) * (3 if i % 11 == 5 else 1) for i in itertools.count())


both_clocks = pytest.mark.parametrize("kind", ["cpu", "events"])


@both_clocks
def test_without_neighbours_a_config_is_timed_once(timed: Any, kind: str) -> None:
    measured, launches = timed(quiet(), kind)
    assert measured.median_us == pytest.approx(100, rel=0.02)
    assert measured.disturbance == 0.0
    assert launches == MAX_SAMPLES


@both_clocks
def test_a_config_is_timed_again_where_a_neighbour_was_busy_for_a_while(timed: Any, kind: str) -> None:
    busy = MAX_SAMPLES * 7 // 10
    measured, launches = timed(itertools.chain(itertools.islice(quiet(160), busy), quiet()), kind)
    assert measured.median_us == pytest.approx(100, rel=0.02)
    assert measured.disturbance == 0.0
    assert launches == 2 * MAX_SAMPLES


@both_clocks
def test_a_neighbour_whose_share_is_small_but_distinct_is_seen(timed: Any, kind: str) -> None:
    busy = MAX_SAMPLES * 7 // 10
    steady = itertools.chain(itertools.repeat(108.0, busy), itertools.repeat(100.0))
    assert timed(steady, kind)[0].median_us == 100.0


@both_clocks
def test_where_a_neighbour_stays_the_measurement_is_that_much_less_sure(timed: Any, kind: str) -> None:
    measured, launches = timed((u * (1.6 if i % 10 < 7 else 1.0) for i, u in enumerate(quiet())), kind)
    assert launches == MAX_BURSTS * MAX_SAMPLES
    assert measured.relative_error >= measured.disturbance == pytest.approx(0.375, abs=0.03)


@both_clocks
def test_a_long_config_among_neighbours_is_not_timed_for_ever(timed: Any, kind: str) -> None:
    slow = (2e6 * (2 if i % 2 else 1) for i in itertools.count())
    assert timed(slow, kind)[1] == sampling.MIN_SAMPLES


def test_one_burst_is_not_trusted_while_another_process_times_too(timed: Any) -> None:
    times = itertools.chain(itertools.islice(quiet(160), MAX_SAMPLES), quiet())
    measured, launches = timed(times, "events", claim=lambda: contextlib.nullcontext(False))
    assert measured.median_us == pytest.approx(100, rel=0.02)
    assert launches == 2 * MAX_SAMPLES


# Samples that agree -----------------------------------------------------------------------------------------------------


def steady() -> Iterator[float]:
    return itertools.cycle([1000.0, 1004.0, 998.0])


def test_few_samples_that_agree_are_enough_on_a_device_seen_undisturbed(timed: Any) -> None:
    for before, expected in ((None, MAX_SAMPLES), (steady(), PRECISE_FROM)):
        measured, launches = timed(steady(), "events", before=before)
        assert launches == expected
        assert measured.median_us == pytest.approx(1000, rel=0.004)


def test_a_measurement_that_is_not_in_full_tells_nothing_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(steady())
    set_time(monkeypatch, SimpleNamespace(perf_counter=lambda: machine.now_us / 1e6))
    clock, launch = machine.clock("events"), Launch(call=machine.launch)
    clock.measure(launch, first_us=1000.0, limits=TimingLimits(best_us=910.0))  # it is slower, as 21 samples show
    clock.measure(launch, first_us=1000.0, limits=TimingLimits(share=0.2))
    machine.launches = 0
    clock.measure(launch, first_us=1000.0)
    assert machine.launches == MAX_SAMPLES


@pytest.mark.parametrize("begins", [0, 10, 25, 30])
def test_samples_that_agree_are_not_enough_once_a_neighbour_was_seen(begins: int, timed: Any) -> None:
    """He is busy for 20 launches of 40: within them all agree."""
    neighbours = (1000.0 * (1.08 if (i + begins) % 40 < 20 else 1.0) for i in itertools.count())
    times = itertools.chain(itertools.repeat(1080.0, 20), itertools.repeat(1000.0))
    measured, launches = timed(times, "events", before=neighbours)
    assert (measured.median_us, launches) == (1000.0, MAX_SAMPLES)


@pytest.mark.parametrize(
    ("us", "kind", "why"),
    [
        ((1000.0, 1025.0, 975.0, 1012.0, 988.0), "events", "they do not agree"),
        ((50.0, 50.1, 49.9), "events", "all of them take less than a neighbour's turn may"),
        ((1000.0, 1004.0, 998.0), "cpu", "neighbours come and go"),
    ],
)
def test_else_as_many_are_taken_as_ever(us: Sequence[float], kind: str, why: str, timed: Any) -> None:
    assert timed(itertools.cycle(us), kind, before=steady())[1] == MAX_SAMPLES, why


def test_samples_that_agree_but_for_one_in_ten_are_enough(timed: Any) -> None:
    times = (1500.0 if i % 10 == 4 else 1000.0 + i % 3 for i in itertools.count())
    assert timed(times, "events", before=steady())[1] == PRECISE_FROM


def test_processes_that_share_a_store_time_on_a_device_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "CLAIM_WAIT_S", 0.01)
    locks = tmp_path / "locks"
    with gpu.claim_device("GPU-1", locks) as alone:
        assert alone, "without a store there is nobody to share it with"
    locks.mkdir()
    with (
        gpu.claim_device("GPU-1", locks) as first,
        gpu.claim_device("GPU-2", locks) as other,
        gpu.claim_device("GPU-1", locks) as second,
    ):
        assert (first, other, second) == (True, True, False)
    with gpu.claim_device("GPU-1", locks) as again:
        assert again
    (held,) = [p for p in locks.iterdir() if p.name.startswith("timing-")][:1]
    with file_lock(held):
        pass


def test_of_a_disturbed_and_a_quiet_measurement_the_quiet_samples_count() -> None:
    disturbed = Measurement(samples_us=(160.0, 170.0), run_s=1.0, disturbance=0.4)
    still = Measurement(samples_us=(100.0, 101.0), run_s=1.0)
    for together in (disturbed.with_more(still), still.with_more(disturbed)):
        assert (together.samples_us, together.disturbance, together.run_s) == ((100.0, 101.0), 0.0, 2.0)
    assert disturbed.with_more(disturbed).disturbance == 0.4
    assert disturbed.relative_error >= 0.4 > still.relative_error
    assert not math.isnan(Measurement(samples_us=(1.0,), disturbance=0.5).relative_error)


@pytest.mark.parametrize("factor", [1e-200, 1e200, math.nan, math.inf])
def test_a_scale_that_no_device_drifts_to_changes_nothing(factor: float) -> None:
    assert Measurement(samples_us=(1e-99, 1e99)).scaled(factor) == Measurement(samples_us=(1e-99, 1e99))


@pytest.mark.parametrize(
    ("samples_us", "kept"),
    [
        ((3000.0, 1500.0), 5),  # a warm-up, and what it hid
        ((3000.0, 2900.0), 2),  # slow it is
        ((4100.0, 1500.0), 1),  # no warm-up takes that long
        ((30.0, 29.0, 28.0), 5),
        ((3.0e5, 1900.0), 1),
    ],
)
def test_a_first_sample_that_may_be_a_warm_up_ends_no_timing(samples_us: tuple[float, ...], kept: int) -> None:
    times = itertools.chain(samples_us, itertools.repeat(samples_us[-1]))
    timed, _ = sampling.collect(
        lambda count: [next(times) for _ in range(count)], 0.0, TimingLimits(early_stop_us=2000.0)
    )
    assert len(timed) == kept
