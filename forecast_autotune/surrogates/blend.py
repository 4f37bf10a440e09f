"""Blend: several surrogates heard together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

from ..core.forecast import Abstention, Forecast
from ..core.job import Question
from ..features.forecast_columns import ForecastTable, Voice, columns_of
from ..protocols import Surrogate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

log = logging.getLogger(__name__)

FIRST_STANDING = {"learned": 2.0, "history": -2.0, "roofline": -2.0, "language_model": -2.0}
"""What members count before anything has shown how they do, in nats. Heard as equals, `history`, which has only the
outcomes, and `roofline` made the first ten measurements of the recorded spaces worse than `learned` alone (1.46 for 1.23
times the best, cold, 8 spaces, 6 seeds); so much apart, no worse, and better from 100 on (1.05 for 1.09). A language model
may be any: it has to show first what it knows of kernels."""

PAST_COUNTS = 4.0  # log density per outcome, in the past, counts like so many outcomes here
FADES_OVER = 10.0  # outcomes here after which the past counts half: it was made on other kernels
MOST_BELIEF = 20.0  # nats between the best and one that is still heard


class Blend:
    """Combine, config by config, the members that answer; abstain where none does.

    A member counts by how well it foretold the outcomes here, where it says; and, the less the more of them there are, by
    `FIRST_STANDING` and by `past`: its log density per outcome in the past, in nats, where that is known. Not by how sure
    it says it is, which favours whoever is surest wrongly. The result is a mixture: each member's bell stays in it with its
    weight, so that disagreement makes it wide. A member that raises has abstained, with one warning; and so has, without,
    one whose forecast of a config is no number.
    """

    name = "blend"

    def __init__(self, members: Sequence[Surrogate], *, past: Callable[[], Mapping[str, float]] = dict) -> None:
        self.members = tuple(members)
        self.past = past
        self._warned: set[str] = set()

    def with_past(self, past: Callable[[], Mapping[str, float]]) -> Blend:
        """The same members heard by another past; of one that fails, either warns and the other no more."""
        blend = copy(self)  # of a subclass, too
        blend.past = past
        return blend

    def with_members(self, members: Sequence[Surrogate]) -> Blend:
        """Other members heard in the same way."""
        blend = copy(self)
        blend.members = tuple(members)
        return blend

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The kernels whose measurements any member's model was fitted on."""
        return tuple(dict.fromkeys(name for m in self.members for name in getattr(m, "fitted_on", ())))

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        answers = [self._ask(member, question) for member in self.members]
        speaking = [
            (member, a)
            for member, a in zip(self.members, answers, strict=True)
            if len(a) and not bool((~columns_of(a).known).all())
        ]
        if len(speaking) == 1:
            return speaking[0][1]
        if not speaking:
            reason = "; ".join(_reason(m, a) for m, a in zip(self.members, answers, strict=True))
            return [Abstention(self.name, reason or "no members")] * len(question.configs)
        return self._combine(speaking, sum(c in question.job.space for c in question.outcomes))

    def _ask(self, member: Surrogate, question: Question) -> Sequence[Forecast | Abstention]:
        try:
            answer = member.forecast(question)
            if len(answer) == len(question.configs):
                return answer
            reason = f"answered {len(answer)} of {len(question.configs)} configs"
        except Exception as err:  # a member may be anything, a server included; the others go on
            reason = f"failed: {err!r}"
        if member.name not in self._warned:
            self._warned.add(member.name)
            log.warning("surrogate %s %s: going on without it", member.name, reason)
        return [Abstention(member.name, reason)] * len(question.configs)

    def _combine(
        self, speaking: Sequence[tuple[Surrogate, Sequence[Forecast | Abstention]]], outcomes: int
    ) -> ForecastTable:
        import numpy as np

        columns = [columns_of(a) for _, a in speaking]
        means, fails = np.array([c.mean for c in columns]), np.array([c.fail for c in columns])
        sigmas = np.maximum(np.array([c.sigma for c in columns]), 1e-6)
        # What is no number would make the whole mixture none: a member may be anything, a server included.
        known = np.isfinite(means) & np.isfinite(sigmas) & np.isfinite(fails)
        weights = known * self._credit(speaking, outcomes)[:, None]
        total = weights.sum(axis=0)
        weights /= np.where(total > 0, total, 1.0)
        # Chances to survive multiply, each to the power of its weight: a limit that one member knows of counts, unless
        # another has seen the config run.
        runs = np.where(known, 1.0 - np.minimum(np.where(known, fails, 0.0), 1.0 - 1e-9), 1.0)
        fail = 1.0 - np.exp((weights * np.log(runs)).sum(axis=0))
        voices = [
            Voice(member.name, np.where(k, m, 0.0), np.where(k, s, 1.0), w)
            for (member, _), k, m, s, w in zip(speaking, known, means, sigmas, weights, strict=True)
        ]
        heard = [next(f for f in a if isinstance(f, Forecast)) for _, a in speaking]
        return ForecastTable(
            voices,
            fail,
            source=" and ".join(f.source for f in heard),
            default_us=next((f.default_us for f in heard if f.default_us is not None), None),
            silent="nobody speaks of it",
        )

    def _credit(self, speaking: Sequence[tuple[Surrogate, Sequence[Forecast | Abstention]]], outcomes: int) -> Array:
        """How much each member counts by what it has shown, here and before; the best 1."""
        import numpy as np

        told = [getattr(answer, "foretold", None) for _, answer in speaking]
        known = [t for t in told if t is not None]
        usual = sum(known) / len(known) if known else 0.0
        past = self.past()
        usually = sum(past.values()) / len(past) if past else 0.0
        standing = [
            FIRST_STANDING.get(member.name, 0.0) + PAST_COUNTS * (past.get(member.name, usually) - usually)
            for member, _ in speaking
        ]
        shown = np.array([usual if t is None else t for t in told]) + np.array(standing) / (1.0 + outcomes / FADES_OVER)
        credit: Array = np.exp(np.maximum(shown - shown.max(), -MOST_BELIEF))
        return credit


def _reason(member: Surrogate, answer: Sequence[Forecast | Abstention]) -> str:
    first = answer[0] if len(answer) else None
    return f"{member.name}: {first.reason}" if isinstance(first, Abstention) else member.name
