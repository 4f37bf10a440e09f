"""Segments: outcomes and decisions of one program on one hardware, in a file that is written once and named by its content.

A segment is JSON lines in gzip. The first line is a header, `{"schema": "forecast_autotune.segment", "version": 1}` with the
digests of the hardware and the program. Every other line is a `run` or a `decision` as `store/jsonl.py` has them, or:

- `withdrawn`: all that was measured and decided up to `before` (seconds since the epoch) for one `workload` under one
  `toolchain` (digests) counts no more.

In a `program` the `source` may be missing; its `digest` stands instead, and who reads it knows the source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.decision import Decision
from ..core.file_format import FileFormat
from ..core.outcome import Failure, Outcome
from ..core.workload import Program
from ..errors import InvalidInputError
from ..store import encoding
from ..store.encoding import Json, from_text, to_text
from ..store.jsonl import Decided, Entry, Run, decode_entry, encode_decided, encode_run
from ..store.rows import FAR_FUTURE
from ..store.textfile import pack_lines, unpack_lines
from .location import ENDING, MAX_PACKED_BYTES

FORMAT = FileFormat(schema="forecast_autotune.segment", version=1)

MAX_BYTES = 2**27
"""Of a segment's text."""

WRITTEN_BYTES = 2**22
"""Of a segment's text: who has more to write writes several."""

CLOCK_SLACK_S = 300.0
"""By how much clocks may differ before times are taken for wrong: rows that are read twice must stay the same."""

