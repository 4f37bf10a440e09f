"""A store's outcomes as recordings: of the same program under other tuning keys, or the newest of whichever programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.hardware import REHEARSAL_KINDS
from ..core.job import Job, Recording
from ..core.outcome import Failure, Outcome
from ..errors import InvalidInputError
from ..features.likeness import SAME_PRODUCT, SOURCES, hardware_likeness, ranked
from . import encoding
from .calibration_pairs import WINDOW
from .encoding import from_text
from .outcomes import newest_outcomes, text_of
from .rows import Complain, Ids, TuningKey
from .tuning_keys import KeyReader, alike, hardware_of, ids_of, marks, tuning_keys_of

if TYPE_CHECKING:
    import sqlite3

RELATED_OUTCOMES = 5_000
"""Outcomes of other keys read to seed a forecast; more would eat into a budget given in seconds. 10,000 of 8 knobs and 32
samples each took 0.7 s (two busy cores)."""

KEYS_COMPARED = 5_000
"""Other tuning keys compared with a job's: the same source first, then the same hardware, then the newest."""

NEWEST = 5_000
"""Outcomes read for a job. Reading and mining them takes 0.5 s (150 samples each, two busy cores); a language model needs
more for a few answers."""

_ROWS = (
    f"SELECT outcome.id, workload, hardware, toolchain, {text_of('config')}, {text_of('default_config')},"  # noqa: S608  # ours
    " outcome.value, described FROM outcome"
)


def related_recordings(connection: sqlite3.Connection, job: Job, complain: Complain) -> list[Recording]:
    """Recordings of the program's name under other keys: those that count most for the job, as many as forecasts read.

    One more, where none of those was made on the job's product and another was. Of recordings that count alike, the same
    source goes first, then the newest.

    Rehearsals are left out: no time of theirs says anything of a device. A rehearsal sees its own kind alone.
    """
    own = tuning_keys_of(connection, TuningKey.of(job))
    groups = connection.execute(
        # The newest by id, not by time: so the index of tuning keys alone is read, and no outcome's row.
        "SELECT workload.id, outcome.hardware, outcome.toolchain, count(*) FROM program"
        " JOIN workload ON workload.program = program.digest JOIN outcome ON outcome.workload = workload.id"
        " WHERE program.name = ? GROUP BY 1, 2, 3"
        " ORDER BY max(program.digest = ?) DESC, max(outcome.hardware IS ?) DESC, max(outcome.id) DESC LIMIT ?",
        (job.workload.program.name, job.workload.program.digest, own[-1][1] if own else None, KEYS_COMPARED),
    )
    reader = KeyReader(connection)
    keys: list[TuningKey] = []
    stored: list[tuple[Ids, int]] = []
    for workload, hardware, toolchain, rows in groups:
        ids = workload, hardware, toolchain
        if ids in own:
            continue
        try:
            key = reader.read(*ids)
        except InvalidInputError as err:
            complain(str(err))
            continue
        if _bears_on(key, job):
            keys.append(key)
            stored.append((ids, rows))
    recordings: list[Recording] = []
    rows_left = RELATED_OUTCOMES
    own_product = False
    for _, place in ranked(job, keys):
        same_product = hardware_likeness(job.hardware, keys[place].hardware) == SAME_PRODUCT
        if rows_left <= 0 or (len(recordings) >= SOURCES and (own_product or not same_product)):
            continue
        ids, rows = stored[place]
        recording = recording_at(connection, keys[place], ids, complain, limit=rows_left)
        if recording is not None:
            rows_left -= rows
            own_product |= same_product
            recordings.append(recording)
    return recordings


def recording_at(
    connection: sqlite3.Connection,
    tuning_key: TuningKey,
    ids: Ids,
    complain: Complain,
    *,
    limit: int = -1,
) -> Recording | None:
    """The newest outcomes of a tuning key, from so many of its rows; None where there are none, or no default is known."""
    newest = newest_outcomes(connection, ids, complain, limit=limit, with_features=True)
    if not newest.outcomes or newest.default is None:
        return None
    return Recording(
        workload=tuning_key.workload,
        hardware=tuning_key.hardware,
        toolchain=tuning_key.toolchain,
        default=newest.default,
        outcomes=newest.outcomes,
        static_features=newest.static_features,
    )


def _bears_on(tuning_key: TuningKey, job: Job) -> bool:
    """Whether times of a tuning key say anything of a job: in its language, and a rehearsal's of its own kind alone."""
    kinds = {tuning_key.hardware.kind, job.hardware.kind}
    if len(kinds) > 1 and kinds & set(REHEARSAL_KINDS):
        return False
    return tuning_key.workload.program.language == job.workload.program.language


