"""Outcomes in a store's tables, each with its config, its run and the forecast that preceded it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome
from ..core.workload import Program
from ..errors import InvalidInputError
from . import encoding
from .encoding import from_text, to_short_text, to_text
from .rows import FAR_FUTURE, Complain, Ids, StoredOutcome, TuningKey, is_stored
from .tuning_keys import ids_of

if TYPE_CHECKING:
    import sqlite3

TRANSIENT_RUNS = 2  # that failed for no fault of the config, before that counts as its outcome


# Writing ----------------------------------------------------------------------------------------------------------------


def keep_outcome(
    connection: sqlite3.Connection, tuning_key: TuningKey, stored: StoredOutcome, *, from_elsewhere: bool = False
) -> bool:
    """Write an outcome and the forecast before it; its tuning key is there already. Returns whether anything changed.

    A later outcome of the same config and run replaces the earlier one but keeps its forecast: the forecast made after
    a config was timed has seen the answer, and does not show how honest forecasts are. One of this process always replaces;
    one from elsewhere replaces only an older one.
    """
    ids = ids_of(connection, tuning_key)
    row = (*ids, _text_id(connection, stored.config.text), _text_id(connection, stored.run))
    earlier = connection.execute(
        "SELECT id, CAST(recorded_at AS REAL), value FROM outcome"
        " WHERE workload = ? AND hardware = ? AND toolchain = ? AND config = ? AND run = ?",
        row,
    ).fetchone()
    recorded_at = stored.recorded_at if from_elsewhere else _not_before_others(connection, ids, stored.recorded_at)
    value = to_short_text(encoding.encode_outcome(stored.outcome))
    default = _text_id(connection, stored.default.text)
    features = to_text(encoding.encode_static_features(stored.static_features)) if stored.static_features else None
    if earlier is None:
        inserted = connection.execute(
            "INSERT INTO outcome"
            " (workload, hardware, toolchain, config, run, default_config, value, recorded_at, described)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, default, value, recorded_at, features),
        )
        _keep_forecast(connection, inserted.lastrowid, stored)
        return True
    number, earlier_at, earlier_value = earlier
    if from_elsewhere and (
        recorded_at < earlier_at or is_stored(earlier_value, encoding.decode_outcome, stored.outcome)
    ):
        return False
    connection.execute(
        "UPDATE outcome SET value = ?, default_config = ?, recorded_at = ?, described = coalesce(?, described)"
        " WHERE id = ?",
        (value, default, recorded_at, features, number),
    )
    return True


def _not_before_others(connection: sqlite3.Connection, ids: Ids, recorded_at: float) -> float:
    """A time that is not before any outcome of a tuning key, or a later run would count as the earlier one.

    The clock may have been set back in between.
    """
    (newest,) = connection.execute(
        "SELECT max(CAST(recorded_at AS REAL)) FROM outcome"
        " WHERE workload = ? AND hardware = ? AND toolchain = ? AND recorded_at < ?",
        (*ids, FAR_FUTURE),
    ).fetchone()
    return max(recorded_at, newest or 0.0)


def _keep_forecast(connection: sqlite3.Connection, outcome: int | None, stored: StoredOutcome) -> None:
    forecast = encoding.encode_forecast(stored.forecast)
    if forecast is not None:
        connection.execute("INSERT INTO forecast (outcome, value) VALUES (?, ?)", (outcome, to_short_text(forecast)))


def _text_id(connection: sqlite3.Connection, text: str) -> int | None:
    """The id of a config's or a run's text, which is written if it is new."""
    row = connection.execute("SELECT id FROM text WHERE value = ?", (text,)).fetchone()
    if row is not None:
        return int(row[0])
    return connection.execute("INSERT INTO text (value) VALUES (?)", (text,)).lastrowid


# Reading ----------------------------------------------------------------------------------------------------------------


def text_of(column: str) -> str:
    """SQL for the text that a column of an outcome refers to; NULL if that is gone, which decoding refuses."""
    return f"(SELECT text.value FROM text WHERE text.id = outcome.{column})"  # noqa: S608  # names of our own


def stored_outcomes(connection: sqlite3.Connection, ids: Ids, complain: Complain) -> Iterator[StoredOutcome]:
    """Outcomes of one tuning key, the oldest first."""
    selected = connection.execute(
        f"SELECT outcome.id, {text_of('config')}, outcome.value, forecast.value, {text_of('default_config')},"  # noqa: S608  # ours
        f" {text_of('run')}, recorded_at, described FROM outcome LEFT JOIN forecast ON forecast.outcome = outcome.id"
        " WHERE workload = ? AND hardware = ? AND toolchain = ? ORDER BY recorded_at, outcome.id",
        ids,
    ).fetchall()
    for number, config, value, forecast, default, run, recorded_at, features in selected:
        what = f"outcome {number}"
        try:
            yield StoredOutcome(
                config=encoding.decode_config(from_text(config, what), what),
                outcome=encoding.decode_outcome(from_text(value, what), what),
                forecast=None if forecast is None else encoding.decode_forecast(from_text(forecast, what), what),
                default=encoding.decode_config(from_text(default, what), what),
                run=encoding.text_field({"run": run}, "run", what),
                recorded_at=encoding.number_field({"recorded_at": recorded_at}, "recorded_at", what),
                static_features=_static_features(features, what),
            )
        except InvalidInputError as err:
            complain(str(err))


def _static_features(text: object, what: str) -> dict[str, float]:
    """A config's static features from a row's text; none where it is NULL."""
    return {} if text is None else encoding.decode_static_features(from_text(text, what), f"{what}: described")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOutcomes:
    """The newest outcome of each config of one tuning key, with the configs' static features."""

    outcomes: dict[Config, Outcome] = field(default_factory=dict)
    static_features: dict[Config, Mapping[str, float]] = field(default_factory=dict)
    default: Config | None = None  # of the newest run


