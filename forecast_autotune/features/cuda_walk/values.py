"""What the walk knows of a value: numbers (of all sampled threads, or one for all), types, memory and places in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .machine import Run

LONGEST_S = 5.0  # for a text to be read, and for a call; they take 6 and 3 ms


class AbstainError(Exception):
    """The text uses what the walk does not know: nothing is said of it. Never leaves the room."""


class RefusedError(AbstainError):
    """Under this config the text is not compiled, or not launched."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type of numbers."""

    name: str
    size: int
    floating: bool = False


@dataclass(frozen=True, slots=True)
class PointerType:
    """A pointer to another type; None where that is not known."""

    element: CppType | None
    size: int = 8


@dataclass(frozen=True, slots=True)
class ArrayType:
    """So many of another type."""

    element: CppType
    count: int

    @property
    def size(self) -> int:
        return self.element.size * self.count


@dataclass(slots=True, eq=False)
class StructType:
    """Fields by name with their type and offset in bytes, methods, and what its address is a multiple of."""

    name: str
    fields: dict[str, tuple[CppType, int]] = field(default_factory=dict)
    size: int = 0
    methods: Mapping[str, Function] = field(default_factory=dict)
    align: int = 1


CppType = Scalar | PointerType | ArrayType | StructType


def struct_of(
    name: str, fields: list[tuple[str, CppType]], methods: Mapping[str, Function], align: int = 1
) -> StructType:
    """A struct whose fields lie as C++ has them, each at a multiple of what it is made of."""
    made, at = StructType(name, methods=methods), 0
    for field_name, kind in fields:
        own = alignment(kind)
        align, at = max(align, own), -(-at // own) * own
        made.fields[field_name] = (kind, at)
        at += kind.size
    made.align, made.size = align, max(1, -(-at // align) * align)
    return made


def alignment(kind: CppType) -> int:
    """What the address of a value of a type is a multiple of."""
    if isinstance(kind, ArrayType):
        return alignment(kind.element)
    if isinstance(kind, StructType):
        return kind.align
    return kind.size


BOOL, INT, LONG, FLOAT, DOUBLE = (
    Scalar("bool", 1), Scalar("int", 4), Scalar("int64_t", 8), Scalar("float", 4, True), Scalar("double", 8, True),
)  # fmt: skip
_SIZES = {
    1: "char int8_t uint8_t uchar __nv_fp8_e4m3 __nv_fp8_e5m2",
    2: "short int16_t uint16_t ushort half __half __nv_bfloat16 nv_bfloat16 Half BFloat16",
    4: "unsigned int32_t uint32_t uint signed cudaError_t float",
    8: "long int64_t uint64_t size_t ptrdiff_t intptr_t uintptr_t clock_t cudaStream_t double",
}
_FLOATING = frozenset(
    [
        "__nv_fp8_e4m3",
        "__nv_fp8_e5m2",
        "half",
        "__half",
        "__nv_bfloat16",
        "nv_bfloat16",
        "Half",
        "BFloat16",
        "float",
        "double",
    ]
)
BUILTIN_TYPES: dict[str, CppType] = {
    **{name: Scalar(name, size, name in _FLOATING) for size, names in _SIZES.items() for name in names.split()},
    "bool": BOOL, "int": INT, "int64_t": LONG, "float": FLOAT, "double": DOUBLE, "void": Scalar("void", 1),
}  # fmt: skip
for _name, _of in {"float": FLOAT, "int": INT, "uint": INT, "double": DOUBLE, "longlong": LONG}.items():
    for _count in (1, 2, 3, 4):
        BUILTIN_TYPES[f"{_name}{_count}"] = struct_of(
            f"{_name}{_count}",
            [(axis, _of) for axis in "xyzw"[:_count]],
            {},
            min(16, _of.size * _count) if _count != 3 else _of.size,
        )
for _name, _axes, _each in (
    ("half2", "xy", "half"), ("__half2", "xy", "half"), ("__nv_bfloat162", "xy", "nv_bfloat16"),
    ("char4", "xyzw", "char"), ("uchar4", "xyzw", "uchar"),
):  # fmt: skip
    BUILTIN_TYPES[_name] = struct_of(_name, [(axis, BUILTIN_TYPES[_each]) for axis in _axes], {}, 4)
DIM3 = BUILTIN_TYPES["dim3"] = struct_of("dim3", [(axis, INT) for axis in "xyz"], {})
DTYPES = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "nv_bfloat16", "int64": "int64_t",
    "int32": "int", "int16": "short", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
"""Types of a tensor's elements by their names in torch."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only a run would tell, of a known type or None."""

    type: CppType | None = None

    @property
    def floating(self) -> bool:
        return isinstance(self.type, Scalar) and self.type.floating


UNKNOWN, UNKNOWN_FLOAT, UNKNOWN_INT, UNKNOWN_BOOL = Unknown(), Unknown(FLOAT), Unknown(INT), Unknown(BOOL)


@dataclass(slots=True, eq=False)
class Memory:
    """A stretch of memory: `global` (a tensor's), `shared` (of a block), `constant`, or `local` (a thread's own).

    Of local memory the values are kept, one for each field: the last one written, with where it was written and by how
    much it grows from element to element.
    """

    name: str
    space: str
    size: float = 0.0
    # By fields, and by bytes where these are known: place, value, growth a byte
    values: dict[tuple[tuple[str, ...], int | None], tuple[Any, Any, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where something lies: memory, fields on the way to it (of local memory), bytes from its begin, and its type."""

    memory: Memory
    path: tuple[str, ...]
    offset: Any
    type: CppType | None

    @property
    def element_bytes(self) -> int:
        """By how many bytes `++` moves it.

        Raises:
            AbstainError: the type of what it points to is not known.
        """
        if self.type is None:
            raise AbstainError("an element of unknown size")
        return self.type.size


@dataclass(frozen=True, slots=True)
class Place:
    """What lies there, as against the address of it."""

    memory: Memory
    path: tuple[str, ...]
    offset: Any
    type: CppType | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a frame, as something that can be assigned."""

    frame: dict[str, Any]
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function, method or lambda: its parameters, and what its body does."""

    name: str
    parameters: tuple[Parameter, ...]
    body: Run
    templates: tuple[str, ...] = ()
    is_kernel: bool = False
    frame: dict[str, Any] | None = None  # of the function that a lambda is in
    result: Run | None = None  # its type


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """Of a function: its key in the frame, and its type, as a closure and by the name that stands in the text."""

    key: str
    type: Run | None
    by_reference: bool
    pointers: int
    type_name: str
    default: Run | None


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An argument of the bound function, or memory that it makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    type: CppType
    memory: Memory

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count
