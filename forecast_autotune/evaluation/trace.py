"""Recorded runs in their portable form: read and write them, and read the forms of other tuners.

Our own form is JSON lines, in gzip when the name ends in .gz. The first line is a header:

    {"schema": "forecast_autotune.trace", "version": 1,
     "program": {"name", "language", "source"}, "workload": {"key", "timing", "check", "features"},
     "hardware": {"kind", "name", …}, "toolchain": {component: version}, "knobs": [names], "default": {knob: value},
     "recorded": {how it was recorded, in the recorder's own words; may be missing}}

Every other line is one config, its knobs those of the header, with what it gave:

    {"config": {knob: value}, "samples_us": [times], "compile_s": s, "run_s": s, "clock_mhz": MHz or null}
    {"config": {knob: value}, "failure": {"stage", "message", "cost_s", "crashed"}}

It may also hold `"described": {name: number}`, what could be told of the config before it was compiled (`Job.described`).

Other tuners' forms are read, not written: T4 files (`trace_t4.py`) and Kernel Tuner's cache files
(`trace_kernel_tuner.py`). A file is told by what it holds, not by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core.config import Config
from ..core.job import Recording
from ..core.outcome import Failure, Measurement, Outcome
from ..errors import InvalidInputError
from ..store import encoding
from ..store.encoding import Json, from_text, to_text
from ..store.textfile import read_text, write_lines
from .trace_checks import ACCEPTED, check_knobs, tell_repeated
from .trace_kernel_tuner import is_kernel_tuner, read_kernel_tuner
from .trace_t4 import read_t4

SCHEMA = "forecast_autotune.trace"
VERSION = 1


def read_trace(path: Path | str) -> Recording:
    """Read a recorded run, in our own form, T4 JSON or as Kernel Tuner's cache file; each may be in gzip.

    Times are kept sample by sample. A config that stands there twice counts once, as it came first. A Kernel Tuner file
    that is still being written is read as far as its entries are whole, with one warning.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is cut off, of another format or version, has times that are no times, or no config that
            ran; names the file and what is accepted.
    """
    path = Path(path)
    text = read_text(path)
    first, _, rest = text.partition("\n")
    try:
        header = from_text(first, "the first line")
    except InvalidInputError:
        header = None  # the others are usually one JSON value over many lines
    if isinstance(header, dict) and "schema" in header and "results" not in header:
        recording = _read_own(path, header, rest)
    elif is_kernel_tuner(text):
        recording = read_kernel_tuner(path, text)
    else:
        recording = read_t4(path, header if isinstance(header, dict) and not rest.strip() else _whole(path, text))
    if not any(isinstance(outcome, Measurement) for outcome in recording.outcomes.values()):
        raise InvalidInputError(
            f"{path} has no config that ran, of {len(recording.outcomes)}: nothing to learn from it, record it again"
        )
    return recording


def _whole(path: Path, text: str) -> Json:
    """The file as one JSON object."""
    try:
        value = from_text(text, str(path))
    except InvalidInputError as err:
        if text.lstrip()[:1] == "{":
            raise InvalidInputError(f"{path} is cut off or damaged ({err}): copy the file again; {ACCEPTED}") from None
        raise InvalidInputError(f"{path} is no trace (it starts with {text[:20]!r}): {ACCEPTED}") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path} is no trace (it is a JSON {type(value).__name__}): {ACCEPTED}")
    return value


def read_recorded(path: Path | str) -> Mapping[str, object]:
    """What a trace of our own form tells of how it was recorded; empty where it tells nothing.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no trace of our own form.
    """
    first = read_text(Path(path)).partition("\n")[0]
    header = encoding.fields(from_text(first, f"{path}, line 1"), f"{path}, line 1")
    if header.get("schema") != SCHEMA:
        raise InvalidInputError(
            f"{path} has the schema {encoding.shown(header.get('schema'))}, not {SCHEMA}: record it anew"
        )
    return encoding.fields(header.get("recorded", {}), f"{path}, line 1: recorded")


def write_trace(recording: Recording, path: Path | str, *, recorded: Mapping[str, object] | None = None) -> None:
    """Write a recorded run in our own form; the file is either the old one or all of the new one.

    `recorded` is what its header tells of how it was recorded, in JSON values.

    Raises:
        OSError: the file cannot be written.
        InvalidInputError: a config's knobs are not the default's.
    """
    path = Path(path)
    knobs = list(recording.default.knobs)
    for config in recording.outcomes:
        check_knobs(config, knobs, f"trace {path}")
    write_lines(path, _own_lines(recording, knobs, recorded or {}))


# Our own form -----------------------------------------------------------------------------------------------------------


def _own_lines(recording: Recording, knobs: list[str], recorded: Mapping[str, object]) -> Iterator[str]:
    yield to_text(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "program": encoding.encode_program(recording.workload.program),
            "workload": encoding.encode_workload(recording.workload),
            "hardware": encoding.encode_hardware(recording.hardware),
            "toolchain": encoding.encode_toolchain(recording.toolchain),
            "knobs": knobs,
            "default": encoding.encode_config(recording.default),
            **({"recorded": dict(recorded)} if recorded else {}),
        }
    )
    for config, outcome in recording.outcomes.items():
        line: Json = {"config": {knob: config[knob] for knob in knobs}}
        encoded = encoding.encode_outcome(outcome)
        line |= {"failure": encoded} if isinstance(outcome, Failure) else encoded
        if described := recording.described.get(config):
            line["described"] = encoding.encode_described(described)
        yield to_text(line)


def _read_own(path: Path, header: Json, rest: str) -> Recording:
    if header.get("schema") != SCHEMA:
        raise InvalidInputError(f"{path} has the schema {encoding.shown(header.get('schema'))}: {ACCEPTED}")
    if header.get("version") != VERSION:
        version = encoding.shown(header.get("version"))
        raise InvalidInputError(
            f"{path} is a trace of version {version}, this version of forecast_autotune reads {VERSION}: "
            "record it again, or update"
        )
    what = f"{path}, line 1"
    program = encoding.decode_program(header.get("program"), f"{what}: program")
    knobs = encoding.list_field(header, "knobs", what)
    default = encoding.decode_config(header.get("default"), f"{what}: default")
    check_knobs(default, knobs, what)
    outcomes: dict[Config, Outcome] = {}
    described: dict[Config, Mapping[str, float]] = {}
    repeated = 0
    lines = rest.split("\n")
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        what = f"{path}, line {number}"
        try:
            value = encoding.fields(from_text(line, what), what)
        except InvalidInputError:
            if number == len(lines) + 1:  # the last one, and no line end after it
                raise InvalidInputError(f"{path} is cut off in line {number}: copy or record the file again") from None
            raise
        config = encoding.decode_config(value.get("config"), f"{what}: config")
        check_knobs(config, knobs, what)
        if config in outcomes:
            repeated += 1
            continue
        found = value.get("failure")
        if found is not None and "stage" not in encoding.fields(found, f"{what}: failure"):
            raise InvalidInputError(f"{what}: failure has no stage")
        outcomes[config] = encoding.decode_outcome(value if found is None else found, what)
        if "described" in value:
            described[config] = encoding.decode_described(value["described"], f"{what}: described")
    tell_repeated(path, repeated)
    return Recording(
        workload=encoding.decode_workload(header.get("workload"), program, f"{path}, line 1: workload"),
        hardware=encoding.decode_hardware(header.get("hardware"), f"{path}, line 1: hardware"),
        toolchain=encoding.decode_toolchain(header.get("toolchain"), f"{path}, line 1: toolchain"),
        default=default,
        outcomes=outcomes,
        described=described,
    )
