"""What the front doors share: settings become a policy, a surrogate, a store and a budget, and those a decision."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core.budget import Budget
from ..core.decision import Decision
from ..core.job import Job
from ..errors import CacheMissError
from ..policies import Exhaustive, First, Selective, StoredOnly
from ..progress import show_progress
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate
from ..settings import Settings
from ..store.sqlite import SqliteStore, open_store
from ..surrogates.blend import Blend
from ..surrogates.history import History
from ..surrogates.roofline import Roofline
from ..tuner import tune
from .pending import measuring_is_wanted, note_if_pending

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How a decision is to be made: what the code says, overridden by the environment."""

    settings: Settings
    budget: str
    surrogate: Surrogate


def request(
    budget: str | int | None,
    *,
    default_budget: str,
    mode: str | None = None,
    surrogate: str | Surrogate | None = None,
    environment: Mapping[str, str] | None = None,
) -> Request:
    """Read the settings; the other arguments are the code's own, which the environment overrides.

    Raises:
        InvalidInputError: one of them does not parse.
    """
    named = surrogate if isinstance(surrogate, str) else None
    settings = Settings.from_environment(environment, mode=mode, surrogate=named)
    text = settings.budget or (default_budget if budget is None else str(budget))
    if measuring_is_wanted() and environment is None:
        settings = replace(settings, mode="tune")
        text = text if Budget(text).measures else default_budget
    if settings.mode in ("cached", "forecast", "first"):
        text = "0"
    given = surrogate is not None and named is None and settings.surrogate == "auto"
    chosen = surrogate if given else make_surrogate(settings.surrogate)
    return Request(settings=settings, budget=text, surrogate=chosen)  # type: ignore[arg-type]


def make_surrogate(name: str) -> Surrogate:
    """The surrogate a setting names."""
    if name == "roofline":
        return Roofline()
    if name == "history":
        return History()
    return Blend([History(), Roofline()])


def make_policy(settings: Settings, budget: Budget) -> Policy:
    """The policy that a mode and a budget call for."""
    if settings.mode == "first":
        return First()
    if not budget.measures:
        return StoredOnly()
    return Exhaustive() if budget.all else Selective()


def make_store(settings: Settings) -> SqliteStore:
    """The store of these settings; in mode `forecast` an empty one, so that what is stored changes no answer."""
    return open_store(settings)


def decide(
    job: Job,
    how: Request,
    *,
    compiler: Compiler,
    measurer: Measurer,
    store: Store,
    listener: Listener | None = None,
) -> Decision:
    """The decision for a job: stored, or tuned now.

    Raises:
        CacheMissError: mode is `strict` and there is no decision for this key.
        NoWorkingConfigError: nothing can be run.
    """
    budget = Budget(how.budget)
    if how.settings.mode == "strict":
        if found := store.decision(job):
            return found
        note_if_pending(store, job, None, how.settings, budget)
        raise CacheMissError(f"{_missed(job, store)}. Tune it once with FORECAST_AUTOTUNE_MODE=tune.")
    with show_progress(listener) as told:
        decision = tune(
            job,
            compiler=compiler,
            surrogate=how.surrogate,
            policy=make_policy(how.settings, budget),
            measurer=measurer,
            store=store,
            budget=budget,
            listener=told,
        )
    note_if_pending(store, job, decision, how.settings, budget)
    return decision


def _missed(job: Job, store: Store) -> str:
    """Which key has no decision, and which known one is most like it."""

    def likeness(key: dict[str, object]) -> int:
        return sum(key.get(name) == value for name, value in job.workload.key.items())

    known = [
        r.workload
        for r in store.recollect(job)
        if r.hardware == job.hardware and r.workload.program.digest == job.workload.program.digest
    ]
    nearest = max(known, key=lambda w: likeness(dict(w.key)), default=None)
    told = f"no decision for {job.workload} on {job.hardware}"
    return f"{told}; the nearest key known is {nearest}" if nearest else f"{told}, nor for any other key of it"
