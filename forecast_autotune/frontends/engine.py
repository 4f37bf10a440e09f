"""What the front doors share: settings become a policy, a surrogate, a store and a budget, and those a decision."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import filelock  # noqa: F401  # whose locks a first call takes: importing it takes 25 ms

from ..compilers.no_compile import NoCompiler
from ..core.budget import NOTHING, PROCESS_TOTAL, Budget, BudgetLimits
from ..core.context import ForecastContext
from ..core.decision import FIRST_RETRY_S, Decision, Resolution
from ..core.forecast import Abstention, Forecast
from ..core.job import Job
from ..core.model_names import is_language_model
from ..core.text import error_text
from ..core.user_warnings import warn_user
from ..distributed.job_channel import JobChannel, job_channel, ranks_of_job
from ..distributed.job_store import JobStore, Patience
from ..distributed.key_list import is_asked_for
from ..distributed.work_sharing import SqliteWorkSharing, device_of_tune
from ..errors import CacheMissError, InvalidInputError, TuningWarning
from ..evaluation.scores import Lessons, lessons_of
from ..language.model import LanguageModel
from ..language.named import named
from ..measure.no_measurer import NO_MEASURER
from ..measure.real_calls import RealCalls
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate
from ..remote.fleet_store import FleetStore
from ..settings import PREFIX, SURROGATES, Answer, Settings
from ..store.config_files.imported import suggested
from ..store.frozen import is_frozen
from ..store.sqlite import SqliteStore
from ..surrogates.base import Forecasts, StatelessSurrogate, WithContext
from ..surrogates.blend import Blend
from ..surrogates.history import History
from ..surrogates.language_model import LanguageModelSurrogate
from ..surrogates.learned import Learned
from ..surrogates.prior import Prior, held_prior
from ..surrogates.recalibrated import Recalibrated
from ..surrogates.roofline import Roofline
from ..tuning.forecasting import Forecaster
from ..tuning.loop import stored, tune
from ..tuning.policies import Exhaustive, Selective, StoredOnly, SuggestedFirst
from .kept_models import keep_model
from .online.learning_threads import learners
from .online.unhurried import RememberingPolicy
from .pending import measuring_is_wanted, note_if_pending

log = logging.getLogger(__name__)


MODEL_SHARE = 0.5  # of a budget in seconds: what a language model may take, so that something is left to measure in
USUAL_CONFIGS = 16  # that real calls try of a key, where the budget has no limit but one of time
RECALIBRATE_EVERY = 32  # decisions between two looks at the store's pairs, 6 ms each

_WARNED_OF: set[str] = set()  # held models that are not here

_lessons: WeakKeyDictionary[SqliteStore, dict[str, tuple[Lessons, int]]] = WeakKeyDictionary()

_SURROGATES = "forecast_autotune.surrogates"
_SURROGATE_HAS = ("name", "recalibrate", "asks_model", "fitted_on", "model_version", "start")  # what tuning asks of one

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How a decision is to be made: what the code says, overridden by the environment.

    Once the process has spent its total, the budget is `NOTHING`, and `unmeasured` says so. It still comes to one decision
    with the ranks that have some left.
    With `shard`, processes on different devices of equal hardware share the measurements of one key.
    """

    settings: Settings
    budget: BudgetLimits
    surrogate: Surrogate
    shard: bool = False
    patience: Patience = field(default_factory=Patience)
    unmeasured: str = ""  # why the caller may not measure, whatever the settings say
    learns: BudgetLimits | None = None  # what real calls may spend; None where they try nothing
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
        InvalidInputError: one of them does not parse, or the surrogate is none.
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
    chosen_budget, unmeasured, total_spent = limits, "", False
    learns: BudgetLimits | None = None
    if settings.mode in ("cached", "forecast", "first"):
        chosen_budget = NOTHING
    elif settings.mode == "online":
        chosen_budget = NOTHING
        if limits.measures and environment is None and may_learn(settings):
            learns = limits.of_configs(USUAL_CONFIGS)
    elif limits.measures and limits.total_seconds is not None and PROCESS_TOTAL.seconds >= limits.total_seconds:
        chosen_budget, total_spent = NOTHING, True
        unmeasured = f"the total of {limits.total_seconds:g} s for this process is spent"
    if surrogate is None or isinstance(surrogate, str) or settings.surrogate is not None:
        surrogate = make_surrogate(settings.surrogate or "auto", answer=settings.answer, model=settings.model)
    elif lacking := [name for name in _SURROGATE_HAS if not hasattr(surrogate, name)]:
        raise InvalidInputError(
            f"surrogate={surrogate!r} has no {', '.join(lacking)}: derive it from "
            "forecast_autotune.surrogates.base.BaseSurrogate, and see forecast_autotune/surrogates/README.md"
        )
    return Request(
        settings=settings,
        budget=chosen_budget,
        surrogate=surrogate,
        shard=shard,
        unmeasured=unmeasured,
        learns=learns,
        total_spent=total_spent,
    )


