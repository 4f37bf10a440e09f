"""Progress of a tuning run for a person at a terminal: one line on stderr, from the second second on."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator

from ..core.job import Progress
from ..core.text import plain
from ..protocols import Listener

QUIET_S = 2.0


@contextlib.contextmanager
def show_progress(listener: Listener | None = None) -> Iterator[Listener | None]:
    """A listener that draws a status line on a terminal's stderr; the one given, if one is; None where nobody looks."""
    if listener is not None or not _is_watched():
        yield listener
        return
    from rich.console import Console
    from rich.text import Text  # a name in brackets is no mark-up

    began = time.monotonic()
    status = Console(stderr=True).status("")
    shown = False

    def show(progress: Progress) -> None:
        nonlocal shown
        status.update(Text(plain(describe(progress))))
        if not shown and time.monotonic() - began > QUIET_S:
            status.start()
            shown = True

    try:
        yield show
    finally:
        status.stop()


def _is_watched() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # the program has none, or has closed it
        return False


def describe(progress: Progress) -> str:
    """One line: what is being done, how far it has come, and the best so far."""
    limit = "" if math.isinf(progress.limit) else f" of {progress.limit:.0f}"
    best = "" if progress.best_speedup is None else f", best {progress.best_speedup:.2f}x the default"
    return (
        f"{progress.job.workload.program.name}: {progress.doing}: {progress.forecast} forecast, {progress.compiled} built, "
        f"{progress.measured}{limit} tried, {progress.spent_s:.1f} s{best}"
    )
