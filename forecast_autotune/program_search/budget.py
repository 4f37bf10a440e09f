"""What a search may spend, and what it has spent: measurements, builds, seconds and tokens."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ..core.outcome import Failure
from ..errors import InvalidInputError
from .candidate import TriedCandidate

BUILDS_PER_MEASUREMENT = 2  # that a search may come to: a proposer whose programs do not build must end too
BACK = 8  # measurements of a search for each step of its fastest program that is walked back, beyond those
LEAST = 2  # measurements: the seed, and something beside it
REASONS = 3  # why answers were of no use, that a line holds


@dataclass(slots=True, kw_only=True)
class AnswerTally:
    """How many answers a model was asked for in this run, and by reason, how many of them came to nothing."""

    asked: int = 0
    unused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """`48 answers: 40 with 2 blocks of code and no replacement, 8 others`."""
        reasons = self.unused.most_common(REASONS)
        others = self.asked - sum(n for _, n in reasons)
        told = [f"{n} {why}" for why, n in reasons] + ([f"{others} others"] if others > 0 else [])
        return f"{self.asked} answers: {', '.join(told)}"


@dataclass(slots=True, kw_only=True)
class SearchBudget:
    """Limits of a search, all that its archive holds included; and a tally.

    `measurements` are candidates run on the device, those that turned out wrong included; the seed is one. `tokens`
    are those that models have read and written. Steps of the fastest program that were walked back, one for each
    eight measurements at most, are counted apart, as `walked`: each takes four exams. `answers` are those of
    models, by the proposer's name.

    Raises:
        InvalidInputError: fewer than 2 measurements, or a limit that is no positive number.
    """

    measurements: int
    minutes: float = math.inf
    tokens: float = math.inf
    measured: int = 0
    built: int = 0
    failed: int = 0
    walked: int = 0
    tokens_used: int = 0
    answers: defaultdict[str, AnswerTally] = field(default_factory=lambda: defaultdict(AnswerTally))
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if isinstance(self.measurements, bool) or not isinstance(self.measurements, int) or self.measurements < LEAST:
            raise InvalidInputError(
                f"a budget of {self.measurements!r}: a search measures the seed and something beside it, so give "
                f"at least {LEAST}"
            )
        if not self.minutes > 0 or not self.tokens >= 0:
            raise InvalidInputError(f"{self.minutes} minutes, {self.tokens} tokens: give positive numbers")

    def count(self, tried: TriedCandidate) -> None:
        """Count what was tried, now or by an earlier run."""
        builds_alone = isinstance(tried.outcome, Failure) and tried.outcome.stage == "compile"
        self.built += 1
        self.measured += not builds_alone
        self.failed += isinstance(tried.outcome, Failure)

    @property
    def left(self) -> int:
        """Measurements left."""
        return max(0, self.measurements - self.measured)

    @property
    def seconds(self) -> float:
        """Since this run of the search began."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """Of the minutes of this run; below 0 where they are over."""
        return 60 * self.minutes - self.seconds

    def may_walk(self) -> bool:
        """Whether one more step of the fastest program may be walked back."""
        return self.walked < max(1, self.measurements // BACK) and self.seconds_left > 0

    def spent(self) -> str:
        """Why nothing more may be tried; empty while something may."""
        if not self.left:
            return f"its {self.measurements} measurements are spent"
        if self.built >= BUILDS_PER_MEASUREMENT * self.measurements:
            return f"{self.built} builds came to {self.measured} measurements"
        if self.seconds_left <= 0:
            return f"its {self.minutes:g} minutes are over"
        return ""
