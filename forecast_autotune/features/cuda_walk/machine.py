"""What runs the closures of a text: once for the host's code, and for each launch with many sampled threads at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .sampled_threads import SampledThreads
from .values import (
    FLOAT,
    UNKNOWN,
    UNKNOWN_BOOL,
    UNKNOWN_FLOAT,
    UNKNOWN_INT,
    AbstainError,
    ArrayType,
    CppType,
    Function,
    Memory,
    Place,
    Pointer,
    PointerType,
    Scalar,
    StructType,
    Tensor,
    Unknown,
    Variable,
)

if TYPE_CHECKING:
    from .world import World

MAX_STEPS = 20_000  # statements of one kernel, loops going once: more is no kernel that people write by hand
MAX_CALLS = 40  # within each other
MAX_BITS = 64  # of a number: one that grows beyond is no number of C++
MAX_HEADER_TRIPS = 64  # of a loop whose variable is no sum of equal steps
MAX_HOST_TRIPS = 256


@dataclass(slots=True, eq=False)
class Loop:
    """A loop that is being run, by how often a sampled thread goes through it.

    Of its trips `unroll` follow each other without a jump: 1 where it is not unrolled, all of them where it wholly is.
    """

    trips: Any
    unroll: float

    @property
    def is_unrolled(self) -> bool:
        """Whether it wholly is."""
        return self.unroll == math.inf


@dataclass(slots=True, eq=False)
class Access:
    """Memory read or written at one place of the text.

    Attributes:
        kind: `load`, `store` or `atomic`.
        offset: in bytes, of each sampled thread; None where data tells.
        width: bytes that a thread moves at once.
        times: how often each sampled thread does.
        is_sure: whether no data tells that it happens.
        is_async: whether it goes past the registers.
    """

    kind: str
    memory: Memory
    offset: Any
    width: int
    times: Any
    is_sure: bool
    is_async: bool
    loops: tuple[Loop, ...]


@dataclass(slots=True)
class Counts:
    """What the threads of a launch do, on average; accesses one by one."""

    operations: float = 0.0
    shared: dict[str, float] = field(default_factory=dict)  # bytes by array
    local_bytes: float = 0.0  # of arrays that a thread has
    stages: int = 1  # copies past the registers that are under way at once, and the one that is used
    trips: float = 0.0  # of the loop with most, of those around an access
    accesses: list[Access] = field(default_factory=list)


class Machine:
    """The state of a run. Numbers are Python's where all threads agree, else arrays with one for each sampled thread.

    Attributes:
        mask: which threads are here; True for all, False for none.
        times: how often they are, by the loops around.
        weight: share of times that unknown branches leave.
        is_sure: whether no data tells that a thread is here.
    """

    def __init__(self, world: World, threads: SampledThreads | None = None) -> None:
        self.world, self.threads, self.counts = world, threads, Counts()
        self.frame: dict[str, Any] = {}
        self.mask: Any = threads.there if threads is not None else True
        self.times: Any = 1
        self.weight, self.is_sure = 1.0, True
        self.loops: list[Loop] = []
        self.dead: Any = False  # threads that have returned from the function
        self.gone: Any = False  # that have left the trip of the loop
        self.result: Any = None
        self._quiet = 0
        self._calls = 0
        self._steps = 0

    # Control ----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Count a statement, a call or a trip of the host's loop.

        Raises:
            AbstainError: there were too many, or they took too long.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AbstainError("too many steps")
        if time.monotonic() > self.world.until:
            raise AbstainError("it takes too long")

    def truth(self, value: Any) -> Any:
        """Whether a value holds: True, False, an array of both, or None if that is unknown."""
        import numpy as np

        if isinstance(value, np.ndarray):
            holds = value != 0
            return True if holds.all() else (holds if holds.any() else False)
        if isinstance(value, (bool, int, float, np.generic)):
            return bool(value)
        return None if isinstance(value, (Unknown, Place)) else True

    def branch(self, condition: Any, then: Callable[[], Any], other: Callable[[], Any] | None) -> tuple[Any, Any]:
        """Run what follows if a condition holds, and what follows if not, each for the threads it concerns."""
        holds = self.truth(condition)
        if holds is True:
            return then(), None
        if holds is False:
            return None, other() if other is not None else None
        if holds is None:
            if self.threads is None:
                raise AbstainError("the host asks for what is not known")
            weight, sure = self.weight, self.is_sure
            self.weight, self.is_sure = weight / 2, False
            second = other() if other is not None else None
            first = then()  # last, so that what it assigns stays
            self.weight, self.is_sure = weight, sure
            return first, second
        before = self.mask
        self.mask = both(before, holds)
        first = then() if self.mask is not False else None
        self.mask = both(before, _not(holds))
        second = other() if other is not None and self.mask is not False else None
        self.leave(before)
        return first, second

    def leave(self, mask: Any) -> None:
        """Go on with these threads, without those that have returned or left."""
        self.mask = both(both(mask, _not(self.dead)), _not(self.gone))

    def choose(self, condition: Any, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """The value of one of two expressions."""
        first, second = self.branch(condition, then, other)
        holds = self.truth(condition)
        if holds is True:
            return first
        if holds is False:
            return second
        if first is None or second is None:
            return second if first is None else first
        return select(holds, first, second)

    def return_(self, value: Any) -> None:
        """Return from the function, with those threads that are here."""
        if self.result is None or self.mask is True:
            self.result = value
        elif value is not None:
            self.result = select(self.mask, value, self.result)
        if self.is_sure or self.threads is None:
            self.dead = _or(self.dead, self.mask)
            self.mask = False

    def call(
        self, function: Function, arguments: Sequence[Any], templates: Sequence[Any] = (), this: Any = None
    ) -> Any:
        """Run a function of the text; arguments are values, or places where parameters are references."""
        self.step()
        if self._calls >= MAX_CALLS:
            raise AbstainError("calls without end")
        self._calls += 1
        before = self.frame, self.mask, self.dead, self.gone, self.result, self.is_sure, self.weight
        self.frame = frame = {} if function.frame is None else function.frame
        if this is not None:
            frame["this"] = this
        for name, value in zip(function.templates, templates, strict=False):
            frame["type " + name if not isinstance(value, (int, float)) else name] = value
        self._bind(function, arguments)
        self.dead = self.gone = False
        self.result = None
        # Whether a return ends the function is told by what is unknown within it.
        self.is_sure = True
        sure = before[5]
        try:
            self._run_body(function, sure)
            result = self.result
            if isinstance(result, InitList) and function.result is not None:
                result = self.cast(result, function.result(self))
        finally:
            self.frame, self.mask, self.dead, self.gone, self.result, self.is_sure, self.weight = before
            self._calls -= 1
        return result

    def _run_body(self, function: Function, sure: bool) -> None:
        """Run it; what it does in a doubtful place is in doubt."""
        counted = len(self.counts.accesses)
        function.body(self)
        if not sure:
            for access in self.counts.accesses[counted:]:
                access.is_sure = False

    def _bind(self, function: Function, arguments: Sequence[Any]) -> None:
        frame = self.frame
        for place, parameter in enumerate(function.parameters):
            if place < len(arguments):
                value = arguments[place]
            elif parameter.default is not None:
                value = parameter.default(self)
            else:
                raise AbstainError(f"{function.name} is called with too little")
            if parameter.type_name in function.templates and "type " + parameter.type_name not in frame:
                frame["type " + parameter.type_name] = _deduced(value, parameter.pointers)
            if not parameter.by_reference:
                value = self.copied(self.value_of(value))
                kind = parameter.type(self) if parameter.type is not None else None
                value = self.cast(value, kind)
            frame[parameter.key] = value

    # Values -----------------------------------------------------------------------------------------------------------

    def value_of(self, value: Any) -> Any:
        """What lies in a place; other values are themselves."""
        if isinstance(value, (Place, Variable)):
            return self.load(value)
        return value

    def load(self, place: Any) -> Any:
        """Read a place or variable. What is not a thread's own memory is unknown, and counts."""
        while isinstance(place, Variable):
            place = place.frame.get(place.key, UNKNOWN)
        if not isinstance(place, Place):
            return place
        kind, memory = place.type, place.memory
        if isinstance(kind, ArrayType):
            return Pointer(memory, place.path, place.offset, kind.element)
        if memory.space == "local":
            return place if isinstance(kind, StructType) else self._recall(place)
        self.access("load", place)
        return Unknown(kind)

    def access(self, kind: str, place: Place, *, is_async: bool = False, width: int = 0) -> None:
        """Count an access."""
        if self._quiet or self.threads is None or place.memory.space in ("local", "constant"):
            return
        self.world.count_access()
        mask = 1.0 if self.mask is True else self.mask
        self.counts.accesses.append(
            Access(
                kind=kind,
                memory=place.memory,
                offset=None if isinstance(place.offset, Unknown) else place.offset,
                width=width or int(place.type.size if place.type is not None else 4),
                times=mask * self.times * self.weight,
                is_sure=self.is_sure,
                is_async=is_async,
                loops=tuple(self.loops),
            )
        )

    def store(self, place: Any, value: Any) -> None:
        """Assign to a place or variable, for the threads that are here."""
        while isinstance(place, Variable):
            held = place.frame.get(place.key)
            if isinstance(held, Variable) or (isinstance(held, Place) and not isinstance(value, Function)):
                place = held
                continue
            if self.mask is not True and self.threads is not None and held is not None:
                value = select(self.mask, value, held)
            place.frame[place.key] = value
            return
        if not isinstance(place, Place):
            return  # of something unknown
        if place.memory.space != "local":
            self.access("store", place)
            return
        values, path = place.memory.values, place.path
        if isinstance(place.type, (StructType, ArrayType)):
            self._store_whole(place, value)
            return
        key = (path, place.offset if isinstance(place.offset, int) else None)
        if self.mask is not True and self.threads is not None and key in values:
            value = select(self.mask, value, values[key][1])
        values[key] = (place.offset, value, self._growth(place.offset, value))

    def _store_whole(self, place: Place, value: Any) -> None:
        values, depth = place.memory.values, len(place.path)
        if isinstance(value, Place):
            taken = list(value.memory.values.items())
            for (path, at), (offset, held, growth) in taken:
                if path[: len(value.path)] == value.path:
                    path = (*place.path, *path[len(value.path) :])
                    moved = _moved(offset, place.offset, value.offset)
                    at = moved if isinstance(moved, int) and at is not None else None
                    values[path, at] = (moved, held, growth)
            return
        for path, at in list(values):
            if path[:depth] == place.path and path != place.path:
                del values[path, at]
        values[place.path, None] = (place.offset, value, 0.0)

    def _recall(self, place: Place) -> Any:
        values, path, offset = place.memory.values, place.path, place.offset
        held = values.get((path, offset)) if isinstance(offset, int) else None
        held = held or values.get((path, None))
        if held is None and not isinstance(offset, int):
            held = next((v for (p, _), v in reversed(values.items()) if p == path), None)
        while held is None and path:
            path = path[:-1]
            held = values.get((path, None))
        if held is None:
            return Unknown(place.type)
        at, value, growth = held
        if isinstance(value, (Unknown, Place)):
            return Unknown(place.type)
        if growth and not isinstance(offset, Unknown):
            import numpy as np

            moved = np.rint((offset - at) * growth).astype(np.int64)
            return moved_by(value, moved)
        if isinstance(value, int) and isinstance(place.type, Scalar) and place.type.floating:
            return float(value)
        return value

    def _growth(self, offset: Any, value: Any) -> float:
        """By how much an array's value grows with each byte, as the thread that is in the next trip of a loop shows."""
        import numpy as np

        number = value.offset if isinstance(value, Pointer) else value
        if self.threads is None or not isinstance(offset, np.ndarray) or not isinstance(number, np.ndarray):
            return 0.0
        if number.dtype == bool:
            return 0.0
        for moved, grown in zip(self.threads.steps(offset), self.threads.steps(number), strict=True):
            if moved:
                return float(grown / moved)
        return 0.0

    def copied(self, value: Any) -> Any:
        """A struct of a thread's own as another one; all else is itself."""
        if isinstance(value, Place) and value.memory.space == "local":
            made = Place(Memory(value.memory.name, "local", value.memory.size), (), 0, value.type)
            self._store_whole(made, value)
            return made
        return value

    def cast(self, value: Any, kind: CppType | None) -> Any:
        """A value as one of a type; of types that say nothing, as it is."""
        import numpy as np

        if kind is None:
            return value
        if isinstance(kind, Scalar):
            if isinstance(value, Unknown):
                return Unknown(kind)
            if kind.floating:
                if isinstance(value, (bool, int, float)):
                    return float(value)
                return Unknown(kind) if isinstance(value, np.ndarray) else value
            if kind.name == "bool":
                return value != 0 if isinstance(value, (int, np.ndarray)) else value
            if isinstance(value, float):
                return int(value)
            return value.astype(np.int64) if isinstance(value, np.ndarray) and value.dtype != np.int64 else value
        if isinstance(kind, PointerType):
            if isinstance(value, Pointer) and kind.element is not None and kind.element.size:
                return Pointer(value.memory, value.path, value.offset, kind.element)
            return Unknown(kind) if isinstance(value, Unknown) else value
        if isinstance(value, InitList):
            return self.construct(kind, value.values)
        return Unknown(kind) if isinstance(value, Unknown) else value

    def construct(self, kind: CppType | None, values: Sequence[Any]) -> Any:
        """A value of a type out of those in braces or parentheses."""
        if kind is None:
            return values[0] if len(values) == 1 else UNKNOWN
        if isinstance(kind, (Scalar, PointerType)):
            return self.cast(values[0], kind) if values else (0.0 if getattr(kind, "floating", False) else 0)
        if len(values) == 1 and isinstance(values[0], Place) and values[0].type is kind:
            return self.copied(values[0])
        made = Place(Memory(getattr(kind, "name", "array"), "local", kind.size), (), 0, kind)
        if kind.size and getattr(kind, "name", "") == "dim3":
            values = [*values, 1, 1, 1][:3]
        if not values:
            made.memory.values[(), None] = (0, 0, 0.0)
        elif isinstance(kind, StructType):
            for (name, (of, offset)), value in zip(kind.fields.items(), values, strict=False):
                self._put(Place(made.memory, (name,), offset, of), value)
        else:
            for number, value in enumerate(values):
                self._put(Place(made.memory, (), number * kind.element.size, kind.element), value)
        return made

    def _put(self, place: Place, value: Any) -> None:
        """Write into memory that is being made."""
        mask, self.mask = self.mask, True
        value = self.cast(self.value_of(value), place.type)
        if isinstance(place.type, (StructType, ArrayType)):
            self._store_whole(place, value)
        else:
            place.memory.values[place.path, place.offset] = (place.offset, value, 0.0)
        self.mask = mask

    def operate(self, count: float = 1.0) -> None:
        """Count operations on numbers with a fraction."""
        if self.threads is not None and not self._quiet:
            self.counts.operations += count * self._share(self.threads)

    def _share(self, threads: SampledThreads) -> float:
        """How often a thread is here, on average."""
        import numpy as np

        mask, times = self.mask, self.times
        if mask is True and not isinstance(times, np.ndarray):
            return float(times) * self.weight
        return float((threads.weight * mask * times).sum()) * self.weight

    # Loops ------------------------------------------------------------------------------------------------------------

    def quietly(self, closure: Run) -> Any:
        """A value, without counting what it takes."""
        self._quiet += 1
        try:
            return closure(self)
        finally:
            self._quiet -= 1

    def loop(self, code: LoopCode) -> None:
        """Run a loop: on the host trip by trip, else its body once for all trips, each thread in one of them."""
        if self.threads is None:
            self._host_loop(code)
        else:
            self._sampled_loop(code, self.threads)

    def _sampled_loop(self, code: LoopCode, threads: SampledThreads) -> None:
        frame = self.frame
        begin, growth = {}, {}
        linear = True
        for step in code.steps:
            if step.key not in frame or isinstance(frame[step.key], (Unknown, Variable, Place)):
                continue
            by = self.quietly(step.by)
            if step.operator not in "+-":
                linear = False
            elif is_number(by):
                begin[step.key], growth[step.key] = frame[step.key], by if step.operator == "+" else -by
        trips, is_known, values = 1, False, None
        if linear or not code.conditions:
            trips, is_known = self._trips(code, begin, growth)
        else:
            values = self._header(code)
            trips, is_known = (len(next(iter(values.values()))) - 1, True) if values else (1, False)
        if code.is_do:
            trips = _largest(trips, 1)
        self._run_loop(code, threads, trips, is_known, begin, growth, values)

    def _run_loop(
        self, code: LoopCode, threads: SampledThreads, trips: Any, is_known: bool, begin: Any, growth: Any, values: Any
    ) -> None:
        import numpy as np

        frame = self.frame
        if isinstance(trips, np.ndarray) and (trips == trips[0]).all():
            trips = int(trips[0])
        if not isinstance(trips, np.ndarray) and trips <= 0:
            return
        depth = len(self.loops)
        trip = threads.trip(depth, trips) if isinstance(trips, np.ndarray) or trips > 1 else 0
        for key, value in begin.items():
            frame[key] = moved_by(value, growth[key] * trip)
        for key, taken in (values or {}).items():
            frame[key] = np.array(taken[:-1])[trip] if len(taken) > 2 else taken[0]
        mask, times, sure, gone = self.mask, self.times, self.is_sure, self.gone
        if isinstance(trips, np.ndarray):
            self.mask = both(mask, trips > 0)
        self.times, self.is_sure, self.gone = times * trips, sure and is_known, False
        self.loops.append(Loop(trips, self._unroll(code, trips)))
        if self.mask is not False:
            code.body(self)
        self.loops.pop()
        self.times, self.is_sure, self.gone = times, sure, gone
        self.leave(mask)
        for key, value in begin.items():
            frame[key] = moved_by(value, growth[key] * trips)
        for key, taken in (values or {}).items():
            frame[key] = taken[-1]

    def _unroll(self, code: LoopCode, trips: Any) -> float:
        """How many trips follow each other without a jump; all where a pragma names more than there are, or no number."""
        import numpy as np

        if code.unroll is None:
            return 1.0
        count = self.quietly(code.unroll)
        return float(count) if isinstance(count, (int, float)) and 1 <= count < np.max(trips) else math.inf

    def _trips(self, code: LoopCode, begin: dict[str, Any], growth: dict[str, Any]) -> tuple[Any, bool]:
        """How often a loop runs whose variables grow evenly, and whether no data tells."""
        trips: Any = None
        is_known = bool(code.conditions)
        for condition in code.conditions:
            if condition is None:
                is_known = False
                continue
            first = self._distance(condition)
            for key, value in begin.items():
                self.frame[key] = moved_by(value, growth[key])
            second = self._distance(condition)
            self.frame.update(begin)
            if first is None or second is None:
                is_known = False
                continue
            found = _trips_of(first, second - first)
            if found is None:
                is_known = False
                continue
            trips = found if trips is None else _smallest(trips, found)
        return (1, False) if trips is None else (trips, is_known)

    def _distance(self, condition: Condition) -> Any:
        """How far a variable is from where the loop ends: below 0 as long as it runs."""
        left, right = self.quietly(condition.left), self.quietly(condition.right)
        if isinstance(left, Pointer) and isinstance(right, Pointer) and left.memory is right.memory:
            left, right = left.offset, right.offset
        if not is_number(left) or not is_number(right):
            return None
        distance = left - right
        if condition.operator in ("<", "<="):
            return distance - (condition.operator == "<=")
        if condition.operator in (">", ">="):
            return -distance - (condition.operator == ">=")
        return distance if not isinstance(distance, int) or distance < 0 else -distance

    def _header(self, code: LoopCode) -> dict[str, list[Any]] | None:
        """The values that the variables of a loop take, and those they end with; None if that is not known."""
        frame = self.frame
        before = {step.key: frame.get(step.key) for step in code.steps}
        if any(not isinstance(value, int) for value in before.values()):
            return None
        taken: dict[str, list[Any]] = {key: [] for key in before}
        for _ in range(MAX_HEADER_TRIPS):
            for key, values in taken.items():
                values.append(frame[key])
            distances: list[Any] = [None if c is None else self._distance(c) for c in code.conditions]
            if any(not isinstance(d, int) for d in distances):
                break
            if any(d >= 0 for d in distances):
                frame.update(before)
                return taken if len(next(iter(taken.values()))) > 1 else None
            for step in code.steps:
                frame[step.key] = arithmetic(self, step.operator, frame[step.key], self.quietly(step.by))
                if not isinstance(frame[step.key], int):
                    frame.update(before)
                    return None
        frame.update(before)
        return None

    def _host_loop(self, code: LoopCode) -> None:
        for trip in range(MAX_HOST_TRIPS):
            self.step()
            if not (code.is_do and trip == 0):
                distances: list[Any] = [None if c is None else self._distance(c) for c in code.conditions]
                if not distances or any(d is None for d in distances):
                    raise AbstainError("the host's loop is not known")
                if any(d >= 0 for d in distances):
                    return
            self.gone = False
            code.body(self)
            self.gone = False
            self.leave(True)
            if self.mask is False:
                return
            for step in code.steps if not code.steps_in_body else ():
                frame = self.frame
                frame[step.key] = arithmetic(self, step.operator, frame[step.key], step.by(self))
        raise AbstainError("the host's loop is long")


