"""Cache files of Kernel Tuner, of every version so far, whole or still being written.

One JSON object: `device_name`, `kernel_name`, `problem_size` (of later versions), `tune_params_keys`, `tune_params`,
`objective`, `schema_version` (of some), and `cache`, an object that holds for each config that was tried, under its
parameters' values joined by commas, its parameters and what came of them:

    "16,2": {"block_size_x": 16, "tile": 2, "time": 3.9, "times": [3.9, 3.8], "compile_time": 918.6, "benchmark_time": 126.4,
             "verification_time": 0, "framework_time": 105.2, "strategy_time": 0, "timestamp": "…", "GFLOP/s": 1948.2}

Times and costs are milliseconds; a cost may be missing. `time` is the mean of `times`, which are kept where they stand. A
config that failed names its error, `InvalidConfig` (against a limit), `CompilationFailedConfig` or
`RuntimeFailedConfig`: since 1.0 under `__error__`, before that as its time; up to 0.3 its time is 1e20.

While Kernel Tuner runs, and after it was stopped, such a file ends behind an entry's comma, without the closing braces.

The workload's key is the problem size. The default is the first config of the cache, which is the one tried first. The
program's language is "cuda" on AMD too, and "c++" on a CPU.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.config import Config
from ...core.hardware import Toolchain
from ...core.job import Recording
from ...core.outcome import Failure, Measurement, Outcome, Stage
from ...core.text import shown
from ...core.workload import Program, Workload
from ...errors import InvalidInputError
from ...features.hardware_sheets import hardware_named
from ...store import encoding
from ...store.encoding import Json, to_text
from .checks import decode_cost, decode_times, warn_about_repeated

log = logging.getLogger(__name__)

FAILED_MS = 1e20  # Kernel Tuner's time of a config that failed, up to version 0.3

_STAGE_OF_ERROR: Mapping[str, Stage] = {
    "InvalidConfig": "resources",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "launch",
    "ErrorConfig": "launch",  # what the others derive from
}

_NEAR_THE_END = 10  # characters; the longest word of JSON, -Infinity, is reported as wrong where it begins


def is_kernel_tuner(text: str) -> bool:
    """Whether a text looks like a cache file, whole or not."""
    return text.lstrip()[:1] == "{" and (
        '"tune_params_keys"' in text or ('"kernel_name"' in text and '"cache"' in text and '"results"' not in text)
    )


def read_kernel_tuner(path: Path, text: str) -> Recording:
    """The recording in a cache file; one that ends early is read up to its last whole entry, with one warning.

    Raises:
        InvalidInputError: it is damaged, ends before the first entry, or something in it is not what it should be; names
            the file and the entry.
    """
    contents = _scan(path, text)
    header, what = contents.header, str(path)
    names = {name: encoding.text_field(header, name, what) for name in ("kernel_name", "device_name")}
    for name, text_of_name in names.items():
        encoding.refuse_surrogates(text_of_name, f"{what}: {name}")
    knobs = encoding.list_field(header, "tune_params_keys", what)
    if not knobs or not all(isinstance(knob, str) for knob in knobs):
        raise InvalidInputError(f"{what} has tune_params_keys {shown(knobs)}: they are the names of the parameters")
    outcomes: dict[Config, Outcome] = {}
    repeated = 0
    for entry_key, value in contents.entries:
        what = f"{path}, entry {entry_key!r}"
        entry = encoding.fields(value, what)
        config = _config(entry_key, entry, [str(knob) for knob in knobs], what)
        if config in outcomes:
            repeated += 1
            continue
        outcomes[config] = _outcome(entry, config, what)
    if not outcomes:
        raise InvalidInputError(
            f"{path} has no entries in its cache: run Kernel Tuner with it, and let it try a config"
        )
    if contents.left_open:
        lost = ", the last one is incomplete and left out" if contents.incomplete else ""
        log.warning("%s is not closed: %d whole entries of its cache are read%s", path, len(contents.entries), lost)
    warn_about_repeated(path, repeated)
    # Its C backend gives the processor's name, which some systems leave empty.
    hardware = hardware_named(names["device_name"].strip() or "unknown CPU")
    version = header.get("schema_version", "")
    return Recording(
        workload=Workload(
            program=Program(name=names["kernel_name"], language="c++" if hardware.kind == "cpu" else "cuda", source=""),
            key=_key(header, str(path)),
        ),
        hardware=hardware,
        toolchain=Toolchain(
            versions={"recorded": f"Kernel Tuner cache {version if isinstance(version, str) else ''}".strip()}
        ),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def _key(header: Json, what: str) -> dict[str, object]:
    """The problem size as the file has it: a number, several, or "callable" where it depends on the config."""
    size = header.get("problem_size")
    if size is None:
        return {}
    for part in size if isinstance(size, list) else [size]:
        if isinstance(part, str):
            encoding.refuse_surrogates(part, f"{what}: problem_size")
        else:
            encoding.number_field({"problem_size": part}, "problem_size", what)
    return {"problem_size": size}


# One entry --------------------------------------------------------------------------------------------------------------


def _config(entry_key: str, entry: Mapping[str, object], knobs: Sequence[str], what: str) -> Config:
    """The entry's parameters. One that is a list or an object, which is no knob, becomes the text of its JSON."""
    missing = [knob for knob in knobs if knob not in entry]
    if missing:
        raise InvalidInputError(
            f"{what} does not have the parameter {missing[0]!r} of tune_params_keys ({', '.join(knobs)}): "
            "take that entry out, or record it again"
        )
    values = {knob: entry[knob] for knob in knobs}
    try:
        texts = {knob: to_text(value) for knob, value in values.items() if isinstance(value, (list, dict))}
    except (ValueError, RecursionError) as err:
        raise InvalidInputError(f"{what}: a parameter is no value ({err}): record the file again") from None
    config = encoding.decode_config(values | texts, what)
    # Whole numbers alone are written one way only; the text of a fraction or of a list is up to the version.
    parts = entry_key.split(",")
    if all(type(value) is int for value in values.values()) and parts != [str(value) for value in values.values()]:
        raise InvalidInputError(
            f"{what} has other parameters than its name says ({config}): which of the two was measured is not known; take "
            "that entry out, or record it again"
        )
    return config


