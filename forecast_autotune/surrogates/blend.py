"""Blend: several surrogates combined, each weighted by how well it has forecast so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.context import ForecastContext
from ..core.forecast import Abstention, Forecast
from ..core.outcome import Evidence, Outcome
from ..core.signal_handlers import raised_by_signal_handler
from ..features.forecast_columns import Component, ForecastTable, columns_of
from ..protocols import Surrogate, SurrogateSession
from .base import BaseSession, BaseSurrogate, Forecasts, outcomes_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

log = logging.getLogger(__name__)

PRIOR_LOG_WEIGHTS = {"learned": 2.0, "history": -2.0, "roofline": -2.0, "language_model": -2.0}
"""What members count before anything has shown how they do, in nats. Heard as equals, `history`, which has only the
outcomes, and `roofline` made the first ten measurements of the recorded spaces worse than `learned` alone (1.46 for 1.23
times the best, cold, 8 spaces, 6 seeds); so much apart, no worse, and better from 100 on (1.05 for 1.09). A language model
may be any: it has to show first what it knows of kernels."""

PAST_COUNTS = 4.0  # a past log density per outcome counts like that of so many outcomes of this job
FADES_OVER = 10.0  # outcomes after which prior weights and past densities count half: they were found on other kernels
LARGEST_GAP = 20.0  # nats between the best member and one that still has a weight
NARROWEST = 1e-6  # sigma, in log2 speed-up, that a member's bell has at least
SUREST_FAILURE = 1.0 - 1e-9  # chance of failing beyond which no member is believed


class Blend(BaseSurrogate):
    """Combine, config by config, the members that answer; abstain where none does.

    The result is a mixture in which each member's bell keeps its weight, so that disagreement makes it wide. A member's log
    weight is the log density that it gave to the outcomes, each forecast from all the others, plus its prior log weight and
    that of its past forecasts on other kernels, which both fade as outcomes come in. How sure a member is does not count:
    that would favour whoever is surest wrongly.

    A member that raises has abstained, with one warning. So has, without a warning, one whose forecast of a config is no
    number.
    """

    name = "blend"

    def __init__(self, members: Sequence[Surrogate]) -> None:
        self.members = tuple(members)
        self._warned: set[str] = set()

    @property
    def asks_model(self) -> bool:
        """Whether any member asks a language model."""
        return any(member.asks_model for member in self.members)

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The kernels whose measurements any member was fitted on."""
        return tuple(dict.fromkeys(name for member in self.members for name in member.fitted_on))

    @property
    def model_version(self) -> str:
        """The version of the fitted model that a member forecasts by."""
        return next((member.model_version for member in self.members if member.model_version), "")

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session with one of each member's in it, each started when it is first asked."""
        return _Session(context, self.members, self._warned)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one member answered."""

    name: str
    forecasts: Forecasts
    loo_log_density: float | None = None

    @property
    def speaks(self) -> bool:
        """Whether it forecasts any config."""
        return len(self.forecasts) > 0 and bool(columns_of(self.forecasts).known.any())

    @property
    def first(self) -> Forecast:
        """The first config's forecast that is no abstention; the others have the same source."""
        return next(f for f in self.forecasts if isinstance(f, Forecast))

    @property
    def grounded(self) -> NDArray[np.bool_]:
        """Of which configs it knows more than rules of thumb; shape `(configs,)`."""
        import numpy as np

        table = self.forecasts
        if isinstance(table, ForecastTable):
            return np.ones(len(table), dtype=bool) if table.grounded is None else table.grounded
        return np.array([isinstance(f, Forecast) and f.grounded for f in table])

    @property
    def why_not(self) -> str:
        """Why it abstains, for people."""
        first = self.forecasts[0] if len(self.forecasts) else None
        return f"{self.name}: {first.reason}" if isinstance(first, Abstention) else self.name


