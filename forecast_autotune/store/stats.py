"""Counts and costs of a store, and how honest its forecasts were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.forecast import Forecast
from ..core.job import log2_speedups
from ..core.outcome import Failure, Measurement
from ..features.kernel_kinds import kernel_kind
from . import schema
from .calibration_pairs import Pair
from .decisions import stored_decisions
from .noise import Noise, noise_of
from .outcomes import newest_of
from .rows import Complain, StoredOutcome
from .tuning_keys import hardware_of

if TYPE_CHECKING:
    import sqlite3

JUDGED_OUTCOMES = 20_000  # the newest, for how honest forecasts were; reading them takes 2 s (two busy cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What a store holds. `hits` are recalls by a process that did not have the decision in memory yet."""

    path: Path
    size_bytes: int
    schema: int
    journal: str
    programs: int
    workloads: int
    hardware: int
    toolchains: int
    decisions: dict[str, int]  # by basis; those that hold
    superseded: int
    measurements: int
    failures: dict[str, int]  # by stage
    forecasts: int
    abstentions: int
    hits: int
    pending: int  # keys that wait for being measured
    answers: int  # of language models
    spent_s: float  # in all tuning runs that came to a decision
    saved_by_hits_s: float
    saved_by_forecasts_s: float
    explored_s: float  # what candidates cost real calls, in mode online
    saved_in_calls_s: float  # what those that were timed took less than under the default
    noise: dict[str, Noise]  # of timings, by the hardware's name
    pairs: tuple[tuple[Forecast, float], ...] = field(repr=False)  # forecast, log2 speed-up, -inf: failed
    kinds: tuple[str, ...] = field(repr=False)  # of each pair's kernel, one of `kernel_kinds.KINDS`
    unreadable: int


def collect_stats(connection: sqlite3.Connection, path: Path, size_bytes: int, unreadable: list[str]) -> StoreStats:
    """Counts, costs, and the pairs that show how honest forecasts were.

    Args:
        size_bytes: of the file at `path` and its log.
        unreadable: gets what is wrong with each row that does not decode.
    """
    spending = _spending(connection, unreadable.append)
    failures = _failures_by_stage(connection)
    abstentions = _count(
        connection,
        "forecast WHERE CASE WHEN json_valid(value) THEN json_type(value, '$.abstains') END IS NOT NULL",
    )
    judged = _newest(connection, unreadable.append)
    noises = {name: noise_of(some) for name, some in judged.measurements.items()}
    return StoreStats(
        path=path,
        size_bytes=size_bytes,
        schema=schema.version_of(connection),
        journal=str(connection.execute("PRAGMA journal_mode").fetchone()[0]),
        programs=_count_distinct(connection, "program"),
        workloads=_count_distinct(connection, "workload"),
        hardware=_count_distinct(connection, "hardware"),
        toolchains=_count_distinct(connection, "toolchain"),
        decisions=dict(spending.by_basis),
        superseded=spending.superseded,
        measurements=_count(connection, "outcome") - sum(failures.values()),
        failures=failures,
        forecasts=_count(connection, "forecast") - abstentions,
        abstentions=abstentions,
        hits=spending.hits,
        pending=_count(connection, "pending"),
        answers=_count(connection, "answer"),
        spent_s=spending.spent_s,
        saved_by_hits_s=spending.saved_by_hits_s,
        saved_by_forecasts_s=spending.saved_by_forecasts_s,
        explored_s=spending.explored_s,
        saved_in_calls_s=spending.saved_in_calls_s,
        noise={name: noise for name, noise in noises.items() if noise is not None},
        pairs=tuple(judged.pairs),
        kinds=tuple(judged.kinds),
        unreadable=len(unreadable),
    )


@dataclass(slots=True)
class _Spending:
    """What tuning runs cost, and what their decisions saved."""

    by_basis: Counter[str] = field(default_factory=Counter)  # decisions that hold
    superseded: int = 0
    hits: int = 0
    spent_s: float = 0.0
    saved_by_hits_s: float = 0.0
    saved_by_forecasts_s: float = 0.0
    explored_s: float = 0.0
    saved_in_calls_s: float = 0.0


