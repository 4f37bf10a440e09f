"""The store's file and folder: made private, never reached through a link, set aside when broken."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..processes.file_lock import file_lock

FILE_NAME = "store.sqlite3"
COMPANIONS = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, under the database's name with these endings."""

NETWORK_TYPES = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "gluster", "9p", "sshfs", "orangefs")
"""Parts of Linux's names for filesystems where WAL cannot work: its index is memory shared by one machine alone."""

Identity = tuple[int, int]
"""Device and inode: differ where another file has taken a file's name."""


def identity_of(path: Path) -> Identity | None:
    """Which file stands at a path now; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def make_folder(folder: Path) -> None:
    """A folder for this user alone, and those above it that are missing; one that is there already keeps its mode.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.parent.exists():
        make_folder(folder.parent)  # `parents=True` would make these for everybody
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # as in /proc, which some containers name as a home
        raise OSError(
            f"no folder can be made in {folder.parent}: name another; for a store in FORECAST_AUTOTUNE_DIR, or set HOME"
        ) from None


def make_file(path: Path) -> None:
    """Create the file if there is none, mode 0600; SQLite gives its -wal and -shm the same mode.

    Looks at these too: opening a pipe in the place of one would wait for ever.

    Raises:
        OSError: the folder cannot be written to, or what stands there is no plain file. A link is refused: in a folder
            that others may write to, it would lead this user's writes to a file of their choosing.
    """
    try:
        # O_EXCL refuses a link as well. No descriptor of an existing file is ever opened and closed here: closing one
        # would drop the locks that SQLite holds on that file elsewhere in this process.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(
                f"{path} is a symbolic link, which is not followed: let FORECAST_AUTOTUNE_DIR name the folder it leads to"
            ) from None
    refuse_special(path)


def refuse_special(path: Path) -> None:
    """Refuse a pipe, a device or a folder in the place of a store or a file beside it: opening one may never end.

    Raises:
        OSError: there is one.
    """
    for file in (path, *(path.with_name(path.name + ending) for ending in COMPANIONS)):
        try:
            mode = os.stat(file).st_mode
        except OSError:
            continue  # there is none, or opening it will raise
        if not stat.S_ISREG(mode):
            raise OSError(f"{file} is no plain file: move it away")


def refuse_without_locks(folder: Path) -> None:
    """Refuse a folder whose files cannot be locked in the way SQLite does: it would ask again for 20 s.

    Raises:
        OSError: they cannot.
    """
    import fcntl

    try:
        probe = os.open(folder / "locks" / "open.lock", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # there is none, or one that cannot be asked: SQLite will see
    try:
        fcntl.lockf(probe, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 1)
    except OSError as err:
        if err.errno not in (errno.EAGAIN, errno.EACCES):
            raise OSError(
                f"{err.strerror}: the filesystem of {folder} locks no files, let FORECAST_AUTOTUNE_DIR name another folder"
            ) from None
    finally:
        os.close(probe)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from creating a store in a folder or setting one aside, while this is held."""
    make_folder(folder / "locks")
    with file_lock(folder / "locks" / "open.lock", timeout=10):
        yield


def set_aside(path: Path, seen: Identity | None) -> Path | None:
    """Rename a broken store and what belongs to it; None if another process was faster.

    `seen` is the file found to be broken: when many processes meet one broken store, the later ones must not set aside
    the fresh one that the first has begun.
    """
    with folder_lock(path.parent):
        if seen is None or identity_of(path) != seen:
            return None
        aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
        for number in range(2, 1000):
            if not aside.exists():
                break
            aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{number}")
        # The log goes first: a fresh store beside the old log would replay it.
        for ending in COMPANIONS:
            companion = path.with_name(path.name + ending)
            if companion.exists():
                companion.rename(aside.with_name(aside.name + ending))
        path.rename(aside)
        return aside


def filesystem_type(path: Path) -> str:
    """The filesystem type of a path, by Linux's name; empty where it is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        try:
            mount = left.split()[4].encode().decode("unicode_escape")  # a blank is written \040
            type_name = right.split()[0]
        except (IndexError, UnicodeDecodeError):
            continue
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):  # of two mounts at one point, the later covers the earlier
            best, kind = mount, type_name
    return kind


def on_network(path: Path) -> bool:
    """Whether other machines may have the same file open."""
    kind = filesystem_type(path)
    return any(name in kind for name in NETWORK_TYPES)
