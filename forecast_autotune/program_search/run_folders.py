"""A folder for each run of a search, which is removed with it, or by the next run where it was killed."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
from pathlib import Path

from ..processes.file_lock import folder_lock
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
                held.enter_context(folder_lock(folder))  # else another run could take this one for a dead one's
                for left in folder.glob(f"{RUN}*"):
                    _remove_if_dead(left)
            except OSError as err:
                log.debug("what killed searches left in %s stays: %s", folder, err)
            self.path = Path(tempfile.mkdtemp(prefix=RUN, dir=folder))
            self._held = contextlib.ExitStack()
            with contextlib.suppress(OSError):
                self._held.enter_context(folder_lock(self.path))

    def close(self) -> None:
        """Remove it."""
        remove(self.path)
        self._held.close()


def remove(folder: Path) -> None:
    """Remove a folder in which anything may lie: shutil raises where it is a thousand deep."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run_tool(["rm", "-rf", "--", str(folder)], REMOVE_TIMEOUT_S)


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError), folder_lock(folder, wait=False):
        remove(folder)
