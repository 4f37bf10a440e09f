"""Do the ranks of one job come to one decision, whatever befalls them? Real processes and a real gloo process group.

`python -m faults.ranks --runs 1000` prints one line of JSON: runs, ranks that were to decide, how many of them were
stuck, held to the decision of their like, came to the local decision that is stated for their case, or to another one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from forecast_autotune.core.allowance import Allowance
from forecast_autotune.core.budget import NOTHING, BudgetLimits
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job, Progress
from forecast_autotune.core.outcome import Evidence, Failure, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.distributed.job_store import Patience
from forecast_autotune.frontends.deciding import decide, learn
from forecast_autotune.frontends.online.unhurried import RememberingPolicy
from forecast_autotune.frontends.request import Request
from forecast_autotune.measure.real_calls import LearningEndedError, RealCalls
from forecast_autotune.remote.fleet_store import open_store
from forecast_autotune.settings import Settings, Sync
from forecast_autotune.surrogates.base import StatelessSurrogate

LIMIT_S = 60.0
"""A rank that has not decided after so long is stuck; the longest wait of any scenario is a sixth of it."""

SPACE = Space.grid({"tile": [16, 32, 64, 128], "warps": [1, 2, 4, 8]})
BUDGET = 6
HURRIED = Patience(grace_s=0.1, beat_s=0.1, silent_s=5.0)
WARY = replace(HURRIED, silent_s=1.0)  # where one dies or stands still: on a busy machine others are silent as long
DEAF = replace(HURRIED, call_s=0.7)
MAX_PAUSE_S = 0.2  # between two calls of the kernel that ask for the decision again
SHARED_S = 0.3  # for a config: a rank that helps must have met the key before the leader is through with them all


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What befalls which rank; the others do as they should."""

    warm: Sequence[int] = ()  # have a decision of their own in their store, each another one
    absent: Sequence[int] = ()  # never meet the key
    late_s: dict[int, float] = field(default_factory=dict)
    dies: str = ""  # "leader" or "helper": the first of them that measures, while it does
    other_gpu: Sequence[int] = ()
    other_space: Sequence[int] = ()  # with one config less
    other_key: Sequence[int] = ()
    killed_within_s: float = 0.0  # one rank, drawn at random, so long after all have begun at the latest
    stopped_s: float = 0.0  # one rank, drawn at random, at a moment within as long
    restarts: bool = False  # all are killed within `killed_within_s`, or once all have decided, and start again
    harm: int | None = None  # signal for the process that serves the key-value store, once all have begun
    environment: dict[str, str] = field(default_factory=dict)
    budget: str = str(BUDGET)
    measure_s: float = 0.002
    patience: Patience = HURRIED
    local: bool = False  # every rank decides by its own store
    warnings: int = 0  # that each rank gives
    sync: Sync = "rank0"
    online: bool = False  # one rank learns from its calls, and no call of any rank waits
    devices: int = 0  # with so many, the ranks have one disk, a device each or between them, and share the work

    def kind(self, rank: int) -> str:
        """Ranks of one kind decide alike."""
        others = {"GPU": self.other_gpu, "space": self.other_space, "key": self.other_key}
        return " ".join(name for name, ranks in others.items() if rank in ranks)