def _spending(connection: sqlite3.Connection, complain: Complain) -> _Spending:
    """Sums over all decisions.

    A hit saves the seconds that the decision's tuning run took, which this process would have spent again. A forecast
    saves, for each config of a decision's space that neither this run nor an earlier one tried, what the tried ones cost on
    average, compared with trying all.
    """
    total = _Spending()
    for stored in stored_decisions(connection, complain):
        decision = stored.decision
        total.spent_s += decision.spent_s
        total.hits += stored.hits
        total.explored_s += decision.explored_s
        total.saved_in_calls_s += decision.saved_s
        total.saved_by_hits_s += stored.hits * decision.spent_s
        untried = decision.space_size - decision.tried - decision.known
        if decision.tried and untried > 0:
            total.saved_by_forecasts_s += untried * decision.spent_s / decision.tried
        if stored.superseded_at is None:
            total.by_basis[decision.basis] += 1
        else:
            total.superseded += 1
    return total


@dataclass(slots=True)
class _JudgedOutcomes:
    """What the newest outcomes show: pairs for how honest forecasts were, and measurements by hardware's name."""

    pairs: list[Pair] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of kernels, one for each pair
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)


def _newest(connection: sqlite3.Connection, complain: Complain) -> _JudgedOutcomes:
    """The first forecast ever made for each config of a tuning key, and the log2 speed-up measured there.

    Minus infinity where the config failed. Left out are, as in `calibration_pairs`, the default, whose speed-up is 1 by
    definition, and configs that failed for no fault of their own. Read back to the newest `JUDGED_OUTCOMES`; rows beyond
    them are counted only, unreadable ones included.
    """
    judged = _JudgedOutcomes()
    read = 0
    known = hardware_of(connection, lambda _: None)  # the decisions have complained of damaged ones
    tuning_keys = connection.execute(
        "SELECT workload, hardware, toolchain, count(*) FROM outcome GROUP BY 1, 2, 3 ORDER BY max(id) DESC"
    )
    for workload, hardware, toolchain, outcomes in tuning_keys:
        if read >= JUDGED_OUTCOMES:
            break
        read += outcomes
        newest = newest_of(connection, (workload, hardware, toolchain), complain)
        pairs = _pairs_of(newest)
        judged.pairs += pairs
        judged.kinds += [kernel_kind(stored.static_features for stored in newest)] * len(pairs)
        if hardware in known:
            measured = (s.outcome for s in newest if isinstance(s.outcome, Measurement))
            judged.measurements.setdefault(known[hardware].name, []).extend(measured)
    return judged


def _pairs_of(newest: Sequence[StoredOutcome]) -> list[Pair]:
    """Those of one tuning key."""
    if not newest:
        return []
    default = newest[-1].default
    speedups = log2_speedups({s.config: s.outcome for s in newest}, default)
    return [
        (s.forecast, speedups.get(s.config, -math.inf))
        for s in newest
        if speedups
        and s.config != default
        and isinstance(s.forecast, Forecast)
        and not (isinstance(s.outcome, Failure) and s.outcome.transient)
    ]


def _failures_by_stage(connection: sqlite3.Connection) -> dict[str, int]:
    """Counted by SQLite, which takes half a second for a million; as `encode_outcome` writes them, stage first."""
    counted = connection.execute(
        "SELECT CASE WHEN json_valid(value) THEN json_extract(value, '$.stage') END AS stage, count(*) FROM outcome"
        " WHERE value LIKE '{\"stage\":%' GROUP BY stage HAVING typeof(stage) = 'text'"
    )
    return dict(counted.fetchall())


def _count(connection: sqlite3.Connection, rows: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])  # noqa: S608  # tables of our own


def _count_distinct(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(DISTINCT digest) FROM {table}").fetchone()[0])  # noqa: S608  # ours
