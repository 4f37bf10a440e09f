"""What is tuned: a program, for one key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .cached_property import cached_property
from .digest import Value, canonical_json, digest

_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}
_DTYPE = re.compile(rf"(?:torch\.)?({'|'.join(_SHORT)})(\d+\w*)")


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

    @property
    def constexprs(self) -> Mapping[str, object]:
        """The constexprs in its key."""
        given = self.key.get("given constexprs")
        return given if isinstance(given, Mapping) else {}

    def without_constexprs(self) -> Workload:
        """The workload without the constexprs in its key: calls that differ in those alone share it."""
        return replace(self, key={name: value for name, value in self.key.items() if name != "given constexprs"})

    def __str__(self) -> str:
        return self.program.name + "(" + ", ".join(f"{n}={v}" for n, v in key_parts(self.key).items()) + ")"


def key_parts(key: Mapping[str, object]) -> dict[str, str]:
    """The parts of a key as they are shown: a tensor as `f32[512x512]`, the dtypes of all arguments once where they agree.

    Strides follow a tensor that is not contiguous: `f32[512x512]:1,512`.
    """
    parts: dict[str, str] = {}
    for name, value in key.items():
        if name == "given constexprs" and isinstance(value, Mapping):
            parts |= {constexpr: _brief(held) for constexpr, held in value.items()}
        else:
            parts[name] = _dtypes(value) if name == "dtypes" else _brief(value)
    return parts


def _dtypes(value: object) -> str:
    if not isinstance(value, Mapping):
        return _brief(value)
    short = [_brief(dtype) for dtype in value.values()]
    return short[0] if len(set(short)) == 1 else ",".join(short)


def _brief(value: object) -> str:
    if isinstance(value, Mapping) and isinstance(shape := value.get("shape"), list) and "dtype" in value:
        strides = value.get("stride")
        spaced = "" if not isinstance(strides, list) or _is_contiguous(shape, strides) else f":{_joined(strides, ',')}"
        return f"{_brief(value['dtype'])}[{_joined(shape, 'x')}]{spaced}"
    found = _DTYPE.fullmatch(str(value))
    return str(value) if found is None else _SHORT[found[1]] + found[2]


def _is_contiguous(shape: Sequence[object], strides: Sequence[object]) -> bool:
    """Whether a tensor's elements lie one behind the other; the strides of sizes of 1 say nothing."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != expected:
            return False
        expected *= size if isinstance(size, int) else 1
    return True


def _joined(numbers: Sequence[object], between: str) -> str:
    return between.join(map(str, numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call has to do whatever the config: floating-point operations, and bytes that must move at least once."""

    flops: float
    bytes: float
