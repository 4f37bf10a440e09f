"""Decisions and outcomes as readable JSON lines: what `export` writes, and `import` and packs read.

The first line is a header, `{"schema": "forecast_autotune.store", "version": 1}`. Every other line stands for itself
and is one of two kinds, named by its `line`:

- `run`: the outcomes of one tuning run under one tuning key, each with the forecast that preceded it, and `described`, its
  config's static features, if there are any;
- `decision`: one decision; `superseded_at` is there if it does not hold any more.

Both carry `program` (name, language, source), `workload` (key, timing, check, features), `hardware` and `toolchain` in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.decision import Decision
from ..core.file_format import FileFormat
from ..core.outcome import Failure
from ..core.text import shown
from ..core.workload import Program, Workload
from ..errors import InvalidInputError
from . import encoding, rows
from .decisions import import_decision, stored_decisions
from .encoding import Json, from_text, to_text
from .outcomes import keep_outcome, stored_outcomes
from .rows import Complain, Ids, StoredDecision, StoredOutcome, TuningKey
from .textfile import MAX_BYTES, MAX_STREAMED_BYTES, stream_lines
from .tuning_keys import KeyReader, keep_tuning_key

if TYPE_CHECKING:
    import sqlite3

FORMAT = FileFormat(schema="forecast_autotune.store", version=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcomes of one tuning run under one tuning key."""

    tuning_key: TuningKey
    outcomes: tuple[StoredOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision that was made somewhere."""

    tuning_key: TuningKey
    decision: Decision
    superseded_at: float | None


Entry = Run | Decided


# Writing ----------------------------------------------------------------------------------------------------------------


def export_lines(connection: sqlite3.Connection, complain: Complain) -> Iterator[str]:
    """A store as JSON lines; `complain` gets what is wrong with each row that does not decode and is left out."""
    yield to_text(FORMAT.header)
    reader = KeyReader(connection)
    tuning_keys = connection.execute(
        "SELECT DISTINCT workload, hardware, toolchain FROM outcome ORDER BY 1, 2, 3"
    ).fetchall()
    for workload, hardware, toolchain in tuning_keys:
        try:
            tuning_key = reader.read(workload, hardware, toolchain)
        except InvalidInputError as err:
            complain(str(err))
            continue
        for run in runs_at(connection, tuning_key, (workload, hardware, toolchain), complain):
            yield to_text(encode_run(run))
    for decided in stored_decisions(connection, complain, newest_first=False):  # as they were made
        yield to_text(encode_decided(decided))


def runs_at(connection: sqlite3.Connection, tuning_key: TuningKey, ids: Ids, complain: Complain) -> list[Run]:
    """The outcomes under a tuning key, run by run, for other machines: transient failures are not their concern."""
    runs: dict[tuple[str, str], list[StoredOutcome]] = {}
    for stored in stored_outcomes(connection, ids, complain):
        if not (isinstance(stored.outcome, Failure) and stored.outcome.transient):
            runs.setdefault((stored.run, stored.default.text), []).append(stored)
    return [Run(tuning_key=tuning_key, outcomes=tuple(outcomes)) for outcomes in runs.values()]


def _encode_place(tuning_key: TuningKey, encode_program: Callable[[Program], Json]) -> Json:
    return {
        "program": encode_program(tuning_key.workload.program),
        "workload": encoding.encode_workload(tuning_key.workload),
        "hardware": encoding.encode_hardware(tuning_key.hardware),
        "toolchain": encoding.encode_toolchain(tuning_key.toolchain),
    }


def encode_run(run: Run, encode_program: Callable[[Program], Json] = encoding.encode_program) -> Json:
    """One tuning run's outcomes as the fields of a line."""
    first = run.outcomes[0]
    return {
        "line": "run",
        **_encode_place(run.tuning_key, encode_program),
        "run": first.run,
        "default": encoding.encode_config(first.default),
        "outcomes": [
            {
                "config": encoding.encode_config(stored.config),
                "outcome": encoding.encode_outcome(stored.outcome),
                "forecast": encoding.encode_forecast(stored.forecast),
                "recorded_at": stored.recorded_at,
                **(
                    {"described": encoding.encode_static_features(stored.static_features)}
                    if stored.static_features
                    else {}
                ),
            }
            for stored in run.outcomes
        ],
    }


def encode_decided(
    decided: StoredDecision | Decided, encode_program: Callable[[Program], Json] = encoding.encode_program
) -> Json:
    """A decision as the fields of a line."""
    line: Json = {
        "line": "decision",
        **_encode_place(decided.tuning_key, encode_program),
        "decision": encoding.encode_decision(decided.decision),
    }
    if decided.superseded_at is not None:
        line["superseded_at"] = decided.superseded_at
    return line


# Reading ----------------------------------------------------------------------------------------------------------------


def read_entries(path: Path) -> list[Entry]:
    """Every entry of an exported file of up to `textfile.MAX_BYTES`, each line checked.

    Raises:
        OSError, InvalidInputError: as `stream_entries`.
    """
    return list(stream_entries(path, most_bytes=MAX_BYTES))


def stream_entries(path: Path, *, most_bytes: int = MAX_STREAMED_BYTES) -> Iterator[Entry]:
    """The entries of an exported file, read one by one; what is wrong with any line is raised at the end.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no such file, of another version, or has broken lines; names up to five of them.
    """
    lines = stream_lines(path, most_bytes=most_bytes)
    _check_header(path, next(lines, ""))
    broken: list[str] = []
    count = 0
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            yield decode_entry(from_text(line, "it"))
        except InvalidInputError as err:
            count += 1
            if len(broken) < 5:
                broken.append(f"line {number}: {err}")
    if broken:
        more = f"; and {count - 5} more" if count > 5 else ""
        raise InvalidInputError(
            f"{path} has {count} broken lines, so nothing of it is taken: {'; '.join(broken)}{more}. "
            "Remove or mend them, or export the file again"
        )


def import_entries(connection: sqlite3.Connection, entries: Iterable[Entry]) -> tuple[int, int]:
    """Write entries; returns how many outcomes and decisions are new. The transaction is the caller's."""
    outcomes = decisions = 0
    seen_at = rows.now()  # it is about to be used: `prune` must not take it for forgotten
    for entry in entries:
        keep_tuning_key(connection, entry.tuning_key, seen_at)
        if isinstance(entry, Run):
            outcomes += sum(
                keep_outcome(connection, entry.tuning_key, stored, from_elsewhere=True) for stored in entry.outcomes
            )
        else:
            decisions += import_decision(connection, entry.tuning_key, entry.decision, entry.superseded_at)
    return outcomes, decisions


def _check_header(path: Path, line: str) -> None:
    accepted = f"the first line of such a file is {to_text(FORMAT.header)}"
    try:
        header = encoding.fields(from_text(line, "the first line"), "the first line")
    except InvalidInputError as err:
        raise InvalidInputError(f"{path} is not an exported store ({err}): {accepted}") from None
    FORMAT.check(header, path, accepted=accepted, remedy="export it again with this version, or update")


def decode_entry(value: object, decode_program: Callable[[object], Program] = encoding.decode_program) -> Entry:
    """A line's entry, every field checked.

    Raises:
        InvalidInputError: it is none; names the field and the value seen.
    """
    data = encoding.fields(value, "it")
    decode: dict[object, Callable[[Json, TuningKey], Entry]] = {"run": _decode_run, "decision": _decode_decided}
    kind = data.get("line")
    if not isinstance(kind, str) or kind not in decode:
        raise InvalidInputError(f"its 'line' is {shown(kind)}: accepted are {', '.join(map(str, decode))}")
    program = decode_program(data.get("program"))
    tuning_key = TuningKey(
        workload=encoding.decode_workload(data.get("workload"), program),
        hardware=encoding.decode_hardware(data.get("hardware")),
        toolchain=encoding.decode_toolchain(data.get("toolchain")),
    )
    return decode[kind](dict(data), tuning_key)


def _decode_run(data: Json, tuning_key: TuningKey) -> Run:
    default = encoding.decode_config(data.get("default"), "default")
    run = encoding.text_field(data, "run", "it")
    encoding.refuse_surrogates(run, "run")
    outcomes = []
    for number, value in enumerate(encoding.list_field(data, "outcomes", "it"), start=1):
        what = f"outcome {number}"
        given = encoding.fields(value, what)
        outcomes.append(
            StoredOutcome(
                config=encoding.decode_config(given.get("config"), f"{what}'s config"),
                outcome=encoding.decode_outcome(given.get("outcome"), what),
                forecast=encoding.decode_forecast(given.get("forecast"), f"{what}'s forecast"),
                default=default,
                run=run,
                recorded_at=encoding.number_field(given, "recorded_at", what),
                static_features=_static_features(given, what, tuning_key.workload),
            )
        )
    return Run(tuning_key=tuning_key, outcomes=tuple(outcomes))


def _static_features(given: Mapping[str, object], what: str, workload: Workload) -> dict[str, float]:
    """Static features, without those that earlier versions derived of a Triton call without its arguments: these mislead."""
    features = encoding.decode_static_features(given.get("described", {}), f"{what}'s description")
    blind = workload.program.language == "triton" and "unique_bytes" not in features
    return {} if blind and encoding.names_tensors(workload) else features


def _decode_decided(data: Json, tuning_key: TuningKey) -> Decided:
    decision = encoding.decode_decision(data.get("decision"))
    encoding.refuse_surrogates(decision.space_digest, "decision's space_digest")
    return Decided(
        tuning_key=tuning_key, decision=decision, superseded_at=encoding.optional_number(data, "superseded_at", "it")
    )
