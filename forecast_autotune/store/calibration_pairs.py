"""A store's newest pairs of a forecast and the outcome that followed it: what forecasts are judged by."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import TYPE_CHECKING

from ..core.forecast import Forecast
from ..core.text import shown
from ..errors import InvalidInputError
from .encoding import FASTEST_US, SLOWEST_US, decode_forecast, decode_hardware, fields, list_field
from .rows import Complain

if TYPE_CHECKING:
    import sqlite3

NEWEST = 1_000  # outcomes back to which pairs are looked for
WINDOW = 50_000
"""Newest outcomes of all kinds that are looked through for them: what has not been measured for so long is not news, and a
million, looked through in vain for a rare kind, took a cold tuning 1.5 s (two busy cores)."""

MOST = 200
"""Pairs read, drawn out of those, for the pairs of one run have much in common. Their root mean square error is known to
8 %, tails included; reading them takes 4 ms, learning from them 1.2 (3 samples each, one core of an EPYC)."""

Pair = tuple[Forecast, float]


def newest_pairs(connection: sqlite3.Connection, kind: str, complain: Complain) -> list[Pair]:
    """Newest forecasts on this kind of hardware, each with the log2 speed-up measured then, minus infinity if it failed.

    A forecast counts if it is the first ever made for its config there: a later one has seen the answer. These are left out:
    the default, whose speed-up is 1 by definition; configs that failed for no fault of their own; and configs of runs in
    which the default has no time, since the forecast relates to it.
    """
    hardware = [number for number, known in _kinds(connection, complain) if known == kind]
    # CROSS JOIN keeps SQLite from beginning with the forecasts: the newest outcomes are found by walking back.
    newest = connection.execute(
        "SELECT outcome.id FROM outcome CROSS JOIN forecast ON forecast.outcome = outcome.id"  # noqa: S608  # only marks
        f" WHERE outcome.id > (SELECT max(id) FROM outcome) - {WINDOW}"
        f" AND hardware IN ({','.join('?' * len(hardware))}) AND config != default_config"
        " AND NOT EXISTS (SELECT 1 FROM outcome AS earlier WHERE earlier.workload = outcome.workload"
        " AND earlier.hardware = outcome.hardware AND earlier.toolchain = outcome.toolchain"
        " AND earlier.config = outcome.config AND earlier.id < outcome.id)"
        " ORDER BY outcome.id DESC LIMIT ?",
        (*hardware, NEWEST),
    ).fetchall()
    chosen = [number for (number,) in newest]
    if len(chosen) > MOST:  # not every n-th: that would meet the same places of runs of equal length again and again
        chosen = random.Random(len(newest)).sample(chosen, MOST)
    selected = connection.execute(
        "SELECT outcome.id, workload, hardware, toolchain, default_config, outcome.value, forecast.value"  # noqa: S608
        " FROM outcome JOIN forecast ON forecast.outcome = outcome.id"
        f" WHERE outcome.id IN ({','.join('?' * len(chosen))}) ORDER BY outcome.id DESC",  # only marks
        chosen,
    ).fetchall()
    defaults: dict[tuple[int, ...], float | None] = {}
    pairs: list[Pair] = []
    for number, *ids, outcome, forecast in selected:
        what = f"outcome {number}"
        try:
            predicted = decode_forecast(_parsed(forecast, what), what)
            time_us = _time_us(outcome, what)
        except InvalidInputError as err:
            complain(str(err))
            continue
        if not isinstance(predicted, Forecast) or time_us is None:
            continue
        if math.isinf(time_us):
            pairs.append((predicted, -math.inf))
            continue
        key = tuple(ids)
        if key not in defaults:
            defaults[key] = _default_us(connection, key, complain)
        default_us = defaults[key]
        if default_us is not None:
            pairs.append((predicted, math.log2(default_us / time_us)))
    return pairs


def kinds_of(connection: sqlite3.Connection, complain: Complain) -> list[str]:
    """The kinds of hardware that a store knows of."""
    return sorted({kind for _, kind in _kinds(connection, complain)})


def _kinds(connection: sqlite3.Connection, complain: Complain) -> list[tuple[int, str]]:
    """Id and kind of all hardware."""
    kinds: list[tuple[int, str]] = []
    for number, value in connection.execute("SELECT id, value FROM hardware").fetchall():
        what = f"hardware {number}"
        try:
            kinds.append((number, decode_hardware(_parsed(value, what), what).kind))
        except InvalidInputError as err:
            complain(str(err))
    return kinds


def _default_us(connection: sqlite3.Connection, key: tuple[int, ...], complain: Complain) -> float | None:
    """The newest time of the default under a tuning key."""
    rows = connection.execute(
        "SELECT id, value FROM outcome WHERE workload = ? AND hardware = ? AND toolchain = ? AND config = ?"
        " ORDER BY recorded_at DESC, id DESC",
        key,
    ).fetchall()
    for number, value in rows:
        try:
            time_us = _time_us(value, f"outcome {number}")
        except InvalidInputError as err:
            complain(str(err))
            continue
        if time_us is not None and math.isfinite(time_us):
            return time_us
    return None


def _time_us(text: str, what: str) -> float | None:
    """An outcome's median; infinite if it failed, None if that was no fault of its own.

    The outcome itself, every sample of it checked and kept, would take five times as long to make.
    """
    data = fields(_parsed(text, what), what)
    if "stage" in data:
        return None if data.get("transient") is True else math.inf
    samples = list_field(data, "samples_us", what)
    try:
        median = float(statistics.median(samples))  # type: ignore[type-var, arg-type]  # raises on what is no number
    except (TypeError, ValueError, OverflowError, statistics.StatisticsError):
        median = math.nan
    if not FASTEST_US < median < SLOWEST_US:
        raise InvalidInputError(f"{what} has samples without a median: times are positive finite microseconds")
    return median


def _parsed(text: object, what: str) -> object:
    """As `encoding.from_text`, in half the time: NaN and infinities pass, so the caller checks every number."""
    if not isinstance(text, str):  # JSON could also be read from bytes
        raise InvalidInputError(f"{what} is {shown(text)}: it must be text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as err:
        raise InvalidInputError(f"{what} is no JSON ({err}): it starts with {text[:40]!r}") from None
