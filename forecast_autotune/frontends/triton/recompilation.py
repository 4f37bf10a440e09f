"""Compiled code that holds an unmeasured config: which it is, and having it compiled again after a measurement."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...core.config import Config
from ...core.fork_safe_lock import fork_safe_lock
from ...core.job import Job
from ..deciding import recall_with_ranks
from ..pending import after_tuning
from ..request import Request

if TYPE_CHECKING:
    from .autotuner import ForecastAutotuner

EPOCH = "_forecast_autotuner_epoch"
"""The attribute by which Dynamo guards code that holds a kernel; one with a key's digest after it guards that key's."""

_lock = fork_safe_lock()
_unmeasured: weakref.WeakKeyDictionary[Any, dict[tuple[str, Config | None], tuple[Job, Request]]]
_unmeasured = weakref.WeakKeyDictionary()  # by tuner, epoch and captured config: jobs decided without a measurement


def hold_until_measured(
    tuner: ForecastAutotuner, epoch: str, config: Config | None, job: Job, request: Request
) -> None:
    """Note that compiled code holds an unmeasured config, under an epoch of its own key.

    With one epoch for the whole kernel, a measurement of this key would have other keys' graphs compiled again.

    Args:
        epoch: the attribute of `tuner.guarded` that the code is guarded by; made now if it is new.
    """
    with _lock:
        vars(tuner.guarded).setdefault(epoch, "0")
        _unmeasured.setdefault(tuner, {})[epoch, config] = job, request


def recompile(tuner: ForecastAutotuner, epoch: str = EPOCH) -> None:
    """Have Dynamo compile again, before it next runs, the code that holds a kernel.

    Args:
        epoch: the attribute that this code is guarded by: of the whole kernel, or of one key.
    """
    kernel = tuner.guarded
    setattr(kernel, epoch, str(int(getattr(kernel, epoch, "0")) + 1))


def recompile_measured() -> None:
    """Have Dynamo compile again the code that holds another config than has been measured best since.

    Nothing else: Dynamo compiles a frame eight times in all, then runs it eagerly.
    """
    with _lock:
        held = [(tuner, dict(jobs)) for tuner, jobs in _unmeasured.items()]
    for tuner, jobs in held:
        outdated: set[str] = set()
        for (epoch, config), (job, request) in jobs.items():
            decision = recall_with_ranks(job, request, tuner.dispatcher.store(job.hardware, request.settings))
            if decision is None or decision.awaits_measuring:
                continue
            with _lock:
                taken = _unmeasured[tuner].pop((epoch, config), None)
            if taken is not None and decision.config != config:
                outdated.add(epoch)
        for epoch in outdated:
            recompile(tuner, epoch)


after_tuning(recompile_measured)