def newest_for(connection: sqlite3.Connection, job: Job, complain: Complain) -> list[Recording]:
    """The newest that bear on a job: of its program's name first, then of others; in its language, on its kind of hardware.

    So a rehearsal sees its own kind alone, and no device sees a rehearsal. This job's own are left out.
    """
    program, kind = job.workload.program, job.hardware.kind
    hardware = [number for number, known in hardware_of(connection, complain).items() if known.kind == kind]
    tuning_key = TuningKey.of(job)
    like = alike(connection, tuning_key.hardware)
    elsewhere = f"hardware IN ({marks(hardware)}) AND NOT (workload IS ? AND hardware IN ({marks(like)}))"
    named = "workload IN (SELECT workload.id FROM workload JOIN program ON program = program.digest WHERE name = ?)"
    values = (*hardware, ids_of(connection, tuning_key)[0], *like, program.name)
    newest = "ORDER BY outcome.id DESC LIMIT ?"
    # Its own are found in the index of tuning keys, ids first: rows are long. Others are looked for by walking back.
    ids = f"SELECT outcome.id FROM outcome WHERE {elsewhere} AND {named} {newest}"  # noqa: S608  # our own names and marks
    own = connection.execute(f"{_ROWS} WHERE outcome.id IN ({ids}) {newest}", (*values, NEWEST, NEWEST)).fetchall()
    left = NEWEST - len(own)
    lately = f"outcome.id > (SELECT max(id) FROM outcome) - {WINDOW}"  # noqa: S608  # a number of our own
    others = connection.execute(
        f"{_ROWS} WHERE {lately} AND {elsewhere} AND NOT {named} {newest}", (*values, left)
    ).fetchall()
    return _recordings(
        connection,
        chain(own, others),
        lambda tuning_key: tuning_key.workload.program.language == program.language,
        NEWEST,
        complain,
    )


def newest_recordings(
    connection: sqlite3.Connection,
    fits: Callable[[TuningKey], bool],
    most: float,
    complain: Complain,
    *,
    with_features: bool = False,
) -> list[Recording]:
    """The `most` newest outcomes of tuning keys that fit; with `with_features`, the configs' static features too."""
    rows = connection.execute(f"{_ROWS} ORDER BY outcome.id DESC")
    return _recordings(connection, rows, fits, most, complain, with_features=with_features)


def _recordings(
    connection: sqlite3.Connection,
    rows: Iterable[tuple[int, int, int, int, str, str, str, str | None]],
    fits: Callable[[TuningKey], bool],
    most: float,
    complain: Complain,
    *,
    with_features: bool = False,
) -> list[Recording]:
    """The first rows of tuning keys that fit, so many at most; of a config's outcomes under one key the first one counts.

    What failed for no fault of its own is left out.
    """
    reader = KeyReader(connection)
    by_ids: dict[tuple[int, int, int], Recording | None] = {}  # None: a key that does not fit, or cannot be read
    outcomes: dict[tuple[int, int, int], dict[Config, Outcome]] = {}
    features: dict[tuple[int, int, int], dict[Config, Mapping[str, float]]] = {}
    for number, workload, hardware, toolchain, config_text, default_text, value, features_text in rows:
        ids, what = (workload, hardware, toolchain), f"outcome {number}"
        try:
            if ids not in by_ids:
                by_ids[ids] = None
                tuning_key = reader.read(*ids)
                if fits(tuning_key):
                    by_ids[ids] = Recording(
                        workload=tuning_key.workload,
                        hardware=tuning_key.hardware,
                        toolchain=tuning_key.toolchain,
                        default=encoding.decode_config(from_text(default_text, what), what),
                        outcomes=outcomes.setdefault(ids, {}),
                        static_features=features.setdefault(ids, {}),
                    )
            if by_ids[ids] is None:
                continue
            config = encoding.decode_config(from_text(config_text, what), what)
            if config not in outcomes[ids]:
                outcome = encoding.decode_outcome(from_text(value, what), what)
                if not (isinstance(outcome, Failure) and outcome.transient):
                    outcomes[ids][config] = outcome
                    if with_features and features_text is not None:
                        features[ids][config] = encoding.decode_static_features(from_text(features_text, what), what)
        except InvalidInputError as err:
            complain(str(err))
        most -= 1
        if most <= 0:
            break
    return [recording for recording in by_ids.values() if recording is not None]
