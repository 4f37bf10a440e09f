"""What Triton compiled in a worker's folder: carried to another worker's, and told from what others compiled."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

BINARIES = (".cubin", ".hsaco")
GROUP = "__grp__"  # begins the name of a file of Triton's that lists what belongs together


def carry(compiled: Path, to: Path) -> None:
    """Copy what Triton compiled from one worker's folder to another's. A candidate may have written what it likes there: no
    link is followed, and nothing but files is copied."""
    reader = to.parent.stat()  # where a box has become another user, that one
    for folder, _, names in os.walk(compiled) if not compiled.is_symlink() else ():
        place = to / Path(folder).relative_to(compiled)
        place.mkdir(mode=0o700)
        os.chown(place, reader.st_uid, reader.st_gid)
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            shutil.copyfile(path, place / name)
            if name.startswith(GROUP):  # it names the others by their whole path
                told = path.read_bytes().replace(os.fsencode(compiled), os.fsencode(to))
                (place / name).write_bytes(told)
            os.chown(place / name, reader.st_uid, reader.st_gid)


def compiled_to(folder: Path, warm: Path | None) -> str:
    """A digest of the machine code that Triton left in a folder, less what it began with; that of the latter where there
    is no other; empty where there is none."""
    known = set() if warm is None else _binaries(warm)
    codes = _binaries(folder) - known or known
    return hashlib.sha256("".join(sorted(codes)).encode()).hexdigest()[:32] if codes else ""


def _binaries(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.suffix in BINARIES)
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.is_file() and not path.is_symlink()}