def newest_outcomes(
    connection: sqlite3.Connection, ids: Ids, complain: Complain, *, limit: int = -1, with_features: bool = False
) -> PlaceOutcomes:
    """The newest outcome of each config of one tuning key.

    A transient failure counts as an outcome only when it has come in `TRANSIENT_RUNS` runs, and never against a time: so a
    config that memory was short for is tried once more, and not for ever. The default is tried again by every run: without
    its time nobody can say what beats it. Where the default failed so, the run's other transient failures tell nothing of
    their configs: its call was a mistake, or memory was too short for any.

    Times are on the scale of the newest run that has timed the default: those of another run are multiplied by how
    many times as long the default took there as in theirs. From run to run a device is warmer, or its clock another.

    Args:
        limit: read so many rows, the oldest: the default is measured first, and the others say little without it.
        with_features: read the configs' static features too.
    """
    newest = _Newest()
    features_of: dict[Config, tuple[str, str]] = {}  # as text
    selected = connection.execute(
        f"SELECT id, {text_of('config')}, value, {text_of('default_config')}, described, run FROM outcome"  # noqa: S608  # ours
        " WHERE workload = ? AND hardware = ? AND toolchain = ? ORDER BY recorded_at, id LIMIT ?",
        (*ids, limit),
    ).fetchall()
    for number, config_text, value, default_text, features_text, run in selected:
        what = f"outcome {number}"
        try:
            config = encoding.decode_config(from_text(config_text, what), what)
            outcome = encoding.decode_outcome(from_text(value, what), what)
        except InvalidInputError as err:
            complain(str(err))
            continue
        if features_text is not None:
            features_of[config] = features_text, what
        newest.add(config, outcome, text=config_text, default_text=default_text, run=run)
    if newest.default_text is None:
        return PlaceOutcomes()
    outcomes = newest.on_one_scale()
    features: dict[Config, Mapping[str, float]] = {}
    default = None
    for config in outcomes if with_features else ():
        if config in features_of:
            try:
                features[config] = _static_features(*features_of[config])
            except InvalidInputError as err:
                complain(str(err))
    try:
        default = encoding.decode_config(from_text(newest.default_text, "default"), "default")
    except InvalidInputError as err:
        complain(str(err))
    return PlaceOutcomes(outcomes=outcomes, static_features=features, default=default)


