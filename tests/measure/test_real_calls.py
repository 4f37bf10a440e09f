"""Times taken from calls that a program makes anyway."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.measurer_contract import MeasurerContract
from simulated_calls import Device, Event

from forecast_autotune.core.allowance import Allowance
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.frontends.online.learning import AnotherThreadError, Learning
from forecast_autotune.measure import call_schedule, call_turns, head_start, launch_windows, real_calls
from forecast_autotune.measure.call_trial import MAX_PAIRS, MAX_THROWN
from forecast_autotune.measure.real_calls import LearningEndedError, RealCalls

DEFAULT, FAST, SLOW, BROKEN = (Config({"n": n}) for n in range(4))
TIMES_US = {DEFAULT: 100.0, FAST: 50.0, SLOW: 5000.0}


def make_calls(
    device: Device,
    *,
    share: float = 1.0,
    allowance: Allowance | None = None,
    keep_busy: Callable[[float], object] | None = None,
    load: Callable[[Config], bool] = lambda _: False,
) -> RealCalls:
    return RealCalls(
        keep_busy=keep_busy,
        is_idle=lambda: device.host_us >= device.free_us,
        load=load,
        incumbent=DEFAULT,
        default=DEFAULT,
        allowance=allowance or Allowance(),
        share=share,
        new_event=device.event,
    )


def measuring(calls: RealCalls) -> tuple[threading.Thread, list[object]]:
    """A thread that measures the default and the faster one, and what it has found."""
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.extend(map(calls.measure, (DEFAULT, FAST))), daemon=True)
    thread.start()
    return thread, outcomes


def learning_of(calls: RealCalls) -> Learning:
    """What makes calls in their turn; a config is its own launcher."""
    return Learning(calls, lambda config: config, lambda *_: None, lambda _: True, lambda: None)


def make_call(calls: RealCalls, device: Device, stream: int = 0) -> Config:
    """One call of the program; returns the config that it ran."""
    turn = calls.turn(stream)
    if turn.config == BROKEN:
        turn.failed("RuntimeError: it does not run")
        return BROKEN
    turn.begin()
    device.launch(TIMES_US[turn.config])
    turn.end()
    device.host_us = device.free_us
    return turn.config


class Program(threading.Thread):
    """Calls the kernel until nothing more is to be learned."""

    def __init__(self, calls: RealCalls, device: Device) -> None:
        super().__init__(daemon=True)
        self.calls, self.device = calls, device

    def run(self) -> None:
        while not self.calls.over:
            make_call(self.calls, self.device)
            time.sleep(0)


class TestRealCalls(MeasurerContract):
    @pytest.fixture(autouse=True)
    def _programs(self) -> Iterator[None]:
        self.programs: list[Program] = []
        yield
        for program in self.programs:
            program.calls.end()
            program.join(60)

    def make_measurer(self) -> RealCalls:
        device = Device()
        calls = make_calls(device)
        self.programs.append(Program(calls, device))
        self.programs[-1].start()
        return calls

    def good(self) -> list[Config]:
        return [DEFAULT, FAST]

    def bad(self) -> Config:
        return BROKEN

    def test_the_faster_one_runs_from_then_on(self) -> None:
        calls = self.make_measurer()
        times = [calls.measure(config) for config in (DEFAULT, FAST)]
        assert all(isinstance(outcome, Measurement) for outcome in times)
        assert [o.median_us for o in times if isinstance(o, Measurement)] == pytest.approx([100.0, 50.0])
        assert calls.incumbent == FAST

    def test_what_needs_no_telling_apart_takes_few_calls(self) -> None:
        outcome = self.make_measurer().measure(FAST, TimingLimits(early_stop_us=1e6, best_us=100.0))
        assert isinstance(outcome, Measurement)
        assert len(outcome.samples_us) < MAX_PAIRS

    def test_a_slow_one_is_out_after_one_call(self) -> None:
        outcome = self.make_measurer().measure(SLOW, TimingLimits(early_stop_us=200.0, best_us=100.0))
        assert isinstance(outcome, Measurement)
        assert len(outcome.samples_us) == 1

    def test_a_default_that_is_far_behind_runs_no_more_among_finalists(self) -> None:
        calls = self.make_measurer()
        for config in (DEFAULT, FAST):
            calls.measure(config)
        explored_s = calls.explored_s
        again = calls.measure(DEFAULT)
        assert isinstance(again, Measurement)
        assert again.median_us == pytest.approx(100.0)
        assert calls.explored_s == explored_s


def test_what_was_not_earned_is_not_explored() -> None:
    allowance, device = Allowance(), Device()
    calls = make_calls(device, share=0.05, allowance=allowance)
    thread = threading.Thread(target=lambda: measured.append(calls.measure(SLOW)), daemon=True)
    measured: list[object] = []
    thread.start()
    while not measured:
        make_call(calls, device)
        assert allowance.explored_us <= 0.05 * allowance.kernels_us + TIMES_US[SLOW]  # nobody forecast the first launch
        time.sleep(0)
    thread.join(60)
    assert allowance.explored_us > 0


def test_a_debt_is_repaid_before_the_next_one() -> None:
    allowance = Allowance()
    allowance.earn(1000.0)
    assert allowance.hold(50.0, 0.05)
    assert not allowance.hold(1.0, 0.05)  # held for the first
    allowance.settle(50.0, 500.0)
    allowance.earn(8000.0)
    assert not allowance.hold(1.0, 0.05)
    allowance.earn(1100.0)
    assert allowance.hold(1.0, 0.05)


def test_what_holds_the_host_up_within_a_call_is_no_time_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that waits for another thread, or collects garbage, between the two events of a call."""
    allowance, device = Allowance(), Device()
    clock = SimpleNamespace(perf_counter=lambda: device.host_us * 1e-6, monotonic=time.monotonic)
    monkeypatch.setattr(real_calls, "time", clock)
    monkeypatch.setattr(call_turns, "time", clock)
    calls = make_calls(device, allowance=allowance)
    outcomes: list[object] = []
    configs = (DEFAULT, FAST)
    thread = threading.Thread(target=lambda: outcomes.extend(map(calls.measure, configs)), daemon=True)
    thread.start()
    made = 0
    while len(outcomes) < len(configs):
        made += 1
        turn = calls.turn()
        turn.begin()
        if made % 3 == 0 and not turn.first:
            device.host_us += 300_000.0
        device.launch(TIMES_US[turn.config])
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    thread.join(60)
    slow, fast = outcomes
    assert isinstance(slow, Measurement)
    assert isinstance(fast, Measurement)
    assert slow.samples_us == pytest.approx([100.0] * len(slow.samples_us))
    assert fast.samples_us == pytest.approx([50.0] * len(fast.samples_us))
    assert allowance.explored_us == pytest.approx(0, abs=1e-3)


