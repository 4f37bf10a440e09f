"""Rows that verbs keep: files of JSON objects, a line each, of which the last may be cut off where a run was killed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forecast_autotune.core.text import shown
from forecast_autotune.errors import InvalidInputError

Row = dict[str, Any]


def read_rows(file: Path, is_row: Callable[[Row], bool], *, cut_off: bool = False) -> list[Row]:
    """The rows of a file.

    Args:
        is_row: whether an object is such a row.
        cut_off: leave out a last line that was cut off while it was written, and say so on stderr.
    Raises:
        OSError: the file cannot be read.
        InvalidInputError: a line is no such row; names the file and the line.
    """
    text = file.read_bytes()
    if cut_off and (torn := _torn(text)):
        print(f"{file}: the last line was cut off while it was written: it is left out", file=sys.stderr)
        text = text.removesuffix(torn)
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError) as err:
            raise _refused(file, number, f"is no JSON ({err})") from None
        if not isinstance(row, dict) or not is_row(row):
            raise _refused(file, number, f"is no such row, {shown(row)}")
        rows.append(row)
    return rows


def append_row(file: Path, row: Mapping[str, object]) -> None:
    """Add a row at the end, in place of a last line that was cut off."""
    with file.open("a+b") as kept:
        kept.seek(0)
        text = kept.read()
        if torn := _torn(text):  # else another process may have added a row meanwhile
            kept.truncate(len(text) - len(torn))
        begins = not text or torn or text.endswith(b"\n")
        kept.write((b"" if begins else b"\n") + json.dumps(row).encode() + b"\n")


def is_number(value: object) -> bool:
    """Whether a field is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _torn(text: bytes) -> bytes:
    """What is there of a last line that was cut off: it begins as a row does, and does not end."""
    last = text.rpartition(b"\n")[2]
    if not last.startswith(b"{") or not last.isascii():
        return b""
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return last
    return b""


def _refused(file: Path, number: int, what: str) -> InvalidInputError:
    return InvalidInputError(f"{file}: line {number} {what}: remove the line, or name another file")
