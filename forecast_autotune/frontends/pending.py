"""Keys decided without a measurement, and how a process measures them later."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from ..core.budget import Budget
from ..core.decision import Decision
from ..core.fork_safe_lock import fork_safe_lock
from ..core.job import Job
from ..protocols import Store
from ..settings import Settings


class Forgetful(Protocol):
    """A front door's table of decisions."""

    def forget_unmeasured(self) -> None:
        """Forget decisions made without a measurement, so that the next call of their key is a miss."""


_lock = fork_safe_lock()
_tables: weakref.WeakSet[Forgetful] = weakref.WeakSet()
_afterwards: list[Callable[[], None]] = []
_depth = 0
_eagerly = contextlib.ExitStack()  # holds torch to running eagerly while the depth is not 0


@contextlib.contextmanager
def tune_pending() -> Iterator[None]:
    """Tune misses within this, whatever FORECAST_AUTOTUNE_MODE, a budget of 0 and the process's total allow.

    It holds for all threads. Keys that this process decided without a measurement are decided again at their next call,
    and the decisions stay afterwards. Code that torch has compiled runs eagerly within, for it would measure nothing;
    afterwards it is compiled again where another config than its own was measured best.
    """
    with _wanted():
        try:
            with _lock:
                tables = list(_tables)
            for table in tables:
                table.forget_unmeasured()
            yield
        finally:
            for renew in _afterwards:
                renew()


@contextlib.contextmanager
def _wanted() -> Iterator[None]:
    """Count the threads that want measurements; the first one in and the last one out switch torch.

    Did each put back the stance it met, the thread that entered second and left last would put back that of the first.
    """
    global _depth
    with _lock:
        if _depth == 0:
            _eagerly.enter_context(_nothing_compiled())
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _eagerly.close()


def _nothing_compiled() -> contextlib.AbstractContextManager[object]:
    """Have torch run eagerly all code that it has compiled, or is asked to compile meanwhile."""
    try:
        import torch
    except ImportError:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def measuring_is_wanted() -> bool:
    """Whether a `tune_pending()` is open."""
    return _depth > 0


def holds_unmeasured(table: Forgetful) -> None:
    """Have a table forget its unmeasured decisions when `tune_pending()` is entered."""
    with _lock:
        _tables.add(table)


def after_tuning(renew: Callable[[], None]) -> None:
    """Have this called whenever a `tune_pending()` is left, before compiled code runs again."""
    _afterwards.append(renew)


def note_if_pending(
    store: Store, job: Job, decision: Decision | None, settings: Settings, budget: Budget, unmeasured: str = ""
) -> None:
    """Note in the store a job that was just decided without a measurement of its own: none is allowed, or no time was left.

    Args:
        decision: None where none could be made.
    """
    if (decision is None or decision.awaits_measuring) and (settings.mode == "strict" or budget.exhausted):
        because = settings.mode if settings.mode != "tune" else None
        store.note_pending(job, f"mode {because}" if because else unmeasured or f"budget {budget}")
