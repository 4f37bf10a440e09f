"""A surrogate with what settings, budget and store have to say to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from weakref import WeakKeyDictionary

from ..core.budget import Budget
from ..core.context import ForecastContext
from ..core.forecast import Abstention
from ..core.job import Job
from ..core.user_warnings import warn_once
from ..errors import InvalidInputError, TuningWarning
from ..protocols import Store, Surrogate
from ..store.sqlite import SqliteStore
from ..surrogates.base import Forecasts, StatelessSurrogate, WithContext
from ..surrogates.learned import Learned
from ..surrogates.lessons import Lessons, lessons_of
from ..surrogates.prior import held_prior
from ..surrogates.recalibrated import Recalibrated
from .request import Request

MODEL_SHARE = 0.5  # of a budget in seconds: what a language model may take, so that something is left to measure in
RECALIBRATE_EVERY = 32  # decisions between two looks at the store's pairs, 6 ms each

_lessons: WeakKeyDictionary[SqliteStore, dict[str, tuple[Lessons, int]]] = WeakKeyDictionary()


def informed(
    request: Request, job: Job, store: Store, *, limit_s: float, busy: Callable[[], bool] | None = None
) -> Surrogate:
    """The surrogate with what settings, budget and store have to say; in mode `forecast` no store says anything.

    Args:
        limit_s: seconds for which a language model may be asked; 0 for one that must not be.
        busy: as `remembering`.
    """
    surrogate: Surrogate = WithContext(request.surrogate, lambda context: replace(context, ask_limit_s=limit_s))
    if request.settings.mode == "forecast" or not isinstance(store, SqliteStore):
        return surrogate
    return _recalibrated(remembering(surrogate, store, busy=busy), store, job.hardware.kind)


def remembering(surrogate: Surrogate, store: SqliteStore, *, busy: Callable[[], bool] | None = None) -> Surrogate:
    """A surrogate whose language model, if it has one, knows a store's knob effects and is asked no prompt twice.

    While `busy` says that other processes may be timing for the job, it is not asked. Not for mode `forecast`, whose answers
    no log may change.
    """

    def remember(context: ForecastContext) -> ForecastContext:
        return replace(
            context,
            answers=store,
            knob_effects=lambda: store.knob_effects(context.job),
            busy=context.busy if busy is None else busy,
        )

    return WithContext(surrogate, remember)


def by_held_model(request: Request) -> Request:
    """The request of a decision that rests on forecasts alone: none are made where the model that is held is not here.

    Whoever holds a model wants its answers or the default, not those of another one. Where configs are measured, the other
    surrogates forecast without it, with a warning.
    """
    uses = (request.surrogate, *getattr(request.surrogate, "members", ()))
    if request.settings.model is None or not any(isinstance(surrogate, Learned) for surrogate in uses):
        return request
    try:
        held_prior(request.settings.model)
    except InvalidInputError as err:
        warn_once(f"{err}. Keys that are not measured run their first config meanwhile", TuningWarning)
        return replace(request, surrogate=_Silent(str(err)))
    return request


class _Silent(StatelessSurrogate):
    """Forecasts nothing, and says why."""

    name = Learned.name

    def __init__(self, why: str) -> None:
        self.why = why

    def forecast(self, context: ForecastContext, *_: object) -> Forecasts:
        return [Abstention(self.name, self.why)] * len(context.job.space)


def ask_limit_s(request: Request, budget: Budget) -> float:
    """How many seconds of a budget a language model may be asked for."""
    if request.unmeasured:  # a graph is being captured or code compiled: nothing may be loaded, asked or waited for
        return 0.0
    seconds = budget.seconds_left
    return seconds * MODEL_SHARE if 0 < seconds < math.inf else math.inf


def _recalibrated(surrogate: Surrogate, store: SqliteStore, kind: str) -> Surrogate:
    """The surrogate with this store's record of its forecasts: how wide to make them, how to weight a blend's members.

    Unchanged where the surrogate says `recalibrate = False`.
    """
    if not surrogate.recalibrate:
        return surrogate
    lessons = cache(partial(_lessons_of, store, kind))
    informed = WithContext(surrogate, lambda context: replace(context, past_log_density=lessons().past_log_density))
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