def may_learn(settings: Settings) -> bool:
    """Whether real calls may try configs in mode `online`; where they may not, a warning says why, once."""
    if learners.frozen or is_frozen(settings.dir):
        return False
    why = ""
    if settings.online_cost <= 0:
        why = f"{PREFIX}ONLINE_COST is 0: nothing is learned from calls"
    elif settings.sync != "rank0" and ranks_of_job() > 1:
        why = (
            "ranks of one job do not learn from their calls, for one that explores would hold up all; with "
            f"{PREFIX}SYNC=rank0 one of them does"
        )
    if why and why not in _WARNED_OF:
        _WARNED_OF.add(why)
        warn_user(f"mode online: {why}. Keys run what is stored, forecast, or their first config", TuningWarning)
    return not why


def make_surrogate(
    name: str, *, prior: Prior | None = None, answer: Answer | None = None, model: str | None = None
) -> Surrogate:
    """The surrogate a setting names, a language model beside all the others.

    Args:
        prior: stands in for the shipped model.
        model: as setting `MODEL` has it; `prior` goes first.
    """
    fitted = model if prior is None else prior
    if name == "learned":
        return Learned(fitted)
    if place := SURROGATES.get(name):
        module, _, class_name = place.partition(".")
        made: Surrogate = getattr(import_module(f"{_SURROGATES}.{module}"), class_name)()
        return made
    members: list[Surrogate] = [History(), Learned(fitted), Roofline()]
    if is_language_model(name):
        members.append(_language_model(name, Answer() if answer is None else answer))
    return Blend(members)


@cache
def _language_model(name: str, answer: Answer) -> LanguageModelSurrogate:
    """One for all kernels of a process: it is loaded once, and warned of once."""
    return LanguageModelSurrogate(_model(name), answer=answer.form, seconds=answer.seconds)


@cache
def _model(name: str) -> LanguageModel:
    return named(name)


