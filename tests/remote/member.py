"""One process of a fleet: `python -m remote.member FOLDER URL SEED KEYS`.

It tunes keys as a front door does, without a device, and tells in a line of JSON of each decision that was kept, with its
outcomes; at the end, how long the calls took that stand in a launch's way.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from contracts.store_contract import a_decision, a_job, a_measurement

from forecast_autotune.core.job import Job
from forecast_autotune.remote.fleet_store import FleetStore
from forecast_autotune.settings import RemoteStore

PROGRAMS = 5
POOL = 40  # keys that all processes draw from


def job_of(key: int) -> Job:
    return a_job(name=f"kernel {key % PROGRAMS}", key={"n": key})


def be_one(folder: Path, url: str, seed: int, keys: int) -> None:
    draw = random.Random(seed)
    calls_s: list[float] = []
    with FleetStore(folder, RemoteStore(url=url, trusted=True)) as store:
        for _ in range(keys):
            key = draw.randrange(POOL)
            job, run = job_of(key), f"{seed}-{draw.random()}"
            began = time.perf_counter()
            known = store.decision(job)
            calls_s.append(time.perf_counter() - began)
            configs = draw.sample(list(job.space), 3)
            began = time.perf_counter()
            for config in configs:
                store.record_outcome(job, run, config, a_measurement(draw.uniform(5, 50)), None)
            store.record_decision(job, a_decision(job, configs[0], run=run, decided_at=time.time()))
            calls_s.append(time.perf_counter() - began)
            print(
                json.dumps({"key": key, "run": run, "configs": [c.text for c in configs], "hit": known is not None}),
                flush=True,
            )
            time.sleep(draw.uniform(0.0, 0.3))
    print(json.dumps({"calls_s": calls_s}), flush=True)


if __name__ == "__main__":
    be_one(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