SCENARIOS = {
    "all cold": Scenario(),
    "all warm": Scenario(warm=range(8)),
    "one warm": Scenario(warm=[5]),
    "one never calls": Scenario(absent=[3]),
    "rank 0 never calls": Scenario(absent=[0]),
    "the one that tunes dies": Scenario(dies="leader", measure_s=0.02, patience=WARY),
    "one has another GPU": Scenario(other_gpu=[6]),
    "one has another space": Scenario(other_space=[2]),
    "one has another key": Scenario(other_key=[0]),
    "one is killed at any moment": Scenario(killed_within_s=0.6, measure_s=0.04, patience=WARY),
    "one is stopped for seconds": Scenario(stopped_s=2.0, measure_s=0.04, patience=WARY),
    "all start again": Scenario(restarts=True),
    "all are killed at any moment and start again": Scenario(
        restarts=True, killed_within_s=0.6, measure_s=0.04, patience=WARY
    ),
    "rank 0 is late": Scenario(late_s={0: 0.5}),
    "one is late": Scenario(late_s={4: 1.0}),
    "tuning takes long": Scenario(measure_s=0.2),
    "nothing may be measured": Scenario(budget="0", warm=[2, 6]),
    "the environment says another world size": Scenario(environment={"WORLD_SIZE": "4"}, warnings=1),
    "the key-value store dies": Scenario(harm=signal.SIGKILL, local=True, warnings=1, patience=DEAF),
    "the key-value store stands still": Scenario(harm=signal.SIGSTOP, local=True, warnings=1, patience=DEAF),
    "online": Scenario(online=True),
    "online, one never calls": Scenario(online=True, absent=[3]),
    "online, rank 0 never calls": Scenario(online=True, absent=[0]),
    "online, one is late": Scenario(online=True, late_s={4: 1.0}),
    "online, one is killed at any moment": Scenario(online=True, killed_within_s=0.6, patience=WARY),
    "online, one is stopped for seconds": Scenario(online=True, stopped_s=2.0, patience=WARY),
    "each for itself": Scenario(sync="none", local=True),
    "shared, a device each": Scenario(devices=8, measure_s=SHARED_S),
    "shared, two on each device": Scenario(devices=4, measure_s=SHARED_S),
    "shared, the one that leads dies": Scenario(devices=8, dies="leader", measure_s=SHARED_S, patience=WARY),
    "shared, one that helps dies": Scenario(devices=8, dies="helper", measure_s=SHARED_S, patience=WARY),
}