class HostBound:
    """A program whose device waits for it: each launch finds the device with nothing to do.

    Args:
        helps: whether the device can be kept busy.
        launch_us: what a launch takes the host, by its number from 1.
        extra_us: and what it takes more under some configs.
        queued_us: what else the device has to do before a call, by its number.
        stretch: for how many times as long as it is asked the device is kept busy.
        record_us: what recording a moment takes the host.
        loop_us: what a round of the program takes the host beside the launch.
        syncs: whether it waits for the device at the end of each.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        helps: bool,
        may: bool = True,
        share: float = 1.0,
        launch_us: Callable[[int], float] = lambda _: 20.0,
        extra_us: Mapping[Config, float] | None = None,
        queued_us: Callable[[int], float] = lambda _: 0.0,
        stretch: float = 1.0,
        record_us: float = 0.0,
        loop_us: float = 100.0,
        syncs: bool = True,
    ) -> None:
        self.loop_us, self.syncs = loop_us, syncs
        self.device, self.allowance, self.launch_us = Device(), Allowance(), launch_us
        self.device.record_us = record_us
        self.extra_us, self.queued_us = extra_us or {}, queued_us
        self.launched: list[Config] = []
        self.kept_busy: list[float] = []
        clock = SimpleNamespace(perf_counter=lambda: self.device.host_us * 1e-6, monotonic=time.monotonic)
        monkeypatch.setattr(real_calls, "time", clock)
        monkeypatch.setattr(call_turns, "time", clock)
        monkeypatch.setattr(head_start, "time", clock)

        def keep_busy(seconds: float) -> None:
            self.kept_busy.append(seconds * 1e6)
            self.device.host_us += 5.0
            if helps:
                self.device.launch(stretch * seconds * 1e6)

        keeping = keep_busy if may else None
        self.calls = make_calls(self.device, allowance=self.allowance, share=share, keep_busy=keeping)

    def call(self, us: dict[Config, float]) -> None:
        self.device.launch(self.queued_us(len(self.launched)))
        turn = self.calls.turn()
        turn.begin()
        self.launched.append(turn.config)
        self.device.host_us += self.launch_us(len(self.launched)) + self.extra_us.get(turn.config, 0.0)
        self.device.launch(us[turn.config])
        turn.end()
        if self.syncs:
            self.device.host_us = max(self.device.host_us, self.device.free_us)
        self.device.host_us += self.loop_us

    def measure(self, us: dict[Config, float], limits: TimingLimits = IN_FULL) -> list[Measurement]:
        outcomes: list[object] = []

        def measure() -> None:
            outcomes.extend(self.calls.measure(config, limits) for config in us)

        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        while thread.is_alive():
            self.call(us)
            assert len(self.launched) < 100_000
            time.sleep(0)
        thread.join(60)
        return [each for each in outcomes if isinstance(each, Measurement)]


SHORT_US = {DEFAULT: 10.0, FAST: 5.0}


def test_a_device_that_would_wait_for_the_host_is_kept_busy_until_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=True)
    slow, fast = program.measure(SHORT_US)
    assert slow.samples_us == pytest.approx([10.0] * len(slow.samples_us))
    assert fast.samples_us == pytest.approx([5.0] * len(fast.samples_us))
    assert program.calls.incumbent == FAST
    assert all(22.9 < us < 23.1 for us in program.kept_busy)
    later_us = 23.0 - 20.0  # what the device is kept from a call that is launched is paid for as what is explored
    assert program.allowance.explored_us == pytest.approx(later_us * len(program.kept_busy))


def test_to_keep_a_device_busy_costs_no_more_than_what_it_works_later(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    program = HostBound(monkeypatch, helps=True, share=0.05, launch_us=lambda _: draw.uniform(80.0, 240.0))
    slow, fast = program.measure({DEFAULT: 70.0, FAST: 60.0})
    assert slow.samples_us == pytest.approx([70.0] * len(slow.samples_us))
    assert fast.samples_us == pytest.approx([60.0] * len(fast.samples_us))
    assert program.allowance.explored_us < 60.0 * len(program.kept_busy)  # launches take 80 to 240 us


@pytest.mark.parametrize(
    "odd",
    [
        {"stretch": 2.0 / 2.52},
        {"stretch": 2.0 / 1.41},
        {"record_us": 3.0},
        {"record_us": 8.0},
        {"extra_us": {FAST: 15.0}},
    ],
    ids=["a fast clock", "a slow clock", "moments that take long", "that take very long", "launches of one config"],
)
def test_what_keeps_a_device_busy_for_long_enough_is_learned(
    monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    program = HostBound(monkeypatch, helps=True, share=0.05, **odd)
    slow, fast = program.measure(SHORT_US)
    assert slow.samples_us == pytest.approx([10.0] * len(slow.samples_us))
    assert fast.samples_us == pytest.approx([5.0] * len(fast.samples_us))
    assert program.calls.incumbent == FAST
    assert program.allowance.explored_us < 12.0 * len(program.kept_busy)


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("loop_us", [79.0, 94.0, 104.0, 114.0, 134.0])
def test_a_loop_that_hardly_waits_for_the_host_tells_what_is_slower(
    monkeypatch: pytest.MonkeyPatch, loop_us: float, share: float
) -> None:
    odd: dict[str, Any] = {"launch_us": lambda _: 30.0, "loop_us": loop_us, "syncs": False, "share": share}
    program = HostBound(monkeypatch, helps=True, **odd)
    _, slow = program.measure({DEFAULT: 100.0, SLOW: 104.0})
    assert slow.samples_us == pytest.approx([104.0] * len(slow.samples_us))
    assert program.calls.incumbent == DEFAULT


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_a_device_idle_before_every_second_call_still_tells_what_is_slower(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    program = HostBound(monkeypatch, helps=True, share=share, queued_us=lambda n: 5000.0 if n % 2 else 0.0)
    _, slow = program.measure({DEFAULT: 10.0, SLOW: 15.0})
    assert slow.samples_us == pytest.approx([15.0] * len(slow.samples_us))
    assert program.calls.incumbent == DEFAULT
    assert program.allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_first_head_start_that_loads_something_lengthens_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=True)
    busy, slowly = program.calls.head_start._keep_busy, iter([5000.0])
    assert busy is not None

    def keep_busy(seconds: float) -> None:
        program.device.host_us += next(slowly, 0.0)
        busy(seconds)

    program.calls.head_start._keep_busy = keep_busy
    slow, fast = program.measure(SHORT_US)
    assert (slow.median_us, fast.median_us) == (pytest.approx(10.0), pytest.approx(5.0))
    assert max(program.kept_busy) < 100.0


def test_a_device_that_cannot_be_asked_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    calls = make_calls(device)

    def refuse() -> bool:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(calls._schedule, "_may_compare", refuse)
    thread = threading.Thread(target=calls.measure, args=(FAST,), daemon=True)
    thread.start()
    while calls._schedule.trial is None:
        time.sleep(0.001)
    for _ in range(20):
        assert make_call(calls, device) == DEFAULT
    monkeypatch.setattr(calls._schedule, "_may_compare", None)
    while thread.is_alive():
        make_call(calls, device)


def test_launch_time_beyond_the_head_start_is_charged_to_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = HostBound(monkeypatch, helps=True, share=0.05, launch_us=lambda _: 200.0, extra_us={SLOW: 60.0})
    program.measure({DEFAULT: 50.0, SLOW: 250.0})
    more_us = 200.0 * program.launched.count(SLOW)
    assert program.allowance.explored_us >= more_us
    assert more_us <= 0.06 * program.allowance.kernels_us


def test_launches_that_are_seldom_long_keep_no_device_busy_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    program = HostBound(monkeypatch, helps=True, launch_us=lambda _: 200.0 if draw.random() < 0.2 else 80.0)
    slow, fast = program.measure(SHORT_US)
    assert (slow.median_us, fast.median_us) == (pytest.approx(10.0), pytest.approx(5.0))
    assert statistics.median(program.kept_busy) == pytest.approx(1.15 * 80.0)


@pytest.mark.parametrize(("is_ready", "least", "most"), [(False, 600, 700), (True, 5, 20)])
def test_a_candidate_that_is_ready_to_launch_is_expected_to_load_nothing(is_ready: bool, least: int, most: int) -> None:
    device = Device()
    calls = make_calls(device, share=0.05, load=lambda _: is_ready)
    thread = threading.Thread(target=calls.measure, args=(FAST,), daemon=True)
    thread.start()
    while calls._schedule.trial is None:
        time.sleep(0.001)
    made = 1
    while make_call(calls, device) != FAST:
        made += 1
    while thread.is_alive():
        make_call(calls, device)
    assert least <= made <= most  # of 5 us each, and where it is not ready 3,000 are to be loaded


def test_where_it_cannot_be_kept_busy_the_launch_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = HostBound(monkeypatch, helps=False, may=False).measure(SHORT_US)
    assert slow.median_us == pytest.approx(30.0)
    assert fast.median_us == pytest.approx(25.0)


def test_what_keeps_no_device_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=False)
    slow, fast = program.measure(SHORT_US)
    assert slow.median_us == pytest.approx(30.0)
    assert fast.median_us == pytest.approx(25.0)
    assert len(program.kept_busy) <= head_start.MAX_SHORT + 2


def test_a_launch_that_something_holds_up_keeps_no_device_busy_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=True, launch_us=lambda n: 3000.0 if n % 10 == 0 else 20.0)
    slow, fast = program.measure(SHORT_US)
    assert slow.samples_us == pytest.approx([10.0] * len(slow.samples_us))
    assert fast.samples_us == pytest.approx([5.0] * len(fast.samples_us))
    assert max(program.kept_busy) < 40.0


def test_a_device_that_is_behind_the_host_is_not_kept_busy() -> None:
    device, kept_busy = Device(), list[float]()
    calls = make_calls(device, keep_busy=kept_busy.append)
    device.launch(1e4)
    for _ in range(20):
        turn = calls.turn()
        turn.begin()
        device.launch(100.0)
        turn.end()
        device.host_us = device.free_us - 50.0
    assert calls.times[DEFAULT] == pytest.approx(100.0)
    assert not kept_busy


def test_a_device_that_falls_behind_is_left_alone_from_then_on() -> None:
    device, kept_busy = Device(), list[float]()
    calls = make_calls(device, keep_busy=kept_busy.append)
    thread = threading.Thread(target=calls.measure, args=(DEFAULT,), daemon=True)
    thread.start()
    made = 0
    while thread.is_alive():
        made += 1
        turn = calls.turn()
        turn.begin()
        device.launch(100.0)
        if made < 3:
            device.host_us = device.free_us + 1.0
        turn.end()
        device.host_us = max(device.host_us, device.free_us - 50.0)
        time.sleep(0)
    assert len(kept_busy) <= head_start.ENOUGH_BEHIND + 1


@pytest.mark.parametrize("every", [1, 2, 5])
def test_launches_that_are_always_long_end_no_trial_in_endless_tries(
    monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    program = HostBound(monkeypatch, helps=True, launch_us=lambda n: 1500.0 if n % every == 0 else 20.0)
    slow, fast = program.measure({DEFAULT: 200.0, FAST: 100.0})
    assert slow.median_us >= fast.median_us
    assert program.allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_slow_candidate_is_out_after_one_call_though_the_device_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=True)
    default, slow = program.measure({DEFAULT: 10.0, SLOW: 50_000.0}, TimingLimits(early_stop_us=40.0))
    assert len(default.samples_us) > 1
    assert slow.samples_us == pytest.approx([50_000.0], rel=0.01)
    assert program.launched.count(SLOW) == 1
    assert program.allowance.explored_us >= 49_000.0


@pytest.mark.parametrize("moment", ["record", "query"])
def test_a_call_whose_events_fail_is_made_once_and_timed_another_time(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As while another thread captures a graph: events may not be asked then."""
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    learning = learning_of(calls)
    made: list[Config] = []

    def make(config: Config) -> None:
        made.append(config)
        device.launch(TIMES_US[config])

    thread, outcomes = measuring(calls)
    asked = 0
    while thread.is_alive():
        asked += 1
        with monkeypatch.context() as patch:
            if asked % 3 == 0:
                patch.setattr(Event, moment, lambda _: raising())
            with contextlib.suppress(CaptureError):  # what reads the events of other calls
                learning.run(*learning.turn(0), make)
        device.host_us = device.free_us
        time.sleep(0)
    assert len(made) <= asked
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


