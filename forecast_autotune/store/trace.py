"""Recorded runs in their portable form: read and write them, and read the T4 form of other tuners.

Our own form is JSON lines, in gzip when the name ends in .gz. The first line is a header:

    {"schema": "forecast_autotune.trace", "version": 1,
     "program": {"name", "language", "source"}, "workload": {"key", "timing", "check", "features"},
     "hardware": {"kind", "name", …}, "toolchain": {component: version}, "knobs": [names], "default": {knob: value},
     "recorded": {how it was recorded, in the recorder's own words; may be missing}}

Every other line is one config, its knobs those of the header, with what it gave:

    {"config": {knob: value}, "samples_us": [times], "compile_s": s, "run_s": s, "clock_mhz": MHz or null}
    {"config": {knob: value}, "failure": {"stage", "message", "cost_s", "crashed"}}

T4 files (the results of Kernel Tuner and other tuners; `{"metadata": …, "results": […]}`) are read, not written. Such a
file names neither kernel nor hardware, so its own name does, `<kernel>_<…>_<hardware>_T4.json.gz`: the kernel is what
stands before the first underscore, the hardware what stands after the last one, and what lies between becomes the key.
A name without an underscore is the kernel's, on hardware "unknown". Hardware named MI…, W6… or W7… is AMD's ("hip"),
all else NVIDIA's ("cuda"). The program's language is "cuda" on both: one source, which a platform may translate.
The first config listed is the default.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core.config import Config
from ..core.hardware import Hardware, Toolchain
from ..core.job import Recording
from ..core.outcome import Failure, Measurement, Outcome
from ..core.workload import Program, Workload
from ..errors import InvalidInputError
from . import encoding
from .encoding import Json, from_text, to_text
from .textfile import read_text, write_lines

log = logging.getLogger(__name__)

SCHEMA = "forecast_autotune.trace"
VERSION = 1

ACCEPTED = "accepted are this package's traces (JSON lines) and T4 JSON, each also in gzip"

_SECONDS_PER_UNIT = {
    **dict.fromkeys(("miliseconds", "milliseconds", "millisecond", "ms"), 1e-3),  # the first is how T4 files spell it
    **dict.fromkeys(("microseconds", "microsecond", "us"), 1e-6),
    **dict.fromkeys(("nanoseconds", "nanosecond", "ns"), 1e-9),
    **dict.fromkeys(("seconds", "second", "s"), 1.0),
}

_STAGE_OF_INVALIDITY = {
    "compile": "compile",
    "runtime": "launch",
    "timeout": "timeout",
    "correctness": "check",
    "constraints": "resources",
}

_AMD = re.compile(r"MI\d|W[67]\d", re.IGNORECASE)


def read_trace(path: Path | str) -> Recording:
    """Read a recorded run, in our own form or T4 JSON.

    Times are kept sample by sample. A config that stands there twice counts once, as it came first.

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
        header = None  # a T4 file is usually one JSON value over many lines
    if isinstance(header, dict) and "schema" in header and "results" not in header:
        recording = _read_own(path, header, rest)
    else:
        recording = _read_t4(path, header if isinstance(header, dict) and not rest.strip() else _whole(path, text))
    if not any(isinstance(outcome, Measurement) for outcome in recording.outcomes.values()):
        raise InvalidInputError(
            f"{path} has no config that ran, of {len(recording.outcomes)}: nothing to learn from it"
        )
    return recording


def read_recorded(path: Path | str) -> Mapping[str, object]:
    """What a trace of our own form tells of how it was recorded; empty where it tells nothing.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no trace of our own form.
    """
    first = read_text(Path(path)).partition("\n")[0]
    header = encoding.fields(from_text(first, f"{path}, line 1"), f"{path}, line 1")
    if header.get("schema") != SCHEMA:
        raise InvalidInputError(f"{path} has the schema {header.get('schema')!r}, not {SCHEMA}: record it anew")
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
        _check_knobs(config, knobs, f"trace {path}")
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
        yield to_text(line | ({"failure": encoded} if isinstance(outcome, Failure) else encoded))


def _read_own(path: Path, header: Json, rest: str) -> Recording:
    if header.get("schema") != SCHEMA:
        raise InvalidInputError(f"{path} has the schema {header.get('schema')!r}: {ACCEPTED}")
    if header.get("version") != VERSION:
        raise InvalidInputError(
            f"{path} is a trace of version {header.get('version')!r}, this version of forecast_autotune reads {VERSION}: "
            "record it again, or update"
        )
    what = f"{path}, line 1"
    program = encoding.decode_program(header.get("program"), f"{what}: program")
    knobs = encoding.list_field(header, "knobs", what)
    default = encoding.decode_config(header.get("default"), f"{what}: default")
    _check_knobs(default, knobs, what)
    outcomes: dict[Config, Outcome] = {}
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
        _check_knobs(config, knobs, what)
        if config in outcomes:
            repeated += 1
            continue
        found = value.get("failure")
        if found is not None and "stage" not in encoding.fields(found, f"{what}: failure"):
            raise InvalidInputError(f"{what}: failure has no stage")
        outcomes[config] = encoding.decode_outcome(value if found is None else found, what)
    _tell_repeated(path, repeated)
    return Recording(
        workload=encoding.decode_workload(header.get("workload"), program, f"{path}, line 1: workload"),
        hardware=encoding.decode_hardware(header.get("hardware"), f"{path}, line 1: hardware"),
        toolchain=encoding.decode_toolchain(header.get("toolchain"), f"{path}, line 1: toolchain"),
        default=default,
        outcomes=outcomes,
    )


