"""Folders and files that nobody but this user may write to: what is built there is loaded into the process."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import shutil
import stat
import tempfile
import uuid
from pathlib import Path

from ..processes.file_lock import file_lock

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def is_ours(status: os.stat_result) -> bool:
    """Whether nobody but this user and root may exchange what is there."""
    return status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def take_from_group(folder: Path) -> None:
    """Forbid the group to write to a folder of this user's own, which is how a umask of 002 makes all folders."""
    status = folder.stat()
    if status.st_uid == os.getuid() and status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH:
        with contextlib.suppress(OSError):  # it stays as it is, and is not used
            folder.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWGRP)


def own_root(root: Path, named_by: str) -> Path:
    """The folder to build in; where others may write to it, or this process may not, one that is this process's alone."""
    try:
        make_private(root)
        take_from_group(root)  # what others have put there is theirs, and not loaded
        trouble = "" if is_ours(root.stat()) else "others may write to it, and what is built there is loaded"
        if not trouble and not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not trouble:
            with file_lock(root / "root.lock", timeout=0):
                return root
    except TimeoutError:
        return root  # another process asks just now
    except OSError as err:
        if err.errno in _NO_LOCKS:
            trouble = f"it locks no files ({err.strerror}), and processes that build there would meet"
        elif err.errno in _NOT_OURS:
            trouble = f"this process may not write there ({err.strerror})"
        else:
            return root  # building there says what is wrong with it
    try:
        instead = Path(tempfile.mkdtemp(prefix="forecast_autotune-builds-"))
    except OSError:
        return root  # building there says what is wrong with it
    atexit.register(_remove_own, instead, os.getpid())
    log.warning(
        "%s: %s: this process builds in %s instead; let %s name another folder", root, trouble, instead, named_by
    )
    return instead


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # else this is a fork, and its parent goes on
        shutil.rmtree(folder, ignore_errors=True)


def make_slot(slot: Path) -> None:
    """The slot's folder; one that the group may have put something into is thrown away."""
    with contextlib.suppress(FileNotFoundError):  # another thread or process was faster
        status = slot.stat()
        if status.st_uid == os.getuid() and status.st_mode & stat.S_IWGRP:
            tainted = slot.rename(slot.with_name(f"{slot.name}-{uuid.uuid4().hex}"))
            shutil.rmtree(tainted, ignore_errors=True)
    make_private(slot)


def make_private(folder: Path) -> None:
    """A folder, and those above it that are missing, for this user alone: what is in them will be loaded."""
    for path in reversed((folder, *folder.parents)):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read or change."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