def make_policy(budget: Budget) -> Policy:
    """The policy that a budget calls for."""
    if not budget.measures:
        return StoredOnly()
    return Exhaustive() if budget.all else Selective()


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
        listener: told how far the run has come.
        device: identifies the physical device, as `probe.device_identity` tells it; where it is unknown, nothing is shared.
            In a process of `tune` its name holds.
        earlier: the decision that this process was given last time, to be asked for again.
    Raises:
        CacheMissError: mode is `strict` and there is no decision for this key.
        NoWorkingConfigError: nothing can be run.
    """
    if not is_asked_for(job):
        how = replace(how, budget=NOTHING, unmeasured="the list of keys to tune does not name it")
    budget = Budget(how.budget, total=PROCESS_TOTAL)
    if not budget.measures:
        how = _by_held_model(how)
    shares, device = None, device_of_tune() or (device if how.shard else "")
    if device and how.settings.sync == "store" and isinstance(store, SqliteStore):
        shares = SqliteWorkSharing(store, job, device=device)
    # Who leads a shared run asks before it lets others help; these would ask while it times, so they do not.
    surrogate = _informed(how, job, store, limit_s=_ask_limit_s(how, budget), busy=shares.wanted if shares else None)
    meanwhile = _informed(how, job, store, limit_s=0.0)
    fleet = store if isinstance(store, FleetStore) else None
    store = _with_ranks(store, how)
    if how.settings.mode == "strict":
        if recalled := _recalled(job, store):
            return Resolution(store.publish_decision(job, recalled))
        note_if_pending(store, job, None, how.settings, budget, how.unmeasured)
        raise CacheMissError(f"{_missed(job, store)}. Tune it once with FORECAST_AUTOTUNE_MODE=tune.")
    resolution = untraced(tune)(
        job,
        compiler=compiler,
        surrogate=surrogate,
        policy=_with_suggestions(make_policy(budget), job, how.settings, budget, fleet),
        measurer=measurer,
        store=store,
        budget=budget,
        listener=listener,
        shares=shares,
        meanwhile=meanwhile,
        earlier=earlier,
        arrived=None if fleet is None or budget.all else fleet.arrivals(job),
    )
    if fleet is not None and fleet.is_reading(job) and resolution.decision.basis != "measured":
        resolution = replace(resolution, retry_after_s=resolution.retry_after_s or FIRST_RETRY_S)
    note_if_pending(store, job, resolution.decision, how.settings, budget, how.unmeasured)
    if how.settings.model is None:
        keep_model(how.settings.dir, resolution.decision)
    return resolution


def learn(
    job: Job, how: Request, *, compiler: Compiler, calls: RealCalls, observed: RememberingPolicy, store: Store
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
    budget = Budget(how.learns or NOTHING, clock=lambda: time.perf_counter() - calls.waited_s)
    surrogate = _informed(how, job, store, limit_s=math.inf)
    fleet = store if isinstance(store, FleetStore) else None
    observed.policy = _with_suggestions(make_policy(budget), job, how.settings, budget, fleet)
    return tune(
        job,
        compiler=compiler,
        surrogate=surrogate,
        policy=observed,
        measurer=calls,
        store=_with_ranks(store, how, measures=True),
        budget=budget,
        meanwhile=_informed(how, job, store, limit_s=0.0),
    )


def launched_first(job: Job, how: Request, store: Store) -> Decision:
    """What the first call of a key runs where nothing is measured yet: stored, else forecast, else the default.

    Nothing is noted or kept.
    """
    how = _by_held_model(how)
    return tune(
        job,
        compiler=NoCompiler(),
        surrogate=_informed(how, job, store, limit_s=0.0),
        policy=StoredOnly(),
        measurer=NO_MEASURER,
        store=store,
        budget=Budget("0"),
    ).decision


def first_forecasts(job: Job, how: Request, store: Store) -> tuple[Sequence[Forecast | Abstention], str]:
    """What is forecast of each config of a job by all that is stored, and by which version of the fitted model.

    For a compiler that times configs itself: no language model is asked, and nothing that fails is raised.
    """
    forecaster = Forecaster(job, _informed(how, job, store, limit_s=0.0))
    outcomes = {config: outcome for config, outcome in store.outcomes(job).items() if config in job.space}
    forecaster.start(store.related_recordings(job), outcomes, {})
    return forecaster.forecasts, forecaster.model_version


def keep_decision(job: Job, how: Request, store: Store, decision: Decision) -> Decision:
    """Store a decision that was made elsewhere than in `decide`; returns the one that all ranks of the job hold to."""
    store.decide(job, decision)
    return hold_to(job, how, store, decision)


def hold_to(job: Job, how: Request, store: Store, decision: Decision) -> Decision:
    """The decision that all ranks of the job hold to: this one, unless one of them has published another before."""
    return _with_ranks(store, how).publish_decision(job, decision)


def remembering(surrogate: Surrogate, store: SqliteStore, *, busy: Callable[[], bool] | None = None) -> Surrogate:
    """A surrogate whose language model, if it has one, knows a store's knob effects and is asked no prompt twice.

    While `busy` says that other processes may be timing for the job, it is not asked. Not for mode `forecast`, whose answers
    no log may change.
    """

    def remember(context: ForecastContext) -> ForecastContext:
        return replace(
            context,
            answers=store,
            knob_effects=lambda: store.skills(context.job),
            busy=context.busy if busy is None else busy,
        )

    return WithContext(surrogate, remember)


def _by_held_model(how: Request) -> Request:
    """The request of a decision that rests on forecasts alone: none are made where the model that is held is not here.

    Whoever holds a model wants its answers or the default, not those of another one. Where configs are measured, the other
    surrogates forecast without it, with a warning.
    """
    uses = (how.surrogate, *getattr(how.surrogate, "members", ()))
    if how.settings.model is None or not any(isinstance(surrogate, Learned) for surrogate in uses):
        return how
    try:
        held_prior(how.settings.model)
    except (OSError, InvalidInputError) as err:
        why = f"{PREFIX}MODEL={how.settings.model}: {error_text(err)}"
        if why not in _WARNED_OF:
            _WARNED_OF.add(why)
            meanwhile = "Keys that are not measured run their first config meanwhile"
            warn_user(f"{why}; name a model that is here, or unset it. {meanwhile}", TuningWarning)
        return replace(how, surrogate=_Silent(why))
    return how


class _Silent(StatelessSurrogate):
    """Forecasts nothing, and says why."""

    name = Learned.name

    def __init__(self, why: str) -> None:
        self.why = why

    def forecast(self, context: ForecastContext, *_: object) -> Forecasts:
        return [Abstention(self.name, self.why)] * len(context.job.space)


def _informed(
    how: Request, job: Job, store: Store, *, limit_s: float, busy: Callable[[], bool] | None = None
) -> Surrogate:
    """The surrogate with what settings, budget and store have to say; in mode `forecast` no store says anything.

    Args:
        limit_s: seconds for which a language model may be asked; 0 for one that must not be.
        busy: as `remembering`.
    """
    surrogate: Surrogate = WithContext(how.surrogate, lambda context: replace(context, ask_limit_s=limit_s))
    if how.settings.mode == "forecast" or not isinstance(store, SqliteStore):
        return surrogate
    return _recalibrated(remembering(surrogate, store, busy=busy), store, job.hardware.kind)


def _ask_limit_s(how: Request, budget: Budget) -> float:
    """How many seconds of a budget a language model may be asked for."""
    if how.unmeasured:  # a graph is being captured or code compiled: nothing may be loaded, asked or waited for
        return 0.0
    seconds = budget.seconds_left
    return seconds * MODEL_SHARE if 0 < seconds < math.inf else math.inf


def takes_time(how: Request) -> bool:
    """Whether deciding may take long: it measures, or asks a language model."""
    return how.surrogate.asks_model or how.budget.measures


def _recalibrated(surrogate: Surrogate, store: SqliteStore, kind: str) -> Surrogate:
    """The surrogate with this store's record of its forecasts: how wide to make them, how to weight a blend's members.

    Unchanged where the surrogate says `recalibrate = False`.
    """
    if not surrogate.recalibrate:
        return surrogate
    lessons = cache(partial(_lessons_of, store, kind))
    informed = WithContext(surrogate, lambda context: replace(context, skill=lessons().skill))
    return Recalibrated(informed, lambda: lessons().sigma_scale)


def _lessons_of(store: SqliteStore, kind: str) -> Lessons:
    """What the store's pairs on this kind of hardware teach; read again after `RECALIBRATE_EVERY` decisions."""
    # Without a lock, which a fork could leave held for ever: threads at worst read the pairs twice.
    of_store = _lessons.setdefault(store, {})
    lessons, asked = of_store.get(kind, (None, 0))
    if lessons is None or asked >= RECALIBRATE_EVERY:
        lessons, asked = lessons_of(store.calibration_pairs(kind)), 0
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


def _with_ranks(store: Store, how: Request, *, measures: bool = False) -> Store:
    """The store through which all ranks come to one decision; `measures` where one is measured, whatever the budget."""
    channel = _channel(how)
    if channel is None:
        return store
    # The rank that tunes spends its total first: what it decides from then on is for those that have spent nothing too.
    measures = measures or how.total_spent or how.budget.measures
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
    miss = f"no decision for {job.workload} on {job.hardware}"
    return f"{miss}; the nearest key known is {nearest}" if nearest else f"{miss}, nor for any other key of it"
