"""A text for one config: its names and types, and the launches that the bound function makes of a call."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import library
from .machine import Counts, Machine
from .sampled_threads import SampledThreads
from .text import Declared, read_expression
from .values import (
    BUILTIN_TYPES,
    DIM3,
    LONGEST_S,
    UNKNOWN,
    AbstainError,
    CppType,
    Function,
    Memory,
    Place,
    Pointer,
    RefusedError,
    StructType,
)

MAX_THREADS = 1024  # of a block (CUDA programming guide, technical specifications)
MAX_LAUNCHES = 64
# Of all launches of a call, each with an array of all sampled threads; a launch of the suite has 29.
MAX_ACCESSES = 10_000
_WORD = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(slots=True)
class Launch:
    """One launch: shared memory asked for, and what the threads do."""

    dynamic_bytes: int
    counts: Counts
    threads: SampledThreads


@dataclass(slots=True)
class Cleared:
    """Bytes set by the driver, which is a launch too."""

    size: float


class World:
    """What names mean under a config. Launches are noted in `launches`.

    Args:
        units: how many multiprocessors there are; 0 where that is not known.
    Attributes:
        may_launch: whether the host called something of which the text does not tell whether it launches anything.
    """

    def __init__(self, declared: Declared, knobs: Mapping[str, Any], units: int = 0) -> None:
        self._declared, self._knobs, self.units = declared, knobs, units
        self._names: dict[str, Any] = {}
        self._types: dict[str, CppType | None] = {}
        self._busy: set[str] = set()
        self.dispatched: CppType | None = None
        self.until = time.monotonic() + LONGEST_S
        self._accesses = 0
        self.launches: list[Launch | Cleared] = []
        self.may_launch = False
        self._shared: dict[Any, Memory] = {}

    def run(self, function: str, arguments: Sequence[Any]) -> list[Launch | Cleared]:
        """The launches of a call.

        Raises:
            AbstainError: the walk does not know what the text uses.
        """
        found = self.function(self._declared.bound.get(function, function), len(arguments))
        if found is None:
            raise AbstainError(f"function {function} is not there")
        Machine(self).call(found, list(arguments))
        if self.may_launch and not self.launches:
            raise AbstainError("what is launched is not in the text")
        return self.launches

    def count_access(self) -> None:
        """Count an access of any launch.

        Raises:
            AbstainError: there were too many.
        """
        self._accesses += 1
        if self._accesses > MAX_ACCESSES:
            raise AbstainError("too many accesses")

    # Names ------------------------------------------------------------------------------------------------------------

    def name(self, m: Machine, name: str) -> Any:
        """What a name outside of functions means."""
        if name not in self._names:
            self._names[name] = self._find(name)
        value = self._names[name]
        if value is None:
            if m.threads is not None:
                raise AbstainError(f"name {name} is not known")
            return UNKNOWN
        return m.load(value) if isinstance(value, Place) else value

    def place(self, m: Machine, name: str) -> Any:
        self.name(m, name)
        return self._names[name] if self._names[name] is not None else UNKNOWN

    def _find(self, name: str) -> Any:
        if name in self._busy:
            raise AbstainError(f"{name} is made of itself")
        self._busy.add(name)
        try:
            if name in self._knobs:
                return self._knob(self._knobs[name])
            if name in self._declared.constants:
                return self._declared.constants[name](Machine(self))
            if name in self._declared.functions:
                return self._declared.functions[name][-1]
            return library.CONSTANTS.get(name)
        finally:
            self._busy.discard(name)

    def _knob(self, value: Any) -> Any:
        if isinstance(value, bool):
            return int(value)
        return read_expression(value)(Machine(self)) if isinstance(value, str) else value

    def function(self, name: str, count: int) -> Function | None:
        """The function of a name that takes so many arguments, or may."""
        found = self._declared.functions.get(name, ())
        exact = [f for f in found if len(f.parameters) == count]
        return next(iter([*exact, *found]), None)

    def type(self, name: str | None, frame: Mapping[str, Any] | None = None) -> CppType | None:
        """A type by name; None if it is not known."""
        if name is None:
            return None
        if frame is not None and "type " + name in frame:
            of: CppType | None = frame["type " + name]
            return of
        if name == "scalar_t":
            return self.dispatched
        if name not in self._types:
            self._types[name] = None  # of one that is made of itself
            self._types[name] = self._find_type(name)
        return self._types[name]

    def _find_type(self, name: str) -> CppType | None:
        for table in (self._declared.structs, self._declared.aliases):
            if name in table:
                made: CppType | None = table[name](Machine(self))
                return made
        value = self._knobs.get(name)
        if isinstance(value, str) and _WORD.match(value) and value != name:
            return self.type(value)
        return BUILTIN_TYPES.get(name)

    def cuda_variable(self, m: Machine, name: str, axis: str) -> Any:
        if m.threads is None:
            raise AbstainError(f"{name} on the host")
        return m.threads.builtins[name, axis]

    def shared_memory(self, m: Machine, key: Any, name: str) -> Memory:
        """An array in shared memory; the one of a launch's own size is one for all that declare it."""
        key = (id(m), key)
        if key not in self._shared:
            self._shared[key] = Memory(name, "shared")
        return self._shared[key]

    # Launches -----------------------------------------------------------------------------------------------------------

    def clear(self, pointer: Any, size: Any) -> None:
        if not isinstance(pointer, Pointer) or not isinstance(size, int):
            raise AbstainError("unknown memory is cleared")
        self.launches.append(Cleared(float(size)))

    def launch(
        self,
        host: Machine,
        kernel: Function,
        arguments: Sequence[Any],
        templates: Sequence[Any],
        settings: Sequence[Any],
    ) -> None:
        """Run a kernel for a sample of its threads, and note what they do."""
        if len(self.launches) >= MAX_LAUNCHES:
            raise AbstainError("too many launches")
        grid, block = (_extents(host, value) for value in settings[:2])
        shared = host.value_of(settings[2]) if len(settings) > 2 else 0
        if not isinstance(shared, int):
            raise AbstainError("shared memory of unknown size")
        if min(*grid, *block) < 1:
            raise RefusedError("a launch of no size")
        if block[0] * block[1] * block[2] > MAX_THREADS:
            raise RefusedError("a block of too many threads")
        threads = SampledThreads(grid, block)
        machine = Machine(self, threads)
        machine.call(kernel, arguments, templates)
        self.launches.append(Launch(shared, machine.counts, threads))


def _extents(host: Machine, value: Any) -> tuple[int, int, int]:
    value = host.value_of(value)
    if isinstance(value, int):
        return value, 1, 1
    if isinstance(value, Place) and isinstance(value.type, StructType) and value.type is DIM3:
        found = [host.load(Place(value.memory, (axis,), of[1], of[0])) for axis, of in DIM3.fields.items()]
        if all(isinstance(extent, int) for extent in found):
            return tuple(found)
    raise AbstainError("a grid or block of unknown size")
