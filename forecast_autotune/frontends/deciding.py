"""From a request to a decision: stored, tuned now, learned from real calls, or by others' times; by ranks alike."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import filelock  # noqa: F401  # whose locks a first call takes: importing it takes 25 ms

from ..compilers.no_compile import NoCompiler
from ..core.budget import NOTHING, PROCESS_TOTAL, Budget
from ..core.config import Config
from ..core.decision import FIRST_RETRY_S, Decision, Resolution
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Progress, Stop
from ..core.outcome import Measurement, Outcome
from ..distributed.job_channel import JobChannel, job_channel
from ..distributed.job_store import JobStore
from ..distributed.key_list import is_asked_for
from ..distributed.work_sharing import SqliteWorkSharing, device_of_tune
from ..errors import CacheMissError
from ..measure.no_measurer import NO_MEASURER
from ..measure.real_calls import RealCalls
from ..protocols import Compiler, Listener, Measurer, Policy, Store
from ..remote.fleet_store import FleetStore
from ..settings import Settings
from ..store.config_files.imported import suggested
from ..store.sqlite import SqliteStore
from ..tuning import decision_rule
from ..tuning.forecasting import Forecaster
from ..tuning.loop import stored, stored_for_any_constexprs, tune
from ..tuning.policies import StoredOnly, SuggestedFirst, make_policy
from ..tuning.progress import show_progress
from .cache_miss import miss_message
from .informed import ask_limit_s, by_held_model, informed
from .kept_models import keep_model
from .online.unhurried import RememberingPolicy
from .pending import note_if_pending
from .request import Request

log = logging.getLogger(__name__)

# For which packs and a remote store are waited for at most, in mode `strict` and where else a key is decided once and for
# all: a worker starts in seconds.
STRICT_READING_S, READING_S = 30.0, 10.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _with_suggestions(policy: Policy, job: Job, settings: Settings, budget: Budget, fleet: FleetStore | None) -> Policy:
    """A policy that tries first what imported config files and other machines name for a job.

    Where all or nothing is tried, it is as it was.
    """
    if not budget.measures or budget.all:
        return policy
    imported = suggested(settings.dir, job)
    if fleet is not None:
        return SuggestedFirst(policy, lambda: (*fleet.suggested(job), *imported))
    return SuggestedFirst(policy, lambda: imported) if imported else policy


def decide(
    job: Job,
    request: Request,
    *,
    compiler: Compiler,
    measurer: Measurer,
    store: Store,
    listener: Listener | None = None,
    device: str = "",
    previous_decision: Decision | None = None,
) -> Resolution:
    """The decision for a job: stored, or tuned now; by the ranks of one job alike.

    It waits for no other process, but in mode `strict` for what other machines have decided.

    Args:
        listener: told how far the run has come.
        device: identifies the physical device, as `probe.device_identity` tells it; where it is unknown, nothing is shared.
            In a process of `tune` its name holds.
        previous_decision: the decision that this process was given last time, to be asked for again.
    Raises:
        CacheMissError: mode is `strict` and there is no decision for this key, also not in a pack or a trusted remote store
            that was still being read and is waited for, 30 s at most.
        NoWorkingConfigError: nothing can be run.
    """
    if not is_asked_for(job):
        request = replace(request, budget=NOTHING, unmeasured="the list of keys to tune does not name it")
    budget = Budget(request.budget, total=PROCESS_TOTAL)
    if not budget.measures:
        request = by_held_model(request)
    shared_store, fleet = _with_ranks(store, request), store if isinstance(store, FleetStore) else None
    recalled = None
    if request.settings.mode == "strict":
        recalled = recall_once_read(job, request, store, limit_s=STRICT_READING_S)
        if recalled is None:
            note_if_pending(shared_store, job, None, request.settings, budget, request.unmeasured)
            raise CacheMissError(miss_message(job, store, [] if fleet is None else fleet.unread(job)))
    elif request.never_measures:
        recalled = recall(job, request, shared_store)
    if recalled is not None:
        resolution = Resolution(shared_store.publish_decision(job, recalled))
    else:
        work_sharing = _work_sharing(job, request, store, device)
        # Who leads a shared run asks before it lets others help; these would ask while it times, so they do not.
        limit_s, busy = ask_limit_s(request, budget), work_sharing.wanted if work_sharing else None
        policy = make_policy(budget, learns=request.learns is not None)
        resolution = untraced(tune)(
            job,
            compiler=compiler,
            surrogate=informed(request, job, store, limit_s=limit_s, busy=busy),
            policy=_with_suggestions(policy, job, request.settings, budget, fleet),
            measurer=measurer,
            store=shared_store,
            budget=budget,
            listener=listener,
            work_sharing=work_sharing,
            interim_surrogate=informed(request, job, store, limit_s=0.0),
            previous_decision=previous_decision,
            remote_decision=None if fleet is None or budget.all else fleet.arrivals(job),
        )
    if fleet is not None and fleet.is_reading(job) and resolution.decision.basis != "measured":
        resolution = replace(resolution, retry_after_s=resolution.retry_after_s or FIRST_RETRY_S)
    note_if_pending(shared_store, job, resolution.decision, request.settings, budget, request.unmeasured)
    if request.settings.model is None:
        keep_model(request.settings.dir, resolution.decision)
    return resolution


def _work_sharing(job: Job, request: Request, store: Store, device: str) -> SqliteWorkSharing | None:
    """How processes on one device share the work on a job; None where they do not."""
    device = device_of_tune() or (device if request.shard else "")
    if not device or request.settings.sync != "store" or not isinstance(store, SqliteStore):
        return None
    return SqliteWorkSharing(store, job, device=device)


def _await_read(job: Job, fleet: FleetStore, limit_s: float) -> None:
    """Wait for what other machines may have decided for a job, so many seconds at most, and show that."""
    began = time.monotonic()
    what = f"waiting for {' and '.join(fleet.unread(job))}"
    with show_progress(str(job.workload.program.name)) as watched:
        if watched is not None:
            watched(
                Progress(
                    job=job,
                    doing=what,
                    forecast=0,
                    compiled=0,
                    tried=0,
                    limit=0,
                    spent_s=0.0,
                    best=None,
                    best_speedup=None,
                    seconds_left=limit_s,
                )
            )
        fleet.await_read(job, limit_s)
    log.info("%s: %s took %.1f s", job.workload.program.name, what, time.monotonic() - began)


def learn(
    job: Job, request: Request, *, compiler: Compiler, calls: RealCalls, observed: RememberingPolicy, store: Store
) -> Resolution:
    """The decision that real calls come to. It waits for them, so it is called in a thread of its own.

    Args:
        calls: give the times.
        observed: is told what the policy looks at.
    Raises:
        LearningEndedError: nothing more is to be learned.
        NoWorkingConfigError: nothing can be run.
    """
    # Seconds in which nobody works do not count: it may be hours until a key is called again.
    budget = Budget(request.learns or NOTHING, clock=lambda: time.perf_counter() - calls.waited_s)
    surrogate = informed(request, job, store, limit_s=math.inf)
    fleet = store if isinstance(store, FleetStore) else None
    observed.policy = _with_suggestions(make_policy(budget), job, request.settings, budget, fleet)
    return tune(
        job,
        compiler=compiler,
        surrogate=surrogate,
        policy=observed,
        measurer=calls,
        store=_with_ranks(store, request, measures=True),
        budget=budget,
        interim_surrogate=informed(request, job, store, limit_s=0.0),
        patient=True,
    )


def launched_first(job: Job, request: Request, store: Store) -> Decision:
    """What the first call of a key runs where nothing is measured yet: stored, else forecast, else the default.

    Nothing is noted or kept.
    """
    request = by_held_model(request)
    if recalled := recall(job, request, store):
        return recalled
    return tune(
        job,
        compiler=NoCompiler(),
        surrogate=informed(request, job, store, limit_s=0.0),
        policy=StoredOnly(),
        measurer=NO_MEASURER,
        store=store,
        budget=Budget("0"),
    ).decision


def first_forecasts(job: Job, request: Request, store: Store) -> tuple[Sequence[Forecast | Abstention], str]:
    """What is forecast of each config of a job by all that is stored, and by which version of the fitted model.

    For a compiler that times configs itself: no language model is asked, and nothing that fails is raised.
    """
    forecaster = Forecaster(job, informed(request, job, store, limit_s=0.0))
    outcomes = {config: outcome for config, outcome in store.outcomes(job).items() if config in job.space}
    forecaster.start(store.related_recordings(job), outcomes, {})
    return forecaster.forecasts, forecaster.model_version


def decide_by_times(
    job: Job,
    store: Store,
    *,
    outcomes: Mapping[Config, Outcome],
    reason: str,
    compiled: int,
    budget: str,
    spent_s: float,
    run: str,
    forecasts: Sequence[Forecast | Abstention] = (),
    model: str = "",
) -> Decision:
    """The decision by times that somebody else measured, such as a compiler that times configs itself; it is stored.

    Other ranks are not asked: see `hold_to`.

    Args:
        outcomes: of all configs that were tried; storing them is the caller's.
        reason: why no more were tried; it ends the decision's own.
        compiled: how many configs were compiled for this.
        budget: of those who timed, as its text.
        spent_s: seconds that choosing, compiling and timing took.
        run: the id that the outcomes are stored under.
        forecasts: made before, in the order of the job's space; empty where none were.
        model: the version of the fitted model that made them.
    Raises:
        NoWorkingConfigError: nothing ran, and the default would bring its process down or never end.
    """
    findings = decision_rule.Findings(
        job=job,
        outcomes=outcomes,
        finals={},
        forecasts=forecasts,
        tried=outcomes.keys(),
        compiled=compiled,
        budget=budget,
        spent_s=spent_s,
        run=run,
        now=time.time(),
        compiling_s=sum((o.compile_s for o in outcomes.values() if isinstance(o, Measurement)), start=0.0),
        model=model,
    )
    decision = decision_rule.decide(findings, Stop(reason))
    store.record_decision(job, decision)
    return decision


def hold_to(job: Job, request: Request, store: Store, decision: Decision) -> Decision:
    """The decision that all ranks of the job hold to: this one, unless one of them has published another before."""
    return _with_ranks(store, request).publish_decision(job, decision)


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function as it is when Dynamo looks away: where a call breaks the graph, it would compile our numpy too."""
    dynamo = sys.modules.get("torch._dynamo")
    return function if dynamo is None else dynamo.disable(function)


