"""What is tuned: a program, for one key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .digest import Value, canonical_json, digest


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is tuned: a name, and the source text it was made from with all it calls."""

    name: str
    language: str  # "c++", "cuda", "triton"
    source: str = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Changes with the code; not with line numbers, blank lines or trailing spaces."""
        lines = (line.rstrip() for line in self.source.splitlines())
        return digest(self.name, self.language, "\n".join(line for line in lines if line))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A program at one key: the part of a call's arguments that a decision depends on.

    `features` describe the call further (shapes, alignment, grid) for forecasts; two calls that differ only there share
    their decision. `check` names what outputs were compared by: what was found without says nothing under one.
    """

    program: Program
    key: Mapping[str, object]  # JSON values
    timing: str = "eager"
    check: str = ""
    features: Mapping[str, Value] = field(default_factory=dict, compare=False)

    @cached_property
    def digest(self) -> str:
        """Names the workload by program, key, way of timing and check; 32 hex digits."""
        checked = (self.check,) if self.check else ()
        return digest(self.program.digest, canonical_json(self.key), self.timing, *checked)

    def __str__(self) -> str:
        shown = ", ".join(f"{k}={_brief(v)}" for k, v in self.key.items())
        return f"{self.program.name}({shown})"


def _brief(value: object) -> str:
    """Tensor entries read as they do in torch: float32[512, 512]."""
    if isinstance(value, Mapping) and "dtype" in value and "shape" in value:
        return f"{value['dtype']}[{'x'.join(str(n) for n in value['shape'])}]"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call has to do whatever the config: floating-point operations, and bytes that must move at least once."""

    flops: float
    bytes: float
