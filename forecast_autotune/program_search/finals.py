"""Finals: the fastest few, the seed and what a person wrote, timed again in turns at sizes that no candidate was
chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.outcome import SWITCH_MARGIN, Failure, Measurement
from ..core.text import shortened
from .candidate import HAND_WRITTEN, Candidate, TriedCandidate, fastest_first
from .examiner import Examiner, Result
from .runners import Loadable, Preparer
from .task import SearchTask, Sizes

FINALISTS = 3
MAX_BY_HAND = 3
ROUNDS = 2
MAX_SHOWN = 200  # characters of a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """A candidate as the finals found it: times by size, or why it is out."""

    candidate: Candidate
    times_us: Mapping[str, float] = field(default_factory=dict)
    relative_error: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finals:
    """What the finals came to: the seed's times, everybody's, and the winner, if one beat the seed beyond the noise."""

    seed: Final
    finals: Sequence[Final]
    winner: Final | None
    reason: str

    def speedup(self, final: Final) -> float:
        """Geometric mean over sizes of the seed's time / this one's."""
        logs = [
            math.log(self.seed.times_us[name] / us) for name, us in final.times_us.items() if name in self.seed.times_us
        ]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan


def run_finals(
    task: SearchTask, tried: Sequence[TriedCandidate], simplest: Candidate, examiner: Examiner, preparer: Preparer
) -> Finals:
    """Time the finalists in turns, each time in a new process, at the sizes held out (at the searched ones where
    there are none).

    Args:
        tried: what the search tried.
        simplest: what is left of the fastest, walked back; it wins where it is as fast as any other.
    """
    sizes = task.held_out or task.sizes
    ran = [one.candidate for one in fastest_first(tried)]
    entrants = list(
        {one.digest: one for one in (simplest, *ran[:FINALISTS]) if one.digest != task.seed.digest}.values()
    )
    none_ran = "" if entrants else _none_ran(tried)
    entrants += [one for one in task.hand_written[:MAX_BY_HAND] if one.digest not in {e.digest for e in entrants}]
    finals = in_turns(task, (task.seed, *entrants), sizes, examiner, preparer)
    return _decided(finals[0], finals[1:], simplest, none_ran)


def _none_ran(tried: Sequence[TriedCandidate]) -> str:
    """That nothing but the seed ran, and why not."""
    failure = next((one.outcome for one in tried if isinstance(one.outcome, Failure)), None)
    if failure is None:
        return "no candidate but the seed was tried"
    why = shortened(failure.message.strip().partition("\n")[0], MAX_SHOWN)
    return f"no candidate but the seed ran; the first failed at the stage '{failure.stage}': {why}"


def in_turns(
    task: SearchTask,
    candidates: Sequence[Candidate],
    sizes: Mapping[str, Sizes],
    examiner: Examiner,
    preparer: Preparer,
) -> list[Final]:
    """Time each candidate twice, one after the other, each time in a new process; one that fails is out.

    The seed, if it is among them, comes first: it sets the baseline at these sizes.
    """
    measured: dict[str, list[tuple[Mapping[str, float], float]]] = {}
    failures: dict[str, str] = {}
    ready: dict[str, Loadable] = {}

    def keep(one: Candidate, result: Result) -> None:
        if isinstance(result.outcome, Measurement):
            measured.setdefault(one.digest, []).append((result.times_us, result.outcome.relative_error))
        else:
            failures[one.digest] = f"{result.outcome.stage}: {result.outcome.message}"

    for one in candidates:
        made = preparer.prepare(one)
        if isinstance(made, Failure):
            failures[one.digest] = f"{made.stage}: {made.message}"
        else:
            ready[one.digest] = made
    if (seed := ready.get(task.seed.digest)) is not None:
        keep(task.seed, examiner.examine(seed, sizes=sizes, is_seed=True))
    with examiner.checked(list(ready.values()), timings=ROUNDS) as checks, examiner.alone():
        checked = dict(zip(ready, checks, strict=True))
        for turn in range(ROUNDS):
            for one in candidates:
                was_timed = turn == 0 and one.digest == task.seed.digest
                if one.digest not in failures and not was_timed:
                    keep(one, examiner.time(ready[one.digest], checked[one.digest], sizes=sizes))
    return [_final(one, measured.get(one.digest, []), failures.get(one.digest, "")) for one in candidates]


def _final(candidate: Candidate, rounds: Sequence[tuple[Mapping[str, float], float]], failure: str) -> Final:
    if failure or not rounds:
        return Final(candidate=candidate, failure=failure or "not timed")
    times = {name: min(times[name] for times, _ in rounds) for name in rounds[0][0]}
    means = [math.prod(times.values()) ** (1 / len(times)) for times, _ in rounds]
    apart = (max(means) - min(means)) / min(means) / 2
    return Final(candidate=candidate, times_us=times, relative_error=max(apart, *(error for _, error in rounds)))


def _decided(seed: Final, entrants: Sequence[Final], simplest: Candidate, none_ran: str = "") -> Finals:
    undecided = Finals(seed=seed, finals=entrants, winner=None, reason="")
    if seed.failure:
        return Finals(
            seed=seed, finals=entrants, winner=None, reason=f"the seed itself failed in the finals: {seed.failure}"
        )
    running = [f for f in entrants if not f.failure and f.candidate.proposer != HAND_WRITTEN]
    best = max(running, key=undecided.speedup, default=None)
    if best is None:
        reason = none_ran or "nothing that ran in the search runs at the sizes held out"
        return Finals(seed=seed, finals=entrants, winner=None, reason=reason)
    for one in running:
        is_as_fast = (1 + SWITCH_MARGIN) * undecided.speedup(one) >= undecided.speedup(best)
        if one.candidate.digest == simplest.digest and is_as_fast:
            best = one
    needed = 1 + max(SWITCH_MARGIN, 2 * math.hypot(best.relative_error, seed.relative_error))
    if (gained := undecided.speedup(best)) < needed:
        told = f"the best is {gained:.3f}x of the seed at the sizes held out"
        reason = f"{told}, and {needed:.3f}x is needed to tell it from noise"
        return Finals(seed=seed, finals=entrants, winner=None, reason=reason)
    return Finals(seed=seed, finals=entrants, winner=best, reason=f"{gained:.3f}x of the seed at the sizes held out")