def _check_knobs(config: Config, knobs: list[str] | list[object], what: str) -> None:
    if config.knobs.keys() != set(knobs):
        raise InvalidInputError(
            f"{what}: config {config} has the knobs {sorted(config.knobs)}, the trace has {sorted(map(str, knobs))}: "
            "every config of a trace sets the same knobs"
        )


def _tell_repeated(path: Path, repeated: int) -> None:
    if repeated:
        log.warning("%s: %d configs stand there more than once; the first of each is kept", path, repeated)


# T4 ---------------------------------------------------------------------------------------------------------------------


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


def _read_t4(path: Path, document: Json) -> Recording:
    results = document.get("results")
    if not isinstance(results, list):
        raise InvalidInputError(f"{path} is no trace (it has no 'results'): {ACCEPTED}")
    metadata = encoding.fields(document.get("metadata") or {}, f"{path}: metadata")
    unit = metadata.get("timeunit", "miliseconds")
    if not isinstance(unit, str) or unit.lower() not in _SECONDS_PER_UNIT:
        raise InvalidInputError(f"{path} has the time unit {unit!r}: accepted are {', '.join(_SECONDS_PER_UNIT)}")
    seconds = _SECONDS_PER_UNIT[unit.lower()]
    outcomes: dict[Config, Outcome] = {}
    repeated = 0
    for number, value in enumerate(results, start=1):
        what = f"{path}, result {number}"
        result = encoding.fields(value, what)
        config = encoding.decode_config(result.get("configuration"), f"{what}: configuration")
        if config in outcomes:
            repeated += 1
            continue
        outcomes[config] = _t4_outcome(result, seconds, what)
    if not outcomes:
        raise InvalidInputError(f"{path} has no results: {ACCEPTED}")
    _tell_repeated(path, repeated)
    kernel, campaign, hardware = _t4_names(path)
    key: dict[str, object] = {"campaign": campaign} if campaign else {}
    return Recording(
        workload=Workload(program=Program(name=kernel, language="cuda", source=""), key=key),
        hardware=Hardware(kind="hip" if _AMD.match(hardware) else "cuda", name=hardware),
        toolchain=Toolchain(versions={"recorded": f"T4 {document.get('schema_version', '')}".strip()}),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def _t4_outcome(result: Mapping[str, object], seconds: float, what: str) -> Outcome:
    times = encoding.fields(result.get("times") or {}, f"{what}: times")

    def cost(name: str) -> float:
        return encoding.number_field(times, name, f"{what}: times", 0.0) * seconds

    runtimes = encoding.list_field(times, "runtimes", f"{what}: times")
    for runtime in runtimes:
        if isinstance(runtime, bool) or not isinstance(runtime, (int, float)) or not 0 < runtime < 1e300:
            raise InvalidInputError(f"{what} has the runtime {runtime!r}: times are positive and finite")
    samples = [float(runtime) * seconds for runtime in runtimes]  # type: ignore[arg-type]  # checked just above
    compile_s = cost("compilation")
    run_s = sum(samples) + cost("framework") + cost("validation")
    invalidity = result.get("invalidity", "correct")
    if invalidity == "correct":
        if not samples:
            raise InvalidInputError(f"{what} is correct but has no runtimes: give at least one time for it")
        return Measurement(samples_us=tuple(s * 1e6 for s in samples), compile_s=compile_s, run_s=run_s)
    if not isinstance(invalidity, str) or invalidity not in _STAGE_OF_INVALIDITY:
        raise InvalidInputError(
            f"{what} has the invalidity {invalidity!r}: accepted are correct, {', '.join(_STAGE_OF_INVALIDITY)}"
        )
    return Failure(
        stage=_STAGE_OF_INVALIDITY[invalidity], message=f"recorded as invalid: {invalidity}", cost_s=compile_s + run_s
    )


def _t4_names(path: Path) -> tuple[str, str, str]:
    """Kernel, campaign and hardware out of a file's name."""
    stem = re.sub(r"(_T4)?(\.json)?(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    kernel, _, others = stem.partition("_")
    campaign, _, hardware = others.rpartition("_")
    return kernel or stem, campaign, hardware or "unknown"
