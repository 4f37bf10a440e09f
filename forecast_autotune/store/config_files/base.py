"""What a format of config files is, and what formats share: parts of keys, what is stated of them, reading and writing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from ...core.config import Config
from ...core.decision import Decision
from ...core.digest import Value
from ...core.job import Job
from ...core.text import shown
from ...core.workload import Workload
from ...errors import InvalidInputError
from ...features.knob_roles import TRITON_OPTIONS
from ..encoding import Json, from_text
from ..rows import TuningKey
from ..textfile import read_text, write_lines

MAX_FILE_BYTES = 2**22
"""Of one config file: the largest that vLLM 0.33 and SGLang 0.5.23 ship has 5 KB."""

VARIANT = "variant"
"""The knob by which `fa.variants` tells its callables apart."""

_STATEMENT = re.compile(r"(\w+)=(.+)", re.DOTALL)
_PART = re.compile(r"([A-Za-z_]\w*)(?:/([1-9]\d{0,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A measured decision, and the default config it was compared with; None where that is not known any more."""

    tuning_key: TuningKey
    decision: Decision
    default: Config | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file to write: its path in the folder, its content as JSON, and what its rows are."""

    path: PurePosixPath
    content: Json
    note: str


@dataclass(slots=True)
class Export:
    """Files to write, and decisions that are in none of them: how many, by why."""

    files: list[ConfigFile] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, why: str) -> None:
        """Count a decision that is in no file."""
        self.left_out[why] = self.left_out.get(why, 0) + 1


class ConfigFormat(Protocol):
    """How one program names and writes its config files."""

    @property
    def name(self) -> str:
        """What the command knows it by."""

    @property
    def use(self) -> str:
        """How the program is told of a folder `{folder}`."""

    @property
    def where(self) -> tuple[str, ...]:
        """What may be stated of keys."""

    def export(self, tuned: Iterable[Tuned], where: Where) -> Export:
        """The files that hold these decisions, given the newest first.

        Raises:
            InvalidInputError: decisions exclude each other; the message says how to choose.
        """

    def parse(self, path: Path) -> tuple[PurePosixPath, Json] | None:
        """Read a file of the program's: the name to keep it by, and what is kept; None where its name is none of the format.

        Raises:
            OSError: it cannot be read.
            InvalidInputError: its name is one of the format, its content is not.
        """

    def suggest(self, job: Job, kept: ImportedFiles) -> Sequence[tuple[str, Mapping[str, Value]]]:
        """What kept files say of a job, the likeliest first: a file's name, and the knobs that it sets."""


class ImportedFiles(Protocol):
    """The imported files of one format."""

    def read(self, name: str) -> Json | None:
        """A file's content; None where there is none, or it is broken, which is warned of."""

    def folders(self) -> list[str]:
        """The names of the folders that files are kept in."""


# What is stated of keys -------------------------------------------------------------------------------------------------


