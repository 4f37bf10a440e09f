"""Labels of steps, which say what was done to a program: `kind@place=how` by a rewrite, `model: …` by a language model.

Labels of other steps (knobs, another variant, a crossing) are for people alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.digest import Value

_MODEL = "model: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What a rewrite's label says: `unroll@loop0=4` has kind `unroll`, place `loop0` and how 4."""

    kind: str
    place: str
    how: Value

    @property
    def knob(self) -> str:
        """Its name among a candidate's knobs."""
        return f"{self.kind}@{self.place}"


def rewrite_of(label: str) -> Rewrite | None:
    """The rewrite that a label names; None of another step."""
    knob, equals, how = label.rpartition("=")
    kind, at, place = knob.partition("@")
    if not equals or not at or " " in knob or "=" in kind:  # changed knobs, of which a value may have an @
        return None
    return Rewrite(kind=kind, place=place, how=int(how) if how.isdigit() else how)


def kind_of(label: str) -> str:
    """The kind in a rewrite's label."""
    return label.partition("@")[0]


def model_label(headline: str) -> str:
    """The label of a text that a model wrote."""
    return f"{_MODEL}{headline}"


def is_by_model(label: str) -> bool:
    """Whether a model wrote the text."""
    return label.startswith(_MODEL)
