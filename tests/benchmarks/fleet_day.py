"""A day of a fleet, simulated: what it costs in requests and bytes, and what it saves.

    python tests/benchmarks/fleet_day.py [--machines 1000] [--storage memory|file|s3]

Machines run models; a model meets its programs, each at a few keys, whenever its job starts. At nine a release changes a
third of the programs and all jobs start anew within half an hour. A key that is not known to be decided is tuned, 20 s.
What is read and sent goes through `Exchange`, with real segments of 16 outcomes; the clock and what a machine has read are
simulated, and with `--storage memory` the storage; else it is a folder, or rclone speaking S3's protocol. One request in
a hundred fails. At four, one machine compacts.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

from contracts.store_contract import HARDWARE, a_decision, a_job, a_measurement  # noqa: E402
from s3_server import BUCKET, s3_environment, s3_server  # noqa: E402

from forecast_autotune.core.job import Job  # noqa: E402
from forecast_autotune.core.space import Space  # noqa: E402
from forecast_autotune.errors import RemoteStoreError  # noqa: E402
from forecast_autotune.remote import segments, sync  # noqa: E402
from forecast_autotune.remote.exchange import Exchange  # noqa: E402
from forecast_autotune.remote.location import ListedSegment, Location  # noqa: E402
from forecast_autotune.remote.segments import Contents  # noqa: E402
from forecast_autotune.store import rows  # noqa: E402
from forecast_autotune.store.jsonl import Decided, Run  # noqa: E402
from forecast_autotune.store.rows import StoredOutcome, TuningKey  # noqa: E402

DAY_S, HOUR_S = 86_400.0, 3_600.0
PAGE = 1_000  # objects of a listing's page, which is a request
LISTED_BYTES = 300  # of an object in a listing of S3's, about
STARTS = 6  # of each machine's job, a day, besides the release's
MODELS, PROGRAMS, KEYS, POOL = 12, 20, 6, 120  # programs of a model, keys of a program, programs in all
TUNING_S, KEY_EVERY_S = 20.0, 4.0
FAILING = 0.01
SPACE = Space.grid({"BLOCK": [16, 32, 64, 128, 256], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4]})
GPUS = tuple(replace(HARDWARE, name=name, memory_gib=gib) for name, gib in (("H100", 80), ("H200", 141), ("B200", 180)))


class Storage(Location):
    """Objects in memory, and what was asked of them; with a URL, what is asked is asked of the storage there too.

    What is in memory beside it says how many pages a listing has, and that the storage gave what it should.
    """

    def __init__(self, draw: random.Random, url: str = "") -> None:
        super().__init__(url or "memory://simulated")
        self.is_real = bool(url)
        self.folders: dict[tuple[str, str], dict[str, tuple[ListedSegment, bytes]]] = {}
        self.asked: Counter[str] = Counter()
        self.draw = draw
        self.failing = FAILING

    def ask(self, verb: str, count: int = 1, size: int = 0) -> None:
        self.asked[verb] += count
        self.asked[f"{verb} bytes"] += size
        if self.draw.random() < self.failing:
            self.asked["failed"] += 1
            raise RemoteStoreError("by chance")

    def segments(self, hardware: str, program: str) -> list[ListedSegment]:
        found = [listed for listed, _ in self.folders.get((hardware, program), {}).values()]
        # An empty folder is asked for twice by s3fs, which looks whether it is a file.
        self.ask("LIST", -(-len(found) // PAGE) or 2, LISTED_BYTES * len(found))
        if self.is_real:
            there = super().segments(hardware, program)
            assert {s.name for s in there} == {s.name for s in found}
            return there
        return found

    def hardware(self) -> list[str]:
        self.ask("LIST")
        return sorted({hardware for hardware, _ in self.folders})

    def all_segments(self) -> list[ListedSegment]:
        found = [listed for folder in self.folders.values() for listed, _ in folder.values()]
        self.ask("LIST", len(found) // PAGE + 1, LISTED_BYTES * len(found))
        return found

    def read(self, segments: Sequence[ListedSegment]) -> Iterator[tuple[ListedSegment, bytes]]:
        if self.is_real:
            for segment, data in super().read(segments):
                self.ask("GET", size=len(data))
                yield segment, data
            return
        for segment in segments:
            data = self.folders[segment.hardware, segment.program][segment.name][1]
            self.ask("GET", size=len(data))
            yield segment, data

    def write(self, hardware: str, program: str, name: str, data: bytes) -> None:
        self.ask("PUT", size=len(data))
        listed = ListedSegment(hardware=hardware, program=program, name=name, size=len(data), at=rows.now())
        if self.is_real:
            super().write(hardware, program, name, data)
            data = b""  # who reads it gets the storage's
        self.folders.setdefault((hardware, program), {})[name] = listed, data

    def remove(self, segments: Sequence[ListedSegment]) -> None:
        if self.is_real:
            super().remove(segments)
        for segment in segments:
            self.ask("DELETE")
            del self.folders[segment.hardware, segment.program][segment.name]


@dataclass
class Read:
    """What a machine has read: in the place of a `Mirror`, without its SQLite."""

    folder: None = None
    names: set[str] = field(default_factory=set)
    listed: dict[tuple[str, str], float] = field(default_factory=dict)
    decisions: dict[str, tuple[float, str]] = field(default_factory=dict)  # by key: when, and for which config

    def listed_at(self, hardware: str, program: str) -> float:
        return self.listed.get((hardware, program), 0.0)

    def unread(self, listing: Sequence[ListedSegment]) -> list[ListedSegment]:
        return [segment for segment in listing if segment.name not in self.names]

    def keep_listing(self, hardware: str, program: str, listing: Sequence[ListedSegment]) -> None:
        self.listed[hardware, program] = rows.now()

    def take(self, read: Sequence[tuple[ListedSegment, Contents | None]]) -> tuple[int, int]:
        for segment, contents in read:
            self.names.add(segment.name)
            for key, decided in decisions_in(segment.name, contents):
                self.learn(key, decided)
        return 0, 0

    def learn(self, key: str, decided: tuple[float, str]) -> None:
        self.decisions[key] = max(decided, self.decisions.get(key, decided))


_DECISIONS: dict[str, list[tuple[str, tuple[float, str]]]] = {}


def decisions_in(name: str, contents: Contents | None) -> list[tuple[str, tuple[float, str]]]:
    """The decisions of a segment, looked for once and not once a machine."""
    if name not in _DECISIONS:
        decided = [entry for entry in (contents.entries if contents else ()) if isinstance(entry, Decided)]
        _DECISIONS[name] = [(key_of(d.tuning_key), (d.decision.decided_at, d.decision.config.text)) for d in decided]
    return _DECISIONS[name]


@functools.cache
def job_of(program: int, release: int, key: int, gpu: int) -> Job:
    source = f"def kernel_{program}(x):\n    {release}\n"
    return a_job(name=f"kernel {program}", source=source, key={"n": key}, space=SPACE, hardware=GPUS[gpu])


def key_of(tuning_key: TuningKey) -> str:
    return " ".join(tuning_key.digests)


class Day:
    """One day; events are calls at moments."""

    def __init__(self, machines: int, seed: int, url: str) -> None:
        self.draw = random.Random(seed)
        self.storage = Storage(self.draw, url)
        self.now = 1_000_000.0
        self.begins = self.now
        self.events: list[tuple[float, int, Any]] = []
        self.counted: Counter[str] = Counter()
        self.ages_s: list[float] = []
        self.machines: list[tuple[int, list[int], Read, Exchange]] = []
        models = [self.draw.sample(range(POOL), PROGRAMS) for _ in range(MODELS)]
        for number in range(machines):
            read = Read()
            exchange = Exchange(None, read, self.storage, sources=False, complain=print)  # type: ignore[arg-type]
            gpu = self.draw.choices(range(len(GPUS)), (6, 3, 1))[0]
            self.machines.append((gpu, models[number % MODELS], read, exchange))
            starts = [self.draw.uniform(0, DAY_S) for _ in range(STARTS)] + [9 * HOUR_S + self.draw.uniform(0, 1_800)]
            for start in starts:
                self.at(start, functools.partial(self.start, number))
        self.at(4 * HOUR_S, self.compact)

    def at(self, second: float, call: Any) -> None:
        heapq.heappush(self.events, (self.begins + second, len(self.events), call))

    def later(self, seconds: float, call: Any) -> None:
        self.at(self.now - self.begins + seconds, call)

    def run(self) -> None:
        while self.events:
            self.now, _, call = heapq.heappop(self.events)
            call()

    def release(self, program: int) -> int:
        return int(program % 3 == 0 and self.now - self.begins >= 9 * HOUR_S)

    def start(self, number: int) -> None:
        """A machine's job starts, and meets its keys one after the other."""
        keys = [(program, key) for program in self.machines[number][1] for key in range(KEYS)]
        self.meet(number, keys)

    def meet(self, number: int, keys: list[tuple[int, int]]) -> None:
        if not keys:
            return
        (program, key), rest = keys[0], keys[1:]
        gpu, _, read, exchange = self.machines[number]
        job = job_of(program, self.release(program), key, gpu)
        known = read.decisions.get(key_of(TuningKey.of(job)))
        try:
            exchange.pull(job.hardware.digest, job.workload.program, fresh_s=sync.FRESH_S)
            if key == 0:
                hardware, kernel = job.hardware.digest, job.workload.program
                exchange.pull_from_other_hardware(hardware, kernel, fresh_s=sync.OTHERS_FRESH_S)
        except RemoteStoreError:
            pass
        arrived = read.decisions.get(key_of(TuningKey.of(job)))
        self.counted["calls of keys"] += 1
        if arrived is None:
            self.counted["tuned"] += 1
            self.later(TUNING_S, functools.partial(self.decide, number, job))
            self.later(TUNING_S + KEY_EVERY_S, functools.partial(self.meet, number, rest))
            return
        self.counted["known here" if known else "learned from others"] += 1
        if known is None:
            self.ages_s.append(self.now - arrived[0])
        self.later(KEY_EVERY_S, functools.partial(self.meet, number, rest))

    def decide(self, number: int, job: Job) -> None:
        _, _, read, exchange = self.machines[number]
        tuning_key, tried = TuningKey.of(job), self.draw.sample(list(job.space), 16)
        outcomes = tuple(
            StoredOutcome(
                config=config, outcome=self.measurement(), forecast=None, default=job.space.default,
                run=f"{self.draw.random()}", recorded_at=self.now,
            )
            for config in tried
        )  # fmt: skip
        decision = a_decision(job, tried[0], decided_at=self.now, run=f"{self.draw.random()}")
        contents = Contents(
            entries=(
                Run(tuning_key=tuning_key, outcomes=outcomes),
                Decided(tuning_key=tuning_key, decision=decision, superseded_at=None),
            )
        )
        read.learn(key_of(tuning_key), (self.now, tried[0].text))
        self.send(exchange, read, job, contents)

    def measurement(self) -> Any:
        return replace(a_measurement(), samples_us=tuple(self.draw.gauss(100, 2) for _ in range(32)))

    def send(self, exchange: Exchange, read: Read, job: Job, contents: Contents) -> None:
        try:
            written = exchange._write(job.hardware.digest, job.workload.program.digest, contents)
            read.names.update(segment.name for segment in written)
        except RemoteStoreError:
            self.later(sync.FIRST_PAUSE_S, functools.partial(self.send, exchange, read, job, contents))

    def compact(self) -> None:
        before = Counter(self.storage.asked)
        self.storage.failing = 0.0
        written, removed = self.machines[0][3].compact()
        self.storage.failing = FAILING
        self.counted["segments compacted"] += len(removed)
        self.counted["segments after"] += len(written)
        for verb in ("LIST", "GET", "PUT", "DELETE"):
            self.counted[f"compacting {verb}"] += self.storage.asked[verb] - before[verb]


