"""The header of our own files: which format, and which version of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidInputError
from .text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A file format of ours, in the version that this package writes.

    The header is the first line of a JSON-lines file, or stands at the top of a JSON document.
    """

    schema: str  # its name
    version: int
    reads_too: tuple[int, ...] = ()  # other versions that are read

    @property
    def header(self) -> dict[str, object]:
        """The fields that a file of this format begins with."""
        return {"schema": self.schema, "version": self.version}

    def check(self, header: Mapping[str, object], path: Path, *, accepted: str, remedy: str) -> None:
        """Refuse a file of another format or version.

        Args:
            header: its first line, or the whole document.
            path: the file, for the message.
            accepted: what to give in place of a file of another format.
            remedy: what to do about another version.
        Raises:
            InvalidInputError: the header is another one.
        """
        if header.get("schema") != self.schema:
            raise InvalidInputError(f"{path} has the schema {shown(header.get('schema'))}: {accepted}")
        if header.get("version") not in (readable := sorted((self.version, *self.reads_too))):
            raise InvalidInputError(
                f"{path} has version {shown(header.get('version'))}, this version of forecast_autotune reads "
                f"{', '.join(map(str, readable))}: {remedy}"
            )