class _Newest:
    """Gathers the newest outcome of each config from a tuning key's rows, given the oldest first."""

    def __init__(self) -> None:
        self.default_text: str | None = None  # of the newest run
        self._outcomes: dict[Config, Outcome] = {}
        self._runs: dict[Config, object] = {}
        self._default_us: dict[str, dict[object, float]] = {}  # of each default: its time in each run, the newest last
        self._transient: dict[Config, list[tuple[Failure, object]]] = {}  # with the runs they came in
        self._without_default: set[object] = set()  # runs in which the default failed for no fault of its own

    def add(self, config: Config, outcome: Outcome, *, text: str, default_text: str, run: object) -> None:
        """Take in one row; `text` is its config's."""
        self.default_text = default_text
        if isinstance(outcome, Failure) and outcome.transient:
            if text != default_text:
                self._transient.setdefault(config, []).append((outcome, run))
            else:
                self._without_default.add(run)
            return
        self._outcomes[config], self._runs[config] = outcome, run
        if text == default_text and isinstance(outcome, Measurement):
            in_runs = self._default_us.setdefault(text, {})
            in_runs.pop(run, None)
            in_runs[run] = outcome.median_us

    def on_one_scale(self) -> dict[Config, Outcome]:
        """The outcomes, their times as the newest run that has timed the default would have measured them."""
        in_runs = self._default_us.get(self.default_text or "", {})
        newest_us = next(reversed(in_runs.values()), math.nan)
        scaled = dict(self._outcomes)
        for config, failures in self._transient.items():
            counted = [failure for failure, run in failures if run not in self._without_default]
            if config not in scaled and len(counted) >= TRANSIENT_RUNS:
                scaled[config] = counted[-1]
        for config, outcome in scaled.items():
            if isinstance(outcome, Measurement):
                drift = newest_us / in_runs.get(self._runs[config], newest_us)
                scaled[config] = outcome if drift == 1.0 else outcome.scaled(drift)
        return scaled


def measurement_of(
    connection: sqlite3.Connection, decision: int, config: Config, complain: Complain
) -> Measurement | None:
    """The newest measurement of a config under the tuning key of the decision with this id; None where there is none."""
    row = connection.execute(
        "SELECT outcome.id, outcome.value FROM decision JOIN outcome ON outcome.workload = decision.workload"
        " AND outcome.hardware = decision.hardware AND outcome.toolchain = decision.toolchain"
        " WHERE decision.id = ? AND outcome.config = (SELECT id FROM text WHERE value = ?)"
        " ORDER BY recorded_at DESC, outcome.id DESC LIMIT 1",
        (decision, config.text),
    ).fetchone()
    if row is None:
        return None
    number, value = row
    try:
        outcome = encoding.decode_outcome(from_text(value, f"outcome {number}"), f"outcome {number}")
    except InvalidInputError as err:
        complain(str(err))
        return None
    return outcome if isinstance(outcome, Measurement) else None


def default_of(connection: sqlite3.Connection, decision: int, complain: Complain) -> Config | None:
    """The default of the newest run under the tuning key of the decision with this id; None where no outcome is left."""
    row = connection.execute(
        f"SELECT outcome.id, {text_of('default_config')} FROM decision JOIN outcome ON outcome.workload = decision.workload"  # noqa: S608  # ours
        " AND outcome.hardware = decision.hardware AND outcome.toolchain = decision.toolchain"
        " WHERE decision.id = ? ORDER BY recorded_at DESC, outcome.id DESC LIMIT 1",
        (decision,),
    ).fetchone()
    if row is None:
        return None
    number, text = row
    try:
        return encoding.decode_config(from_text(text, f"outcome {number}"), f"outcome {number}'s default")
    except InvalidInputError as err:
        complain(str(err))
        return None


def newest_failures(
    connection: sqlite3.Connection, complain: Complain, limit: int
) -> list[tuple[Program, Config, Failure, float]]:
    """The newest failures of all, with the program, the config, and when each was recorded, in seconds since 1970."""
    failures = []
    for name, program_value, config_value, value, recorded_at, number in connection.execute(
        "SELECT program.name, program.value, text.value, outcome.value, recorded_at, outcome.id FROM outcome"
        " LEFT JOIN text ON text.id = config"
        " JOIN workload ON workload.id = outcome.workload JOIN program ON program.digest = workload.program"
        " WHERE outcome.value LIKE '{\"stage\":%' ORDER BY recorded_at DESC, outcome.id DESC LIMIT ?",
        (limit,),
    ):
        what = f"outcome {number}"
        try:
            program = encoding.decode_program(from_text(program_value, what), what)
            config = encoding.decode_config(from_text(config_value, what), what)
            failure = encoding.decode_outcome(from_text(value, what), what)
            when = encoding.number_field({"recorded_at": recorded_at}, "recorded_at", what)
        except InvalidInputError as err:
            complain(f"{name}: {err}")
            continue
        if isinstance(failure, Failure):
            failures.append((program, config, failure, when))
    return failures


def newest_of(connection: sqlite3.Connection, ids: Ids, complain: Complain) -> list[StoredOutcome]:
    """The newest outcome of each config of one tuning key, with the first forecast it ever had; the newest outcome last."""
    newest: dict[Config, StoredOutcome] = {}
    for outcome in stored_outcomes(connection, ids, complain):
        earlier = newest.pop(outcome.config, None)
        # A later forecast has seen the answer.
        newest[outcome.config] = outcome if earlier is None else replace(outcome, forecast=earlier.forecast)
    return list(newest.values())
