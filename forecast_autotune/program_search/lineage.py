"""Lineages walked back: each step to the fastest program is taken away and measured; what does not matter is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .archive import Archive
from .budget import SearchBudget
from .candidate import Candidate, TriedCandidate
from .examiner import Examiner
from .finals import Final, in_turns
from .proposers.crossing import crossed
from .runners import Preparer
from .task import SearchTask

TIE = 0.02  # relative; two times closer than this are one, however small their spread


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change between a parent and its child: of the text, or of one knob, whose name is then in `knob`."""

    parent: Candidate
    child: Candidate
    knob: str = ""

    def __str__(self) -> str:
        if self.knob:
            return f"{self.knob}={self.child.config.knobs[self.knob]}"
        return self.child.last_step


@dataclass(frozen=True, kw_only=True)
class StepEffect:
    """What a step brings to a program: times in microseconds by size with it and without it.

    `noise` is what two times may differ by in log2. `failure` says how the program fails without the step; it then
    has no times.
    """

    step: Step
    with_us: Mapping[str, float] = field(default_factory=dict)
    without_us: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    failure: str = ""

    def gain(self, sizes: Iterable[str]) -> float:
        """Mean log2 speed-up by the step over these sizes; 0 where none was timed."""
        gains = [math.log2(self.without_us[n] / self.with_us[n]) for n in sizes if n in self.without_us]
        return sum(gains) / len(gains) if gains else 0.0

    def helps(self, sizes: Iterable[str]) -> bool:
        """Whether the program is slower at these sizes, beyond the noise, without the step."""
        return self.gain(sizes) > self.noise

    def costs_nothing(self) -> bool:
        """Whether the program runs as fast without the step at every size; where noise hides that, it does not."""
        return not self.failure and all(self.gain([name]) <= math.log2(1 + TIE) for name in self.with_us)


@dataclass(frozen=True, kw_only=True)
class WalkedBack:
    """The program without the steps that do not matter, and what each step that was taken away does, the last first."""

    program: Candidate
    effects: Sequence[StepEffect] = ()


def steps_to(candidate: Candidate, tried: Mapping[str, TriedCandidate]) -> list[Step]:
    """The steps from the seed to a program, over all its parents, in the order in which they were tried.

    What failed on the way is no step of its own: its repair is one from what ran before it. A program crossed from two
    adds none: its steps are theirs.
    """
    found: dict[str, list[Step]] = {}
    waiting = [candidate]
    while waiting:
        child = waiting.pop()
        parents = [parent for name in child.parents if (parent := _that_ran(name, tried)) is not None]
        if child.digest in found or not parents:
            continue
        found[child.digest] = list(_between(parents[0], child)) if len(child.parents) == 1 else []
        waiting += parents
    order = {digest: place for place, digest in enumerate([*tried, candidate.digest])}
    return [step for digest in sorted(found, key=order.__getitem__) for step in found[digest]]


def _that_ran(digest: str, tried: Mapping[str, TriedCandidate]) -> Candidate | None:
    while (one := tried.get(digest)) is not None:
        if one.time_us is not None:
            return one.candidate
        if len(one.candidate.parents) != 1:
            return None
        digest = one.candidate.parents[0]
    return None


def _between(parent: Candidate, child: Candidate) -> Iterable[Step]:
    if parent.variant != child.variant:
        return
    if parent.source != child.source:
        yield Step(parent=parent, child=child)
    for knob, value in child.config.knobs.items():
        if parent.config.knobs.get(knob) != value:
            yield Step(parent=parent, child=child, knob=knob)


def without(program: Candidate, step: Step) -> Candidate | None:
    """A program with one of its steps taken back; None where later steps stand on the same lines, or it is gone already."""
    source, knobs = program.source, dict(program.config.knobs)
    if step.knob:
        if knobs.get(step.knob) != step.child.config.knobs[step.knob]:
            return None
        knobs[step.knob] = step.parent.config.knobs.get(step.knob)
    elif source == step.child.source:
        source = step.parent.source
    elif (undone := crossed(step.child.source, source, step.parent.source)) is not None:
        source = undone
    else:
        return None
    steps = list(program.steps)
    if str(step) in steps:
        steps.remove(str(step))
    config = type(program.config)(knobs)
    made = replace(
        program, source=source, config=config, proposer="simpler", parents=(program.digest,), steps=tuple(steps)
    )
    return None if made.digest == program.digest else made


def walk_back(
    task: SearchTask,
    best: TriedCandidate,
    archive: Archive,
    examiner: Examiner,
    preparer: Preparer,
    budget: SearchBudget,
) -> WalkedBack:
    """Take away each step that led to a program, the last first, and keep it away where that costs nothing.

    With a step and without it are timed in turns, at the sizes held out too. It ends where the budget does, and where
    the program itself no longer runs.
    """
    program, effects = best.candidate, list[StepEffect]()
    sizes = {**task.sizes, **task.held_out}
    steps = steps_to(program, {one.candidate.digest: one for one in archive})
    if steps and budget.may_walk():
        in_turns(task, [task.seed], sizes, examiner, preparer)  # it sets the baseline at all sizes
    for step in reversed(steps):
        simpler = without(program, step)
        if simpler is None or not budget.may_walk():
            continue
        budget.walked += 1
        mine, its = in_turns(task, (program, simpler), sizes, examiner, preparer)
        if mine.failure:
            break
        effect = _effect(step, mine, its)
        effects.append(effect)
        if effect.costs_nothing():
            program = simpler
    return WalkedBack(program=program, effects=effects)


def _effect(step: Step, mine: Final, its: Final) -> StepEffect:
    if its.failure:
        return StepEffect(step=step, failure=its.failure.splitlines()[0][:200])
    noise = math.log2(1 + max(TIE, 2 * math.hypot(mine.relative_error, its.relative_error)))
    return StepEffect(step=step, with_us=mine.times_us, without_us=its.times_us, noise=noise)
