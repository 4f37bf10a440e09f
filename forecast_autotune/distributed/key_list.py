"""A list of keys that are to be tuned: `coverage` writes one, `tune` takes it, and processes that tune obey it.

JSON lines. The first is a header, `{"schema": "forecast_autotune.keys", "version": 1}`; every other names a key on one
hardware by their digests, and says to people what it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ..core.file_format import FileFormat
from ..core.job import Job
from ..errors import InvalidInputError
from ..store import encoding
from ..store.encoding import from_text, to_text
from ..store.textfile import read_text, write_lines

FORMAT = FileFormat(schema="forecast_autotune.keys", version=1)

VARIABLE = "_FORECAST_AUTOTUNE_KEYS"
"""The environment variable that names the list to processes of `tune`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A key on one hardware, by digests; `what` and `on` are for people."""

    hardware: str
    workload: str
    what: str  # matmul(M=4096, …)
    on: str  # the hardware's name
    why: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """All of it, as JSON has it."""
        return asdict(self)

    @property
    def digests(self) -> tuple[str, str]:
        """Those of the hardware and the workload."""
        return self.hardware, self.workload


def write_keys(path: Path, keys: Iterable[ListedKey]) -> None:
    """Write a list.

    Raises:
        OSError: the file cannot be written.
    """
    write_lines(path, [to_text(FORMAT.header), *(to_text(key.fields) for key in keys)])


def read_keys(path: Path) -> list[ListedKey]:
    """The keys of a list.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no such list, or a line of it is broken; names the line.
    """
    first, *lines = read_text(path).rstrip("\n").split("\n")
    remedy = "make it again by 'forecast-autotune coverage --write'"
    try:
        header = encoding.fields(from_text(first, "its first line"), "its first line")
    except InvalidInputError as err:
        raise InvalidInputError(f"{path} is no list of keys ({err}): {remedy}") from None
    FORMAT.check(header, path, accepted=f"a list of keys begins with {to_text(FORMAT.header)}", remedy=remedy)
    return [_decoded(line, f"{path}, line {number}") for number, line in enumerate(lines, start=2) if line.strip()]


def _decoded(line: str, what: str) -> ListedKey:
    value = encoding.fields(from_text(line, what), what)
    texts = {name: encoding.text_field(value, name, what) for name in ("hardware", "workload", "what", "on", "why")}
    for name in ("hardware", "workload"):
        if not re.fullmatch("[0-9a-f]{32}", texts[name]):
            raise InvalidInputError(f"{what}: its {name!r} is {texts[name][:40]!r}, and must be 32 hex digits")
    return ListedKey(**texts)


def is_asked_for(job: Job) -> bool:
    """Whether a job may be measured in this process: it may, unless the process was given a list that does not name it."""
    path = os.environ.get(VARIABLE, "")
    return not path or (job.hardware.digest, job.workload.digest) in _digests(path)


@cache
def _digests(path: str) -> frozenset[tuple[str, str]]:
    return frozenset(key.digests for key in read_keys(Path(path)))
