"""A store's newest outcomes as recordings, of whichever programs: what skills are mined from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.job import Job, Recording
from ..core.outcome import Failure, Outcome
from ..errors import InvalidInputError
from . import encoding
from .calibration_pairs import WINDOW
from .encoding import from_text
from .rows import Complain, Place, PlaceReader, alike, hardware_of, ids_of, marks, text_of

if TYPE_CHECKING:
    import sqlite3

NEWEST = 5_000
"""Outcomes read for a job. Reading and mining them takes 0.5 s (150 samples each, two busy cores); a language model needs
more for a few answers."""

_ROWS = (
    f"SELECT outcome.id, workload, hardware, toolchain, {text_of('config')}, {text_of('default_config')},"  # noqa: S608  # ours
    " outcome.value, described FROM outcome"
)


def newest_for(connection: sqlite3.Connection, job: Job, complain: Complain, most: int = NEWEST) -> list[Recording]:
    """Those that bear on a job: of its program's name first, then of others; in its language, on hardware of its kind.

    So a rehearsal sees its own kind alone, and no device sees a rehearsal. This job's own are passed over.
    """
    program, kind = job.workload.program, job.hardware.kind
    hardware = [number for number, found in hardware_of(connection, complain).items() if found.kind == kind]
    place = Place.of(job)
    like = alike(connection, place.hardware)
    elsewhere = f"hardware IN ({marks(hardware)}) AND NOT (workload IS ? AND hardware IN ({marks(like)}))"
    named = "workload IN (SELECT workload.id FROM workload JOIN program ON program = program.digest WHERE name = ?)"
    values = (*hardware, ids_of(connection, place)[0], *like, program.name)
    newest = "ORDER BY outcome.id DESC LIMIT ?"
    # Its own are found in the index of places, ids first: rows are long. Others are looked for by walking back.
    ids = f"SELECT outcome.id FROM outcome WHERE {elsewhere} AND {named} {newest}"  # noqa: S608  # our own names and marks
    own = connection.execute(f"{_ROWS} WHERE outcome.id IN ({ids}) {newest}", (*values, most, most)).fetchall()
    left = most - len(own)
    lately = f"outcome.id > (SELECT max(id) FROM outcome) - {WINDOW}"  # noqa: S608  # a number of our own
    others = connection.execute(
        f"{_ROWS} WHERE {lately} AND {elsewhere} AND NOT {named} {newest}", (*values, left)
    ).fetchall()
    return _recordings(
        connection,
        chain(own, others),
        lambda place: place.workload.program.language == program.language,
        most,
        complain,
    )


def newest_recordings(
    connection: sqlite3.Connection,
    fits: Callable[[Place], bool],
    most: float,
    complain: Complain,
    *,
    described: bool = False,
) -> list[Recording]:
    """Those of the newest outcomes at places that fit; `described` with what was told of configs without compiling."""
    rows = connection.execute(f"{_ROWS} ORDER BY outcome.id DESC")
    return _recordings(connection, rows, fits, most, complain, described=described)


def _recordings(
    connection: sqlite3.Connection,
    rows: Iterable[tuple[int, int, int, int, str, str, str, str | None]],
    fits: Callable[[Place], bool],
    most: float,
    complain: Complain,
    *,
    described: bool = False,
) -> list[Recording]:
    """The first rows at places that fit, so many at most; of a config's outcomes at one place the first one counts.

    What failed for no fault of its own is left out.
    """
    reader = PlaceReader(connection)
    found: dict[tuple[int, int, int], Recording | None] = {}  # None: a place that does not fit, or cannot be read
    outcomes: dict[tuple[int, int, int], dict[Config, Outcome]] = {}
    told: dict[tuple[int, int, int], dict[Config, Mapping[str, float]]] = {}
    for number, workload, hardware, toolchain, config_text, default_text, value, description in rows:
        ids, what = (workload, hardware, toolchain), f"outcome {number}"
        try:
            if ids not in found:
                found[ids] = None
                place = reader.read(*ids)
                if fits(place):
                    found[ids] = Recording(
                        workload=place.workload,
                        hardware=place.hardware,
                        toolchain=place.toolchain,
                        default=encoding.decode_config(from_text(default_text, what), what),
                        outcomes=outcomes.setdefault(ids, {}),
                        described=told.setdefault(ids, {}),
                    )
            if found[ids] is None:
                continue
            config = encoding.decode_config(from_text(config_text, what), what)
            if config not in outcomes[ids]:
                outcome = encoding.decode_outcome(from_text(value, what), what)
                if not (isinstance(outcome, Failure) and outcome.transient):
                    outcomes[ids][config] = outcome
                    if described and description is not None:
                        told[ids][config] = encoding.decode_described(from_text(description, what), what)
        except InvalidInputError as err:
            complain(str(err))
        most -= 1
        if most <= 0:
            break
    return [recording for recording in found.values() if recording is not None]
