"""What every proposer promises; subclass it and say how to make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from doubling import task

from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate
from forecast_autotune.program_search.proposers.base import Proposer, SearchView
from forecast_autotune.program_search.skills import StepSkill
from forecast_autotune.program_search.task import SearchTask


def tried(candidate: Candidate, us: float | None, chosen: str = "promise") -> TriedCandidate:
    """A candidate that took so long, or failed."""
    outcome = Failure(stage="check", message="wrong") if us is None else Measurement(samples_us=(us,))
    times = {} if us is None else {"large": us}
    return TriedCandidate(candidate=candidate, outcome=outcome, forecast=None, chosen=chosen, times_us=times)


def seen(of: SearchTask, *others: TriedCandidate) -> SearchView:
    """A view in which the seed took 10 us."""
    every = [tried(of.seed, 10.0, "seed"), *others]
    return SearchView(task=of, tried=every, turn=len(every))


class ProposerContract(ABC):
    skills: Sequence[StepSkill] = ()
    """What earlier searches taught, for a proposer that has nothing to propose without."""

    @abstractmethod
    def make(self) -> Proposer:
        """A proposer that knows something to propose for `task`."""

    def task(self) -> SearchTask:
        return task()

    def seen(self, of: SearchTask, *others: TriedCandidate) -> SearchView:
        return replace(seen(of, *others), skills=self.skills)

    def test_it_proposes_at_most_what_is_asked_for(self) -> None:
        for n in (1, 3):
            assert 1 <= len(self.make().propose(self.seen(self.task()), n)) <= n

    def test_nothing_that_was_tried_is_proposed_and_nothing_twice(self) -> None:
        of, known = self.task(), []
        for _ in range(3):
            view = self.seen(of, *(tried(c, 9.0) for c in known))
            more = list(self.make().propose(view, 4))
            assert known or more
            digests = [c.digest for c in more]
            assert len(set(digests)) == len(digests)
            assert not view.known & set(digests)
            known += more

    def test_what_it_proposes_names_its_proposer_and_parents_that_were_tried(self) -> None:
        view = self.seen(self.task())
        proposed = list(self.make().propose(view, 4))
        assert proposed
        for candidate in proposed:
            assert candidate.proposer
            assert candidate.parents
            assert set(candidate.parents) <= view.known
            assert candidate.steps

    def test_where_nothing_ran_the_seed_is_the_parent(self) -> None:
        of = self.task()
        view = SearchView(task=of, tried=[], turn=0, skills=self.skills)
        assert {p for c in self.make().propose(view, 4) for p in c.parents} == {of.seed.digest}

    def test_a_failure_is_repaired_by_another_candidate_or_not_at_all(self) -> None:
        of = self.task()
        maker = self.make()
        (candidate,) = maker.propose(self.seen(of), 1)
        failed = tried(candidate, None)
        mended = maker.repair(self.seen(of, failed), failed)
        assert mended is None or mended.digest != candidate.digest
