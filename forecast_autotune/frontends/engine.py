"""What the front doors share: settings become a policy, a surrogate, a store and a budget, and those a decision."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ..core.budget import PROCESS_TOTAL, Budget, BudgetLimits
from ..core.correction import Correction
from ..core.decision import Decision, Resolution
from ..core.job import Job
from ..core.model_names import is_language_model
from ..distributed.job_channel import JobChannel, job_channel
from ..distributed.job_store import JobStore, Patience
from ..distributed.work_sharing import SqliteWorkSharing
from ..errors import CacheMissError
from ..evaluation.scores import member_scores, recalibration
from ..language.model import LanguageModel
from ..language.named import named
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate
from ..settings import Answer, Settings
from ..store.sqlite import SqliteStore, open_store
from ..surrogates.blend import Blend
from ..surrogates.history import History
from ..surrogates.language_model import LanguageModelSurrogate
from ..surrogates.learned import Learned
from ..surrogates.prior import Prior
from ..surrogates.recalibrated import Recalibrated
from ..surrogates.roofline import Roofline
from ..tuning.loop import stored, tune
from ..tuning.policies import Exhaustive, First, Selective, StoredOnly
from ..tuning.progress import show_progress
from .pending import measuring_is_wanted, note_if_pending

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What past forecasts and outcomes teach: how wide to make forecasts, and the log density of each member's."""

    correction: Correction
    members: Mapping[str, float]


MODEL_SHARE = 0.5  # of a budget in seconds: what a language model may take, so that something is left to measure in
RECALIBRATE_EVERY = 32  # decisions between two looks at the store's pairs, 6 ms each

