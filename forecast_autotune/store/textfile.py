"""Lines of text in a file that may be compressed, read with clear complaints and written all or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import InvalidInputError
from .filesystem import COMPANIONS

_GZIP_MAGIC = b"\x1f\x8b"
_SQLITE_MAGIC = b"SQLite format 3\0"

MAX_BYTES = 2**29
"""Of a text, uncompressed. A recording of 11,130 configs on one GPU takes 20 MB; what is read takes ten times its size."""

MAX_STREAMED_BYTES = 2**34
"""Of a text that is read line by line, uncompressed. A store of a million outcomes is exported as 1.8 GB."""

MAX_LINE_BYTES = 2**27
"""Of one such line: a tuning run's outcomes, a kilobyte each, and what it tuned."""

_AT_ONCE = 2**20


def read_text(path: Path, *, most_bytes: int = MAX_BYTES) -> str:
    """The whole text of a file, uncompressed if it is gzip, whatever its name.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no plain file, which might never end; it holds more than `most_bytes`; the compressed data
            is cut off or damaged; or the text is not UTF-8.
    """
    data = bytearray()
    with _unpacked(path) as file:
        while part := file.read(_AT_ONCE):
            data += part
            if len(data) > most_bytes:
                raise InvalidInputError(
                    f"{path} holds more than {most_bytes >> 20} MiB of text: split it into several files"
                )
    return _decoded(bytes(data), path, 0)


def stream_lines(path: Path, *, most_bytes: int = MAX_STREAMED_BYTES) -> Iterator[str]:
    """The lines of a text, read one by one, uncompressed if the file is gzip.

    Raises:
        OSError, InvalidInputError: as `read_text`, with a limit for all and `MAX_LINE_BYTES` for one line.
    """
    with _unpacked(path) as file:
        yield from _lines(file, path, most_bytes)


def unpack_lines(data: bytes, name: str, *, most_bytes: int) -> Iterator[str]:
    """The lines of a text that is gzip in memory.

    Args:
        name: for the messages.
    Raises:
        InvalidInputError: as `stream_lines`.
    """
    with _gunzipped(BytesIO(data), name) as file:
        yield from _lines(file, name, min(most_bytes, MAX_LINE_BYTES))


def pack_lines(lines: Iterable[str]) -> bytes:
    """Lines in gzip, the same bytes for the same lines: no name and no time inside."""
    import gzip

    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=6, mtime=0)


def _lines(file: BinaryIO, name: Path | str, most_bytes: int) -> Iterator[str]:
    at = 0
    longest = min(MAX_LINE_BYTES, most_bytes)
    while line := file.readline(longest + 1):
        if len(line) > MAX_LINE_BYTES or at + len(line) > most_bytes:
            what, most = ("a line", MAX_LINE_BYTES) if len(line) > MAX_LINE_BYTES else ("text", most_bytes)
            raise InvalidInputError(f"{name} holds {what} of more than {most >> 20} MiB: split it into several files")
        yield _decoded(line, name, at)
        at += len(line)


def _decoded(data: bytes, path: Path | str, at: int) -> str:
    try:
        return data.decode("utf-8" if at else "utf-8-sig")
    except UnicodeDecodeError as err:
        raise InvalidInputError(
            f"{path} is no UTF-8 text (byte {at + err.start}): give a JSON file, or one in gzip"
        ) from None


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    with open(path, "rb", opener=_not_blocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInputError(f"{path} is no plain file: copy what it gives into one, and name that")
        if file.peek(2)[:2] != _GZIP_MAGIC:
            yield file
            return
        with _gunzipped(file, path) as unpacked:
            yield unpacked


@contextmanager
def _gunzipped(file: BinaryIO, name: Path | str) -> Iterator[BinaryIO]:
    import gzip
    import zlib

    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield cast("BinaryIO", unpacked)
    except EOFError:
        raise InvalidInputError(f"{name} is cut off: its gzip data ends early; copy the file again") from None
    except (zlib.error, gzip.BadGzipFile) as err:
        raise InvalidInputError(f"{name} holds damaged gzip data ({err}): copy the file again") from None


def _not_blocking(path: str, flags: int) -> int:
    """Opens a pipe that nobody writes to all the same, so that it is seen to be one."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, in gzip when the name ends in .gz, so that the file is either the old one or all of the new one.

    A symbolic link is replaced, and what it leads to stays: somebody else may have put it there. One into /proc is refused,
    such as /dev/stdout: every program needs it. The file is for this user alone (mode 0600): it holds source code.

    Raises:
        OSError: the folder cannot be written to.
        InvalidInputError: what stands there is no plain file, or a database such as a store.
    """
    is_for_all = path.is_symlink() and (path.parent / path.readlink()).parent.resolve().is_relative_to("/proc")
    if is_for_all or (path.exists() and not path.is_file()):
        raise InvalidInputError(f"{path} is no plain file: name one that is, or a new one")
    if _is_database(path):
        raise InvalidInputError(f"{path} is a database or belongs to one, and is not written over: name a new file")
    try:
        _put(path, lines)
    except OSError as err:
        if err.filename is None and err.errno is not None:  # such as a full disk, of which no path is said
            raise OSError(err.errno, err.strerror, str(path)) from None
        raise


def _is_database(path: Path) -> bool:
    """Whether a path leads to a database of SQLite, or is a name that SQLite gives to a file beside one."""
    real = os.path.realpath(path)
    names = [real, *(real.removesuffix(ending) for ending in COMPANIONS if real.endswith(ending))]
    return any(map(_begins_as_database, filter(os.path.isfile, names)))


def _begins_as_database(name: str) -> bool:
    with open(name, "rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _put(path: Path, lines: Iterable[str]) -> None:
    """Write lines beside a path, and put them in its place."""
    import gzip

    with ExitStack() as stack:
        raw, name = _unnamed(path)
        if name is not None:
            stack.callback(_remove, name)
        with raw:
            if path.name.endswith(".gz"):
                # No name and no time inside: equal content makes equal files. Level 9 takes 1.2 times as long for 1 % less.
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as file:
                    for line in lines:
                        file.write(line.encode() + b"\n")
            else:
                for line in lines:
                    raw.write(line.encode() + b"\n")
            raw.flush()
            os.fsync(raw.fileno())
            if name is None:
                name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # else another user could take it before
                stack.callback(_remove, name)
                # Python follows the link in /proc only where it is given a folder too, which an absolute path passes by.
                os.link(f"/proc/self/fd/{raw.fileno()}", name, src_dir_fd=raw.fileno(), follow_symlinks=True)
        os.replace(name, path)


def _unnamed(path: Path) -> tuple[BinaryIO, Path | None]:
    """A file in the folder of another, without a name where that can be had, so that a process killed here leaves none."""
    import tempfile

    if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir():
        with suppress(OSError):  # not every filesystem knows such files
            return os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o600), "wb"), None
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as err:  # it names the temporary file, of which the user knows nothing
        raise OSError(err.errno, err.strerror, str(path)) from None
    return os.fdopen(number, "wb"), Path(name)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
