"""One of a crowd on one store, as a process of its own: `python -m faults.crowd STORE SECONDS SEED JOURNAL KEYS`.

It draws keys, and tunes those that nobody has tuned, on a small recording. What it does goes to stdout, a line of JSON each
time that something was kept; at the end one with how often it found a decision. It says nothing else.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recorded import job_of, recording, workload

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Resolution
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.base import StatelessSurrogate
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Selective

KERNELS = 50  # with one alone, each tuning would read what is known of all its keys, and that is what one would see
BUDGET = 6
MEASURE_S = 0.003  # long enough that others miss the same key meanwhile

_PRINTING = threading.Lock()


def say(**what: Any) -> None:
    with _PRINTING:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


class Telling(SqliteStore):
    """Tells of each outcome once it is kept."""

    def record_outcome(self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Any) -> None:
        super().record_outcome(job, run, config, outcome, forecast)
        say(kept=[job.workload.key["n"], run, config.text])


class Unhurried(Replay):
    def measure(self, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        time.sleep(MEASURE_S)
        return super().measure(config, limits)


class Blind(StatelessSurrogate):
    """Knows nothing."""

    name = "blind"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Abstention]:
        return [Abstention(self.name, "knows nothing")] * len(context.job.space)


_BOWL = recording()


def recording_of(key: int) -> Recording:
    return replace(_BOWL, workload=workload(key, f"bowl {key % KERNELS}"))


def decide(store: SqliteStore, key: int) -> Resolution:
    """As a front door does it: recall, and on a miss tune, which one of all who miss does while the others go on."""
    replay = Unhurried(recording_of(key))
    return tune(
        job_of(replay.recording),
        compiler=replay,
        surrogate=Blind(),
        policy=Selective(),
        measurer=replay,
        store=store,
        budget=Budget(BUDGET),
    )


def be_one(directory: Path, seconds: float, seed: int, journal: str, keys: int) -> None:
    draw = random.Random(seed)
    until = time.monotonic() + seconds
    hits = passed = 0
    with Telling(directory, journal=journal) as store:
        while time.monotonic() < until or not hits:  # on a loaded machine, the time may be over before the first
            key = draw.randrange(keys)
            if store.decision(job_of(recording_of(key))) is not None:
                hits += 1
            else:
                found = decide(store, key)
                assert found.retry_after_s is not None or found.decision.basis == "measured"
                passed += found.retry_after_s is not None
    heavy = sorted({"torch", "triton"} & set(sys.modules))
    say(hits=hits, passed=passed, heavy=heavy)


if __name__ == "__main__":
    where, how_long, drawn, mode, count = sys.argv[1:]
    be_one(Path(where), float(how_long), int(drawn), mode, int(count))
