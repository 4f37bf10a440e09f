"""Blend: several surrogates heard together."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ..arrays import columns_of, forecasts_from
from ..core.forecast import Abstention, Forecast
from ..core.job import Question
from ..protocols import Surrogate

log = logging.getLogger(__name__)


class Blend:
    """Combine, config by config, the members that answer; abstain where none does.

    Members are weighted by their precision (1 / sigma^2). The result is no surer than its surest member, for members read
    the same facts, and less sure where they disagree. A member that raises has abstained, with one warning.
    """

    name = "blend"

    def __init__(self, members: Sequence[Surrogate]) -> None:
        self.members = tuple(members)
        self._warned: set[str] = set()

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        answers = [self._ask(member, question) for member in self.members]
        speaking = [a for a in answers if not all(isinstance(f, Abstention) for f in a)]
        if len(speaking) == 1:
            return speaking[0]
        if not speaking:
            reason = "; ".join(_reason(m, a) for m, a in zip(self.members, answers, strict=True))
            return [Abstention(self.name, reason or "no members")] * len(question.configs)
        return self._combine(speaking)

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

    def _combine(self, answers: Sequence[Sequence[Forecast | Abstention]]) -> list[Forecast | Abstention]:
        import numpy as np

        columns = [columns_of(a) for a in answers]
        means, fails = np.array([c.mean for c in columns]), np.array([c.fail for c in columns])
        variances = np.array([np.maximum(c.sigma, 1e-6) ** 2 for c in columns])
        known = ~np.isnan(means)
        precisions = np.where(known, 1.0 / np.where(known, variances, 1.0), 0.0)
        total = precisions.sum(axis=0)
        weights = precisions / np.where(total > 0, total, 1.0)
        mean = np.where(known, weights * means, 0.0).sum(axis=0)
        apart = np.where(known, weights * (means - mean) ** 2, 0.0).sum(axis=0)
        sigma = np.sqrt(np.where(known, variances, math.inf).min(axis=0) + apart)
        # Chances to survive multiply, each to the power of its weight: a limit that one member knows of counts, unless
        # another has seen the config run.
        runs = np.where(known, 1.0 - np.minimum(np.where(known, fails, 0.0), 1.0 - 1e-9), 1.0)
        fail = 1.0 - np.exp((weights * np.log(runs)).sum(axis=0))
        if known.all() and all(len({f.source for f in a}) == 1 for a in answers):
            # Everybody spoke of every config in one voice, as is usual: 10,000 take 19 ms, one by one 32.
            voices = [a[0] for a in answers if a]
            source = " and ".join(v.source for v in voices)
            return forecasts_from(mean, sigma, fail, source=source, default_us=_default_us(voices))
        sources: dict[tuple[str, ...], str] = {}
        blended: list[Forecast | Abstention] = []
        rows = zip(mean.tolist(), sigma.tolist(), fail.tolist(), *answers, strict=True)
        for m, s, f, *said in rows:
            heard = [a for a in said if isinstance(a, Forecast)]
            if len(heard) < 2:
                blended.append(heard[0] if heard else said[0])
                continue
            key = tuple(a.source for a in heard)
            source = sources.get(key) or sources.setdefault(key, " and ".join(key))
            blended.append(Forecast.normal(m, s, source=source, fail_probability=f, default_us=_default_us(heard)))
        return blended


def _default_us(heard: Sequence[Forecast | Abstention]) -> float | None:
    """The default's time, from the first that knows it."""
    return next((f.default_us for f in heard if isinstance(f, Forecast) and f.default_us is not None), None)


def _reason(member: Surrogate, answer: Sequence[Forecast | Abstention]) -> str:
    first = answer[0] if answer else None
    return f"{member.name}: {first.reason}" if isinstance(first, Abstention) else member.name