def recall(job: Job, request: Request, store: Store) -> Decision | None:
    """The decision a job has where nothing may be measured: a stored one; None if it is to be forecast.

    Args:
        store: with the ranks, whose decision comes first, as `decide` has it; or without.
    """
    known = store.shared_decision(job) or stored(job, store)
    # Within a process, as in Triton, calls that differ in constexprs alone share a decision, and only the first is stored.
    return known or (stored_for_any_constexprs(job, store) if request.never_measures else None)


def recall_with_ranks(job: Job, request: Request, store: Store) -> Decision | None:
    """As `recall`, for a compiler that times configs itself: what the ranks decided, before what is stored."""
    return recall(job, request, _with_ranks(store, request))


def recall_once_read(job: Job, request: Request, store: Store, *, limit_s: float = READING_S) -> Decision | None:
    """As `recall_with_ranks`, for a key that is decided once and for all: what other machines have decided is waited for.

    Args:
        limit_s: seconds, at most. Those in which nothing came count for all later waits.
    """
    known = recall_with_ranks(job, request, store)
    if known is None and isinstance(store, FleetStore) and store.is_reading(job):
        _await_read(job, store, limit_s)
        known = recall_with_ranks(job, request, store)
    return known


def is_unread(job: Job, store: Store) -> bool:
    """Whether other machines may have decided for a job, and that is not read yet or could not be read."""
    return isinstance(store, FleetStore) and bool(store.unread(job))


def ranks_decide(request: Request) -> bool:
    """Whether all ranks of a job come to one decision, which is then known to none of them ahead."""
    return _channel(request) is not None


def _channel(request: Request) -> JobChannel | None:
    """The way to the other ranks; in mode `forecast` they decide alike by themselves."""
    if request.settings.sync != "rank0" or request.settings.mode == "forecast":
        return None
    return job_channel(call_s=request.patience.call_s)


def _with_ranks(store: Store, request: Request, *, measures: bool = False) -> Store:
    """The store through which all ranks come to one decision; `measures` where one is measured, whatever the budget."""
    channel = _channel(request)
    if channel is None:
        return store
    # The rank that tunes spends its total first: what it decides from then on is for those that have spent nothing too.
    measures = measures or request.total_spent or request.budget.measures
    return JobStore(store, channel, measures=measures, patience=request.patience)