def disagreeing(day: Day) -> tuple[int, int]:
    """Keys on which machines disagree when the day is over and each has read once more; and keys in all."""
    held: dict[str, set[str]] = {}
    day.storage.ask = lambda *_, **__: None  # type: ignore[method-assign]  # it is not part of the day
    for gpu, programs, read, exchange in day.machines:
        for program in programs:
            for release in (0, 1):
                job = job_of(program, release, 0, gpu)
                exchange.pull(job.hardware.digest, job.workload.program)
        for key, (_, config) in read.decisions.items():
            if GPUS[gpu].digest in key:  # others' seed its forecasts and are read once an hour
                held.setdefault(key, set()).add(config)
    return sum(len(configs) > 1 for configs in held.values()), len(held)


def main() -> None:
    """Print the day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storage", choices=("memory", "file", "s3"), default="memory")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = ""
        if arguments.storage != "memory":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = f"file://{folder}"
        if arguments.storage == "s3":
            server = stack.enter_context(s3_server(folder))
            os.environ.update(s3_environment(server.url))
            url = f"s3://{BUCKET}/tuning"
        report(arguments, Day(arguments.machines, arguments.seed, url))


def report(arguments: argparse.Namespace, day: Day) -> None:
    """Let the day pass, and print it."""
    began = time.perf_counter()
    rows.now = lambda: day.now
    segments.decode = functools.cache(segments.decode)  # each is decoded once, not once a machine
    segments.not_after = lambda contents, at: contents  # all clocks are right
    day.run()
    asked, counted = day.storage.asked, day.counted
    apart, keys = disagreeing(day)
    requests = sum(asked[verb] for verb in ("LIST", "GET", "PUT", "DELETE"))
    size = sum(n for verb, n in asked.items() if verb.endswith("bytes"))
    ages = sorted(day.ages_s)
    alone = (
        len(
            {
                (n, p, r)
                for n, (_, ps, _, _) in enumerate(day.machines)
                for p in ps
                for r in ((0, 1) if p % 3 == 0 else (0,))
            }
        )
        * KEYS
    )
    print(
        json.dumps(
            {
                "machines": arguments.machines,
                "storage": arguments.storage,
                "keys": keys,
                "calls_of_keys": counted["calls of keys"],
                "tuned": counted["tuned"],
                "tuned_if_each_machine_were_alone": alone,
                "known_here": counted["known here"],
                "learned_from_others": counted["learned from others"],
                "requests": {verb: asked[verb] for verb in ("LIST", "GET", "PUT", "DELETE")},
                "of_them_to_compact": {
                    verb: counted[f"compacting {verb}"] for verb in ("LIST", "GET", "PUT", "DELETE")
                },
                "failed_requests": asked["failed"],
                "MB": {verb: round(asked[f"{verb} bytes"] / 1e6, 1) for verb in ("LIST", "GET", "PUT")},
                "requests_a_machine": round(requests / arguments.machines, 1),
                "kB_a_machine": round(size / 1e3 / arguments.machines, 1),
                "requests_for_each_decision": round(requests / counted["tuned"], 1),
                "bytes_of_a_segment": round(asked["PUT bytes"] / asked["PUT"]),
                "segments_compacted": counted["segments compacted"],
                "segments_after": counted["segments after"],
                "segments_at_the_end": sum(map(len, day.storage.folders.values())),
                "age_of_what_is_learned_s": {"median": round(statistics.median(ages)), "least": round(ages[0], 1)}
                if ages
                else None,
                "keys_that_machines_disagree_on": apart,
                "simulated_in_s": round(time.perf_counter() - began),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
