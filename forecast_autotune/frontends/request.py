"""How a decision is to be made: what the code says, overridden by the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..core.budget import NOTHING, PROCESS_TOTAL, BudgetLimits
from ..core.user_warnings import warn_once
from ..distributed.job_channel import ranks_of_job
from ..distributed.job_store import Patience
from ..errors import InvalidInputError, TuningWarning
from ..protocols import Surrogate
from ..settings import PREFIX, Mode, Settings
from ..store.frozen import is_frozen
from ..surrogates.by_name import make_surrogate
from .online.learning_threads import learners
from .pending import measuring_is_wanted

USUAL_CONFIGS = 16  # that real calls try of a key, where the budget has no limit but one of time

_SURROGATE_HAS = ("name", "recalibrate", "asks_model", "fitted_on", "model_version", "start")  # what tuning asks of one


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

    @property
    def never_measures(self) -> bool:
        """Whether this process measures no key: by its mode or budget, not for a call alone."""
        if self.settings.mode in ("strict", "cached") or self.total_spent:
            return True
        return self.settings.mode == "tune" and not self.budget.measures and not self.unmeasured


def make_request(
    budget: str | int | None,
    *,
    default_budget: str,
    mode: Mode | None = None,
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
    if why:
        warn_once(f"mode online: {why}. Keys run what is stored, forecast, or their first config", TuningWarning)
    return not why


def takes_time(request: Request) -> bool:
    """Whether deciding may take long: it measures, or asks a language model. Of mode strict nobody may run the default."""
    return request.settings.mode != "strict" and (request.surrogate.asks_model or request.budget.measures)