_lessons: WeakKeyDictionary[SqliteStore, dict[str, tuple[Lessons, int]]] = WeakKeyDictionary()

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How a decision is to be made: what the code says, overridden by the environment.

    Once the process has spent its total, the budget is 0, and `unmeasured` says so. It still comes to one decision with
    the ranks that have some left.
    With `shard`, processes on different devices of equal hardware share the measurements of one key.
    """

    settings: Settings
    budget: str
    surrogate: Surrogate
    shard: bool = False
    patience: Patience = field(default_factory=Patience)
    unmeasured: str = ""  # why the caller may not measure, whatever the settings say
    total_spent: bool = False


def request(
    budget: str | int | None,
    *,
    default_budget: str,
    mode: str | None = None,
    surrogate: str | Surrogate | None = None,
    shard: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Request:
    """Read the settings; the other arguments are the code's own, which the environment overrides.

    Raises:
        InvalidInputError: one of them does not parse.
    """
    name = surrogate if isinstance(surrogate, str) else None
    settings = Settings.from_environment(environment, mode=mode, surrogate=name)
    limits = BudgetLimits.parse(default_budget)
    for text in (budget, settings.budget):
        if text is not None:
            limits = BudgetLimits.parse(text).with_key_limits_of(limits)
    if measuring_is_wanted() and environment is None:
        settings = replace(settings, mode="tune")
        limits = limits.without_total()
        limits = limits if limits.measures else BudgetLimits.parse(default_budget)
    chosen_budget, unmeasured, total_spent = str(limits), "", False
    if settings.mode in ("cached", "forecast", "first"):
        chosen_budget = "0"
    elif limits.measures and limits.total_seconds is not None and PROCESS_TOTAL.seconds >= limits.total_seconds:
        chosen_budget, total_spent = "0", True
        unmeasured = f"the total of {limits.total_seconds:g} s for this process is spent"
    if surrogate is None or isinstance(surrogate, str) or settings.surrogate is not None:
        surrogate = make_surrogate(settings.surrogate or "auto", answer=settings.answer)
    return Request(
        settings=settings,
        budget=chosen_budget,
        surrogate=surrogate,
        shard=shard,
        unmeasured=unmeasured,
        total_spent=total_spent,
    )


def make_surrogate(name: str, *, prior: Prior | None = None, answer: Answer | None = None) -> Surrogate:
    """The surrogate a setting names, a language model beside all the others; `prior` stands in for the shipped model."""
    if name == "roofline":
        return Roofline()
    if name == "history":
        return History()
    if name == "learned":
        return Learned(prior)
    members: list[Surrogate] = [History(), Learned(prior), Roofline()]
    if is_language_model(name):
        members.append(_language_model(name, Answer() if answer is None else answer))
    return Blend(members)


@cache
def _language_model(name: str, answer: Answer) -> LanguageModelSurrogate:
    """One for all kernels of a process: it is loaded once, and what is wrong with it is told once."""
    return LanguageModelSurrogate(_model(name), answer=answer.form, seconds=answer.seconds)


@cache
def _model(name: str) -> LanguageModel:
    return named(name)


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
    device: str = "",
    earlier: Decision | None = None,
) -> Resolution:
    """The decision for a job: stored, or tuned now; by the ranks of one job alike. It waits for no other process.

    Args:
        device: identifies the physical device, as `probe.device_identity` tells it; where it is unknown, nothing is shared.
        earlier: the decision that this process was given last time, to be asked for again.
    Raises:
        CacheMissError: mode is `strict` and there is no decision for this key.
        NoWorkingConfigError: nothing can be run.
    """
    budget = Budget(how.budget, total=PROCESS_TOTAL)
    shares = None
    if how.shard and device and how.settings.sync == "store" and isinstance(store, SqliteStore):
        shares = SqliteWorkSharing(store, job, device=device)
    surrogate = how.surrogate
    if how.unmeasured:  # a graph is being captured or code compiled: nothing may be loaded, asked or waited for
        surrogate = _without_model(surrogate)
    meanwhile = _without_model(surrogate)
    if 0 < budget.seconds_left < math.inf:
        most_s = budget.seconds_left * MODEL_SHARE
        surrogate = _with_model(surrogate, lambda model: model.within(most_s))
    if how.settings.mode != "forecast" and isinstance(store, SqliteStore):
        # Who leads a shared run asks before it lets others help; these would ask while it times, so they do not.
        surrogate = remembering(surrogate, store, busy=shares.wanted if shares else None)
        surrogate, meanwhile = (_recalibrated(s, store, job.hardware.kind) for s in (surrogate, meanwhile))
    store = _with_ranks(store, how)
    if how.settings.mode == "strict":
        if found := _recalled(job, store):
            return Resolution(store.publish_decision(job, found))
        note_if_pending(store, job, None, how.settings, budget, how.unmeasured)
        raise CacheMissError(f"{_missed(job, store)}. Tune it once with FORECAST_AUTOTUNE_MODE=tune.")
    with show_progress(listener) as told:
        resolution = untraced(tune)(
            job,
            compiler=compiler,
            surrogate=surrogate,
            policy=make_policy(how.settings, budget),
            measurer=measurer,
            store=store,
            budget=budget,
            listener=told,
            shares=shares,
            meanwhile=meanwhile,
            earlier=earlier,
        )
    note_if_pending(store, job, resolution.decision, how.settings, budget, how.unmeasured)
    return resolution


def remembering(surrogate: Surrogate, store: SqliteStore, *, busy: Callable[[], bool] | None = None) -> Surrogate:
    """A surrogate whose language model, if it has one, is told a store's skills and asked no prompt twice.

    While `busy` says that other processes may be timing for the job, it is not asked. Not for mode `forecast`, whose answers
    no log may change.
    """

    def remember(model: LanguageModelSurrogate) -> LanguageModelSurrogate:
        return model.with_memory(answers=store.answers, keep=store.keep_answers, skills=store.skills, busy=busy)

    return _with_model(surrogate, remember)


def _with_model(surrogate: Surrogate, change: Callable[[LanguageModelSurrogate], LanguageModelSurrogate]) -> Surrogate:
    """The same with its language model changed, be it alone or a blend's member."""
    if isinstance(surrogate, LanguageModelSurrogate):
        return change(surrogate)
    if isinstance(surrogate, Blend):
        return surrogate.with_members([_with_model(member, change) for member in surrogate.members])
    return surrogate


