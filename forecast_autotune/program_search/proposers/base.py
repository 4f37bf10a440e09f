"""What a proposer is, and what it may look at."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...core.cached_property import cached_property
from ...core.outcome import Failure
from ..candidate import Candidate, TriedCandidate, fastest_first, incumbent
from ..skills import StepSkill
from ..task import SearchTask


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """All that a proposer may look at: the task, what was tried in its order, skills of earlier searches on such hardware,
    and the turn, which seeds its draws."""

    task: SearchTask
    tried: Sequence[TriedCandidate]
    turn: int
    seed: int = 0
    skills: Sequence[StepSkill] = ()

    @cached_property
    def ran(self) -> list[TriedCandidate]:
        """What ran, the fastest first."""
        return fastest_first(self.tried)

    @cached_property
    def known(self) -> frozenset[str]:
        """Digests of what was tried."""
        return frozenset(t.candidate.digest for t in self.tried)

    @property
    def incumbent(self) -> TriedCandidate | None:
        """The fastest so far."""
        return incumbent(self.tried)

    def draw(self, proposer: str) -> random.Random:
        """The random numbers of a proposer in this turn: the same view gives the same."""
        return random.Random(f"{self.seed} {self.turn} {proposer}")

    def parent(self, draw: random.Random) -> Candidate:
        """One of the fastest, each half as likely as the one before it; the seed where nothing ran."""
        for tried in self.ran:
            if draw.random() < 0.5:
                return tried.candidate
        return self.ran[0].candidate if self.ran else self.task.seed

    def fitting(self, parent: Candidate) -> list[StepSkill]:
        """The skills whose conditions hold for this task and a parent's knobs."""
        return [skill for skill in self.skills if skill.fits(self.task, parent)]

    @property
    def last_failure(self) -> TriedCandidate | None:
        """The newest candidate that failed."""
        return next((t for t in reversed(self.tried) if isinstance(t.outcome, Failure)), None)


class Proposer(Protocol):
    """Proposes candidates. The same view gives the same proposals, unless a model is asked.

    It may say why it proposes nothing, by two more attributes: see `why_nothing`.
    """

    name: str

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        """At most `n` new candidates, none of which was tried. Fewer, or none, where it knows no more.

        Never raises for what it cannot think of; a proposer that breaks down says so in the log, and returns what it has.
        """

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:
        """A candidate of its own that failed, mended; None where it cannot. Asked once for each."""


def why_nothing(proposer: Proposer, which: Literal["trouble", "ended"]) -> str:
    """An attribute that a proposer may have: a text, empty where it does not hold.

    `trouble` is why it could propose nothing when it was last asked, but may later. `ended` is why it proposes nothing any
    more; a search whose proposers all have ended says that it stopped by this.
    """
    reason: str = getattr(proposer, which, "")
    return reason


def tally(tried: Sequence[TriedCandidate]) -> Mapping[str, tuple[int, int]]:
    """By proposer: how many of its candidates were tried, and how many of those were the fastest when they came."""
    counts: dict[str, list[int]] = {}
    best = float("inf")
    for one in tried:
        count = counts.setdefault(one.candidate.proposer, [0, 0])
        count[0] += 1
        if one.time_us is not None and one.time_us < best:
            best = one.time_us
            count[1] += 1
    return {name: (count[0], count[1]) for name, count in counts.items()}
