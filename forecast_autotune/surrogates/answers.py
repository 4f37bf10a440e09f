"""What surrogates share of being asked: the same question again, some configs only, and what an answer rests on."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.config import Config
from ..core.job import Question
from ..core.outcome import Measurement
from ..core.space import Space
from ..features.forecast_columns import ForecastTable, indices_of


class LastAnswer:
    """The last question's answer about its whole space, for when it is asked again."""

    def __init__(self) -> None:
        # Replaced as a whole, so that threads that share this object at worst compute an answer twice.
        self._last: tuple[Question, ForecastTable] | None = None

    def keep(self, question: Question, table: ForecastTable) -> ForecastTable:
        # The loop hands in its own dictionary and goes on filling it: keep what it holds now.
        asked = Question(
            job=question.job,
            configs=(),
            outcomes=dict(question.outcomes),
            recordings=tuple(question.recordings),
        )
        self._last = (asked, table)
        return table

    def of(self, question: Question) -> ForecastTable | None:
        """The answer, if all that it rests on is as it was: the loop asks again after a step that only compiled."""
        if self._last is None:
            return None
        asked, table = self._last
        same = (
            asked.job is question.job
            and asked.recordings == tuple(question.recordings)
            and asked.outcomes == question.outcomes
        )
        return table if same else None


def answered(table: ForecastTable, space: Space, configs: Sequence[Config]) -> ForecastTable:
    """A table of the whole space as the answer for some configs."""
    return table if configs is space else table.at(indices_of(space, configs))


def default_us(question: Question) -> float | None:
    """The default's time in microseconds, where it was measured here."""
    default = question.outcomes.get(question.job.space.default)
    return default.median_us if isinstance(default, Measurement) else None


def words(*, here: int, recordings: int) -> list[str]:
    """What a forecast rests on, for people."""
    told = [f"{here} outcomes here"] if here else []
    if recordings:
        told.append(f"{recordings} recording{'s' if recordings > 1 else ''} from elsewhere")
    return told
