"""Config: one choice of knobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidInputError
from .digest import Value, canonical_json, digest


@dataclass(frozen=True, slots=True)
class Config:
    """One choice of knobs; two configs are equal when their canonical JSON is (so `1`, `1.0` and `True` differ).

    Raises:
        InvalidInputError: a knob's name is not text, or its value is no bool, int, finite float, str or None.
    """

    knobs: Mapping[str, Value] = field(compare=False)
    text: str = field(init=False, repr=False)  # canonical JSON: the identity

    def __post_init__(self) -> None:
        knobs = dict(self.knobs)
        for name, value in knobs.items():
            if not isinstance(name, str) or not isinstance(value, (bool, int, float, str, type(None))):
                raise InvalidInputError(
                    f"knob {name!r} is {repr(value)[:200]} of type {type(value).__name__}: a knob has a text name and "
                    "a bool, int, float, str or None as its value"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidInputError(f"knob {name!r} is {value!r}: a float must be finite")
        object.__setattr__(self, "knobs", knobs)
        object.__setattr__(self, "text", canonical_json(knobs))

    def __getitem__(self, knob: str) -> Value:
        return self.knobs[knob]

    @property
    def digest(self) -> str:
        """Names the config by its content; 32 hex digits."""
        return digest(self.text)

    def __str__(self) -> str:
        shown = (f"{name}={value}" for name, value in self.knobs.items() if value is not None)
        return " ".join(shown) or "(no knobs)"


def split_common(configs: Sequence[Config]) -> tuple[Config, list[Config]]:
    """The knobs that all configs set alike, as one config, and each config without them.

    Of fewer than two configs nothing is common: one alone is shown whole.
    """
    distinct = dict.fromkeys(configs)
    if len(distinct) < 2:
        return Config({}), list(configs)
    first = next(iter(distinct))
    same = {
        name: value
        for name, value in first.knobs.items()
        if all(name in c.knobs and c.knobs[name] == value and type(c.knobs[name]) is type(value) for c in distinct)
    }
    return Config(same), [Config({n: v for n, v in c.knobs.items() if n not in same}) for c in configs]
