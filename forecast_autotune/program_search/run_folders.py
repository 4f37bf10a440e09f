"""A folder for each run of a search, which is removed with it, or by the next run where it was killed."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..processes.tools import run_tool

log = logging.getLogger(__name__)

REMOVE_TIMEOUT_S = 60.0
RUN = "run-"


class RunFolder:
    """A new folder that nobody else has, held until it is closed or its process dies; those of dead runs are removed.

    Args:
        folder: where it is made, with others beside it.
    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(_locked(folder))  # else another run could take this one for a dead one's
                for left in folder.glob(f"{RUN}*"):
                    _remove_if_dead(left)
            except OSError as err:
                log.debug("what killed searches left in %s stays: %s", folder, err)
            self.path = Path(tempfile.mkdtemp(prefix=RUN, dir=folder))
            self._held = contextlib.ExitStack()
            with contextlib.suppress(OSError):
                self._held.enter_context(_locked(self.path))

    def close(self) -> None:
        """Remove it."""
        remove(self.path)
        self._held.close()


def remove(folder: Path) -> None:
    """Remove a folder in which anything may lie: shutil raises where it is a thousand deep."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run_tool(["rm", "-rf", "--", str(folder)], REMOVE_TIMEOUT_S)


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError), _locked(folder, wait=False):
        remove(folder)


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder's lock, which the system frees when the process dies.

    Raises:
        OSError: it is held by another, or the filesystem locks nothing.
    """
    import fcntl

    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(file)