class _Session(BaseSession):
    def __init__(self, context: ForecastContext, members: Sequence[Surrogate], warned: set[str]) -> None:
        super().__init__(context)
        self._members = members
        self._sessions: list[SurrogateSession | None] = [None] * len(members)
        self._warned = warned  # by any session of this blend

    def predict(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> Forecasts:
        answers = [self._ask(number, outcomes, evidence) for number in range(len(self._members))]
        speaking = [answer for answer in answers if answer.speaks]
        if len(speaking) == 1:
            return speaking[0].forecasts
        space = self.context.job.space
        if not speaking:
            reason = "; ".join(answer.why_not for answer in answers)
            return [Abstention(Blend.name, reason or "no members")] * len(space)
        return _mixture(speaking, _weights(speaking, self.context.past_log_density, outcomes_in(space, outcomes)))

    def _ask(self, number: int, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> _Answer:
        """What a member answers; its abstention, where it breaks."""
        member, configs = self._members[number], len(self.context.job.space)
        try:
            session = self._sessions[number]
            if session is None:
                session = self._sessions[number] = member.start(self.context)
            forecasts = session.predict(outcomes, evidence)
            if len(forecasts) == configs:
                return _Answer(member.name, forecasts, session.loo_log_density)
            reason = f"answered {len(forecasts)} of {configs} configs"
        except Exception as err:  # a member may be anything, a server included; the others go on
            if raised_by_signal_handler(err):
                raise
            reason = f"failed: {err!r}"
        if member.name not in self._warned:
            self._warned.add(member.name)
            log.warning("surrogate %s %s: going on without it", member.name, reason)
        return _Answer(member.name, [Abstention(member.name, reason)] * configs)


def _weights(speaking: Sequence[_Answer], past_log_density: Mapping[str, float], outcomes: int) -> Array:
    """How much each member counts, the best 1.

    Args:
        speaking: the members' answers.
        past_log_density: their mean log density per outcome on other kernels, nats; by name.
        outcomes: how many are known of this job.
    Returns:
        one weight for each answer, in their order.
    """
    import numpy as np

    densities = [answer.loo_log_density for answer in speaking]
    known = [density for density in densities if density is not None]
    usual = sum(known) / len(known) if known else 0.0
    usual_past = sum(past_log_density.values()) / len(past_log_density) if past_log_density else 0.0
    before = [
        PRIOR_LOG_WEIGHTS.get(answer.name, 0.0)
        + PAST_COUNTS * (past_log_density.get(answer.name, usual_past) - usual_past)
        for answer in speaking
    ]
    log_weights = np.array([usual if density is None else density for density in densities])
    log_weights = log_weights + np.array(before) / (1.0 + outcomes / FADES_OVER)
    relative: Array = np.exp(np.maximum(log_weights - log_weights.max(), -LARGEST_GAP))
    return relative


def _mixture(speaking: Sequence[_Answer], member_weights: Array) -> ForecastTable:
    """The members' forecasts as one; of each config, the weights of those that forecast it sum to 1."""
    import numpy as np

    columns = [columns_of(answer.forecasts) for answer in speaking]
    means, fails = np.array([c.mean for c in columns]), np.array([c.fail for c in columns])
    sigmas = np.maximum(np.array([c.sigma for c in columns]), NARROWEST)
    # What is no number would make the whole mixture none: a member may be anything, a server included.
    known = np.isfinite(means) & np.isfinite(sigmas) & np.isfinite(fails)
    by_config = known * member_weights[:, None]
    total = by_config.sum(axis=0)
    by_config /= np.where(total > 0, total, 1.0)
    # Chances to survive multiply, each to the power of its weight: a limit that one member knows of counts, unless
    # another has seen the config run.
    runs = np.where(known, 1.0 - np.minimum(np.where(known, fails, 0.0), SUREST_FAILURE), 1.0)
    fail = 1.0 - np.exp((by_config * np.log(runs)).sum(axis=0))
    components = [
        Component(answer.name, np.where(k, mean, 0.0), np.where(k, sigma, 1.0), weight)
        for answer, k, mean, sigma, weight in zip(speaking, known, means, sigmas, by_config, strict=True)
    ]
    recorded = [(weight, c.by_other_hardware) for weight, c in zip(member_weights, columns, strict=True)]
    told = [(weight, column) for weight, column in recorded if column is not None]
    first = [answer.first for answer in speaking]
    grounded = np.array([answer.grounded for answer in speaking])
    return ForecastTable(
        components,
        fail,
        grounded=(by_config * grounded).sum(axis=0) >= 0.5,  # most of what counts
        source=" and ".join(f.source for f in first),
        default_us=next((f.default_us for f in first if f.default_us is not None), None),
        silent="nobody speaks of it",
        by_other_hardware=np.average([c for _, c in told], axis=0, weights=[w for w, _ in told]) if told else None,
    )
