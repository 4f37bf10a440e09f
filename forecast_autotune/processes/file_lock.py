"""Locks on files that the system keeps, and frees when the process that holds them dies."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.2  # between two looks whether the lock is still wanted


@contextmanager
def file_lock(path: Path, *, timeout: float = -1, given_up: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold a lock against every other process, thread and caller.

    Newer filelocks would fall back on a file's existence where the filesystem locks none: an empty file, left from where
    locks worked, is held for ever then.

    Args:
        path: the file, made with mode 0600 if there is none, and left.
        timeout: seconds to wait; below zero without end.
        given_up: asked now and then while it waits: whether nobody wants the lock any more.
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
    until = math.inf if timeout < 0 else time.monotonic() + timeout
    try:
        while True:
            try:
                lock.acquire(timeout=None if given_up is None else min(LOOK_S, max(0.0, until - time.monotonic())))
                break
            except filelock.Timeout:
                if given_up is None or given_up() or time.monotonic() >= until:
                    raise
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


@contextmanager
def turn_at(path: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn that many may have at once, or, `alone`, none beside this one; among processes and threads.

    While one waits to be alone no other turn begins: else it would wait for ever where turns of many overlap. So whoever
    has a turn must not ask for a second one.

    Args:
        path: the file, made with mode 0600 if there is none, and left; another one beside it, `.next`, keeps that order.
    Raises:
        OSError: one cannot be opened, or the filesystem locks no files.
    """
    following = path.with_name(f"{path.name}.next")
    with contextlib.ExitStack() as waiting, contextlib.ExitStack() as held:
        waiting.enter_context(_flocked(following, alone=alone))
        held.enter_context(_flocked(path, alone=alone))
        if not alone:
            waiting.close()
        yield


@contextmanager
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder's own lock, which the system frees when the process dies.

    Raises:
        OSError: it is held and not waited for, or is no folder, or the filesystem locks nothing.
    """
    with _flocked(folder, flags=os.O_RDONLY | os.O_DIRECTORY, wait=wait):
        yield


@contextmanager
def _flocked(
    path: Path, *, alone: bool = True, wait: bool = True, flags: int = os.O_RDWR | os.O_CREAT
) -> Iterator[None]:
    import fcntl

    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # in so many words: a forked child may have the file open too
    finally:
        os.close(file)
