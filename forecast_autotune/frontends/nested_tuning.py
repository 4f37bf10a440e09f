"""Tuners within a tuner: while a variant is called, those it calls in turn run what one joint decision says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.config import Config


class Nested(Protocol):
    """A tuner that a variant may call."""

    @property
    def name(self) -> str:
        """What its knobs are called by."""

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:
        """What it chooses among for a call, its default first: each config, and the same as it runs it."""

    def run_under(self, chosen: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call under one of these, deciding nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A tuner met in a call of a variant, and what it chooses among there."""

    tuner: Nested
    name: str  # told apart from the others in the variant
    candidates: Mapping[Config, Any]


@dataclass(slots=True, kw_only=True)
class Joint:
    """What tuners do within one call of a variant.

    Those in `imposed`, by identity, run what stands there. The others are left to themselves; or, if `frozen`, they run
    their defaults and decide nothing. With `collects`, each is noted in `found`.
    """

    imposed: Mapping[int, Any] = field(default_factory=dict)
    frozen: bool = False
    collects: bool = False
    found: dict[int, Found] = field(default_factory=dict)

    def takes(self, tuner: Nested) -> bool:
        """Whether a call of a tuner is made here."""
        return self.frozen or id(tuner) in self.imposed

    def run(self, tuner: Nested, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if id(tuner) in self.imposed:
            return tuner.run_under(self.imposed[id(tuner)], args, kwargs)
        candidates = tuner.candidates(args, kwargs)
        if self.collects and len(candidates) > 1:
            candidates = self._note(tuner, candidates)
        return tuner.run_under(next(iter(candidates.values())), args, kwargs)

    def _note(self, tuner: Nested, candidates: Mapping[Config, Any]) -> Mapping[Config, Any]:
        """Of a tuner called twice, what both calls leave, for it will run one config in both."""
        before = self.found.get(id(tuner))
        if before is not None:
            candidates = {c: t for c, t in before.candidates.items() if c in candidates} or before.candidates
        alike = sum(f.tuner.name == tuner.name for key, f in self.found.items() if key != id(tuner))
        name = before.name if before else f"{tuner.name}{alike + 1 if alike else ''}"
        self.found[id(tuner)] = Found(tuner=tuner, name=name, candidates=candidates)
        return candidates


class _Here(threading.local):
    joint: Joint | None = None


here = _Here()
in_use: list[bool] = []
"""Empty until variants are called in this process: asking that takes a tenth of asking the thread (70 ns)."""


def under(joint: Joint, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls are made under a joint decision."""
    if not in_use:
        in_use.append(True)

    def call(*args: Any, **kwargs: Any) -> Any:
        before, here.joint = here.joint, joint
        try:
            return function(*args, **kwargs)
        finally:
            here.joint = before

    return call
