"""Whether other processes run."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended; one that has may wait for its parent to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
