"""Functions that come with CUDA, C++ and torch, by name: what they return, and what they cost a thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .machine import InitList, Machine, arithmetic, is_number
from .values import (
    BUILTIN_TYPES,
    DTYPES,
    FLOAT,
    UNKNOWN,
    UNKNOWN_BOOL,
    UNKNOWN_FLOAT,
    UNKNOWN_INT,
    AbstainError,
    Function,
    Memory,
    Place,
    Pointer,
    StructType,
    Tensor,
    Unknown,
    Variable,
)

if TYPE_CHECKING:
    from .expressions import Code

IGNORED = ("TORCH_CHECK", "C10_CUDA", "CUDA_CHECK", "TORCH_INTERNAL_ASSERT", "AT_CUDA_CHECK", "assert", "static_assert")
"""Calls that start so check something, and are not looked at."""
CHECKED = ("C10_CUDA", "CUDA_CHECK", "AT_CUDA_CHECK")
"""Of these the calls within are."""
ASKED = ("index", "device_index", "stream", "type", "has_value", "value", "c_str", "str", "is_cuda")
"""Methods of what the host has and the walk does not know, such as a device, that launch nothing."""
_UNITS = "cudaDevAttrMultiProcessorCount"

CONSTANTS: dict[str, Any] = {
    "FLT_MAX": 3.4e38, "FLT_MIN": 1.2e-38, "FLT_EPSILON": 1.2e-7, "INFINITY": math.inf, "NAN": math.nan, "M_PI": math.pi,
    "INT_MAX": 2**31 - 1, "INT_MIN": -(2**31), "cudaSuccess": 0, "NULL": 0, "warpSize": 32, "CUDART_INF_F": math.inf,
    "DBL_MAX": 1.7e308, _UNITS: 16,
}  # fmt: skip
SPECIAL = 4.0  # operations that an exponential or division counts as, as in `kernel_counts`

_UNARY = {
    **dict.fromkeys(
        ["fabs", "fabsf", "abs", "floor", "ceil", "round", "rint", "trunc", "roundf", "rintf", "__frcp_rn"], 1.0
    ),
    **dict.fromkeys(["floorf", "ceilf", "truncf", "__saturatef", "sign"], 1.0),
    **dict.fromkeys(
        [
            "exp",
            "expf",
            "exp2",
            "exp2f",
            "__expf",
            "expm1f",
            "log",
            "logf",
            "log2f",
            "__logf",
            "log1pf",
            "sqrt",
            "sqrtf",
            "rsqrt",
            "rsqrtf",
            "tanh",
            "tanhf",
            "sin",
            "sinf",
            "cos",
            "cosf",
            "__sinf",
            "__cosf",
            "erf",
            "erff",
            "rcp",
            "__frcp_ru",
            "normcdff",
            "hexp",
            "h2exp",
        ],
        SPECIAL,
    ),
}
_BINARY = {
    **dict.fromkeys(
        [
            "fmaxf",
            "fminf",
            "fmax",
            "fmin",
            "__fmaf_rn",
            "__fadd_rn",
            "__fmul_rn",
            "__hadd",
            "__hmul",
            "__hmax",
            "__hmin",
            "hmax",
            "__hsub",
        ],
        1.0,
    ),
    **dict.fromkeys(["__hadd2", "__hmul2", "__hmax2", "__hsub2"], 2.0),
    **dict.fromkeys(["powf", "pow", "__powf", "fmodf", "atan2f", "__fdividef", "fdividef"], SPECIAL),
}
_FUSED = {"fmaf": 2.0, "fma": 2.0, "__hfma": 2.0, "__hfma2": 4.0}
_SHUFFLES = ("__shfl_sync", "__shfl_down_sync", "__shfl_up_sync", "__shfl_xor_sync")
_VOTES = ("__ballot_sync", "__any_sync", "__all_sync", "__activemask", "__popc", "__ffs", "__clz", "__match_any_sync")
_ATOMICS = (
    "atomicAdd", "atomicMax", "atomicMin", "atomicExch", "atomicCAS", "atomicOr", "atomicAnd", "atomicXor", "atomicSub",
    "atomicInc",
)  # fmt: skip
_CONVERSIONS = {
    "__float2half": "half", "__float2half_rn": "half", "__half2float": "float", "__float2bfloat16": "nv_bfloat16",
    "__bfloat162float": "float", "__float2int_rn": "int", "__int2float_rn": "float", "__float_as_int": "int",
    "__int_as_float": "float", "__float22half2_rn": "half2", "__half22float2": "float2", "__float2half2_rn": "half2",
    "__low2float": "float", "__high2float": "float", "__float_as_uint": "int", "__uint_as_float": "float",
}  # fmt: skip
_WHOLE_LOADS = ("__ldg", "__ldcs", "__ldca", "__ldcg", "__ldlu", "__ldcv")
_WHOLE_STORES = ("__stcs", "__stcg", "__stwb", "__stwt")
_OTHER_LIBRARIES = (
    "cub",
    "thrust",
    "cublas",
    "cudnn",
    "cutlass",
    "cute",
    "wmma",
    "mma",
    "cg",
    "nvcuda",
    "cooperative_groups",
)


def call(m: Machine, name: str, scope: str, templates: Sequence[Any], given: Sequence[Code]) -> Any:
    """Call a function that the text does not define.

    Raises:
        AbstainError: the walk does not know it either.
    """
    if name in _CALLS:
        return _CALLS[name](m, templates, given)
    kind = m.world.type(name, m.frame)
    if kind is not None:
        return m.construct(kind, [each.value(m) for each in given])
    if (
        m.threads is not None
        or scope.split("::")[0] in _OTHER_LIBRARIES
        or name.startswith(("cublas", "cudnn", "cudaLaunch"))
    ):
        raise AbstainError(f"function {name} is not known")
    return _host_call(m, name, scope, given)


def _host_call(m: Machine, name: str, scope: str, given: Sequence[Code]) -> Any:
    if name.startswith("AT_DISPATCH"):
        return _dispatch(m, given)
    if scope in ("torch", "at") and name in ("empty", "zeros", "ones", "full"):
        return new_tensor(given[0].value(m), None)
    if scope in ("torch", "at") and name.endswith("_like"):
        return like(given[0].value(m))
    if scope in ("torch", "at"):
        raise AbstainError(f"torch's {name} on the host")
    if name == "cudaMemsetAsync" or name == "cudaMemset":
        pointer, size = m.value_of(given[0].value(m)), given[2].value(m)
        m.world.clear(pointer, size)
        return 0
    if name.startswith("cuda"):
        _written_by_others(m, name, given)
        m.world.may_launch |= name.startswith(("cudaMemcpy", "cudaGraph"))
        return 0
    _written_by_others(m, name, given)
    m.world.may_launch |= scope.split("::")[0] not in ("at", "c10", "std")
    return UNKNOWN


def _written_by_others(m: Machine, name: str, given: Sequence[Code]) -> None:
    """What the driver and functions of elsewhere write is unknown, but for how many units there are."""
    values = [_known_value(m, each) for each in given]
    counts_units = name == "cudaDeviceGetAttribute" and len(values) > 1 and values[1] == CONSTANTS[_UNITS]
    answer = m.world.units if counts_units and m.world.units else UNKNOWN_INT
    for value in values:
        if isinstance(value, Variable):
            m.store(value, answer)
        elif isinstance(value, Pointer) and value.memory.space == "local":
            m.store(Place(value.memory, value.path, value.offset, value.type), answer)


def _known_value(m: Machine, code: Code) -> Any:
    try:
        return code.value(m)
    except AbstainError:  # the name of a kernel, or a driver's own
        return UNKNOWN


def _dispatch(m: Machine, given: Sequence[Code]) -> Any:
    kind = m.value_of(given[0].value(m))
    function = m.value_of(given[-1].value(m))
    if not isinstance(function, Function) or not isinstance(kind, Unknown) or kind.type is None:
        raise AbstainError("a dispatch by an unknown type")
    m.world.dispatched = kind.type
    return m.call(function, ())


def new_tensor(shape: Any, kind: Any) -> Tensor:
    if isinstance(shape, InitList):
        shape = shape.values
    if not isinstance(shape, (tuple, list)) or not all(isinstance(extent, int) for extent in shape):
        raise AbstainError("a tensor of unknown shape")
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    kind = kind or FLOAT
    return Tensor(tuple(shape), tuple(reversed(strides)), kind, Memory("(scratch)", "global", stride * kind.size))


def like(tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise AbstainError("a tensor like an unknown one")
    return new_tensor(tensor.shape, tensor.type)


def host_method(value: Any, name: str, templates: Sequence[Any], given: Sequence[Any]) -> Any:
    """A method of a tensor, or of something that the host has and nobody asks about."""
    if isinstance(value, (tuple, list)):
        if name == "size":
            return len(value)
        return value[given[0]] if name == "at" else UNKNOWN
    if not isinstance(value, Tensor):
        return UNKNOWN
    if name in ("size", "stride") and given and isinstance(given[0], int):
        return (value.shape if name == "size" else value.stride)[given[0]]
    if name in ("data_ptr", "const_data_ptr", "mutable_data_ptr", "data"):
        kind = templates[0] if templates and templates[0] is not None else value.type
        return Pointer(value.memory, (), 0, kind)
    if name in ("scalar_type", "dtype", "type"):
        return Unknown(value.type)
    if name.startswith("new_"):
        return new_tensor(given[0], value.type)
    if name == "contiguous" and new_tensor(value.shape, value.type).stride == value.stride:
        return value
    answers = {
        "numel": value.elements, "dim": len(value.shape), "ndimension": len(value.shape), "sizes": value.shape,
        "strides": value.stride, "element_size": value.type.size, "itemsize": value.type.size, "is_cuda": True,
        "nbytes": value.elements * value.type.size, "is_contiguous": UNKNOWN_BOOL, "device": UNKNOWN, "options": UNKNOWN,
        "defined": True, "get_device": 0,
    }  # fmt: skip
    if name not in answers:
        raise AbstainError(f"a tensor's {name}")
    return answers[name]


def tensor_of(name: str, shape: Sequence[int], stride: Sequence[int], dtype: str) -> Tensor:
    """An argument of a call; its memory is as large as the elements that lie in it."""
    kind = BUILTIN_TYPES[DTYPES[dtype]]
    elements = math.prod(size for size, step in zip(shape, stride, strict=True) if step)
    return Tensor(tuple(shape), tuple(stride), kind, Memory(name, "global", float(elements * kind.size)))


# Functions of the device ----------------------------------------------------------------------------------------------


def _least_or_most(operator: str) -> Callable[..., Any]:
    def run(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
        import numpy as np

        a, b = (m.value_of(each.value(m)) for each in given)
        if is_number(a) and is_number(b):
            if isinstance(a, int) and isinstance(b, int):
                return min(a, b) if operator == "<" else max(a, b)
            return np.minimum(a, b) if operator == "<" else np.maximum(a, b)
        return arithmetic(m, "+", a, b)

    return run


def _computes(count: float) -> Callable[..., Any]:
    def run(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
        values = [m.value_of(each.value(m)) for each in given]
        m.operate(count)
        return next((v for v in values if isinstance(v, Unknown) and v.type is not None), UNKNOWN_FLOAT)

    return run


def _first(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    return m.value_of(given[0].value(m))


def _shuffle(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    value = m.value_of(given[1].value(m))
    for each in given[2:]:
        each.value(m)
    return Unknown(value.type) if isinstance(value, Unknown) else value


def _unknown(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    for each in given:
        each.value(m)
    return UNKNOWN_INT


def _nothing(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    for each in given:
        each.value(m)
    return 0


def _atomic(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    pointer = m.value_of(given[0].value(m))
    for each in given[1:]:
        each.value(m)
    if not isinstance(pointer, Pointer):
        raise AbstainError("an atomic operation on unknown memory")
    m.access("atomic", Place(pointer.memory, pointer.path, pointer.offset, pointer.type))
    return Unknown(pointer.type)


def _converted(name: str) -> Callable[..., Any]:
    kind = BUILTIN_TYPES[name]

    def run(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
        for each in given:
            each.value(m)
        return Unknown(kind)

    return run


def _made(kind: StructType) -> Callable[..., Any]:
    def run(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
        return m.construct(kind, [m.value_of(each.value(m)) for each in given])

    return run


def _whole_load(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    pointer = m.value_of(given[0].value(m))
    if not isinstance(pointer, Pointer):
        raise AbstainError("a load of unknown memory")
    return m.load(Place(pointer.memory, pointer.path, pointer.offset, pointer.type))


def _whole_store(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    pointer, value = m.value_of(given[0].value(m)), given[1].value(m)
    if not isinstance(pointer, Pointer):
        raise AbstainError("a store to unknown memory")
    m.store(Place(pointer.memory, pointer.path, pointer.offset, pointer.type), value)
    return 0


def _copy_async(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    """From global to shared memory, past the registers: to, from, bytes and how many of them are zeros."""
    to, origin, size = (m.value_of(each.value(m)) for each in given[:3])
    zeros = m.value_of(given[3].value(m)) if len(given) > 3 else 0
    if not isinstance(to, Pointer) or not isinstance(origin, Pointer) or not isinstance(size, int):
        raise AbstainError("a copy of unknown memory")

    def place(pointer: Pointer) -> Place:
        return Place(pointer.memory, pointer.path, pointer.offset, pointer.type)

    mask = m.mask
    if is_number(zeros) and not isinstance(zeros, int):
        m.mask = (zeros < size) if mask is True else mask & (zeros < size)
    if not (isinstance(zeros, int) and zeros >= size):
        m.access("load", place(origin), is_async=True, width=size)
    m.mask = mask
    m.access("store", place(to), width=size)
    return 0


def _wait(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    behind = m.value_of(given[0].value(m)) if given else 0
    if isinstance(behind, int):
        m.counts.stages = max(m.counts.stages, behind + 2)
    return 0


def _ceil_div(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    a, b = (m.value_of(each.value(m)) for each in given)
    return arithmetic(m, "/", arithmetic(m, "-", arithmetic(m, "+", a, b), 1), b)


def _swap(m: Machine, _: Sequence[Any], given: Sequence[Code]) -> Any:
    places = [each.place(m) if each.place is not None else None for each in given]
    a, b = (m.value_of(place) for place in places)
    m.store(places[0], b)
    m.store(places[1], a)
    return 0


_CALLS: dict[str, Callable[[Machine, Sequence[Any], Sequence[Any]], Any]] = {
    "min": _least_or_most("<"), "max": _least_or_most(">"), "umin": _least_or_most("<"), "umax": _least_or_most(">"),
    **{name: _computes(count) for name, count in (_UNARY | _BINARY | _FUSED).items()},
    **dict.fromkeys(_SHUFFLES, _shuffle),
    **dict.fromkeys(_VOTES, _unknown),
    **dict.fromkeys(_ATOMICS, _atomic),
    **{name: _converted(kind) for name, kind in _CONVERSIONS.items()},
    **{f"make_{n}": _made(kind) for n, kind in BUILTIN_TYPES.items() if isinstance(kind, StructType)},
    **dict.fromkeys(_WHOLE_LOADS, _whole_load),
    **dict.fromkeys(_WHOLE_STORES, _whole_store),
    **dict.fromkeys(("__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"), _unknown),
    **dict.fromkeys(("__syncwarp", "__threadfence", "__threadfence_block", "__pipeline_commit"), _nothing),
    "__builtin_assume": _nothing,
    "__pipeline_memcpy_async": _copy_async, "__pipeline_wait_prior": _wait,
    "cdiv": _ceil_div, "ceil_div": _ceil_div, "ceildiv": _ceil_div, "move": _first, "forward": _first, "swap": _swap,
    "__builtin_expect": _first, "assume_aligned": _first, "__cvta_generic_to_shared": _first,
}  # fmt: skip
