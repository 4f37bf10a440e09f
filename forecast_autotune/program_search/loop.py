"""The loop of a search: propose several times what is measured, forecast, try three by promise and one at random.

What was proposed and not tried waits, and is forecast again in each later round: what a round teaches may make an earlier
proposal the best.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ..core.forecast import Forecast
from ..core.outcome import Failure, Measurement
from ..errors import NoWorkingConfigError
from .archive import Archive
from .budget import SearchBudget
from .candidate import PROMISE, RANDOM, REPAIR, SEED, Candidate, TriedCandidate, incumbent
from .examiner import Examiner, Result
from .forecasts import CandidateForecaster
from .proposers.base import Proposer, SearchView, why_nothing
from .rules import broken_rule
from .runners import Loadable, Preparer
from .skills import StepSkill
from .task import SearchTask

log = logging.getLogger(__name__)

ROUND = 4  # tried between two rounds of forecasts; one of them at random
RANDOM_EVERY = 4
PROPOSALS = 16.0  # for each that is tried: to forecast one costs next to nothing
MAX_WAITING = 256  # of what was proposed and not tried, the most promising
DRY = 4  # rounds that try nothing, after which a search ends
PAUSES = 7  # while nothing can be proposed for the moment: of 1 s, 2 s, 4 s and so on, two minutes in all
BUILDERS = 2  # builds beside each other; nothing is timed meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEvent:
    """Something happened: what, for people, and the candidate that was tried, if one was."""

    text: str
    tried: TriedCandidate | None = None


@dataclass(kw_only=True)
class SearchLoop:
    """One search, from where its archive stands.

    Args:
        task: what is searched for.
        archive: what was tried; each outcome is added as it comes.
        budget: what may be spent.
        proposer: who proposes.
        forecaster: who forecasts; without one every candidate is drawn at random, which is the baseline.
        examiner, preparer: who tries a candidate.
        proposals: how many are proposed for each that is tried.
        seed: of all draws.
        skills: of earlier searches on such hardware, for proposers.
        listener: told of each event.
    Attributes:
        waiting: what was proposed and not tried, by digest; empty without forecasts.
    """

    task: SearchTask
    archive: Archive
    budget: SearchBudget
    proposer: Proposer
    forecaster: CandidateForecaster | None
    examiner: Examiner
    preparer: Preparer
    proposals: float = PROPOSALS
    seed: int = 0
    skills: Sequence[StepSkill] = ()
    listener: Callable[[SearchEvent], None] = lambda _: None
    turns: int = 0  # that tried nothing, so that the next one draws otherwise
    twins: set[str] = field(default_factory=set)  # digests of candidates that came out as another's machine code
    waiting: dict[str, Candidate] = field(default_factory=dict)

    def run(self) -> str:
        """Search until nothing more may be tried or is proposed; why it ended.

        Raises:
            NoWorkingConfigError: the task's own source does not build, run, or compute what the reference does.
            NoBoxError: the system has no box.
            StoreError: an outcome cannot be written down.
        """
        for tried in self.archive:
            self.budget.count(tried)
        if len(self.archive):
            self.listener(SearchEvent(text=f"goes on from {len(self.archive)} candidates that were tried before"))
        self._try_seed()
        dry = pauses = 0
        while not (why := self.budget.spent()):
            view, known = self._view(), len(self.archive)
            wanted = min(ROUND, self.budget.left)
            new = self._proposed(view, max(wanted, round(self.proposals * wanted)))
            has_some = bool(new or self.waiting)
            if has_some:
                self._try_all(self._chosen(view, new, wanted))
            if len(self.archive) > known:
                dry = pauses = 0
                continue
            self.turns += 1
            if not has_some and (trouble := why_nothing(self.proposer, "trouble")):
                if pauses == PAUSES:
                    return f"the server could not be asked: {trouble}"
                self._pause(2.0**pauses, trouble)
                pauses += 1
                continue
            if not has_some and (ended := why_nothing(self.proposer, "ended")):
                return ended
            dry += 1
            if dry == DRY:
                return "nothing new is proposed any more"
        return why

    def _pause(self, seconds: float, trouble: str) -> None:
        """Wait, until the minutes are over at most: a server that is busy, or starts, may answer then."""
        seconds = max(0.0, min(seconds, self.budget.seconds_left))
        self.listener(SearchEvent(text=f"asks again in {seconds:.3g} s: {trouble}"))
        time.sleep(seconds)

    def _view(self) -> SearchView:
        tried = list(self.archive)
        return SearchView(
            task=self.task, tried=tried, turn=len(tried) + 1_000_000 * self.turns, seed=self.seed, skills=self.skills
        )

    def _try_seed(self) -> None:
        """Examine the task's own source. It is run again by each process: what it shows is what candidates are held
        against."""
        known = next((t for t in self.archive if t.chosen == SEED), None)
        made = self.preparer.prepare(self.task.seed)
        if isinstance(made, Failure):
            raise NoWorkingConfigError(f"{self.task.name}'s own source does not build: {made.message}")
        result = self.examiner.examine(made, is_seed=True)
        if isinstance(result.outcome, Failure):
            raise NoWorkingConfigError(
                f"{self.task.name}'s own source fails at the stage '{result.outcome.stage}': "
                f"{result.outcome.message}. Nothing can be "
                "compared with it"
            )
        if known is None:
            self._keep(
                TriedCandidate(
                    candidate=self.task.seed,
                    outcome=result.outcome,
                    forecast=None,
                    chosen=SEED,
                    times_us=result.times_us,
                    code=made.code or result.code,
                )
            )

    def _proposed(self, view: SearchView, n: int) -> list[Candidate]:
        """New candidates that may be built, none twice."""
        pool: dict[str, Candidate] = {}
        for one in self.proposer.propose(view, n):
            if one.digest not in view.known | self.twins and one.digest not in pool:
                if why := broken_rule(one, self.task):
                    log.info("a candidate of %s is refused: %s", one.proposer, why)
                    self._count_unused(one, f"against the rules ({why})")
                    continue
                pool[one.digest] = one
        return list(pool.values())

    def _chosen(
        self, view: SearchView, new: Sequence[Candidate], wanted: int
    ) -> list[tuple[Candidate, Forecast | None, str]]:
        """Which are tried: three in four by promise over the fastest so far, of all that was proposed, and one of the new
        ones at random."""
        draw = random.Random(f"{self.seed} {view.turn} choice")
        left_over = {digest: one for digest, one in self.waiting.items() if digest not in view.known | self.twins}
        pool = list({**{one.digest: one for one in new}, **left_over}.values())
        forecasts: Sequence[Forecast | None] = [None] * len(pool)
        if self.forecaster is not None:
            forecasts = self.forecaster.forecast(view.tried, pool)
        unforecast = all(f is None for f in forecasts)
        left = list(range(len(pool)))
        chosen: list[tuple[Candidate, Forecast | None, str]] = []
        over = self._gained(view)
        for _ in range(min(wanted, len(pool))):
            fresh = [i for i in left if i < len(new)]
            is_turn = bool(fresh) and (self.budget.measured + len(chosen)) % RANDOM_EVERY == 0
            at_random = is_turn or unforecast
            i = draw.choice(fresh or left) if at_random else max(left, key=lambda i: (_promise(forecasts[i], over), -i))
            left.remove(i)
            chosen.append((pool[i], forecasts[i], RANDOM if at_random else PROMISE))
        known = sorted((i for i in left if forecasts[i] is not None), key=lambda i: -_promise(forecasts[i], over))
        if unforecast:  # a surrogate that fails once is no reason to forget what waits
            known = [i for i in left if pool[i].digest in left_over]
        self.waiting = {pool[i].digest: pool[i] for i in known[:MAX_WAITING]}
        return chosen

    @staticmethod
    def _gained(view: SearchView) -> float:
        """Log2 speed-up of the fastest so far against the seed."""
        seed = next((t for t in view.tried if t.chosen == SEED), None)
        best = view.incumbent
        if seed is None or best is None or not seed.time_us or not best.time_us:
            return 0.0
        return math.log2(seed.time_us / best.time_us)

    def _try_all(self, chosen: Sequence[tuple[Candidate, Forecast | None, str]]) -> None:
        """Build and examine all that were chosen; mend what failed, once."""
        with ThreadPoolExecutor(BUILDERS, thread_name_prefix="forecast_autotune_search") as pool:
            made = list(pool.map(lambda one: self.preparer.prepare(one[0]), chosen))
        ready: list[tuple[Candidate, Forecast | None, str, Loadable | Failure]] = []
        for (candidate, forecast, why), loadable in zip(chosen, made, strict=True):
            known = [*((t.candidate, t.code) for t in self.archive), *((c, _code(m)) for c, _, _, m in ready)]
            twin = next((c for c, code in known if code and code == _code(loadable)), None)
            if twin is None:
                ready.append((candidate, forecast, why, loadable))
                continue
            self.budget.built += 1
            self.twins.add(candidate.digest)
            self._count_unused(candidate, "compiling to the same as another program")
            text = f"{candidate.last_step}: compiles to the same as {twin.digest[:8]}, and is not measured"
            self.listener(SearchEvent(text=text))
        failed = [tried for tried in self._tried(ready) if isinstance(tried.outcome, Failure)]
        for one in failed:
            if not self.budget.spent():
                self._repair(one)

    def _count_unused(self, candidate: Candidate, why: str) -> None:
        self.budget.answers[candidate.proposer].unused[why] += 1

    def _repair(self, failed: TriedCandidate) -> None:
        mended = self.proposer.repair(self._view(), failed)
        if mended is not None and mended not in self.archive and not broken_rule(mended, self.task):
            self._tried([(mended, None, REPAIR, self.preparer.prepare(mended))])

    def _tried(
        self, ready: Sequence[tuple[Candidate, Forecast | None, str, Loadable | Failure]]
    ) -> list[TriedCandidate]:
        """Examine what was built, and keep what came of each."""
        best = incumbent(list(self.archive))
        results = iter(
            self.examiner.examine_all(
                [made for *_, made in ready if isinstance(made, Loadable)],
                best_us=None if best is None else best.times_us,
            )
        )
        all_: list[tuple[bool, TriedCandidate]] = []
        for candidate, forecast, chosen, made in ready:
            result = Result(outcome=made) if isinstance(made, Failure) else next(results)
            outcome = result.outcome
            if isinstance(made, Loadable) and isinstance(outcome, Measurement):
                outcome = replace(outcome, compile_s=made.compile_s)
            tried = TriedCandidate(
                candidate=candidate,
                outcome=outcome,
                forecast=forecast,
                chosen=chosen,
                times_us=result.times_us,
                code=_code(made) or result.code,
            )
            all_.append((result.everywhere, tried))
        # First what was checked everywhere: what was not would be the fastest of a search that is ended in between.
        for _, tried in sorted(all_, key=lambda one: not one[0]):
            self._keep(tried)
        return [tried for _, tried in all_]

    def _keep(self, tried: TriedCandidate) -> None:
        best = incumbent(list(self.archive))
        self.archive.add(tried)
        self.budget.count(tried)
        self.listener(SearchEvent(text=_told(tried, best), tried=tried))


def _code(made: Loadable | Failure) -> str:
    return made.code if isinstance(made, Loadable) else ""


def _promise(forecast: Forecast | None, over: float) -> float:
    return -1.0 if forecast is None else forecast.expected_gain(over)


def _told(tried: TriedCandidate, best: TriedCandidate | None) -> str:
    how = tried.candidate.last_step
    if isinstance(tried.outcome, Failure):
        return f"{how}: {tried.outcome.stage}: {tried.outcome.message.splitlines()[0][:160]}"
    text = f"{how}: {tried.time_us:.4g} us"
    if best is not None and best.time_us and tried.time_us:
        text += f", {best.time_us / tried.time_us:.2f}x of the fastest so far"
    return text


def speedups(tried: Sequence[TriedCandidate]) -> Mapping[str, float]:
    """Log2 speed-up of each candidate that ran against the seed, by digest."""
    seed = next((t.time_us for t in tried if t.chosen == SEED), None)
    if not seed:
        return {}
    return {t.candidate.digest: math.log2(seed / t.time_us) for t in tried if t.time_us}
