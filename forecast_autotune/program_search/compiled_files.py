"""What Triton compiled in a worker's folder: carried to another worker's, and told from what others compiled.

A candidate may have written what it likes there, and may be writing still. So files are read through descriptors of the
folders that they lie in: no link is followed, nothing but files is read, no deeper than Triton writes, and no more than
`MAX_BYTES` and `MAX_FILES` in all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .run_folders import remove

BINARIES = (".cubin", ".hsaco")
GROUP = "__grp__"  # begins the name of a file of Triton's that lists what belongs together
MAX_FILES = 4096  # a kernel comes to ten
MAX_BYTES = 256 << 20  # that are read of a folder: a kernel comes to half a megabyte


def carry(compiled: Path, to: Path) -> None:
    """Copy what Triton compiled from one worker's folder to another's."""
    reader = to.parent.stat()  # where a box has become another user, that one
    for key, name, content in _files(compiled):
        place = to / key
        for folder in (to, place):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, reader.st_uid, reader.st_gid)
        if name.startswith(GROUP):  # it names the others by their whole path
            content = content.replace(os.fsencode(compiled), os.fsencode(to))
        (place / name).write_bytes(content)
        os.chown(place / name, reader.st_uid, reader.st_gid)


def forget(compiled: Path, kept: Path | None) -> None:
    """Remove what kernels were compiled to from a worker's folder, but for what lies in another one too. What launches
    them, which kernels of one signature share, stays."""
    stay = set() if kept is None else {key for key, _, _ in _files(kept)}
    for key in {key for key, name, _ in _files(compiled) if name.endswith(BINARIES)} - stay:
        remove(compiled / key)


def compiled_to(folder: Path, warm: Path | None) -> str:
    """A digest of the machine code that Triton left in a folder, less what it began with; that of the latter where there
    is no other; empty where there is none."""
    known = set() if warm is None else _binaries(warm)
    codes = _binaries(folder) - known or known
    return hashlib.sha256("".join(sorted(codes)).encode()).hexdigest()[:32] if codes else ""


def _binaries(folder: Path) -> set[str]:
    return {hashlib.sha256(content).hexdigest() for _, name, content in _files(folder) if name.endswith(BINARIES)}


def _files(compiled: Path) -> Iterator[tuple[str, str, bytes]]:
    """The files of a folder of Triton's: the key that names the folder of each, its own name, and what it holds."""
    left, more = MAX_BYTES, iter(range(MAX_FILES))
    with contextlib.suppress(OSError), _opened(str(compiled), os.O_DIRECTORY) as whole:
        for key in _names(whole, more):
            with contextlib.suppress(OSError), _opened(key, os.O_DIRECTORY, whole) as folder:
                for name in _names(folder, more):
                    with contextlib.suppress(OSError), _opened(name, within=folder) as file:
                        status = os.fstat(file)
                        if not stat.S_ISREG(status.st_mode) or status.st_size > left:
                            continue
                        left -= status.st_size
                        with open(file, "rb", closefd=False) as reader:
                            content = reader.read(status.st_size)
                        yield key, name, content


def _names(folder: int, more: Iterator[int]) -> list[str]:
    """What lies in a folder, in order, as long as there may be more."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry, _ in zip(entries, more, strict=False))


@contextlib.contextmanager
def _opened(name: str, flags: int = 0, within: int | None = None) -> Iterator[int]:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=within)
    try:
        yield file
    finally:
        os.close(file)