def _without_model(surrogate: Surrogate) -> Surrogate:
    """The others of a blend, where a language model is one of them."""
    if not isinstance(surrogate, Blend):
        return surrogate
    return surrogate.with_members([m for m in surrogate.members if not isinstance(m, LanguageModelSurrogate)])


def takes_time(how: Request) -> bool:
    """Whether deciding may take long: it measures, or asks a language model."""
    found: list[LanguageModelSurrogate] = []

    def note(model: LanguageModelSurrogate) -> LanguageModelSurrogate:
        found.append(model)
        return model

    _with_model(how.surrogate, note)
    return bool(found) or BudgetLimits.parse(how.budget).measures


def _recalibrated(surrogate: Surrogate, store: SqliteStore, kind: str) -> Surrogate:
    """The surrogate, its forecasts as wide, and a blend's members heard as much, as this store's record of them says.

    Not where a surrogate says `recalibrate = False`: one of the user's own is judged by the record like any other.
    """
    if not getattr(surrogate, "recalibrate", True):
        return surrogate
    lessons = cache(partial(_lessons_of, store, kind))
    if isinstance(surrogate, Blend):
        surrogate = surrogate.with_past(lambda: lessons().members)
    return Recalibrated(surrogate, lambda: lessons().correction)


def _lessons_of(store: SqliteStore, kind: str) -> Lessons:
    """What the store's pairs on this kind of hardware teach, read anew after so many decisions that forecast."""
    # Without a lock, which a fork could leave held for ever: threads at worst read the pairs twice.
    of_store = _lessons.setdefault(store, {})
    lessons, asked = of_store.get(kind, (None, 0))
    if lessons is None or asked >= RECALIBRATE_EVERY:
        pairs = store.calibration_pairs(kind)
        lessons, asked = Lessons(recalibration(pairs), member_scores(pairs)), 0
    of_store[kind] = lessons, asked + 1
    return lessons


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function as it is when Dynamo looks away: where a call breaks the graph, it would compile our numpy too."""
    dynamo = sys.modules.get("torch._dynamo")
    return function if dynamo is None else dynamo.disable(function)


def recall(job: Job, how: Request, store: Store) -> Decision | None:
    """The decision a job has where nothing may be measured: the ranks' or a stored one; None if it is to be forecast."""
    return _recalled(job, _with_ranks(store, how))


def _recalled(job: Job, store: Store) -> Decision | None:
    return store.shared_decision(job) or stored(job, store)


def ranks_decide(how: Request) -> bool:
    """Whether all ranks of a job come to one decision, which is then known to none of them ahead."""
    return _channel(how) is not None


def _channel(how: Request) -> JobChannel | None:
    """The way to the other ranks; in mode `forecast` they decide alike by themselves."""
    if how.settings.sync != "rank0" or how.settings.mode == "forecast":
        return None
    return job_channel(call_s=how.patience.call_s)


def _with_ranks(store: Store, how: Request) -> Store:
    """The store through which all ranks come to one decision."""
    channel = _channel(how)
    if channel is None:
        return store
    # The rank that tunes spends its total first: what it decides from then on is for those that have spent nothing too.
    measures = how.total_spent or BudgetLimits.parse(how.budget).measures
    return JobStore(store, channel, measures=measures, patience=how.patience)


def _missed(job: Job, store: Store) -> str:
    """Which key has no decision, and which known one is most like it."""

    def likeness(key: dict[str, object]) -> int:
        return sum(key.get(name) == value for name, value in job.workload.key.items())

    known = [
        r.workload
        for r in store.related_recordings(job)
        if r.hardware == job.hardware and r.workload.program.digest == job.workload.program.digest
    ]
    nearest = max(known, key=lambda w: likeness(dict(w.key)), default=None)
    told = f"no decision for {job.workload} on {job.hardware}"
    return f"{told}; the nearest key known is {nearest}" if nearest else f"{told}, nor for any other key of it"
