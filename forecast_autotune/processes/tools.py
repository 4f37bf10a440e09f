"""Running a tool, such as a compiler, to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from .worker import end_session


def run_tool(command: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Run a tool to its end: its exit code, and what it wrote to stdout and stderr.

    Raises:
        subprocess.TimeoutExpired: it ran out of time, and was killed with all that it started.
        OSError: it cannot be started.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            written, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            end_session(process.pid)
            raise
        return process.returncode, written, errors
