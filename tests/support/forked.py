"""The child of a fork, and whether it comes to the end of what it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def exit_status_of_child(act: Callable[[], object]) -> int:
    """0 where the child of a fork acts within a minute, and what it does is not False."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = int(act() is False)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]
