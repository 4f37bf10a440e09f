"""Knob effects: what changing one knob did, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .digest import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What all cases of an effect have in common: a number of the key, or another knob, lies so to a value.

    Attributes:
        of: `key` or `knob`.
        name: a knob, an entry of the key such as `K`, or an extent of a tensor in it, such as `x.shape[1]`.
        relation: one of `>=`, `<=`, `=` and `!=`.
        value: what it is compared with; seen in a case itself, so a threshold claims nothing of what lies below it.
    """

    of: str
    name: str
    relation: str
    value: Value

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {value_text(self.value)}"

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether it does for these entries of a key or these knobs; not where its own is missing."""
        if self.name not in values:
            return False
        value = values[self.name]
        if self.relation in ("=", "!="):
            same = type(value) is type(self.value) and value == self.value  # True is not 1
            return same == (self.relation == "=")
        if not is_number(value) or not is_number(self.value):
            return False
        above: bool = value >= self.value if self.relation == ">=" else value <= self.value  # type: ignore[operator]
        return above


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """One change of one knob, all else equal: where it was tried, what it did there, and how it failed.

    Measured pairs of configs that differ in one knob, read as KLineage reads its steps (arXiv 2605.28213): what to do,
    where it applies, under which conditions it held, its effect, and the failures that its conditions avoid.

    Attributes:
        program, language: what was tuned.
        hardware: where, as people name it.
        knob, before, after: the change.
        conditions: what was the same in all cases counted here, such as "K >= 4096" or "variant = split_k".
        tried: cases, those that failed after the change included; all ran before it.
        faster: cases in which the config ran and was faster by more than the noise.
        speedup: geometric mean of time before / time after, over the cases that ran; None if none did.
        failures: how often each kind of failure was met after the change, by its stage and first words.
    """

    program: str
    language: str
    hardware: str
    knob: str
    before: Value
    after: Value
    conditions: tuple[Condition, ...] = ()
    tried: int
    faster: int
    speedup: float | None
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def change(self) -> str:
        """The change of the knob in words."""
        return f"{self.knob} {value_text(self.before)} -> {value_text(self.after)}"

    def __str__(self) -> str:
        where = ", ".join([f"in {self.program} ({self.language})", *map(str, self.conditions), f"on {self.hardware}"])
        ran = self.tried - sum(self.failures.values())
        effect = "never ran" if self.speedup is None else f"{self.speedup:.2f}x, faster in {self.faster} of {ran}"
        failed = "".join(f"; {kind} in {count}" for kind, count in self.failures.items())
        return f"{self.change}, {where}: {effect}{failed}"


def is_number(value: object) -> bool:
    """Whether this is a number to compare; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def value_text(value: Value) -> str:
    """A value as a person or a language model reads it."""
    return "none" if value is None else str(value)