def _outcome(entry: Mapping[str, object], config: Config, what: str) -> Outcome:
    compile_s, benchmark_s, verification_s, framework_s = (
        decode_cost(entry, f"{name}_time", what) * 1e-3
        for name in ("compile", "benchmark", "verification", "framework")
    )
    error = _error(entry, config)
    if error is not None:
        return Failure(
            stage=_STAGE_OF_ERROR.get(error, "launch"),
            message=f"recorded as {error}",
            cost_s=compile_s + benchmark_s + verification_s + framework_s,
        )
    time, times = entry.get("time"), entry.get("times")
    if time is None and not times:
        raise InvalidInputError(
            f"{what} has neither a time nor an error ({', '.join(_STAGE_OF_ERROR)}): give one of them"
        )
    if not isinstance(times, (list, type(None))):
        raise InvalidInputError(f"{what} has the times '{shown(times)}': they are a list of milliseconds")
    mean_ms = decode_times([] if time is None else [time], f"{what} has the time")
    each_ms = decode_times(times or [], f"{what} has among its times")
    samples_s = [ms * 1e-3 for ms in each_ms or mean_ms]
    return Measurement(
        samples_us=tuple(s * 1e6 for s in samples_s),
        compile_s=compile_s,
        run_s=max(sum(samples_s), benchmark_s) + verification_s + framework_s,
    )


def _error(entry: Mapping[str, object], config: Config) -> str | None:
    """The name of the error that an entry has in place of a time, in any of the forms that versions wrote."""
    for name, value in entry.items():
        if name in config.knobs:
            continue
        if isinstance(value, dict) and "__error__" in value:
            value = value["__error__"]
            name = "__error__"
        if name == "__error__" and value is not None:
            return value[:60] if isinstance(value, str) else "ErrorConfig"
        if isinstance(value, str) and value in _STAGE_OF_ERROR:
            return value
    time = entry.get("time")
    return "ErrorConfig" if isinstance(time, (int, float)) and time >= FAILED_MS else None


# The text ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """What a file holds: `entries` of the cache in their order; whether it ended early, and within an entry."""

    header: Json
    entries: list[tuple[str, object]]
    left_open: bool
    incomplete: bool


def _scan(path: Path, text: str) -> _Contents:
    """Read member by member, so that a text that ends early still gives its whole entries.

    Reading one JSON value would give nothing of an open file, and only the last of two entries of one name.
    """
    reader = _Reader(text)
    header: Json = {}
    entries: list[tuple[str, object]] = []
    whole_to = 0
    left_open = False
    try:
        for name in reader.members():
            if name == "cache" and reader.token() == "{":
                for key in reader.members():
                    entries.append((key, reader.value()))
                    whole_to = reader.at
            else:
                header[name] = reader.value()
        if reader.token():
            raise InvalidInputError(
                f"{path} goes on behind its closing brace, with {text[reader.at :][:20]!r}: take that out"
            )
    except json.JSONDecodeError as err:
        end = len(text.rstrip())
        if err.pos < end - _NEAR_THE_END and not err.msg.startswith("Unterminated string"):
            raise InvalidInputError(
                f"{path} is damaged in line {err.lineno}, column {err.colno} ({err.msg}): copy the file again, or take the "
                "line out"
            ) from None
        left_open = True
    except InvalidInputError:
        raise
    except (ValueError, RecursionError) as err:
        raise InvalidInputError(f"{path} is no cache file of Kernel Tuner ({err}): record it again") from None
    if left_open and not entries:
        raise InvalidInputError(
            f"{path} is cut off before the first whole entry of its cache: copy the file again, or let Kernel Tuner go on"
        )
    return _Contents(
        header=header,
        entries=entries,
        left_open=left_open,
        incomplete=left_open and bool(text[whole_to:].strip(", \t\r\n}")),
    )


_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(slots=True)
class _Reader:
    """Reads JSON from left to right. NaN passes: metrics that are not used may hold it."""

    text: str
    at: int = 0

    def token(self) -> str:
        """The next character that is no space, without reading it; empty at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def value(self) -> object:
        """Read the JSON value at this position."""
        self.token()
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        return value

    def members(self) -> Iterator[str]:
        """The names of the object at this position; read each one's value before asking for the next name."""
        self._expect("{")
        while self.token() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise json.JSONDecodeError("a name is no text", self.text, self.at)
            self._expect(":")
            yield name
            if self.token() != "}":
                self._expect(",")
        self.at += 1

    def _expect(self, character: str) -> None:
        if self.token() != character:
            raise json.JSONDecodeError(f"{character!r} is missing", self.text, self.at)
        self.at += 1


_DECODER = json.JSONDecoder()