class Toy:
    """Compiler and measurer of a kernel whose best config is another one on every rank: alone, no two would agree."""

    workers = 1
    overlaps_timing = True  # so that nothing but finalists is timed in a pause
    repeatable = True
    explored_s = saved_s = 0.0

    def __init__(self, rank: int, measure_s: float, before: Callable[[int], None]) -> None:
        self.rank = rank
        self.measure_s = measure_s
        self.before = before
        self.measured: list[Config] = []
        self.spans: list[tuple[float, float]] = []
        self.again = False  # finalists are measured, which others may have tried

    def compile(
        self, configs: Iterable[Config], **_: object
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        for config in configs:
            yield config, Evidence(compile_s=0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.again = True
        yield
        self.again = False

    def prepare(self) -> None:
        pass

    def skip_default(self) -> None:
        pass

    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        self.before(len(self.measured))
        if not self.again:
            self.measured.append(config)
        began = time.monotonic()
        time.sleep(self.measure_s)
        self.spans.append((began, time.monotonic()))
        us = 10.0 + (SPACE.index(config) * 7 + self.rank * 5) % len(SPACE)
        return Measurement(samples_us=(us, us * 1.001, us * 0.999))


class Moment:
    """An event of a device that is always through with what it was given; see `call_events.Event`."""

    now_us = 0.0

    def record(self) -> None:
        self.at_us = Moment.now_us

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Moment) -> float:
        return (later.at_us - self.at_us) * 1e-3


class Blind(StatelessSurrogate):
    """Knows nothing."""

    name = "blind"

    def forecast(self, context: ForecastContext, *_: object) -> Sequence[Abstention]:
        return [Abstention(self.name, "knows nothing")] * len(context.job.space)


def job_of(kind: str) -> Job:
    program = Program(name="toy", language="triton", source="def toy(): pass")
    return Job(
        workload=Workload(program=program, key={"n": 8192 if "key" in kind else 4096}),
        space=Space(list(SPACE)[:-1]) if "space" in kind else SPACE,
        hardware=Hardware(kind="cuda", name="another GPU" if "GPU" in kind else "a GPU", units=132),
        toolchain=Toolchain(versions={"triton": "3.9.0"}),
    )


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank reports of its decision."""

    rank: int
    config: str
    basis: str
    first: str  # basis of what its first call ran
    calls: int  # that asked for the decision, until one held
    tried: list[str]  # by this rank; finalists do not count again
    spans: list[list[float]]  # when it measured; one clock for all processes of a machine
    warnings: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a scenario: what each rank reported, and who never reported though it should have."""

    scenario: Scenario
    reports: list[RankReport]
    stuck: list[int]
    died: list[int]
    stopped: Sequence[int] = ()  # for a while: when they were silent for too long, another took over
    before: Sequence[RankReport] = ()  # the start that was killed

    def count(self) -> Counter[str]:
        """How many ranks agreed with their like, came to the stated local decision, were stuck, or went wrong."""
        kinds: dict[str, list[RankReport]] = {}
        for report in [*self.before, *self.reports]:
            kinds.setdefault(self.scenario.kind(report.rank), []).append(report)
        counted = Counter({"ranks": len(self.reports) + len(self.stuck), "stuck": len(self.stuck)})
        for like in kinds.values():
            for report in like[sum(t in self.before for t in like) :]:
                right = len(report.warnings) == self.scenario.warnings
                if self.scenario.local:
                    counted["local" if right and report.tried else "wrong"] += 1
                else:
                    counted["agreed" if right and report.config == like[0].config else "wrong"] += 1
        if self.scenario.devices and self.broken_promise():
            counted["wrong"] += 1
        if self.scenario.online and not self.died and len(self.explorers()) > 1:
            counted["wrong"] += 1
        return counted

    def explorers(self) -> list[int]:
        """The ranks that learned from calls, but those that stood still and were taken over from."""
        return [report.rank for report in self.reports if report.tried and report.rank not in self.stopped]

    def broken_promise(self) -> str:
        """What went wrong when the work was shared, if anything did."""
        tried = [config for report in self.reports for config in report.tried]
        if not self.died and len(tried) > BUDGET:
            return f"{len(tried)} configs were tried by a budget of {BUDGET}, {len(set(tried))} different ones"
        for device in range(self.scenario.devices):
            spans = sorted(s for r in self.reports if r.rank % self.scenario.devices == device for s in r.spans)
            if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
                return f"two processes measured at once on device {device}"
        return ""


def run(
    scenario: Scenario,
    folder: Path,
    *,
    ranks: int = 8,
    limit_s: float = LIMIT_S,
    chance: random.Random | None = None,
) -> Run:
    """Fork the ranks, let them form a process group, do what the scenario says, and hear their decisions.

    torch is imported in the caller, or each rank would take seconds for it.
    """
    chance = chance or random.Random(0)
    made = _start(scenario, folder, ranks, limit_s, chance)
    if not scenario.restarts or made.stuck:
        return made
    return replace(
        _start(replace(scenario, restarts=False, killed_within_s=0.0), folder, ranks, limit_s, chance),
        before=made.reports,
    )


def _start(scenario: Scenario, folder: Path, ranks: int, limit_s: float, chance: random.Random) -> Run:
    import torch.distributed  # noqa: F401

    agent, port = _fork_agent()
    gate_r, gate_w = os.pipe()  # closed by this process when all are ready
    release_r, release_w = os.pipe()  # closed by this process when all is over
    children: dict[int, tuple[int, int]] = {}
    try:
        for rank in range(ranks):
            report_r, report_w = os.pipe()
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(OSError):
                    for end in (report_r, gate_w, release_w, *(end for _, end in children.values())):
                        os.close(end)
                _child(partial(_be_rank, scenario, folder, rank, ranks, port, gate_r, release_r, report_w))
            os.close(report_w)
            children[rank] = pid, report_r
        lines = _Lines({rank: end for rank, (_, end) in children.items()})
        unready = lines.wait(1, limit_s)
        if scenario.harm is not None:
            os.kill(agent, scenario.harm)
        os.close(gate_w)
        gate_w = -1
        struck: list[int] = []
        stopped: list[int] = []
        if not unready:
            struck, stopped = _strike(scenario, {rank: pid for rank, (pid, _) in children.items()}, chance)
            lines.wait(2, limit_s, but=scenario.absent)
        reports = [RankReport(**json.loads(texts[1])) for texts in lines.written.values() if len(texts) > 1]
        died = [rank for rank in lines.ended if len(lines.written[rank]) == 1 and (scenario.dies or rank in struck)]
        silent = set(range(ranks)) - {t.rank for t in reports} - set(scenario.absent) - set(died)
        return Run(scenario=scenario, reports=reports, stuck=sorted(silent), died=died, stopped=stopped)
    finally:
        for end in (gate_w, release_w, gate_r, release_r):
            with contextlib.suppress(OSError):
                os.close(end)
        for pid, report_r in children.values():
            os.close(report_r)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)


def _strike(scenario: Scenario, pids: dict[int, int], chance: random.Random) -> tuple[list[int], list[int]]:
    """Kill or stop what is to be, at a moment drawn at random; returns the ranks that were killed, and that were stopped."""
    drawn = chance.choice(sorted(pids))
    stopped = [drawn] if scenario.stopped_s else []
    if scenario.stopped_s:
        time.sleep(chance.uniform(0.0, scenario.stopped_s / 4))
        os.kill(pids[drawn], signal.SIGSTOP)
        time.sleep(scenario.stopped_s)
        os.kill(pids[drawn], signal.SIGCONT)
    if not scenario.killed_within_s:
        return [], stopped
    time.sleep(chance.uniform(0.0, scenario.killed_within_s))
    struck = sorted(pids) if scenario.restarts else [drawn]
    for rank in struck:
        os.kill(pids[rank], signal.SIGKILL)
    return struck, stopped


