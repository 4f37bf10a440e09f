"""Locks on files that the system keeps, and frees when the process that holds them dies."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path, *, timeout: float = -1) -> Iterator[None]:
    """Hold a lock against every other process, thread and caller.

    Newer filelocks would fall back on a file's existence where the filesystem locks none: an empty file, left from where
    locks worked, is held for ever then.

    Args:
        path: the file, made with mode 0600 if there is none, and left.
        timeout: seconds to wait; below zero without end.
    Raises:
        filelock.Timeout: a TimeoutError: it is held.
        OSError: it cannot be opened, or the filesystem locks no files.
    """
    import filelock

    given = {"timeout": timeout, "mode": 0o600, "thread_local": False}
    try:
        lock = filelock.FileLock(str(path), fallback_to_soft=False, **given)  # type: ignore[arg-type]
    except TypeError:
        lock = filelock.FileLock(str(path), **given)  # type: ignore[arg-type]
    try:
        lock.acquire()
    except filelock.Timeout:
        raise
    except TimeoutError as err:  # a network filesystem's, which says nothing of who holds it
        raise OSError(errno.EIO, str(err), str(path)) from None
    except NotImplementedError as err:
        raise OSError(errno.ENOLCK, f"{err}: the filesystem locks no files", str(path)) from None
    try:
        yield
    finally:
        lock.release()
