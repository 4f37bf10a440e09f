"""Traces in our own form: JSON lines, in gzip when the name ends in .gz.

The first line is a header:

    {"schema": "forecast_autotune.trace", "version": 1,
     "program": {"name", "language", "source"}, "workload": {"key", "timing", "check", "features"},
     "hardware": {"kind", "name", …}, "toolchain": {component: version}, "knobs": [names], "default": {knob: value},
     "recorded": {how it was recorded, in the recorder's own words; may be missing}}

Every other line is one config, its knobs those of the header, with what it gave:

    {"config": {knob: value}, "samples_us": [times], "compile_s": s, "run_s": s, "clock_mhz": MHz or null}
    {"config": {knob: value}, "failure": {"stage", "message", "cost_s", "crashed"}}

It may also hold `"described": {name: number}`: what is known of the config without compiling (`Job.static_features`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...core.config import Config
from ...core.file_format import FileFormat
from ...core.job import Recording
from ...core.outcome import Failure, Outcome
from ...errors import InvalidInputError
from ...store import encoding
from ...store.encoding import Json, from_text, to_text
from ...store.textfile import read_text, write_lines
from .checks import ACCEPTED, check_knobs, warn_about_repeated

FORMAT = FileFormat(schema="forecast_autotune.trace", version=1)


def read_recorded(path: Path | str) -> Mapping[str, object]:
    """How a trace of our own form was recorded, in its recorder's words; empty where the file does not say.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no trace of our own form and version.
    """
    path = Path(path)
    first = read_text(path).partition("\n")[0]
    header = encoding.fields(from_text(first, f"{path}, line 1"), f"{path}, line 1")
    FORMAT.check(
        header, path, accepted=f"it must be {FORMAT.schema}, record it again", remedy="record it again, or update"
    )
    return encoding.fields(header.get("recorded", {}), f"{path}, line 1: recorded")


def write_trace(recording: Recording, path: Path | str, *, recorded: Mapping[str, object] | None = None) -> None:
    """Write a recorded run in our own form; an interrupted write leaves the old file whole.

    Args:
        recording: its configs all set the same knobs as its default.
        path: written in gzip when the name ends in .gz.
        recorded: how it was recorded, in JSON values; goes into the header.
    Raises:
        OSError: the file cannot be written.
        InvalidInputError: a config's knobs are not the default's.
    """
    path = Path(path)
    knobs = list(recording.default.knobs)
    for config in recording.outcomes:
        check_knobs(config, knobs, f"trace {path}")
    write_lines(path, _own_lines(recording, knobs, recorded or {}))


def _own_lines(recording: Recording, knobs: list[str], recorded: Mapping[str, object]) -> Iterator[str]:
    yield to_text(
        {
            **FORMAT.header,
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
        if features := recording.static_features.get(config):
            line["described"] = encoding.encode_static_features(features)
        yield to_text(line)


def read_jsonl(path: Path, header: Json, rest: str) -> Recording:
    """The recording in a trace of our own form.

    Args:
        path: the file, for messages.
        header: its first line.
        rest: its other lines.
    Raises:
        InvalidInputError: another schema or version, a cut line, or a value out of place; names the file and the line.
    """
    FORMAT.check(header, path, accepted=ACCEPTED, remedy="record it again, or update")
    what = f"{path}, line 1"
    program = encoding.decode_program(header.get("program"), f"{what}: program")
    knobs = encoding.list_field(header, "knobs", what)
    default = encoding.decode_config(header.get("default"), f"{what}: default")
    check_knobs(default, knobs, what)
    outcomes, static_features = _read_configs(path, knobs, rest)
    return Recording(
        workload=encoding.decode_workload(header.get("workload"), program, f"{what}: workload"),
        hardware=encoding.decode_hardware(header.get("hardware"), f"{what}: hardware"),
        toolchain=encoding.decode_toolchain(header.get("toolchain"), f"{what}: toolchain"),
        default=default,
        outcomes=outcomes,
        static_features=static_features,
    )


def _read_configs(
    path: Path, knobs: Sequence[object], rest: str
) -> tuple[dict[Config, Outcome], dict[Config, Mapping[str, float]]]:
    """The outcome of each config and, where its line has one, its description."""
    outcomes: dict[Config, Outcome] = {}
    static_features: dict[Config, Mapping[str, float]] = {}
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
        failure = value.get("failure")
        if failure is not None and "stage" not in encoding.fields(failure, f"{what}: failure"):
            raise InvalidInputError(f"{what}: failure has no stage")
        outcomes[config] = encoding.decode_outcome(value if failure is None else failure, what)
        if "described" in value:
            static_features[config] = encoding.decode_static_features(value["described"], f"{what}: described")
    warn_about_repeated(path, repeated)
    return outcomes, static_features