class CaptureError(RuntimeError):
    pass


def raising() -> None:
    raise CaptureError("operation not permitted when stream is capturing")


def test_an_interrupt_in_a_candidates_launch_is_nobodys_fault() -> None:
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    learning = learning_of(calls)
    interrupted = 0

    def make(config: Config) -> None:
        nonlocal interrupted
        if config == FAST and interrupted < 3:
            interrupted += 1
            raise KeyboardInterrupt
        device.launch(TIMES_US[config])

    thread, outcomes = measuring(calls)
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            learning.run(*learning.turn(0), make)
        device.host_us = device.free_us
        time.sleep(0)
    assert interrupted == 3
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_call_is_made_though_the_events_of_others_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    calls = make_calls(device)
    make_call(calls, device)
    device.host_us = 0.0
    make_call(calls, device)
    with monkeypatch.context() as patch:
        patch.setattr(Event, "query", lambda _: raising())
        for _ in range(3):
            assert calls.turn().config == DEFAULT
    for _ in range(10):
        make_call(calls, device)
    assert calls.times[DEFAULT] == pytest.approx(100.0)


@pytest.mark.parametrize("kind", [TimeoutError, RuntimeError])
def test_a_signal_handlers_error_is_raised_and_nothing_is_launched_again(kind: type[Exception]) -> None:
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    learning = learning_of(calls)
    interrupted, made = [], 0

    def handler(*_: object) -> None:
        raise kind("the program's own limit")

    before = signal.signal(signal.SIGALRM, handler)

    def make(config: Config) -> None:
        nonlocal made
        made += 1
        device.launch(TIMES_US[config])
        if config == FAST and not interrupted:
            interrupted.append(made)
            signal.raise_signal(signal.SIGALRM)

    thread, outcomes = measuring(calls)
    asked = 0
    while thread.is_alive():
        asked += 1
        with contextlib.suppress(kind):
            learning.run(*learning.turn(0), make)
        device.host_us = device.free_us
        time.sleep(0)
    signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert made == asked
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


