"""Tuners within a tuner: while a variant runs, the tuners that it calls run what one joint decision fixes for them."""

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
        """The prefix of its knobs in the joint space."""

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:
        """Its configs for a call, the default first, each with the object that `run_under` takes for it."""

    def run_under(self, chosen: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call under one of its configs, without a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedTuner:
    """A tuner that a variant called, with the configs it may choose among."""

    tuner: Nested
    name: str  # unlike that of any other tuner in the variant
    candidates: Mapping[Config, Any]


@dataclass(slots=True, kw_only=True)
class NestedTuning:
    """How tuners behave during one call of a variant.

    Attributes:
        fixed_configs: by the tuner's identity: the config it runs.
        defaults_only: every other tuner runs its default, without a decision. Otherwise it tunes itself as usual.
        records: whether to note in `tuners` each one that runs its default and has a choice.
        tuners: by identity, those noted.
    """

    fixed_configs: Mapping[int, Any] = field(default_factory=dict)
    defaults_only: bool = False
    records: bool = False
    tuners: dict[int, NestedTuner] = field(default_factory=dict)

    def decides_for(self, tuner: Nested) -> bool:
        """Whether a tuner's call is to go through `run`."""
        return self.defaults_only or id(tuner) in self.fixed_configs

    def run(self, tuner: Nested, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a tuner's call under the config fixed for it, else under its default."""
        if id(tuner) in self.fixed_configs:
            return tuner.run_under(self.fixed_configs[id(tuner)], args, kwargs)
        candidates = tuner.candidates(args, kwargs)
        if self.records and len(candidates) > 1:
            candidates = self._record(tuner, candidates)
        return tuner.run_under(next(iter(candidates.values())), args, kwargs)

    def _record(self, tuner: Nested, candidates: Mapping[Config, Any]) -> Mapping[Config, Any]:
        """Note a tuner. One that is called twice runs one config in both calls, so only configs for both remain."""
        before = self.tuners.get(id(tuner))
        if before is not None:
            candidates = {c: t for c, t in before.candidates.items() if c in candidates} or before.candidates
        namesakes = sum(t.tuner.name == tuner.name for key, t in self.tuners.items() if key != id(tuner))
        name = before.name if before else f"{tuner.name}{namesakes + 1 if namesakes else ''}"
        self.tuners[id(tuner)] = NestedTuner(tuner=tuner, name=name, candidates=candidates)
        return candidates


class _OfThread(threading.local):
    nested: NestedTuning | None = None


of_thread = _OfThread()
"""`of_thread.nested` rules the tuners that this thread calls now; None outside a variant's call."""

ever_nested: list[bool] = []
"""Empty until a variant's call rules its tuners. Looking at it takes a tenth of asking the thread, which takes 70 ns."""


def run_nested(nested: NestedTuning, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `function` with its tuners under `nested`."""
    if not ever_nested:
        ever_nested.append(True)

    def call(*args: Any, **kwargs: Any) -> Any:
        before, of_thread.nested = of_thread.nested, nested
        try:
            return function(*args, **kwargs)
        finally:
            of_thread.nested = before

    return call
