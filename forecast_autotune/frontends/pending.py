"""Keys decided without measuring, and how a process comes to measure them after all."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from ..core.budget import Budget, BudgetLimits
from ..core.decision import Decision
from ..core.job import Job
from ..errors import InvalidInputError
from ..protocols import Store
from ..settings import Settings


class Forgetful(Protocol):
    """A front door's table of decisions."""

    def forget_unmeasured(self) -> None:
        """Forget decisions that measuring had no say in, so that the next call of their key is a miss."""


_lock = threading.Lock()
_tables: weakref.WeakSet[Forgetful] = weakref.WeakSet()
_afterwards: list[Callable[[], None]] = []
_depth = 0
_eagerly = contextlib.ExitStack()  # holds torch to running eagerly while the depth is not 0


@contextlib.contextmanager
def tune_pending() -> Iterator[None]:
    """Within this, misses are tuned whatever FORECAST_AUTOTUNE_MODE, a budget of 0 and the total of the process say.

    Keys that this process has decided without measuring are decided again when they are next met. What is decided within
    holds afterwards. All threads are meant. What torch has compiled runs eagerly, for compiled code measures nothing; and
    it is compiled again afterwards where it holds another config than was measured best.
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
    """Hold measuring to be wanted, by whichever threads overlap.

    The first in and the last out switch torch: were each to put back what it found, the last out, having come second,
    would put back what the first had set.
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
    """Have torch run eagerly what it has compiled, and what it is asked to compile meanwhile."""
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


def is_unmeasured(decision: Decision | None) -> bool:
    """Whether measuring had no say in a decision of this process; None is one that was never made."""
    if decision is None or not decision.tried:
        return True
    try:
        return not BudgetLimits.parse(decision.budget).measures
    except InvalidInputError:  # brought from elsewhere
        return False


def note_if_pending(
    store: Store, job: Job, decision: Decision | None, settings: Settings, budget: Budget, unmeasured: str = ""
) -> None:
    """Note a job that was just decided without measuring, because measuring is not allowed.

    A stored decision is no such case: it was made under a budget that measures.
    """
    if decision is None or (not budget.measures and decision.budget == str(budget)):
        because = settings.mode if settings.mode != "tune" else None
        store.note_pending(job, f"mode {because}" if because else unmeasured or f"budget {budget}")