class OthersError(Exception):
    """One that neither torch nor Triton raises."""


def test_whatever_a_candidate_raises_the_call_runs_under_the_best_known(monkeypatch: pytest.MonkeyPatch) -> None:
    device, allowance = Device(), Allowance()
    clock = SimpleNamespace(perf_counter=lambda: device.host_us * 1e-6, monotonic=time.monotonic)
    monkeypatch.setattr(real_calls, "time", clock)
    monkeypatch.setattr(call_turns, "time", clock)
    calls = make_calls(device, allowance=allowance)
    learning = learning_of(calls)

    def make(config: Config) -> Config:
        if config == FAST:
            device.host_us += 20_000.0
            raise OthersError("singular")
        device.launch(TIMES_US[config])
        return config

    thread, outcomes = measuring(calls)
    while thread.is_alive():
        assert learning.run(*learning.turn(0), make) == DEFAULT
        device.host_us = max(device.host_us, device.free_us)
        time.sleep(0)
    assert isinstance(outcomes[1], Failure)
    assert allowance.explored_us == pytest.approx(20_000.0)  # that it held the program up is paid for
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_turn_that_is_lost_blocks_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between the call's asking for its turn and its launch."""
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    monkeypatch.setattr(call_schedule, "LOST_S", 0.0)
    thread, outcomes = measuring(calls)
    lost = 0
    while thread.is_alive():
        turn = calls.turn()
        if turn.config == FAST and lost < 4:
            lost += 1
            continue
        turn.begin()
        device.launch(TIMES_US[turn.config])
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    assert lost == 4
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    calls.end()
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_signal_handler_may_call_while_another_call_asks_for_its_turn() -> None:
    device = Device()
    calls = make_calls(device)
    for _ in range(10):
        make_call(calls, device)
    before = signal.signal(signal.SIGALRM, lambda *_: make_call(calls, device))
    read, nested = calls._reader.read, []

    def interrupted() -> None:
        nested.append(1)
        signal.raise_signal(signal.SIGALRM)
        read()

    calls._reader.read = interrupted  # type: ignore[method-assign]
    assert make_call(calls, device) == DEFAULT
    signal.signal(signal.SIGALRM, before)
    assert nested == [1]


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_an_interrupt_while_a_moment_is_noted_leaves_nothing_held(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    learning = learning_of(calls)
    thread, outcomes = measuring(calls)
    interrupts = 0

    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    while thread.is_alive():
        turn, launcher = learning.turn(0)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            if turn.config == FAST and interrupts < 3:
                interrupts += 1
                patch.setattr(Event, "record" if moment == "begin" else "query", interrupt)
            learning.run(turn, launcher, lambda config: device.launch(TIMES_US[config]))
        device.host_us = device.free_us
        time.sleep(0)
    assert interrupts == 3
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_pair_whose_calls_are_in_two_threads_is_settled_once() -> None:
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(calls.measure(FAST)), daemon=True)
    thread.start()
    while True:
        turn = calls.turn()
        if turn.pair is not None and turn.trial is None and not turn.pair.candidate_first:
            break
        turn.begin()
        device.launch(TIMES_US[turn.config])
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    other = calls.turn()
    assert other.pair is turn.pair
    turn.failed("")
    other.begin()
    device.launch(TIMES_US[FAST])
    other.end()
    device.host_us = device.free_us
    while thread.is_alive():
        make_call(calls, device)
        time.sleep(0)
    calls.end()
    assert len(outcomes) == 1
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_what_can_never_be_compared_is_not_tried() -> None:
    device = Device()
    calls = RealCalls(
        incumbent=DEFAULT, default=DEFAULT, allowance=Allowance(), share=1.0, new_event=device.event,
        may_compare=lambda: False,
    )  # fmt: skip
    thread, outcomes = measuring(calls)
    while thread.is_alive():
        make_call(calls, device)
        time.sleep(0)
    assert isinstance(outcomes[0], Measurement)
    assert isinstance(outcomes[1], Failure)
    assert outcomes[1].transient
    assert "no idle moment" in outcomes[1].message


