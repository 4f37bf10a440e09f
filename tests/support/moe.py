"""Decisions as of a fused mixture-of-experts layer, and a store that holds some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.store_contract import a_decision, a_job, a_measurement

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Job
from forecast_autotune.core.space import Space
from forecast_autotune.store.sqlite import SqliteStore

H100 = Hardware(kind="cuda", name="NVIDIA H100 80GB HBM3", capability="9.0", units=132, memory_gib=80)
DEFAULT = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
UNSET = {"num_ctas": 1, "maxnreg": None, "ir_override": None}  # as every Triton kernel's configs hold them


def config(**changes: Any) -> Config:
    return Config({**DEFAULT, **UNSET, **changes})


SPACE = Space([config(BLOCK_SIZE_M=m, num_warps=w) for m in (16, 32, 64) for w in (4, 8)])


def layer_job(key: Mapping[str, object] | None = None, **changes: Any) -> Job:
    """A job of Mixtral's layer for one token; `key` says what is special about its key."""
    whole = {"M": 1, "N": 14336, "K": 4096, "E": 8, "dtypes": {"x": "torch.bfloat16", "choice": "torch.int32"}}
    whole.update(key or {})
    given = {"name": "moe", "space": SPACE, "hardware": H100, **changes}
    return a_job(key={name: value for name, value in whole.items() if value is not None}, **given)


def keep(folder: Path, job: Job, best: Config | None = None, **changes: Any) -> None:
    """Have a store remember a job as decided, its default and `best` as measured."""
    best = best if best is not None else job.space[1]
    with SqliteStore(folder) as store:
        store.record_outcome(job, "run-1", job.space.default, a_measurement(15.0), None)
        store.record_outcome(job, "run-1", best, a_measurement(10.0), None)
        own = {"equivalents": (), "space_digest": job.space.digest, "space_size": len(job.space)}
        store.record_decision(job, replace(a_decision(a_job(), best), **{**own, **changes}))