def _child(work: Callable[[], Any]) -> None:
    """Do a child's work and end it here: nothing of the parent's is run on the way out."""
    try:
        work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def _fork_agent() -> tuple[int, int]:
    """A process that serves the key-value store, as torchrun's agent does; its pid and port."""
    port_r, port_w = os.pipe()
    pid = os.fork()
    if pid == 0:

        def serve() -> None:
            from torch.distributed import TCPStore

            server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(port_w, f"{server.port}\n".encode())
            while True:
                time.sleep(3600)

        _child(serve)
    os.close(port_w)
    with os.fdopen(port_r) as pipe:
        return pid, int(pipe.readline())


def _be_rank(
    scenario: Scenario, folder: Path, rank: int, ranks: int, port: int, gate: int, release: int, report: int
) -> None:
    import torch.distributed

    os.environ.update(scenario.environment)
    if scenario.harm is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch tells at length of a server that is gone
    store = torch.distributed.TCPStore(
        "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30), wait_for_workers=False
    )
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    os.write(report, b"ready\n")
    os.read(gate, 1)
    if rank not in scenario.absent:
        time.sleep(scenario.late_s.get(rank, 0.0))
        decided = (_learn if scenario.online else _decide)(scenario, folder, rank)
        os.write(report, (json.dumps(asdict(decided)) + "\n").encode())
    os.read(release, 1)


def _decide(scenario: Scenario, folder: Path, rank: int) -> RankReport:
    shared = scenario.devices > 0
    settings = Settings(sync="store" if shared else scenario.sync, dir=folder / ("shared" if shared else str(rank)))
    request = Request(
        settings=settings,
        budget=BudgetLimits.parse(scenario.budget),
        surrogate=Blind(),
        shard=shared,
        patience=scenario.patience,
    )
    job = job_of(scenario.kind(rank))
    store = open_store(settings)
    if rank in scenario.warm:
        store.record_decision(job, _own_decision(job, rank))
    limit = 0.0

    def hear(progress: Progress) -> None:
        nonlocal limit
        limit = progress.limit

    def die_once(measured: int) -> None:
        helps = limit > BUDGET  # the budget is the leader's affair
        # Others may take all configs but the one that a leader begins with: it may come to no second.
        if scenario.dies == ("helper" if helps else "leader") and measured == (0 if shared else 1):
            if not helps:
                time.sleep(scenario.measure_s / 2)  # in which others take some
            with contextlib.suppress(FileExistsError):
                (folder / "died").mkdir()
                os.kill(os.getpid(), signal.SIGKILL)

    toy = Toy(rank, scenario.measure_s, die_once)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device = f"device {rank % scenario.devices}" if shared else ""
        acting: dict[str, Any] = {"compiler": toy, "measurer": toy, "store": store, "listener": hear, "device": device}
        latest = first = decide(job, request, **acting)
        calls, pause_s = 1, latest.retry_after_s
        # The calls that follow, as a front end makes them.
        while pause_s is not None and latest.retry_after_s is not None:
            time.sleep(pause_s)
            calls, pause_s = calls + 1, min(2 * pause_s, MAX_PAUSE_S)
            latest = decide(job, request, previous_decision=latest.decision, **acting)
    return RankReport(
        rank=rank,
        config=latest.decision.config.text,
        basis=latest.decision.basis,
        first=first.decision.basis,
        calls=calls,
        tried=[c.text for c in dict.fromkeys(toy.measured)],
        spans=[list(span) for span in toy.spans],
        warnings=[str(w.message) for w in caught],
        seconds=time.monotonic() - began,
    )


