"""Skills from lineages: what a step that an accepted program needs is good for, where it held, and what failed elsewhere."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..core.digest import Value, digest
from ..core.hardware import Hardware
from ..core.knob_effect import Condition, KnobEffect, is_number
from ..core.outcome import Failure
from ..errors import InvalidInputError, StoreError
from ..features.knob_effects import kind_of_failure
from ..store import encoding
from ..store.searches import SearchFile
from .candidate import Candidate, TriedCandidate
from .lineage import TIE, Step, StepEffect, WalkedBack
from .steps import rewrite_of
from .task import SearchTask

MAX_SHOWN = 2_000  # characters of a difference
# The knob of a skill that is a change of the text which no rewrite makes, and no proposer can repeat alone
TEXT = "text"

INTENTS = {
    "unroll": "unroll a loop {how} times",
    "ivdep": "tell the compiler that a loop's rounds do not depend on each other ({how})",
    "split": "split a sum into {how}, which need not wait for each other",
    "steps": "do {how} rounds of a loop in one",
    "interchange": "exchange two nested loops",
    "tile": "walk a loop in tiles of {how}",
    "vector_width": "compute with vectors of {how} bits",
    "prefetch": "load {how} elements ahead into the caches",
    "restrict": "tell the compiler that pointers do not overlap",
    "num_stages": "keep {how} rounds of a loop's loads under way",
    "loop_unroll_factor": "unroll a loop {how} times",
    "flatten": "flatten nested loops, or what a function calls, into one",
    "exp2": "compute exp by exp2",
    "stage": "read what all threads of a block read through a tile of {how} elements in shared memory",
    "swizzle": "walk {how} rows of a grid of programs together",
    "backward": "run programs in the opposite order",
    "maxnreg": "limit a thread to {how} registers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkill(KnobEffect):
    """A step that a fast program needs: taken back, it is slower at the sizes of its search and at those held out.

    `knob` is what was done (a knob, or a kind of rewrite), `after` how; `before` is empty of rewrites. `speedup` is the
    program's with the step over that without it, at the sizes searched. `tried` counts the same step from all parents in
    its search, `faster` those it made faster.

    Attributes:
        intent: what the step is for, in words.
        place: where in the text it was taken.
        low, high: the speed-up less and plus twice the error of both times.
        held_out: the speed-up at sizes held out, which admitted the skill.
        hardware_kind: `cpu`, `cuda`.
        avoided: how the step failed where the conditions do not hold, and how often.
        difference: the change of the text, as a diff; empty of knobs.
    """

    intent: str
    place: str
    low: float
    high: float
    held_out: float
    hardware_kind: str
    avoided: Mapping[str, int] = field(default_factory=dict)
    difference: str = field(default="", repr=False)

    @property
    def digest(self) -> str:
        """The same for the same step, learnt of the same program."""
        return digest(self.program, self.hardware, self.knob, self.place, str(self.before), str(self.after))

    @property
    def change(self) -> str:
        """The change in words."""
        if self.before is None:
            return f"{self.knob} {self.after}" + (f" at {self.place}" if self.place else "")
        return f"{self.knob} {self.before} -> {self.after}"

    def __str__(self) -> str:
        avoided = "".join(f"; without these conditions {kind} in {count}" for kind, count in self.avoided.items())
        held = f"{self.low:.2f}x to {self.high:.2f}x, {self.held_out:.2f}x at sizes held out"
        return f"{self.intent}: {KnobEffect.__str__(self)}; {held}{avoided}"

    def fits(self, task: SearchTask, parent: Candidate) -> bool:
        """Whether it may be tried on a program: same language, and the conditions hold for a size and for its knobs."""
        if self.language != task.language:
            return False
        return all(
            any(c.holds(numbers(sizes)) for sizes in task.sizes.values())
            if c.of == "key"
            else c.holds(parent.config.knobs)
            for c in self.conditions
        )

    def as_json(self) -> dict[str, object]:
        """What the archive keeps, and `forecast-autotune skills --json` prints with the text beside it."""
        return asdict(self)


def step_of(label: str) -> tuple[str, str, Value]:
    """What was done, where, and how, of a rewrite's label; of another step that it is a text's."""
    rewrite = rewrite_of(label)
    if rewrite is None:
        return TEXT, "", label
    if rewrite.kind == "option":  # is its own place: it holds for the whole text
        return f"option {rewrite.place}", "", rewrite.how
    return rewrite.kind, rewrite.place, rewrite.how


def numbers(sizes: Mapping[str, object]) -> dict[str, Value]:
    """The numbers among sizes."""
    return {name: value for name, value in sizes.items() if is_number(value)}  # type: ignore[misc]


def learn(walked: WalkedBack, tried: Sequence[TriedCandidate], task: SearchTask, hardware: Hardware) -> list[StepSkill]:
    """The skills of a lineage that was walked back: steps that help at the sizes searched, and at those held out."""
    return [
        _skill(effect, tried, task, hardware)
        for effect in walked.effects
        if effect.helps(task.sizes) and effect.helps(task.held_out)
    ]


def _skill(effect: StepEffect, tried: Sequence[TriedCandidate], task: SearchTask, hardware: Hardware) -> StepSkill:
    step = effect.step
    what, place, before, after = _read(step)
    cases = list(_cases(what, after, tried))
    worked = [parent for parent, outcome in cases if not isinstance(outcome, str)]
    failed = [(parent, outcome) for parent, outcome in cases if isinstance(outcome, str)]
    of_knobs = _apart("knob", [p.config.knobs for p in worked], [p.config.knobs for p, _ in failed], but=what)
    faster_at = [n for n in effect.with_us if effect.helps([n])]
    sizes = {**task.sizes, **task.held_out}
    of_sizes = _apart(
        "key",
        [numbers(sizes[n]) for n in faster_at],
        [numbers(sizes[n]) for n in effect.with_us if n not in faster_at],
    )
    met = Counter(kind for _, kind in failed)
    gain = effect.gain(task.sizes)
    return StepSkill(
        program=task.name,
        language=task.language,
        hardware=str(hardware),
        hardware_kind=hardware.kind,
        knob=what,
        before=before,
        after=after,
        conditions=(*of_sizes, *of_knobs),
        tried=len(cases),
        faster=sum(outcome > math.log2(1 + TIE) for _, outcome in cases if not isinstance(outcome, str)),
        speedup=2**gain,
        low=2 ** (gain - effect.noise),
        high=2 ** (gain + effect.noise),
        held_out=2 ** effect.gain(task.held_out),
        failures={} if of_knobs else dict(met),
        avoided=dict(met) if of_knobs else {},
        intent=_intent(what, after),
        place=place,
        difference=_difference(step),
    )


def _read(step: Step) -> tuple[str, str, Value, Value]:
    if step.knob:
        return step.knob, "", step.parent.config.knobs.get(step.knob), step.child.config.knobs[step.knob]
    what, place, how = step_of(str(step))
    return what, place, None, how


def _cases(what: str, after: Value, tried: Sequence[TriedCandidate]) -> Iterable[tuple[Candidate, float | str]]:
    """From which parents the same step was tried, and what came of it: log2 speed-up, or the kind of a failure."""
    by = {one.candidate.digest: one for one in tried}
    for one in tried:
        child = one.candidate
        parent = by.get(child.parents[0]) if len(child.parents) == 1 else None
        if parent is None or parent.time_us is None or not child.steps:
            continue
        if not _is_same(what, after, parent.candidate, child):
            continue
        if isinstance(one.outcome, Failure):
            yield parent.candidate, kind_of_failure(one.outcome)
        elif one.time_us:
            yield parent.candidate, math.log2(parent.time_us / one.time_us)


def _is_same(what: str, after: Value, parent: Candidate, child: Candidate) -> bool:
    if parent.variant != child.variant:
        return False
    if parent.source != child.source:
        done, _, how = step_of(child.last_step)
        return (done, how) == (what, after)
    changed = {k: v for k, v in child.config.knobs.items() if parent.config.knobs.get(k) != v}
    return changed == {what: after}


def _apart(
    of: str, good: Sequence[Mapping[str, Value]], bad: Sequence[Mapping[str, Value]], *, but: str = ""
) -> tuple[Condition, ...]:
    """The condition that holds in all good cases and in no bad one, if one does; none is needed where nothing is bad."""
    if not good or not bad:
        return ()
    for name in good[0]:
        values = [case.get(name) for case in good]
        ordered = [value for value in values if isinstance(value, (int, float)) and is_number(value)]
        ways: list[tuple[str, Value]] = [("=", values[0])]
        if len(ordered) == len(values):
            ways = [(">=", min(ordered)), ("<=", max(ordered))]
        for relation, value in ways if name != but else ():
            condition = Condition(of=of, name=name, relation=relation, value=value)
            if all(map(condition.holds, good)) and not any(map(condition.holds, bad)):
                return (condition,)
    return ()


def _intent(what: str, how: Value) -> str:
    if what in INTENTS:
        return INTENTS[what].format(how=how)
    return str(how) if what == TEXT else f"set {what} to {how}"


def _difference(step: Step) -> str:
    lines = difflib.unified_diff(step.parent.source.splitlines(), step.child.source.splitlines(), lineterm="", n=1)
    return "\n".join(list(lines)[2:])[:MAX_SHOWN]


def skills_in(folder: Path) -> list[StepSkill]:
    """The skills that searches whose archives lie in a store's folder taught, the newest first.

    Raises:
        StoreError: they cannot be read.
    """
    file = SearchFile(folder)
    try:
        return [_decode(row) for row in file.skills()]
    except InvalidInputError as err:
        raise StoreError(f"{file.path} holds a skill that cannot be read ({err}): move the file away") from None


def _decode(row: Mapping[str, object]) -> StepSkill:
    def text(name: str) -> str:
        return encoding.text_field(row, name, "a skill")

    def number(name: str) -> float:
        return encoding.number_field(row, name, "a skill")

    def counts(name: str) -> dict[str, int]:
        of = encoding.fields(row.get(name), name)
        return {kind: encoding.count_field(of, kind, name) for kind in of}

    return StepSkill(
        program=text("program"),
        language=text("language"),
        hardware=text("hardware"),
        hardware_kind=text("hardware_kind"),
        knob=text("knob"),
        before=_value(row, "before"),
        after=_value(row, "after"),
        conditions=tuple(_condition(one) for one in encoding.list_field(row, "conditions", "a skill")),
        tried=encoding.count_field(row, "tried", "a skill"),
        faster=encoding.count_field(row, "faster", "a skill"),
        speedup=number("speedup"),
        low=number("low"),
        high=number("high"),
        held_out=number("held_out"),
        failures=counts("failures"),
        avoided=counts("avoided"),
        intent=text("intent"),
        place=text("place"),
        difference=text("difference"),
    )


def _condition(row: object) -> Condition:
    of = encoding.fields(row, "a condition")
    return Condition(
        of=encoding.text_field(of, "of", "a condition"),
        name=encoding.text_field(of, "name", "a condition"),
        relation=encoding.text_field(of, "relation", "a condition"),
        value=_value(of, "value"),
    )


def _value(row: Mapping[str, object], name: str) -> Value:
    found = row.get(name)
    if found is not None and not isinstance(found, (bool, int, float, str)):
        raise InvalidInputError(f"{name} of a skill is a {type(found).__name__}: a text, a number or none is meant")
    return found