def test_a_comparison_that_another_thread_prevents_is_made_later() -> None:
    device, allowance = Device(), Allowance()
    calls = RealCalls(
        incumbent=DEFAULT, default=DEFAULT, allowance=allowance, share=1.0, new_event=device.event, may_compare=lambda: True,
    )  # fmt: skip
    busy = iter(range(3 * MAX_THROWN))  # comparisons of others that are met

    def compare(_: Config, __: object) -> None:
        if next(busy, None) is not None:
            raise AnotherThreadError("another thread is timing")

    learning = Learning(calls, lambda config: config, compare, lambda _: True, lambda: None)
    thread, outcomes = measuring(calls)
    while thread.is_alive():
        turn, config = learning.turn(0)
        if not learning.passes(turn, None):
            assert turn.config == FAST
            turn, config = None, DEFAULT  # type: ignore[assignment]
        learning.run(turn, config, lambda chosen: device.launch(TIMES_US[chosen]))
        device.host_us = device.free_us
        time.sleep(0)
    assert next(busy, None) is None
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_calls_that_overlap_another_threads_launches_are_no_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_windows, "WAIT_S", 0.0)  # as though each launch waited for the other thread's
    device, draw = Device(), random.Random(0)
    calls = make_calls(device)
    thread, outcomes = measuring(calls)
    overlapping = 0
    while thread.is_alive():
        turn = calls.turn(0)
        turn.begin()
        if draw.random() < 0.4:
            other = calls.turn(0)
            other.begin()
            device.launch(TIMES_US[other.config])
            other.end()
            overlapping += turn.overlapped and other.overlapped and (turn.timed or other.timed)
        device.launch(TIMES_US[turn.config])
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    assert overlapping
    assert [set(outcome.samples_us) for outcome in outcomes] == [{100.0}, {50.0}]  # type: ignore[attr-defined]