_KIND = re.compile(r"[A-Za-z_][\w.]{0,60}(?=:)")  # of a failure: what its message begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """What was measured and decided for a workload under a toolchain (digests) up to a time, which counts no more."""

    workload: str
    toolchain: str
    before: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a segment holds."""

    entries: tuple[Entry, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()


def name_of(data: bytes) -> str:
    """The name of a segment with these bytes."""
    return hashlib.sha256(data).hexdigest()[:32] + ENDING


# Writing ----------------------------------------------------------------------------------------------------------------


def encode(hardware: str, program: str, contents: Contents, *, sources: bool) -> list[bytes]:
    """Contents as segments, of `WRITTEN_BYTES` each at most if no line is longer; none where there is nothing to say.

    Args:
        hardware, program: digests of those that all entries belong to.
        sources: whether they hold the source text of kernels, as far as it is known, and failures' messages.
    """
    encode_program = _in_full if sources else _named
    lines = [
        to_text(_encode(entry if sources else _without_messages(entry), encode_program)) for entry in contents.entries
    ]
    lines += [
        to_text({"line": "withdrawn", "workload": w.workload, "toolchain": w.toolchain, "before": w.before})
        for w in contents.withdrawn
    ]
    header = to_text({**FORMAT.header, "hardware": hardware, "program": program})
    return [pack_lines([header, *part]) for part in _parts(sorted(set(lines)))]


def _parts(lines: Iterable[str]) -> list[list[str]]:
    parts: list[list[str]] = []
    room = 0
    for line in lines:
        if not parts or len(line) > room:
            parts.append([])
            room = WRITTEN_BYTES
        parts[-1].append(line)
        room -= len(line)
    return parts


def _encode(entry: Entry, encode_program: Callable[[Program], Json]) -> Json:
    if isinstance(entry, Run):
        return encode_run(entry, encode_program)
    return encode_decided(entry, encode_program)


def _named(program: Program) -> Json:
    return {"name": program.name, "language": program.language, "digest": program.digest}


def _in_full(program: Program) -> Json:
    return encoding.encode_program(program) if program.source else _named(program)


def stand_in(name: str, language: str, digest: str) -> Program:
    """A program whose source is not known here, under the digest that it has where it is."""
    program = Program(name=name, language=language, source="")
    program.__dict__["digest"] = digest  # where the cached property would keep it
    return program


def _without_messages(entry: Entry) -> Entry:
    """Compilers quote the source in their messages: what is left of a failure is its stage and its kind."""
    if not isinstance(entry, Run):
        return entry
    return replace(entry, outcomes=tuple(replace(o, outcome=_without_message(o.outcome)) for o in entry.outcomes))


def _without_message(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Failure):
        return outcome
    kind = _KIND.match(outcome.message)
    return replace(outcome, message=f"{kind[0] if kind else 'it failed'}: on another machine")


# Reading ----------------------------------------------------------------------------------------------------------------


def decode(data: bytes, name: str, *, hardware: str, program: str, known: Program | None = None) -> Contents:
    """What a segment holds, every line checked; of it all or nothing.

    Args:
        name: for the messages, its own name at the end.
        hardware, program: digests of what it must be about: those of the folder it lies in.
        known: that program, for segments without sources; without it, entries get a `stand_in`.
    Raises:
        InvalidInputError: its bytes are not those that it is named by, it is cut off, damaged, of another format or
            version, about something else, or too large; or a line of it is broken.
    """
    if len(data) > MAX_PACKED_BYTES:
        raise InvalidInputError(f"{name} has more than {MAX_PACKED_BYTES} bytes: it is not read")
    if name_of(data) != name.rpartition("/")[2]:
        raise InvalidInputError(f"{name} does not hold what it is named by: it is cut off or was changed")
    lines = unpack_lines(data, name, most_bytes=MAX_BYTES)
    accepted = f"the first line of a segment begins with {to_text(FORMAT.header)[:-1]}"
    header = encoding.fields(from_text(next(lines, ""), f"the first line of {name}"), f"the first line of {name}")
    FORMAT.check(header, Path(name), accepted=accepted, remedy="update the older of the two machines")
    if (header.get("hardware"), header.get("program")) != (hardware, program):
        raise InvalidInputError(f"{name} is about another program or hardware than the folder that it lies in")

    def decode_program(value: object) -> Program:
        fields = encoding.fields(value, "program")
        if "source" in fields:
            return encoding.decode_program(value)
        name, language, named = (encoding.text_field(fields, n, "program") for n in ("name", "language", "digest"))
        for text in (name, language, named):
            encoding.refuse_surrogates(text, "program")
        return known if known is not None and known.digest == named else stand_in(name, language, named)

    entries: list[Entry] = []
    withdrawn: list[Withdrawn] = []
    for number, line in enumerate(lines, start=2):
        try:
            value = encoding.fields(from_text(line, "it"), "it")
            if value.get("line") == "withdrawn":
                withdrawn.append(_decode_withdrawn(value))
                continue
            entry = decode_entry(value, decode_program)
            if (entry.tuning_key.hardware.digest, entry.tuning_key.workload.program.digest) != (hardware, program):
                raise InvalidInputError("it is about another program or hardware")
        except InvalidInputError as err:
            raise InvalidInputError(f"{name}: line {number}: {err}") from None
        entries.append(entry)
    return Contents(entries=tuple(entries), withdrawn=tuple(withdrawn))


def _decode_withdrawn(value: object) -> Withdrawn:
    data = encoding.fields(value, "it")
    texts = {name: encoding.text_field(data, name, "it") for name in ("workload", "toolchain")}
    for name, text in texts.items():
        encoding.refuse_surrogates(text, name)
    before = encoding.number_field(data, "before", "it")
    return Withdrawn(**texts, before=before)


def not_after(contents: Contents, at: float | None) -> Contents:
    """Contents in which times long after the storage got them are the time when it did.

    A machine's clock may be hours ahead, or years: a decision of such a machine would be the newest for as long.

    Args:
        at: by the storage's own clock, in seconds since the epoch; None where it does not tell.
    """
    got_at = FAR_FUTURE if at is None else at

    def right(time: float) -> float:
        return got_at if time > got_at + CLOCK_SLACK_S else time

    def corrected(entry: Entry) -> Entry:
        if isinstance(entry, Decided):
            decision: Decision = entry.decision
            return replace(entry, decision=replace(decision, decided_at=right(decision.decided_at)))
        return replace(entry, outcomes=tuple(replace(o, recorded_at=right(o.recorded_at)) for o in entry.outcomes))

    return Contents(
        entries=tuple(map(corrected, contents.entries)),
        withdrawn=tuple(replace(w, before=right(w.before)) for w in contents.withdrawn),
    )


def union(parts: Sequence[Contents]) -> Contents:
    """What several segments hold together, without what one of them withdraws and decisions that others supersede."""
    withdrawn: dict[tuple[str, str], float] = {}
    for part in parts:
        for w in part.withdrawn:
            withdrawn[w.workload, w.toolchain] = max(w.before, withdrawn.get((w.workload, w.toolchain), w.before))

    def counts(entry: Entry, at: float) -> bool:
        workload, _, toolchain = entry.tuning_key.digests
        return at > withdrawn.get((workload, toolchain), float("-inf"))

    runs: dict[tuple[object, ...], Run] = {}
    newest: dict[tuple[object, ...], Decided] = {}
    for entry in (entry for part in parts for entry in part.entries):
        limit_w = entry.tuning_key.hardware.power_limit_w
        if isinstance(entry, Decided):
            key: tuple[object, ...] = (*entry.tuning_key.digests, limit_w, entry.decision.space_digest)
            held = newest.get(key)
            if counts(entry, entry.decision.decided_at) and (held is None or _rank(entry) > _rank(held)):
                newest[key] = entry
            continue
        kept = tuple(o for o in entry.outcomes if counts(entry, o.recorded_at))
        if kept:
            key = (*entry.tuning_key.digests, limit_w, kept[0].run, kept[0].default.text)
            both = {o.config: o for o in (*(runs[key].outcomes if key in runs else ()), *kept)}
            runs[key] = replace(entry, outcomes=tuple(both.values()))
    return Contents(
        entries=(*runs.values(), *newest.values()),
        withdrawn=tuple(Withdrawn(workload=w, toolchain=t, before=at) for (w, t), at in withdrawn.items()),
    )


def _rank(decided: Decided) -> tuple[float, str]:
    return decided.decision.decided_at, decided.decision.config.text


def since(contents: Contents, at: float) -> Contents:
    """Contents without what was measured or decided before a time, in seconds since the epoch.

    What is withdrawn stays so: other machines may have it, and would send it again.
    """
    entries: list[Entry] = []
    for entry in contents.entries:
        if isinstance(entry, Decided):
            entries += [entry] if entry.decision.decided_at >= at else []
        elif kept := tuple(o for o in entry.outcomes if o.recorded_at >= at):
            entries.append(replace(entry, outcomes=kept))
    return Contents(entries=tuple(entries), withdrawn=contents.withdrawn)
