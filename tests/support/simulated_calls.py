"""Real calls without a device: a program that calls one kernel, a device that runs behind it, and the loop that learns."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forecast_autotune.core.allowance import Allowance
from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.outcome import Evidence, Failure, Measurement
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.replay_runner import HistoryStore
from forecast_autotune.frontends.online.unhurried import RememberingPolicy
from forecast_autotune.measure.call_turns import Turn
from forecast_autotune.measure.real_calls import LearningEndedError, RealCalls
from forecast_autotune.protocols import Policy, Surrogate, without_limit
from forecast_autotune.tuning.loop import tune

LIMIT_S = 120.0  # against a hang


class Device:
    """Runs what is launched in turn, behind the host; its events are done when it has come so far."""

    def __init__(self) -> None:
        self.host_us = self.free_us = 0.0
        self.record_us = 0.0  # what recording an event takes the host

    def launch(self, us: float) -> None:
        self.free_us = max(self.free_us, self.host_us) + us

    def event(self) -> Event:
        return Event(self)


@dataclass
class Event:
    device: Device
    at_us: float = math.nan

    def record(self) -> None:
        self.at_us = max(self.device.free_us, self.device.host_us)
        self.device.host_us += self.device.record_us

    def query(self) -> bool:
        return self.device.host_us >= self.at_us

    def elapsed_time(self, later: Event) -> float:
        return (later.at_us - self.at_us) * 1e-3


class Builds:
    """A compiler that takes no time."""

    workers = 1
    overlaps_timing = True

    def __init__(self, recorded: RecordedSpace) -> None:
        self._outcomes = recorded.recording.outcomes

    def compile(
        self, configs: Iterable[Config], *, workers: int | None = None, on_wait: Any = without_limit
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        waiting: deque[Config] = deque()
        chosen = iter(configs)
        while True:
            while len(waiting) < (workers or self.workers) and (config := next(chosen, None)) is not None:
                waiting.append(config)
            if not waiting:
                return
            config = waiting.popleft()
            outcome = self._outcomes[config]
            fails = isinstance(outcome, Failure) and outcome.stage in ("compile", "resources", "timeout")
            yield config, outcome if fails and isinstance(outcome, Failure) else Evidence(compile_s=0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        yield


@dataclass
class Life:
    """What befalls the calls of a key.

    Attributes:
        noise: standard deviation of a call's time, as a share.
        drift: by which share the device gets slower and back within `period` calls.
        spikes: chance that a call takes ten times as long.
        ahead: how many calls the host may be ahead of the device.
        load_us: what loading a candidate takes.
        streams: how many the calls are spread over.
    """

    noise: float = 0.01
    drift: float = 0.0
    period: int = 400
    spikes: float = 0.0
    ahead: int = 8
    load_us: float = 500.0
    streams: int = 1
    seed: int = 0


@dataclass
class Learned:
    """What came of it."""

    decision: Decision | None
    calls: int
    kernels_us: float = 0.0
    explored_us: float = 0.0  # what candidates took longer than what would have run, loading included
    costliest_us: float = 0.0  # of its launches
    most_over_us: float = 0.0  # by how much the bound was exceeded when a candidate began
    launched: list[Config] = field(default_factory=list)  # candidates, in their order


def learn_from_calls(
    recorded: RecordedSpace,
    *,
    surrogate: Surrogate,
    policy: Policy,
    budget: str = "16",
    life: Life | None = None,
    share: float = 0.05,
    most_calls: int = 200_000,
    incumbent: Config | None = None,
    end_after: int | None = None,
) -> Learned:
    """Call a kernel until its key is decided; each call takes its recorded time, as `life` has it.

    The program stands still while the loop thinks, so that a run does not depend on the machine.
    """
    life = life or Life()
    chance = random.Random(life.seed)
    device, allowance, observed = Device(), Allowance(), RememberingPolicy()
    observed.policy = policy
    waits, done = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        waits.set()
        try:
            yield
        finally:
            waits.clear()

    calls = RealCalls(
        incumbent=incumbent or recorded.space.default,
        default=recorded.space.default,
        allowance=allowance,
        share=share,
        new_event=device.event,
        expected=observed.expected,
        seed=life.seed,
        waiting=waiting,
    )
    decisions: list[Decision] = []

    def loop() -> None:
        with contextlib.suppress(LearningEndedError):
            decisions.append(
                tune(
                    recorded.job,
                    compiler=Builds(recorded),
                    surrogate=surrogate,
                    policy=observed,
                    measurer=calls,
                    store=HistoryStore(),
                    budget=Budget(budget),
                ).decision
            )
        done.set()
        waits.set()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    learned = Learned(None, 0)
    while not done.is_set() and learned.calls < most_calls:
        if not waits.wait(LIMIT_S):
            raise AssertionError("the loop thinks without end")
        if learned.calls == end_after:
            calls.end()
        _call(calls, recorded, device, life, chance, learned, share)
        # What the loop is waiting for is there: let it go on before the next call.
        trial = calls._schedule.trial
        if trial is not None and trial.outcome is not None:
            _let_go_on(calls, trial, done)
    calls.end()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    learned.decision = decisions[0] if decisions else None
    return learned


def _let_go_on(calls: RealCalls, trial: Any, done: threading.Event) -> None:
    """Wait until the loop has taken a result and waits for the next one, or is done."""
    wait = threading.Event()
    for _ in range(int(LIMIT_S * 2000)):
        if done.is_set() or (calls._schedule.trial is not None and calls._schedule.trial is not trial):
            return
        wait.wait(0.0005)
    raise AssertionError("the loop thinks without end")


def _call(
    calls: RealCalls,
    recorded: RecordedSpace,
    device: Device,
    life: Life,
    chance: random.Random,
    learned: Learned,
    share: float,
) -> None:
    learned.calls += 1
    slower = 1 + life.drift * (0.5 - 0.5 * math.cos(2 * math.pi * learned.calls / life.period))
    factor = slower * math.exp(chance.gauss(0.0, life.noise)) * (10.0 if chance.random() < life.spikes else 1.0)
    usual = recorded.recording.outcomes[calls.incumbent]
    assert isinstance(usual, Measurement)
    turn = calls.turn(chance.randrange(life.streams))
    outcome = recorded.recording.outcomes[turn.config]
    is_candidate = turn.trial is not None and turn.config != calls.incumbent
    if is_candidate:
        learned.launched.append(turn.config)
        learned.most_over_us = max(learned.most_over_us, learned.explored_us - share * learned.kernels_us)
    if turn.first and turn.trial is not None:
        turn.load_us = life.load_us
        device.host_us += life.load_us
        learned.explored_us += life.load_us
    if isinstance(outcome, Failure):
        turn.failed(outcome.message)
        _launch(device, usual.median_us * factor, None)
        learned.kernels_us += usual.median_us * factor
    else:
        _launch(device, outcome.median_us * factor, turn)
        learned.kernels_us += outcome.median_us * factor
        if is_candidate:
            cost_us = max(0.0, outcome.median_us - usual.median_us) * factor
            learned.explored_us += cost_us
            learned.costliest_us = max(learned.costliest_us, cost_us + life.load_us)
    ahead_us = life.ahead * usual.median_us
    device.host_us = max(device.host_us + 5.0, device.free_us - ahead_us)


def _launch(device: Device, us: float, turn: Turn | None) -> None:
    if turn is not None:
        turn.begin()
    device.launch(us)
    if turn is not None:
        turn.end()