def _learn(scenario: Scenario, folder: Path, rank: int) -> RankReport:
    """As a front end does it in mode online: calls go on, and a thread learns from them."""
    settings = Settings(mode="online", sync="rank0", dir=folder / str(rank))
    request = Request(
        settings=settings,
        budget=NOTHING,
        learns=BudgetLimits.parse(BUDGET),
        surrogate=Blind(),
        patience=scenario.patience,
    )
    job, store = job_of(scenario.kind(rank)), open_store(settings)
    toy, observed = Toy(rank, 0.0, lambda _: None), RememberingPolicy()
    decided: list[Decision] = []
    tried: dict[Config, None] = {}
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = decide(job, request, compiler=toy, measurer=toy, store=store)
        calls = RealCalls(
            incumbent=first.decision.config,
            default=SPACE.default,
            allowance=Allowance(),
            share=0.05,
            new_event=Moment,
        )

        def learns() -> None:
            with contextlib.suppress(LearningEndedError):
                while True:
                    learned = learn(job, request, compiler=toy, calls=calls, observed=observed, store=store)
                    if learned.retry_after_s is None:
                        decided.append(learned.decision)
                        return
                    calls.rest(MAX_PAUSE_S)

        thread = threading.Thread(target=learns, daemon=True)
        thread.start()
        count = 0
        while not decided and thread.is_alive():
            turn = calls.turn()
            turn.begin()
            Moment.now_us += 10.0 + (SPACE.index(turn.config) * 7 + rank * 5) % len(SPACE)
            turn.end()
            if turn.trial is not None:
                tried[turn.config] = None
            count += 1
            time.sleep(1e-4)
        thread.join()
    return RankReport(
        rank=rank,
        config=decided[0].config.text if decided else "",
        basis=decided[0].basis if decided else "",
        first=first.decision.basis,
        calls=count,
        tried=[config.text for config in tried],
        spans=[],
        warnings=[str(w.message) for w in caught],
        seconds=time.monotonic() - began,
    )


def _own_decision(job: Job, rank: int) -> Decision:
    return Decision(
        config=SPACE[rank + 1],
        basis="measured",
        reason="from an earlier job",
        space_digest=job.space.digest,
        space_size=len(SPACE),
        budget=str(BUDGET),
        tried=BUDGET,
        run=f"earlier-{rank}",
    )


class _Lines:
    """Lines that children write, until each has written enough or ended."""

    def __init__(self, ends: dict[int, int]) -> None:
        self._ends = ends
        self._text = dict.fromkeys(ends, "")
        self.written: dict[int, list[str]] = {rank: [] for rank in ends}
        self.ended: set[int] = set()

    def wait(self, lines: int, limit_s: float, *, but: Sequence[int] = ()) -> list[int]:
        """Wait for so many lines of each child; returns those that did not write them."""
        deadline = time.monotonic() + limit_s
        while waiting := [
            r for r in self._ends if len(self.written[r]) < lines and r not in self.ended and r not in but
        ]:
            ready, _, _ = select.select([self._ends[r] for r in waiting], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in waiting:
                if self._ends[rank] in ready:
                    self._read(rank)
        return [r for r in self._ends if len(self.written[r]) < lines and r not in but]

    def _read(self, rank: int) -> None:
        text = os.read(self._ends[rank], 65536).decode()
        if not text:
            self.ended.add(rank)
        *whole, self._text[rank] = (self._text[rank] + text).split("\n")
        self.written[rank] += whole


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--ranks", type=int, default=8)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--scenario", choices=SCENARIOS, action="append", help="this one alone, or those given; otherwise each in turn"
    )
    arguments.add_argument("--each", action="store_true", help="a line for each run as well")
    given = arguments.parse_args()
    names = given.scenario or list(SCENARIOS)
    chance = random.Random(given.seed)
    began = time.monotonic()
    counted: Counter[str] = Counter()
    longest_s = 0.0
    for number in range(given.runs):
        name = names[number % len(names)] if number < len(names) else chance.choice(names)
        with tempfile.TemporaryDirectory() as folder:
            made = run(SCENARIOS[name], Path(folder), ranks=given.ranks, chance=chance)
        result = made.count()
        if given.each:
            reports = [asdict(t) for t in made.reports]
            print(json.dumps({"scenario": name, **result, "died": made.died, "told": reports}), flush=True)
        counted += result
        longest_s = max([longest_s, *(t.seconds for t in made.reports)])
        if result["stuck"] or result["wrong"]:
            print(
                f"run {number}, {name}: {dict(result)} {made.reports} {made.stuck} {made.broken_promise()}",
                file=sys.stderr,
                flush=True,
            )
    shown = {name: counted[name] for name in ("ranks", "stuck", "agreed", "local", "wrong")}
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"runs": given.runs, **shown, "longest_s": round(longest_s, 2), "seconds": seconds}))
    return 1 if counted["stuck"] or counted["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