class Where:
    """What a user states of keys, as `N=n/2` or `E=8`: a part of the key, a part over a number, or a value.

    Args:
        statements: each `NAME=VALUE`.
        names: what may be stated.
    Raises:
        InvalidInputError: a statement does not parse, or is about something else.
    """

    def __init__(self, statements: Sequence[str] = (), names: Sequence[str] = ()) -> None:
        self._said: dict[str, str] = {}
        for statement in statements:
            found = _STATEMENT.fullmatch(statement)
            if found is None or found[1] not in names:
                accepted = f"accepted is NAME=VALUE with {', '.join(names)}" if names else "this format takes none"
                raise InvalidInputError(f"--where {statement}: {accepted}")
            self._said[found[1]] = found[2].strip()

    def text(self, name: str) -> str | None:
        """What is stated of a name, as it was given."""
        return self._said.get(name)

    def number(self, name: str, parts: Mapping[str, object], otherwise: Callable[[], object]) -> int:
        """A positive whole number: as stated, else as the key says.

        Args:
            otherwise: finds it in the key; None where it is not there.
        Raises:
            InvalidInputError: the key does not say it, or says another one than is stated.
        """
        said = self._said.get(name)
        in_key = otherwise()
        if said is None:
            if in_key is None:
                raise InvalidInputError(
                    f"its key says no {name}: state it with --where {name}=NUMBER, or {name}=PART of {_listed(parts)}"
                )
            return _positive(in_key, name)
        if said.isdecimal():
            number = _positive(int(said), name)
            if in_key is not None and in_key != number:
                raise InvalidInputError(f"it was tuned for another {name} than {number}")
            return number
        found = _PART.fullmatch(said)
        if found is None or found[1] not in parts:
            raise InvalidInputError(f"--where {name}={said}: its key has no such part, but {_listed(parts)}")
        value, divisor = parts[found[1]], int(found[2] or 1)
        if not isinstance(value, int) or isinstance(value, bool) or value % divisor:
            raise InvalidInputError(f"--where {name}={said}: {found[1]} is {shown(value)}, not a multiple of {divisor}")
        return _positive(value // divisor, name)


def _positive(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise InvalidInputError(f"{name} is {shown(value)}: it must be a positive whole number")
    return value


def _listed(parts: Mapping[str, object]) -> str:
    named = [name for name, value in parts.items() if isinstance(value, int) and not isinstance(value, bool)]
    return ", ".join(named[:12]) + (", …" if len(named) > 12 else "") if named else "those it has: none is a number"


def parts_of(workload: Workload) -> dict[str, object]:
    """The parts of a key by name, then the call's features beside it; extents of a tensor `x` are `x_0`, `x_1`."""
    parts: dict[str, object] = {}
    for named in (workload.key, workload.features):  # the key's come first in what is listed, and hold
        for name, value in named.items():
            if isinstance(value, Mapping):
                shape = value.get("shape")
                for i, extent in enumerate(shape if isinstance(shape, list) else ()):
                    parts.setdefault(f"{name}_{i}", extent)
            else:
                parts.setdefault(name, value)
    return parts


def function_of(workload: Workload) -> str:
    """The name of the function that is tuned, without its module."""
    return workload.program.name.rpartition(".")[2]


def dtypes_of(workload: Workload) -> list[str]:
    """The dtypes of a call's tensors as its key names them, without `torch.`"""
    found: list[object] = []
    for name, value in workload.key.items():
        if isinstance(value, Mapping) and name != "given constexprs":
            found += value.values() if name == "dtypes" else [value.get("dtype")]
    return [dtype.removeprefix("torch.") for dtype in found if isinstance(dtype, str)]


# Files ------------------------------------------------------------------------------------------------------------------


def write(folder: Path, file: ConfigFile) -> None:
    """Write a file into a folder, which is made if need be: readable JSON, the old file or all of the new one.

    Raises:
        OSError: the folder cannot be written to.
        InvalidInputError: what stands there is no plain file.
    """
    (folder / file.path.parent).mkdir(parents=True, exist_ok=True)
    write_lines(folder / file.path, json.dumps(file.content, indent=4, allow_nan=False).splitlines())


def read_object(path: Path) -> Json:
    """The one JSON object that a config file is.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is no plain file, too large, no text, or something else.
    """
    value = from_text(read_text(path, most_bytes=MAX_FILE_BYTES), str(path))
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path} holds {shown(value)}: a config file is one JSON object")
    return value


def checked_knobs(value: object, what: str) -> dict[str, Value]:
    """Knobs by name, each a whole number, a truth value, a short text or nothing.

    Raises:
        InvalidInputError: they are something else.
    """
    if not isinstance(value, dict) or not value:
        raise InvalidInputError(f"{what} is {shown(value)}: a config is an object of knobs")
    for name, knob in value.items():
        plain = knob is None or isinstance(knob, (bool, int)) or (isinstance(knob, str) and len(knob) <= 64)
        if not re.fullmatch(r"\w{1,64}", name) or not plain or (isinstance(knob, int) and abs(knob) >= 2**31):
            raise InvalidInputError(f"{what} sets {shown(name)} to {shown(knob)}: knobs are named whole numbers")
    return value


def own_knobs(config: Config) -> dict[str, Value]:
    """A config's knobs as a file has them: without options of Triton that hold their default, and which variant it is."""
    unset = {name: TRITON_OPTIONS[name] for name in ("num_ctas", "maxnreg", "ir_override")}
    own = {name: value for name, value in config.knobs.items() if name != VARIANT}
    return {name: value for name, value in own.items() if not (name in unset and value in (None, unset[name]))}