def test_timed_calls_and_other_threads_calls_on_a_stream_await_each_other() -> None:
    device = Device()
    calls = make_calls(device)
    while not calls.times.has_begun:
        make_call(calls, device)
    timed, other, elsewhere = (call_turns.Turn(calls, DEFAULT, timed=i == 0, stream=i // 2) for i in range(3))
    timed.begin()
    elsewhere.begin()
    waiting = threading.Thread(target=other.begin)
    waiting.start()
    timed.end()
    waiting.join()
    assert not any(turn.overlapped for turn in (timed, other, elsewhere))
    other.end()
    elsewhere.end()
    assert not launch_windows.launch_windows._open


def test_where_no_call_can_be_timed_learning_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    calls = make_calls(device)
    monkeypatch.setattr(Event, "record", lambda _: raising())
    for _ in range(200):
        make_call(calls, device)
    assert calls.over


@pytest.mark.parametrize("seed", range(4))
def test_a_candidate_is_measured_however_many_calls_raise_by_themselves(seed: int) -> None:
    device, draw = Device(), random.Random(seed)
    calls = make_calls(device)
    learning = learning_of(calls)

    def make(config: Config) -> None:
        if raises:
            raise OthersError("no such batch")
        device.launch(TIMES_US[config])

    thread, outcomes = measuring(calls)
    while thread.is_alive():
        raises = draw.random() < 0.6
        with contextlib.suppress(OthersError):
            learning.run(*learning.turn(0), make)
        device.host_us = device.free_us
        time.sleep(0)
    assert [type(outcome) for outcome in outcomes] == [Measurement, Measurement]


def test_a_candidate_none_of_whose_calls_can_be_timed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    calls = make_calls(device)
    thread, outcomes = measuring(calls)
    record = Event.record
    while thread.is_alive():
        turn = calls.turn(0)
        monkeypatch.setattr(Event, "record", record if turn.trial is None else lambda _: raising())
        turn.begin()
        device.launch(TIMES_US[turn.config])
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    assert isinstance(outcomes[1], Failure)
    assert "could not be timed" in outcomes[1].message


def test_what_a_call_holds_is_given_back_where_learning_ends_meanwhile() -> None:
    device, allowance = Device(), Allowance()
    calls = make_calls(device, allowance=allowance)

    def measure() -> None:
        with pytest.raises(LearningEndedError):
            calls.measure(FAST)

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    while (turn := calls.turn()).config != FAST:
        turn.begin()
        device.launch(100.0)
        turn.end()
        device.host_us = device.free_us
        time.sleep(0)
    turn.begin()
    assert allowance._held_us > 0
    calls.end()
    device.launch(50.0)
    turn.end()
    thread.join(60)
    assert allowance._held_us == pytest.approx(0, abs=1e-3)


def test_a_device_behind_the_host_is_timed_however_long_launches_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue: each launch waits until the device has done one of those before it."""
    device = Device()
    clock = SimpleNamespace(perf_counter=lambda: device.host_us * 1e-6, monotonic=time.monotonic)
    monkeypatch.setattr(real_calls, "time", clock)
    monkeypatch.setattr(call_turns, "time", clock)
    calls = make_calls(device)
    taken = []
    for _ in range(20):
        turn = calls.turn()
        turn.begin()
        device.launch(2000.0)
        device.host_us = max(device.host_us, device.free_us - 6000.0)
        turn.end()
        taken.append(turn)
    assert calls.times[DEFAULT] == pytest.approx(2000.0)
    assert not any(turn.stalled or turn.waited for turn in taken[3:])


def test_the_end_of_learning_pays_the_head_start_of_a_call_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    program = HostBound(monkeypatch, helps=True, launch_us=lambda number: 60.0 if number < 3 else 5.0)
    while not program.kept_busy:
        program.call({DEFAULT: 10.0})
    assert program.allowance.explored_us == 0.0
    program.calls.end()
    assert program.allowance.explored_us > 20.0, "the device was kept busy for longer than the launch took"


def test_the_end_of_learning_wakes_who_waits_and_leaves_nothing_held() -> None:
    allowance, device = Allowance(), Device()
    calls = make_calls(device, allowance=allowance)
    ended = threading.Event()

    def measure() -> None:
        with pytest.raises(LearningEndedError):
            calls.measure(FAST)
        ended.set()

    threading.Thread(target=measure, daemon=True).start()
    while make_call(calls, device) != FAST:
        pass
    calls.end()
    assert ended.wait(60)
    assert math.isclose(allowance._held_us, 0.0, abs_tol=1e-6)
    assert make_call(calls, device) in (DEFAULT, FAST)
    assert not calls.turn().timed