Run = Callable[[Machine], Any]
"""A part of a text, as what gives its value or does what it says."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison that a loop goes on by."""

    left: Run
    operator: str
    right: Run


@dataclass(frozen=True, slots=True)
class Step:
    """What a trip does to a variable of the loop."""

    key: str
    operator: str
    by: Run


@dataclass(frozen=True, slots=True)
class LoopCode:
    """A loop: comparisons that all hold (None for what is no such), steps, body, and by how many trips it is unrolled."""

    conditions: tuple[Condition | None, ...]
    steps: tuple[Step, ...]
    body: Run
    unroll: Run | None = None
    is_do: bool = False
    steps_in_body: bool = False


@dataclass(frozen=True, slots=True)
class InitList:
    """Values in braces, for a type that is told elsewhere."""

    values: tuple[Any, ...]


def _trips_of(distance: Any, growth: Any) -> Any:
    import numpy as np

    if isinstance(distance, int) and isinstance(growth, int):
        if distance >= 0:
            return 0
        return None if growth <= 0 else -(distance // growth)
    if isinstance(growth, np.ndarray):
        growth = np.maximum(growth, 1)
    elif growth <= 0:
        return None
    return np.where(distance < 0, -(distance // growth), 0)


def _smallest(a: Any, b: Any) -> Any:
    import numpy as np

    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _largest(a: Any, b: Any) -> Any:
    import numpy as np

    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


def both(a: Any, b: Any) -> Any:
    """The threads of two masks."""
    if a is True:
        return b
    if b is True:
        return a
    if a is False or b is False:
        return False
    threads = a & b
    return threads if threads.any() else False


def _or(a: Any, b: Any) -> Any:
    if a is True or b is True:
        return True
    if a is False:
        return b
    return a if b is False else a | b


def _not(a: Any) -> Any:
    return (not a) if isinstance(a, bool) else ~a


def is_number(value: Any) -> bool:
    """Whether it is a number, or one for each thread."""
    import numpy as np

    return isinstance(value, (bool, int, np.ndarray, np.generic))


def moved_by(value: Any, by: Any) -> Any:
    """A number, or a pointer, so much (bytes) further."""
    if isinstance(value, Pointer):
        return Pointer(value.memory, value.path, value.offset + by * value.element_bytes, value.type)
    return value + by


def _moved(offset: Any, to: Any, origin: Any) -> Any:
    if isinstance(offset, Unknown) or isinstance(to, Unknown) or isinstance(origin, Unknown):
        return UNKNOWN_INT
    return offset + (to - origin)


def _deduced(value: Any, pointers: int) -> CppType | None:
    """The type that a template's parameter has by what is handed over."""
    if pointers:
        return value.type if isinstance(value, Pointer) else None
    if isinstance(value, Unknown):
        return value.type
    return FLOAT if isinstance(value, float) else None


def select(mask: Any, value: Any, held: Any) -> Any:
    """A value for the threads of a mask, else what was held; of an unknown and a known number the known one.

    A mask of None stands for what is unknown: either may be.
    """
    import numpy as np

    if value is held or mask is True:
        return value
    if isinstance(value, Pointer) and isinstance(held, Pointer) and value.memory is held.memory and mask is not None:
        if isinstance(value.offset, Unknown) or isinstance(held.offset, Unknown):
            return value
        return Pointer(value.memory, value.path, np.where(mask, value.offset, held.offset), value.type)
    if isinstance(value, Unknown) and isinstance(held, (bool, int, np.ndarray)) and not value.floating:
        return held
    if isinstance(value, Unknown):
        return held if isinstance(held, Pointer) else value
    if isinstance(held, Unknown):
        return held if held.floating else value
    if isinstance(value, float) or isinstance(held, float):
        return value if mask is None and value == held else UNKNOWN_FLOAT
    if mask is not None and is_number(value) and is_number(held):
        return np.where(mask, value, held)
    return value


# Arithmetic -----------------------------------------------------------------------------------------------------------


def arithmetic(machine: Machine, operator: str, a: Any, b: Any) -> Any:
    """What two values make. What has a fraction and is not the same for all threads is unknown, and counts."""
    import numpy as np

    if isinstance(a, (Place, Variable)):
        a = machine.load(a)
    if isinstance(b, (Place, Variable)):
        b = machine.load(b)
    if isinstance(a, Pointer) or isinstance(b, Pointer):
        if operator not in _OF_ADDRESSES:
            return _of_pointers(operator, a, b)
        a, b = (v.offset if isinstance(v, Pointer) else v for v in (a, b))
    whole: tuple[Any, ...] = (bool, int, np.ndarray, np.generic)
    if isinstance(a, whole) and isinstance(b, whole):
        result = _OF_NUMBERS[operator](a, b)
        return UNKNOWN_INT if isinstance(result, int) and result.bit_length() > MAX_BITS else result
    compares = operator in _COMPARISONS
    if isinstance(a, (*whole, float)) and isinstance(b, (*whole, float)):
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            machine.operate()
            return UNKNOWN_BOOL if compares else UNKNOWN_FLOAT
        if operator == "/":
            return _fraction(a, b)
        return _OF_NUMBERS[operator](a, b)
    floating = isinstance(a, float) or isinstance(b, float) or _floating(a) or _floating(b)
    if floating:
        machine.operate()
        return UNKNOWN_BOOL if compares else (a if _floating(a) else b if _floating(b) else UNKNOWN_FLOAT)
    if operator in ("*", "&") and any(isinstance(v, int) and v == 0 for v in (a, b)):
        return 0
    if isinstance(a, Place) or isinstance(b, Place):
        raise AbstainError("an operator of a struct")
    return UNKNOWN_BOOL if compares else UNKNOWN_INT


def _fraction(a: Any, b: Any) -> Any:
    """Of two numbers with a fraction."""
    return a / b if b else UNKNOWN_FLOAT


def _floating(value: Any) -> bool:
    return isinstance(value, Unknown) and value.floating


def _of_pointers(operator: str, a: Any, b: Any) -> Any:
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        if a.memory is not b.memory or isinstance(a.offset, Unknown) or isinstance(b.offset, Unknown):
            return UNKNOWN_INT
        if operator == "-":
            return _OF_NUMBERS["/"](a.offset - b.offset, max(1, a.element_bytes))
        return _OF_NUMBERS[operator](a.offset, b.offset)
    pointer, number = (a, b) if isinstance(a, Pointer) else (b, a)
    if operator in ("==", "!="):
        return operator == "!="  # with nullptr
    if operator not in "+-" or isinstance(number, (Tensor, Function)):
        raise AbstainError("a pointer in arithmetic")
    if isinstance(number, Unknown) or isinstance(pointer.offset, Unknown):
        return Pointer(pointer.memory, pointer.path, UNKNOWN_INT, pointer.type)
    moved = number * pointer.element_bytes
    return Pointer(pointer.memory, pointer.path, pointer.offset + (moved if operator == "+" else -moved), pointer.type)


def _divide(a: Any, b: Any) -> Any:
    """Towards zero, as C++ does."""
    import numpy as np

    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if isinstance(b, int) and b == 0:
            raise AbstainError("a division by zero")
        quotient = np.floor_divide(a, b)
        below = (np.asarray(a) < 0) != (np.asarray(b) < 0)
        return quotient + (below & (quotient * b != a)) if below.any() else quotient
    if b == 0:
        raise AbstainError("a division by zero")
    quotient = abs(a) // abs(b)
    return int(quotient) if (a < 0) == (b < 0) else -int(quotient)


def _shift(a: Any, b: Any, left: bool) -> Any:
    if isinstance(b, int) and not 0 <= b < 64:
        raise AbstainError("a shift by too much")
    return a << b if left else a >> b


# Of addresses these ask how they are aligned. Torch's memory begins at a multiple of 512, so what lies behind that tells.
_OF_ADDRESSES = ("%", "&", "|", "^")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b if not (isinstance(a, bool) or isinstance(b, bool)) else int(a) - int(b),
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - _divide(a, b) * b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: _shift(a, b, left=True),
    ">>": lambda a, b: _shift(a, b, left=False),
}
